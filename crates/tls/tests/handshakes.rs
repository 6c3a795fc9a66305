//! Client against server, in memory.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ropewalk_tls::{
    Binding, Client, ClientSettings, DataRecords, Distrust, Established, Fingerprint, Handshake,
    HandshakeError, Pair, Server, ServerSettings, SslVersion, load_or_make, make,
};
use tempfile::TempDir;

struct Site {
    directory: TempDir,
    server: Server,
}

impl Site {
    fn new(version: SslVersion) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.pem");
        assert!(load_or_make(&path, &["localhost".into(), "127.0.0.1".into()]).unwrap());
        let server = Self::server(&path, version);
        Self { directory, server }
    }

    fn server(path: &Path, min_version: SslVersion) -> Server {
        let (certificate, key) = (path.to_owned(), path.to_owned());
        let settings = ServerSettings {
            certificate,
            key,
            client_authorities: None,
            client_revocations: None,
            min_version,
        };
        Server::new(&settings).unwrap()
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("server.pem")
    }

    fn trusting(&self) -> Client {
        let authorities = Some(self.path());
        Client::new(&ClientSettings { authorities, ..ClientSettings::default() }).unwrap()
    }
}

/// Simulates earlier work on this thread that left errors in OpenSSL's queue.
fn leave_errors() {
    openssl::x509::X509::from_der(b"none").unwrap_err().put();
}

type Both = Result<(Box<Established>, Box<Established>), HandshakeError>;

fn shake(mut client: Handshake, mut server: Handshake) -> Both {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    leave_errors();
    let (mut one, mut other) = (client.step(&[], &mut up)?, None);
    for _ in 0..10 {
        leave_errors();
        if other.is_none() {
            other = server.step(&std::mem::take(&mut up), &mut down)?;
        }
        leave_errors();
        if one.is_none() {
            one = client.step(&std::mem::take(&mut down), &mut up)?;
        }
        if let (Some(_), Some(_)) = (&one, &other) {
            let (mut one, other) = (one.unwrap(), other.unwrap());
            // Tickets follow the handshake.
            assert!(down.is_empty() || one.records.open(&down, &mut Vec::new()).unwrap());
            return Ok((one, other));
        }
    }
    panic!("no end")
}

#[test]
fn records_transfer_data_and_report_the_end() {
    let site = Site::new(SslVersion::TLS1_2);
    let handshake = site.server.accept(&Binding::new().unwrap()).unwrap();
    let (mut client, mut server) = shake(site.trusting().connect("localhost").unwrap(), handshake).unwrap();
    assert_eq!(Client::distrust(&client, "localhost"), None);
    assert_eq!(client.records.version(), "TLSv1.3");
    assert_eq!(client.certificate().unwrap(), *site.server.certificate());
    let content: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let (mut wire, mut plain) = (Vec::new(), Vec::new());
    leave_errors();
    client.records.seal(&content, &mut wire).unwrap();
    for piece in wire.chunks(777) {
        leave_errors();
        assert!(server.records.open(piece, &mut plain).unwrap());
    }
    assert!(plain == content);
    wire.clear();
    leave_errors();
    client.records.close(&mut wire).unwrap();
    leave_errors();
    assert!(!server.records.open(&wire, &mut plain).unwrap());
    wire.clear();
    client.records.close(&mut wire).unwrap();
    assert!(wire.is_empty(), "a second end");
}

#[test]
fn records_refuse_changed_and_oversized_input() {
    let site = Site::new(SslVersion::TLS1_2);
    let both = || {
        let handshake = site.server.accept(&Binding::new().unwrap()).unwrap();
        shake(site.trusting().connect("localhost").unwrap(), handshake).unwrap()
    };
    let (mut client, mut server) = both();
    let mut wire = Vec::new();
    client.records.seal(b"RETR a\r\n", &mut wire).unwrap();
    *wire.last_mut().unwrap() ^= 1;
    assert!(server.records.open(&wire, &mut Vec::new()).is_err());
    let (_, mut server) = both();
    let huge = [&[0x17, 3, 3, 0xff, 0xff][..], &[0; 0xffff]].concat();
    assert!(server.records.open(&huge, &mut Vec::new()).is_err());
    assert!(!server.records.take_output().is_empty(), "the peer is told");
}

#[test]
fn sessions_resume_within_their_binding_only() {
    let site = Site::new(SslVersion::TLS1_2);
    let (binding, other) = (Binding::new().unwrap(), Binding::new().unwrap());
    let accept = |binding| site.server.accept(binding).unwrap();
    let (client, _) = shake(site.trusting().connect("localhost").unwrap(), accept(&binding)).unwrap();
    let ticket = client.ticket().unwrap();
    // Several at a time, as for the streams of a file.
    let again: Vec<_> =
        (0..4).map(|_| shake(Client::resume(&ticket).unwrap(), accept(&binding)).unwrap()).collect();
    for (client, server) in &again {
        assert!(client.resumed && server.resumed);
        assert_eq!(client.certificate(), Some(site.server.certificate().clone()));
    }
    drop(again);
    let (client, server) = shake(Client::resume(&ticket).unwrap(), accept(&other)).unwrap();
    assert!(!client.resumed && !server.resumed, "another control connection's session was resumed");
    let (_, server) = shake(site.trusting().connect("localhost").unwrap(), accept(&binding)).unwrap();
    assert!(!server.resumed);
    // A failed handshake does not affect the session.
    let mut failing = accept(&binding);
    assert!(failing.step(b"\x15\x03\x01\x00\x02\x02\x28", &mut Vec::new()).is_err());
    let (_, server) = shake(Client::resume(&ticket).unwrap(), accept(&binding)).unwrap();
    assert!(server.resumed);
}

