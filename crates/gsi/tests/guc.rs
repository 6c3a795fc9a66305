//! globus-url-copy against Ropewalk's acceptor in a server with a few commands. The server works in
//! memory, except for its sockets.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{Site, have};
use ropewalk_gsi::{
    Acceptor, AcceptorOptions, After, Expected, Identity, ProxyTerms, Session, Step, TlsSettings, dcsc,
    decode_token, encode_token, proxy_file,
};
use rustix::net::sockopt;

const LIMIT: Duration = Duration::from_secs(60);

fn content() -> Vec<u8> {
    (0..100_000u32).flat_map(u32::to_le_bytes).collect()
}

/// The record of the conversation.
struct Heard {
    session: Session,
    commands: Vec<String>,
}

fn accept(listener: &TcpListener) -> TcpStream {
    // On a listener, this sets the time limit of `accept`.
    sockopt::set_socket_timeout(listener, sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
    let (stream, _) = listener.accept().expect("the client connects");
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

fn serve(site: &Site, listener: &TcpListener) -> Heard {
    let settings = TlsSettings::default();
    let identity = site.identity(site.host(), &settings);
    let mut control = BufReader::new(accept(listener));
    control.get_mut().write_all(b"220 test ready.\r\n").unwrap();
    let mut session = authenticate(&mut control, &identity);
    let delegated = session.take_delegated().expect("globus-url-copy delegates");
    assert!(delegated.details().proxy.unwrap().is_limited());
    let mut own = session.peer().identity.clone();
    assert_eq!(delegated.identity(), own);
    let mut data_identity = Identity::new(Arc::new(delegated), Arc::new(site.trust()), &settings).unwrap();
    let data = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = data.local_addr().unwrap().port();
    let mut after = After::Flag;
    let mut commands = Vec::new();
    let mut line = String::new();
    while commands.last().is_none_or(|command: &String| command != "QUIT") {
        line.clear();
        if control.read_line(&mut line).unwrap() == 0 {
            break;
        }
        let command = String::from_utf8(session.open_command(line.as_bytes()).unwrap()).unwrap();
        let command = command.trim_end().to_owned();
        let reply = match command.split(' ').next().unwrap() {
            "USER" => "331 Password required.\r\n".to_owned(),
            "PASS" => "230 In.\r\n".to_owned(),
            "FEAT" => "211-Extensions:\r\n DCAU\r\n PROT\r\n DCSC P,D\r\n211 End.\r\n".to_owned(),
            "SITE" if command == "SITE HELP" => "214-Help:\r\n none\r\n214 End\r\n".to_owned(),
            "PROT" => {
                after = if command == "PROT C" { After::Flag } else { After::Nothing };
                "200 Ok.\r\n".to_owned()
            }
            "DCSC" => {
                let credential = dcsc::parse(&command[7..]).unwrap();
                own = credential.identity().to_owned();
                data_identity = dcsc::identity(credential, None, &settings).unwrap();
                "250 OK.\r\n".to_owned()
            }
            "PASV" => format!("227 Entering Passive Mode (127,0,0,1,{},{})\r\n", port >> 8, port & 0xff),
            "RETR" => {
                let stream = accept(&data);
                session_reply(&mut session, &mut control, "150 Here it comes.\r\n");
                send(stream, &data_identity, &own, after);
                "226 Done.\r\n".to_owned()
            }
            "SIZE" => format!("213 {}\r\n", content().len()),
            "QUIT" => "221 Bye.\r\n".to_owned(),
            _ => "200 Ok.\r\n".to_owned(),
        };
        session_reply(&mut session, &mut control, &reply);
        commands.push(command);
    }
    Heard { session, commands }
}

fn session_reply(session: &mut Session, control: &mut BufReader<TcpStream>, reply: &str) {
    let mut out = Vec::new();
    session.seal_reply(reply.as_bytes(), &mut out).unwrap();
    control.get_mut().write_all(&out).unwrap();
}

fn authenticate(control: &mut BufReader<TcpStream>, identity: &Identity) -> Session {
    let mut acceptor = Acceptor::new(identity, AcceptorOptions::default()).unwrap();
    let mut line = String::new();
    control.read_line(&mut line).unwrap();
    assert_eq!(line, "AUTH GSSAPI\r\n");
    control.get_mut().write_all(b"334 Using authentication type; ADAT must follow.\r\n").unwrap();
    loop {
        line.clear();
        assert_ne!(control.read_line(&mut line).unwrap(), 0, "the client hung up");
        let token = decode_token(line.strip_prefix("ADAT ").unwrap()).unwrap();
        match acceptor.step(&token).unwrap() {
            Step::Continue(token) => {
                assert_eq!(acceptor.server_name(), Some("localhost"));
                let reply = format!("335 ADAT={}\r\n", encode_token(&token));
                control.get_mut().write_all(reply.as_bytes()).unwrap();
            }
            Step::Done(token, session) => {
                assert!(token.is_empty());
                control.get_mut().write_all(b"235 GSSAPI Authentication successful.\r\n").unwrap();
                return *session;
            }
        }
    }
}

fn send(mut stream: TcpStream, identity: &Identity, peer: &str, after: After) {
    let expected = Expected::Subject(peer.to_owned());
    let options = AcceptorOptions { expected, after, ..AcceptorOptions::default() };
    let mut acceptor = Acceptor::new(identity, options).unwrap();
    let mut buffer = [0; 4096];
    let mut session = loop {
        let count = stream.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "the client hung up");
        match acceptor.step(&buffer[..count]).unwrap() {
            Step::Continue(out) => stream.write_all(&out).unwrap(),
            Step::Done(out, session) => {
                stream.write_all(&out).unwrap();
                break session;
            }
        }
    };
    let mut out = Vec::new();
    match after {
        After::Flag => out = content(),
        After::Nothing => session.seal(&content(), &mut out).unwrap(),
    }
    stream.write_all(&out).unwrap();
}

fn download(options: &[&str], versions: &str, expected_version: &str) {
    if !have("globus-url-copy") {
        return;
    }
    let site = Site::new();
    let proxy = site.path("proxy");
    proxy_file::init(&site.user(), &proxy, 2048, &ProxyTerms::default()).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = site.path("got");
    let heard = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&site, &listener));
        let output = Command::new("timeout")
            .args(["120", "globus-url-copy"])
            .args(options)
            .arg(format!("gsiftp://localhost:{port}/file"))
            .arg(format!("file://{}", target.display()))
            .env("X509_USER_PROXY", &proxy)
            .env("X509_CERT_DIR", site.certificates())
            .env("GLOBUS_GSSAPI_MAX_TLS_PROTOCOL", versions)
            .env("GLOBUS_HOSTNAME", "127.0.0.1")
            .env_remove("X509_USER_CERT")
            .env_remove("X509_USER_KEY")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        server.join().unwrap()
    });
    assert_eq!(heard.session.version(), expected_version);
    assert!(heard.commands.contains(&"USER :globus-mapping:".to_owned()), "{:?}", heard.commands);
    assert!(std::fs::read(target).unwrap() == content());
}

#[test]
fn guc_with_authenticated_data_connection_downloads() {
    download(&[], "TLS1_3_VERSION", "TLSv1.3");
    download(&[], "TLS1_2_VERSION", "TLSv1.2");
}

#[test]
fn guc_with_protected_data_connection_downloads() {
    download(&["-dcpriv"], "TLS1_3_VERSION", "TLSv1.3");
    download(&["-dcsafe"], "TLS1_2_VERSION", "TLSv1.2");
}

#[test]
fn guc_with_data_channel_credential_downloads() {
    download(&["-data-cred", "auto"], "TLS1_3_VERSION", "TLSv1.3");
}
