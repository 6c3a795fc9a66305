//! The state of a file that is downloaded, perhaps by several sessions at the same time.
//!
//! The sessions share a [`Download`] in an `Arc`. It owns the part file and the ledger of ranges
//! and checksums. The bytes that have arrived are recorded in the part file's journal, so that a
//! later run can resume. [`Download::commit`] completes and renames the file; after it fails, the
//! download cannot continue, and the next try opens the part file again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::checksum::{Algorithm, Pieces, checksum_file};
use ropewalk_storage::{
    JournalKey, Journaling, Kind, NullStore, Positions, Store, Upload, UploadOptions, UploadSpec,
    WriteHandle, WriteOptions,
};

use ropewalk_transfer::{Arrival, File, Ledger, Purpose, Side, Sides};

use crate::model::tries::{Tried, Tries};
use crate::path_defaults::SMALL;
use crate::piece::Piece;
use crate::place::Place;
use crate::place::is_device;
use crate::task::Task;
use crate::verify::{Check, proof, same};
use crate::{FsyncPolicy, Options, RemoteError};

/// Permission bits of new files, before the umask.
const NEW_FILE: u32 = 0o666;

pub(crate) struct Download {
    pub task: Task,
    pub check: Check,
    /// Do not write runs of zeros: bytes that are not written read as zeros.
    pub sparse: bool,
    /// Permission bits of the file that is replaced.
    replaced: Option<u32>,
    /// Bytes that were present when the download started.
    pub resumed: u64,
    store: Arc<dyn Store>,
    target: Option<VirtualPath>,
    handle: Arc<dyn WriteHandle>,
    /// `None` if data is written directly into an existing file: a window or a device.
    part: RwLock<Option<Arc<dyn Upload>>>,
    pub piece: Piece,
    state: Mutex<State>,
    /// Failed tries of this run.
    pub tries: Tries,
    /// The number of failed tries at the time of the last check that the source is unchanged.
    found: AtomicU32,
}

struct State {
    /// Ranges and checksums of this run. The ranges that are present are in the part file's
    /// journal.
    ledger: Ledger,
    /// The ranges that an earlier transfer left, with their checksums at that time. Another process
    /// may have written to them since, so they are read again.
    before: Vec<(Range<u64>, String)>,
    /// The checksum that both sides have.
    proof: Option<String>,
    /// The source's checksum, if the server reported it before the data.
    theirs: Option<String>,
    /// Bytes were written.
    written: bool,
    /// A commit was tried: the part file has been released.
    ended: bool,
}

impl Download {
    /// Opens the destination of `task`. With `resume`, the data that an earlier run left is used if
    /// the source is unchanged.
    pub(crate) fn begin(
        task: Task,
        check: Check,
        store: &Arc<dyn Store>,
        options: &Options,
        resume: bool,
    ) -> Result<Arc<Self>, RemoteError> {
        let mut sparse = false;
        let mut part = None;
        let mut path = None;
        let mut replaced = None;
        let handle = match &task.destination {
            Place::Local(target) => {
                path = Some(target.clone());
                let local = |e| RemoteError::local(target.as_bytes(), e);
                let there = store.stat(target, true).ok();
                let file = there.as_ref().is_some_and(|there| there.kind == Kind::File);
                let special = file && is_device(target.as_bytes())
                    || there.as_ref().is_some_and(|m| !matches!(m.kind, Kind::File | Kind::Directory));
                if there.as_ref().is_some_and(|m| m.kind == Kind::Directory) {
                    return Err(RemoteError::Usage(format!("{target}: is a directory")));
                }
                if special
                    && task.found
                    && store.stat(target, false).is_ok_and(|there| there.kind == Kind::Symlink)
                {
                    let what = "a symbolic link stands there and leads to what is no file; nothing is written through it";
                    return Err(RemoteError::Usage(format!("{target}: {what}")));
                }
                if special || task.window.is_some() {
                    // An open file (`/dev/stdout`) must not keep old bytes behind the new ones.
                    let truncate = file && task.window.is_none();
                    let options = WriteOptions { create: true, truncate, exclusive: false, mode: NEW_FILE };
                    store.open_write(target, options).map_err(local)?
                } else {
                    let key =
                        JournalKey { source: task.identity(), size: task.size, modified: task.modified };
                    replaced = there.as_ref().map(|there| there.mode & 0o777);
                    let kept = task.mode.filter(|_| options.preserve.modes);
                    // A user who may not read the replaced file may not read the new one either.
                    let mode = kept.unwrap_or_else(|| NEW_FILE & replaced.unwrap_or(NEW_FILE));
                    let upload_options = UploadOptions {
                        // Until the file is complete this client must be able to write to it, in
                        // another run too.
                        mode: mode | 0o600,
                        resume: resume && !options.data.ascii,
                        journal: Journaling::Above(SMALL),
                        sync: options.integrity.fsync != FsyncPolicy::None,
                        direct: options.storage.direct_io,
                        reserve: true,
                    };
                    let spec = UploadSpec { key, options: upload_options };
                    let begun = store.begin_upload(target, spec).map_err(local)?;
                    let handle = begun.writer();
                    sparse = options.storage.sparse && begun.is_blank();
                    part = Some(begun);
                    handle
                }
            }
            Place::Measure(_) => {
                let store = NullStore::new(0);
                let root = VirtualPath::root();
                let path = root.child(b"null").unwrap_or(root);
                let options =
                    WriteOptions { create: true, truncate: false, exclusive: false, mode: NEW_FILE };
                store.open_write(&path, options).map_err(|e| RemoteError::local("null:", e))?
            }
            Place::Remote(..) | Place::Standard => {
                return Err(RemoteError::Usage(format!("{}: not a local file", task.destination.display())));
            }
        };
        let pieces = match (&part, check.in_passing()) {
            (Some(part), Some(Algorithm::Crc32c)) => Some(part.pieces()),
            (_, Some(algorithm)) => Some(Pieces::new(algorithm)),
            (_, None) => None,
        };
        let before = part.iter().flat_map(|part| part.present().iter().collect::<Vec<_>>());
        let before =
            before.filter_map(|range| Some((range.clone(), pieces.as_ref()?.total(range)?))).collect();
        let state = State {
            ledger: Ledger::new(RangeSet::new(), pieces),
            before,
            proof: None,
            theirs: None,
            written: false,
            ended: false,
        };
        let resumed = part.as_ref().map_or(0, |part| part.present().len());
        Ok(Arc::new(Self {
            tries: Tries::new(*task.tries, resumed),
            found: AtomicU32::new(task.tries.total),
            task,
            check,
            sparse,
            replaced,
            resumed,
            store: store.clone(),
            target: path,
            handle,
            part: RwLock::new(part),
            piece: Piece::default(),
            state: Mutex::new(state),
        }))
    }

