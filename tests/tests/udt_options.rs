//! Options of UDT in a stack string (SITE SETNETSTACK): they hold for the server's connections, and
//! wrong ones are refused.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::process::run;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers};
use ropewalk_udt::{Config, Connector, Packet, Parameters};

const LIMIT: Duration = Duration::from_secs(30);
/// The packets that libudt's congestion control, and ours of that name, sends before the first ACK.
const FIRST_WINDOW: u32 = 16;

fn server(scratch: &Scratch) -> Server {
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("file"), 1_000_000, 1).unwrap();
    let setup = Setup::new(Kind::Ropewalk, &root).argument("--drivers").argument("tcp,udt");
    setup.start().unwrap()
}

/// A peer that connects to a passive channel over UDT, and acknowledges nothing.
struct Silent {
    socket: UdpSocket,
    parameters: Parameters,
    early: Vec<Vec<u8>>,
}

impl Silent {
    fn connect(to: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut connector = Connector::new(Config::default(), [3; 32], to.ip(), Instant::now());
        let mut buffer = vec![0; 1 << 16];
        loop {
            if let Some(parameters) = connector.outcome() {
                let parameters = parameters.unwrap();
                return Self { socket, parameters, early: connector.into_early() };
            }
            if let Some(request) = connector.poll_transmit(Instant::now()) {
                socket.send(&request).unwrap();
            }
            if let Ok(length) = socket.recv(&mut buffer) {
                connector.handle(Instant::now(), &buffer[..length]);
            }
        }
    }

    /// The times at which the server has sent its first packets for the first time, in microseconds
    /// of its clock.
    fn first_times(&self) -> Vec<u32> {
        let mut times = BTreeMap::new();
        let mut take = |datagram: &[u8]| {
            if let Some(Packet::Data(data)) = Packet::parse(datagram) {
                let position = data.seq.since(self.parameters.initial);
                times.entry(position).or_insert(data.timestamp);
            }
            times.len() >= FIRST_WINDOW as usize
        };
        if self.early.iter().any(|datagram| take(datagram)) {
            return times.into_values().collect();
        }
        let until = Instant::now() + LIMIT;
        let mut buffer = vec![0; 1 << 16];
        while Instant::now() < until {
            if let Ok(length) = self.socket.recv(&mut buffer)
                && take(&buffer[..length])
            {
                break;
            }
        }
        times.into_values().collect()
    }
}

/// A passive channel with this stack.
fn channel(control: &mut Control, stack: &str) -> SocketAddr {
    control.expect("TYPE I", 200).unwrap();
    control.expect(format!("SITE SETNETSTACK {stack}"), 250).unwrap();
    control.passive().unwrap()
}

#[test]
fn packet_options_of_the_client_hold_for_the_connections_of_the_server() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    let mut control = Control::log_in(server.address()).unwrap();
    let silent = Silent::connect(channel(&mut control, "udt"));
    assert_eq!((silent.parameters.mss, silent.parameters.ropewalk), (1500, true));
    assert!(silent.parameters.peer_window > 10_000);
    let silent = Silent::connect(channel(&mut control, "udt:mss=600;fc=64"));
    assert_eq!((silent.parameters.mss, silent.parameters.peer_window), (600, 64));
    let silent = Silent::connect(channel(&mut control, "udt:rcvbuf=145600"));
    assert_eq!(silent.parameters.peer_window, 100);
}

/// Before the first ACK, `daimd` sends a window of packets at once, and `bbr` one each 2 ms. The
/// times are those that the server sets, so that a slow host changes nothing.
#[test]
fn congestion_control_of_the_client_is_that_of_the_connections_of_the_server() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    for (stack, at_once) in [("udt", false), ("udt:congestion=daimd", true), ("udt:congestion=bbr", false)] {
        let mut control = Control::log_in(server.address()).unwrap();
        let silent = Silent::connect(channel(&mut control, stack));
        control.send("RETR file").unwrap();
        let times = silent.first_times();
        assert_eq!(times.len(), FIRST_WINDOW as usize, "{stack}: {times:?}");
        let took = times.iter().max().unwrap() - times.iter().min().unwrap();
        assert_eq!(took < 5000, at_once, "{stack}: {times:?}");
    }
}

#[test]
fn wrong_options_are_refused_with_their_name() {
    let scratch = Scratch::new().unwrap();
    let server = server(&scratch);
    let mut control = Control::log_in(server.address()).unwrap();
    for (stack, option) in [
        ("udt:congestion=vegas", "congestion"),
        ("udt:congestion", "congestion"),
        ("udt:mss=91", "mss"),
        ("udt:fc=none", "fc"),
        ("udt:nodelay=1", "nodelay"),
        ("udt:congestion=daimd;sndbuf=-1", "sndbuf"),
    ] {
        let reply = control.command(format!("SITE SETNETSTACK {stack}")).unwrap();
        assert_eq!(reply.code, 500, "{stack}: {}", reply.text);
        let expected = format!("udt option {option} is not supported");
        assert!(reply.text.contains(&expected), "{stack}: {}", reply.text);
        // The client says the same, before any data moves.
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "--retries", "0", "--stack", stack]).arg(server.url("file"));
        command.arg(scratch.join("back"));
        let errors = run(&mut command, LIMIT).unwrap().failed().unwrap().errors();
        assert!(errors.contains(&format!("option {option}")), "{stack}: {errors}");
    }
    // The earlier stack holds.
    assert!(fs::exists(scratch.join("root/file")).unwrap());
    assert!(!fs::exists(scratch.join("back")).unwrap());
    let silent = Silent::connect(channel(&mut control, "udt"));
    assert_eq!(silent.parameters.mss, 1500);
}
