use crate::mode_e::{Descriptor, Header};
use crate::range::RangeSet;

/// One connection of a sender, for one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamId(usize);

/// A block to send: the header, then `header.count` bytes of the file from `file_offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub header: Header,
    pub file_offset: u64,
}

/// What a stream sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Block(Block),
    /// This header, and then nothing more for this file.
    End(Header),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("the range {start}-{end} begins before the origin {origin} of the transfer")]
    BeforeOrigin { start: u64, end: u64, origin: u64 },
    #[error("EOF with {streams} streams has been sent already: no stream can be added")]
    Finished { streams: u64 },
    /// What was sent before may or may not have arrived, so the transfer cannot go on.
    #[error("a stream was lost after it had carried {bytes} bytes")]
    Lost { bytes: u64 },
}

/// The sending rate of a stream, as far as the caller knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// The connection has no way to measure it: the stream is taken to be as fast as the others.
    #[default]
    Unmeasured,
    /// The connection can measure it, but too little has been sent.
    Pending,
    /// Bytes per second that the peer has acknowledged lately.
    Measured(u64),
}

/// Blocks get smaller towards the end of a file, down to so many bytes.
const LEAST_BLOCK: u64 = 64 << 10;
/// The same for a stream whose rate is known.
const LEAST_MEASURED_BLOCK: u64 = 16 << 10;
/// A stream that is so many times slower than the others on average does not hold up the end.
const SLOWNESS: u64 = 4;
/// The first blocks of a stream whose rate will be known soon, in bytes.
const PENDING_BLOCK: u64 = 256 << 10;
/// A measured stream gets this part of what it would carry until the end of the file, so that it asks again before the
/// end even if it becomes slower.
const PART_OF_REST: f64 = 0.5;
/// A block keeps a measured stream busy no longer than this, in seconds: the stream can be asked to leave after it.
const LONGEST_BLOCK: f64 = 1.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    /// `carried`: payload bytes of the blocks before `block`.
    Active {
        block: Option<Block>,
        carried: u64,
        rate: Rate,
    },
    Ended,
    Removed,
}

/// Deals the ranges of one file out to streams that come and ask for the next block.
///
/// Streams may be added until the last one has ended. The last to end sends EOF with the number of streams and its own
/// EOD; the others send EOD. A stream that has nothing to carry (an empty file, a slow start) still ends with EOD.
/// A stream may leave before the end, with EOD and CLOSE, as long as another one stays.
#[derive(Debug)]
pub struct Sender {
    todo: RangeSet,
    origin: u64,
    block_size: u64,
    streams: Vec<Stream>,
    promised: u64,
    active: u64,
    /// Active streams whose rate is measured, and the sum of their rates in bytes per second.
    measured: u64,
    measured_rate: u128,
    ended: u64,
    /// Of those that ended.
    left: u64,
    finished: bool,
}

impl Sender {
    /// `ranges` are file offsets; offsets on the wire count from `origin` (GFD.20, ERET). `block_size` is the most
    /// payload of a block, in bytes; 0 is taken as 1.
    ///
    /// # Errors
    /// A range begins before `origin`.
    pub fn new(ranges: RangeSet, origin: u64, block_size: u64) -> Result<Self, SendError> {
        if let Some(first) = ranges.iter().next()
            && first.start < origin
        {
            return Err(SendError::BeforeOrigin { start: first.start, end: first.end, origin });
        }
        Ok(Self {
            todo: ranges,
            origin,
            block_size: block_size.max(1),
            streams: Vec::new(),
            promised: 0,
            active: 0,
            measured: 0,
            measured_rate: 0,
            ended: 0,
            left: 0,
            finished: false,
        })
    }

    /// EOF is not sent before this many streams have been added and ended: for peers that connect to us and were told
    /// how many connections to make.
    pub fn promise_streams(&mut self, streams: u64) {
        self.promised = streams;
    }

    /// A connection joins the transfer.
    ///
    /// # Errors
    /// EOF has been handed out.
    pub fn add_stream(&mut self) -> Result<StreamId, SendError> {
        if self.finished {
            return Err(SendError::Finished { streams: self.ended });
        }
        self.streams.push(Stream::Active { block: None, carried: 0, rate: Rate::Unmeasured });
        self.active += 1;
        Ok(StreamId(self.streams.len() - 1))
    }

    /// Sets the rate of `stream`, which decides how large its next blocks are. Ignored after its end.
    pub fn set_rate(&mut self, stream: StreamId, new: Rate) {
        let Stream::Active { rate, .. } = &mut self.streams[stream.0] else { return };
        let old = std::mem::replace(rate, new);
        self.forget_rate(old);
        if let Rate::Measured(rate) = new {
            self.measured += 1;
            self.measured_rate += u128::from(rate);
        }
    }

    fn forget_rate(&mut self, rate: Rate) {
        if let Rate::Measured(rate) = rate {
            self.measured -= 1;
            self.measured_rate -= u128::from(rate);
        }
    }

    /// `stream` is no longer active.
    fn retire(&mut self, stream: StreamId, as_: Stream) {
        if let Stream::Active { rate, .. } = std::mem::replace(&mut self.streams[stream.0], as_) {
            self.forget_rate(rate);
            self.active -= 1;
        }
    }

