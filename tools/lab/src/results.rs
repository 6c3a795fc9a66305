//! The result of a run: a summary, and time series.
//!
//! [`RunResult::write`] stores both in a directory: `result.json` without the series, and
//! `series.json` with them. Times are in seconds since time zero (when all servers were ready),
//! rates are in bits per second, and counters start at time zero too.

use crate::scenario::{Disk, Kernel};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io, path::Path};

/// Version of the JSON format. It increases when a field changes its meaning or is removed; new
/// fields do not change it.
pub const SCHEMA: u32 = 1;

/// The result of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// The value of [`SCHEMA`] when the result was written.
    pub schema: u32,
    /// The scenario's title.
    pub scenario: String,
    /// Unique name of the lab.
    pub lab: String,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Values of the scenario's variables.
    pub variables: BTreeMap<String, String>,
    /// Time zero, in seconds since 1970.
    pub started: f64,
    /// From time zero to the end of the last command, in seconds.
    pub seconds: f64,
    /// The machine on which the lab ran.
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
    /// Every TCP connection that was recorded, with its final state, in the order of appearance.
    pub connections: Vec<ConnectionResult>,
    /// Reasons to doubt the result: packets that the emulator delivered late, a busy machine,
    /// connections that were not recorded.
    pub warnings: Vec<String>,
    /// The time series.
    #[serde(default, skip_serializing_if = "Series::is_empty")]
    pub series: Series,
}

/// The machine on which a lab ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// Number of CPUs that the process may use.
    pub cpus: u32,
    /// Share of the time of all CPUs, 0 to 1, that was used by programs of normal priority.
    /// Programs of a lower priority (`nice`) are not included, as they do not compete with the
    /// others.
    pub busy: f64,
    /// Load average over one minute, at the end of the run.
    #[serde(default)]
    pub load: f64,
    /// `net.core.rmem_max`: the maximum to which programs may set their receive buffers. It is a
    /// setting of the machine, for all hosts.
    #[serde(default)]
    pub rmem_max: u64,
    /// `net.core.wmem_max`: the same for send buffers.
    #[serde(default)]
    pub wmem_max: u64,
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostResult {
    pub name: String,
    /// IP addresses.
    pub addresses: Vec<String>,
    /// Kernel settings as applied.
    pub kernel: Kernel,
    /// How the congestion control was set: `"sysctl"`, or `"route"` if this machine does not permit
    /// namespaces to set it.
    pub congestion_by: String,
    /// The disk, if it has limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskResult>,
}

/// The activity of a limited disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskResult {
    /// The limits of the scenario.
    pub limit: Disk,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Share of the run for which the disk was busy, 0 to 1.
    pub busy: f64,
}

/// A link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkResult {
    /// The two hosts.
    pub between: [String; 2],
    /// From the first host to the second.
    pub forward: DirectionResult,
    /// From the second host to the first.
    pub backward: DirectionResult,
    /// Whether the emulator ran with real-time priority.
    pub realtime: bool,
    /// CPU time of the emulator's thread, in seconds.
    pub cpu: f64,
    /// Lateness of the deliveries in seconds: median, 99th percentile and maximum.
    pub late: [f64; 3],
}

/// Totals of one direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionResult {
    /// Packets that entered the link. Super-packets count as their segments.
    pub packets_in: u64,
    /// Packets that left the link.
    pub packets_out: u64,
    /// Bytes of the IP packets that left the link.
    pub bytes: u64,
    /// Packets that the queue dropped because it was full or because of its discipline.
    pub dropped: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets that the queue's discipline marked (ECN).
    pub marked: u64,
    /// Packets that arrived after a packet that was sent later.
    pub reordered: u64,
    /// Longest queue, in packets.
    pub queue_max: u64,
    /// Packets that the sending host lost because the emulator did not read them in time; should be
    /// 0.
    pub overrun: u64,
}

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandResult {
    pub name: String,
    /// The host on which it ran.
    pub host: String,
    /// The command line with all variables replaced.
    pub run: Vec<String>,
    /// Whether the run did not wait for the command. Such a command ends with the run, possibly
    /// before it has started.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// Start time in seconds.
    pub start: f64,
    /// Duration in seconds.
    pub seconds: f64,
    /// How it ended.
    pub end: End,
    /// CPU time in user mode in seconds, including child processes.
    pub cpu_user: f64,
    /// CPU time in the kernel in seconds, including child processes.
    pub cpu_system: f64,
    /// The bytes that the scenario says the command transfers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// `bytes` divided by `seconds`, in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goodput: Option<f64>,
    /// Maximum number of established TCP connections (without cross traffic) at its host while it
    /// ran.
    pub streams_max: u32,
    /// The last part of its standard output, of the size that the scenario sets.
    pub stdout: String,
    /// The same of its standard error.
    pub stderr: String,
}

impl CommandResult {
    /// Whether the command was started.
    pub fn ran(&self) -> bool {
        !self.run.is_empty() || self.seconds > 0.0
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It exited with this code.
    Exit(i32),
    /// It was killed by this signal, which the lab did not send.
    Signal(i32),
    /// It took longer than its timeout.
    Timeout,
    /// The lab stopped it: it is a server, a command in the background, or a command with `stop`.
    #[default]
    Stopped,
}

/// The result of cross traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficResult {
    /// The name in the scenario.
    pub name: String,
    /// Bytes received.
    pub bytes: u64,
    /// Mean rate from start to stop in bits per second, including idle periods.
    pub rate: f64,
    /// Number of connections.
    pub flows: u32,
}

