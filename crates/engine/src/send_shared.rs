//! The state that the threads of a MODE E sender share, and the work of a thread that serves one
//! stream. The coordinating thread ([`crate::send_coordinator`]) starts these threads and takes
//! their messages. A thread that fails or panics reports this as its last message.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use ropewalk_protocol::mode_e::{Block, Header, Next, Sender, StreamId};
use ropewalk_storage::checksum::Pieces;
use ropewalk_transport::{Wait, WaitAlone};
use rustix::event::PollFlags;

use crate::backlog::{Backlogs, INTERVAL};
use crate::block_reader::{BlockReader, WaitPolicy, encode};
use crate::connect::{self, Core};
use crate::error::{Error, Result};
use crate::job::SendJob;
use crate::wire::Wire;
use crate::{Feed, Progress, Stage};

/// The time limit of a further connection. The transfer continues without one that takes longer,
/// but it cannot end before this limit.
const FURTHER_TIMEOUT: Duration = Duration::from_secs(10);

/// The shared state of a transfer.
pub(crate) struct Shared<'a> {
    pub(crate) core: &'a Core,
    job: &'a SendJob,
    pub(crate) progress: &'a Progress,
    block_size: u64,
    /// The number of connections that are being made. It decreases while `sender`, to which the
    /// connection is then added, is locked.
    pub(crate) joining: AtomicU32,
    /// The number of streams without a thread.
    pub(crate) idle: AtomicU32,
    sender: Mutex<Sender>,
    resend: bool,
    backlogs: Backlogs,
    messages: Mutex<Vec<Message>>,
}

/// A report of a thread to the coordinating thread.
pub(crate) enum Message {
    /// A further connection is made and will send, or it could not be made.
    Connected(Result<()>),
    Ended(Result<Box<Done>>),
}

/// A stream that has sent its end.
pub(crate) struct Done {
    pub(crate) wire: Wire,
    /// It has ended before the others because it was surplus.
    pub(crate) left: bool,
    pub(crate) bytes: u64,
    pub(crate) pieces: Option<Pieces>,
}

/// The bytes that a stream with its own thread has sent.
struct Sum {
    left: bool,
    bytes: u64,
    pieces: Option<Pieces>,
}

impl<'a> Shared<'a> {
    /// Fails if the ranges of `job` do not fit the channel.
    pub(crate) fn new(core: &'a Core, job: &'a SendJob, progress: &'a Progress) -> Result<Self> {
        let block_size = core.settings.block_size.max(1) as u64;
        let mut sender = Sender::new(job.ranges.clone(), job.origin, block_size)?;
        // Each of several receivers counts the bytes that it gets.
        let resend = job.resend && job.feed.is_none() && core.receivers() == 1;
        if resend {
            sender.allow_resend();
        }
        if let Some(feed) = &job.feed {
            feed.attach(&core.control);
            sender.keep_open();
        }
        Ok(Self {
            core,
            job,
            progress,
            block_size,
            joining: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            sender: Mutex::new(sender),
            resend,
            backlogs: Backlogs::default(),
            messages: Mutex::default(),
        })
    }

