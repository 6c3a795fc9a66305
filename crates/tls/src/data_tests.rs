//! Ropewalk's record layer and OpenSSL's, on either side of a connection.
#![allow(clippy::unwrap_used, unsafe_code)]

use std::ffi::c_int;

use foreign_types::ForeignTypeRef;
use openssl::pkey::PKey;
use openssl::ssl::{Ssl, SslContext, SslMethod, SslVerifyMode};
use openssl::x509::X509;

use super::*;
use crate::{Handshake, RECORD};

unsafe extern "C" {
    fn SSL_key_update(ssl: *mut openssl_sys::SSL, kind: c_int) -> c_int;
    fn SSL_CTX_set_tlsext_max_fragment_length(context: *mut openssl_sys::SSL_CTX, mode: u8) -> c_int;
}

const SUITES: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The record layer of one side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own,
    OpenSsl,
}
use Kind::{OpenSsl, Own as Ours};

fn context(suite: &str, version: SslVersion) -> SslContext {
    let pem = crate::make(&["localhost".to_owned()]).unwrap();
    let mut builder = SslContext::builder(SslMethod::tls()).unwrap();
    builder.set_min_proto_version(Some(version)).unwrap();
    builder.set_max_proto_version(Some(version)).unwrap();
    builder.set_ciphersuites(suite).unwrap();
    builder.set_certificate(&X509::from_pem(&pem).unwrap()).unwrap();
    builder.set_private_key(&PKey::private_key_from_pem(&pem).unwrap()).unwrap();
    builder.set_session_id_context(b"test").unwrap();
    builder.set_verify(SslVerifyMode::NONE);
    keylog::allow_data(&mut builder);
    builder.build()
}

/// Runs a handshake. Returns the records of both sides, the client's first, and the bytes that the
/// server sent after the handshake.
fn shake(context: &SslContext, client: Kind, server: Kind, tickets: usize) -> (Records, Records, Vec<u8>) {
    let begin = |kind: Kind, accepts: bool| {
        let mut ssl = Ssl::new(context).unwrap();
        if kind == Ours {
            keylog::for_data(&mut ssl).unwrap();
        }
        if accepts {
            ssl.set_num_tickets(tickets).unwrap();
            ssl.set_accept_state();
        } else {
            ssl.set_connect_state();
        }
        Handshake::new(ssl, context).unwrap()
    };
    let (mut client, mut server) = (begin(client, false), begin(server, true));
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let (mut one, mut other) = (client.step(&[], &mut up).unwrap(), None);
    loop {
        if other.is_none() {
            other = server.step(&std::mem::take(&mut up), &mut down).unwrap();
        }
        if one.is_none() {
            one = client.step(&std::mem::take(&mut down), &mut up).unwrap();
        }
        if let (Some(_), Some(_)) = (&one, &other) {
            return (one.unwrap().records, other.unwrap().records, down);
        }
    }
}

fn pair(suite: &str, client: Kind, server: Kind) -> (DataRecords, DataRecords) {
    // OpenSSL's server sends tickets, which Ropewalk's record layer must skip.
    let tickets = if server == Ours { 0 } else { 3 };
    let (one, other, behind) = shake(&context(suite, SslVersion::TLS1_3), client, server, tickets);
    let (mut one, other) = (DataRecords::new(one), DataRecords::new(other));
    assert!(one.is_own() == (client == Ours) && other.is_own() == (server == Ours));
    assert_eq!(behind.is_empty(), tickets == 0);
    feed(&mut one, &behind);
    (one, other)
}

fn feed(records: &mut DataRecords, bytes: &[u8]) {
    records.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
    records.received(bytes.len());
}

/// Moves the output of `from` to `to` in chunks and returns the data that was read, and whether the
/// direction was closed.
fn carry(
    from: &mut DataRecords,
    to: &mut DataRecords,
    piece: usize,
    room: usize,
) -> Result<(Vec<u8>, bool), RecordError> {
    let wire = from.output().to_vec();
    from.sent(wire.len());
    let (mut got, mut buffer) = (Vec::new(), vec![0; room]);
    for piece in wire.chunks(piece) {
        feed(to, piece);
        loop {
            match to.read(&mut buffer)? {
                Opened::Bytes(count) => got.extend_from_slice(&buffer[..count]),
                Opened::Nothing => break,
                Opened::End => return Ok((got, true)),
            }
        }
    }
    Ok((got, false))
}