/// One TCP connection, as recorded on one of its hosts, with its final state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionResult {
    /// The host on which it was recorded.
    pub host: String,
    /// Local address and port.
    pub local: String,
    /// Remote address and port.
    pub remote: String,
    /// The name of the cross traffic that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<String>,
    /// Times at which it was first and last recorded.
    pub seen: [f64; 2],
    pub congestion: String,
    /// Its final state.
    #[serde(flatten)]
    pub last: TcpSample,
}

/// The kernel's data of a connection (`struct tcp_info`). Units: seconds, bytes, bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpSample {
    /// Smoothed round trip time.
    pub rtt: f64,
    /// Mean deviation of the round trip time.
    pub rtt_var: f64,
    /// Minimum round trip time.
    pub rtt_min: f64,
    /// Congestion window, in segments.
    pub cwnd: u32,
    /// Slow start threshold, in segments.
    pub ssthresh: u32,
    /// Maximum segment size for sending, in bytes.
    pub mss: u32,
    /// Total number of retransmitted segments.
    pub retransmitted: u32,
    /// Segments that are currently considered lost.
    pub lost: u32,
    /// Segments in flight.
    pub unacked: u32,
    /// Bytes sent and acknowledged.
    pub acked: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent, including retransmissions.
    pub sent: u64,
    /// The kernel's latest measurement of the delivery rate.
    pub delivery_rate: f64,
    /// Pacing rate; 0 if the connection is not paced.
    pub pacing_rate: f64,
    /// Time for which it had data to send.
    pub busy: f64,
    /// The part of `busy` in which the receiver's window was the limit.
    pub limited_receiver: f64,
    /// The part of `busy` in which the send buffer was the limit.
    pub limited_sender: f64,
    /// Bytes that the application has written and TCP has not sent yet.
    pub unsent: u64,
    /// The peer's receive window, in bytes.
    pub send_window: u32,
    /// Receive buffer that autotuning aims at, in bytes.
    pub receive_space: u32,
}

/// All time series. The `n`th value of each column belongs to the `n`th time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Times of the samples of `hosts`, `commands` and `machine`.
    pub times: Vec<f64>,
    /// The hosts, in the order of [`RunResult::hosts`].
    pub hosts: Vec<HostSeries>,
    /// CPU use of the commands, then of the servers, in the order of the results.
    pub commands: Vec<CommandSeries>,
    /// Share of the time of all CPUs that was used since the last sample, 0 to 1.
    pub machine_busy: Vec<f64>,
    /// The connections that have a series.
    pub connections: Vec<ConnectionSeries>,
    /// The links, in the order of [`RunResult::links`].
    pub links: Vec<LinkSeries>,
}

/// Time series of a host. Cross traffic is counted separately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSeries {
    pub host: String,
    /// Established connections that are not cross traffic.
    pub streams: Vec<u32>,
    /// Payload rate received by these connections, in bits per second.
    pub received: Vec<f64>,
    /// Payload rate sent by these connections and acknowledged, in bits per second.
    pub acked: Vec<f64>,
    /// Segments that these connections have retransmitted since the start.
    pub retransmitted: Vec<u64>,
    /// Payload rate received by cross traffic, in bits per second.
    pub traffic_received: Vec<f64>,
    /// Rate of reading from the disk in bits per second. Empty if the disk has no limits.
    pub disk_read: Vec<f64>,
    /// Rate of writing to the disk in bits per second.
    pub disk_written: Vec<f64>,
}

/// Time series of a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommandSeries {
    pub name: String,
    /// CPUs in use since the last sample; 1.0 is one full CPU.
    pub cpu: Vec<f64>,
}

/// Time series of a connection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConnectionSeries {
    /// Index in [`RunResult::connections`].
    pub connection: usize,
    /// Times of the samples.
    pub times: Vec<f64>,
    /// The samples.
    pub samples: Vec<TcpSample>,
}

/// Time series of a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkSeries {
    /// From the first host to the second.
    pub forward: DirectionSeries,
    /// From the second host to the first.
    pub backward: DirectionSeries,
}

/// Time series of one direction of a link; each value belongs to the step that ends at its time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionSeries {
    /// Ends of the steps.
    pub times: Vec<f64>,
    /// Rate of IP packets that arrived at the emulator, in bits per second.
    pub offered: Vec<f64>,
    /// Rate of IP packets that were delivered, in bits per second.
    pub rate: Vec<f64>,
    /// Packets waiting at the end of the step.
    pub queue: Vec<u64>,
    /// Longest queue, in packets.
    pub queue_max: Vec<u64>,
    /// Mean time in the queue of the packets that left it, in seconds.
    pub queue_delay: Vec<f64>,
    /// RED's average queue length at the end of the step; for other queues the same as `queue`.
    pub queue_average: Vec<f64>,
    /// Packets that the queue dropped.
    pub dropped: Vec<u64>,
    /// Packets lost at random.
    pub lost: Vec<u64>,
    /// Packets marked.
    pub marked: Vec<u64>,
}

impl Series {
    /// Whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty() && self.connections.is_empty() && self.links.is_empty()
    }
}

impl RunResult {
    /// Returns the command with this name.
    pub fn command(&self, name: &str) -> Option<&CommandResult> {
        self.commands.iter().find(|command| command.name == name)
    }

    /// Writes `result.json` (without series) and `series.json` to a directory, which is created if
    /// it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created, or a file cannot be written.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        let summary = Self { series: Series::default(), ..self.clone() };
        std::fs::write(directory.join("result.json"), serde_json::to_vec_pretty(&summary)?)?;
        std::fs::write(directory.join("series.json"), serde_json::to_vec(&self.series)?)
    }

    /// Reads the files of [`Self::write`]. The series are empty if `series.json` is missing.
    ///
    /// # Errors
    /// `InvalidData` if the JSON is not a result, or has a newer schema.
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
