//! What a run gives: a summary, and what was measured over time.
//!
//! [`RunResult::write`] puts both into a directory: `result.json` without the series, `series.json` with them. Times are
//! in seconds from time zero (when all servers were ready), rates in bits a second, counters from time zero as well.

use crate::scenario::{Disk, Kernel};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::Path};

/// Version of the JSON. It grows when a field changes its meaning or goes; new fields do not change it.
pub const SCHEMA: u32 = 1;

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The scenario's title.
    pub scenario: String,
    /// Unique name of the lab.
    pub lab: String,
    /// Seed that was used.
    pub seed: u64,
    /// Values of the scenario's variables.
    pub variables: BTreeMap<String, String>,
    /// Time zero, in seconds since 1970.
    pub started: f64,
    /// From time zero to the end of the last command, in seconds.
    pub seconds: f64,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The hosts.
    pub hosts: Vec<HostResult>,
    /// The links.
    pub links: Vec<LinkResult>,
    /// The timed commands, in the order of the file.
    pub commands: Vec<CommandResult>,
    /// The servers.
    pub servers: Vec<CommandResult>,
    /// The cross traffic.
    pub traffic: Vec<TrafficResult>,
    /// Every TCP connection that was seen, at its end, in order of appearance.
    pub connections: Vec<ConnectionResult>,
    /// What makes the result doubtful: packets that the emulator delivered late, a busy machine, connections missed.
    pub warnings: Vec<String>,
    /// What was measured over time.
    #[serde(default, skip_serializing_if = "Series::is_empty")]
    pub series: Series,
}

/// The machine that a lab ran on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// CPUs that may be used.
    pub cpus: u32,
    /// Share of all CPUs' time that was used, 0 to 1, by anything but programs of a lower priority than usual (`nice`): they
    /// give way.
    pub busy: f64,
    /// Load average of the last minute, at the end.
    #[serde(default)]
    pub load: f64,
    /// `net.core.rmem_max`: the most that programs may set their receive buffers to. It is the machine's, for all hosts.
    #[serde(default)]
    pub rmem_max: u64,
    /// `net.core.wmem_max`, for send buffers.
    #[serde(default)]
    pub wmem_max: u64,
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostResult {
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Kernel settings as they were applied.
    pub kernel: Kernel,
    /// How the congestion control was set: `"sysctl"`, or `"route"` where this machine does not allow it for namespaces.
    pub congestion_by: String,
    /// Its disk, if limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskResult>,
}

/// What a limited disk did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskResult {
    /// As the scenario states it.
    pub limit: Disk,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Share of the run in which it was busy, 0 to 1.
    pub busy: f64,
}

/// A link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkResult {
    /// Its ends.
    pub between: [String; 2],
    /// First host to second.
    pub forward: DirectionResult,
    /// Second host to first.
    pub backward: DirectionResult,
    /// The emulator ran with real-time priority.
    pub realtime: bool,
    /// CPU time that the emulator took, in seconds.
    pub cpu: f64,
    /// How much later than planned packets were delivered: median, 99 % and most, in seconds.
    pub late: [f64; 3],
}

/// Totals of one direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionResult {
    /// Packets that came in. Super-packets count as their segments.
    pub packets_in: u64,
    /// Packets that went out.
    pub packets_out: u64,
    /// Bytes of IP packets that went out.
    pub bytes: u64,
    /// Packets that did not fit into the queue, or that its discipline dropped.
    pub dropped: u64,
    /// Packets that were lost at random.
    pub lost: u64,
    /// Packets that the queue's discipline marked (ECN).
    pub marked: u64,
    /// Packets that arrived after one that was sent later.
    pub reordered: u64,
    /// Longest queue, in packets.
    pub queue_max: u64,
    /// Packets that the sending host lost since the emulator did not read them in time: should be 0.
    pub overrun: u64,
}

/// What a command did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandResult {
    /// Its name.
    pub name: String,
    /// Its host.
    pub host: String,
    /// What was run, variables filled in.
    pub run: Vec<String>,
    /// Nobody waited for it: it ended with the run, and may have done so before its turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// When it started.
    pub start: f64,
    /// How long it ran, in seconds.
    pub seconds: f64,
    /// How it ended.
    pub end: End,
    /// CPU time in user mode, in seconds, with that of its children.
    pub cpu_user: f64,
    /// CPU time in the kernel, in seconds, with that of its children.
    pub cpu_system: f64,
    /// What it was said to move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// `bytes` over `seconds`, in bits a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    /// Largest number of established TCP connections (cross traffic not counted) at its host while it ran.
    pub streams_max: u32,
    /// Its standard output, cut to what the scenario keeps.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl CommandResult {
    /// Whether it had its turn.
    pub fn ran(&self) -> bool {
        !self.run.is_empty() || self.seconds > 0.0
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With this code.
    Exit(i32),
    /// By this signal, not ours.
    Signal(i32),
    /// It took longer than its timeout.
    Timeout,
    /// By us: a server, or a command in the background or with `stop`.
    #[default]
    Stopped,
}

/// What cross traffic got.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficResult {
    /// Its name.
    pub name: String,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Mean rate from its start to its stop, in bits a second, idle periods included.
    pub rate: f64,
    /// Connections that it made.
    pub flows: u32,
}

/// One TCP connection, as its host saw it, at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionResult {
    /// Its host.
    pub host: String,
    /// Local address and port.
    pub local: String,
    /// Remote address and port.
    pub remote: String,
    /// The cross traffic that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<String>,
    /// When it was first and last seen.
    pub seen: [f64; 2],
    /// Its congestion control.
    pub congestion: String,
    /// Its last state.
    #[serde(flatten)]
    pub last: TcpSample,
}

