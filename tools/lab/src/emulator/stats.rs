//! The counters and time series of the emulator. The emulator's thread fills them in; a
//! [`Snapshot`] is a copy of the current state, and a [`Report`] is the state at the end with all
//! kept steps of the time series.

use serde::Serialize;

use super::config::Path;
use super::histogram::Spread;

/// Totals of one direction since the start. Packets are counted as on the wire: a super-packet
/// counts as its segments. Bytes are those of IP packets.
///
/// No packet is lost without being counted: `packets_in` = `packets_out` + `lost` + `dropped_full`
/// + `dropped_red` + `dropped_codel` + `waiting` + `travelling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    pub packets_in: u64,
    pub bytes_in: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    /// Dropped by random loss.
    pub lost: u64,
    /// Dropped because the queue was at its limit.
    pub dropped_full: u64,
    /// Dropped early by RED.
    pub dropped_red: u64,
    /// Dropped by CoDel.
    pub dropped_codel: u64,
    /// Marked "congestion experienced"; these packets are delivered.
    pub marked: u64,
    /// Delivered after a packet that was sent later (RFC 4737 section 3).
    pub reordered: u64,
    /// Current number of packets in the queue; `waiting_max` is the maximum.
    pub waiting: u64,
    pub waiting_max: u64,
    /// Packets on the link or in the delay line.
    pub travelling: u64,
    /// Data that is not an IP packet, or whose headers contradict each other; not part of
    /// `packets_in`.
    pub malformed: u64,
    /// Delivered packets that the kernel of the far host did not accept.
    pub refused: u64,
    /// Packets that the sending host's kernel dropped because the emulator did not read them in
    /// time.
    pub overrun: u64,
}

impl Counters {
    /// All packets dropped by the queue.
    pub fn dropped(&self) -> u64 {
        self.dropped_full + self.dropped_red + self.dropped_codel
    }
}

/// One step of the time series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// End of the step: seconds since the start.
    pub at: f64,
    /// Length of the step in seconds. Steps are longer if the machine is late.
    pub step: f64,
    pub forward: Step,
    pub backward: Step,
}

/// The activity of one direction during a step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Step {
    /// Bits per second of IP packets that arrived at the emulator.
    pub offered: f64,
    /// Bits per second of IP packets that were delivered.
    pub rate: f64,
    /// Packets delivered.
    pub packets: u64,
    /// Packets waiting at the end of the step; `queue_max` is the maximum during the step.
    pub queue: u64,
    pub queue_max: u64,
    /// Mean waiting time in seconds of the packets that left the queue, 0 if none left;
    /// `queue_delay_max` is the maximum.
    pub queue_delay: f64,
    pub queue_delay_max: f64,
    /// RED's average queue length at the end of the step; for other queues the same as `queue`.
    pub queue_average: f64,
    /// Packets dropped by random loss.
    pub lost: u64,
    /// Packets dropped by the queue.
    pub dropped: u64,
    pub marked: u64,
}

/// How precisely the emulator kept its deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Timing {
    /// Whether the thread has real-time priority.
    pub realtime: bool,
    /// CPU seconds that the emulator's thread took.
    pub cpu: f64,
    pub wakeups: u64,
    /// System calls that read and wrote packets (a super-packet counts once).
    pub reads: u64,
    pub writes: u64,
    /// Seconds from the planned to the actual time of delivery, for each packet.
    pub lateness: Spread,
}

/// The state of the emulator at one time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// Seconds since the start.
    pub at: f64,
    /// The current path.
    pub path: Path,
    pub forward: Counters,
    pub backward: Counters,
    pub timing: Timing,
    /// Number of steps in the time series so far.
    pub samples: usize,
    /// Scheduled changes that failed (for example because the kernel rejected an MTU).
    pub problems: Vec<String>,
}

/// All results, available after the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub end: Snapshot,
    pub series: Vec<Sample>,
}
