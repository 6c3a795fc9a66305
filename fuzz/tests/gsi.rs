//! Certificates, policies, maps and handshakes of GSI.

#![allow(clippy::unwrap_used)]

use std::sync::OnceLock;

use ropewalk_fuzz::{Decisions, ITERATIONS, soup};
use ropewalk_gsi::testing::{Forged, INHERIT_ALL, PROXY_CERT_INFO, Site, readable, shake};
use ropewalk_gsi::{
    Acceptor, AcceptorOptions, After, Expected, Gridmap, GsiConf, Identity, Initiator, InitiatorOptions,
    Session, SigningPolicy, Step, TlsSettings, ca, canonical, dcsc, decode_token, encode_token, parse_voms,
    same,
};

/// Number of inputs of harnesses with handshakes, which are slow.
const HANDSHAKES: usize = 300;

const POLICY_WORDS: &[&[u8]] = &[
    b"access_id_CA ",
    b"access_id_anybody\n",
    b"X509 ",
    b"pos_rights ",
    b"neg_rights ",
    b"globus ",
    b"CA:sign\n",
    b"cond_subjects ",
    b"'/O=Grid/CN=CA'\n",
    b"'\"/O=Grid/*\" \"/O=?/CN=x\"'\n",
    b"/O=Grid/CN=x",
    b"\n",
    b"# ",
    b"*",
    b"?",
];

/// A policy allows nothing to an authority that it does not mention.
#[test]
fn signing_policy() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, POLICY_WORDS);
        let text = String::from_utf8_lossy(&text);
        let Ok(policy) = SigningPolicy::parse(&text) else { return };
        for authority in ["/O=Grid/CN=CA", "/CN=other"] {
            for subject in ["/O=Grid/CN=x", "/O=Grid/CN=y/E=a@b", &text] {
                assert!(!policy.allows(authority, subject) || policy.mentions(authority));
            }
        }
    });
}

const GRIDMAP_WORDS: &[&[u8]] = &[
    b"\"/O=Grid/CN=A B\" ",
    b"/O=Grid/CN=C ",
    b"ann",
    b",",
    b"bob\n",
    b".pool\n",
    b"\\x41",
    b"\\x0a",
    b"\\\"",
    b"#",
    b"/E=",
];

/// Accounts that a map returns are not empty and have no separators; problems have the number of an
/// existing line.
#[test]
fn gridmap() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, GRIDMAP_WORDS);
        let text = String::from_utf8_lossy(&text);
        let map = Gridmap::parse(&text);
        let lines = text.lines().count();
        assert!(map.problems().iter().all(|problem| (1..=lines).contains(&problem.line)));
        for subject in ["/O=Grid/CN=A B", "/O=Grid/CN=C"] {
            for account in map.accounts(subject) {
                let (ropewalk_gsi::Account::Local(name) | ropewalk_gsi::Account::Pool(name)) = account;
                assert!(!name.is_empty() && !name.contains(['/', '"', ':', ' ', '\n']), "{name:?}");
            }
        }
        assert_eq!(map.accounts("").count(), 0);
        // A name equals its canonical form in any spelling.
        let name = format!("/CN={}", text.replace(['\n', '\r'], ""));
        assert!(same(&name, &canonical(&name)));
        let written = Gridmap::parse(&ca::gridmap_line("/O=Grid/CN=x", &["ann"]));
        assert!(written.permits("/O=Grid/CN=x", "ann"));
    });
}

const CONF_WORDS: &[&[u8]] = &[
    b"MIN_TLS_PROTOCOL",
    b"MAX_TLS_PROTOCOL",
    b"NAME_COMPATIBILITY",
    b"CIPHERS",
    b"SERVER_CIPHER_ORDER",
    b"VHOST_CRED_OWNER",
    b"=",
    b"TLS1_2_VERSION",
    b"TLS1_VERSION_DEPRECATED",
    b"HYBRID",
    b"\"HIGH\"",
    b"true",
    b"\n",
];

/// TLS versions before 1.2 are never selected.
#[test]
fn gsi_conf() {
    use ropewalk_gsi::SslVersion;
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, CONF_WORDS);
        let text = String::from_utf8_lossy(&text);
        let Ok(conf) = GsiConf::parse(&text, |_| None) else { return };
        let settings = TlsSettings::from(&conf);
        for version in [settings.min_version, settings.max_version] {
            assert!(version == SslVersion::TLS1_2 || version == SslVersion::TLS1_3);
        }
        assert!(settings.ciphers.ends_with("!aNULL") || settings.ciphers.contains("!aNULL:"));
    });
}

struct Yard {
    site: Site,
    client: Identity,
    server: Identity,
    /// The certificate of a proxy with extensions.
    certificate: Vec<u8>,
    _directory: tempfile::TempDir,
}

