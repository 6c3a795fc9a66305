//! The link during a transfer.
//!
//! The thread of the session is the only one that uses it. The threads of the streams leave what
//! they have stored in [`Stored`], which the next report takes along. An order to abort, a link
//! that breaks, or the end of the lease ends the transfer.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_engine::{Attendant, Parallelism, Progress};
use ropewalk_nodes::{Frame, Link, LinkError, MoveFailure, Order, Report, SessionLease, Sum, Transferred};
use ropewalk_storage::WriteHandle;

/// The least time between two reports.
const SOON: Duration = Duration::from_millis(100);
/// The most, even if nothing has moved.
const LATE: Duration = Duration::from_secs(1);
/// How long the source of bytes waits before the engine serves its connections.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Line<'l> {
    link: &'l mut Link,
    parallelism: Parallelism,
    lease: &'l SessionLease,
    /// Bytes to send that have come.
    bytes: VecDeque<Vec<u8>>,
    /// They have ended, and were all that there are.
    complete: Option<bool>,
    asked: bool,
    aborted: bool,
    broken: Option<LinkError>,
}

impl<'l> Line<'l> {
    pub(super) fn new(link: &'l mut Link, parallelism: Parallelism, lease: &'l SessionLease) -> Self {
        Self {
            link,
            parallelism,
            lease,
            bytes: VecDeque::new(),
            complete: None,
            asked: false,
            aborted: false,
            broken: None,
        }
    }

    /// Reports the end of the transfer.
    pub(super) fn end(self, result: Result<Transferred, MoveFailure>) -> Result<(), LinkError> {
        match self.broken {
            Some(error) => Err(error),
            None => self.link.send(&Report::Ended(result)),
        }
    }

    fn send(&mut self, report: &Report) -> ControlFlow<()> {
        match self.link.send(report) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: LinkError) -> ControlFlow<()> {
        self.broken.get_or_insert(error);
        ControlFlow::Break(())
    }

    /// Takes the frames that are there, after waiting for at most this time for the first.
    fn take(&mut self, mut timeout: Duration) -> ControlFlow<()> {
        if !self.lease.is_valid() {
            let text = "the lease at the front end has ended";
            return self.fail(io::Error::new(ErrorKind::TimedOut, text).into());
        }
        loop {
            match self.link.receive(timeout) {
                Ok(Some(Frame::Bytes(bytes))) => self.bytes.push_back(bytes),
                Ok(Some(frame)) => match frame.message() {
                    Ok(Order::Abort) => self.aborted = true,
                    Ok(Order::Streams(n)) => self.parallelism.set(n),
                    Ok(Order::BytesEnd { complete }) => self.complete = Some(complete),
                    Ok(order) => {
                        return self.fail(LinkError::Message(format!("{order:?} during a transfer")));
                    }
                    Err(error) => return self.fail(error),
                },
                Ok(None) => break,
                Err(error) => return self.fail(error),
            }
            timeout = Duration::ZERO;
        }
        if self.aborted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The ranges that the threads of the streams have stored since the last report.
pub(super) struct Stored {
    sums: Mutex<Vec<Sum>>,
    handle: Arc<dyn WriteHandle>,
    /// Data is reported when it is on stable storage.
    sync: bool,
}

impl Stored {
    pub(super) fn new(handle: Arc<dyn WriteHandle>, sync: bool) -> Self {
        Self { sums: Mutex::default(), handle, sync }
    }

    pub(super) fn add(&self, sum: Sum) {
        let mut sums = self.sums.lock();
        match sums.last_mut() {
            Some(last) if last.end == sum.start && last.sum.is_none() && sum.sum.is_none() => {
                last.end = sum.end;
            }
            _ => sums.push(sum),
        }
    }

    fn take(&self) -> ropewalk_storage::Result<Vec<Sum>> {
        let sums = std::mem::take(&mut *self.sums.lock());
        if self.sync && !sums.is_empty() {
            self.handle.sync()?;
        }
        Ok(sums)
    }
}

/// Watches a transfer for the front end.
pub(super) struct Reporter<'r, 'l> {
    line: &'r RefCell<Line<'l>>,
    descriptor: OwnedFd,
    stored: Option<&'r Stored>,
    at: Instant,
    bytes: u64,
    streams: u32,
}

impl<'r, 'l> Reporter<'r, 'l> {
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new(line: &'r RefCell<Line<'l>>, stored: Option<&'r Stored>) -> io::Result<Self> {
        let descriptor = line.borrow().link.as_fd().try_clone_to_owned()?;
        Ok(Self { line, descriptor, stored, at: Instant::now(), bytes: 0, streams: 0 })
    }

    /// Reports what has moved until now.
    ///
    /// # Errors
    /// The stored bytes cannot be brought to stable storage.
    pub(super) fn report(&mut self, progress: &Progress) -> ropewalk_storage::Result<ControlFlow<()>> {
        let stored = self.stored.map(Stored::take).transpose()?.unwrap_or_default();
        let waiting_ns = progress.times().map(|time| time.as_nanos() as u64);
        let (bytes, streams) = (progress.bytes(), progress.streams());
        (self.at, self.bytes, self.streams) = (Instant::now(), bytes, streams);
        Ok(self.line.borrow_mut().send(&Report::Moved { bytes, streams, waiting_ns, stored }))
    }
}

impl Attendant for Reporter<'_, '_> {
    fn begun(&mut self, reused: bool) -> io::Result<()> {
        match self.line.borrow_mut().send(&Report::Begun { reused }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ErrorKind::ConnectionAborted.into()),
        }
    }

    fn tick(&mut self, progress: &Progress) -> ControlFlow<()> {
        self.line.borrow_mut().take(Duration::ZERO)?;
        let changed = (progress.bytes(), progress.streams()) != (self.bytes, self.streams);
        if self.at.elapsed() < if changed { SOON } else { LATE } {
            return ControlFlow::Continue(());
        }
        // The sync at the end fails, too, and says why.
        self.report(progress).unwrap_or(ControlFlow::Break(()))
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }

    fn readable(&mut self) -> ControlFlow<()> {
        self.line.borrow_mut().take(Duration::ZERO)
    }
}

/// The bytes that the front end provides.
pub(super) struct Source<'s, 'l> {
    line: &'s RefCell<Line<'l>>,
    left: VecDeque<u8>,
}

impl<'s, 'l> Source<'s, 'l> {
    pub(super) fn new(line: &'s RefCell<Line<'l>>) -> Self {
        Self { line, left: VecDeque::new() }
    }

    /// Waits a moment for the next bytes.
    fn next(&self) -> io::Result<Vec<u8>> {
        let broken = || io::Error::from(ErrorKind::ConnectionAborted);
        let mut line = self.line.borrow_mut();
        if line.bytes.is_empty() && line.complete.is_none() {
            if !std::mem::replace(&mut line.asked, true) && line.send(&Report::More).is_break() {
                return Err(broken());
            }
            if line.take(PAUSE).is_break() {
                return Err(broken());
            }
        }
        match (line.bytes.pop_front(), line.complete) {
            (Some(bytes), _) => {
                line.asked = false;
                Ok(bytes)
            }
            (None, Some(true)) => Ok(Vec::new()),
            (None, Some(false)) => Err(broken()),
            (None, None) => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Read for Source<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left.is_empty() {
            self.left = self.next()?.into();
        }
        self.left.read(buffer)
    }
}