    pub(crate) fn sender(&self) -> MutexGuard<'_, Sender> {
        self.sender.lock()
    }

    fn post(&self, message: Message) {
        self.messages.lock().push(message);
        self.core.control.wake();
    }

    pub(crate) fn take_messages(&self) -> Vec<Message> {
        std::mem::take(&mut *self.messages.lock())
    }

    /// Takes the first failure that a thread has reported, if it is neither one of the network nor
    /// of a transfer that was broken off. All other messages stay, because the coordinating thread
    /// counts its threads by them.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        take_failure(&mut self.messages.lock())
    }

    /// The stream `id` starts to send over `wire`.
    pub(crate) fn begin(&self, wire: &mut Wire, id: StreamId) {
        wire.restart_pace();
        if self.resend && wire.is_measured() {
            self.backlogs.add(id, wire);
        }
    }

    /// Returns what the stream `id` sends next.
    pub(crate) fn next(&self, wire: &mut Wire, id: StreamId) -> Option<Next> {
        if self.resend && self.sender().remaining() == 0 {
            self.backlogs.observe(&self.sender);
            return self.sender().next(id);
        }
        if let Some(feed) = &self.job.feed
            && let Err(error) = self.extend(feed)
        {
            tracing::error!(%error, "a range cannot be sent");
            self.core.control.stop();
        }
        let rate = wire.sending_rate();
        let measured = wire.take_measured().filter(|_| self.resend);
        let mut sender = self.sender();
        sender.set_rate(id, rate);
        if let Some(stats) = measured {
            drop(sender);
            self.backlogs.report(id, &stats, &self.sender);
            sender = self.sender();
        }
        if self.resend && sender.remaining() == 0 {
            // Another stream has just taken the last block.
            drop(sender);
            self.backlogs.observe(&self.sender);
            sender = self.sender();
        }
        sender.next(id)
    }

    /// The end of the stream `id` that it sends with its last block. A stream ends only after the
    /// others were observed when all blocks were assigned: if the rates that they had measured
    /// before decided, no stream would be left to help one that has stalled since.
    pub(crate) fn end_with_block(&self, id: StreamId) -> Option<Header> {
        if self.resend {
            // It never increases again.
            if self.sender().remaining() > 0 {
                return None;
            }
            self.backlogs.observe(&self.sender);
        }
        self.sender().end_with_block(id)
    }

    /// Takes the ranges that have become ready.
    fn extend(&self, feed: &Feed) -> Result<()> {
        let (ready, ended) = feed.take();
        let mut sender = self.sender();
        for range in ready.iter() {
            sender.extend(range)?;
        }
        if ended {
            sender.close();
        }
        Ok(())
    }

    /// Whether the source decides when there is more to send.
    pub(crate) fn is_fed(&self) -> bool {
        self.job.feed.is_some()
    }

    pub(crate) fn is_abandoned(&self, id: StreamId) -> bool {
        self.resend && self.sender().is_abandoned(id)
    }

    /// Whether the failure of the stream `id` is none of the transfer: a receiver that has all
    /// bytes, some of them from streams that sent them again, closes its connections. This end
    /// cannot know which bytes arrived before that. A receiver that fails says so in its reply.
    pub(crate) fn forgives(&self, error: &Error, id: StreamId) -> bool {
        let mut sender = self.sender();
        if !error.is_network() || !sender.has_resent() {
            return false;
        }
        if sender.is_abandoned(id) {
            return true;
        }
        let all_assigned = sender.remaining() == 0;
        if all_assigned {
            sender.close_after_resend(id);
        }
        all_assigned
    }

    /// Whether the stream `id` need not wait for others any more, because the receiver has closed
    /// its connection: it has all bytes, or has failed.
    pub(crate) fn is_released(&self, wire: &Wire, id: StreamId) -> bool {
        let mut sender = self.sender();
        let released = sender.has_resent() && wire.connection.peer_closed();
        if released {
            sender.close_after_resend(id);
        }
        released
    }

    /// The maximum number of blocks that are left to send.
    pub(crate) fn blocks_left(&self, sender: &Sender) -> u64 {
        if sender.is_open() { u64::MAX } else { sender.remaining().div_ceil(self.block_size) }
    }

    /// The number of streams that the transfer is to use, to all receivers together.
    pub(crate) fn wanted(&self) -> u32 {
        self.all_receivers(self.core.parallelism.get())
    }

    /// The number of streams in all if there are `n` to each receiver.
    pub(crate) fn all_receivers(&self, n: u32) -> u32 {
        n.saturating_mul(self.core.receivers() as u32)
    }

    /// Returns the end of a stream that is surplus and may leave.
    fn leave(&self, sender: &mut Sender, id: StreamId) -> Option<Header> {
        let wanted = u64::from(self.wanted()) + u64::from(self.idle.load(Ordering::SeqCst));
        if sender.active() > wanted { sender.leave(id) } else { None }
    }

    pub(crate) fn reader(&self) -> BlockReader<'_> {
        let Core { control, budget, settings, .. } = self.core;
        BlockReader::new(self.job, self.progress, control, budget, settings.block_size)
    }

    /// The work of a thread that makes the connection of its stream.
    pub(crate) fn connect_and_serve(&self, address: usize) {
        let wait = &mut connect::Stoppable(&self.core.control);
        let connected = caught(|| self.core.connect_waiting(address, FURTHER_TIMEOUT, wait));
        let joined = {
            let mut sender = self.sender();
            self.joining.fetch_sub(1, Ordering::SeqCst);
            sender.end_expectation(address);
            match connected {
                // The receiver may have ended the transfer, and would take it for the next file's.
                Ok(_) if sender.has_resent() => Err(Error::Aborted),
                connected => connected.and_then(|wire| Ok((wire, sender.add_stream_to(address)?))),
            }
        };
        match joined {
            Ok((wire, id)) => {
                self.post(Message::Connected(Ok(())));
                self.serve(wire, id);
            }
            Err(e) => self.post(Message::Connected(Err(e))),
        }
    }

    /// The work of a thread that serves a stream.
    pub(crate) fn serve(&self, mut wire: Wire, id: StreamId) {
        match caught(|| self.drive(&mut wire, id)) {
            Ok(Sum { left, bytes, pieces }) => {
                self.post(Message::Ended(Ok(Box::new(Done { wire, left, bytes, pieces }))));
            }
            Err(e) => {
                // The report precedes the end of the connection. The receiver may then close the
                // other connections at once, and their errors are not the cause.
                self.post(Message::Ended(Err(e)));
                drop(wire);
            }
        }
    }

    fn drive(&self, wire: &mut Wire, id: StreamId) -> Result<Sum> {
        let control = &self.core.control;
        wire.set_blocking(control).map_err(Error::io(&wire.peer))?;
        let mut reader = self.reader();
        let policy = &mut Alone { shared: self, id };
        self.begin(wire, id);
        let mut left;
        loop {
            let leaving = self.leave(&mut self.sender(), id);
            left = leaving.is_some();
            let (block, header, ends) = match leaving.map(Next::End).or_else(|| self.next(wire, id)) {
                Some(Next::Block(block)) => {
                    let end = self.end_with_block(id);
                    (Some(block), end, end.is_some())
                }
                Some(Next::Header(header)) => (None, Some(header), false),
                Some(Next::End(header)) => (None, Some(header), true),
                Some(Next::Wait) => {
                    policy.between()?;
                    if self.is_released(wire, id) {
                        break;
                    }
                    if let Some(feed) = &self.job.feed {
                        let began = Instant::now();
                        feed.wait(INTERVAL);
                        self.progress.add_time(Stage::Source, began.elapsed());
                        continue;
                    }
                    let stopped = control.stop_event().fd().map_err(Error::system("eventfd"))?;
                    // An early end of the wait does no harm.
                    let _ = WaitAlone.wait(stopped, PollFlags::IN, Instant::now() + INTERVAL);
                    continue;
                }
                None => break,
            };
            match send_one(&mut reader, wire, block, header, policy) {
                Err(e) if !self.forgives(&e, id) => return Err(e),
                Err(_) => break,
                Ok(()) if ends => break,
                Ok(()) => {}
            }
        }
        Ok(Sum { left, bytes: reader.bytes, pieces: reader.pieces.take() })
    }
}

