//! The parameters of a path that the model needs.

use super::error::{ParameterError, within};
use super::window::window_of_loss;

/// Maximum number of connections that the model accepts.
pub const MAX_STREAMS: u64 = 10_000_000;

/// Accepted bandwidths, in packets per millisecond.
pub const BANDWIDTHS: (f64, f64) = (1e-9, 1e9);

/// Accepted round-trip times, in milliseconds.
pub const RTTS: (f64, f64) = (1e-5, 1e6);

/// Accepted windows, in packets.
pub const WINDOWS: (f64, f64) = (1e-3, 1e12);

/// Accepted losses that are not caused by congestion.
pub const BACKGROUND_LOSSES: (f64, f64) = (0.0, 0.999_999);

/// Losses below this one are treated as this one.
const LEAST_LOSS: f64 = 1e-18;

/// A bottleneck and the connections through it. All numbers are finite, positive and within
/// reasonable limits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    bandwidth: f64,
    rtt_ms: f64,
    window: f64,
    background_loss: f64,
}

impl Path {
    /// Creates a path: `bandwidth` of the bottleneck in packets per millisecond, `rtt_ms` including
    /// the queueing delay that the connections encounter, `window` that the socket buffer of one
    /// connection permits, in packets. [`super::units`] converts.
    ///
    /// # Errors
    /// A number is not positive, not finite or absurd.
    pub fn new(bandwidth: f64, rtt_ms: f64, window: f64) -> Result<Self, ParameterError> {
        Ok(Self {
            bandwidth: within("bandwidth", bandwidth, BANDWIDTHS, " packets/ms")?,
            rtt_ms: within("RTT", rtt_ms, RTTS, " ms")?,
            window: within("window", window, WINDOWS, " packets")?,
            background_loss: 0.0,
        })
    }

    /// The same path with a fraction `loss` of packets that are lost without congestion. The papers
    /// do not have this.
    ///
    /// # Errors
    /// `loss` is negative, not a number or (almost) 1.
    pub fn with_background_loss(self, loss: f64) -> Result<Self, ParameterError> {
        Ok(Self { background_loss: within("loss", loss, BACKGROUND_LOSSES, "")?, ..self })
    }

    /// The same path with another window.
    ///
    /// # Errors
    /// `window` is not positive, not finite or absurd.
    pub fn with_window(self, window: f64) -> Result<Self, ParameterError> {
        Ok(Self { window: within("window", window, WINDOWS, " packets")?, ..self })
    }

    /// B, packets per millisecond.
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

    /// Fraction of packets that are lost without congestion.
    pub fn background_loss(&self) -> f64 {
        self.background_loss
    }

    /// BR, packets.
    pub fn bandwidth_delay_product(&self) -> f64 {
        self.bandwidth * self.rtt_ms
    }

    /// Mean window in packets that background loss permits; infinite without loss.
    pub fn loss_limited_window(&self) -> f64 {
        match self.background_loss {
            0.0 => f64::INFINITY,
            // `window_of_loss` does not accept smaller losses.
            loss => window_of_loss(loss.max(LEAST_LOSS)).unwrap_or(f64::INFINITY),
        }
    }
}

/// Returns `streams` as a float if the model accepts this number.
pub(crate) fn check_streams(streams: u64) -> Result<f64, ParameterError> {
    within("number of streams", streams as f64, (1.0, MAX_STREAMS as f64), "")
}