    /// What `stream` sends next; to ask says that its last block is with the kernel. `None` after its end.
    pub fn next(&mut self, stream: StreamId) -> Option<Next> {
        let Stream::Active { block, carried, rate } = self.streams[stream.0] else {
            return None;
        };
        let carried = carried + block.map_or(0, |b| b.header.count);
        if let Some(block) = self.take_block(rate) {
            self.streams[stream.0] = Stream::Active { block: Some(block), carried, rate };
            return Some(Next::Block(block));
        }
        self.retire(stream, Stream::Ended);
        self.ended += 1;
        self.finished = self.active == 0 && self.ended >= self.promised;
        Some(Next::End(if self.finished { Header::end_of_file(self.ended) } else { Header::end_of_data() }))
    }

    /// `stream` ends now, before the others do: what it sends is EOD and CLOSE, and then nothing more for any file. To
    /// ask says that its last block is with the kernel. It is counted like every other. `None` where it has to stay:
    /// because it is the only one, because all is dealt out and it ends anyway, or because it has ended.
    pub fn leave(&mut self, stream: StreamId) -> Option<Header> {
        let stays = self.active <= 1 || self.todo.is_empty();
        if stays || !matches!(self.streams[stream.0], Stream::Active { .. }) {
            return None;
        }
        self.retire(stream, Stream::Ended);
        self.ended += 1;
        self.left += 1;
        let end = Header::end_of_data();
        Some(Header { descriptor: end.descriptor.union(Descriptor::CLOSE), ..end })
    }

    /// The connection failed: others take over the block it had. Only where it had carried nothing before that block,
    /// because nobody knows what of earlier blocks has arrived. A receiver never saw the stream, so it is not counted.
    ///
    /// # Errors
    /// The stream had ended, or carried blocks before its last one.
    pub fn remove_stream(&mut self, stream: StreamId) -> Result<(), SendError> {
        match self.streams[stream.0] {
            Stream::Removed => Ok(()),
            Stream::Active { block, carried: 0, .. } => {
                if let Some(block) = block {
                    self.todo.insert(block.file_offset..block.file_offset + block.header.count);
                }
                self.retire(stream, Stream::Removed);
                Ok(())
            }
            Stream::Active { carried, .. } => Err(SendError::Lost { bytes: carried }),
            Stream::Ended => Err(SendError::Lost { bytes: 0 }),
        }
    }

    /// No stream is left that could send what has to be sent: add one, or give up.
    pub fn needs_stream(&self) -> bool {
        !self.finished && self.active == 0
    }

    /// EOF has been handed out: every stream has its end.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// Bytes that no stream has taken yet.
    pub fn remaining(&self) -> u64 {
        self.todo.len()
    }

    /// Streams that have not ended.
    pub fn active(&self) -> u64 {
        self.active
    }

    /// Streams that have ended with [`Sender::leave`].
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Streams that joined and were not removed.
    pub fn streams(&self) -> u64 {
        self.active + self.ended
    }

    /// The most payload of the next block of a stream with this rate, and the least that blocks shrink to, in bytes.
    fn block_limit(&self, rate: Rate) -> (u64, u64) {
        if self.active <= 1 {
            return (self.block_size, self.block_size);
        }
        let rest = self.todo.len();
        let fair = rest / SLOWNESS.saturating_mul(self.active);
        let (limit, least) = match rate {
            Rate::Unmeasured => (fair, LEAST_BLOCK),
            Rate::Pending => (fair.min(PENDING_BLOCK), LEAST_BLOCK),
            Rate::Measured(rate) => {
                // Streams without a measured rate are taken to be like the average of the others.
                let sum = self.measured_rate as f64 * self.active as f64 / self.measured.max(1) as f64;
                let share = rate as f64 / sum.max(1.0);
                let limit = (rest as f64 * share * PART_OF_REST).min(rate as f64 * LONGEST_BLOCK);
                (limit as u64, LEAST_MEASURED_BLOCK)
            }
        };
        (limit.min(self.block_size), least.min(self.block_size))
    }

    /// Blocks end at multiples of the block size in the file, which suits page caches and disks. Towards the end several
    /// streams get smaller ones, slow streams smaller ones than fast streams: none is to be at its last block for long
    /// when the others have nothing left to send.
    fn take_block(&mut self, rate: Rate) -> Option<Block> {
        let range = self.todo.iter().next()?;
        let boundary = |size: u64| (range.start / size).checked_add(1).and_then(|n| n.checked_mul(size));
        let mut end = boundary(self.block_size).map_or(range.end, |b| b.min(range.end));
        let (limit, least) = self.block_limit(rate);
        if limit < self.block_size {
            let granule = if limit < LEAST_BLOCK { least } else { LEAST_BLOCK.min(self.block_size) };
            let pieces = (limit / granule).max(1);
            let smaller = boundary(granule).and_then(|b| b.checked_add((pieces - 1) * granule));
            end = smaller.map_or(end, |smaller| smaller.min(end));
        }
        self.todo.remove(range.start..end);
        let header = Header::data(range.start - self.origin, end - range.start);
        Some(Block { header, file_offset: range.start })
    }
}
