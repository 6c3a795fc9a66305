//! From one connection into the store.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::Pieces;
use ropewalk_storage::{DiskFile, Positions};
use rustix::io::{Errno, retry_on_intr};

use crate::behind::{Behind, Stored, Storing};
use crate::budget::{Buffer, BufferBudget, COPY_CHUNK};
use crate::connect::Core;
use crate::control::{Control, Permitted};
use crate::error::{Error, Result};
use crate::job::ReceiveJob;
use crate::pipe::{PIPE_SIZE, Pipe};
use crate::wire::{Wire, retry};
use crate::{Pool, Progress, Stage};

/// Bytes that are spliced before they are reported.
pub(crate) const CHUNK: usize = 1 << 20;
/// Less than this is written at once.
const SMALL: usize = 64 << 10;
/// Bytes from a slow connection are written after this time even if they are fewer.
const LINGER: Duration = Duration::from_millis(500);
/// Blocks that follow one another within this time are written behind. Slower ones are not in the
/// stream's way.
const HURRY: Duration = Duration::from_millis(20);
/// With so many gaps between its blocks a stream tells what it has: those of all streams together
/// have few.
const SCATTERED: usize = 4096;
/// A receiver that discards data is done before the next segment comes. It would be woken for each
/// segment, which costs the sender and the receiver more than the segment does. If data comes as
/// fast as this, in bytes a second, it waits for more, as network cards moderate their interrupts.
/// The buffers of connections hold many times what comes meanwhile.
const FAST: f64 = 500e6;
const MODERATION: Duration = Duration::from_micros(50);

/// The result of [`BlockWriter::take`].
pub(crate) enum Taken {
    /// So many bytes of payload came. They may be held back, or be on their way to the store, until
    /// [`BlockWriter::settle`].
    Bytes(u64),
    /// There is nothing to read now.
    Blocked,
    /// The connection has ended.
    End,
}

/// Moves the payload of one stream: with `splice` where nothing has to see the bytes, else through
/// a buffer.
pub(crate) struct BlockWriter<'a> {
    job: &'a ReceiveJob<'a>,
    progress: &'a Progress,
    control: &'a Control,
    budget: &'a Arc<BufferBudget>,
    /// Where `splice` may write to.
    file: Option<BorrowedFd<'a>>,
    /// Nothing looks at the bytes and nothing is kept of them: the driver may drop them.
    discard: bool,
    pipe: Option<Pipe>,
    buffer: Option<Buffer>,
    /// Bytes that were wanted of a buffer lately, and what there was.
    taken: (usize, usize),
    /// Part of the file that is in `buffer`, from its start.
    held: Range<u64>,
    /// Part of the file that was spliced and not reported yet.
    spliced: Range<u64>,
    stored: Instant,
    storing: Storing,
    /// Where a thread for writing comes from.
    pool: Option<&'a Pool>,
    /// The protection of the bytes takes a processor.
    sealed: bool,
    behind: Option<Behind>,
    /// The bytes that are in the store and were reported.
    pub(crate) ranges: RangeSet,
    pub(crate) bytes: u64,
    pub(crate) pieces: Option<Pieces>,
}

/// `n` bytes came from the connection; 0 is its end.
fn count(wire: &Wire, n: usize, permitted: Permitted<'_>) -> Taken {
    if n == 0 {
        return Taken::End;
    }
    permitted.moved(n);
    wire.listed.moved(n);
    Taken::Bytes(n as u64)
}

/// Whether so many bytes came at [`FAST`] or more.
fn is_fast(bytes: usize, took: Duration) -> bool {
    bytes as f64 >= FAST * took.as_secs_f64()
}

impl<'a> BlockWriter<'a> {
    /// For the payload of `wire`.
    pub(crate) fn new(job: &'a ReceiveJob<'a>, progress: &'a Progress, core: &'a Core, wire: &Wire) -> Self {
        let mut writer = Self::for_store(job, progress, core);
        let plain = wire.connection.fast_path().socket().is_some();
        if writer.pieces.is_none() && !job.sparse && plain {
            writer.discard = job.sink.discards();
            writer.file = job.sink.disk().and_then(DiskFile::descriptor);
        }
        writer.sealed = !plain;
        writer.pool = Some(&core.pool);
        writer
    }

