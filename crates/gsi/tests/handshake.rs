//! Initiator against acceptor in memory, with both TLS versions and every kind of proxy.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{Site, shake};
use openssl::asn1::Asn1Time;
use openssl::hash::MessageDigest;
use openssl::pkey::{Id, PKey};
use openssl::rsa::Rsa;
use openssl::ssl::SslVersion;
use openssl::x509::{X509Builder, X509NameBuilder};
use ropewalk_gsi::{
    Acceptor, AcceptorOptions, After, Credential, DelegatedKeys, Expected, HandshakeError, Identity,
    Initiator, InitiatorOptions, ProxyKind, ProxyTerms, Rights, Step, Timestamp, TlsSettings, create_proxy,
    dcsc,
};

fn options(delegate: Option<ProxyTerms>) -> InitiatorOptions {
    InitiatorOptions {
        expected: Expected::host("localhost"),
        delegate,
        after: After::Flag,
        server_name: Some("localhost".into()),
    }
}

fn settings(version: SslVersion) -> TlsSettings {
    TlsSettings { min_version: version, max_version: version, ..TlsSettings::default() }
}

fn proxy(issuer: &Credential, kind: ProxyKind) -> Credential {
    create_proxy(issuer, 2048, &ProxyTerms { kind, ..ProxyTerms::default() }, Timestamp::now()).unwrap()
}

#[test]
fn handshake_with_every_kind_of_credential_succeeds() {
    let site = Site::new();
    let user = site.user();
    let kinds = [
        None,
        Some(ProxyKind::Rfc3820(Rights::All)),
        Some(ProxyKind::Rfc3820(Rights::Limited)),
        Some(ProxyKind::Draft(Rights::All)),
        Some(ProxyKind::Legacy { limited: false }),
        Some(ProxyKind::Legacy { limited: true }),
    ];
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let server = site.identity(site.host(), &settings(version));
        for kind in kinds {
            let credential = kind.map_or_else(|| user.clone(), |kind| proxy(&user, kind));
            let client = site.identity(&credential, &settings(version));
            let limited = ProxyTerms { kind: ProxyKind::Rfc3820(Rights::Limited), ..ProxyTerms::default() };
            let delegates = if kind.is_none() { vec![None, Some(limited)] } else { vec![None] };
            for delegate in delegates {
                let (mut one, mut other) = shake(
                    Initiator::new(&client, options(delegate)).unwrap(),
                    Acceptor::new(&server, AcceptorOptions::default()).unwrap(),
                )
                .unwrap();
                assert_eq!(other.peer().identity, user.subject(), "{kind:?}");
                assert_eq!(other.peer().proxy, kind);
                let got = other.take_delegated();
                assert_eq!(got.is_some(), delegate.is_some());
                if let Some(got) = got {
                    assert_eq!(got.identity(), user.subject());
                    let mut chain = vec![got.certificate().clone()];
                    chain.extend(got.chain().iter().cloned());
                    let peer = site.trust().verify(&chain, Timestamp::now()).unwrap();
                    assert!(peer.is_limited());
                }
                let (mut line, mut plain) = (Vec::new(), Vec::new());
                one.seal_command(b"FEAT\r\n", &mut line).unwrap();
                assert!(line.starts_with(b"ENC "));
                assert_eq!(other.open_command(&line).unwrap(), b"FEAT\r\n");
                line.clear();
                other.seal_reply(b"211-Extensions\r\n DCAU\r\n211 End.\r\n", &mut line).unwrap();
                for (reply, begin) in line.split_inclusive(|&b| b == b'\n').zip(["632-", "632-", "632 "]) {
                    assert!(reply.starts_with(begin.as_bytes()));
                    plain.extend(one.open_reply(reply).unwrap());
                }
                assert_eq!(plain, b"211-Extensions\r\n DCAU\r\n211 End.\r\n");
            }
        }
    }
}

#[test]
fn handshake_of_data_connections_protects_data() {
    let site = Site::new();
    let user = site.user();
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let both = site.identity(&user, &settings(version));
        for after in [After::Flag, After::Nothing] {
            let expected = Expected::Subject(user.identity().to_owned());
            let initiator =
                InitiatorOptions { expected: expected.clone(), delegate: None, after, server_name: None };
            let acceptor =
                AcceptorOptions { expected, after, accept_limited: true, ..AcceptorOptions::default() };
            let (mut one, mut other) =
                shake(Initiator::new(&both, initiator).unwrap(), Acceptor::new(&both, acceptor).unwrap())
                    .unwrap();
            let data = vec![42; 100_000];
            let mut sealed = Vec::new();
            one.seal(&data, &mut sealed).unwrap();
            let mut plain = Vec::new();
            // In small chunks, as TCP may deliver them.
            for piece in sealed.chunks(1000) {
                assert!(other.open(piece, &mut plain).unwrap());
            }
            assert_eq!(plain, data);
        }
    }
}