    /// Whether the data becomes a file, by way of a part file.
    pub(crate) fn is_kept(&self) -> bool {
        self.part.read().is_some()
    }

    pub(crate) fn handle(&self) -> Arc<dyn WriteHandle> {
        self.handle.clone()
    }

    /// The destination takes bytes only in order, and cannot read them back.
    pub(crate) fn in_order(&self) -> bool {
        self.handle.positions() == Positions::Sequential
    }

    /// The download cannot continue: the part file was released for a commit.
    pub(crate) fn is_over(&self) -> bool {
        self.state.lock().ended
    }

    /// Makes an error final if data was written to a pipe, because it cannot be taken back.
    pub(crate) fn once_only(&self, error: RemoteError) -> RemoteError {
        if self.in_order() && self.state.lock().written && error.is_transient() {
            return RemoteError::Usage(format!(
                "{error} (and what was written to a pipe cannot be taken back)"
            ));
        }
        error
    }

    /// The ranges that the destination has.
    pub(crate) fn present(&self) -> RangeSet {
        let part = self.part.read();
        part.as_ref().map(|part| part.present()).unwrap_or_default()
    }

    /// The reason why the data of an earlier run was not used.
    pub(crate) fn started_over(&self) -> Option<String> {
        let part = self.part.read();
        part.as_ref().and_then(|p| p.started_over().map(str::to_owned))
    }

    /// Records that a block is in the file. `sum` has the algorithm of the check.
    pub(crate) fn record(&self, range: Range<u64>, sum: Option<u32>) -> ropewalk_storage::Result<()> {
        if self.in_order() {
            self.state.lock().written = true;
        }
        let part = self.part.read();
        let crc32c = sum.filter(|_| self.check.in_passing() == Some(Algorithm::Crc32c));
        part.as_ref().map_or(Ok(()), |part| part.record(range, crc32c))
    }

    /// Puts everything that has been recorded on stable storage.
    pub(crate) fn checkpoint(&self) -> Result<(), RemoteError> {
        let Some(target) = &self.target else { return Ok(()) };
        let part = self.part.read();
        let done = match &*part {
            Some(part) => part.checkpoint(),
            None => self.handle.sync(),
        };
        done.map_err(|e| RemoteError::local(target.as_bytes(), e))
    }

    /// Announces `more` ranges in addition to the known ones.
    pub(crate) fn expect(&self, more: u32) {
        self.state.lock().ledger.expect(more);
    }

    /// Marks the file as failed for good, so that the holders of its ranges do not start them.
    /// Returns `true` at the first call.
    pub(crate) fn give_up(&self) -> bool {
        self.state.lock().ledger.fail()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().ledger.has_failed()
    }

