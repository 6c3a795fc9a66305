//! The sending side of a MODE E transfer, without I/O.
//!
//! A [`Sender`] divides the ranges of one file into blocks, and assigns the next block to whichever
//! stream asks for it. The caller owns the connections, and sends the blocks and the final headers
//! that [`Sender::next`] returns. Near the end of the file, blocks become smaller and depend on the
//! rates of the streams, so that all streams finish at about the same time.

use std::ops::Range;

use crate::mode_e::resend::{Decision, Resend};
use crate::mode_e::{Backlog, Descriptor, Header};
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

/// The next block or header that a stream sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Block(Block),
    /// This header; then ask again.
    Header(Header),
    /// Nothing now: ask again soon, with a new [`Backlog`] of every stream, or when there are more
    /// ranges.
    Wait,
    /// This header, and then no more data for this file.
    End(Header),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("the range {start}-{end} begins before the origin {origin} of the transfer")]
    BeforeOrigin { start: u64, end: u64, origin: u64 },
    #[error("EOF with {streams} streams has been sent already: no stream can be added")]
    Finished { streams: u64 },
    /// Blocks before the last one may or may not have arrived, so the transfer cannot continue.
    #[error("a stream was lost after it had carried {bytes} bytes")]
    Lost { bytes: u64 },
}

/// The sending rate of a stream, as far as the caller knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rate {
    /// The rate cannot be measured on this connection. The stream is assumed to be as fast as the
    /// average.
    #[default]
    Unmeasured,
    /// The rate can be measured, but too little data has been sent.
    Pending,
    /// Bytes per second that the peer has acknowledged lately.
    Measured(u64),
}

/// Lower limit, in bytes, of the block size near the end of a file.
const LEAST_BLOCK: u64 = 64 << 10;
/// Lower limit, in bytes, of the block size for a stream whose rate is known.
const LEAST_MEASURED_BLOCK: u64 = 16 << 10;
/// A stream that is slower than the average by up to this factor does not delay the end of the
/// transfer.
const SLOWNESS: u64 = 4;
/// Size limit, in bytes, of the first blocks of a stream whose rate will be known soon.
const PENDING_BLOCK: u64 = 256 << 10;
/// A block of a measured stream has at most this fraction of the bytes that the stream would carry
/// until the end of the file. The stream thus asks for another block before the end, even if it
/// becomes slower.
const PART_OF_REST: f64 = 0.5;
/// Longest time, in seconds, for which one block keeps a measured stream busy. A stream can be
/// closed only after its current block.
const LONGEST_BLOCK: f64 = 1.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    /// `carried` is the number of payload bytes in the blocks before `block`.
    Active {
        block: Option<Block>,
        carried: u64,
        rate: Rate,
    },
    Ended,
    Removed,
}

/// The streams that lead to one receiver.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    active: u64,
    ended: u64,
    /// Connections that are being made.
    expected: u64,
    finished: bool,
}

/// Assigns the ranges of one file to streams; each stream asks for its next block.
///
/// The streams may lead to several receivers, which take parts of the file together (a striped
/// server). Each receiver gets an EOF with the number of its own streams.
///
/// Streams may be added until the last one has ended. The last stream to end sends EOF, with the
/// number of streams, together with its own EOD; the others send EOD. A stream that carried no data
/// (an empty file, a slow start) also ends with EOD. A stream may end early, with EOD and CLOSE, as
/// long as another stream stays.
#[derive(Debug)]
pub struct Sender {
    todo: RangeSet,
    origin: u64,
    block_size: u64,
    streams: Vec<Stream>,
    /// The receiver of each stream, and the receivers.
    receivers: Vec<usize>,
    groups: Vec<Group>,
    promised: u64,
    active: u64,
    /// Number of active streams with a measured rate; below it the sum of these rates in bytes per
    /// second.
    measured: u64,
    measured_rate: u128,
    ended: u64,
    /// Number of ended streams that ended early, by [`Sender::leave`].
    left: u64,
    finished: bool,
    resend: Option<Box<Resend>>,
    /// More ranges may come.
    open: bool,
}