#[test]
fn handshake_refuses_unexpected_peers() {
    let site = Site::new();
    let other_site = Site::new();
    let any = TlsSettings::default();
    let server = site.identity(site.host(), &any);
    let refused = |client: &Identity, options: InitiatorOptions, acceptor: AcceptorOptions| {
        shake(Initiator::new(client, options).unwrap(), Acceptor::new(&server, acceptor).unwrap())
            .unwrap_err()
    };
    let user = site.user();
    let client = site.identity(&user, &any);
    let wrong_host = InitiatorOptions { expected: Expected::host("elsewhere.org"), ..options(None) };
    let error = refused(&client, wrong_host, AcceptorOptions::default());
    assert!(matches!(error, HandshakeError::WrongPeer(_)), "{error}");
    let error = refused(
        &client,
        options(None),
        AcceptorOptions { expected: Expected::Subject("/CN=x".into()), ..AcceptorOptions::default() },
    );
    assert!(error.to_string().contains("/CN=x"), "{error}");
    // A user of another site whose certificate has the same name.
    let stranger = site.identity(&other_site.user(), &any);
    let error = refused(&stranger, options(None), AcceptorOptions::default());
    assert!(matches!(error, HandshakeError::Chain(_)), "{error}");
    let limited = site.identity(&proxy(&user, ProxyKind::Rfc3820(Rights::Limited)), &any);
    let error = refused(
        &limited,
        options(None),
        AcceptorOptions { accept_limited: false, ..AcceptorOptions::default() },
    );
    assert!(matches!(error, HandshakeError::LimitedProxy { .. }), "{error}");
}

#[test]
fn acceptor_refuses_garbage_and_changed_records() {
    let site = Site::new();
    let server = site.identity(site.host(), &TlsSettings::default());
    for rubbish in [&b"\0"[..], b"GET / HTTP/1.0\r\n\r\n", &[0x16, 3, 1, 0xff, 0xff], &[0x80; 200]] {
        let mut acceptor = Acceptor::new(&server, AcceptorOptions::default()).unwrap();
        let mut failed = false;
        for _ in 0..40 {
            failed |= acceptor.step(&rubbish.repeat(500)).is_err();
        }
        assert!(failed, "{rubbish:?}");
    }
    // A record that was changed on the way.
    let client = site.identity(&site.user(), &TlsSettings::default());
    let (mut one, mut other) = shake(
        Initiator::new(&client, options(None)).unwrap(),
        Acceptor::new(&server, AcceptorOptions::default()).unwrap(),
    )
    .unwrap();
    let mut sealed = Vec::new();
    one.seal(b"DELE x\r\n", &mut sealed).unwrap();
    let last = sealed.len() - 1;
    sealed[last] ^= 1;
    assert!(other.open(&sealed, &mut Vec::new()).is_err());
    assert!(other.open_command(b"DELE x\r\n").is_err());
}

/// The credential that globus-url-copy sends with `-data-cred auto`: self-signed, with MD5.
#[test]
fn handshake_with_md5_data_credential_succeeds() {
    let key = PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap();
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("CN", "Globus DCSC Cert").unwrap();
    let name = name.build();
    let mut builder = X509Builder::new().unwrap();
    builder.set_subject_name(&name).unwrap();
    builder.set_issuer_name(&name).unwrap();
    builder.set_not_before(&Asn1Time::days_from_now(0).unwrap()).unwrap();
    builder.set_not_after(&Asn1Time::days_from_now(1).unwrap()).unwrap();
    builder.set_pubkey(&key).unwrap();
    builder.sign(&key, MessageDigest::md5()).unwrap();
    let credential = Credential::new(builder.build(), Vec::new(), key).unwrap();
    let credential = dcsc::parse(&dcsc::encode(&credential).unwrap()).unwrap();
    let expected = Expected::Subject(credential.identity().to_owned());
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let identity = dcsc::identity(credential.clone(), None, &settings(version)).unwrap();
        let initiator = InitiatorOptions { expected: expected.clone(), ..options(None) };
        let acceptor = AcceptorOptions { expected: expected.clone(), ..AcceptorOptions::default() };
        shake(Initiator::new(&identity, initiator).unwrap(), Acceptor::new(&identity, acceptor).unwrap())
            .unwrap();
    }
}

