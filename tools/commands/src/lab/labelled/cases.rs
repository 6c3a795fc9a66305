//! The cases: bottlenecks that the study creates, and the right answer for each.

use ropewalk_profiler::verdict::CauseKind;
use serde::Serialize;

use super::drawn;
use super::scene::{Data, Peer, Scene, WIDE, Way, Wire};

/// The rules were made with the first set, and corrected after the second and the third. The third
/// and the fourth set were drawn at random; the fourth was drawn and run after the last correction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Set {
    First,
    Second,
    Third,
    Fourth,
}

/// A bottleneck that the study creates.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) set: Set,
    /// The right answers, the usual one first. There are several if one setting is the cause under
    /// both names.
    pub(super) label: &'static [CauseKind],
    /// The host that the answer must name, if it is one.
    pub(super) host: Option<&'static str>,
    /// The highest rate that the bottleneck permits, bytes per second, if it can be calculated.
    pub(super) ceiling: Option<f64>,
    /// The same scene without the bottleneck.
    pub(super) control: Option<Scene>,
    pub(super) scene: Scene,
}

/// All cases of all sets.
pub(super) fn all() -> Vec<Case> {
    let drawn = [Set::Third, Set::Fourth].into_iter().flat_map(drawn::of);
    [Set::First, Set::Second].into_iter().flat_map(of).chain(drawn).collect()
}

const MIB: u64 = 1 << 20;

