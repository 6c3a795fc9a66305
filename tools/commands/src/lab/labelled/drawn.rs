//! The third and the fourth set: drawn at random, not chosen.
//!
//! Each case has the bottleneck that its name says. A generator draws everything else (paths,
//! rates, sizes, direction, degree) from the ranges below. Its seed is the date of the day on which
//! the set was written; for the fourth set, that of the next day. Parameters that follow from
//! others (the length of a file, the size of a buffer) are calculated by the same rule in all
//! cases, so that the bottleneck is effective: a transfer takes about ten seconds, and everything
//! else could be at least 1.5 times as fast.

use ropewalk_profiler::verdict::CauseKind;

use super::cases::{Case, Set};
use super::scene::{Data, Peer, Scene, WIDE, Way, Wire};

const MIB: u64 = 1 << 20;
/// Payload of a packet of 1500 bytes.
const PAYLOAD: f64 = 1448.0;
/// Approximate duration of a transfer, in seconds.
const LONG: f64 = 10.0;

/// The random numbers of one case. Its name seeds them, so that no case changes another's.
struct Draw(u64);

impl Draw {
    fn of(set: Set, name: &str) -> Self {
        let seed = if set == Set::Fourth { 20_261_123 } else { 20_261_122 };
        // FNV-1a.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ seed, step))
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform on a logarithmic scale.
    fn between(&mut self, least: f64, most: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        least * (most / least).powf(unit)
    }

    fn whole(&mut self, least: u64, most: u64) -> u64 {
        (self.between(least as f64, most as f64).round() as u64).clamp(least, most)
    }

    fn pick<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[(self.next() % N as u64) as usize]
    }

    fn way(&mut self) -> Way {
        self.pick([Way::Get, Way::Put])
    }

    /// Milliseconds, Mbit/s, and a queue in bandwidth-delay products.
    fn path(&mut self, round_trip: (u64, u64), rate: (u64, u64), queue: (f64, f64)) -> Line {
        let round_trip = self.whole(round_trip.0, round_trip.1) as f64 / 1e3;
        let rate = self.whole(rate.0, rate.1) as f64 * 1e6 / 8.0;
        let queue = (rate * round_trip / 1500.0 * self.between(queue.0, queue.1)).max(40.0).round() as u64;
        Line { round_trip, rate, queue, more: String::new() }
    }
}

/// A path.
#[derive(Clone)]
struct Line {
    /// Seconds.
    round_trip: f64,
    /// Bytes per second.
    rate: f64,
    /// Packets.
    queue: u64,
    more: String,
}

impl Line {
    fn text(&self) -> (String, String) {
        let Self { round_trip, rate, queue, more } = self;
        (
            format!("{}ms", (round_trip * 1e3).round()),
            format!("rate = '{}Mbit/s', queue = {queue}{more}", (rate * 8.0 / 1e6).round()),
        )
    }

    /// The bandwidth-delay product in bytes.
    fn product(&self) -> f64 {
        self.round_trip * self.rate
    }
}

/// Data that takes `seconds` at `rate`, in whole MiB.
fn lasts(seconds: f64, rate: f64) -> Data {
    Data::File(((seconds * rate / MIB as f64).round() as u64).max(1) * MIB)
}

/// The hosts that send and receive.
fn ends(way: Way) -> (&'static str, &'static str) {
    if way == Way::Get { ("right", "left") } else { ("left", "right") }
}

fn at(scene: Scene, host: &str, line: impl Into<String>) -> Scene {
    if host == "left" { scene.left(line) } else { scene.right(line) }
}

fn streams(count: u64) -> [String; 2] {
    ["-p".to_owned(), count.to_string()]
}

pub(super) fn of(set: Set) -> Vec<Case> {
    [disks, buffers, full, losses, processors, servers].into_iter().flat_map(|kind| kind(set)).collect()
}

fn case(set: Set, name: &str, label: &'static [CauseKind], host: Option<&'static str>, scene: Scene) -> Case {
    let name = format!("{name}-{}", if set == Set::Fourth { 4 } else { 3 });
    Case { name, set, label, host, ceiling: None, control: None, scene }
}

