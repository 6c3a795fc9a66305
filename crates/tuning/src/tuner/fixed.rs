//! No tuning: the requested number of streams.

use super::decision::{Decision, Reason};
use super::options::Options;
use super::sample::{Chunk, Progress};
use super::{Tuner, first_bytes};

#[derive(Debug)]
pub(super) struct Fixed {
    streams: u32,
    seconds: f64,
    first: f64,
}

impl Fixed {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            streams: options.first_streams,
            seconds: options.chunk_seconds,
            first: first_bytes(options, options.first_streams, options.chunk_seconds),
        }
    }
}

impl Tuner for Fixed {
    fn first(&mut self) -> Decision {
        Decision::streams(self.streams, self.first, Reason::Fixed)
    }

    fn chunk(&mut self, chunk: &Chunk) -> Decision {
        Decision::streams(self.streams, chunk.rate() * self.seconds, Reason::Fixed)
    }

    fn progress(&mut self, _: &Progress) -> Option<Reason> {
        None
    }
}