#[test]
fn server_on_behalf_resumes_sessions_of_the_other() {
    let site = Site::new(SslVersion::TLS1_2);
    let (secrets, without) = (site.server.secrets(true).unwrap(), site.server.secrets(false).unwrap());
    assert!(!format!("{secrets:?}").contains("PRIVATE") && without.identity.is_none());
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let settings = ClientSettings { max_version: Some(version), ..ClientSettings::default() };
        let client = Client::new(&settings).unwrap();
        let (binding, other) = (Binding::new().unwrap(), Binding::new().unwrap());
        let control = site.server.accept(&binding).unwrap();
        let (one, control) = shake(client.connect("localhost").unwrap(), control).unwrap();
        let session = control.remembered_session();
        assert_eq!(session.is_some(), version == SslVersion::TLS1_2);
        let ticket = one.ticket().unwrap();
        for secrets in [&secrets, &without] {
            let away = Server::on_behalf(secrets, session.as_deref().map(Vec::as_slice), None).unwrap();
            let same = secrets.identity.is_some();
            assert_eq!(away.fingerprint() == site.server.fingerprint(), same);
            for (binding, resumes) in [(&Binding::of(*binding.bytes()), true), (&other, false)] {
                let data = away.accept_data(binding).unwrap();
                let (near, far) = shake(Client::resume(&ticket).unwrap(), data).unwrap();
                assert_eq!((near.resumed, far.resumed), (resumes, resumes), "{version:?}");
                let known = near.certificate() == Some(site.server.certificate().clone());
                assert_eq!(known, same || resumes);
            }
        }
    }
}

#[test]
fn server_on_behalf_refuses_secrets_that_are_wrong() {
    let (site, other) = (Site::new(SslVersion::TLS1_2), Site::new(SslVersion::TLS1_2));
    let secrets = site.server.secrets(true).unwrap();
    Server::on_behalf(&secrets, None, None).unwrap();
    let mut wrong = [secrets.clone(), secrets.clone(), secrets.clone(), secrets.clone()];
    wrong[0].identity.as_mut().unwrap().key = other.server.secrets(true).unwrap().identity.unwrap().key;
    wrong[1].identity.as_mut().unwrap().certificates.clear();
    wrong[2].identity.as_mut().unwrap().key.clear();
    wrong[3].ticket_keys.pop();
    for secrets in wrong {
        Server::on_behalf(&secrets, None, None).unwrap_err();
    }
    Server::on_behalf(&secrets, Some(b"no session"), None).unwrap_err();
}

#[test]
fn data_connections_with_tls13_use_the_own_record_layer() {
    let site = Site::new(SslVersion::TLS1_2);
    for (version, ours) in [(SslVersion::TLS1_2, false), (SslVersion::TLS1_3, true)] {
        let settings = ClientSettings { max_version: Some(version), ..ClientSettings::default() };
        let client = Client::new(&settings).unwrap();
        let binding = Binding::new().unwrap();
        let control = site.server.accept(&binding).unwrap();
        let (one, other) = shake(client.connect("localhost").unwrap(), control).unwrap();
        let ticket = one.ticket().unwrap();
        let data = site.server.accept_data(&binding).unwrap();
        let (near, far) = shake(Client::resume(&ticket).unwrap(), data).unwrap();
        assert!(near.resumed && far.resumed);
        for (records, ours) in
            [(one.records, false), (other.records, false), (near.records, ours), (far.records, ours)]
        {
            assert_eq!(DataRecords::new(records).is_own(), ours, "{version:?}");
        }
    }
}

#[test]
fn sessions_started_on_data_connections_do_not_resume() {
    let site = Site::new(SslVersion::TLS1_2);
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let settings = ClientSettings { max_version: Some(version), ..ClientSettings::default() };
        let client = Client::new(&settings).unwrap();
        let binding = Binding::new().unwrap();
        let data = || site.server.accept_data(&binding).unwrap();
        let (stranger, server) = shake(client.connect("localhost").unwrap(), data()).unwrap();
        assert!(!server.resumed);
        // TLS 1.2 sends a ticket in the handshake itself, before the server can check the peer.
        let (_, server) = shake(Client::resume(&stranger.ticket().unwrap()).unwrap(), data()).unwrap();
        assert!(!server.resumed, "a stranger is taken for the client with {version:?}");
        let control = site.server.accept(&binding).unwrap();
        let (client, _) = shake(client.connect("localhost").unwrap(), control).unwrap();
        let (_, server) = shake(Client::resume(&client.ticket().unwrap()).unwrap(), data()).unwrap();
        assert!(server.resumed, "{version:?}");
    }
}