    /// Whether a try has failed since a session last checked that the source still matches the data
    /// that has arrived.
    pub(crate) fn was_tried(&self) -> bool {
        self.tries.total() != self.found.load(Ordering::Relaxed) && !self.present().is_empty()
    }

    /// Records that a session checks the source now.
    pub(crate) fn looks(&self) {
        self.found.store(self.tries.total(), Ordering::Relaxed);
    }

    /// Counts a failed try. `pause` is the pause after the first failed try. `no_use` means that
    /// the data that arrived has to be sent again, so the try made no progress.
    pub(crate) fn count_try(&self, pause: Duration, no_use: bool) -> Tried {
        self.tries.count(pause, if no_use { 0 } else { self.present().len() })
    }

    /// Records that ranges have arrived. `sums` are the checksums of the blocks that arrived, and
    /// `theirs` is the sender's checksum of these ranges. Returns `true` for the last range.
    pub(crate) fn range_arrived(
        &self,
        ranges: &RangeSet,
        sums: Option<&Pieces>,
        theirs: Option<&str>,
    ) -> Result<bool, RemoteError> {
        let ledger = &mut self.state.lock().ledger;
        if let (Some(sums), Some(theirs)) = (sums, theirs)
            && let Some(ours) = sums.total_of(ranges)
        {
            if !same(&ours, theirs) {
                return Err(self.mismatch(sums.algorithm(), ours, theirs.to_owned()));
            }
            ledger.prove(ranges);
        }
        if let Some(sums) = sums {
            ledger.add_sums(sums);
        }
        Ok(ledger.range_done(ranges))
    }

    /// The end of the data: the announced one, or the end of what has arrived.
    pub(crate) fn end(&self) -> u64 {
        match self.task.length() {
            Some(length) => self.task.offset() + length,
            None => self.state.lock().ledger.end(),
        }
    }

    /// The wanted range of the source; its end is open if the size is not known.
    pub(crate) fn whole(&self) -> Range<u64> {
        let start = self.task.offset();
        start..self.task.length().map_or(u64::MAX, |length| start + length)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.end().saturating_sub(self.task.offset())
    }

    /// Whether the checksum of the whole still has to be compared.
    pub(crate) fn needs_sum(&self) -> bool {
        match self.check {
            Check::Size => false,
            Check::Asked(_) => self.state.lock().theirs.is_none(),
            Check::Inline(_) => {
                // `end` takes the lock, too, so it is called first.
                let whole = self.task.offset()..self.end();
                !self.state.lock().ledger.proved().contains(whole)
            }
        }
    }

    /// Whether the sender may miss that another process writes to the file during the transfer.
    pub(crate) fn is_unwatched(&self) -> bool {
        // A sender watches its file during one transfer only, and ranges may come from two files
        // that had the name one after the other.
        (self.piece.is_cut() || !matches!(self.check, Check::Inline(_)))
            // A growing file does not invalidate a window of it.
            && self.task.window.is_none()
            && self.task.modified.is_some()
            && self.task.size.is_some()
            // The checksum of a growing file is requested after its data has arrived.
            && !(self.task.grows && self.check.algorithm().is_some())
    }

    /// Sets the sender's checksum of the whole, which is known before all data has arrived.
    pub(crate) fn told(&self, theirs: Option<String>) {
        self.state.lock().theirs = theirs;
    }

    pub(crate) fn theirs(&self) -> Option<String> {
        self.state.lock().theirs.clone()
    }

    /// Compares the checksum of the whole (or of the window) with the sender's.
    pub(crate) fn compare_sum(&self, theirs: &str) -> Result<(), RemoteError> {
        let Some(algorithm) = self.check.algorithm() else { return Ok(()) };
        let whole = self.task.offset()..self.end();
        let known = self.state.lock().ledger.sums().and_then(|sums| sums.total(whole.clone()));
        let ours = match known {
            Some(sum) => {
                self.reread(algorithm)?;
                sum
            }
            None => self.read_back(algorithm, whole)?,
        };
        if !same(&ours, theirs) {
            return Err(self.mismatch(algorithm, ours, theirs.to_owned()));
        }
        self.state.lock().proof = Some(ours);
        Ok(())
    }

    /// Reads the data of earlier runs again. If it has changed, the part file is invalid.
    fn reread(&self, algorithm: Algorithm) -> Result<(), RemoteError> {
        let before = self.state.lock().before.clone();
        for (range, then) in before {
            let now = self.read_back(algorithm, range)?;
            if !same(&now, &then) {
                return Err(self.mismatch(algorithm, now, then));
            }
        }
        // Cleared only now, so that the next try reads again what could not be read.
        self.state.lock().before.clear();
        Ok(())
    }