fn yard() -> &'static Yard {
    static YARD: OnceLock<Yard> = OnceLock::new();
    YARD.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::at(directory.path());
        let user = site.user();
        let extensions: &[(&str, bool, &[u8])] = &[
            (PROXY_CERT_INFO, true, INHERIT_ALL),
            ("2.5.29.15", true, &[3, 2, 5, 0xa0]),
            ("2.5.29.19", true, &[0x30, 0]),
            ("1.3.6.1.4.1.8005.100.100.5", false, &[0x30, 4, 0x30, 2, 0x30, 0]),
        ];
        let certificate = Forged { extensions, ..Forged::proxy(&user) }.below(&user);
        let certificate = certificate.certificate().to_der().unwrap();
        let settings = TlsSettings::default();
        let (client, server) = (site.identity(&user, &settings), site.identity(site.host(), &settings));
        Yard { client, server, certificate, _directory: directory, site }
    })
}

/// Changes some bytes of `bytes`.
fn changed(bytes: &[u8], choose: &mut Decisions<'_>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=choose.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = (choose.byte() as usize * 256 + choose.byte() as usize) % bytes.len();
        match choose.below(4) {
            0 => bytes[at] = choose.byte(),
            1 => bytes[at] ^= 1 << choose.below(8),
            2 => bytes.truncate(at),
            _ => {
                let more = choose.bytes(4);
                bytes.splice(at..at, more);
            }
        }
    }
    bytes
}

/// A copy of a token without the parts that a receiver must ignore: the version of records in clear
/// is neither authenticated nor used (RFC 8446, section 5.1: it "MUST be ignored for all
/// purposes").
fn said(token: &[u8]) -> Vec<u8> {
    const IN_CLEAR: [u8; 2] = [20, 22];
    let mut token = token.to_vec();
    let mut rest = &mut token[..];
    while let [kind, version @ .., high, low] = rest.get_mut(..5).unwrap_or_default() {
        if IN_CLEAR.contains(kind) {
            version.fill(0);
        }
        let length = 5 + usize::from(u16::from_be_bytes([*high, *low]));
        rest = rest.get_mut(length..).unwrap_or_default();
    }
    token
}

/// Random input, and a real certificate with some bytes changed.
#[test]
fn certificates() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        readable(input);
        let _ = parse_voms(input);
        let mut choose = Decisions(input);
        let der = changed(&yard().certificate, &mut choose);
        readable(&der);
        readable(&changed(INHERIT_ALL, &mut choose));
        if let Ok(certificate) = ropewalk_gsi::X509::from_der(&der) {
            let chain = [certificate, yard().site.user().certificate().clone()];
            let believed = yard().site.trust().verify(&chain, ropewalk_gsi::Timestamp::now());
            assert!(
                believed.is_err() || der == yard().certificate,
                "a certificate that nobody signed is believed"
            );
        }
    });
}

/// The argument of DCSC.
#[test]
fn data_credential() {
    let whole = dcsc::encode(&yard().site.user()).unwrap();
    bolero::check!().with_iterations(ITERATIONS / 5).for_each(|input: &[u8]| {
        let _ = dcsc::parse(&String::from_utf8_lossy(input));
        let mut choose = Decisions(input);
        let text = changed(whole.as_bytes(), &mut choose);
        let _ = dcsc::parse(&String::from_utf8_lossy(&text));
        let pem = decode_token(&whole).unwrap();
        let _ = dcsc::parse(&encode_token(&changed(&pem, &mut choose)));
    });
}

fn initiator(after: After) -> Initiator {
    let options = InitiatorOptions {
        expected: Expected::host("localhost"),
        delegate: None,
        after,
        server_name: Some("localhost".into()),
    };
    Initiator::new(&yard().client, options).unwrap()
}

fn acceptor(after: After) -> Acceptor {
    let options = AcceptorOptions {
        expected: Expected::Subject(yard().site.user().identity().to_owned()),
        after,
        ..AcceptorOptions::default()
    };
    Acceptor::new(&yard().server, options).unwrap()
}

/// Random tokens, and those of a real handshake of which one is changed: the acceptor then
/// authenticates no client.
#[test]
fn handshake() {
    bolero::check!().with_iterations(HANDSHAKES).for_each(|input: &[u8]| {
        let (first, rest) = input.split_at(input.len() / 2);
        for piece in [first, rest] {
            let _ = acceptor(After::Flag).step(piece);
            let mut begun = initiator(After::Flag);
            let _ = begun.step(&[]);
            let _ = begun.step(piece);
        }
        let mut choose = Decisions(input);
        let after = if choose.below(2) == 0 { After::Flag } else { After::Nothing };
        let (mut one, mut other) = (initiator(after), acceptor(after));
        let spoiled = choose.below(4);
        let (mut token, mut spoilt) = (Vec::new(), false);
        for step in 0..6 {
            let result = if step % 2 == 0 { one.step(&token) } else { other.step(&token) };
            token = match result {
                Ok(Step::Continue(token)) => token,
                Ok(Step::Done(token, _)) => {
                    assert!(step % 2 == 0 || !spoilt, "the acceptor believes what was changed on the way");
                    token
                }
                Err(_) => return,
            };
            if step == spoiled {
                let other = changed(&token, &mut choose);
                spoilt = said(&other) != said(&token);
                token = other;
            }
        }
    });
}

