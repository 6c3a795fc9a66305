//! From the store into one connection.

use std::io::{self, IoSlice, Write};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_protocol::mode_e::Header;
use ropewalk_storage::checksum::{Pieces, block_sum};
use ropewalk_transport::Interest;
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::ahead::Ahead;
use crate::budget::{Buffer, BufferBudget, COPY_CHUNK};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::job::SendJob;
use crate::watch::Watch;
use crate::wire::Wire;
use crate::{Progress, Stage};

/// Up to this size a copy is cheaper than `sendfile`, because header, data and end go out in one
/// call.
const SMALL: u64 = 64 << 10;
/// Bytes that `sendfile` sends in one go.
const CHUNK: usize = 1 << 20;

/// How a thread waits while its connection takes no more.
pub(crate) trait WaitPolicy {
    /// Returns when it is worth to try again.
    fn blocked(&mut self, wire: &Wire) -> Result<()>;
    /// Between two pieces of data.
    fn between(&mut self) -> Result<()>;
    /// Other streams carry the bytes of this one, so nothing more is sent on it.
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// That of the coordinating thread: it waits for everything at once.
impl WaitPolicy for Watch<'_> {
    fn blocked(&mut self, wire: &Wire) -> Result<()> {
        self.wait_for(wire.readiness(Interest::Write))
    }

    fn between(&mut self) -> Result<()> {
        self.check(&[], &mut Vec::new())
    }
}

/// Remembers how long it took.
struct Timed<'a> {
    inner: &'a mut dyn WaitPolicy,
    waited: Duration,
}

impl WaitPolicy for Timed<'_> {
    fn blocked(&mut self, wire: &Wire) -> Result<()> {
        let began = Instant::now();
        let result = self.inner.blocked(wire);
        self.waited += began.elapsed();
        result
    }

    fn between(&mut self) -> Result<()> {
        self.inner.between()
    }

    fn is_abandoned(&self) -> bool {
        self.inner.is_abandoned()
    }
}

/// Sends ranges of the file: with `sendfile` where nothing has to see the bytes, else through a
/// buffer.
pub(crate) struct BlockReader<'a> {
    job: &'a SendJob,
    progress: &'a Progress,
    control: &'a Control,
    budget: &'a Arc<BufferBudget>,
    /// The file that `sendfile` reads.
    file: Option<BorrowedFd<'a>>,
    ahead: Ahead,
    chunk: usize,
    buffer: Option<Buffer>,
    /// The bytes are sent again: they were counted and summed before.
    again: bool,
    pub(crate) bytes: u64,
    pub(crate) pieces: Option<Pieces>,
}

impl<'a> BlockReader<'a> {
    pub(crate) fn new(
        job: &'a SendJob,
        progress: &'a Progress,
        control: &'a Control,
        budget: &'a Arc<BufferBudget>,
        block_size: usize,
    ) -> Self {
        let pieces = job.checksum.filter(|a| a.is_combinable()).map(Pieces::new);
        let file = job.source.descriptor().filter(|_| pieces.is_none());
        Self {
            job,
            progress,
            control,
            budget,
            file,
            ahead: Ahead::default(),
            chunk: control.at_once(block_size.min(COPY_CHUNK)),
            buffer: None,
            again: false,
            bytes: 0,
            pieces,
        }
    }

    /// Sends `head`, the bytes of `range` of the file, and `tail`, which must not go out unless the
    /// file is as expected.
    pub(crate) fn send(
        &mut self,
        wire: &mut Wire,
        head: &[u8],
        range: Range<u64>,
        tail: &[u8],
        policy: &mut dyn WaitPolicy,
    ) -> Result<()> {
        let mut head = head;
        let mut at = range.start;
        if range.end - at > SMALL && self.file.is_some() && wire.connection.fast_path().socket().is_some() {
            self.send_head(wire, head, policy)?;
            head = &[];
            at = self.send_file(wire, range.clone(), policy)?;
            if at == range.end {
                return if tail.is_empty() { Ok(()) } else { self.send_tail(wire, tail, policy) };
            }
        }
        while at < range.end {
            at = self.send_chunk(wire, head, at..range.end, tail, policy)?;
            head = &[];
        }
        Ok(())
    }

    /// Sends a block that another stream carries as well.
    pub(crate) fn send_again(
        &mut self,
        wire: &mut Wire,
        head: &[u8],
        range: Range<u64>,
        tail: &[u8],
        policy: &mut dyn WaitPolicy,
    ) -> Result<()> {
        self.again = true;
        let result = self.send(wire, head, range, tail, policy);
        self.again = false;
        result
    }