fn data(length: u32) -> Vec<u8> {
    (0..length).map(|n| (n ^ n >> 8).wrapping_mul(37) as u8).collect()
}

/// Sends data in both directions.
fn exchange(one: &mut DataRecords, other: &mut DataRecords) {
    let data = data(70_001);
    for (piece, room) in [(100_000, RECORD), (1, 3000), (16 << 10, 100_000), (777, 17)] {
        assert_eq!(one.seal(&[IoSlice::new(&data)], usize::MAX).unwrap(), data.len());
        assert!(carry(one, other, piece, room).unwrap() == (data.clone(), false));
        assert_eq!(
            other.seal(&[IoSlice::new(&data[..9]), IoSlice::new(&data[9..])], 50_000).unwrap(),
            50_000
        );
        assert!(carry(other, one, piece, room).unwrap() == (data[..50_000].to_vec(), false));
    }
}

#[test]
fn data_records_interoperate_with_openssl() {
    for suite in SUITES {
        for (client, server) in [(Ours, OpenSsl), (OpenSsl, Ours), (Ours, Ours)] {
            let (mut one, mut other) = pair(suite, client, server);
            exchange(&mut one, &mut other);
            one.close().unwrap();
            assert_eq!(carry(&mut one, &mut other, 10, 10).unwrap(), (vec![], true));
            other.close().unwrap();
            assert_eq!(carry(&mut other, &mut one, 10, 10).unwrap(), (vec![], true));
            assert!(one.seal(&[IoSlice::new(b"more")], 9).is_err());
        }
    }
}

#[test]
fn key_update_by_either_side_succeeds() {
    for suite in SUITES {
        for (client, server) in [(Ours, OpenSsl), (OpenSsl, Ours)] {
            let (mut one, mut other) = pair(suite, client, server);
            let (own, peer) = if client == Ours { (&mut one, &mut other) } else { (&mut other, &mut one) };
            exchange(own, peer);
            for requested in [0, 1, 1] {
                let Layer::OpenSsl(records) = &peer.layer else { panic!("it is ours") };
                // SAFETY: the connection is live and this is its only user.
                assert_eq!(unsafe { SSL_key_update(records.ssl().as_ptr(), requested) }, 1);
                peer.seal(&[IoSlice::new(b"with other keys")], 99).unwrap();
                assert_eq!(carry(peer, own, 5, 100).unwrap().0, b"with other keys");
                assert_eq!(own.output().is_empty(), requested == 0, "the answer");
                exchange(own, peer);
            }
            let Layer::Own(layer) = &mut own.layer else { panic!("it is OpenSSL's") };
            layer.sealer.wear_out();
            exchange(own, peer);
        }
    }
}

#[test]
fn changed_record_is_answered_with_an_alert() {
    for (client, server) in [(Ours, OpenSsl), (OpenSsl, Ours)] {
        let (mut one, mut other) = pair(SUITES[0], client, server);
        let (own, peer) = if client == Ours { (&mut one, &mut other) } else { (&mut other, &mut one) };
        peer.seal(&[IoSlice::new(b"hello")], 99).unwrap();
        let mut wire = peer.output().to_vec();
        peer.sent(wire.len());
        *wire.last_mut().unwrap() ^= 1;
        feed(own, &wire);
        let error = own.read(&mut [0; 9]).unwrap_err().to_string();
        assert!(error.contains("does not verify"), "{error}");
        let error = carry(own, peer, 99, 99).unwrap_err().to_string();
        assert!(error.contains("bad record mac"), "{error}");
        assert!(own.read(&mut [0; 9]).is_err());
        assert!(own.seal(&[IoSlice::new(b"x")], 9).is_err());
    }
}

#[test]
fn alert_of_openssl_is_reported_and_not_answered() {
    let (mut one, mut other) = pair(SUITES[1], Ours, OpenSsl);
    one.seal(&[IoSlice::new(b"hello")], 99).unwrap();
    let mut wire = one.output().to_vec();
    wire[9] ^= 1;
    feed(&mut other, &wire);
    other.read(&mut [0; 9]).unwrap_err();
    let error = carry(&mut other, &mut one, 99, 99).unwrap_err().to_string();
    assert!(error.contains("alert 20 (bad_record_mac"), "{error}");
    assert!(one.output().len() == wire.len(), "an alert is not answered");
}

