//! Sends the data that is written to a file at a far server.
//!
//! Writers put bytes into a window, in any order. A thread sends them in one transfer that lasts
//! until [`Pump::flush`]; the next write starts another one. After a failure, all writes fail until
//! [`Pump::recover`].

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bstr::BString;
use parking_lot::Mutex;
use ropewalk_client::Cancel;
use ropewalk_client::far::{Far, FarUpload, Outgoing, OutgoingSource};
use ropewalk_engine::Feed;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::{Error, ErrorKind, Lock, Metadata, ReadHandle, Result};

use crate::window::{Window, over};

/// The place at the far server to which the bytes go.
pub(crate) enum Target {
    Upload(Box<FarUpload>),
    File(Arc<Far>, BString),
}

impl Target {
    fn send(&self, outgoing: Outgoing<'_>) -> Result<(), ropewalk_client::Error> {
        match self {
            Self::Upload(upload) => upload.send(outgoing),
            Self::File(far, _) => far.send(outgoing),
        }
    }

    fn path(&self) -> BString {
        match self {
            Self::Upload(upload) => upload.part(),
            Self::File(_, path) => path.clone(),
        }
    }
}

pub(crate) struct Pump {
    path: VirtualPath,
    window: Arc<Window>,
    any_order: bool,
    state: Mutex<State>,
    /// The ranges that the far server has on its disk.
    stored: Arc<Mutex<RangeSet>>,
}

struct State {
    target: Arc<Target>,
    running: Option<Running>,
    failure: Option<Error>,
    /// The offset of the next byte, if the server accepts bytes only in order.
    next: Option<u64>,
}

struct Running {
    feed: Arc<Feed>,
    generation: u64,
    cancel: Cancel,
    thread: JoinHandle<Result<(), ropewalk_client::Error>>,
    /// Disconnected once the transfer has ended.
    end: Receiver<()>,
    /// It gets no more bytes.
    ending: bool,
}

impl Pump {
    /// `next` is the offset at which a server that accepts bytes only in order continues; `None`
    /// means the offset of the first write.
    pub(crate) fn new(
        path: &VirtualPath,
        target: Target,
        any_order: bool,
        next: Option<u64>,
        window: Window,
    ) -> Self {
        let state = State { target: Arc::new(target), running: None, failure: None, next };
        let (path, window) = (path.clone(), Arc::new(window));
        Self { path, window, any_order, state: Mutex::new(state), stored: Arc::default() }
    }

    pub(crate) fn target(&self) -> Arc<Target> {
        self.state.lock().target.clone()
    }

    /// The ranges that the far server has on its disk, as far as it has reported them.
    pub(crate) fn stored(&self) -> RangeSet {
        self.stored.lock().clone()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    /// Accepts bytes to send, and waits while the window is full.
    ///
    /// # Errors
    /// The transfer has failed.
    pub(crate) fn write(&self, data: &[u8], offset: u64) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let (feed, generation) = {
            let mut state = self.state.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.running.as_ref().is_some_and(|running| running.ending) {
                self.finish(&mut state)?;
            }
            let running = match state.running.take() {
                Some(running) => running,
                None => self.begin(&state, offset)?,
            };
            let running = state.running.insert(running);
            (running.feed.clone(), running.generation)
        };
        let put = self.window.put(generation, data, offset);
        if put.is_err() {
            // The reason for the failure is that of the transfer, which `flush` returns.
            self.flush()?;
        }
        put?;
        feed.add(offset..offset + data.len() as u64);
        Ok(())
    }

