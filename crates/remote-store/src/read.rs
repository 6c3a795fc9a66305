//! A file at a far server that is open for reading.
//!
//! A thread fetches the file, starting at the offset of the first read, ahead of its readers into a
//! window. A read elsewhere starts another fetch there, and ends the present one once no reader
//! waits for it. A fetch that fails is restarted where it is needed, unless it has failed a few
//! times in a row without progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;
use ropewalk_client::Cancel;
use ropewalk_client::far::{Far, Fetch};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::{Error, ErrorKind, Lock, Metadata, ReadHandle, Result, WriteHandle};

use crate::window::{SCATTERED, Window, over};

/// The maximum number of fetches in a row without progress.
const TRIES: u32 = 3;

/// See the head of the module.
pub(crate) struct RemoteFile(Arc<Inner>);

struct Inner {
    far: Arc<Far>,
    path: VirtualPath,
    metadata: Metadata,
    window: Arc<Window>,
    fetch: Mutex<State>,
    /// The streams of the server were too far apart, so one stream is used.
    in_order: AtomicBool,
}

#[derive(Default)]
struct State {
    running: Option<Running>,
    failed_tries: u32,
    failure: Option<Error>,
    /// The ranges that will be read, if that is known.
    wanted: Option<RangeSet>,
}

struct Running {
    generation: u64,
    range: std::ops::Range<u64>,
    cancel: Cancel,
}

impl RemoteFile {
    pub(crate) fn new(far: Arc<Far>, path: VirtualPath, metadata: Metadata, window: Window) -> Self {
        Self(Arc::new(Inner {
            far,
            path,
            metadata,
            window: Arc::new(window),
            fetch: Mutex::default(),
            in_order: AtomicBool::new(false),
        }))
    }
}

impl Lock for RemoteFile {}

impl ReadHandle for RemoteFile {
    fn metadata(&self) -> Result<Metadata> {
        Ok(self.0.metadata.clone())
    }

    fn will_read(&self, ranges: &RangeSet) {
        self.0.fetch.lock().wanted = Some(ranges.clone());
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        if buffer.is_empty() || offset >= self.0.metadata.size {
            return Ok(0);
        }
        let window = &self.0.window;
        loop {
            {
                let mut state = window.state();
                if let Some(taken) = state.take(buffer, offset)? {
                    drop(state);
                    window.has_room();
                    return Ok(taken);
                }
                let mut fetch = self.0.fetch.lock();
                if let Some(failure) = &fetch.failure {
                    return Err(failure.clone());
                }
                let reach = 2 * window.limit() as u64;
                let coming = fetch.running.as_ref().is_some_and(|running| {
                    let ahead = offset.saturating_sub(state.arrived.end().max(running.range.start));
                    running.range.contains(&offset)
                        && !state.arrived.contains(offset..offset + 1)
                        && ahead <= reach
                });
                if coming || fetch.running.is_some() && state.is_waited_for() {
                    drop(fetch);
                    window.wait(&mut state, offset);
                    continue;
                }
                if let Some(running) = fetch.running.take() {
                    running.cancel.cancel();
                }
                let end = fetch.wanted.as_ref().map_or(self.0.metadata.size, |wanted| {
                    let range = wanted.iter().find(|range| range.contains(&offset));
                    range.map_or(self.0.metadata.size, |range| range.end.min(self.0.metadata.size))
                });
                let generation = state.begin();
                let running = Running { generation, range: offset..end, cancel: Cancel::new() };
                let cancel = running.cancel.clone();
                fetch.running = Some(running);
                drop(fetch);
                drop(state);
                // Wakes the threads that put data for the earlier fetch, so that they notice its
                // end.
                window.wake();
                let inner = self.0.clone();
                let run = move || inner.run(generation, offset..end, &cancel);
                thread::Builder::new().name("fetch".to_owned()).spawn(run).map_err(|error| {
                    self.0.fetch.lock().running = None;
                    Error::from_io(&error, "read", self.0.path.as_bytes())
                })?;
            }
        }
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        Ok(RangeSet::from_range(start..end.min(self.0.metadata.size).max(start)))
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        if let Some(running) = self.0.fetch.lock().running.take() {
            running.cancel.cancel();
        }
        self.0.window.close(over());
    }
}

impl Inner {
    fn run(&self, generation: u64, range: std::ops::Range<u64>, cancel: &Cancel) {
        let sink = Sink { window: self.window.clone(), generation, path: self.path.clone() };
        let result = self.far.fetch(&Fetch {
            path: self.path.as_bytes(),
            range,
            size: self.metadata.size,
            sink: Arc::new(sink),
            waited_for: &|| self.window.state().is_waited_for(),
            in_order: self.in_order.load(Ordering::Relaxed),
            most_streams: self.window.streams(),
            cancel,
        });
        let state = self.window.state();
        let mut fetch = self.fetch.lock();
        if fetch.running.as_ref().is_some_and(|running| running.generation == generation) {
            fetch.running = None;
            if let Err(error) = result {
                if !state.arrived.is_empty() {
                    fetch.failed_tries = 0;
                }
                fetch.failed_tries += 1;
                let again = error.is_transient() && fetch.failed_tries < TRIES;
                let error = error.into_storage("read", self.path.as_bytes());
                let scattered = error.detail() == Some(SCATTERED);
                if scattered && !self.in_order.swap(true, Ordering::Relaxed) || again {
                    tracing::debug!(path = %self.path, %error, "a fetch is begun again");
                } else {
                    fetch.failure = Some(error);
                }
            }
        }
        drop(fetch);
        drop(state);
        self.window.wake();
    }
}

/// Puts the data that a fetch receives into the window.
struct Sink {
    window: Arc<Window>,
    generation: u64,
    path: VirtualPath,
}

impl Lock for Sink {}

impl WriteHandle for Sink {
    fn metadata(&self) -> Result<Metadata> {
        Err(Error::new(ErrorKind::Unsupported, "stat", self.path.as_bytes()))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.window.put(self.generation, data, offset)
    }

    fn set_len(&self, _length: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "truncate", self.path.as_bytes()))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
