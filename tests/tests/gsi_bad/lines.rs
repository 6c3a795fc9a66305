//! Tokens and lines that are truncated, too long, replayed, or injected.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use ropewalk_gsi::testing::Control;
use ropewalk_gsi::{Step, ca, decode_token, encode_token};
use ropewalk_tests::{peers, process};

use crate::fixture::{Yard, initiator};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn malformed_tokens_are_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let begun = || {
        let mut control = Control::connect(served.address);
        assert!(control.ask("AUTH GSSAPI").starts_with("334"));
        control
    };
    let mut control = Control::connect(served.address);
    let answer = control.ask("ADAT AAAA");
    assert!(answer.starts_with("503"), "{answer}");
    let answer = control.ask("AUTH KERBEROS_V4");
    assert!(answer.starts_with("504"), "{answer}");

    let answer = begun().ask("ADAT ====");
    assert!(
        answer.starts_with("530 GSSAPI authentication failed: ") && answer.contains("no base64")
            || answer.contains("not base64"),
        "{answer}"
    );
    let answer = begun().ask(&format!("ADAT {}", encode_token(b"GET / HTTP/1.1\r\n\r\n")));
    assert!(answer.starts_with("530 GSSAPI authentication failed: TLS: "), "{answer}");
    // The failed handshake has ended, and a new one may begin.
    let mut control = begun();
    assert!(control.ask("ADAT AAAAAAAA").starts_with("530"));
    let answer = control.ask("ADAT AAAA");
    assert!(answer.starts_with("503 Send AUTH"), "{answer}");
    control.authenticate(initiator(&yard.identity(&yard.site.user()))).unwrap();

    // The first half of a token, followed by other bytes.
    let Step::Continue(hello) = initiator(&yard.identity(&yard.site.user())).step(&[]).unwrap() else {
        panic!("no handshake is one token long");
    };
    let mut control = begun();
    let answer = control.ask(&format!("ADAT {}", encode_token(&hello[..hello.len() / 2])));
    assert!(answer.starts_with("335"), "{answer}");
    let answer = control.ask(&format!("ADAT {}", encode_token(&hello)));
    assert!(answer.starts_with("530 GSSAPI authentication failed: TLS: "), "{answer}");

    // A token longer than any credential: the line is refused before it is parsed.
    let mut control = begun();
    control.send_raw(format!("ADAT {}\r\n", "A".repeat(200 << 10)).as_bytes());
    let answer = control.raw_line();
    assert!(answer.starts_with("500") || answer.starts_with("421") || answer.is_empty(), "{answer}");
    // Many tokens that are shorter.
    let mut control = begun();
    let mut record = vec![0x16, 3, 1, 0x40, 0];
    record.resize(64 << 10, 1);
    let answer = control.ask(&format!("ADAT {}", encode_token(&record)));
    assert!(answer.starts_with("530"), "{answer}");
}

#[test]
fn replayed_tokens_are_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let mut first = yard.logged_in(&served, &yard.site.user());
    let mut again = Control::connect(served.address);
    assert!(again.ask("AUTH GSSAPI").starts_with("334"));
    let mut last = String::new();
    for token in &first.sent {
        last = again.ask(&format!("ADAT {token}"));
        if !last.starts_with("335") {
            break;
        }
    }
    assert!(last.starts_with("530 GSSAPI authentication failed: TLS: "), "{last}");
    // A replayed protected command ends the session.
    let mut line = Vec::new();
    first.session().unwrap().seal_command(b"MKD /once\r\n", &mut line).unwrap();
    first.send_raw(&line);
    assert!(first.reply().starts_with("257"));
    first.send_raw(&line);
    assert_eq!(first.raw_line(), "");
}

#[test]
fn commands_in_clear_are_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let user = yard.site.user();
    let mut control = Control::connect(served.address);
    // Before AUTH, and between AUTH and the first token.
    for command in ["USER anonymous", "DELE /file"] {
        let answer = control.ask(command);
        assert!(answer.starts_with("530"), "{answer}");
    }
    assert!(control.ask("AUTH GSSAPI").starts_with("334"));
    assert!(control.ask("DELE /file").starts_with("530"));
    // Directly after the last token, as an attacker could inject them.
    let mut control = Control::connect(served.address);
    let inserted = "USER :globus-mapping:\r\nPASS x\r\nDELE /file\r\n";
    control.authenticate_with(initiator(&yard.identity(&user)), inserted).unwrap();
    assert_eq!(control.raw_line(), "");
    // After the handshake.
    for command in ["DELE /file\r\n", "ENC\r\n", "ENC AAAA\r\n", "MIC =\r\n", "\0\r\n"] {
        let mut control = yard.logged_in(&served, &user);
        control.send_raw(command.as_bytes());
        assert_eq!(control.raw_line(), "", "{command:?}");
    }
    assert!(yard.path("root/file").exists());
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `openssl s_client` acts as the client; its TLS records are carried as tokens and then as
/// protected commands.
#[test]
fn renegotiation_ends_session() {
    if !peers::available(&["openssl"]) {
        return;
    }
    let yard = Yard::new();
    let served = yard.serve();
    ca::write_pair(&yard.site.user(), &yard.path("usercert.pem"), &yard.path("userkey.pem")).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut command = process::command("openssl");
    command.args(["s_client", "-tls1_2", "-connect", &listener.local_addr().unwrap().to_string()]);
    command.args(["-cert", "usercert.pem", "-key", "userkey.pem", "-CApath", "certificates"]);
    command.current_dir(yard.directory.path());
    let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = Killed(child.unwrap());
    let mut keyboard = child.0.stdin.take().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut control = Control::connect(served.address);
    assert!(control.ask("AUTH GSSAPI").starts_with("334"));
    let mut typed = false;
    loop {
        let answer = control.ask(&format!("ADAT {}", encode_token(&some(&mut stream))));
        if answer.starts_with("235") {
            break;
        }
        assert!(answer.starts_with("335"), "{answer}");
        let token = decode_token(&answer[4..]).unwrap();
        stream.write_all(&token).unwrap();
        // The last flight of TLS 1.2 comes from the server: ChangeCipherSpec and Finished.
        if token.first() == Some(&0x14) && !typed {
            keyboard.write_all(b"0").unwrap();
            typed = true;
        }
    }
    // The client begins another handshake within the first.
    keyboard.write_all(b"R\n").unwrap();
    let hello = some(&mut stream);
    assert_eq!(hello[0], 0x16, "a handshake record");
    control.send_raw(format!("ENC {}\r\n", encode_token(&hello)).as_bytes());
    assert_eq!(control.raw_line(), "", "the session ends");
}

/// Returns the bytes that are available.
fn some(stream: &mut TcpStream) -> Vec<u8> {
    let mut buffer = vec![0; 32 << 10];
    let count = stream.read(&mut buffer).unwrap();
    assert_ne!(count, 0, "the client hung up");
    buffer.truncate(count);
    buffer
}