    fn begin(&self, state: &State, offset: u64) -> Result<Running> {
        let (target, feed, cancel) = (state.target.clone(), Arc::new(Feed::default()), Cancel::new());
        let generation = self.window.reopen();
        let from = (!self.any_order).then(|| state.next.unwrap_or(offset));
        let (window, stored) = (self.window.clone(), self.stored.clone());
        let (sent, cancelled) = (feed.clone(), cancel.clone());
        let (ended, end) = channel();
        let run = move || {
            let _ended: Sender<()> = ended;
            let mut note = |ranges: &RangeSet| stored.lock().union(ranges);
            let path = target.path();
            let mut reader = InOrder { window: window.clone(), at: from.unwrap_or(0) };
            let source = match from {
                None => OutgoingSource::Ranges(Arc::new(Source(window.clone())), sent),
                Some(at) => OutgoingSource::InOrder(at, &mut reader),
            };
            let result = target.send(Outgoing {
                path,
                source,
                most_streams: window.streams(),
                cancel: &cancelled,
                stored: &mut note,
            });
            if result.is_err() {
                // Writers must not wait for room.
                window.close(over());
            }
            result
        };
        let started = thread::Builder::new().name("forward".to_owned()).spawn(run);
        let thread = started.map_err(|error| Error::from_io(&error, "write", self.path.as_bytes()))?;
        Ok(Running { feed, generation, cancel, thread, end, ending: false })
    }

    /// Waits until the far server has all bytes that were written.
    ///
    /// # Errors
    /// The transfer fails or has failed.
    pub(crate) fn flush(&self) -> Result<()> {
        self.finish(&mut self.state.lock())
    }

    /// As [`Pump::flush`], for at most `limit`. Returns whether the far server has all bytes.
    ///
    /// # Errors
    /// The transfer fails or has failed.
    pub(crate) fn settle(&self, limit: Duration) -> Result<bool> {
        let mut state = self.state.lock();
        if let Some(running) = &mut state.running {
            if !running.ending {
                running.ending = true;
                running.feed.end();
                self.window.end();
            }
            if matches!(running.end.recv_timeout(limit), Err(RecvTimeoutError::Timeout)) {
                return Ok(false);
            }
        }
        self.finish(&mut state).map(|()| true)
    }

    fn finish(&self, state: &mut State) -> Result<()> {
        if let Some(running) = state.running.take() {
            running.feed.end();
            self.window.end();
            let result = running.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let arrived = self.window.state().arrived.clone();
            match result {
                Ok(()) => {
                    if !self.any_order {
                        let next = state.next.or(arrived.iter().next().map(|range| range.start));
                        let mut all = arrived.clone();
                        all.insert(0..next.unwrap_or(0));
                        if all.count() > 1 {
                            state.failure = Some(self.gap());
                        }
                        state.next = Some(all.prefix());
                    }
                    self.stored.lock().union(&arrived);
                }
                Err(error) => state.failure = Some(error.into_storage("write", self.path.as_bytes())),
            }
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    fn gap(&self) -> Error {
        let text = "the far server takes bytes in order only, and some in between are missing";
        Error::new(ErrorKind::Unsupported, "write", self.path.as_bytes()).with_detail(text)
    }

    /// Ends the transfer immediately.
    pub(crate) fn abandon(&self) {
        let running = self.state.lock().running.take();
        if let Some(running) = running {
            running.cancel.cancel();
            self.window.close(over());
            running.feed.end();
            drop(running.thread.join());
        }
    }

    /// Records that the far server has these ranges from an earlier upload.
    pub(crate) fn recover_stored(&self, present: &RangeSet) {
        self.stored.lock().union(present);
    }

    /// Resumes with a new target after a failure.
    pub(crate) fn recover(&self, target: Target, present: &RangeSet) {
        let mut state = self.state.lock();
        state.target = Arc::new(target);
        state.next = Some(present.prefix());
        state.failure = None;
        *self.stored.lock() = present.clone();
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Reads the window as the file that is sent.
struct Source(Arc<Window>);

impl Lock for Source {}

impl ReadHandle for Source {
    fn metadata(&self) -> Result<Metadata> {
        Err(Error::new(ErrorKind::Unsupported, "stat", b""))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.0.take(buffer, offset)
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        Ok(RangeSet::from_range(start..end))
    }
}

/// Reads the window as a stream of bytes.
struct InOrder {
    window: Arc<Window>,
    at: u64,
}

impl Read for InOrder {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let taken = self.window.take_next(buffer, self.at)?;
        self.at += taken as u64;
        Ok(taken)
    }
}