/// Disks of 4 to 12 MiB/s, at most 1 ms for each request, paths of 150 to 400 Mbit/s and 5 to 80
/// ms.
fn disks(set: Set) -> Vec<Case> {
    use Peer::{Gct, Ours};
    let make = |name: &str, peer, way: Option<Way>, reads: bool| {
        let mut draw = Draw::of(set, name);
        let way = way.unwrap_or_else(|| draw.way());
        let path = draw.path((5, 80), (150, 400), (0.7, 1.5));
        let (rate, latency) = (draw.whole(4, 12), draw.pick(["0ms", "0.5ms", "1ms"]));
        let ceiling = (rate * MIB) as f64;
        let size = lasts(LONG, ceiling);
        let (what, label, host): (_, &[_], _) = if reads {
            ("read", &[CauseKind::SourceDisk], ends(way).0)
        } else {
            ("write", &[CauseKind::DestinationDisk], ends(way).1)
        };
        let disk = format!("disk = {{ {what} = '{rate} MiB/s', latency = '{latency}' }}");
        let scene = at(Scene::new(way, peer, path.text(), size), host, disk);
        Case { ceiling: Some(ceiling), ..case(set, name, label, Some(host), scene) }
    };
    vec![
        make("source-disk-a", Ours, None, true),
        make("source-disk-b", Ours, None, true),
        make("source-disk-gct", Gct, None, true),
        make("source-disk-third-party", Ours, Some(Way::Third), true),
        make("destination-disk-a", Ours, None, false),
        make("destination-disk-b", Ours, None, false),
        make("destination-disk-gct", Gct, None, false),
        make("destination-disk-third-party", Ours, Some(Way::Third), false),
    ]
}

/// Third values of `tcp_rmem` and `tcp_wmem` of 10 to 50 % of the bandwidth-delay product, shared
/// by one to four streams, and sizes set by hand of 5 to 25 %; 150 to 400 Mbit/s, 20 to 120 ms.
fn buffers(set: Set) -> Vec<Case> {
    use CauseKind::{KernelCeiling, ReceiverWindow, SenderBuffer};
    use Peer::{Gct, Ours, Vsftpd};
    let kernel = |name: &str, peer, way: Option<Way>, sends: bool| {
        let mut draw = Draw::of(set, name);
        let way = way.unwrap_or_else(|| draw.way());
        let path = draw.path((20, 120), (150, 400), (0.7, 1.5));
        let count = draw.whole(1, 4);
        let most = (path.product() * draw.between(0.1, 0.5) / count as f64 / 1024.0).round().max(64.0);
        // About half of a buffer is data.
        let rate = most * 1024.0 * count as f64 / path.round_trip;
        let (what, host) = if sends { ("wmem", ends(way).0) } else { ("rmem", ends(way).1) };
        let line = format!("kernel = {{ tcp_{what} = ['4 KiB', '32 KiB', '{most} KiB'] }}");
        let scene = Scene::new(way, peer, path.text(), lasts(LONG, 0.6 * rate)).arguments(&streams(count));
        Case { ceiling: Some(rate), ..case(set, name, &[KernelCeiling], Some(host), at(scene, host, line)) }
    };
    let by_hand = |name: &str, peer, way: Option<Way>, label: &'static [CauseKind], host| {
        let mut draw = Draw::of(set, name);
        let way = way.unwrap_or_else(|| draw.way());
        let path = draw.path((20, 120), (150, 400), (0.7, 1.5));
        let count = if peer == Vsftpd { 1 } else { draw.whole(1, 4) };
        let size = (path.product() * draw.between(0.05, 0.25) / count as f64 / 1024.0).round().max(32.0);
        // The kernel doubles the requested size; about half of that is data.
        let rate = 2.0 * size * 1024.0 * count as f64 / path.round_trip;
        let scene = Scene::new(way, peer, path.text(), lasts(LONG, 0.6 * rate))
            .arguments(&streams(count))
            .arguments(&["--tcp-buffer".to_owned(), format!("{size}K")]);
        Case { ceiling: Some(rate), ..case(set, name, label, host, scene) }
    };
    let both = &[SenderBuffer, ReceiverWindow];
    vec![
        kernel("receive-ceiling", Ours, None, false),
        kernel("receive-ceiling-gct", Gct, None, false),
        kernel("receive-ceiling-third-party", Ours, Some(Way::Third), false),
        kernel("send-ceiling", Ours, None, true),
        kernel("send-ceiling-gct", Gct, None, true),
        by_hand("buffer", Ours, None, both, None),
        by_hand("buffer-gct", Gct, None, both, None),
        by_hand("send-buffer-vsftpd", Vsftpd, Some(Way::Put), &[SenderBuffer], Some("left")),
        by_hand("receive-buffer-vsftpd", Vsftpd, Some(Way::Get), &[ReceiverWindow], Some("left")),
    ]
}

