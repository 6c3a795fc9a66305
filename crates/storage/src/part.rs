//! Part files: uploads that are not complete yet. A [`PartFile`] writes the bytes under a temporary
//! name, with a journal of the ranges that are present, and gives the file its name when it is
//! complete. Several threads can write and record ranges; a lock keeps other transfers away. An
//! interrupted transfer can be resumed.

mod begin;
mod names;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

pub use begin::{HeldPart, hold_part};
pub use names::{
    is_temporary_name, journal_name, journal_of_part, part_name, target_of_part, target_of_temporary,
};
use parking_lot::{Mutex, MutexGuard};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use self::begin::{Begun, Names};
use self::names::is_cut;
use crate::checksum::{Algorithm, Pieces};
use crate::journal::{MOST_RANGES, SCATTERED};
use crate::upload::{Interrupted, Journaling, Upload, UploadOptions, check_complete};
use crate::{
    DiskFile, Error, ErrorKind, Journal, JournalKey, Metadata, ReadHandle, Result, Store, WriteHandle,
};

/// The mark of a part file whose bytes came from front to back (see [`Journaling::Sequential`]).
const STICKY: u32 = 0o1000;

/// If the size of a file is unknown, it gets a journal at the latest after this many recorded
/// bytes.
const UNKNOWN: u64 = 1 << 20;

/// A file that gets its name when it is complete.
///
/// Until then its bytes are in the part file [`part_name`], which is locked against other
/// transfers. The journal [`journal_name`] says which ranges are present. [`Self::commit`] gives
/// the file its name. A transfer that was neither committed nor discarded (dropped, killed) can be
/// resumed.
///
/// If the given path is itself the name of a part file, commit leaves the part file and its journal
/// as they are: the caller renames it and then removes the journal ([`journal_of_part`]). The store
/// has to rename atomically, and to take ranges in any order.
pub struct PartFile {
    store: Arc<dyn Store>,
    names: Names,
    key: JournalKey,
    options: UploadOptions,
    handle: Arc<dyn WriteHandle>,
    state: Mutex<State>,
    journal: OnceLock<Journal>,
    started_over: Option<String>,
    /// How many of the two names, first that of the part file and then that of its journal, are on
    /// the disk.
    names_synced: AtomicU8,
    /// The file was larger than the present ranges: an earlier transfer reserved space, or left
    /// gaps.
    had_gaps: bool,
    /// The missing ranges contain nothing but zeros.
    blank: bool,
    /// Whether the file was committed, abandoned or discarded.
    done: AtomicBool,
}

struct State {
    present: RangeSet,
    pieces: Pieces,
    /// The number of bytes recorded since the start of this transfer.
    recorded: u64,
}

impl PartFile {
    /// Opens the part file of `target` for writing, or creates it.
    ///
    /// Fails with [`ErrorKind::Busy`] if another transfer writes it.
    ///
    /// # Errors
    /// Busy, as above; [`ErrorKind::Unsupported`] if the entry with the part file's name is not a
    /// regular file, or can be neither read nor removed; or the part file or its journal cannot be
    /// created, read or replaced.
    pub fn begin(
        store: &Arc<dyn Store>,
        target: &VirtualPath,
        key: JournalKey,
        options: UploadOptions,
    ) -> Result<Self> {
        let names = Names::of(target);
        if let Some(target) = names.target.as_ref().filter(|target| is_cut(target)) {
            // A too long name must be reported now, not only after all bytes came.
            store
                .stat(target, false)
                .map(drop)
                .or_else(|e| if e.is_not_found() { Ok(()) } else { Err(e) })?;
        }
        // With the directory kept open, it need not be looked up again to create the part file, to
        // check that it is still there, and to rename it.
        let directory = names.part.parent();
        let near = directory.and_then(|directory| store.near(&directory));
        let store = near.unwrap_or_else(|| store.clone());
        let begun = begin::begin(&*store, &names, &key, options)?;
        let Begun { handle, present, pieces, journal, started_over } = begun;
        let mut part = Self {
            store,
            names,
            key,
            options,
            handle,
            state: Mutex::new(State { present, pieces, recorded: 0 }),
            journal: journal.map_or_else(OnceLock::new, OnceLock::from),
            started_over,
            names_synced: AtomicU8::new(0),
            had_gaps: false,
            blank: true,
            done: AtomicBool::new(false),
        };
        if part.options.journal != Journaling::Sequential {
            // Non-sequential writers need a journal before they continue, because the size alone
            // would not say which ranges are present.
            if part.journal.get().is_none() {
                let state = part.state();
                if !state.present.is_empty() {
                    part.create_journal(&state)?;
                }
            }
            let there = part.handle.metadata()?.size;
            let recorded = part.state().present.len();
            part.had_gaps = there > recorded;
            part.blank = there == 0 || part.clear(there);
            // Not earlier: the size of a file that was written sequentially says what is present,
            // until a journal does.
            if let Some(size) = part.key.size {
                part.reserve(size);
            }
        }
        Ok(part)
    }

