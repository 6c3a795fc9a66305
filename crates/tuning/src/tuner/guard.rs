//! What every tuner needs around it: only samples that make sense get in, only decisions within the options
//! get out, and a path that is dead for a while is neither measured nor punished.

use std::collections::VecDeque;

use super::Tuner;
use super::decision::{Decision, Reason};
use super::options::Options;
use super::sample::{Chunk, Progress, SampleError};

/// So many times the streams that one of the last decisions asked for, and so many more, may carry a chunk: those that were too
/// many leave by and by, and sessions of servers that are not ours have what they were made with.
const BEYOND: (u32, u32) = (4, 16);
/// So many decisions count.
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
    /// Connections that were asked for lately.
    asked: VecDeque<u32>,
    dead: bool,
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

    /// The last decision again, for another reason.
    fn again(&mut self, reason: Reason) -> Decision {
        match self.last {
            Some(last) => Decision { reason, ..last },
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
        if chunk.bytes == 0 {
            self.dead = true;
            return self.again(Reason::PathDead);
        }
        if std::mem::take(&mut self.dead) {
            // This chunk may have begun while the path was down: it does not count either.
            return self.again(Reason::PathReturned);
        }
        let next = self.inner.chunk(&chunk);
        self.clamp(next)
    }

    fn progress(&mut self, progress: &Progress) -> Option<Reason> {
        self.last?;
        self.inner.progress(&progress.checked().ok()?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::tuner::{Chunk, Connections, Kind, Options, Reason, SampleError};

    #[test]
    fn far_more_streams_than_were_asked_for_are_not_believed() {
        let options = Options { first_streams: 4, connections: Connections::Kept, ..Options::default() };
        let mut tuner = Kind::Pilot.build(&options).unwrap();
        let first = tuner.first().knobs.connections();
        for streams in [33, 1000, u32::MAX] {
            let decision = tuner.chunk(&Chunk::new(streams, 50_000_000, 5.0));
            let asked = decision.knobs.connections();
            assert_eq!((asked, decision.reason), (first, Reason::Ignored(SampleError::Streams(streams, 4))));
        }
        // Sessions may have more than was asked for, and those that are too many leave by and by.
        let decision = tuner.chunk(&Chunk::new(32, 50_000_000, 5.0));
        assert!(!matches!(decision.reason, Reason::Ignored(_)), "{}", decision.reason);
    }
}