/// 30 to 150 Mbit/s, 5 to 80 ms, one to four streams; a queue of 4 to 15 bandwidth-delay products;
/// five to twelve streams on 100 to 300 Mbit/s and 4 to 20 ms; 40 to 96 on 8 to 25 Mbit/s; one
/// direction five to ten times slower.
fn full(set: Set) -> Vec<Case> {
    use CauseKind::{AsymmetricPath, PathCapacity, TooManyStreams};
    use Peer::{Gct, Ours};
    let make = |name: &str, peer, way: Option<Way>, path: [(u64, u64); 2], queue, count: (u64, u64)| {
        let mut draw = Draw::of(set, name);
        let way = way.unwrap_or_else(|| draw.way());
        let path = draw.path(path[0], path[1], queue);
        let count = draw.whole(count.0, count.1);
        let label: &[_] = if count >= 40 { &[TooManyStreams] } else { &[PathCapacity] };
        let scene = Scene::new(way, peer, path.text(), lasts(LONG, path.rate)).arguments(&streams(count));
        Case { ceiling: Some(path.rate), ..case(set, name, label, None, scene) }
    };
    let usual = [(5, 80), (30, 150)];
    let own = (0.7, 1.5);
    let asymmetric = || {
        let mut draw = Draw::of(set, "asymmetric");
        let (way, ms, slow) = (draw.way(), draw.whole(10, 50), draw.whole(10, 40));
        let fast = slow * draw.whole(5, 10);
        let one = |rate: u64| format!("{{ rate = '{rate}Mbit/s', queue = {} }}", (rate * ms / 12).max(40));
        let (forward, backward) = if way == Way::Put { (slow, fast) } else { (fast, slow) };
        let ways =
            format!("{{ round_trip = '{ms}ms', forward = {}, backward = {} }}", one(forward), one(backward));
        let rate = slow as f64 * 1e6 / 8.0;
        let scene = Scene::new(way, Ours, ("", ""), lasts(LONG, rate)).ways(ways);
        let scene = scene.arguments(&["--baseline", "path"]);
        Case { ceiling: Some(rate), ..case(set, "asymmetric", &[AsymmetricPath], None, scene) }
    };
    vec![
        make("capacity", Ours, None, usual, own, (1, 4)),
        make("capacity-gct", Gct, None, usual, own, (1, 4)),
        make("capacity-third-party", Ours, Some(Way::Third), usual, own, (1, 4)),
        make("bufferbloat", Ours, None, [(10, 50), (20, 60)], (4.0, 15.0), (1, 4)),
        make("capacity-more-streams", Ours, None, [(4, 20), (100, 300)], own, (5, 12)),
        make("too-many-streams", Ours, None, [(20, 50), (8, 25)], own, (40, 96)),
        asymmetric(),
    ]
}

/// 0.05 to 0.5 % at random on 20 to 100 ms, one to four streams that together reach at most 40 % of
/// the path; five to ten other flows on 50 to 150 Mbit/s with a queue of 8 to 20 ms; a single flow
/// (Reno) on a queue of 8 to 20 packets.
fn losses(set: Set) -> Vec<Case> {
    use CauseKind::{CongestionLoss, NonCongestiveLoss};
    use Peer::{Gct, Ours};
    let random = |name: &str, peer| {
        let mut draw = Draw::of(set, name);
        let (way, count) = (draw.way(), draw.whole(1, 4));
        loop {
            let loss = draw.between(0.0005, 0.005);
            let mut path = draw.path((20, 100), (100, 400), (0.9, 1.5));
            let rate = count as f64 * cubic(path.round_trip, loss);
            if rate > 0.4 * path.rate {
                continue;
            }
            path.more = format!(", loss = '{:.3}%'", loss * 100.0);
            let scene = Scene::new(way, peer, path.text(), lasts(LONG, rate)).arguments(&streams(count));
            break Case { ceiling: Some(rate), ..case(set, name, &[NonCongestiveLoss], None, scene) };
        }
    };
    let crossed = |name: &str, peer| {
        let mut draw = Draw::of(set, name);
        let (way, count, flows) = (draw.way(), draw.whole(1, 3), draw.whole(5, 10));
        let mut path = draw.path((20, 80), (50, 150), (1.0, 1.0));
        path.queue = (path.rate * draw.between(0.008, 0.02) / 1500.0).round() as u64;
        let (from, to) = ends(way);
        let visitors =
            format!("[[traffic]]\nname = 'visitors'\nfrom = '{from}'\nto = '{to}'\nflows = {flows}\n");
        let rate = path.rate * count as f64 / (count + flows) as f64;
        let scene = Scene::new(way, peer, path.text(), lasts(LONG, rate));
        let scene = scene.arguments(&streams(count)).more(visitors);
        Case { ceiling: Some(rate), ..case(set, name, &[CongestionLoss], None, scene) }
    };
    let shallow = || {
        let mut draw = Draw::of(set, "shallow-queue");
        let way = draw.way();
        let mut path = draw.path((40, 100), (50, 120), (1.0, 1.0));
        path.queue = draw.whole(8, 20);
        let scene = Scene::new(way, Ours, path.text(), lasts(LONG, 0.7 * path.rate)).arguments(&streams(1));
        let scene = at(scene, ends(way).0, "kernel = { congestion = 'reno' }");
        Case { ceiling: Some(path.rate), ..case(set, "shallow-queue", &[CongestionLoss], None, scene) }
    };
    vec![
        random("loss-a", Ours),
        random("loss-b", Ours),
        random("loss-gct", Gct),
        crossed("cross-traffic", Ours),
        crossed("cross-traffic-gct", Gct),
        shallow(),
    ]
}

