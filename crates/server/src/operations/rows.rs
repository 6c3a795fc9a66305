//! The rows of a listing, made on one thread and sent on another.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use ropewalk_protocol::facts::{Entry, EntryKind, FactSet};
use ropewalk_protocol::listing::{on_one_line, print_long};
use ropewalk_protocol::server::{Failure, ListForm};
use ropewalk_storage::{Error, ErrorKind, Result};

/// Bytes that are passed on at a time.
const CHUNK: usize = 64 << 10;
/// Chunks that may wait to be sent.
pub(super) const CHUNKS: usize = 4;

/// The longest time without rows after which the sender checks the control connection.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

pub(super) type Chunk = std::result::Result<Vec<u8>, Failure>;

/// Prints entries and passes the rows on.
pub(super) struct Rows {
    form: ListForm,
    facts: FactSet,
    /// The time when the listing began, in seconds since 1970.
    now: i64,
    /// The directory itself. It reports its number of entries, if that is known before the first
    /// chunk is passed on.
    first: Option<Entry>,
    count: u64,
    rows: Vec<u8>,
    sender: SyncSender<Chunk>,
}

impl Rows {
    pub(super) fn new(form: ListForm, facts: FactSet, now: i64, sender: SyncSender<Chunk>) -> Self {
        Self { form, facts, now, first: None, count: 0, rows: Vec::new(), sender }
    }

    pub(super) fn entry(&mut self, entry: Entry) -> Result<()> {
        match entry.kind {
            EntryKind::CurrentDirectory => {
                self.first = Some(entry);
                return Ok(());
            }
            EntryKind::ParentDirectory => {}
            _ => self.count += 1,
        }
        self.print(&entry);
        if self.rows.len() >= CHUNK { self.hand_over() } else { Ok(()) }
    }

    /// Ends the listing, with a failure if `result` is one.
    pub(super) fn end(mut self, result: std::result::Result<(), Failure>) {
        // If the transfer has failed, the receiver is gone.
        match result {
            Ok(()) => {
                if let Some(first) = &mut self.first {
                    first.count = Some(self.count);
                }
                let _ = self.hand_over();
            }
            Err(failure) => {
                let _ = self.sender.send(Err(failure));
            }
        }
    }

    fn print(&mut self, entry: &Entry) {
        match self.form {
            ListForm::Long => print_long(entry, self.now, &mut self.rows),
            ListForm::Names => self.rows.extend_from_slice(&on_one_line(&entry.name)),
            ListForm::Facts | ListForm::Recursive => entry.print(self.facts, &mut self.rows),
        }
        self.rows.extend_from_slice(b"\r\n");
    }

    fn hand_over(&mut self) -> Result<()> {
        if let Some(first) = self.first.take() {
            let rest = std::mem::take(&mut self.rows);
            self.print(&first);
            self.rows.extend_from_slice(&rest);
        }
        if self.rows.is_empty() {
            return Ok(());
        }
        let gone = |_| Error::new(ErrorKind::Interrupted, "list", "");
        self.sender.send(Ok(std::mem::take(&mut self.rows))).map_err(gone)
    }
}

/// The rows as a stream of bytes.
pub(super) struct Reader {
    current: Vec<u8>,
    at: usize,
    chunks: Receiver<Chunk>,
    /// The reason why the listing ended early.
    pub(super) failure: Option<Failure>,
}

impl Reader {
    pub(super) fn new(first: Vec<u8>, chunks: Receiver<Chunk>) -> Self {
        Self { current: first, at: 0, chunks, failure: None }
    }
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() {
            match self.chunks.recv_timeout(PAUSE) {
                Ok(Ok(chunk)) => (self.current, self.at) = (chunk, 0),
                Ok(Err(failure)) => {
                    self.failure = Some(failure);
                    return Err(io::Error::other("the listing failed"));
                }
                // This lets the sender read from the client. A directory can have many entries that
                // are not shown.
                Err(RecvTimeoutError::Timeout) => return Err(io::ErrorKind::WouldBlock.into()),
                // The other thread has ended: there are no more rows.
                Err(RecvTimeoutError::Disconnected) => return Ok(0),
            }
        }
        let n = buffer.len().min(self.current.len() - self.at);
        buffer[..n].copy_from_slice(&self.current[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}