#[test]
fn data_records_with_used_keys_or_tls12_stay_with_openssl() {
    let goes_on = |records: Records| !DataRecords::new(records).is_own();
    let tls13 = context(SUITES[1], SslVersion::TLS1_3);
    let (one, other, _) = shake(&tls13, OpenSsl, OpenSsl, 0);
    assert!(goes_on(one) && goes_on(other), "control connections");
    let (_, server, _) = shake(&tls13, Ours, Ours, 1);
    assert!(goes_on(server), "it has used its keys for a ticket");
    let (mut client, mut server, _) = shake(&tls13, Ours, Ours, 0);
    client.seal(b"x", &mut Vec::new()).unwrap();
    assert!(goes_on(client));
    assert_eq!(server.read(&mut [0; 9]).unwrap(), Opened::Nothing);
    assert!(goes_on(server));
    let (one, other, _) = shake(&context(SUITES[1], SslVersion::TLS1_2), Ours, Ours, 0);
    let (mut one, mut other) = (DataRecords::new(one), DataRecords::new(other));
    assert!(!one.is_own() && !other.is_own());
    exchange(&mut one, &mut other);
}

#[test]
fn data_records_with_negotiated_length_stay_with_openssl() {
    let short = context(SUITES[1], SslVersion::TLS1_3);
    // SAFETY: the context is live and this is its only user. 1 stands for 512 bytes.
    assert_eq!(unsafe { SSL_CTX_set_tlsext_max_fragment_length(short.as_ptr(), 1) }, 1);
    let (one, other, _) = shake(&short, Ours, Ours, 0);
    let (mut one, mut other) = (DataRecords::new(one), DataRecords::new(other));
    assert!(!one.is_own() && !other.is_own());
    exchange(&mut one, &mut other);
}

#[test]
fn is_torn_detects_an_end_within_a_record() {
    for (kind, other_kind) in [(Ours, OpenSsl), (OpenSsl, Ours)] {
        let (mut one, mut other) = pair(SUITES[1], kind, other_kind);
        one.seal(&[IoSlice::new(b"hello")], 99).unwrap();
        let wire = one.output().to_vec();
        for cut in 0..=wire.len() {
            // OpenSSL does not report a header without a body.
            if other.is_own() || cut != 5 {
                assert_eq!(other.is_torn(), cut != 0, "{cut}");
            }
            if let Some(byte) = wire.get(cut) {
                feed(&mut other, &[*byte]);
                let whole = cut + 1 == wire.len();
                let opened = other.read(&mut [0; 9]).unwrap();
                assert_eq!(opened, if whole { Opened::Bytes(5) } else { Opened::Nothing });
                if whole {
                    assert!(!other.is_torn());
                    break;
                }
            }
        }
    }
}

#[test]
fn close_after_failure_fails() {
    let (mut one, mut other) = pair(SUITES[1], Ours, OpenSsl);
    feed(&mut one, &[0; 9]);
    one.read(&mut [0; 9]).unwrap_err();
    assert!(one.close().is_err());
    other.close().unwrap();
    other.close().unwrap();
}

#[test]
fn keylog_returns_secrets_once() {
    let (one, _, _) = shake(&context(SUITES[1], SslVersion::TLS1_3), Ours, Ours, 0);
    assert!(keylog::take(one.ssl()).server.is_some());
    assert!(keylog::take(one.ssl()).server.is_none());
}

#[test]
fn repeated_key_update_requests_have_bounded_answers() {
    let (mut one, mut other) = pair(SUITES[1], Ours, OpenSsl);
    for _ in 0..500 {
        let Layer::OpenSsl(records) = &other.layer else { panic!("it is ours") };
        // SAFETY: the connection is live and this is its only user.
        assert_eq!(unsafe { SSL_key_update(records.ssl().as_ptr(), 1) }, 1);
        other.seal(&[IoSlice::new(b"x")], 1).unwrap();
        assert_eq!(carry(&mut other, &mut one, 999, 9).unwrap().0, b"x");
        assert!(one.output().len() < 2 * MAX_ANSWERS);
    }
    exchange(&mut one, &mut other);
}