fn take_failure(messages: &mut Vec<Message>) -> Option<Error> {
    let is_cause = |error: &Error| !error.is_network() && !matches!(error, Error::Aborted);
    let is_failure = |message: &Message| matches!(message, Message::Ended(Err(e)) if is_cause(e));
    let at = messages.iter().position(is_failure)?;
    match messages.remove(at) {
        Message::Ended(Err(error)) => Some(error),
        Message::Ended(Ok(_)) | Message::Connected(_) => None,
    }
}

pub(crate) fn merged(a: Option<Pieces>, b: Option<Pieces>) -> Option<Pieces> {
    match (a, b) {
        (Some(mut a), Some(b)) => {
            a.merge(&b);
            Some(a)
        }
        (a, b) => a.or(b),
    }
}

fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| {
        Err(Error::System { action: "send", source: io::Error::other("a thread of the transfer panicked") })
    })
}

/// The wait policy of a thread that serves one stream: its calls wait by themselves, up to the time
/// limit.
struct Alone<'s, 'a> {
    shared: &'s Shared<'a>,
    id: StreamId,
}

impl WaitPolicy for Alone<'_, '_> {
    fn blocked(&mut self, _: &Wire) -> Result<()> {
        self.between()
    }

    fn between(&mut self) -> Result<()> {
        if self.shared.core.control.stopping() { Err(Error::Aborted) } else { Ok(()) }
    }

    fn is_abandoned(&self) -> bool {
        self.shared.is_abandoned(self.id)
    }
}

pub(crate) fn send_one(
    reader: &mut BlockReader<'_>,
    wire: &mut Wire,
    block: Option<Block>,
    end: Option<Header>,
    policy: &mut dyn WaitPolicy,
) -> Result<()> {
    let (end, length) = encode(end);
    match block {
        Some(Block { header, file_offset }) => {
            let range = file_offset..file_offset + header.count;
            if header.is_resent() {
                return reader.send_again(wire, &header.to_bytes(), range, &end[..length], policy);
            }
            reader.send(wire, &header.to_bytes(), range, &end[..length], policy)
        }
        None if length > 0 => reader.send_tail(wire, &end[..length], policy),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_that_is_taken_leaves_all_other_messages() {
        let lost = || Error::PeerClosed { peer: ([127, 0, 0, 1], 1).into(), stream: 0, bytes: 0, left: 0 };
        let mut messages = vec![Message::Connected(Ok(())), Message::Ended(Err(lost()))];
        assert!(take_failure(&mut messages).is_none());
        assert_eq!(messages.len(), 2);
        let changed = Error::SourceChanged { expected: 2, found: 1 };
        messages.insert(1, Message::Ended(Err(changed)));
        assert!(matches!(take_failure(&mut messages), Some(Error::SourceChanged { .. })));
        messages.insert(1, Message::Ended(Err(Error::Aborted)));
        assert!(take_failure(&mut messages).is_none());
        messages.remove(1);
        assert!(matches!(
            messages[..],
            [Message::Connected(Ok(())), Message::Ended(Err(Error::PeerClosed { .. }))]
        ));
    }
}
