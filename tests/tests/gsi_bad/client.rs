//! Servers that Ropewalk's client must reject.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use ropewalk_gsi::testing::{Forged, Site, name};
use ropewalk_gsi::{
    Acceptor, AcceptorOptions, Credential, Identity, Step, TlsSettings, decode_token, encode_token,
};
use ropewalk_tests::grid::LIMIT;
use ropewalk_tests::{peers, process::run};

use crate::fixture::Yard;

const HOUR: i64 = 3600;

/// The behaviour of a rogue server.
#[derive(Clone)]
enum Part {
    /// Correct behaviour with this credential.
    Honest(Credential),
    /// This reply to the first token.
    Shortcut(&'static str),
    /// Correct behaviour with this credential, but this text in clear directly after the 235 or,
    /// for `Answer`, as the reply to the next command.
    Behind(Credential, &'static str),
    Answer(Credential, &'static str),
    /// This reply to AUTH.
    NoAuth(&'static str),
}

/// Serves one client and returns the lines that arrived in clear.
fn false_server(yard: &Yard, part: Part) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let trust = Arc::new(yard.site.trust());
    let heard = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        let credential = match &part {
            Part::Honest(credential) | Part::Behind(credential, _) | Part::Answer(credential, _) => {
                Some(credential)
            }
            Part::Shortcut(_) | Part::NoAuth(_) => None,
        };
        let mut acceptor = credential.map(|credential| {
            let settings = TlsSettings { security_level: 0, ..TlsSettings::default() };
            let identity = Identity::new(Arc::new(credential.clone()), trust, &settings).unwrap();
            Acceptor::new(&identity, AcceptorOptions::default()).unwrap()
        });
        let mut heard = Vec::new();
        let mut answer = "220 ready.\r\n".to_owned();
        loop {
            let mut line = String::new();
            if stream.get_mut().write_all(answer.as_bytes()).is_err()
                || stream.read_line(&mut line).unwrap_or(0) == 0
            {
                return heard;
            }
            answer = match (line.trim_end().split_once(' '), &mut acceptor, &part) {
                (Some(("AUTH", _)), _, Part::NoAuth(text)) => format!("{text}\r\n"),
                (Some(("AUTH", _)), ..) => "334 go on.\r\n".to_owned(),
                (Some(("ADAT", _)), _, Part::Shortcut(text)) => format!("{text}\r\n"),
                (Some(("ADAT", token)), Some(machine), part) => {
                    match machine.step(&decode_token(token).unwrap()) {
                        Ok(Step::Continue(out)) => format!("335 ADAT={}\r\n", encode_token(&out)),
                        Ok(Step::Done(..)) => {
                            acceptor = None;
                            match part {
                                Part::Behind(_, text) => format!("235 ok.\r\n{text}\r\n"),
                                _ => "235 ok.\r\n".to_owned(),
                            }
                        }
                        Err(error) => format!("530 {error}\r\n"),
                    }
                }
                (_, _, Part::Answer(_, text)) => format!("{text}\r\n"),
                _ => "500 what?\r\n".to_owned(),
            };
            heard.push(line);
        }
    });
    (port, heard)
}

/// Returns the client's messages about such a server.
fn verdict(yard: &Yard, host: &str, part: Part) -> String {
    let (port, heard) = false_server(yard, part);
    let mut command = peers::ropewalk_command().unwrap();
    command
        .current_dir(yard.directory.path())
        .args(["cp", "--quiet", "--retries", "0", &format!("gsiftp://{host}:{port}/file"), "got"])
        .env("X509_USER_PROXY", "proxy")
        .env("X509_CERT_DIR", "certificates");
    let text = run(&mut command, LIMIT).unwrap().failed().unwrap().errors();
    for line in heard.join().unwrap() {
        assert!(!line.starts_with("USER") && !line.starts_with("PASS"), "in clear: {line}");
    }
    assert!(!yard.path("got").exists());
    text
}

#[test]
fn invalid_server_certificates_are_rejected() {
    let yard = Yard::new();
    let authority = yard.site.authority();
    let local = name("/O=Grid/OU=test/CN=localhost");
    let check = |credential: &Credential, reason: &str| {
        let text = verdict(&yard, "localhost", Part::Honest(credential.clone()));
        assert!(text.contains(reason), "{text:?} does not say {reason:?}");
    };
    let valid = |valid| Forged { valid, ..Forged::signed_by(&authority, &local) }.alone();
    check(&valid((-2 * HOUR, -HOUR)), "the certificate of /O=Grid/OU=test/CN=localhost expired at 2");
    check(&valid((HOUR, 2 * HOUR)), "CN=localhost is valid only from 2");
    let own = ropewalk_gsi::testing::key();
    let alone = Forged { issuer: &local, signer: &own, ..Forged::signed_by(&authority, &local) }.alone();
    check(&alone, "CN=localhost is signed by itself and not in certificates");
    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = Site::named(elsewhere.path(), "/O=Elsewhere").host().clone();
    check(&stranger, "the authority /O=Elsewhere/CN=Test CA, which signed");
    let other = yard.site.ca.issue_host(&["other.example.org", "192.0.2.1"], 10).unwrap();
    check(
        &other,
        "the server is not localhost: its certificate, /O=Grid/OU=test/CN=other.example.org, is for",
    );
    // A user's certificate does not identify a server.
    check(&yard.site.user(), "the server is not localhost");
    yard.site.ca.revoke(yard.site.host().certificate()).unwrap();
    yard.site.ca.install(&yard.site.certificates(), 10).unwrap();
    check(yard.site.host(), "CN=localhost (serial ");
    check(yard.site.host(), "was revoked by /O=Grid/OU=test/CN=Test CA at 2");
}

#[test]
fn downgrades_are_rejected() {
    let yard = Yard::new();
    let host = yard.site.host();
    for refusal in ["500 what?", "502 not here.", "534 no.", "234 TLS then."] {
        let text = verdict(&yard, "localhost", Part::NoAuth(refusal));
        assert!(text.contains("does not continue in clear"), "{refusal}: {text}");
    }
    let text = verdict(&yard, "localhost", Part::Shortcut("235 you are in."));
    assert!(text.contains("before the handshake was complete"), "{text}");
    let text = verdict(&yard, "localhost", Part::Shortcut("230 you are in."));
    assert!(text.contains("before the handshake was complete"), "{text}");
    let text = verdict(&yard, "localhost", Part::Shortcut("335 ADAT=SFRUUC8xLjAgNDAwIEJhZCBSZXF1ZXN0DQo="));
    assert!(text.contains("TLS: "), "{text}");
    let text = verdict(&yard, "localhost", Part::Shortcut("335 ADAT=\u{e9}"));
    assert!(text.contains("not base64"), "{text}");
    let text = verdict(&yard, "localhost", Part::Behind(host.clone(), "331 and now in clear."));
    assert!(text.contains("clear"), "{text}");
    let text = verdict(&yard, "localhost", Part::Answer(host.clone(), "331 and now in clear."));
    assert!(text.contains("a reply came in clear after authentication"), "{text}");
}

/// The client checks its own credential before it connects.
#[test]
fn unusable_own_credentials_are_reported() {
    let yard = Yard::new();
    let user = yard.site.user();
    let expired = Forged { valid: (-2 * HOUR, -HOUR), ..Forged::proxy(&user) }.below(&user);
    let proxy = yard.path("proxy");
    std::fs::write(&proxy, &*expired.to_pem().unwrap()).unwrap();
    std::fs::set_permissions(&proxy, PermissionsExt::from_mode(0o600)).unwrap();
    let text = verdict(&yard, "localhost", Part::NoAuth("500 what?"));
    assert!(
        text.contains("the credential in proxy expired at 2") && text.contains("ropewalk proxy init"),
        "{text}"
    );
    std::fs::set_permissions(&proxy, PermissionsExt::from_mode(0o604)).unwrap();
    let text = verdict(&yard, "localhost", Part::NoAuth("500 what?"));
    assert!(text.contains("(mode 0604); `chmod 600 proxy` mends it"), "{text}");
}