/// A case that random input found: the version of the first record is changed.
#[test]
fn acceptor_when_record_version_changed_ignores_it() {
    let (mut one, mut other) = (initiator(After::Nothing), acceptor(After::Nothing));
    let Ok(Step::Continue(mut hello)) = one.step(&[]) else { panic!("a hello") };
    let sent = hello.clone();
    hello[2] = 0;
    assert!(hello != sent && said(&hello) == said(&sent));
    assert!(matches!(other.step(&hello), Ok(Step::Continue(_))));
    hello[20] ^= 1;
    assert!(said(&hello) != said(&sent));
}

/// Lines of a protected control connection are either recovered unchanged or refused.
#[test]
fn protected_lines() {
    bolero::check!().with_iterations(HANDSHAKES).for_each(|input: &[u8]| {
        let (mut one, mut other) = shake(initiator(After::Flag), acceptor(After::Flag)).unwrap();
        let mut choose = Decisions(input);
        let plain = [choose.bytes(300), b"\r\n".to_vec()].concat();
        let mut line = Vec::new();
        one.seal_command(&plain, &mut line).unwrap();
        assert_eq!(other.open_command(&line).unwrap(), plain);
        line.clear();
        other.seal_reply(&plain, &mut line).unwrap();
        let mut got = Vec::new();
        for line in line.split_inclusive(|byte| *byte == b'\n') {
            got.extend(one.open_reply(line).unwrap());
        }
        assert_eq!(got, plain);
        line.clear();
        one.seal_command(&plain, &mut line).unwrap();
        let spoiled = changed(&line, &mut choose);
        if let Ok(got) = opened(&mut other, &spoiled) {
            assert_eq!(got, plain, "{}", String::from_utf8_lossy(&spoiled));
        }
        let _ = other.open_command(input);
        let _ = one.open_reply(input);
    });
}

/// Records of a data connection in pieces of any size, some of them changed: the opened data is a
/// prefix of the sealed data, and nothing is opened after an error.
#[test]
fn data_records() {
    use ropewalk_tls::{DataRecords, Opened};
    bolero::check!().with_iterations(HANDSHAKES).for_each(|input: &[u8]| {
        let (one, other) = shake(initiator(After::Nothing), acceptor(After::Nothing)).unwrap();
        let (mut one, mut other) =
            (DataRecords::new(one.into_records()), DataRecords::new(other.into_records()));
        assert!(one.is_own() && other.is_own());
        let mut choose = Decisions(input);
        let (mut sealed, mut got, mut failed) = (Vec::new(), Vec::new(), false);
        while !choose.is_empty() {
            let parts = [choose.bytes(300), choose.byte().to_be_bytes().repeat(choose.below(200) * 200)];
            let most = if choose.below(4) == 0 { choose.below(300) } else { usize::MAX };
            let count = one.seal(&parts.each_ref().map(|part| std::io::IoSlice::new(part)), most).unwrap();
            sealed.extend_from_slice(&parts.concat()[..count]);
            let closed = choose.below(16) == 0;
            if closed {
                one.close().unwrap();
            }
            let mut wire = one.output().to_vec();
            one.sent(wire.len());
            match choose.below(8) {
                0 => wire = changed(&wire, &mut choose),
                1 => wire = choose.bytes(100),
                _ => {}
            }
            let mut buffer = vec![0; 1 + choose.below(256) * 100];
            for piece in wire.chunks(1 + choose.below(256) * 100) {
                other.room(piece.len())[..piece.len()].copy_from_slice(piece);
                other.received(piece.len());
                loop {
                    match other.read(&mut buffer) {
                        Ok(Opened::Bytes(count)) => {
                            assert!(!failed, "something was opened after an error");
                            got.extend_from_slice(&buffer[..count]);
                        }
                        Ok(Opened::Nothing) => break,
                        Ok(Opened::End) => {
                            assert!(got == sealed, "the end came before the rest");
                            return;
                        }
                        Err(_) => {
                            failed = true;
                            break;
                        }
                    }
                }
            }
            assert!(sealed.starts_with(&got));
            if closed {
                return;
            }
        }
    });
}

fn opened(session: &mut Session, line: &[u8]) -> Result<Vec<u8>, ropewalk_gsi::SessionError> {
    session.open_command(line)
}
