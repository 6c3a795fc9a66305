//! What the emulator counts.

use serde::Serialize;

use super::config::Path;
use super::histogram::Spread;

/// Totals of one direction since the start. Packets are what the wire would carry: super-packets count as their
/// segments, and bytes are those of IP packets.
///
/// Nothing is lost uncounted: `packets_in` = `packets_out` + `lost` + `dropped_full` + `dropped_red` +
/// `dropped_codel` + `waiting` + `travelling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    pub packets_in: u64,
    pub bytes_in: u64,
    pub packets_out: u64,
    pub bytes_out: u64,
    /// Taken by random loss.
    pub lost: u64,
    /// Dropped as the queue was at its limit.
    pub dropped_full: u64,
    /// Dropped early by RED.
    pub dropped_red: u64,
    /// Dropped by CoDel.
    pub dropped_codel: u64,
    /// Given the ECN mark "congestion experienced" (these go on).
    pub marked: u64,
    /// Delivered after a packet that was sent later (RFC 4737 section 3).
    pub reordered: u64,
    /// Packets in the queue now, and at most.
    pub waiting: u64,
    pub waiting_max: u64,
    /// Packets on the link or on their way to the far host.
    pub travelling: u64,
    /// Packets that are no IP packets, or whose headers contradict themselves; never counted as in.
    pub malformed: u64,
    /// Delivered packets that the far host's kernel refused to take.
    pub refused: u64,
    /// Packets that the sending host's kernel dropped because the emulator did not read them in time.
    pub overrun: u64,
}

impl Counters {
    /// Packets dropped by the queue, whichever way.
    pub fn dropped(&self) -> u64 {
        self.dropped_full + self.dropped_red + self.dropped_codel
    }
}

/// One step of the time series.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// End of the step: seconds since the start.
    pub at: f64,
    /// Length of the step in seconds. Steps grow when the machine is late.
    pub step: f64,
    pub forward: Step,
    pub backward: Step,
}

/// What one direction did during a step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Step {
    /// Bits a second of IP packets that arrived at the emulator.
    pub offered: f64,
    /// Bits a second of IP packets that were delivered.
    pub rate: f64,
    /// Packets delivered.
    pub packets: u64,
    /// Packets waiting at the step's end, and at most.
    pub queue: u64,
    pub queue_max: u64,
    /// Seconds that the packets which left the queue had waited: mean and most. 0 where none left.
    pub queue_delay: f64,
    pub queue_delay_max: f64,
    /// RED's average queue at the step's end; with other queues the same as `queue`.
    pub queue_average: f64,
    /// Packets taken by random loss.
    pub lost: u64,
    /// Packets dropped by the queue.
    pub dropped: u64,
    pub marked: u64,
}

/// How well the emulator kept to its times.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Timing {
    /// Real-time priority was granted.
    pub realtime: bool,
    /// CPU seconds that the emulator's thread took.
    pub cpu: f64,
    pub wakeups: u64,
    /// System calls that brought and took packets (super-packets count once).
    pub reads: u64,
    pub writes: u64,
    /// Seconds from the planned moment of delivery to the real one, for each packet.
    pub lateness: Spread,
}

/// The state at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snapshot {
    /// Seconds since the start.
    pub at: f64,
    /// The path as it is now.
    pub path: Path,
    pub forward: Counters,
    pub backward: Counters,
    pub timing: Timing,
    /// Steps of the time series so far.
    pub samples: usize,
    /// Scheduled changes that failed (an MTU that the kernel refuses, say).
    pub problems: Vec<String>,
}

/// Everything, after the end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub end: Snapshot,
    pub series: Vec<Sample>,
}