/// What the kernel says of a connection (`struct tcp_info`). Units: seconds, bytes, bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpSample {
    /// Smoothed round trip time.
    pub rtt: f64,
    /// Its mean deviation.
    pub rtt_var: f64,
    /// Least round trip time.
    pub rtt_min: f64,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Slow start threshold, in segments.
    pub ssthresh: u32,
    /// Largest segment that is sent, in bytes.
    pub mss: u32,
    /// Segments sent again, in total.
    pub retransmitted: u32,
    /// Segments that are thought lost at the moment.
    pub lost: u32,
    /// Segments on their way.
    pub unacked: u32,
    /// Bytes sent and acknowledged.
    pub acked: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent, retransmissions included.
    pub sent: u64,
    /// Rate of delivery, as the kernel measured it last.
    pub delivery_rate: f64,
    /// Rate at which it is paced; 0 if it is not.
    pub pacing_rate: f64,
    /// Time in which it had something to send.
    pub busy: f64,
    /// Of that, time in which the receiver's window limited it.
    pub limited_receiver: f64,
    /// Of that, time in which the send buffer limited it.
    pub limited_sender: f64,
    /// Bytes that the application wrote and TCP has not sent yet.
    pub unsent: u64,
    /// The other end's receive window, in bytes.
    pub send_window: u32,
    /// Receive buffer that autotuning aims at, in bytes.
    pub receive_space: u32,
}

/// All that was measured over time. The `n`th value of each column belongs to the `n`th time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Times of the samples of `hosts`, `commands` and `machine`.
    pub times: Vec<f64>,
    /// The hosts, in the order of [`RunResult::hosts`].
    pub hosts: Vec<HostSeries>,
    /// CPU of the commands, then of the servers, in the order of the results.
    pub commands: Vec<CommandSeries>,
    /// Share of all CPUs' time used since the last sample, 0 to 1.
    pub machine_busy: Vec<f64>,
    /// The connections that have a series.
    pub connections: Vec<ConnectionSeries>,
    /// The links, in the order of [`RunResult::links`].
    pub links: Vec<LinkSeries>,
}

/// A host over time. Cross traffic is counted apart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSeries {
    /// Its name.
    pub host: String,
    /// Established connections that are not cross traffic.
    pub streams: Vec<u32>,
    /// Payload received by them, in bits a second.
    pub received: Vec<f64>,
    /// Payload sent by them and acknowledged, in bits a second.
    pub acked: Vec<f64>,
    /// Segments that they sent again, since the start.
    pub retransmitted: Vec<u64>,
    /// Payload received by cross traffic, in bits a second.
    pub traffic_received: Vec<f64>,
    /// Payload read from the disk, in bits a second. Empty if the disk is not limited.
    pub disk_read: Vec<f64>,
    /// Payload written to the disk, in bits a second.
    pub disk_written: Vec<f64>,
}

/// A command over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandSeries {
    /// Its name.
    pub name: String,
    /// CPUs in use since the last sample: 1.0 is one of them.
    pub cpu: Vec<f64>,
}

/// A connection over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionSeries {
    /// Place in [`RunResult::connections`].
    pub connection: usize,
    /// When.
    pub times: Vec<f64>,
    /// What.
    pub samples: Vec<TcpSample>,
}

/// A link over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkSeries {
    /// First host to second.
    pub forward: DirectionSeries,
    /// Second host to first.
    pub backward: DirectionSeries,
}

/// One direction of a link over time; each value is of the step that ends at its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionSeries {
    /// When.
    pub times: Vec<f64>,
    /// IP packets that arrived at the emulator, in bits a second.
    pub offered: Vec<f64>,
    /// IP packets that were delivered, in bits a second.
    pub rate: Vec<f64>,
    /// Packets waiting at the step's end.
    pub queue: Vec<u64>,
    /// Longest queue, in packets.
    pub queue_max: Vec<u64>,
    /// Mean time in the queue, in seconds, of the packets that left it.
    pub queue_delay: Vec<f64>,
    /// RED's average queue at the step's end; with other queues the same as `queue`.
    pub queue_average: Vec<f64>,
    /// Packets that the queue dropped.
    pub dropped: Vec<u64>,
    /// Packets lost at random.
    pub lost: Vec<u64>,
    /// Packets marked.
    pub marked: Vec<u64>,
}

impl Series {
    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty() && self.connections.is_empty() && self.links.is_empty()
    }
}

impl RunResult {
    /// The command of this name.
    pub fn command(&self, name: &str) -> Option<&CommandResult> {
        self.commands.iter().find(|command| command.name == name)
    }

    /// Writes `result.json` (without series) and `series.json` into a directory, which is made if absent.
    ///
    /// # Errors
    /// The directory cannot be made, or a file cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        let summary = Self { series: Series::default(), ..self.clone() };
        std::fs::write(directory.join("result.json"), serde_json::to_vec_pretty(&summary)?)?;
        std::fs::write(directory.join("series.json"), serde_json::to_vec(&self.series)?)
    }

    /// Reads what [`Self::write`] wrote. The series are empty where `series.json` is missing.
    ///
    /// # Errors
    /// `InvalidData` for JSON that is not a result, or of a newer schema.
    pub fn read(directory: &Path) -> io::Result<Self> {
        let mut result: Self = serde_json::from_slice(&std::fs::read(directory.join("result.json"))?)?;
        if result.schema > SCHEMA {
            let message = format!("schema {} is newer than this program's {SCHEMA}", result.schema);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        match std::fs::read(directory.join("series.json")) {
            Ok(series) => result.series = serde_json::from_slice(&series)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(result)
    }
}