/// Mean rate of CUBIC at this loss (RFC 9438, section 5, and the Reno-friendly region if that is
/// faster).
fn cubic(round_trip: f64, loss: f64) -> f64 {
    let window = 1.054 * (round_trip / loss).powf(0.75);
    window.max((1.5 / loss).sqrt()) * PAYLOAD / round_trip
}

const BUSY: &[&str] = &["taskset", "-c", "0"];
const ELSEWHERE: &[&str] = &["taskset", "-c", "1"];

/// Two to four busy loops; ciphers without AES instructions at one end; checksums of files of 1 to
/// 2 GiB; full speed over a wire of 1500 to 9000 bytes; 300 to 1200 filter rules for each packet of
/// 576 to 1500 bytes.
fn processors(set: Set) -> Vec<Case> {
    use CauseKind::{CpuChecksum, CpuCompeting, CpuCopy, CpuEncryption, CpuInterrupt};
    let wide = |draw: &mut Draw| (format!("{}ms", draw.whole(1, 6)), WIDE);
    // The hosts share this machine's two processors: each end has its own.
    let pin = |scene: Scene, host: &str| match host {
        "left" => scene.client(BUSY).server(ELSEWHERE),
        _ => scene.client(ELSEWHERE).server(BUSY),
    };
    let crowded = |name: &str, way| {
        let mut draw = Draw::of(set, name);
        let (path, loops) = (wide(&mut draw), draw.whole(2, 4));
        let host = if way == Way::Get { "right" } else { "left" };
        // Over the emulator, whose priority is higher, the other end would wait for its processor
        // as well.
        let wire = Wire { mtu: 1500, offload: true, filters: None };
        let scene = Scene::new(way, Peer::Ours, path, Data::Zeros(draw.whole(8, 12) << 30)).wire(wire);
        let alone = pin(scene, host);
        let spin = |n: u64| {
            format!(
                "[[servers]]\nname = 'spin{n}'\nhost = '{host}'\n\
                 run = ['taskset', '-c', '0', 'sh', '-c', 'while :; do :; done']\n"
            )
        };
        let scene = alone.clone().more((0..loops).map(spin).collect());
        Case { control: Some(alone), ..case(set, name, &[CpuCompeting], Some(host), scene) }
    };
    let encrypted = |name: &str, host: &'static str| {
        let mut draw = Draw::of(set, name);
        let (way, path) = (draw.way(), wide(&mut draw));
        let alone = Scene::new(way, Peer::Ours, path, Data::Zeros(draw.whole(768, 1536) * MIB));
        let alone = alone.arguments(&["--tls", "--accept-new", "-p", "1"]);
        let slow = "environment = { OPENSSL_ia32cap = '~0x200000200000000' }";
        Case {
            control: Some(alone.clone()),
            ..case(set, name, &[CpuEncryption], Some(host), at(alone, host, slow))
        }
    };
    let summed = |name: &str, way| {
        let mut draw = Draw::of(set, name);
        let (path, size) = (wide(&mut draw), Data::File(draw.whole(1024, 2048) * MIB));
        let sum = draw.pick(["sha512", "sha256", "sha1", "md5"]);
        let scene = Scene::new(way, Peer::Ours, path, size);
        Case {
            control: Some(scene.clone().arguments(&["--checksum", "none"])),
            ..case(set, name, &[CpuChecksum], None, scene.arguments(&["--checksum", sum]))
        }
    };
    // The sender does most of the work: it copies, and passes the packets on to the receiver.
    let copied = |name: &str, way| {
        let mut draw = Draw::of(set, name);
        let wire = Wire { mtu: draw.whole(1500, 9000), offload: true, filters: None };
        let host = ends(way).0;
        let size = Data::Zeros(draw.whole(24, 48) << 30);
        let scene = pin(Scene::new(way, Peer::Ours, ("1ms", WIDE), size).wire(wire), host);
        case(set, name, &[CpuCopy], Some(host), scene.arguments(&streams(1)))
    };
    let interrupted = |name: &str, way| {
        let mut draw = Draw::of(set, name);
        let (mtu, rules) = (draw.whole(576, 1500), draw.whole(300, 1200));
        // Microseconds for each packet, as measured.
        let rate = (mtu - 52) as f64 / (0.55 + 0.0056 * rules as f64) * 1e6;
        let size = Data::Zeros(((LONG * rate) as u64).next_multiple_of(MIB));
        let scene = |filters| {
            let wire = Wire { mtu, offload: false, filters };
            let scene = Scene::new(way, Peer::Ours, ("1ms", WIDE), size).wire(wire);
            scene.client(ELSEWHERE).server(ELSEWHERE).arguments(&streams(1))
        };
        Case {
            control: Some(scene(Some(0))),
            ..case(set, name, &[CpuInterrupt], Some(ends(way).1), scene(Some(rules)))
        }
    };
    vec![
        crowded("busy-core-put", Way::Put),
        crowded("busy-core-get", Way::Get),
        encrypted("encryption-client", "left"),
        encrypted("encryption-server", "right"),
        summed("checksum-put", Way::Put),
        summed("checksum-get", Way::Get),
        copied("copy-put", Way::Put),
        copied("copy-get", Way::Get),
        interrupted("interrupt-put", Way::Put),
        interrupted("interrupt-get", Way::Get),
    ]
}