    /// Sends the end of a stream, unless the file is not as expected.
    pub(crate) fn send_tail(
        &mut self,
        wire: &mut Wire,
        tail: &[u8],
        policy: &mut dyn WaitPolicy,
    ) -> Result<()> {
        self.check_size()?;
        write_all(wire, [tail, &[], &[]], self.control, policy)
    }

    /// The file must still have the size that it is expected to have.
    pub(crate) fn check_size(&self) -> Result<()> {
        let Some(expected) = self.job.expected_size else { return Ok(()) };
        let found = self.job.source.metadata()?.size;
        if found == expected { Ok(()) } else { Err(Error::SourceChanged { expected, found }) }
    }

    /// The header of a block, which is to travel in one segment with what follows.
    fn send_head(&mut self, wire: &mut Wire, head: &[u8], policy: &mut dyn WaitPolicy) -> Result<()> {
        let mut head = head;
        while !head.is_empty() {
            let Some(socket) = wire.connection.fast_path().socket() else { break };
            match rustix::net::send(socket, head, SendFlags::MORE | SendFlags::NOSIGNAL) {
                Ok(n) => {
                    wire.listed.moved(n);
                    head = &head[n..];
                }
                Err(_) if policy.is_abandoned() => break,
                Err(Errno::AGAIN) => policy.blocked(wire)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io(&wire.peer)(e.into())),
            }
        }
        Ok(())
    }

    /// Returns where it got: short of the end where `sendfile` does not work here.
    fn send_file(&mut self, wire: &mut Wire, range: Range<u64>, policy: &mut dyn WaitPolicy) -> Result<u64> {
        let mut at = range.start;
        while at < range.end && !policy.is_abandoned() {
            let (Some(file), Some(socket)) = (self.file, wire.connection.fast_path().socket()) else { break };
            let most = usize::try_from(range.end - at).unwrap_or(CHUNK).min(CHUNK);
            let Some(permitted) = self.control.permit(most) else { break };
            let end = at + permitted.bytes() as u64;
            let mut waited = Duration::ZERO;
            let count = (self.ahead.ready(file, at..end, &mut waited) - at) as usize;
            self.progress.add_time(Stage::Source, waited);
            let began = Instant::now();
            let mut offset = at;
            let result = rustix::fs::sendfile(socket, file, Some(&mut offset), count);
            self.progress.add_time(Stage::Network, began.elapsed());
            match result {
                Ok(0) => return Err(self.shrunk(at, range.end)),
                Ok(n) => {
                    at += n as u64;
                    self.sent(n);
                    permitted.moved(n);
                    wire.listed.moved(n);
                    policy.between()?;
                }
                Err(Errno::AGAIN) => policy.blocked(wire)?,
                Err(Errno::INTR) => {}
                Err(_) if policy.is_abandoned() => break,
                Err(e @ (Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT)) => {
                    return Err(Error::io(&wire.peer)(e.into()));
                }
                // Not with this file, or one of the two has failed: reading and writing tell which.
                Err(_) => self.file = None,
            }
        }
        Ok(at)
    }

    /// Sends what fits in the buffer, with `head` before it, and with `tail` if it is the last.
    /// Returns where it got.
    fn send_chunk(
        &mut self,
        wire: &mut Wire,
        head: &[u8],
        range: Range<u64>,
        tail: &[u8],
        policy: &mut dyn WaitPolicy,
    ) -> Result<u64> {
        let wanted = (range.end - range.start).min(self.chunk as u64) as usize;
        let abandoned = policy.is_abandoned();
        if abandoned && self.pieces.is_none() {
            self.sent((range.end - range.start) as usize);
            return Ok(range.end);
        }
        wire.keep_to(self.control.limit());
        if self.buffer.as_ref().is_none_or(|b| b.len() < wanted && b.len() < self.chunk) {
            self.buffer = None;
            self.buffer = Some(self.budget.take(wanted));
        }
        let Some(mut buffer) = self.buffer.take() else { return Ok(range.start) };
        let wanted = wanted.min(buffer.len());
        self.read(&mut buffer[..wanted], range.start, range.end)?;
        let data = &buffer[..wanted];
        let end = range.start + wanted as u64;
        if let Some(pieces) = self.pieces.as_mut().filter(|_| !self.again) {
            let began = Instant::now();
            let sum = block_sum(pieces.algorithm(), data);
            self.progress.add_time(Stage::Checksum, began.elapsed());
            pieces.insert(range.start..end, sum);
        }
        if abandoned {
            self.buffer = Some(buffer);
            self.sent(wanted);
            return Ok(end);
        }
        let tail = if end == range.end { tail } else { &[] };
        if !tail.is_empty() {
            self.check_size()?;
        }
        let mut policy = Timed { inner: policy, waited: Duration::ZERO };
        let began = Instant::now();
        // A slow stream takes seconds for a chunk, and what is measured meanwhile needs to know how
        // far it is.
        let mut payload = Payload { before: head.len(), left: if self.again { 0 } else { wanted } };
        let mut held = Duration::ZERO;
        let result = write_counted(wire, [head, data, tail], self.control, &mut policy, |n, waited| {
            self.progress.add_bytes(payload.count(n) as u64);
            held += waited;
        });
        if result.is_ok() {
            // Other streams carry these bytes, if this one was abandoned.
            self.progress.add_bytes(payload.left as u64);
        }
        let sealing = wire.take_sealing();
        // The waits count themselves.
        let others = sealing + policy.waited + held;
        self.progress.add_time(Stage::Network, began.elapsed().saturating_sub(others));
        self.progress.add_time(Stage::Encryption, sealing);
        let policy = policy.inner;
        self.buffer = Some(buffer);
        result?;
        self.bytes += if self.again { 0 } else { wanted as u64 };
        policy.between()?;
        Ok(end)
    }

    /// Fills `buffer` from the file at `at`.
    pub(crate) fn read(&mut self, buffer: &mut [u8], at: u64, end: u64) -> Result<()> {
        let began = Instant::now();
        let mut filled = 0;
        while filled < buffer.len() {
            match self.job.source.read_at(&mut buffer[filled..], at + filled as u64)? {
                0 => return Err(self.shrunk(at + filled as u64, end)),
                n => filled += n,
            }
        }
        self.progress.add_time(Stage::Source, began.elapsed());
        Ok(())
    }

    pub(crate) fn sent(&mut self, n: usize) {
        if self.again {
            return;
        }
        self.bytes += n as u64;
        self.progress.add_bytes(n as u64);
    }

    fn shrunk(&self, found: u64, wanted: u64) -> Error {
        Error::SourceChanged { expected: self.job.expected_size.unwrap_or(wanted), found }
    }
}