#[test]
fn distrust_reports_untrusted_servers() {
    let site = Site::new(SslVersion::TLS1_2);
    let plain = Client::new(&ClientSettings::default()).unwrap();
    let accept = || site.server.accept(&Binding::new().unwrap()).unwrap();
    let (client, _) = shake(plain.connect("localhost").unwrap(), accept()).unwrap();
    assert_eq!(Client::distrust(&client, "localhost"), Some(Distrust::SelfSigned));
    for host in ["other.example", "127.0.0.2"] {
        let (client, _) = shake(site.trusting().connect(host).unwrap(), accept()).unwrap();
        let distrust = Client::distrust(&client, host).unwrap();
        assert_eq!(
            distrust.to_string(),
            format!("its certificate is for localhost, 127.0.0.1, not for {host}")
        );
        assert!(!distrust.is_unknown());
    }
    let (client, _) = shake(site.trusting().connect("127.0.0.1").unwrap(), accept()).unwrap();
    assert_eq!(Client::distrust(&client, "127.0.0.1"), None);
}

#[test]
fn distrust_ignores_the_common_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.pem");
    // The certificate has no host name; its common name is `ropewalk`.
    fs::write(&path, make(&[]).unwrap()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let server = Site::server(&path, SslVersion::TLS1_2);
    let trusting =
        Client::new(&ClientSettings { authorities: Some(path), ..ClientSettings::default() }).unwrap();
    let accept = server.accept(&Binding::new().unwrap()).unwrap();
    let (client, _) = shake(trusting.connect("ropewalk").unwrap(), accept).unwrap();
    let distrust = Client::distrust(&client, "ropewalk").unwrap();
    assert!(matches!(distrust, Distrust::WrongHost { .. }) && !distrust.is_unknown(), "{distrust}");
    assert!(distrust.to_string().contains("no host (it has no alternative names"), "{distrust}");
}

#[test]
fn handshake_refuses_input_that_is_not_tls() {
    let site = Site::new(SslVersion::TLS1_2);
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"USER anonymous\r\n", b"220 ready\r\n", &[0xff; 64]] {
        let mut handshake = site.server.accept(&Binding::new().unwrap()).unwrap();
        let error = handshake.step(garbage, &mut Vec::new()).unwrap_err();
        assert!(matches!(error, HandshakeError::NotTls(_) | HandshakeError::Tls(_)), "{error}");
    }
    // Input that never completes a record.
    let mut handshake = site.server.accept(&Binding::new().unwrap()).unwrap();
    let mut end = None;
    for _ in 0..100 {
        if let Err(error) = handshake.step(&[0x16, 3, 1, 0x40, 0].repeat(1000), &mut Vec::new()) {
            end = Some(error);
            break;
        }
    }
    assert!(end.is_some());
    let mut client = site.trusting().connect("localhost").unwrap();
    client.step(&[], &mut Vec::new()).unwrap();
    let error = client.step(b"220 ready\r\n", &mut Vec::new()).unwrap_err();
    assert!(matches!(error, HandshakeError::NotTls(_)), "{error}");
}

#[test]
fn load_or_make_makes_a_certificate_once() {
    let site = Site::new(SslVersion::TLS1_2);
    assert_eq!(fs::metadata(site.path()).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(site.path()).unwrap();
    assert!(!load_or_make(&site.path(), &[]).unwrap(), "it is made once");
    assert_eq!(fs::read(site.path()).unwrap(), before);
    assert_eq!(fs::read_dir(site.directory.path()).unwrap().count(), 1, "something was left over");
    let pair = Pair::load(&site.path(), &site.path()).unwrap();
    assert_eq!(Fingerprint::of(pair.certificate()).unwrap(), site.server.fingerprint());
    // A name that is too long for a common name, and no name.
    assert!(make(&["a.".repeat(60) + "example"]).is_ok());
    assert!(make(&[]).is_ok());
}

#[test]
fn load_refuses_unusable_files() {
    let site = Site::new(SslVersion::TLS1_2);
    let (path, other) = (site.path(), site.directory.path().join("other.pem"));
    let text = |certificate: &Path, key: &Path| Pair::load(certificate, key).unwrap_err().to_string();
    for mode in [0o644, 0o604, 0o620, 0o602] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        assert!(text(&path, &path).contains(&format!("has mode {mode:04o}")), "{mode:o}");
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    load_or_make(&other, &["localhost".into()]).unwrap();
    assert!(text(&path, &other).contains("does not belong to"));
    fs::write(&other, "nothing").unwrap();
    assert!(text(&other, &path).contains("no certificate"));
    assert!(text(&path, &other).contains("no key"));
    assert!(text(&site.directory.path().join("missing"), &path).contains("missing"));
}
