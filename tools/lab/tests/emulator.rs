//! The emulator with real namespaces, the kernel's TCP and real packets.
#![allow(clippy::unwrap_used)]

#[path = "emulator_net/mod.rs"]
mod net;

use std::io::{BufRead, BufReader, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use net::{Namespace, Net, probe};
use parking_lot::{Mutex, MutexGuard};
use ropewalk_lab::emulator::{
    Change, ControlSocket, Counters, Direction, Emulator, Loss, Options, Patch, Path, Queue, Rate, Red,
    Reorder, Request, Tun, ask,
};

/// Only one test runs at a time, because other load would disturb the measured times.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn net(mtu: u32, forward: Direction, backward: Direction, offload: bool) -> Option<Net> {
    Net::new(Options { path: Path { mtu, forward, backward }, ..Options::default() }, offload)
}

fn conserved(counters: &Counters) {
    let gone =
        counters.packets_out + counters.lost + counters.dropped() + counters.waiting + counters.travelling;
    assert_eq!(counters.packets_in, gone, "{counters:?}");
    assert_eq!((counters.refused, counters.overrun, counters.malformed), (0, 0, 0), "{counters:?}");
}

/// How close the times come to those asked for is measured by the example `emulator_accuracy`.
#[test]
fn emulator_with_a_delay_is_never_early() {
    let _alone = alone();
    for (forward, backward, offload, v6) in
        [(0, 0, true, false), (1, 1, true, true), (7, 3, false, false), (50, 50, true, false)]
    {
        let direction =
            |delay| Direction { delay: ms(delay), rate: Rate::mbit(1000), ..Direction::default() };
        let Some(net) = net(1500, direction(forward), direction(backward), offload) else { return };
        let asked = ms(forward + backward);
        let times = probe::ping(&net.left, v6, 100, ms(3));
        assert!(times[0] >= asked, "asked {asked:?}: min {:?}", times[0]);
        eprintln!("{:?}", net.emulator.stop().end.timing);
    }
}

#[test]
fn emulator_with_a_rate_never_exceeds_it() {
    let _alone = alone();
    for (mtu, mbit, overhead, count) in [(1500, 100, 0, 9000u64), (1500, 20, 38, 1500), (9000, 500, 0, 6000)]
    {
        let forward = Direction {
            rate: Rate::mbit(mbit),
            delay: ms(2),
            overhead,
            queue: Queue::DropTail { packets: 200 },
            ..Direction::default()
        };
        let Some(net) = net(mtu, forward, Direction::default(), true) else { return };
        let offered = mbit as f64 * 1.3e6;
        let flood = probe::flood(&net.left, &net.right, count, mtu as usize, offered, ms(300));
        let bits = flood.received.len() as f64 * f64::from(mtu + overhead) * 8.0;
        let least = Duration::from_secs_f64(bits / (mbit as f64 * 1e6));
        assert!(flood.whole_time >= least, "{:?}, expected at least {least:?}", flood.whole_time);
        let counters = net.emulator.stop().end.forward;
        assert!(counters.dropped_full > 0 && counters.waiting_max == 200, "{counters:?}");
        assert_eq!(flood.received.len() as u64, counters.packets_out);
        assert_eq!(flood.sent, counters.packets_in);
        conserved(&counters);
    }
}

#[test]
fn emulator_with_loss_keeps_it_within_the_statistical_error() {
    let _alone = alone();
    let bursts = Loss::bursts(0.02, 5.0);
    for (loss, spread) in [(Loss::Bernoulli { p: 0.01 }, 1.0), (bursts, 10.0)] {
        let forward = Direction { loss, delay: ms(1), ..Direction::default() };
        let Some(net) = net(1500, forward, Direction::default(), true) else { return };
        let n = 30_000;
        let flood = probe::flood(&net.left, &net.right, n, 200, 100e6, ms(200));
        let lost = n - flood.received.len() as u64;
        let p = loss.average();
        let deviation = (n as f64 * p * (1.0 - p) * spread).sqrt();
        eprintln!("{loss:?}: {lost} of {n}, expected {} +- {deviation:.1}", n as f64 * p);
        assert!((lost as f64 - n as f64 * p).abs() < 4.0 * deviation, "{lost} of {n}");
        let counters = net.emulator.stop().end.forward;
        assert_eq!((counters.lost, counters.packets_in), (lost, n));
        conserved(&counters);
        assert!(flood.received.is_sorted(), "order is kept");
    }
}

