//! More concurrent log-ins than the server can handle.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use ropewalk_tests::peers;
use ropewalk_tests::process::Program;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
/// The address of the many clients, and the address of another client.
const CROWD: [u8; 4] = [127, 0, 0, 2];
const OTHER: [u8; 4] = [127, 0, 0, 3];
const RIGHT: &str = "PASS open sesame";

struct Host {
    _directory: TempDir,
    program: Program,
    address: SocketAddr,
}

impl Host {
    /// One thread handles log-ins, and checking each password takes a while.
    fn new(limits: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("root")).unwrap();
        let mut passwd = Command::new(peers::ropewalk().unwrap());
        passwd
            .args(["passwd", "--file"])
            .arg(at("users"))
            .arg("ada")
            .stdin(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = passwd.spawn().unwrap();
        writeln!(child.stdin.take().unwrap(), "open sesame").unwrap();
        assert!(child.wait().unwrap().success());
        let text = format!(
            "root = 'root'\nlisten = ['127.0.0.1:0']\npassword_file = 'users'\n[identity]\nmapped = false\n[tls]\n\
             enabled = false\n{limits}"
        );
        fs::write(at("server.toml"), text).unwrap();
        let mut serve = peers::ropewalk_command().unwrap();
        let program = Program::start(serve.args(["serve", "--config"]).arg(at("server.toml"))).unwrap();
        let listening = |line: &str| line.strip_prefix("Server listening at ")?.trim().parse().ok();
        let address = program.wait_for_line(LIMIT, listening).unwrap();
        Self { _directory: directory, program, address }
    }

    fn connect(&self, from: [u8; 4]) -> Client {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((Ipv4Addr::from(from), 0))).unwrap();
        connect(&socket, &self.address).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client(BufReader::new(stream))
    }

    /// Returns `size` clients that have sent a wrong password and wait for the reply.
    fn crowd(&self, size: usize) -> Vec<Client> {
        let mut clients: Vec<_> = (0..size).map(|_| self.connect(CROWD)).collect();
        clients.retain_mut(|client| client.reply().starts_with("220"));
        for client in &mut clients {
            client.say("USER ada\r\nPASS wrong");
        }
        clients
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn say(&mut self, line: &str) {
        self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// Returns the result of the log-in in progress.
    fn outcome(&mut self) -> String {
        let reply = self.reply();
        if reply.starts_with("331") { self.reply() } else { reply }
    }

    fn log_in(&mut self) {
        self.say(&format!("USER ada\r\n{RIGHT}"));
        let outcome = self.outcome();
        assert!(outcome.starts_with("230"), "{outcome}");
    }

    fn at_its_end(&mut self) -> bool {
        self.reply().is_empty()
    }
}

#[test]
fn address_with_too_many_logins_gets_421() {
    let host =
        Host::new("[limits]\npassword_checks = 1\nwaiting_logins = 3\n[timeouts]\nlogin_failure = 0.001\n");
    let mut turned_away = None;
    // On a fast machine the queue may be empty when the next client connects.
    for _ in 0..100 {
        let mut crowd = host.crowd(24);
        let mut late = host.connect(CROWD);
        let reply = late.reply();
        if reply.starts_with("421") {
            // Clients from other addresses log in meanwhile, in turn.
            let mut other = host.connect(OTHER);
            let greeting = other.reply();
            assert!(greeting.starts_with("220"), "{greeting}");
            other.log_in();
            assert!(late.at_its_end());
            turned_away = Some(reply);
        }
        for client in &mut crowd {
            let outcome = client.outcome();
            assert!(outcome.starts_with("530"), "who was let in is seen to: {outcome}");
        }
        if turned_away.is_some() {
            break;
        }
    }
    let told = turned_away.expect("nobody was turned away");
    assert!(told.contains("too many log-ins at a time. Please try again later."), "{told}");
    let log = host.program.log();
    assert!(log.contains("too many log-ins wait") && log.contains("peer=127.0.0.2:"), "{log}");
    // After these clients have left, their address is treated like any other.
    let mut again = host.connect(CROWD);
    assert!(again.reply().starts_with("220"));
    again.log_in();
}

#[test]
fn login_that_waits_too_long_gets_421() {
    let host = Host::new(
        "[limits]\npassword_checks = 1\nwaiting_logins = 0\n[timeouts]\nlogin = 1\nlogin_failure = 0.001\n",
    );
    let mut told = Vec::new();
    let mut size = 100;
    while told.is_empty() && size <= 1600 {
        // Each client sends its password at once, because its time for the log-in starts when it
        // connects.
        let crowd: Vec<_> = (0..size).flat_map(|_| host.crowd(1)).collect();
        for mut client in crowd {
            let outcome = client.outcome();
            if outcome.starts_with("421") {
                assert!(client.at_its_end());
                told.push(outcome);
            } else {
                assert!(outcome.starts_with("530"), "{outcome}");
            }
        }
        size *= 2;
    }
    let waited =
        |reply: &&String| reply.as_str() == "421 Too many log-ins at a time. Please try again later.\r\n";
    assert!(told.iter().any(|reply| waited(&reply)), "{told:?}");
    assert!(host.program.log().contains("a log-in waited for too long"));
    let mut other = host.connect(OTHER);
    assert!(other.reply().starts_with("220"));
    other.log_in();
}