/// The payload among the bytes that are sent: `before` bytes precede it, and `left` of it are left.
struct Payload {
    before: usize,
    left: usize,
}

impl Payload {
    /// Of the next `n` bytes.
    fn count(&mut self, n: usize) -> usize {
        let before = n.min(self.before);
        self.before -= before;
        let payload = (n - before).min(self.left);
        self.left -= payload;
        payload
    }
}

/// Writes all parts in as few calls as possible, unless the stream is abandoned meanwhile.
pub(crate) fn write_all(
    wire: &mut Wire,
    parts: [&[u8]; 3],
    control: &Control,
    policy: &mut dyn WaitPolicy,
) -> Result<()> {
    write_counted(wire, parts, control, policy, |_, _| {})
}

/// The same; `wrote` gets the bytes of each call, and how long the limit on the rate held it up.
fn write_counted(
    wire: &mut Wire,
    parts: [&[u8]; 3],
    control: &Control,
    policy: &mut dyn WaitPolicy,
    mut wrote: impl FnMut(usize, Duration),
) -> Result<()> {
    let mut slices = parts.map(IoSlice::new);
    let mut slices = &mut slices[..];
    IoSlice::advance_slices(&mut slices, 0);
    while let Some(first) = slices.first() {
        let all = slices.iter().map(|slice| slice.len()).sum();
        let permitted = control.permit(all).ok_or(Error::Aborted)?;
        let result = match permitted.bytes() {
            some if some < all => wire.connection.write(&first[..some.min(first.len())]),
            _ if slices.len() == 1 => wire.connection.write(first),
            _ => wire.connection.write_vectored(slices),
        };
        match result {
            Ok(0) => return Err(Error::io(&wire.peer)(io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                wire.listed.moved(n);
                wrote(n, permitted.moved(n));
                IoSlice::advance_slices(&mut slices, n);
            }
            Err(_) if policy.is_abandoned() => break,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => policy.blocked(wire)?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io(&wire.peer)(e)),
        }
    }
    Ok(())
}

/// A header as it goes out.
pub(crate) fn encode(header: Option<Header>) -> ([u8; Header::LEN], usize) {
    header.map_or(([0; Header::LEN], 0), |header| (header.to_bytes(), Header::LEN))
}