#[test]
fn tcp_with_loss_reordering_and_red_delivers_every_byte() {
    let _alone = alone();
    let red = Red {
        min: 10.0,
        max: 30.0,
        max_p: 0.1,
        weight: 0.002,
        gentle: true,
        wait: false,
        ecn: true,
        limit: 60,
    };
    for (mtu, offload, v6) in
        [(1500, true, false), (1500, true, true), (9000, true, false), (1500, false, true)]
    {
        let forward = Direction {
            rate: Rate::mbit(200),
            delay: ms(3),
            jitter: ms(1),
            loss: Loss::Bernoulli { p: 0.001 },
            reorder: Some(Reorder { probability: 0.01, by: ms(1) }),
            queue: Queue::Red(red),
            overhead: 38,
        };
        let backward = Direction { delay: ms(3), ..Direction::default() };
        let Some(net) = net(mtu, forward, backward, offload) else { return };
        for space in [&net.left, &net.right] {
            space.sysctl("ipv4/tcp_congestion_control", "reno");
            space.sysctl("ipv4/tcp_ecn", "1");
        }
        let bytes = 12_000_000;
        let time = probe::transfer(&net.left, &net.right, v6, bytes);
        let report = net.emulator.stop();
        let counters = report.end.forward;
        eprintln!("mtu {mtu} offload {offload}: {time:?} {counters:?}");
        conserved(&counters);
        conserved(&report.end.backward);
        assert!(counters.lost > 0 && counters.reordered > 0 && counters.marked > 0, "{counters:?}");
        assert!(counters.bytes_out > bytes as u64);
        // No packet is larger than the MTU, even if packets arrived as a super-packet.
        assert!(counters.bytes_in <= counters.packets_in * u64::from(mtu));
    }
}

#[test]
fn change_while_packets_flow_takes_effect() {
    let _alone = alone();
    let direction = Direction { delay: ms(5), ..Direction::default() };
    let Some(net) = net(1500, direction.clone(), direction, true) else { return };
    let ping = |v6| probe::ping(&net.left, v6, 8, ms(2))[0];
    assert!(ping(false) >= ms(10));
    let path = net
        .control
        .apply(&Change { both: Patch { delay: Some(ms(15)), ..Patch::default() }, ..Change::default() })
        .unwrap();
    assert_eq!(path.backward.delay, ms(15));
    let slow = ping(true);
    assert!(slow >= ms(30), "{slow:?}");

    let nonsense = Patch { loss: Some(Loss::Bernoulli { p: 2.0 }), ..Patch::default() };
    let error = net.control.apply(&Change { forward: nonsense, ..Change::default() }).unwrap_err();
    assert_eq!(error.to_string(), "forward.loss.p: expected 0 to 1, found 2");

    net.control.apply(&Change { mtu: Some(9000), ..Change::default() }).unwrap();
    probe::transfer(&net.left, &net.right, false, 1_000_000);
    let report = net.emulator.stop();
    let counters = report.end.forward;
    assert!(counters.bytes_in / counters.packets_in > 1500, "jumbo packets: {counters:?}");
    assert_eq!(report.end.path.mtu, 9000);
    conserved(&counters);
}

