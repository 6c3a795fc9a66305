//! Measures a path with iperf3, a program that is widely known: a server for one test, and a
//! client.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::collect::Unavailable;
use crate::collect::child::{self, Guarded};

/// The longest time that a server is kept.
pub const KEPT: Duration = Duration::from_secs(60);
/// Time for which the client retries to reach a server that is just starting.
const BEGINNING: Duration = Duration::from_secs(5);
const ANSWER: u64 = 16 << 20;

/// An iperf3 server for one test. It ends after the test, after [`KEPT`], or when this value is
/// dropped. After the drop it has ended, and its port is free.
pub struct Server {
    port: u16,
    keeper: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Server {
    /// Starts a server on a port of the range, or on any port. `held` is dropped when the server
    /// has ended, so that the caller can count running servers with it.
    ///
    /// # Errors
    /// iperf3 is missing, or no port is free.
    pub fn start(
        address: Option<IpAddr>,
        ports: Option<(u16, u16)>,
        held: impl Send + 'static,
    ) -> Result<Self, Unavailable> {
        let port = free_port(address, ports).map_err(|error| Unavailable::of("a port for iperf3", &error))?;
        let mut command = Command::new("iperf3");
        command.args(["-s", "-1", "-p", &port.to_string()]);
        if let Some(address) = address {
            command.args(["-B", &address.to_string()]);
        }
        let guarded = Guarded::start(command, Stdio::null())?;
        let (stop, stopped) = mpsc::channel::<()>();
        let keep = move || {
            let _ = stopped.recv_timeout(KEPT);
            drop(guarded);
            drop(held);
        };
        let thread = thread::Builder::new()
            .name("iperf3".into())
            .spawn(keep)
            .map_err(|error| Unavailable::of("a thread", &error))?;
        Ok(Self { port, keeper: Some((stop, thread)) })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.keeper.take() {
            drop(stop);
            // The thread kills the program and waits for it.
            let _ = thread.join();
        }
    }
}

/// Finds a free port. Another program may take it before iperf3 does; then iperf3 fails.
fn free_port(address: Option<IpAddr>, ports: Option<(u16, u16)>) -> io::Result<u16> {
    let address = address.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
    let any = match address {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => IpAddr::from([0, 0, 0, 0]),
        address => address,
    };
    let (first, last) = ports.unwrap_or((0, 0));
    let mut error = io::ErrorKind::AddrInUse.into();
    for port in first..=last {
        let bound = TcpListener::bind(SocketAddr::new(address, port))
            .or_else(|_| TcpListener::bind(SocketAddr::new(any, port)));
        match bound {
            Ok(listener) => return Ok(listener.local_addr()?.port()),
            Err(other) => error = other,
        }
    }
    Err(error)
}

/// The result of an iperf3 test.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    /// As counted by the receiver.
    pub bytes_per_second: f64,
    pub version: String,
    /// Segments that the sender retransmitted, if its system counts them.
    pub retransmitted: Option<u64>,
}

/// Runs a test of `time` against a server, with `streams` connections, from this host to the server
/// or `back`. Ends it early when `unwanted` returns true.
///
/// # Errors
/// iperf3 is missing, the server cannot be reached, the output is not understood, or the test is no
/// longer wanted.
pub fn test(
    (host, port): (&str, u16),
    back: bool,
    time: Duration,
    streams: u32,
    unwanted: &dyn Fn() -> bool,
) -> Result<Test, Unavailable> {
    let deadline = Instant::now() + BEGINNING;
    loop {
        let mut command = Command::new("iperf3");
        command.args(["-c", host, "-p", &port.to_string(), "-J", "-O", "1"]);
        command.args(["-t", &time.as_secs().max(1).to_string(), "-P", &streams.max(1).to_string()]);
        command.args(back.then_some("-R"));
        let output = child::run_unless(command, time + Duration::from_secs(30), ANSWER, unwanted)?;
        match read(&output.text) {
            // The server is not listening yet.
            Err(why) if why.contains("refused") && Instant::now() < deadline && !unwanted() => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(why) => return Err(Unavailable::Failed(format!("iperf3: {why}"))),
            Ok(test) => return Ok(test),
        }
    }
}

fn read(json: &str) -> Result<Test, String> {
    let told: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    if let Some(error) = told["error"].as_str() {
        return Err(error.chars().take(500).collect());
    }
    let bits = told["end"]["sum_received"]["bits_per_second"].as_f64().filter(|bits| *bits > 0.0);
    let version = told["start"]["version"].as_str().unwrap_or("iperf3");
    Ok(Test {
        bytes_per_second: bits.ok_or("it tells no rate")? / 8.0,
        version: version.chars().take(100).collect(),
        retransmitted: told["end"]["sum_sent"]["retransmits"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn read_parses_iperf_results_and_errors() {
        let said = r#"{"start":{"version":"iperf 3.12"},"end":{"sum_received":{"bits_per_second":8e8}}}"#;
        let test = Test { bytes_per_second: 1e8, version: "iperf 3.12".into(), retransmitted: None };
        assert_eq!(read(said), Ok(test.clone()));
        let said = said.replace(r#""sum_received""#, r#""sum_sent":{"retransmits":7},"sum_received""#);
        assert_eq!(read(&said), Ok(Test { retransmitted: Some(7), ..test }));
        assert!(
            read(r#"{"error":"unable to connect: Connection refused"}"#).unwrap_err().contains("refused")
        );
        for wrong in ["", "{}", r#"{"end":{"sum_received":{"bits_per_second":-1}}}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// The project's tests require iperf3 (PEERS in test.sh).
    #[test]
    fn server_when_dropped_has_ended() {
        let local = Some(IpAddr::from([127, 0, 0, 1]));
        let held = std::sync::Arc::new(());
        let server = Server::start(local, None, std::sync::Arc::clone(&held)).unwrap();
        assert_eq!(std::sync::Arc::strong_count(&held), 2);
        drop(server);
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }

    #[test]
    fn free_port_stays_within_the_range() {
        let local = IpAddr::from([127, 0, 0, 1]);
        assert!(free_port(Some(local), None).unwrap() > 0);
        let held = TcpListener::bind((local, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        assert!(free_port(Some(local), Some((port, port))).is_err());
        assert!(free_port(Some(local), Some((9, 8))).is_err());
    }
}
