//! The description of a path: the part of a scenario file that the emulator understands. It
//! consists of plain values with serde; `read` parses the short forms, and `check` checks the
//! bounds. Types and functions of the emulator expect a checked path.

mod check;
mod read;

use std::fmt;
use std::time::Duration;

pub(super) use check::check_mtu;
use read::RawPath;
use serde::{Deserialize, Serialize};

use super::units::{self, Rate};

/// A bidirectional path between two hosts. *Forward* is from the left host to the right one.
///
/// In TOML `both` describes both directions at once, and `round_trip` sets each one-way delay to
/// half of its value:
///
/// ```toml
/// mtu = 1500
/// round_trip = "100ms"
/// both = { rate = "100Mbit/s", queue = 50 }
/// backward = { rate = "10Mbit/s" }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RawPath")]
pub struct Path {
    /// Largest IP packet in bytes, in both directions.
    pub mtu: u32,
    pub forward: Direction,
    pub backward: Direction,
}

impl Default for Path {
    fn default() -> Self {
        Self { mtu: 1500, forward: Direction::default(), backward: Direction::default() }
    }
}

/// One direction of a path. A packet passes, in this order: random loss, the queue, the link at its
/// rate, the delay.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Direction {
    /// Rate of the link in bits per second.
    pub rate: Rate,
    /// One-way propagation delay; serialisation and queueing come on top of it.
    #[serde(with = "units::duration")]
    pub delay: Duration,
    /// The delay varies within `delay` ± `jitter`, slowly enough that packets keep their order.
    #[serde(with = "units::duration")]
    pub jitter: Duration,
    /// Random reordering of packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Reorder>,
    /// Random loss, before the queue.
    pub loss: Loss,
    /// The queue before the link. The packet that the link is sending does not count as waiting.
    pub queue: Queue,
    /// Bytes that each packet takes on the link in addition to the IP packet (Ethernet: 38 with
    /// preamble and inter-frame gap).
    pub overhead: u32,
}

/// Each packet is delayed with `probability` by a further `by`, so that packets sent during that
/// time overtake it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    #[serde(with = "units::probability")]
    pub probability: f64,
    #[serde(with = "units::duration")]
    pub by: Duration,
}

/// Random loss. In TOML `loss = "0.1%"` means independent loss. Bursts are written as `loss = {
/// model = "bursts", average = "0.1%", length = 5 }` or with the four parameters of the
/// Gilbert-Elliott model.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(tag = "model", rename_all = "kebab-case")]
pub enum Loss {
    #[default]
    None,
    /// Each packet is lost with probability `p`, independently of others.
    Bernoulli { p: f64 },
    /// A model with two states (Gilbert 1960, Elliott 1963). Before each packet the state changes
    /// with probability `enter` (from good to bad) or `leave` (from bad to good); then the packet
    /// is lost with probability `good` or `bad`, depending on the state.
    GilbertElliott { enter: f64, leave: f64, good: f64, bad: f64 },
}

impl Loss {
    /// Returns the simple Gilbert model that loses the share `average` of all packets, in bursts of
    /// `length` packets on average.
    pub fn bursts(average: f64, length: f64) -> Self {
        if average <= 0.0 {
            return Self::None;
        }
        let leave = 1.0 / length.max(1.0);
        let enter = if average < 1.0 { (leave * average / (1.0 - average)).min(1.0) } else { 1.0 };
        Self::GilbertElliott { enter, leave, good: 0.0, bad: 1.0 }
    }

    /// The share of packets lost in the long run.
    pub fn average(&self) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Bernoulli { p } => p,
            Self::GilbertElliott { enter, leave, good, bad } => {
                let bad_share = if enter + leave > 0.0 { enter / (enter + leave) } else { 0.0 };
                bad_share * bad + (1.0 - bad_share) * good
            }
        }
    }
}

/// The queue before the link. In TOML a plain number is the limit in packets of a drop-tail queue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Queue {
    /// A packet that arrives when `packets` packets are waiting is dropped.
    DropTail {
        packets: u32,
    },
    Red(Red),
    Codel(Codel),
}

impl Default for Queue {
    fn default() -> Self {
        Self::DropTail { packets: 1000 }
    }
}

/// Random Early Detection (Floyd and Jacobson 1993).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Red {
    /// Average queue length in packets below which no packet is dropped.
    pub min: f64,
    /// Average queue length in packets at which the drop probability reaches `max_p`.
    pub max: f64,
    #[serde(with = "units::probability", default = "tenth")]
    pub max_p: f64,
    /// Weight of the newest queue length in the average.
    #[serde(default = "weight")]
    pub weight: f64,
    /// If true, the drop probability rises from `max_p` to 1 between `max` and twice `max`;
    /// otherwise all packets are dropped above `max`.
    #[serde(default = "yes")]
    pub gentle: bool,
    /// Space drops as ns-2 does with its `wait_`: at least 1/p packets apart, 1.5/p on average.
    /// Otherwise drops are 1 to 1/p packets apart, as in the paper.
    #[serde(default)]
    pub wait: bool,
    /// Mark ECN-capable packets instead of dropping them while the average is below `max` (RFC 3168
    /// section 7).
    #[serde(default)]
    pub ecn: bool,
    /// Hard limit of the queue in packets.
    pub limit: u32,
}

/// Controlled Delay (RFC 8289).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Codel {
    /// The standing queueing delay that is acceptable.
    #[serde(with = "units::duration")]
    pub target: Duration,
    /// How long the delay must stay above `target` before packets are dropped; about the longest
    /// usual round trip time.
    #[serde(with = "units::duration")]
    pub interval: Duration,
    /// Hard limit of the queue in packets.
    pub limit: u32,
    /// Mark ECN-capable packets instead of dropping them.
    pub ecn: bool,
}

impl Default for Codel {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            limit: 1000,
            ecn: false,
        }
    }
}

fn tenth() -> f64 {
    0.1
}
fn weight() -> f64 {
    0.002
}
fn yes() -> bool {
    true
}

/// An invalid value, with the field that has it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: expected {expected}, found {found}")]
pub struct ConfigError {
    /// The field, such as `forward.queue.min`.
    pub field: String,
    pub expected: String,
    pub found: String,
}

pub(super) fn wrong(field: &str, expected: impl fmt::Display, found: impl fmt::Display) -> ConfigError {
    ConfigError { field: field.to_owned(), expected: expected.to_string(), found: found.to_string() }
}

impl ConfigError {
    /// Prefixes the field of the error with the name of the structure that contains it.
    pub fn within(mut self, part: &str) -> Self {
        self.field = format!("{part}.{}", self.field);
        self
    }
}
