//! Malformed MODE E streams sent to Ropewalk's server.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use anyhow::Result;
use ropewalk_tests::control::{Reply, connect_data};
use ropewalk_tests::mode_e::{EOD, EOF, block, end_of_file, header};

use crate::fixture::Fixture;

/// Uploads with `script` and returns the final reply. The data connections stay open until it has
/// arrived.
fn upload(
    fixture: &Fixture,
    script: impl Fn(&mut dyn FnMut() -> Result<TcpStream>) -> Result<Vec<TcpStream>>,
) -> Result<Reply> {
    let mut control = fixture.log_in()?;
    control.expect("MODE E", 200)?;
    let address = control.passive()?;
    control.send("STOR /lie")?;
    let open = script(&mut || connect_data(address))?;
    let reply = control.final_reply()?;
    drop(open);
    // The session is still usable.
    control.expect("NOOP", 200)?;
    Ok(reply)
}

/// The upload must fail without leaving a file or doing other harm.
fn refused(name: &str, script: impl Fn(&mut dyn FnMut() -> Result<TcpStream>) -> Result<Vec<TcpStream>>) {
    let mut fixture = Fixture::new().unwrap();
    let before = fixture.memory().unwrap();
    let reply = upload(&fixture, script).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    assert!((400..600).contains(&reply.code), "{name}: {reply:?}");
    assert_eq!(fixture.visible().unwrap(), ["known"], "{name}");
    let grown = fixture.memory().unwrap().saturating_sub(before);
    assert!(grown < 64 << 20, "{name}: grew by {grown} bytes");
    fixture.still_serves().unwrap();
}

/// Opens one connection that sends `bytes` and then closes its side if `close` is set.
fn one(bytes: &[u8], close: bool, connect: &mut dyn FnMut() -> Result<TcpStream>) -> Result<Vec<TcpStream>> {
    let mut data = connect()?;
    // The server may close the connection before everything is sent.
    let _ = data.write_all(bytes);
    if close {
        let _ = data.shutdown(Shutdown::Write);
    }
    Ok(vec![data])
}

#[test]
fn block_whose_offset_and_count_overflow_is_refused() {
    for (offset, count) in [(u64::MAX - 5, 10), (i64::MAX as u64 - 5, 10), (u64::MAX, 1), (1 << 63, 10)] {
        refused("overflow", |connect| {
            let mut bytes = header(0, count, offset).to_vec();
            bytes.extend_from_slice(&[1; 10]);
            bytes.extend_from_slice(&end_of_file(1));
            one(&bytes, true, connect)
        });
    }
}

#[test]
fn truncated_block_is_refused() {
    for count in [1000, 1 << 40, i64::MAX as u64, u64::MAX] {
        refused("count", |connect| {
            let mut bytes = header(0, count, 0).to_vec();
            bytes.extend_from_slice(&[1; 500]);
            one(&bytes, true, connect)
        });
    }
}

#[test]
fn connection_without_eod_is_refused() {
    refused("FIN after a block", |connect| one(&block(0, b"some bytes"), true, connect));
    refused("FIN within a header", |connect| one(&header(0, 10, 0)[..5], true, connect));
    refused("FIN at once", |connect| one(&[], true, connect));
}

#[test]
fn eof_count_above_connections_is_refused() {
    for count in [2, 1000, u64::MAX] {
        refused("EOF count", |connect| {
            let mut bytes = block(0, b"some bytes");
            bytes.extend_from_slice(&end_of_file(count));
            one(&bytes, false, connect)
        });
    }
}

#[test]
fn contradictory_eof_counts_are_refused() {
    refused("two counts", |connect| {
        let mut first = connect()?;
        first.write_all(&header(EOF, 0, 2))?;
        first.write_all(&header(EOF | EOD, 0, 3))?;
        let mut second = connect()?;
        second.write_all(&header(EOD, 0, 0))?;
        Ok(vec![first, second])
    });
}

#[test]
fn eod_without_eof_is_refused() {
    refused("EOD only", |connect| one(&header(EOD, 0, 0), true, connect));
}

#[test]
fn eof_count_of_zero_is_refused() {
    refused("EOF 0", |connect| {
        let mut bytes = block(0, b"some bytes");
        bytes.extend_from_slice(&end_of_file(0));
        one(&bytes, true, connect)
    });
}

#[test]
fn valid_upload_is_accepted() {
    let mut fixture = Fixture::new().unwrap();
    let reply = upload(&fixture, |connect| {
        // Out of order, over three connections, with the end of the file in the middle.
        let (mut a, mut b, mut c) = (connect()?, connect()?, connect()?);
        c.write_all(&block(10, b"third"))?;
        a.write_all(&block(5, b"secon"))?;
        a.write_all(&end_of_file(3))?;
        b.write_all(&block(0, b"first"))?;
        b.write_all(&header(EOD, 0, 0))?;
        c.write_all(&header(EOD, 0, 0))?;
        Ok(vec![a, b, c])
    })
    .unwrap();
    assert_eq!(reply.code, 226, "{reply:?}");
    assert_eq!(std::fs::read(fixture.root.join("lie")).unwrap(), b"firstseconthird");
    fixture.still_serves().unwrap();
}

#[test]
fn reserved_bits_and_empty_blocks_are_harmless() {
    let mut fixture = Fixture::new().unwrap();
    let reply = upload(&fixture, |connect| {
        let mut bytes = header(0x80, 0, 0).to_vec();
        bytes.extend_from_slice(&header(0, 0, 12345));
        bytes.extend_from_slice(&header(0x03, 4, 0));
        bytes.extend_from_slice(b"data");
        bytes.extend_from_slice(&end_of_file(1));
        one(&bytes, false, connect)
    })
    .unwrap();
    assert_eq!(reply.code, 226, "{reply:?}");
    assert_eq!(std::fs::read(fixture.root.join("lie")).unwrap(), b"data");
    fixture.still_serves().unwrap();
}
