//! The server as a service: signals, and the notifications for systemd.
#![allow(clippy::unwrap_used, missing_docs)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ropewalk_server::{AnonymousAccess, Config, Server};
use rustix::process::{Pid, Signal, kill_process};

/// Not a test: the server that the tests run as a process of its own.
#[test]
#[ignore = "run by the other tests"]
fn service() {
    let root = std::env::var("SERVED").unwrap();
    let config = move |banner: &str| {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut config = Config::quick(listen, Some(AnonymousAccess::default()), &root);
        config.banner = Some(banner.into());
        config
    };
    let server = Server::bind(config("old")).unwrap();
    println!("\nlistening {}", server.local_addrs()[0]);
    server.run_with_signals(move || Ok(config("new"))).unwrap();
}

struct Service {
    process: Child,
    address: SocketAddr,
    systemd: UnixDatagram,
    /// Kept open, so that the process can write.
    _output: std::io::Lines<BufReader<std::process::ChildStdout>>,
    _directory: tempfile::TempDir,
}

impl Service {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&socket).unwrap();
        systemd.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "service", "--ignored", "--nocapture"])
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "100000")
            .env_remove("WATCHDOG_PID")
            .env("SERVED", directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let listening = output
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| Some(line.strip_prefix("listening ")?.to_owned()));
        let address = listening.unwrap().parse().unwrap();
        Self { process, address, systemd, _output: output, _directory: directory }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Waits until systemd has received this state.
    fn told(&self, state: &str) {
        let mut buffer = [0; 1000];
        loop {
            let n = self.systemd.recv(&mut buffer).unwrap();
            if String::from_utf8_lossy(&buffer[..n]).lines().any(|line| line == state) {
                return;
            }
        }
    }

    fn greeting(&self) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let mut buffer = [0; 100];
        let n = stream.read(&mut buffer).unwrap();
        (stream, String::from_utf8_lossy(&buffer[..n]).into_owned())
    }

    fn ends_well(&mut self) {
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn signals_reload_and_drain_server() {
    let mut service = Service::start();
    service.told("READY=1");
    service.told("WATCHDOG=1");
    assert_eq!(service.greeting().1, "220 old\r\n");
    service.signal(Signal::HUP);
    service.told("RELOADING=1");
    service.told("READY=1");
    let (mut stream, greeting) = service.greeting();
    assert_eq!(greeting, "220 new\r\n");
    service.signal(Signal::TERM);
    service.told("STOPPING=1");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "421 Service not available, closing control connection.\r\n");
    service.ends_well();
}

#[test]
fn sigint_stops_server_at_once() {
    let mut service = Service::start();
    service.told("READY=1");
    let _session = service.greeting();
    service.signal(Signal::INT);
    service.told("STOPPING=1");
    service.ends_well();
}