    /// Returns the state of an interrupted transfer to `target`; `None` if there is nothing to
    /// resume.
    ///
    /// After a crash of the machine, this reads the present ranges, which takes time. `progress` is
    /// called with the number of bytes read, and its error stops the work. A later [`Self::begin`]
    /// need not read them again.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another transfer writes it, [`ErrorKind::Unsupported`] if the entry
    /// with the part file's name is not a regular file, a failure to read, or the error of
    /// `progress`.
    pub fn interrupted(
        store: &dyn Store,
        target: &VirtualPath,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        begin::interrupted(store, &Names::of(target), progress)
    }

    /// Returns the number of bytes from the start that are present in an unfinished file that is
    /// written from front to back ([`Journaling::Sequential`]). No content is read.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another transfer writes it, [`ErrorKind::Unsupported`] if the entry
    /// with the part file's name is not a regular file; or the store cannot access it.
    pub fn sequential_prefix(store: &dyn Store, target: &VirtualPath) -> Result<Option<u64>> {
        begin::sequential_prefix(store, &Names::of(target))
    }

    /// The space that the part file of an interrupted transfer to `target` takes, in bytes.
    pub fn space(store: &dyn Store, target: &VirtualPath) -> u64 {
        let part = store.stat(&Names::of(target).part, false);
        part.map_or(0, |part| part.blocks.saturating_mul(512))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the attributes of this file, or `None` if the part file's name refers to another
    /// file. This one may have been removed or moved, and a new transfer may have started.
    fn ours(&self) -> Result<Option<Metadata>> {
        let own = self.handle.metadata()?;
        match self.store.stat(&self.names.part, false) {
            Ok(named) => Ok(((named.device, named.inode) == (own.device, own.inode)).then_some(own)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks that this file still has the part file's name, and returns its attributes.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it was removed, moved or replaced; or the store cannot access it.
    pub fn check_ours(&self) -> Result<Metadata> {
        if let Some(metadata) = self.ours()? {
            return Ok(metadata);
        }
        Err(Error::new(ErrorKind::Busy, "finish", self.names.shown().as_bytes())
            .with_detail("the unfinished file was removed, moved or replaced meanwhile"))
    }

    /// Lets the disk prepare for a file of `size` bytes.
    fn reserve(&self, size: u64) {
        let Some(disk) = self.handle.disk() else { return };
        // The file may have this size at once. If that is too much, it ends at the limit.
        if self.handle.admit(size).is_ok() {
            disk.prepare(size, self.options.direct, self.options.sync);
        }
        if self.options.reserve {
            disk.reserve_ahead(size);
        }
    }

    fn punch(&self, gap: Range<u64>) -> bool {
        self.handle.disk().is_some_and(|disk| disk.punch(gap.start, gap.end - gap.start))
    }

    /// Removes unrecorded bytes that a killed process may have written to the file of `there`
    /// bytes. Returns whether all of them were removed.
    fn clear(&self, there: u64) -> bool {
        let state = self.state();
        let end = state.present.end();
        // Bytes after the last present range are cut off, so only the gaps before need a search.
        if end < there && self.handle.set_len(end).is_err() {
            return false;
        }
        state.present.complement(0..end).iter().all(|gap| self.punch(gap))
    }

    /// Extends the file to the end of the recorded ranges. Zeros at the end may not have been
    /// written, and ranges beyond the end of the file would not count.
    fn reach(&self, state: &State) -> Result<()> {
        let end = state.present.end();
        // No length is set, because other threads may have written beyond `end` without having
        // recorded it yet.
        if end > 0 && self.handle.metadata()?.size < end {
            self.handle.write_at(&[0], end - 1)
        } else {
            Ok(())
        }
    }

    /// Whether the file will replace an existing one.
    fn replaces(&self) -> bool {
        let target = self.names.target.clone().or_else(|| target_of_part(&self.names.part));
        target.is_some_and(|target| self.store.stat(&target, false).is_ok())
    }

    /// Whether the size of the file says which bytes are present, without a journal.
    fn is_told_by_size(&self, state: &State) -> bool {
        self.options.journal == Journaling::Sequential && is_prefix(&state.present)
    }

    fn create_journal(&self, state: &State) -> Result<()> {
        let path = &self.names.journal;
        let mode = self.check_ours()?.mode;
        let unmark = || if mode & STICKY != 0 { self.handle.set_mode(mode & !STICKY) } else { Ok(()) };
        if !is_prefix(&state.present) {
            // This is done before the journal is created, in case that fails: the size does not say
            // what is present.
            unmark()?;
        }
        let journal = Journal::create(&*self.store, path, &self.key, &state.present, &state.pieces)?;
        let _ = self.journal.set(journal);
        // From now on the size does not say what is present, not even if the journal is lost.
        unmark()
    }

    /// The journal is removed first: if it remained without its part file, it would describe the
    /// next part file of that name.
    fn rename(&self, target: &VirtualPath) -> Result<()> {
        let journaled = self.journal.get().is_some();
        let path = &self.names.journal;
        if journaled {
            ignore_missing(self.store.remove_file(path))?;
        }
        self.store.rename(&self.names.part, target).inspect_err(|_| {
            if journaled {
                let state = self.state();
                // Best effort: without the journal, the next transfer starts from the beginning.
                let _ = Journal::create(&*self.store, path, &self.key, &state.present, &state.pieces);
            }
        })
    }

    fn remove(&self) -> Result<()> {
        if self.ours()?.is_none() {
            return Ok(());
        }
        if self.journal.get().is_some() {
            ignore_missing(self.store.remove_file(&self.names.journal))?;
        }
        ignore_missing(self.store.remove_file(&self.names.part))
    }

    /// Releases the space reserved for missing ranges, because they may never come.
    fn give_back(&self, state: &State) -> Result<()> {
        let size = self.key.size.unwrap_or_default();
        let missing = state.present.complement(0..size);
        // The file may have been renamed already, so that it no longer belongs to this upload.
        let Some(metadata) = self.ours()? else { return Ok(()) };
        if let Some(disk) = self.handle.disk() {
            missing.iter().for_each(|range| disk.leave_zero(range.start, range.end - range.start));
            disk.settle(metadata.size);
        }
        Ok(())
    }

    fn sync_directory(&self) -> Result<()> {
        let directory = self.names.part.parent().unwrap_or_else(VirtualPath::root);
        crate::sync_name(&*self.store, &directory, &*self.handle)
    }

    /// Removes the file after a failed sync: it is unknown which bytes are lost, and a second sync
    /// would not fail. So none of them may be resumed.
    fn or_distrust(&self, synced: Result<()>) -> Result<()> {
        synced.inspect_err(|_| {
            // Best effort; the error of the sync is returned.
            let _ = self.discard();
        })
    }
}

impl Upload for PartFile {
    fn present(&self) -> RangeSet {
        self.state().present.clone()
    }

    fn writer(&self) -> Arc<dyn WriteHandle> {
        self.handle.clone()
    }

    fn pieces(&self) -> Pieces {
        self.state().pieces.clone()
    }

    fn is_blank(&self) -> bool {
        self.blank
    }

    fn started_over(&self) -> Option<&str> {
        self.started_over.as_deref()
    }

    fn reader(&self) -> Result<Arc<dyn ReadHandle>> {
        self.store.open_read(&self.names.part)
    }

    fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        if range.start >= range.end {
            return Ok(());
        }
        {
            let mut state = self.state();
            state.recorded = state.recorded.saturating_add(range.end - range.start);
            state.present.insert(range.clone());
            if state.present.count() > MOST_RANGES {
                return Err(Error::new(ErrorKind::Unsupported, "write", self.names.shown().as_bytes())
                    .with_detail(SCATTERED));
            }
            match crc32c {
                Some(sum) => state.pieces.insert(range.clone(), sum),
                None => state.pieces.forget(range.clone()),
            }
            if self.journal.get().is_none() {
                // Under the lock, so that ranges that other threads record meanwhile are either in
                // the new journal or appended to it.
                let needed = match self.options.journal {
                    Journaling::Above(threshold) => match self.key.size {
                        // From the first byte on: a crash must not cost more than the bytes that
                        // were not recorded yet.
                        Some(size) => size > threshold,
                        None => state.recorded > threshold.min(UNKNOWN),
                    },
                    Journaling::Sequential => !self.is_told_by_size(&state),
                };
                return if needed { self.create_journal(&state) } else { Ok(()) };
            }
        }
        self.journal.get().map_or(Ok(()), |journal| journal.append(range, crc32c))
    }

    fn keep(&self) -> Result<()> {
        if self.done.load(Ordering::Relaxed) {
            // A retry would not fail, although no data is left to be kept.
            return Err(Error::new(ErrorKind::Incomplete, "keep", self.names.shown().as_bytes())
                .with_detail("it was given up"));
        }
        // Under the lock, so that ranges that other threads record meanwhile are either in the new
        // journal or appended to it.
        let state = self.state();
        self.reach(&state)?;
        if self.journal.get().is_some() || state.present.is_empty() || self.is_told_by_size(&state) {
            return Ok(());
        }
        self.create_journal(&state)
    }

    fn checkpoint(&self) -> Result<()> {
        self.keep()?;
        let recorded = self.journal.get().map(|journal| (journal, journal.len()));
        self.sync()?;
        let mut names = 1;
        if let Some((journal, records)) = recorded {
            journal.append_synced(records)?;
            self.or_distrust(journal.sync())?;
            names = 2;
        }
        if self.names_synced.load(Ordering::Relaxed) < names {
            self.sync_directory()?;
            self.names_synced.fetch_max(names, Ordering::Relaxed);
        }
        Ok(())
    }

    fn confirm(&self) -> Result<()> {
        let metadata = self.handle.metadata()?;
        self.or_distrust(self.handle.confirm(&metadata))
    }

    fn sync(&self) -> Result<()> {
        self.or_distrust(self.handle.sync())
    }

    fn commit(&self, length: u64, modified: Option<(i64, u32)>, mode: Option<u32>) -> Result<()> {
        check_complete(&self.state().present, length, self.names.shown())?;
        let metadata = self.check_ours()?;
        if metadata.size != length {
            self.handle.set_len(length)?;
        }
        let disk = self.handle.disk();
        if let Some(disk) = disk {
            disk.settle(length);
        }
        let marked = metadata.mode & STICKY != 0;
        let mut awhile = false;
        if let Some(mode) = mode.or_else(|| marked.then_some(metadata.mode & !STICKY)) {
            self.handle.set_mode(mode)?;
        }
        if let Some((seconds, nanoseconds)) = modified {
            self.handle.set_modified(seconds, nanoseconds)?;
        }
        // Bytes written past the cache are on the disk already, except for the ends of the file and
        // the file system's record that the reserved space is in use. A power loss after the rename
        // must not turn them into zeros. The same is true for space that an earlier transfer
        // reserved, however the other bytes were written.
        if self.options.sync || self.had_gaps || disk.is_some_and(DiskFile::is_reserved) {
            self.sync()?;
            awhile = true;
        } else if disk.is_some_and(DiskFile::reserves_ahead) && self.replaces() {
            self.handle.begin_sync();
        }
        self.or_distrust(self.handle.confirm(&metadata))?;
        if let Some(target) = &self.names.target {
            if awhile {
                // During the sync, a user may have removed the part file and another transfer may
                // have created a new one, which must not get the name.
                self.check_ours()?;
            }
            self.rename(target)?;
        }
        self.done.store(true, Ordering::Relaxed);
        if self.options.sync { self.sync_directory() } else { Ok(()) }
    }

    fn suspend(&self) -> Result<()> {
        if self.done.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let state = self.state();
        let mut journaled = Ok(());
        if self.journal.get().is_none() && state.present.is_empty() {
            return self.remove();
        }
        // As in `reach`. No thread writes any more, and setting a length needs no space on a full
        // disk.
        let end = state.present.end();
        let there = self.handle.metadata().map(|metadata| metadata.size);
        let reached = there.and_then(|there| if there < end { self.handle.set_len(end) } else { Ok(()) });
        // The resumed transfer trusts the journal, so the store must confirm the bytes first.
        self.confirm()?;
        if self.journal.get().is_none() {
            if self.is_told_by_size(&state) {
                return Ok(());
            }
            journaled = self.create_journal(&state);
        }
        // Reserved space is released even if the disk is full.
        let given_back = self.give_back(&state);
        reached.and(journaled).and(given_back)
    }

    fn discard(&self) -> Result<()> {
        self.done.store(true, Ordering::Relaxed);
        self.remove()
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // An error cannot be reported here. The next transfer then starts from the beginning.
        let _ = self.suspend();
    }
}

fn ignore_missing(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

fn is_prefix(ranges: &RangeSet) -> bool {
    ranges.prefix() == ranges.end()
}

fn no_pieces() -> Pieces {
    Pieces::new(Algorithm::Crc32c)
}