    /// For [`BlockWriter::store`] only.
    pub(crate) fn for_store(job: &'a ReceiveJob<'a>, progress: &'a Progress, core: &'a Core) -> Self {
        let checksum = job.checksum.filter(|a| a.is_combinable());
        Self {
            job,
            progress,
            control: &core.control,
            budget: &core.budget,
            file: None,
            discard: false,
            pipe: None,
            buffer: None,
            taken: (0, 0),
            held: 0..0,
            spliced: 0..0,
            stored: Instant::now(),
            storing: Storing { sink: Arc::clone(&job.sink), sparse: job.sparse, checksum },
            pool: None,
            sealed: false,
            behind: None,
            ranges: RangeSet::new(),
            bytes: 0,
            pieces: checksum.map(Pieces::new),
        }
    }

    /// Takes up to `left` bytes from `wire` for the file at `at`. Up to `beyond` bytes that follow
    /// those may be read ahead.
    pub(crate) fn take(&mut self, wire: &mut Wire, at: u64, left: u64, beyond: usize) -> Result<Taken> {
        if !wire.ahead().is_empty() {
            return self.take_ahead(wire, at, left);
        }
        let moved = if self.discard { self.discard(wire, left) } else { self.splice(wire, left) };
        match moved.map_err(Error::io(&wire.peer))? {
            Some(Taken::Bytes(n)) => {
                if self.spliced.end != at {
                    self.report_spliced()?;
                    self.spliced = at..at;
                }
                if self.discard {
                    self.spliced.end += n;
                    self.progress.add_bytes(n);
                } else {
                    self.empty_pipe(at, n)?;
                }
                if n == left || self.spliced.end - self.spliced.start >= CHUNK as u64 {
                    self.report_spliced()?;
                }
                Ok(Taken::Bytes(n))
            }
            Some(other) => Ok(other),
            None => self.copy(wire, at, left, beyond),
        }
    }

    /// Time to put what has been reported together with what others have.
    pub(crate) fn is_scattered(&self) -> bool {
        self.ranges.count() >= SCATTERED
    }

