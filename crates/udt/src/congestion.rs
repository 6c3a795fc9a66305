//! Congestion control: how fast packets are sent, and how many at a time.
//!
//! A connection reports events to its controller and asks it for two limits. A controller has no
//! clock: each event has its time.

mod bbr;
mod daimd;

pub use bbr::Bbr;
pub use daimd::Daimd;

use crate::{Micros, Parameters, Rates};

/// A policy for one connection.
pub trait Controller: Send {
    /// The name in statistics.
    fn name(&self) -> &'static str;
    /// The peer has acknowledged packets.
    fn on_ack(&mut self, ack: &AckEvent);
    /// The peer has reported losses.
    fn on_loss(&mut self, loss: &LossEvent);
    /// An answer of the peer is overdue. `highest` is the last packet that was sent.
    fn on_timeout(&mut self, highest: u64);
    /// The most packets in flight.
    fn window(&self) -> f64;
    /// The time between two packets in microseconds.
    fn interval(&self) -> f64;
}

/// A congestion control that a connection can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// [`Bbr`]. A Ropewalk peer reports all packets that arrive; libudt reports those after a gap
    /// only by its loss reports.
    #[default]
    Bbr,
    /// [`Daimd`], which libudt uses.
    Daimd,
}

impl Congestion {
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "bbr" => Some(Self::Bbr),
            "daimd" => Some(Self::Daimd),
            _ => None,
        }
    }

    /// Returns a controller for a connection with these parameters. `seed` is random.
    pub fn controller(self, parameters: &Parameters, seed: u64) -> Box<dyn Controller> {
        match self {
            Self::Bbr => Box::new(Bbr::new(parameters.ropewalk)),
            Self::Daimd => Box::new(Daimd::new(parameters.mss, parameters.peer_window, seed)),
        }
    }
}

/// An ACK that acknowledges packets for the first time. [`Bbr::counting_bytes`] takes bytes in
/// place of packets.
#[derive(Clone, Copy, Debug)]
pub struct AckEvent {
    pub now: Micros,
    /// How many packets it acknowledges.
    pub acked: u64,
    /// The packets that are known to have arrived, since the start.
    pub delivered: u64,
    /// The value of `delivered` when the latest of these packets was sent.
    pub delivered_before: u64,
    /// The smoothed round-trip time, and the sample of this ACK.
    pub rtt: Micros,
    pub rtt_sample: Micros,
    /// Packets per second from that transmission until now.
    pub rate: f64,
    /// Whether the application gave too little to send, so that the path was not the limit.
    pub app_limited: bool,
    pub in_flight: u64,
    /// The measurements of the peer.
    pub rates: Option<Rates>,
    /// The packets that were sent so far.
    pub sent: u64,
}

/// A NAK.
#[derive(Clone, Copy, Debug)]
pub struct LossEvent {
    pub now: Micros,
    /// The first packet in it.
    pub first: u64,
    /// The last packet that was sent.
    pub highest: u64,
    /// How many packets it reports for the first time.
    pub lost: u64,
    pub rtt: Micros,
}