impl Sender {
    /// `ranges` are file offsets; offsets on the wire are relative to `origin` (GFD.20, ERET).
    /// `block_size` is the maximum payload of a block, in bytes; 0 is taken as 1.
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
            receivers: Vec::new(),
            groups: Vec::new(),
            promised: 0,
            active: 0,
            measured: 0,
            measured_rate: 0,
            ended: 0,
            left: 0,
            finished: false,
            resend: None,
            open: false,
        })
    }

    /// Keeps the streams until [`Sender::close`]: more ranges may come.
    pub fn keep_open(&mut self) {
        self.open = true;
    }

    /// Whether more ranges may come.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Adds a range of the file, which must not begin before the origin.
    ///
    /// # Errors
    /// It begins before the origin.
    pub fn extend(&mut self, range: Range<u64>) -> Result<(), SendError> {
        if range.start < self.origin {
            return Err(SendError::BeforeOrigin { start: range.start, end: range.end, origin: self.origin });
        }
        self.todo.insert(range);
        Ok(())
    }

    /// No more ranges come.
    pub fn close(&mut self) {
        self.open = false;
    }

    /// Lets the streams send bytes of slow streams again at the end. The receiver must know this
    /// extension, and the caller reports the [`Backlog`] of its streams. To be called before the
    /// first stream is added.
    pub fn allow_resend(&mut self) {
        self.resend = Some(Box::new(Resend::new(self.todo.len())));
    }

    /// Whether bytes have been sent again. No connection may serve another transfer then, and the
    /// receiver may close all of them once it has all bytes.
    pub fn has_resent(&self) -> bool {
        self.resend.as_ref().is_some_and(|resend| resend.is_used())
    }

    /// Whether other streams carry all bytes that `stream` may still have to deliver, so that its
    /// connection is of no further use.
    pub fn is_abandoned(&self, stream: StreamId) -> bool {
        self.resend.as_ref().is_some_and(|resend| resend.is_abandoned(stream.0))
    }

    /// Reports the state of the connection of `stream`, also after the end of the stream.
    pub fn set_backlog(&mut self, stream: StreamId, backlog: Backlog) {
        if let Some(resend) = &mut self.resend {
            resend.set_backlog(stream.0, backlog);
        }
        self.release(stream);
    }

    /// A stream that is abandoned while it still has something to send ends without EOD.
    fn release(&mut self, stream: StreamId) {
        if self.is_abandoned(stream) && matches!(self.streams[stream.0], Stream::Active { .. }) {
            self.retire(stream, Stream::Removed);
            self.promised = self.promised.saturating_sub(1);
        }
    }

    /// Delays EOF until this many streams were added and have ended. This is for peers that make
    /// the connections, and that were asked for this number.
    pub fn promise_streams(&mut self, streams: u64) {
        self.promised = streams;
    }

    /// A connection joins the transfer.
    ///
    /// # Errors
    /// EOF has been returned to a stream.
    pub fn add_stream(&mut self) -> Result<StreamId, SendError> {
        self.add_stream_to(0)
    }

    /// A connection to the receiver with this number joins the transfer.
    ///
    /// # Errors
    /// EOF has been returned to a stream of this receiver.
    pub fn add_stream_to(&mut self, receiver: usize) -> Result<StreamId, SendError> {
        if self.groups.len() <= receiver {
            self.groups.resize(receiver + 1, Group::default());
        }
        let group = &mut self.groups[receiver];
        if group.finished {
            return Err(SendError::Finished { streams: group.ended });
        }
        group.active += 1;
        self.receivers.push(receiver);
        self.streams.push(Stream::Active { block: None, carried: 0, rate: Rate::Unmeasured });
        self.active += 1;
        if let Some(resend) = &mut self.resend {
            resend.add_stream();
        }
        Ok(StreamId(self.streams.len() - 1))
    }

    /// A connection to this receiver is being made: the last of its other streams waits, so that
    /// the new one is counted, because the receiver may have accepted it already. False if EOF has
    /// been returned: then no connection can join.
    pub fn expect_stream(&mut self, receiver: usize) -> bool {
        let Some(group) = self.groups.get_mut(receiver).filter(|group| !group.finished) else {
            return false;
        };
        group.expected += 1;
        true
    }

    /// A connection that was expected has been made, or cannot be made.
    pub fn end_expectation(&mut self, receiver: usize) {
        if let Some(group) = self.groups.get_mut(receiver) {
            group.expected = group.expected.saturating_sub(1);
        }
    }

    /// Whether the stream is the last one of its receiver, and another one may join.
    fn awaits_others(&mut self, stream: StreamId) -> bool {
        let group = self.group(stream);
        group.active == 1 && group.expected > 0
    }

    /// Sets the rate of `stream`, which determines the size of its next blocks, and after its end
    /// whether its bytes are sent again.
    pub fn set_rate(&mut self, stream: StreamId, new: Rate) {
        if let Some(resend) = &mut self.resend {
            resend.set_rate(stream.0, new);
        }
        let Stream::Active { rate, .. } = &mut self.streams[stream.0] else { return };
        let old = std::mem::replace(rate, new);
        self.forget_rate(old);
        if let Rate::Measured(rate) = new {
            self.measured += 1;
            self.measured_rate += u128::from(rate);
        }
    }

    /// The rate of `stream` that was set last, if bytes may be sent again.
    pub fn rate(&self, stream: StreamId) -> Rate {
        self.resend.as_ref().map_or(Rate::Unmeasured, |resend| resend.rate(stream.0))
    }

    /// Removes a stream whose connection ended after every byte was assigned and some were sent
    /// again.
    pub fn close_after_resend(&mut self, stream: StreamId) {
        if matches!(self.streams[stream.0], Stream::Active { .. }) {
            self.retire(stream, Stream::Removed);
        }
        // The others need not wait for what it carried.
        if let Some(resend) = &mut self.resend {
            resend.forget(stream.0);
        }
    }

    /// Reports that the connection of a stream that has ended is closed at both ends: the receiver
    /// has read all of it, and no other stream need wait for it.
    pub fn set_closed(&mut self, stream: StreamId) {
        if matches!(self.streams[stream.0], Stream::Ended)
            && let Some(resend) = &mut self.resend
        {
            resend.forget(stream.0);
        }
    }

    fn forget_rate(&mut self, rate: Rate) {
        if let Rate::Measured(rate) = rate {
            self.measured -= 1;
            self.measured_rate -= u128::from(rate);
        }
    }

    /// Marks `stream` as no longer active.
    fn retire(&mut self, stream: StreamId, as_: Stream) {
        if let Stream::Active { rate, .. } = std::mem::replace(&mut self.streams[stream.0], as_) {
            self.forget_rate(rate);
            self.active -= 1;
            self.group(stream).active -= 1;
        }
    }

    fn group(&mut self, stream: StreamId) -> &mut Group {
        &mut self.groups[self.receivers[stream.0]]
    }

    /// Returns the next block or header for `stream`, or `None` after its end. The caller may call
    /// this only when the last block of the stream has been written to the socket.
    pub fn next(&mut self, stream: StreamId) -> Option<Next> {
        let Stream::Active { block, carried, rate } = self.streams[stream.0] else {
            return None;
        };
        let carried = carried + block.map_or(0, |b| b.header.count);
        if let Some(block) = self.take_block(rate) {
            self.streams[stream.0] = Stream::Active { block: Some(block), carried, rate };
            if self.resend.is_some() {
                return Some(self.noted(stream, block));
            }
            return Some(Next::Block(block));
        }
        if self.open || self.awaits_others(stream) {
            return Some(Next::Wait);
        }
        if self.resend.is_some()
            && let Some(next) = self.help(stream)
        {
            return Some(next);
        }
        Some(Next::End(self.end(stream)))
    }

    /// Records that a stream carries a block, for a transfer that may send some again.
    #[cold]
    #[inline(never)]
    fn noted(&mut self, stream: StreamId, block: Block) -> Next {
        if let Some(resend) = &mut self.resend {
            resend.carries(stream.0, block.file_offset..block.file_offset + block.header.count);
        }
        Next::Block(block)
    }

    /// Ends `stream` if no block is left for it and it is not to help another one: returns the
    /// final header, which may be sent with the last block.
    pub fn end_with_block(&mut self, stream: StreamId) -> Option<Header> {
        let more = self.open || !self.todo.is_empty() || self.awaits_others(stream);
        if more || !matches!(self.streams[stream.0], Stream::Active { .. }) {
            return None;
        }
        let ends = self.resend.as_ref().is_none_or(|resend| resend.decide(stream.0) == Decision::End);
        ends.then(|| self.end(stream))
    }

    /// Returns what `stream` sends again for a slower one, or whether it waits for that.
    #[cold]
    #[inline(never)]
    fn help(&mut self, stream: StreamId) -> Option<Next> {
        let resend = self.resend.as_mut()?;
        let slow = match resend.decide(stream.0) {
            Decision::End => return None,
            Decision::Wait => return Some(Next::Wait),
            Decision::Help(slow) => slow,
        };
        if let Some(header) = resend.announce(stream.0) {
            return Some(Next::Header(header));
        }
        let range = resend.help(stream.0, slow)?;
        self.release(StreamId(slow));
        let header = Header::resent(range.start - self.origin, range.end - range.start);
        Some(Next::Block(Block { header, file_offset: range.start }))
    }

    fn end(&mut self, stream: StreamId) -> Header {
        self.retire(stream, Stream::Ended);
        self.ended += 1;
        let promised = self.promised;
        let group = self.group(stream);
        group.ended += 1;
        group.finished = group.active == 0 && group.ended >= promised;
        let end = if group.finished { Header::end_of_file(group.ended) } else { Header::end_of_data() };
        self.finished = self.groups.iter().all(|group| group.finished);
        end
    }

    /// Ends `stream` before the others: returns the header with EOD and CLOSE, after which the
    /// connection carries no more data for any file. The stream still counts in EOF. The caller may
    /// call this only when the last block of the stream has been written to the socket. Returns
    /// `None` if the stream has to stay because it is the only one of its receiver, if all data is
    /// assigned so that it ends anyway, or if it has ended.
    pub fn leave(&mut self, stream: StreamId) -> Option<Header> {
        let stays = self.group(stream).active <= 1 || self.todo.is_empty() && !self.open;
        if stays || !matches!(self.streams[stream.0], Stream::Active { .. }) {
            return None;
        }
        self.retire(stream, Stream::Ended);
        self.ended += 1;
        self.group(stream).ended += 1;
        self.left += 1;
        let end = Header::end_of_data();
        Some(Header { descriptor: end.descriptor.union(Descriptor::CLOSE), ..end })
    }

    /// Removes a stream whose connection failed; its block is assigned to other streams. This is
    /// possible only if the stream carried no data before that block, because it is unknown which
    /// earlier blocks arrived. A removed stream is not counted in EOF, because the receiver did not
    /// see it.
    ///
    /// # Errors
    /// The stream had ended, or it carried blocks before its last one.
    pub fn remove_stream(&mut self, stream: StreamId) -> Result<(), SendError> {
        match self.streams[stream.0] {
            Stream::Removed => Ok(()),
            Stream::Active { block, carried: 0, .. } => {
                if let Some(block) = block {
                    self.todo.insert(block.file_offset..block.file_offset + block.header.count);
                }
                self.retire(stream, Stream::Removed);
                if let Some(resend) = &mut self.resend {
                    resend.forget(stream.0);
                }
                Ok(())
            }
            Stream::Active { carried, .. } => Err(SendError::Lost { bytes: carried }),
            Stream::Ended => Err(SendError::Lost { bytes: 0 }),
        }
    }

    /// Whether data or EOF is still to be sent, but no stream is left to send it. The caller has to
    /// add a stream or abandon the transfer.
    pub fn needs_stream(&self) -> bool {
        !self.finished && self.active == 0
    }

    /// Whether EOF has been returned, so that every stream has ended, or none is left of a transfer
    /// that has sent bytes again.
    pub fn is_finished(&self) -> bool {
        self.finished || self.active == 0 && self.todo.is_empty() && self.has_resent()
    }

    /// Number of bytes that are not yet assigned to a stream.
    pub fn remaining(&self) -> u64 {
        self.todo.len()
    }

    /// Number of streams that have not ended.
    pub fn active(&self) -> u64 {
        self.active
    }

    /// Number of streams that ended with [`Sender::leave`].
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Number of streams that joined and were not removed.
    pub fn streams(&self) -> u64 {
        self.active + self.ended
    }

    /// Returns the maximum payload of the next block of a stream with this rate, and the minimum to
    /// which blocks shrink, in bytes.
    fn block_limit(&self, rate: Rate) -> (u64, u64) {
        // The end of a file that is still growing is not known.
        if self.active <= 1 || self.open {
            return (self.block_size, self.block_size);
        }
        let rest = self.todo.len();
        let fair = rest / SLOWNESS.saturating_mul(self.active);
        let (limit, least) = match rate {
            Rate::Unmeasured => (fair, LEAST_BLOCK),
            Rate::Pending => (fair.min(PENDING_BLOCK), LEAST_BLOCK),
            Rate::Measured(rate) => {
                // Streams without a measured rate are assumed to have the average rate.
                let sum = self.measured_rate as f64 * self.active as f64 / self.measured.max(1) as f64;
                let share = rate as f64 / sum.max(1.0);
                let limit = (rest as f64 * share * PART_OF_REST).min(rate as f64 * LONGEST_BLOCK);
                (limit as u64, LEAST_MEASURED_BLOCK)
            }
        };
        (limit.min(self.block_size), least.min(self.block_size))
    }

    /// Takes the next block from the ranges. Blocks end at multiples of the block size in the file,
    /// which suits page caches and disks. Near the end, if there are several streams, blocks become
    /// smaller, those of slow streams more so than those of fast streams, so that no stream is
    /// still sending its last block long after the others have finished.
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