    /// For bytes that are not taken from here. `None`: the transfer stops.
    pub(crate) fn permit(&self, most: usize) -> Option<Permitted<'a>> {
        self.control.permit(most)
    }

    /// Writes and reports all that was held back.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let reported = self.report_spliced();
        let flushed = self.flush();
        reported.and(flushed).and(self.catch_up())
    }

    /// Writes `data` at `at`, and reports it.
    pub(crate) fn store(&mut self, data: &[u8], at: u64) -> Result<()> {
        self.catch_up()?;
        let stored = self.storing.store(data, at)?;
        self.stored = Instant::now();
        self.report_stored(at..at + data.len() as u64, stored)
    }

    /// Waits for what is written behind.
    fn catch_up(&mut self) -> Result<()> {
        let Some(mut behind) = self.behind.take() else { return Ok(()) };
        let result = behind.settle(|range, stored| self.report_stored(range, stored));
        self.behind = Some(behind);
        // A file that is written in order is as long as what is there: nothing comes behind what is
        // missing.
        result.inspect_err(|_| self.held = 0..0)
    }

    fn report_stored(&mut self, range: Range<u64>, stored: Stored) -> Result<()> {
        self.progress.add_time(Stage::Checksum, stored.summing);
        self.progress.add_time(Stage::Destination, stored.writing);
        self.progress.add_bytes(range.end - range.start);
        self.report(range, stored.sum)
    }

    fn take_ahead(&mut self, wire: &mut Wire, at: u64, left: u64) -> Result<Taken> {
        let whole = wire.ahead().len() as u64 >= left;
        let ahead = &wire.ahead()[..(wire.ahead().len() as u64).min(left) as usize];
        let n = ahead.len();
        if self.held.is_empty() && (whole || self.file.is_some() || self.discard) {
            self.store(ahead, at)?;
        } else {
            // The start of a block whose rest comes into the same buffer, to be written in one.
            let mut buffer = self.take_buffer();
            let fill = (self.held.end - self.held.start) as usize;
            if fill == 0 {
                self.held = at..at;
            }
            let n = n.min(buffer.len() - fill);
            buffer[fill..fill + n].copy_from_slice(&ahead[..n]);
            self.held.end += n as u64;
            let full = fill + n == buffer.len();
            self.buffer = Some(buffer);
            if full || n as u64 == left {
                self.flush()?;
            }
            wire.consume(n);
            return Ok(Taken::Bytes(n as u64));
        }
        wire.consume(n);
        Ok(Taken::Bytes(n as u64))
    }

    /// From the socket into the pipe; `None` where it cannot be done.
    fn splice(&mut self, wire: &Wire, left: u64) -> io::Result<Option<Taken>> {
        let (Some(_), Some(socket)) = (self.file, wire.connection.fast_path().socket()) else {
            return Ok(None);
        };
        if self.pipe.is_none() {
            self.pipe = self.budget.pipe(PIPE_SIZE);
        }
        let Some(pipe) = &mut self.pipe else {
            self.file = None;
            return Ok(None);
        };
        let most = usize::try_from(left).unwrap_or(PIPE_SIZE).min(PIPE_SIZE);
        let Some(permitted) = self.control.permit(most) else { return Ok(Some(Taken::Blocked)) };
        let began = Instant::now();
        let moved = retry_on_intr(|| pipe.fill(socket, permitted.bytes()));
        self.progress.add_time(Stage::Network, began.elapsed());
        match moved {
            Ok(n) => Ok(Some(count(wire, n, permitted))),
            Err(Errno::AGAIN) => Ok(Some(Taken::Blocked)),
            Err(Errno::INVAL | Errno::NOSYS) => {
                self.file = None;
                Ok(None)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Has the driver drop what comes; `None` if it cannot.
    fn discard(&mut self, wire: &mut Wire, left: u64) -> io::Result<Option<Taken>> {
        let most = usize::try_from(left).unwrap_or(COPY_CHUNK).min(COPY_CHUNK);
        let Some(permitted) = self.control.permit(most) else { return Ok(Some(Taken::Blocked)) };
        let most = permitted.bytes();
        let began = Instant::now();
        let received = retry(|| wire.connection.discard(most));
        if let Ok(Some(n)) = received
            && n < most
            && is_fast(n, began.elapsed())
        {
            std::thread::sleep(MODERATION);
        }
        self.progress.add_time(Stage::Network, began.elapsed());
        match received {
            Ok(n) => Ok(n.map(|n| count(wire, n, permitted))),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Some(Taken::Blocked)),
            Err(e) => Err(e),
        }
    }

    /// Writes the `n` bytes in the pipe to the file at `at`.
    fn empty_pipe(&mut self, at: u64, n: u64) -> Result<()> {
        let mut at = at;
        let end = at + n;
        let began = Instant::now();
        self.job.sink.admit(end).map_err(Error::Store)?;
        if let Some(disk) = self.job.sink.disk() {
            disk.make_room(at, n);
        }
        while at < end
            && let (Some(file), Some(pipe)) = (self.file, &mut self.pipe)
        {
            let offset = (self.job.sink.positions() == Positions::Any).then_some(at);
            match pipe.drain(file, offset) {
                Ok(n) if n > 0 => {
                    at += n as u64;
                    self.spliced.end = at;
                    self.progress.add_bytes(n as u64);
                }
                Err(Errno::INTR) => {}
                // Not with this file, or the disk is full: an ordinary write says which, with the
                // path.
                Ok(_) | Err(_) => self.file = None,
            }
        }
        self.progress.add_time(Stage::Destination, began.elapsed());
        if at < end {
            self.report_spliced()?;
        }
        while at < end {
            let mut buffer = self.take_buffer();
            let Some(pipe) = &mut self.pipe else { break };
            let n = pipe.read(&mut buffer).map_err(|e| Error::system("read from a pipe")(e.into()))?;
            self.store(&buffer[..n], at)?;
            at += n as u64;
            self.buffer = Some(buffer);
        }
        Ok(())
    }

    fn copy(&mut self, wire: &mut Wire, at: u64, left: u64, beyond: usize) -> Result<Taken> {
        let mut buffer = self.take_buffer();
        if self.held.is_empty() {
            self.held = at..at;
        }
        let fill = (self.held.end - self.held.start) as usize;
        let room = &mut buffer[fill..];
        let want = usize::try_from(left).unwrap_or(room.len()).min(room.len());
        let Some(permitted) = self.control.permit(want) else {
            self.buffer = Some(buffer);
            return Ok(Taken::Blocked);
        };
        let want = permitted.bytes();
        let beyond = if want as u64 == left { beyond } else { 0 };
        let began = Instant::now();
        let result = wire.read_into(&mut room[..want], beyond);
        let sealing = wire.take_sealing();
        self.progress.add_time(Stage::Network, began.elapsed().saturating_sub(sealing));
        self.progress.add_time(Stage::Encryption, sealing);
        let full = fill + want == buffer.len();
        self.buffer = Some(buffer);
        match result {
            Ok(0) => Ok(Taken::End),
            Ok(n) => {
                self.held.end += n as u64;
                permitted.moved(n);
                if n as u64 == left || n == want && full {
                    self.flush()?;
                }
                Ok(Taken::Bytes(n as u64))
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                // Nothing else is to be done now, and it may take long until there is.
                self.catch_up()?;
                if self.stored.elapsed() >= LINGER {
                    self.flush()?;
                }
                Ok(Taken::Blocked)
            }
            Err(e) => Err(Error::io(&wire.peer)(e)),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let (held, at) = ((self.held.end - self.held.start) as usize, self.held.start);
        self.held = 0..0;
        let Some(buffer) = self.buffer.take_if(|_| held > 0) else { return Ok(()) };
        // A thread that writes directly waits for the disk, which takes no processor.
        let directly = self.disk_chunk().is_some();
        if held >= SMALL && self.stored.elapsed() < HURRY && (self.sealed || directly) {
            if self.behind.is_none()
                && let Some(pool) = self.pool
            {
                let streams = if directly { 0 } else { self.progress.streams() };
                self.behind = Behind::begin(pool, &self.storing, streams);
            }
            if let Some(mut behind) = self.behind.take() {
                self.stored = Instant::now();
                let range = at..at + held as u64;
                let result = behind.write(buffer, range, |range, stored| self.report_stored(range, stored));
                self.behind = Some(behind);
                self.buffer = result?;
                return Ok(());
            }
        }
        let result = self.store(&buffer[..held], at);
        self.buffer = Some(buffer);
        result
    }

    fn report_spliced(&mut self) -> Result<()> {
        let range = std::mem::take(&mut self.spliced);
        if range.is_empty() { Ok(()) } else { self.report(range, None) }
    }

    /// The bytes of `range` are in the store.
    fn report(&mut self, range: Range<u64>, sum: Option<u32>) -> Result<()> {
        self.bytes += range.end - range.start;
        self.ranges.insert(range.clone());
        if let (Some(pieces), Some(sum)) = (&mut self.pieces, sum) {
            pieces.insert(range.clone(), sum);
        }
        // The caller records a range before it counts as received.
        (self.job.written)(range.clone(), sum)?;
        self.progress.add_received(range, self.budget)
    }

    /// The best size of a write in bytes, if it matters.
    fn disk_chunk(&self) -> Option<usize> {
        self.job.sink.disk().and_then(DiskFile::chunk)
    }

    fn take_buffer(&mut self) -> Buffer {
        let wanted = self.disk_chunk().unwrap_or(COPY_CHUNK);
        // The best size of a write may have changed, and there may be no larger buffer.
        let fits = |buffer: &Buffer| {
            !self.held.is_empty() || buffer.len() == wanted || self.taken == (wanted, buffer.len())
        };
        if let Some(buffer) = self.buffer.take().filter(fits) {
            return buffer;
        }
        let buffer = self.budget.take(wanted);
        self.taken = (wanted, buffer.len());
        buffer
    }
}

impl Drop for BlockWriter<'_> {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.budget.return_pipe(pipe);
        }
    }
}
