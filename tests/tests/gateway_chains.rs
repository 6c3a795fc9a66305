//! The gateway between a client and a server that do not trust each other: servers that lie,
//! clients that lead it elsewhere, and users who want the rights of others.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use ropewalk_tests::control::{Control, Reply, connect_data, host_port};
use ropewalk_tests::fake_server::FakeServer;
use ropewalk_tests::gateway::{Gateway, LIMIT, SETTINGS, write_passwords};
use ropewalk_tests::grid;
use ropewalk_tests::plain_server::{Offer, PlainServer};

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A listener that no connection may reach.
struct Untouched(TcpListener);

impl Untouched {
    fn at(address: &str) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    #[track_caller]
    fn check(&self) {
        assert_eq!(self.0.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "a connection came");
    }
}

/// Downloads what there is of a file, and returns it with the final reply.
fn download(control: &mut Control, path: &str) -> (Vec<u8>, Reply) {
    let address = control.passive().unwrap();
    control.send(format!("RETR {path}")).unwrap();
    let mut data = connect_data(address).unwrap();
    let mut content = Vec::new();
    // A download that breaks off may reset its connection.
    let _ = data.read_to_end(&mut content);
    (content, control.final_reply().unwrap())
}

fn log_in(gateway: &Gateway, user: &str) -> Control {
    let mut control = Control::connect(gateway.address).unwrap();
    control.expect(format!("USER {user}"), 331).unwrap();
    control.expect("PASS x", 230).unwrap();
    control.expect("TYPE I", 200).unwrap();
    control
}

#[test]
fn server_that_names_another_host_for_data_does_not_lead_the_gateway_there() {
    let inside = Untouched::at("127.0.0.2");
    let offer = Offer {
        files: [("f".to_owned(), b"content".to_vec())].into(),
        facts: true,
        passive: format!(
            "227 Entering Passive Mode ({})",
            host_port(inside.0.local_addr().unwrap()).unwrap()
        ),
        ..Offer::default()
    };
    let far = PlainServer::start(offer).unwrap();
    let gateway =
        Gateway::start(&["--authorized-hosts", "127.0.0.1", "--allow-target", "127.0.0.1"], SETTINGS);
    let mut control = log_in(&gateway, &format!("anonymous::{}", far.url()));
    let (content, reply) = download(&mut control, "/f");
    assert!(reply.code >= 400 && content.is_empty(), "{reply:?}");
    let reply = control.store("/up", b"secret").unwrap();
    assert!(reply.code >= 400, "{reply:?}");
    assert_eq!(far.names(), ["f"]);
    inside.check();
}

#[test]
fn server_that_sends_less_than_it_announces_gives_no_whole_file() {
    // The data connection ends in the middle, whatever the reply.
    for end in ["226 Transfer complete.\r\n", "426 Aborted.\r\n"] {
        let far = FakeServer::start(
            1_000_000,
            Arc::new(move |verb, data, control| {
                if verb.ends_with("RETR") {
                    control.write_all(b"150 Begin.\r\n")?;
                    data.open()?.write_all(&[7; 1000])?;
                    control.write_all(end.as_bytes())?;
                } else {
                    control.write_all(b"500 Command not supported.\r\n")?;
                }
                Ok(())
            }),
        )
        .unwrap();
        let gateway = Gateway::open();
        let mut control = log_in(&gateway, &format!("anonymous::ftp://{}/", far.address()));
        let (content, reply) = download(&mut control, "/f");
        assert!(reply.code >= 400, "{end}: {reply:?}");
        assert!(content.len() <= 1000, "{}", content.len());
        // The session continues.
        control.expect("NOOP", 200).unwrap();
    }
}

#[test]
fn server_that_refuses_an_upload_at_its_end_is_no_success() {
    let far = FakeServer::start(
        6,
        Arc::new(|verb, data, control| {
            if verb == "STOR" {
                control.write_all(b"150 Begin.\r\n")?;
                let mut data = data.open()?;
                // In MODE E the connection stays open until the reply.
                let received = data.read(&mut [0; 100])?;
                assert!(received > 0);
                control.write_all(b"552 Quota exceeded.\r\n")?;
            } else {
                control.write_all(b"500 Command not supported.\r\n")?;
            }
            Ok(())
        }),
    )
    .unwrap();
    let gateway = Gateway::open();
    let mut control = log_in(&gateway, &format!("anonymous::ftp://{}/", far.address()));
    let reply = control.store("/up", b"secret").unwrap();
    assert!(reply.code >= 400, "{reply:?}");
}

#[test]
fn names_of_loopback_in_any_form_are_no_public_address() {
    let inside = Untouched::at("127.0.0.1");
    let port = inside.port();
    let settings = format!("{SETTINGS}[hosts]\ncredential = '/nonexistent'\n");
    let gateway = Gateway::start(&["--authorized-hosts", "127.0.0.1"], &settings);
    for scheme in ["ftps", "ftpes", "gsiftp"] {
        for host in [
            "localhost",
            "127.0.0.1",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "0.0.0.0",
            "0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
        ] {
            let (code, reason) = gateway.log_in(&format!("anonymous::{scheme}://{host}:{port}/"), "x");
            assert_eq!(code, 530, "{scheme}://{host}: {reason}");
            // Forms that are no address are names that do not exist.
            let known = ["no public address", "resolve", "lookup", "cannot find", "no server", "not known"];
            assert!(known.iter().any(|text| reason.contains(text)), "{scheme}://{host}: {reason}");
        }
    }
    let (code, reason) = gateway.log_in(&format!("anonymous::ftp://127.0.0.1:{port}/"), "x");
    assert!(code == 530 && reason.contains("--allow-target"), "{reason}");
    inside.check();
}