fn of(set: Set) -> Vec<Case> {
    use CauseKind::{
        AsymmetricPath, CongestionLoss, CpuChecksum, CpuCompeting, CpuEncryption, DestinationDisk,
        KernelCeiling, NonCongestiveLoss, PathCapacity, PeerServer, ReceiverWindow, SenderBuffer, SmallFiles,
        SourceDisk, TooManyStreams,
    };
    use Peer::{Gct, Ours, Vsftpd};
    use Way::{Get, Put};

    let second = set == Set::Second;
    let mut cases = Vec::new();
    let mut add = |name: &str, label, host, scene| {
        let name = if second { format!("{name}-2") } else { name.to_owned() };
        cases.push(Case { name, set, label, host, ceiling: None, control: None, scene });
    };
    // A path with a queue of about its bandwidth-delay product.
    let path = |first: (&'static str, &'static str), other: (&'static str, &'static str)| {
        if second { other } else { first }
    };
    let pick = |first: &'static str, other: &'static str| if second { other } else { first };
    let number = |first: u64, other: u64| if second { other } else { first };
    let left = Some("left");
    let right = Some("right");

    // Disks.
    let fast =
        path(("30ms", r#"rate = "500Mbit/s", queue = 1250"#), ("14ms", r#"rate = "300Mbit/s", queue = 400"#));
    let reads = pick(r#"disk = { read = "20 MiB/s" }"#, r#"disk = { read = "9 MiB/s", latency = "1ms" }"#);
    let writes = pick(r#"disk = { write = "20 MiB/s" }"#, r#"disk = { write = "9 MiB/s", latency = "1ms" }"#);
    let size = Data::File(number(240, 110) * MIB);
    let slow = &[SourceDisk];
    add("source-disk-get", slow, right, Scene::new(Get, Ours, fast, size).right(reads));
    add("source-disk-put", slow, left, Scene::new(Put, Ours, fast, size).left(reads));
    add("source-disk-get-gct", slow, right, Scene::new(Get, Gct, fast, size).right(reads));
    add("source-disk-put-gct", slow, left, Scene::new(Put, Gct, fast, size).left(reads));
    let slow = &[DestinationDisk];
    add("destination-disk-get", slow, left, Scene::new(Get, Ours, fast, size).left(writes));
    add("destination-disk-put", slow, right, Scene::new(Put, Ours, fast, size).right(writes));
    add("destination-disk-put-gct", slow, right, Scene::new(Put, Gct, fast, size).right(writes));

    // Buffers.
    let long =
        path(("60ms", r#"rate = "200Mbit/s", queue = 1000"#), ("25ms", r#"rate = "400Mbit/s", queue = 830"#));
    let receive = pick(
        r#"kernel = { tcp_rmem = ["4 KiB", "128 KiB", "256 KiB"] }"#,
        r#"kernel = { tcp_rmem = ["4 KiB", "64 KiB", "512 KiB"] }"#,
    );
    let send = pick(
        r#"kernel = { tcp_wmem = ["4 KiB", "16 KiB", "256 KiB"] }"#,
        r#"kernel = { tcp_wmem = ["4 KiB", "64 KiB", "512 KiB"] }"#,
    );
    let size = Data::File(number(50, 200) * MIB);
    let streams: &[&str] = &["-p", if second { "3" } else { "2" }];
    let limit = &[KernelCeiling];
    let buffers = |way, peer| Scene::new(way, peer, long, size).arguments(streams);
    add("receive-ceiling-get", limit, left, buffers(Get, Ours).left(receive));
    add("receive-ceiling-put-gct", limit, right, buffers(Put, Gct).right(receive));
    add("send-ceiling-put", limit, left, buffers(Put, Ours).left(send));
    add("send-ceiling-get-gct", limit, right, buffers(Get, Gct).right(send));
    let buffer: &[&str] = &["--tcp-buffer", pick("128K", "192K")];
    // The size is set at both ends.
    let set_by_hand = &[SenderBuffer, ReceiverWindow];
    add("buffer-get", set_by_hand, None, buffers(Get, Ours).arguments(buffer));
    add("buffer-put-gct", set_by_hand, None, buffers(Put, Gct).arguments(buffer));
    // vsftpd has no SBUF: only the client's buffer is set.
    let size = Data::File(number(20, 60) * MIB);
    let alone = |way| Scene::new(way, Vsftpd, long, size).arguments(buffer);
    add("send-buffer-put-vsftpd", &[SenderBuffer], left, alone(Put));
    add("receive-buffer-get-vsftpd", &[ReceiverWindow], left, alone(Get));

    // Fully used paths, without any fault.
    let full = &[PathCapacity];
    let narrow =
        path(("40ms", r#"rate = "50Mbit/s", queue = 170"#), ("20ms", r#"rate = "80Mbit/s", queue = 160"#));
    let size = Data::File(number(70, 110) * MIB);
    add("capacity-get", full, None, Scene::new(Get, Ours, narrow, size));
    add("capacity-put-gct", full, None, Scene::new(Put, Gct, narrow, size).arguments(&["-p", "2"]));
    let deep =
        path(("30ms", r#"rate = "50Mbit/s", queue = 2000"#), ("50ms", r#"rate = "30Mbit/s", queue = 1000"#));
    let size = Data::File(number(70, 42) * MIB);
    add("bufferbloat-get", full, None, Scene::new(Get, Ours, deep, size));
    let near =
        path(("10ms", r#"rate = "300Mbit/s", queue = 250"#), ("6ms", r#"rate = "400Mbit/s", queue = 250"#));
    let size = Data::File(number(420, 560) * MIB);
    add("capacity-put-8-streams", full, None, Scene::new(Put, Ours, near, size).arguments(&["-p", "8"]));

    // Losses.
    let dirty = &[NonCongestiveLoss];
    let one = path(
        ("40ms", r#"rate = "200Mbit/s", queue = 700, loss = "0.1%""#),
        ("80ms", r#"rate = "300Mbit/s", queue = 2000, loss = "0.05%""#),
    );
    let size = Data::File(number(40, 30) * MIB);
    let single: &[&str] = &["-p", "1"];
    add("loss-get", dirty, None, Scene::new(Get, Ours, one, size).arguments(single));
    add("loss-get-gct", dirty, None, Scene::new(Get, Gct, one, size).arguments(single));
    let several = path(
        ("30ms", r#"rate = "200Mbit/s", queue = 500, loss = "0.5%""#),
        ("50ms", r#"rate = "100Mbit/s", queue = 420, loss = "0.3%""#),
    );
    let size = Data::File(number(24, 20) * MIB);
    add("loss-put", dirty, None, Scene::new(Put, Ours, several, size).arguments(&["-p", "4"]));
    let others = &[CongestionLoss];
    let shared =
        path(("50ms", r#"rate = "100Mbit/s", queue = 130"#), ("30ms", r#"rate = "60Mbit/s", queue = 60"#));
    let size = Data::File(number(25, 15) * MIB);
    let crowd = number(8, 6);
    let visitors = |from: &str, to: &str| {
        format!("[[traffic]]\nname = 'visitors'\nfrom = '{from}'\nto = '{to}'\nflows = {crowd}\n")
    };
    add(
        "cross-traffic-get",
        others,
        None,
        Scene::new(Get, Ours, shared, size).arguments(&["-p", "2"]).more(visitors("right", "left")),
    );
    add(
        "cross-traffic-put-gct",
        others,
        None,
        Scene::new(Put, Gct, shared, size).arguments(&["-p", "2"]).more(visitors("left", "right")),
    );
    let shallow =
        path(("60ms", r#"rate = "100Mbit/s", queue = 15"#), ("90ms", r#"rate = "60Mbit/s", queue = 12"#));
    let size = Data::File(number(80, 45) * MIB);
    let reno = r#"kernel = { congestion = "reno" }"#;
    add(
        "shallow-queue-get",
        others,
        None,
        Scene::new(Get, Ours, shallow, size).arguments(&["-p", "1"]).right(reno),
    );

    // Processors.
    let wide = path(("2ms", WIDE), ("4ms", WIDE));
    let size = Data::Zeros(number(12, 8) << 30);
    let crowded = &[CpuCompeting];
    // The hosts share this machine. The other end runs on another processor than the busy one,
    // which in turn must not be that of the emulator, whose priority is higher.
    let wire = Wire { mtu: number(1500, 9000), offload: true, filters: None };
    let pinned: &[&str] = &["taskset", "-c", "0"];
    let elsewhere: &[&str] = &["taskset", "-c", "1"];
    let spin = |host: &str| {
        let one = |n: u64| {
            format!(
                "[[servers]]\nname = 'spin{n}'\nhost = '{host}'\n\
                 run = ['taskset', '-c', '0', 'sh', '-c', 'while :; do :; done']\n"
            )
        };
        (0..number(3, 2)).map(one).collect::<String>()
    };
    add(
        "busy-core-put",
        crowded,
        left,
        Scene::new(Put, Ours, wide, size).client(pinned).server(elsewhere).more(spin("left")).wire(wire),
    );
    add(
        "busy-core-get",
        crowded,
        right,
        Scene::new(Get, Ours, wide, size).server(pinned).client(elsewhere).more(spin("right")).wire(wire),
    );
    // Processors without AES instructions.
    let slow_cipher = r#"environment = { OPENSSL_ia32cap = "~0x200000200000000" }"#;
    // One stream: both ends share the processors of this machine.
    let private: &[&str] = &["--tls", "--accept-new", "-p", "1"];
    let size = Data::Zeros(number(1536, 1024) * MIB);
    let encrypted =
        |way| Scene::new(way, Ours, wide, size).arguments(private).left(slow_cipher).right(slow_cipher);
    add("encryption-get", &[CpuEncryption], None, encrypted(Get));
    add("encryption-put", &[CpuEncryption], None, encrypted(Put));
    let size = Data::File(number(2048, 1536) * MIB);
    let sum: &[&str] = &["--checksum", pick("sha512", "md5")];
    add("checksum-get", &[CpuChecksum], None, Scene::new(Get, Ours, wide, size).arguments(sum));

    // Many small files, one after the other.
    let far = path(
        ("100ms", r#"rate = "200Mbit/s", queue = 1700"#),
        ("60ms", r#"rate = "100Mbit/s", queue = 500"#),
    );
    let files = Data::Files(number(60, 120) as u32, number(10, 30) * 1024);
    let one_by_one: &[&str] = &["-r", "--files", "1", "--pipeline", "1"];
    let small = &[SmallFiles];
    add("small-files-get", small, None, Scene::new(Get, Ours, far, files).arguments(one_by_one));
    add("small-files-put-gct", small, None, Scene::new(Put, Gct, far, files).arguments(one_by_one));

    let thin =
        path(("40ms", r#"rate = "10Mbit/s", queue = 30"#), ("30ms", r#"rate = "20Mbit/s", queue = 30"#));
    let size = Data::File(number(12, 24) * MIB);
    let crowd: &[&str] = &["-p", pick("48", "96")];
    add("too-many-streams-get", &[TooManyStreams], None, Scene::new(Get, Ours, thin, size).arguments(crowd));

    // One direction is slower.
    let size = Data::File(number(28, 36) * MIB);
    let slower = Scene::new(if second { Put } else { Get }, Ours, ("", ""), size);
    let ways = pick(
        r#"{ round_trip = "30ms", forward = { rate = "200Mbit/s", queue = 500 }, backward = { rate = "20Mbit/s", queue = 60 } }"#,
        r#"{ round_trip = "20ms", forward = { rate = "25Mbit/s", queue = 60 }, backward = { rate = "150Mbit/s", queue = 250 } }"#,
    );
    add("asymmetric", &[AsymmetricPath], None, slower.ways(ways).arguments(&["--baseline", "path"]));

    // Servers whose own limit is the bottleneck.
    let limited = &[PeerServer];
    let most = number(2_500_000, 6_000_000);
    let size = Data::File(number(28, 64) * MIB);
    let paced = |way| Scene::new(way, Vsftpd, fast, size).limit(most);
    add("limited-server-get-vsftpd", limited, right, paced(Get));
    add("limited-server-put-vsftpd", limited, right, paced(Put));
    // Stopped most of the time, like a host that is suspended or out of memory.
    let size = Data::File(number(60, 60) * MIB);
    let naps = format!(
        "[[servers]]\nname = 'naps'\nhost = 'right'\n\
         run = \"while :; do pkill -STOP globus-gridftp; sleep {}; pkill -CONT globus-gridftp; sleep 0.02; done\"\n",
        pick("0.9", "0.6")
    );
    add("napping-server-get-gct", limited, right, Scene::new(Get, Gct, fast, size).more(naps));
    cases
}
