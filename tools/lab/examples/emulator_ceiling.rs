//! Measures how fast the emulator is on this machine and how much CPU time it takes: `cargo run
//! --release -p ropewalk-lab --example emulator_ceiling`.
//!
//! Needs root, iperf3 and setpriv (util-linux). One TCP stream goes from left to right, first
//! without a limit, then over limited paths. The columns are: cores that the emulator's thread
//! uses, packets per second and CPU time per packet, wake-ups, lateness of deliveries (99th
//! percentile and maximum, in ms), packets dropped and overrun, round trip time of pings sent while
//! the stream runs (ms).
#![allow(clippy::unwrap_used)]

#[path = "../tests/emulator_net/mod.rs"]
mod net;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use net::{Net, probe};
use ropewalk_lab::emulator::{Direction, Options, Path, Queue, Rate};

const SECONDS: f64 = 4.0;

/// A child process that is killed when this value is dropped.
struct Program(Child);

impl Program {
    fn start(space: &net::Namespace, arguments: Vec<String>) -> Self {
        Self(space.run(move || {
            // The child ends with this process, even if this process is killed.
            let mut command = Command::new("setpriv");
            command
                .args(["--pdeathsig", "KILL", "iperf3"])
                .args(arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        }))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(name: &str, mtu: u32, offload: bool, direction: Direction, iperf: &[&str]) {
    let path = Path { mtu, forward: direction.clone(), backward: direction };
    let Some(net) = Net::new(Options { path, ..Options::default() }, offload) else { return };
    for space in [&net.left, &net.right] {
        space.sysctl("ipv4/tcp_congestion_control", "reno");
        space.sysctl("ipv4/tcp_rmem", "4096 1000000 134217728");
        space.sysctl("ipv4/tcp_wmem", "4096 1000000 134217728");
    }
    let _server = Program::start(&net.right, vec!["-s".into(), "-1".into()]);
    std::thread::sleep(Duration::from_millis(300));
    let mut arguments = vec!["-c".into(), net::RIGHT.to_string(), "-t".into(), format!("{}", SECONDS + 4.0)];
    arguments.extend(iperf.iter().map(|word| (*word).to_owned()));
    let client = Program::start(&net.left, arguments);
    std::thread::sleep(Duration::from_millis(1000));
    let before = net.control.snapshot().unwrap();
    std::thread::sleep(Duration::from_secs_f64(SECONDS));
    let after = net.control.snapshot().unwrap();
    let pings = probe::ping(&net.left, false, 100, Duration::from_millis(3));
    drop(client);
    let end = net.emulator.stop().end;

    let time = after.at - before.at;
    let packets = after.forward.packets_out + after.backward.packets_out
        - before.forward.packets_out
        - before.backward.packets_out;
    let cpu = after.timing.cpu - before.timing.cpu;
    println!(
        "{name:<26} {mtu:>5} {:>4} {:>9.3} {:>6.2} {:>8.0} {:>7.2} {:>8.0} {:>8.3} {:>8.3} {:>6} {:>7} {:>8.3} {:>8.3}",
        if offload { "on" } else { "off" },
        (after.forward.bytes_out - before.forward.bytes_out) as f64 * 8.0 / time / 1e9,
        cpu / time,
        packets as f64 / time,
        1e6 * cpu / packets.max(1) as f64,
        (after.timing.wakeups - before.timing.wakeups) as f64 / time,
        end.timing.lateness.p99 * 1e3,
        end.timing.lateness.max * 1e3,
        end.forward.dropped() + end.forward.refused,
        end.forward.overrun + end.backward.overrun,
        pings[0].as_secs_f64() * 1e3,
        pings[50].as_secs_f64() * 1e3,
    );
}

fn main() {
    println!(
        "{:<26}   mtu  tso    Gbit/s  cores packet/s  us/pkt  wakes/s late99ms  latemax  drops overrun ping min   median",
        "path"
    );
    let limited = |mbit, delay| Direction {
        rate: Rate::mbit(mbit),
        delay: Duration::from_millis(delay),
        queue: Queue::DropTail { packets: 2000 },
        ..Direction::default()
    };
    let unlimited = |delay| Direction { delay: Duration::from_millis(delay), ..Direction::default() };
    for mtu in [1500, 9000] {
        for offload in [true, false] {
            run("unlimited, no delay", mtu, offload, unlimited(0), &[]);
            run("unlimited, 2 ms", mtu, offload, unlimited(1), &[]);
        }
    }
    for offload in [true, false] {
        run("1 Gbit/s, 20 ms", 1500, offload, limited(1000, 10), &[]);
        run("1 Gbit/s, 20 ms, half used", 1500, offload, limited(1000, 10), &["-b", "500M"]);
        run("100 Mbit/s, 20 ms", 1500, offload, limited(100, 10), &[]);
    }
}