#[test]
fn client_cannot_send_data_to_another_host() {
    let offer =
        Offer { files: [("f".to_owned(), b"content".to_vec())].into(), facts: true, ..Offer::default() };
    let far = PlainServer::start(offer).unwrap();
    let gateway = Gateway::open();
    let mut control = log_in(&gateway, &format!("anonymous::{}", far.url()));
    let other = Untouched::at("127.0.0.2");
    let (high, low) = (other.port() >> 8, other.port() & 255);
    for command in [
        format!("PORT 127,0,0,2,{high},{low}"),
        format!("EPRT |1|127.0.0.2|{}|", other.port()),
        format!("EPRT |2|::1|{}|", other.port()),
        format!("EPRT |2|::ffff:127.0.0.2|{}|", other.port()),
        format!("SPOR 127,0,0,2,{high},{low}"),
    ] {
        let reply = control.command(&command).unwrap();
        if reply.code < 400 {
            let reply = control.command("RETR /f").unwrap();
            assert!(reply.code >= 400, "{command}: {reply:?}");
        }
    }
    other.check();
    // The session is as good as before.
    assert_eq!(control.retrieve("/f").unwrap().0, b"content");
}

#[test]
fn user_gets_the_credential_of_no_other_user() {
    let site = grid::Site::new().unwrap();
    let other = grid::Site::named("/O=Grid/OU=other").unwrap();
    site.trust(&other).unwrap();
    let account = grid::account().unwrap();
    let mapped = format!("\"{}\" {account}\n\"{}\" {account}\n", site.identity(), other.identity());
    std::fs::write(site.path("gridmap"), mapped).unwrap();
    std::fs::write(site.path("root/f"), "content").unwrap();
    let served = site.serve("", &[]).unwrap();
    let passwords = site.path("passwords");
    write_passwords(&passwords, &["ada", "bob", "eve"]);
    let settings = format!(
        "{SETTINGS}[sites.dtn]\nurl = '{}/'\n[users.ada]\ncredential = {:?}\n[users.bob]\ncredential = {:?}\n",
        served.url,
        site.path("proxy"),
        other.path("proxy"),
    );
    let certificates = site.path("certificates");
    let options = ["--password-file", &text(&passwords)];
    let gateway = Gateway::start_with(&options, &settings, &[("X509_CERT_DIR", &certificates)]);
    let mut downloads = 0;
    let mut use_as = |user: &str, identity: &str| {
        let mut control = Control::connect(gateway.address).unwrap();
        control.expect(format!("USER {user}::dtn"), 331).unwrap();
        control.expect(format!("PASS secret-{user}"), 230).unwrap();
        control.expect("TYPE I", 200).unwrap();
        assert_eq!(control.retrieve("/f").unwrap().0, b"content");
        downloads += 1;
        // The download was in a session with the certificate of this user.
        let sessions = |log: &str| -> Vec<String> {
            let done = log.lines().filter(|line| line.contains("transfer done"));
            let number = |line: &str| Some(line.split_once(" session=")?.1.split(' ').next()?.to_owned());
            done.filter_map(number).collect()
        };
        served.program.wait_for_log(LIMIT, |log| sessions(log).len() == downloads).unwrap();
        let log = served.program.log();
        let session = sessions(&log).pop().unwrap();
        let begun = format!("logged in session={session} ");
        let begun = log.lines().find(|line| line.contains(&begun)).unwrap();
        assert!(begun.contains(&format!("subject=\"{identity}\"")), "{user}: {log}");
        control
    };
    // Sessions of one user are not there for the other when they are idle.
    drop(use_as("ada", &site.identity()));
    drop(use_as("bob", &other.identity()));
    let mut control = use_as("ada", &site.identity());
    for (user, password, reason) in [
        ("bob::dtn", "secret-ada", "Invalid user or password"),
        ("ada::dtn", "secret-bob", "Invalid user or password"),
        ("ada::dtn", "", "Invalid user or password"),
        ("ADA::dtn", "secret-ada", "Invalid user or password"),
        ("ada ::dtn", "secret-ada", "Invalid user or password"),
        ("eve::dtn", "secret-eve", "no credential of user eve"),
        ("eve::dtn::ada", "secret-eve", "no site"),
        ("eve", ":dtn:secret-ada", "Invalid user or password"),
        ("eve", ":dtn:secret-eve", "no credential of user eve"),
        (":globus-mapping:", "secret-ada", "Invalid user or password"),
    ] {
        let (code, refused) = gateway.log_in(user, password);
        assert!(code == 530 && refused.contains(reason), "{user}: {refused}");
    }
    // A second log-in within a session of another user needs the password, too.
    let user = control.command("USER bob::dtn").unwrap();
    let reply = if user.code == 331 { control.command("PASS secret-ada").unwrap() } else { user };
    assert!(reply.code >= 500, "{reply:?}");
    // The next session is that of its user, as before.
    drop(use_as("bob", &other.identity()));
}