#[test]
fn server_name_selects_the_virtual_host() {
    let site = Site::new();
    let any = TlsSettings::default();
    let other = site.identity(&site.ca.issue_host(&["data.example.org"], 10).unwrap(), &any);
    let (credential, trust) = (Arc::new(site.host().clone()), Arc::new(site.trust()));
    let server = Identity::with_virtual_hosts(credential, trust, &any, vec![other]).unwrap();
    let client = site.identity(&site.user(), &any);
    for host in ["localhost", "data.example.org"] {
        let wanted = InitiatorOptions {
            expected: Expected::host(host),
            server_name: Some(host.into()),
            ..options(None)
        };
        shake(
            Initiator::new(&client, wanted).unwrap(),
            Acceptor::new(&server, AcceptorOptions::default()).unwrap(),
        )
        .unwrap();
    }
}

/// One byte of one token is changed, so the handshake must fail.
#[test]
fn handshake_with_changed_tokens_fails() {
    let site = Site::new();
    let any = TlsSettings::default();
    let server = site.identity(site.host(), &any);
    let client = site.identity(&site.user(), &any);
    let mut random = 7u64;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    for round in 0..150 {
        let mut initiator = Initiator::new(&client, options(None)).unwrap();
        let mut acceptor = Acceptor::new(&server, AcceptorOptions::default()).unwrap();
        let (mut token, mut done) = (Vec::new(), [false; 2]);
        for step in 0..6 {
            let result = if step % 2 == 0 { initiator.step(&token) } else { acceptor.step(&token) };
            token = match result {
                Ok(Step::Continue(token)) => token,
                Ok(Step::Done(token, _)) => {
                    done[step % 2] = true;
                    token
                }
                Err(_) => break,
            };
            if step == round % 5 && !token.is_empty() {
                // Truncated in every third round.
                if round % 3 == 0 {
                    token.truncate(next(token.len()));
                } else {
                    let at = next(token.len());
                    token[at] ^= 1 << next(8);
                }
            }
            if token.is_empty() {
                break;
            }
        }
        assert!(!done[1], "round {round}: the acceptor believes");
    }
}

#[test]
fn handshake_does_not_fall_below_the_minimum_version() {
    let site = Site::new();
    let old = site.identity(site.host(), &settings(SslVersion::TLS1_2));
    let new = site.identity(&site.user(), &settings(SslVersion::TLS1_3));
    let error = shake(
        Initiator::new(&new, options(None)).unwrap(),
        Acceptor::new(&old, AcceptorOptions::default()).unwrap(),
    )
    .unwrap_err();
    assert!(matches!(error, HandshakeError::Tls(_)), "{error}");
}

#[test]
fn delegated_proxies_have_the_requested_kind_of_key() {
    let site = Site::new();
    let client = site.identity(&site.user(), &TlsSettings::default());
    let server = site.identity(site.host(), &TlsSettings::default());
    for (keys, id, bits) in
        [(DelegatedKeys::default(), Id::EC, 256), (DelegatedKeys::Rsa(None), Id::RSA, 2048)]
    {
        let acceptor = AcceptorOptions { keys, ..AcceptorOptions::default() };
        let (_, mut other) = shake(
            Initiator::new(&client, options(Some(ProxyTerms::default()))).unwrap(),
            Acceptor::new(&server, acceptor).unwrap(),
        )
        .unwrap();
        let got = other.take_delegated().unwrap();
        assert_eq!((got.key().id(), got.key().bits()), (id, bits));
        // The delegated proxy can issue proxies itself and represents the user when presented, in
        // both versions of TLS.
        for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
            let shown = site.identity(&got, &settings(version));
            let (_, again) = shake(
                Initiator::new(&shown, options(Some(ProxyTerms::default()))).unwrap(),
                Acceptor::new(&server, AcceptorOptions::default()).unwrap(),
            )
            .unwrap();
            assert_eq!(again.peer().identity, site.user().subject());
            assert!(again.delegated().is_some());
        }
    }
}