/// Files of 5 to 50 KiB one by one over 30 to 120 ms; vsftpd's limit of 1.5 to 6 MB/s on 200 to 400
/// Mbit/s; GCT's server stopped for 0.4 to 1.2 s after each 20 to 50 ms of running.
fn servers(set: Set) -> Vec<Case> {
    use CauseKind::{PeerServer, SmallFiles};
    use Peer::{Gct, Ours, Vsftpd};
    let small = |name: &str, peer| {
        let mut draw = Draw::of(set, name);
        let (way, path) = (draw.way(), draw.path((30, 120), (80, 250), (0.7, 1.5)));
        let count = (LONG / 3.0 / path.round_trip).round() as u32;
        let files = Data::Files(count, draw.whole(5, 50) * 1024);
        let scene = Scene::new(way, peer, path.text(), files);
        case(set, name, &[SmallFiles], None, scene.arguments(&["-r", "--files", "1", "--pipeline", "1"]))
    };
    let limited = |name: &str, way| {
        let mut draw = Draw::of(set, name);
        let (path, most) = (draw.path((5, 60), (200, 400), (0.7, 1.5)), draw.whole(1_500_000, 6_000_000));
        let scene = Scene::new(way, Vsftpd, path.text(), lasts(LONG, most as f64)).limit(most);
        Case { ceiling: Some(most as f64), ..case(set, name, &[PeerServer], Some("right"), scene) }
    };
    let napping = || {
        let mut draw = Draw::of(set, "napping-server");
        let path = draw.path((5, 60), (200, 400), (0.7, 1.5));
        let (rests, runs) = (draw.between(0.4, 1.2), draw.between(0.02, 0.05));
        let naps = format!(
            "[[servers]]\nname = 'naps'\nhost = 'right'\nrun = \"while :; do pkill -STOP globus-gridftp; sleep {rests:.2}; \
             pkill -CONT globus-gridftp; sleep {runs:.3}; done\"\n"
        );
        let scene = Scene::new(Way::Get, Gct, path.text(), Data::File(50 * MIB)).more(naps);
        case(set, "napping-server", &[PeerServer], Some("right"), scene)
    };
    vec![
        small("small-files", Ours),
        small("small-files-gct", Gct),
        limited("limited-server-get", Way::Get),
        limited("limited-server-put", Way::Put),
        napping(),
    ]
}