#[test]
fn schedule_with_two_changes_applies_each_at_its_time() {
    let _alone = alone();
    let at = |at: u64, delay: u64| Change {
        at: ms(at),
        forward: Patch { delay: Some(ms(delay)), ..Patch::default() },
        ..Change::default()
    };
    // The changes are not in order of time on purpose.
    let options =
        Options { schedule: vec![at(800, 200), at(400, 100)], sample: ms(20), ..Options::default() };
    let Some(net) = Net::new(options, true) else { return };
    let mut seen = Vec::new();
    while seen.last() != Some(&ms(200)) {
        let snapshot = net.control.snapshot().unwrap();
        let (at, delay) = (snapshot.at, snapshot.path.forward.delay);
        assert!(at >= 4.0 * delay.as_secs_f64(), "{delay:?} already at {at}");
        let time = probe::ping(&net.left, false, 1, ms(5))[0];
        assert!(time >= delay, "{time:?} with a delay of {delay:?}");
        if seen.last() != Some(&delay) {
            seen.push(delay);
        }
    }
    assert_eq!(seen, [ms(0), ms(100), ms(200)]);
    let report = net.emulator.stop();
    assert!(report.end.problems.is_empty());
    assert!(report.series.len() >= 30, "{}", report.series.len());
    assert!(report.series.windows(2).all(|w| w[0].at < w[1].at));
}

#[test]
fn emulator_when_an_interface_goes_away_continues() {
    let _alone = alone();
    let Some(net) = Net::new(Options::default(), true) else { return };
    probe::ping(&net.left, false, 1, ms(1));
    net.right.ip("link set wan0 down");
    let (sender, _receiver) = probe::udp_pair(&net.left, &net.right);
    let _ = sender.send(b"into the void");
    net.right.ip("link set wan0 up");
    probe::ping(&net.left, false, 1, ms(1));
    net.right.ip("link del wan0");
    let _ = sender.send(b"into the void");
    std::thread::sleep(ms(200));
    let before = net.control.snapshot().unwrap().timing;
    std::thread::sleep(ms(200));
    let snapshot = net.control.snapshot().unwrap();
    assert_eq!(snapshot.problems.len(), 1, "{:?}", snapshot.problems);
    assert!(snapshot.timing.wakeups - before.wakeups < 20, "it does not spin");
    net.emulator.stop();
}