    /// The file that keeps the data. It is an error if the destination keeps none.
    pub(crate) fn keeper(&self) -> Result<&VirtualPath, RemoteError> {
        let keeps_none =
            |what: &str| Err(RemoteError::Usage(format!("{what} keeps no bytes to compute a checksum of")));
        match &self.target {
            None => keeps_none("null:"),
            Some(_) if self.in_order() => keeps_none("a pipe"),
            Some(target) if is_device(target.as_bytes()) => keeps_none("a device"),
            Some(target) => Ok(target),
        }
    }

    /// Computes the checksum of a range of the file.
    fn read_back(&self, algorithm: Algorithm, range: Range<u64>) -> Result<String, RemoteError> {
        let target = self.keeper()?;
        let part = self.part.read();
        let local = |e| RemoteError::local(target.as_bytes(), e);
        let handle = match &*part {
            Some(part) => {
                // Zeros at the end were not written, but they belong to the file.
                part.writer().set_len(self.end()).map_err(local)?;
                part.reader()
            }
            None => self.store.open_read(target),
        };
        let handle = handle.map_err(local)?;
        drop(part);
        let length = Some(range.end - range.start);
        checksum_file(&*handle, algorithm, range.start, length, &mut |_| Ok(())).map_err(local)
    }

    fn mismatch(&self, algorithm: Algorithm, ours: String, theirs: String) -> RemoteError {
        // In this error, "theirs" is the value of the destination.
        RemoteError::ChecksumMismatch {
            path: self.task.destination.path(),
            algorithm,
            ours: theirs,
            theirs: ours,
        }
    }

    /// Completes the file, whose data is complete and verified, and gives it its name. Returns the
    /// proof of its checksum. `nanoseconds` is the fraction of the source's modification time,
    /// which the task does not have.
    pub(crate) fn commit(&self, options: &Options, nanoseconds: u32) -> Result<Option<String>, RemoteError> {
        let end = self.end();
        let arrived = self.state.lock().ledger.end();
        let nothing_wanted = end <= self.task.offset();
        if self.present().is_empty() && self.task.size.is_some() && arrived < end && !nothing_wanted {
            return Err(RemoteError::SourceChanged { path: self.task.source.path() });
        }
        let proof = self.check.algorithm().map(|algorithm| {
            let state = self.state.lock();
            let known = || state.ledger.sums()?.total(self.task.offset()..end);
            proof(algorithm, &state.proof.clone().or_else(known).unwrap_or_default())
        });
        let path = self.target.as_ref().map(VirtualPath::as_bytes).unwrap_or_default();
        let local = |e| RemoteError::local(path, e);
        let modified = self.task.modified.filter(|_| options.preserve.times).map(|s| (s, nanoseconds));
        let mode = self.task.mode.filter(|_| options.preserve.modes).or(self.replaced);
        let part = self.part.write().take();
        // If the rename fails, the part file stays for the next try, which opens it again.
        self.state.lock().ended = true;
        match part {
            Some(part) => part.commit(end, modified, mode).map_err(local)?,
            None if self.target.is_some() && options.integrity.fsync != FsyncPolicy::None => {
                self.handle.sync().map_err(local)?;
            }
            None => {}
        }
        Ok(proof)
    }

    /// Removes the part file because its data is wrong; the next try starts from the beginning.
    pub(crate) fn discard(&self) {
        if let Some(part) = self.part.write().take()
            && let Err(error) = part.discard()
        {
            tracing::warn!(%error, "could not remove a part file");
        }
    }

    /// Keeps the part file for a later run.
    pub(crate) fn abandon(&self) {
        if let Some(part) = self.part.write().take()
            && let Err(error) = part.suspend()
        {
            tracing::warn!(%error, "could not keep a part file for later");
        }
    }
}

impl File for Download {
    type Error = RemoteError;

    fn has_failed(&self) -> bool {
        self.has_failed()
    }

    fn is_in_place(&self) -> bool {
        false
    }

    fn arrived(&self, arrival: &Arrival<'_>) -> Result<bool, RemoteError> {
        if let Some(sum) = arrival.ahead {
            self.told(Some(sum.to_owned()));
        }
        self.range_arrived(arrival.moved, arrival.sums, arrival.in_passing.source)
    }

    fn compare(&self, _: &Sides<Option<String>>) -> Result<(), RemoteError> {
        // The checksum is compared before the commit, because data of an earlier run may have to be
        // read.
        Ok(())
    }

    fn is_source(&self, status: &Reply) -> Result<(), RemoteError> {
        self.task.is_source(status)
    }

    fn replaces(&self, _: &Reply) {}

    fn refused(&self, side: Side, purpose: Purpose, reply: Reply) -> RemoteError {
        let (peer, command) = (self.task.source.display(), purpose.verb(side).to_owned());
        RemoteError::Refused { peer, command, reply }
    }
}
