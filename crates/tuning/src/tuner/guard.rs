//! A wrapper around every tuner. It passes on only valid samples, and only decisions within the
//! options. Chunks during an outage of the path, and the first one after it, are not measured.
//! Chunks that start late are not ended before their first data arrives.

use std::collections::VecDeque;

use super::Tuner;
use super::decision::{Decision, Reason};
use super::options::Options;
use super::sample::{Chunk, Progress, SampleError};

/// Accepted number of streams of a chunk: up to 4 times the largest number that one of the latest
/// decisions requested, plus 16. Surplus streams are closed gradually, and sessions with other
/// servers keep the number they were created with.
const BEYOND: (u32, u32) = (4, 16);
/// Number of decisions that are considered.
const LATELY: usize = 8;

#[derive(Debug)]
pub(super) struct Guard<T> {
    inner: T,
    max_streams: u32,
    max_files: u32,
    max_pipeline: u32,
    /// At least one packet.
    least_bytes: u64,
    last: Option<Decision>,
    /// Numbers of connections that the latest decisions requested.
    asked: VecDeque<u32>,
    dead: bool,
    silence: Silence,
}

/// A longer silence, in seconds, means that the path is down, not that connections start late.
const LONGEST_SILENCE: f64 = 60.0;

/// Measures the time until the first byte of a chunk. No chunk is ended before that.
#[derive(Debug, Default)]
struct Silence {
    /// Age of the current chunk, in seconds.
    elapsed: f64,
    /// Seconds without data.
    silent: f64,
    moved: bool,
    /// Seconds to wait for the first data, based on the previous chunk.
    patience: f64,
}

impl Silence {
    fn hear(&mut self, progress: &Progress) {
        self.elapsed = progress.elapsed;
        self.moved |= progress.rate > 0.0;
        if !self.moved {
            self.silent = progress.elapsed;
        }
    }

    /// Whether the chunk may end before all of its bytes have been transferred.
    fn may_end(&self) -> bool {
        let until = if self.moved { self.silent + self.silent.min(LONGEST_SILENCE) } else { self.patience };
        self.elapsed >= until
    }

    /// A chunk ended; `dead` means that it transferred no data.
    fn end(&mut self, dead: bool, seconds: f64) {
        let patience = if dead { seconds.max(self.elapsed) } else { self.silent };
        *self = Self { patience: 2.0 * patience.min(LONGEST_SILENCE), ..Self::default() };
    }
}

impl<T: Tuner + 'static> Guard<T> {
    pub(super) fn boxed(inner: T, options: &Options) -> Box<dyn Tuner> {
        Box::new(Self {
            inner,
            max_streams: options.max_streams,
            max_files: options.max_files,
            max_pipeline: options.max_pipeline,
            least_bytes: options.packet_bytes as u64,
            last: None,
            asked: VecDeque::new(),
            dead: false,
            silence: Silence::default(),
        })
    }

    fn clamp(&mut self, mut decision: Decision) -> Decision {
        let knobs = &mut decision.knobs;
        knobs.streams = knobs.streams.clamp(1, self.max_streams);
        knobs.files = knobs.files.clamp(1, self.max_files.min(self.max_streams / knobs.streams).max(1));
        knobs.pipeline = knobs.pipeline.clamp(1, self.max_pipeline);
        decision.bytes = decision.bytes.max(self.least_bytes);
        self.last = Some(decision);
        if self.asked.len() >= LATELY {
            self.asked.pop_front();
        }
        self.asked.push_back(decision.knobs.connections());
        decision
    }

    /// Repeats the last decision with another reason.
    fn again(&mut self, reason: Reason) -> Decision {
        match self.last {
            Some(last) => {
                self.inner.lost();
                Decision { reason, ..last }
            }
            None => self.first(),
        }
    }
}

