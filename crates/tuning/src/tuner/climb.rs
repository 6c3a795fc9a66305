//! Hill climbing on rate / K^streams, after Falcon (M. Arifuzzaman, E. Arslan, "Online Optimization
//! of File Transfers in High-Speed Networks", SC21), simplified. It is a baseline for comparison,
//! not the authors' code.

use super::decision::{Decision, Reason};
use super::options::Options;
use super::sample::{Chunk, Progress};
use super::{Tuner, first_bytes};

/// Factor by which each additional stream must increase the rate.
const K: f64 = 1.02;
/// Minimum change of the utility that counts as better or worse.
const STEP: f64 = 0.02;

#[derive(Debug)]
pub(super) struct Climb {
    streams: u32,
    most: u32,
    seconds: f64,
    first: f64,
    up: bool,
    stride: u32,
    last: Option<f64>,
}

impl Climb {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            streams: options.first_streams,
            most: options.max_streams,
            seconds: 0.5 * options.chunk_seconds,
            first: first_bytes(options, options.first_streams, 0.5 * options.chunk_seconds),
            up: true,
            stride: 1,
            last: None,
        }
    }
}

impl Tuner for Climb {
    fn first(&mut self) -> Decision {
        Decision::streams(self.streams, self.first, Reason::Start)
    }

    fn chunk(&mut self, chunk: &Chunk) -> Decision {
        let utility = chunk.rate().ln() - f64::from(chunk.streams) * K.ln();
        let gain = self.last.map_or(STEP, |last| utility - last);
        self.last = Some(utility);
        if gain >= STEP {
            self.stride = (self.stride * 2).min(16);
        } else {
            self.up ^= gain < 0.0;
            self.stride = 1;
        }
        let from = self.streams;
        self.streams = match self.up {
            true => (from + self.stride).min(self.most),
            false => from.saturating_sub(self.stride).max(1),
        };
        let reason = if self.up { Reason::ProbeUp { from } } else { Reason::ProbeDown { from } };
        Decision::streams(self.streams, chunk.rate() * self.seconds, reason)
    }

    fn progress(&mut self, _: &Progress) -> Option<Reason> {
        None
    }
}