#[test]
fn control_socket_with_requests_answers_and_changes_the_path() {
    let _alone = alone();
    let Some(net) = Net::new(Options { sample: ms(10), ..Options::default() }, true) else { return };
    let address = SocketAddr::from_abstract_name(format!("emulator-test/{}", std::process::id())).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let socket = ControlSocket::start(listener, [("A-B".to_owned(), net.control.clone())].into()).unwrap();
    let connect = || UnixStream::connect_addr(&address).unwrap();

    assert_eq!(ask(connect(), &Request::Paths).unwrap(), serde_json::json!(["A-B"]));
    let slower = Patch { delay: Some(ms(10)), ..Patch::default() };
    let change = Box::new(Change { backward: slower, ..Change::default() });
    let after = ask(connect(), &Request::Change { path: None, change }).unwrap();
    assert_eq!(after["backward"]["delay"], "10ms");
    assert!(probe::ping(&net.left, false, 1, ms(1))[0] >= ms(10));
    let snapshot = ask(connect(), &Request::Snapshot { path: Some("A-B".to_owned()) }).unwrap();
    assert_eq!(snapshot["backward"]["packets_out"], 1);
    let series = ask(connect(), &Request::Series { path: None, from: 0 }).unwrap();
    assert!(!series.as_array().unwrap().is_empty());

    let error = ask(connect(), &Request::Snapshot { path: Some("B-C".to_owned()) }).unwrap_err();
    assert_eq!(error.to_string(), "no path `B-C`: expected one of A-B");
    // Each invalid line gets an answer.
    let mut stream = connect();
    let text = "what?\n{\"do\": \"change\", \"change\": {\"both\": {\"rate\": 5}}}\n{\"do\": \"paths\"}\n";
    stream.write_all(text.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("expected one request a line, as JSON"));
    assert!(lines.next().unwrap().contains("`5` is no rate"));
    assert_eq!(lines.next().unwrap(), r#"{"ok":["A-B"]}"#);
    // A line without an end is rejected when it is too long, and a waiting client is disconnected
    // at the end.
    let mut endless = connect();
    endless.write_all(&[b'x'; 64 * 1024]).unwrap();
    assert!(BufReader::new(endless).lines().next().unwrap().unwrap().contains("longer"));
    net.emulator.stop();
    assert_eq!(
        ask(connect(), &Request::Snapshot { path: None }).unwrap_err().to_string(),
        "the emulator has ended"
    );
    drop(socket);
    assert!(lines.next().is_none());
}

#[test]
fn emulator_with_malformed_packets_counts_and_drops_them() {
    let _alone = alone();
    let Some(net) = Net::new(Options::default(), true) else { return };
    let (socket, to) = probe::packet_socket(&net.left);
    let mut random = fastrand::Rng::with_seed(1);
    let mut sent = 0;
    for n in 0..3000usize {
        let mut packet: Vec<u8> = (0..random.usize(1..1500)).map(|_| random.u8(..)).collect();
        // Some packets have a valid version, some have lengths that nearly fit.
        match n % 4 {
            0 => {}
            1 => packet[0] = 0x45,
            2 => packet[0] = 0x60,
            _ => packet[0] = 0x4f,
        }
        if n % 3 == 0 && packet.len() > 40 {
            let length = packet.len() as u16 - if n % 4 == 2 { 40 } else { 0 };
            let at = if n % 4 == 2 { 4 } else { 2 };
            packet[at..at + 2].copy_from_slice(&(length - random.u16(..2)).to_be_bytes());
        }
        sent += u64::from(socket.send_to(&packet, &to).is_ok());
    }
    assert!(probe::ping(&net.left, false, 3, ms(1)).len() == 3);
    let report = net.emulator.stop();
    let forward = report.end.forward;
    eprintln!("{forward:?}");
    assert!(forward.malformed > 1000 && forward.packets_out > 100, "{forward:?}");
    assert_eq!(forward.malformed + forward.packets_in + forward.overrun, sent + 3);
    assert!(report.end.problems.is_empty());
}

#[test]
fn relay_between_two_emulators_forwards_packets() {
    let _alone = alone();
    for offload in [[true, true], [true, false], [false, true]] {
        let spaces = (Namespace::new(), Namespace::new(), Namespace::new());
        let (Some(left), Some(relay), Some(right)) = spaces else { return };
        relay.sysctl("ipv4/ip_forward", "1");
        for space in [&left, &relay, &right] {
            // No IPv6 messages to an interface that is not up yet.
            space.sysctl("ipv6/conf/default/disable_ipv6", "1");
        }
        let direction =
            || Direction { delay: ms(1), loss: Loss::Bernoulli { p: 0.001 }, ..Direction::default() };
        let mut emulators = Vec::new();
        for (number, (a, b)) in [(&left, &relay), (&relay, &right)].into_iter().enumerate() {
            let tun = |space: &Namespace, name: &'static str| {
                space.run(move || Tun::open(name, 1500, offload[number])).unwrap()
            };
            let names = [["wan0", "wan0"], ["wan1", "wan0"]][number];
            let (a, b) = (tun(a, names[0]), tun(b, names[1]));
            let path = Path { mtu: 1500, forward: direction(), backward: direction() };
            emulators.push(Emulator::start(Options { path, ..Options::default() }, a, b).unwrap());
        }
        for (space, address, routes) in [
            (&left, net::LEFT, &[("default", "wan0")][..]),
            (&relay, [10, 0, 0, 3].into(), &[("10.0.0.1", "wan0"), ("10.0.0.2", "wan1")]),
            (&right, net::RIGHT, &[("default", "wan0")]),
        ] {
            space.ip(&format!("addr add {address}/32 dev lo"));
            for (to, interface) in routes {
                space.ip(&format!("link set {interface} up"));
                space.ip(&format!("route add {to} dev {interface} src {address}"));
            }
        }
        let time = probe::ping(&left, false, 10, ms(1))[0];
        assert!((ms(4)..ms(5)).contains(&time), "{time:?}");
        let bytes = 10_000_000;
        probe::transfer(&left, &right, false, bytes);
        for emulator in emulators {
            let counters = emulator.stop().end.forward;
            eprintln!("{offload:?}: {counters:?}");
            conserved(&counters);
            assert!(counters.lost > 0 && counters.packets_in >= bytes as u64 / 1460, "{counters:?}");
        }
    }
}