impl<T: Tuner + 'static> Tuner for Guard<T> {
    fn first(&mut self) -> Decision {
        let first = self.inner.first();
        self.clamp(first)
    }

    fn chunk(&mut self, chunk: &Chunk) -> Decision {
        if self.last.is_none() {
            return self.first();
        }
        let asked = self.asked.iter().copied().max().unwrap_or(self.max_streams);
        let chunk = match chunk.checked() {
            Ok(chunk) if chunk.streams > asked.saturating_mul(BEYOND.0).saturating_add(BEYOND.1) => {
                return self.again(Reason::Ignored(SampleError::Streams(chunk.streams, asked)));
            }
            Ok(chunk) => chunk,
            Err(error) => return self.again(Reason::Ignored(error)),
        };
        self.silence.end(chunk.bytes == 0, chunk.seconds);
        if chunk.bytes == 0 {
            self.dead = true;
            return self.again(Reason::PathDead);
        }
        if std::mem::take(&mut self.dead) {
            // This chunk may have started while the path was down, so it does not count either.
            return self.again(Reason::PathReturned);
        }
        let next = self.inner.chunk(&chunk);
        self.clamp(next)
    }

    fn progress(&mut self, progress: &Progress) -> Option<Reason> {
        self.last?;
        let progress = progress.checked().ok()?;
        self.silence.hear(&progress);
        self.inner.progress(&progress).filter(|_| self.silence.may_end())
    }

    fn lost(&mut self) {
        self.inner.lost();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::tuner::{Chunk, Connections, Kind, Options, Progress, Reason, SampleError};

    #[test]
    fn chunk_with_far_more_streams_than_requested_is_ignored() {
        let options = Options { first_streams: 4, connections: Connections::Kept, ..Options::default() };
        let mut tuner = Kind::Pilot.build(&options).unwrap();
        let first = tuner.first().knobs.connections();
        for streams in [33, 1000, u32::MAX] {
            let decision = tuner.chunk(&Chunk::new(streams, 50_000_000, 5.0));
            let asked = decision.knobs.connections();
            assert_eq!((asked, decision.reason), (first, Reason::Ignored(SampleError::Streams(streams, 4))));
        }
        // Sessions may have more streams than requested, and surplus ones are closed gradually.
        let decision = tuner.chunk(&Chunk::new(32, 50_000_000, 5.0));
        assert!(!matches!(decision.reason, Reason::Ignored(_)), "{}", decision.reason);
    }

    #[test]
    fn chunk_after_lost_chunk_ignores_its_reports() {
        let options = Options { rtt: Some(0.1), connections: Connections::Kept, ..Options::default() };
        // Returns the decision three chunks after a lost one, for which this rate was reported, and
        // the answer to that report.
        let decided = |at: u32, lost: Chunk, reported: Option<f64>| {
            let mut tuner = Kind::Pilot.build(&options).unwrap();
            let (mut decision, mut said) = (tuner.first(), None);
            for n in 0..=at + 3 {
                let streams = decision.knobs.connections();
                let rate = 1e7 * f64::from(streams.min(10));
                let factor = if n == at { reported } else { Some(1.0) };
                for elapsed in (1..=10).map(f64::from) {
                    let report = factor.map(|factor| Progress { elapsed, rate: factor * rate });
                    let reason = report.and_then(|report| tuner.progress(&report));
                    said = said.or(reason.filter(|_| n == at));
                }
                let chunk = Chunk { rtt: Some(0.1), ..Chunk::new(streams, (10.0 * rate) as u64, 10.0) };
                decision = tuner.chunk(if n == at { &lost } else { &chunk });
            }
            (decision, said)
        };
        for lost in [Chunk::new(10, 1, f64::NAN), Chunk::new(10, 0, 10.0)] {
            let changed = |at: &u32| matches!(decided(*at, lost, Some(0.5)).1, Some(Reason::Changed { .. }));
            let at = (5..40).find(changed).unwrap();
            assert_eq!(decided(at, lost, Some(0.5)).0, decided(at, lost, None).0);
        }
    }
}
