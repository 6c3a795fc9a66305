//! A path: what the model has to know of it.

use super::error::{ParameterError, within};
use super::window::window_of_loss;

/// Most connections that the model is asked about.
pub const MAX_STREAMS: u64 = 10_000_000;

/// Accepted bandwidths, in packets a millisecond.
pub const BANDWIDTHS: (f64, f64) = (1e-9, 1e9);

/// Accepted round-trip times, in milliseconds.
pub const RTTS: (f64, f64) = (1e-5, 1e6);

/// Accepted windows, in packets.
pub const WINDOWS: (f64, f64) = (1e-3, 1e12);

/// Accepted losses that are not made by congestion.
pub const BACKGROUND_LOSSES: (f64, f64) = (0.0, 0.999_999);

/// Of less loss than this a connection has the window that it would have of this.
const LEAST_LOSS: f64 = 1e-18;

/// A bottleneck and the connections through it. All numbers are finite, positive and within sane limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    bandwidth: f64,
    rtt_ms: f64,
    window: f64,
    background_loss: f64,
}

impl Path {
    /// `bandwidth` of the bottleneck in packets a millisecond, `rtt_ms` with the queueing delay that the connections
    /// find, `window` that the socket buffer of one connection allows, in packets. [`super::units`] converts.
    ///
    /// # Errors
    /// When a number is not positive, not finite or absurd.
    pub fn new(bandwidth: f64, rtt_ms: f64, window: f64) -> Result<Self, ParameterError> {
        Ok(Self {
            bandwidth: within("bandwidth", bandwidth, BANDWIDTHS, " packets/ms")?,
            rtt_ms: within("RTT", rtt_ms, RTTS, " ms")?,
            window: within("window", window, WINDOWS, " packets")?,
            background_loss: 0.0,
        })
    }

    /// The same path with a share `loss` of packets that vanish without congestion. The papers have none.
    ///
    /// # Errors
    /// When `loss` is negative, not a number or (almost) 1.
    pub fn with_background_loss(self, loss: f64) -> Result<Self, ParameterError> {
        Ok(Self { background_loss: within("loss", loss, BACKGROUND_LOSSES, "")?, ..self })
    }

    /// The same path with another window.
    ///
    /// # Errors
    /// When `window` is not positive, not finite or absurd.
    pub fn with_window(self, window: f64) -> Result<Self, ParameterError> {
        Ok(Self { window: within("window", window, WINDOWS, " packets")?, ..self })
    }

    /// B, packets a millisecond.
    pub fn bandwidth(&self) -> f64 {
        self.bandwidth
    }

    /// R, milliseconds.
    pub fn rtt_ms(&self) -> f64 {
        self.rtt_ms
    }

    /// W, packets.
    pub fn window(&self) -> f64 {
        self.window
    }

    /// Share of packets that are lost without congestion.
    pub fn background_loss(&self) -> f64 {
        self.background_loss
    }

    /// BR, packets.
    pub fn bandwidth_delay_product(&self) -> f64 {
        self.bandwidth * self.rtt_ms
    }

    /// Mean window in packets up to which background loss lets a connection grow; infinite without.
    pub fn loss_limited_window(&self) -> f64 {
        match self.background_loss {
            0.0 => f64::INFINITY,
            // The equation is not asked about less.
            loss => window_of_loss(loss.max(LEAST_LOSS)).unwrap_or(f64::INFINITY),
        }
    }
}

/// `streams` if the model can be asked about so many.
pub(crate) fn check_streams(streams: u64) -> Result<f64, ParameterError> {
    within("number of streams", streams as f64, (1.0, MAX_STREAMS as f64), "")
}
