//! Files that are not whole yet.

mod begin;
mod names;
mod options;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

pub use begin::{HeldPart, hold_part};
pub use names::{
    is_temporary_name, journal_name, journal_of_part, part_name, target_of_part, target_of_temporary,
};
pub use options::{DirectIo, Interrupted, Journaling, PartOptions};
use parking_lot::{Mutex, MutexGuard};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use self::begin::{Begun, Names};
use self::names::is_cut;
use crate::checksum::{Algorithm, Pieces};
use crate::journal::{MOST_RANGES, SCATTERED};
use crate::{Error, ErrorKind, Journal, JournalKey, Metadata, Result, Store, WriteHandle};

/// Says of an unfinished file that its bytes came from front to back (see [`Journaling::Sequential`]).
const STICKY: u32 = 0o1000;

/// So many bytes of a file whose size nobody told are recorded before it gets a journal.
const UNKNOWN: u64 = 1 << 20;

/// A file that gets its name when it is whole.
///
/// Until then its bytes are in [`part_name`], locked against other transfers, and [`journal_name`] says which of them
/// are there. [`Self::commit`] gives it its name. What is neither committed nor discarded (dropped, killed) can be
/// gone on with.
///
/// Where the path given is itself the name of a part, commit leaves it and its journal as they are: somebody renames
/// it and then removes the journal ([`journal_of_part`]). Where the store cannot rename, or cannot write in any order,
/// the file is written in place and there is nothing to go on with.
pub struct PartFile {
    store: Arc<dyn Store>,
    names: Names,
    key: JournalKey,
    options: PartOptions,
    handle: Arc<dyn WriteHandle>,
    state: Mutex<State>,
    journal: OnceLock<Journal>,
    started_over: Option<String>,
    /// How many names, that of the part and then that of its journal, the disk has.
    names_synced: AtomicU8,
    /// The file was larger than what was there: an earlier transfer reserved space, or left gaps.
    had_gaps: bool,
    /// Where bytes are still missing there is nothing but zeros.
    blank: bool,
    /// Committed, abandoned or discarded.
    done: AtomicBool,
}

struct State {
    present: RangeSet,
    pieces: Pieces,
    /// Bytes recorded since the beginning of this transfer.
    recorded: u64,
}

impl PartFile {
    /// Opens the part of `target` for writing, or makes it.
    ///
    /// [`ErrorKind::Busy`] where another transfer writes it.
    ///
    /// # Errors
    /// Busy as said; [`ErrorKind::Unsupported`] where what has the part's name is no regular file, or neither to be
    /// read nor to be removed; or the part or its journal cannot be made, read or replaced.
    pub fn begin(
        store: &Arc<dyn Store>,
        target: &VirtualPath,
        key: JournalKey,
        options: PartOptions,
    ) -> Result<Self> {
        let names = Names::of(target, &**store);
        if let Some(target) = names.target.as_ref().filter(|target| is_cut(target)) {
            // Not only when everything is there.
            store
                .stat(target, false)
                .map(drop)
                .or_else(|e| if e.is_not_found() { Ok(()) } else { Err(e) })?;
        }
        // Making the part, looking whether it is still there and giving it its name need not find the directory each time.
        let directory = names.part.parent().filter(|_| names.journal.is_some());
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
            // A part without a journal that others than sequential writers go on with would not say what is there.
            if part.journal.get().is_none() {
                let state = part.state();
                if !state.present.is_empty() {
                    part.create_journal(&state)?;
                }
            }
            let there = part.handle.metadata()?.size;
            part.had_gaps = part.names.journal.is_some() && there > part.state().present.len();
            part.blank = there == 0 || part.clear(there);
            // Not before: the size of one that was written in order says what is there, until a journal does.
            if let Some(size) = part.key.size {
                part.handle.prepare(size, part.options.direct, part.options.sync);
                if part.options.reserve {
                    part.handle.reserve_ahead(size);
                }
            }
        }
        Ok(part)
    }

    /// What an interrupted transfer to `target` left; `None` where there is nothing to go on with.
    ///
    /// After a crash of the machine this reads what is there, which takes time: `progress` is told how many bytes it has
    /// read, and can stop it by an error. A [`Self::begin`] that follows need not read again.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where another transfer writes it, [`ErrorKind::Unsupported`] where what has the part's name
    /// is no regular file, a failure to read, or the error of `progress`.
    pub fn interrupted(
        store: &Arc<dyn Store>,
        target: &VirtualPath,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Option<Interrupted>> {
        begin::interrupted(&**store, &Names::of(target, &**store), progress)
    }

    /// How many bytes from the start are there of a file that was to be written from front to back
    /// ([`Journaling::Sequential`]) and has no name yet. Nothing is read.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] where another transfer writes it, [`ErrorKind::Unsupported`] where what has the part's name
    /// is no regular file; or the store cannot look at it.
    pub fn sequential_prefix(store: &Arc<dyn Store>, target: &VirtualPath) -> Result<Option<u64>> {
        begin::sequential_prefix(&**store, &Names::of(target, &**store))
    }

    /// The ranges that are there, from earlier transfers and from this one.
    pub fn present(&self) -> RangeSet {
        self.state().present.clone()
    }

    pub fn handle(&self) -> Arc<dyn WriteHandle> {
        self.handle.clone()
    }

    /// CRC-32C of what is there, as far as it was recorded.
    pub fn pieces(&self) -> Pieces {
        self.state().pieces.clone()
    }

    /// Nothing but zeros is where bytes are still missing: those that are zero need not be written.
    pub fn is_blank(&self) -> bool {
        self.blank
    }

    /// Why what an earlier transfer left was not used.
    pub fn started_over(&self) -> Option<&str> {
        self.started_over.as_deref()
    }

    /// Notes that a range has been written through [`Self::handle`]. From any thread.
    ///
    /// # Errors
    /// The journal cannot be written, or is to be made and cannot, see [`Self::keep`].
    pub fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        if range.start >= range.end {
            return Ok(());
        }
        {
            let mut state = self.state();
            state.recorded += range.end - range.start;
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
                // Under the lock: what others record meanwhile comes either into the new journal or after it.
                let needed = match self.options.journal {
                    Journaling::Above(threshold) => match self.key.size {
                        // At once: a crash is not to cost more than what was not recorded yet.
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

    /// From now on what has been recorded so far is gone on with even where this process is killed, however small the
    /// file is.
    ///
    /// # Errors
    /// The journal cannot be made, or the part was removed, moved or replaced meanwhile ([`ErrorKind::Busy`]), or given up
    /// ([`ErrorKind::Incomplete`]).
    pub fn keep(&self) -> Result<()> {
        if self.done.load(Ordering::Relaxed) {
            // A second try would not fail, and nothing is left to be kept.
            return Err(Error::new(ErrorKind::Incomplete, "keep", self.names.shown().as_bytes())
                .with_detail("it was given up"));
        }
        // Under the lock: what others record meanwhile comes either into the new journal or after it.
        let state = self.state();
        self.reach(&state)?;
        if self.journal.get().is_some() || state.present.is_empty() || self.is_told_by_size(&state) {
            return Ok(());
        }
        self.create_journal(&state)
    }

    /// Puts on stable storage what has been recorded so far. A crash of the machine does not lose it. Where that fails,
    /// nothing of the file is left.
    ///
    /// # Errors
    /// As [`Self::keep`] and [`Self::sync`]; the journal or the directory cannot be put there.
    pub fn checkpoint(&self) -> Result<()> {
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

    /// Nothing more is written, at least not now: has the store say what of it it could not keep. Where that is so, nothing of
    /// the file is left.
    ///
    /// # Errors
    /// As of [`WriteHandle::confirm`], or the store cannot look at the file.
    pub fn confirm(&self) -> Result<()> {
        let metadata = self.handle.metadata()?;
        self.or_distrust(self.handle.confirm(&metadata))
    }

    /// Puts the bytes on stable storage, but not what says which of them are there: for a file that is whole, and is about to
    /// be given its name. Where that fails, nothing of the file is left.
    ///
    /// # Errors
    /// As of [`WriteHandle::sync`].
    pub fn sync(&self) -> Result<()> {
        self.or_distrust(self.handle.sync())
    }

    /// The file is whole: gives it its length, attributes and name.
    ///
    /// [`ErrorKind::Incomplete`] where not all of `0..length` is there; the part stays as it is.
    ///
    /// # Errors
    /// Incomplete as said; as [`Self::check_ours`], [`Self::confirm`] and [`Self::sync`]; or length, attributes or name
    /// cannot be set.
    pub fn commit(&self, length: u64, modified: Option<(i64, u32)>, mode: Option<u32>) -> Result<()> {
        let missing = self.state().present.complement(0..length);
        if !missing.is_empty() {
            return Err(Error::new(ErrorKind::Incomplete, "finish", self.names.shown().as_bytes())
                .with_detail(format!(
                    "{} of {length} bytes are missing, {}",
                    missing.len(),
                    first_few(&missing)
                )));
        }
        let metadata = self.check_ours()?;
        if metadata.size != length {
            self.handle.set_len(length)?;
        }
        self.handle.settle(length);
        let marked = metadata.mode & STICKY != 0;
        let mut awhile = false;
        if let Some(mode) = mode.or_else(|| marked.then_some(metadata.mode & !STICKY)) {
            self.handle.set_mode(mode)?;
        }
        if let Some((seconds, nanoseconds)) = modified {
            self.handle.set_modified(seconds, nanoseconds)?;
        }
        // What was written past the cache is on the disk already, but for its ends and the record that the reserved space
        // is in use: a power loss must not make zeros of it once the file has its name. The same holds for space that an
        // earlier transfer reserved, whichever way the rest came.
        if self.options.sync || self.had_gaps || self.handle.is_reserved() {
            self.sync()?;
            awhile = true;
        } else if self.handle.reserves_ahead() && self.replaces() {
            self.handle.begin_sync();
        }
        self.or_distrust(self.handle.confirm(&metadata))?;
        if let Some(target) = &self.names.target {
            if awhile {
                // Whoever has removed it meanwhile may have let another one begin: that is not to get the name.
                self.check_ours()?;
            }
            self.rename(target)?;
        }
        self.done.store(true, Ordering::Relaxed);
        if self.options.sync { self.sync_directory() } else { Ok(()) }
    }

    /// Leaves what is there for a later transfer to go on with.
    ///
    /// # Errors
    /// As [`Self::confirm`] and [`Self::keep`]; where no bytes came, as [`Self::discard`].
    pub fn abandon(&self) -> Result<()> {
        if self.done.swap(true, Ordering::Relaxed) || self.names.journal.is_none() {
            return Ok(());
        }
        let state = self.state();
        let mut journaled = Ok(());
        if self.journal.get().is_none() && state.present.is_empty() {
            return self.remove();
        }
        // As `reach`. Nobody writes to it any more, and where the disk is full a length takes no room.
        let end = state.present.end();
        let there = self.handle.metadata().map(|metadata| metadata.size);
        let reached = there.and_then(|there| if there < end { self.handle.set_len(end) } else { Ok(()) });
        // What is gone on with is trusted as it was told.
        self.confirm()?;
        if self.journal.get().is_none() {
            if self.is_told_by_size(&state) {
                return Ok(());
            }
            journaled = self.create_journal(&state);
        }
        // Also where the disk is full.
        let given_back = self.give_back(&state);
        reached.and(journaled).and(given_back)
    }

    /// Removes what is there.
    ///
    /// # Errors
    /// The part or its journal may not be removed. To be gone already, or another one by now, is no error.
    pub fn discard(&self) -> Result<()> {
        self.done.store(true, Ordering::Relaxed);
        self.remove()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What has the part's name can be another file: this one may have been removed or moved away, and a new transfer
    /// begun. Gives the attributes of this one; `None` where it is another.
    fn ours(&self) -> Result<Option<Metadata>> {
        let own = self.handle.metadata()?;
        // Written in place: the handle is all there is.
        if self.names.journal.is_none() {
            return Ok(Some(own));
        }
        match self.store.stat(&self.names.part, false) {
            Ok(named) => Ok(((named.device, named.inode) == (own.device, own.inode)).then_some(own)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// That this file still has the part's name, and gives its attributes; otherwise [`ErrorKind::Busy`].
    ///
    /// # Errors
    /// Busy as said, where it was removed, moved or replaced; or the store cannot look at it.
    pub fn check_ours(&self) -> Result<Metadata> {
        if let Some(metadata) = self.ours()? {
            return Ok(metadata);
        }
        Err(Error::new(ErrorKind::Busy, "finish", self.names.shown().as_bytes())
            .with_detail("the unfinished file was removed, moved or replaced meanwhile"))
    }

    /// Who was killed may have written what was not recorded any more. Whether nothing is left of it, of `there` bytes.
    fn clear(&self, there: u64) -> bool {
        let state = self.state();
        let end = state.present.end();
        // What is not there, nobody has to look for.
        if end < there && self.handle.set_len(end).is_err() {
            return false;
        }
        state.present.complement(0..end).iter().all(|gap| self.handle.punch(gap.start, gap.end - gap.start))
    }

    /// Zeros at the end may have been left out: what is recorded beyond the file's end would count for nothing.
    fn reach(&self, state: &State) -> Result<()> {
        let end = state.present.end();
        // Others may have written what is beyond, and not recorded it yet: no length is set.
        if end > 0 && self.handle.metadata()?.size < end {
            self.handle.write_at(&[0], end - 1)
        } else {
            Ok(())
        }
    }

    /// Whether it is to take the place of another file.
    fn replaces(&self) -> bool {
        let target = self.names.target.clone().or_else(|| target_of_part(&self.names.part));
        target.is_some_and(|target| self.store.stat(&target, false).is_ok())
    }

    /// What is there needs no journal to be known.
    fn is_told_by_size(&self, state: &State) -> bool {
        self.options.journal == Journaling::Sequential && is_prefix(&state.present)
    }

    fn create_journal(&self, state: &State) -> Result<()> {
        let Some(path) = &self.names.journal else { return Ok(()) };
        let mode = self.check_ours()?.mode;
        let unmark = || if mode & STICKY != 0 { self.handle.set_mode(mode & !STICKY) } else { Ok(()) };
        if !is_prefix(&state.present) {
            // Before there is a journal, in case that there will be none: the size does not say what is there.
            unmark()?;
        }
        let journal = Journal::create(&*self.store, path, &self.key, &state.present, &state.pieces)?;
        let _ = self.journal.set(journal);
        // From now on the size does not say what is there, not even where the journal gets lost.
        unmark()
    }

    /// The journal goes first: one without its part would speak of the next part of that name.
    fn rename(&self, target: &VirtualPath) -> Result<()> {
        let journaled = self.journal.get().is_some();
        if let Some(journal) = self.names.journal.as_ref().filter(|_| journaled) {
            ignore_missing(self.store.remove_file(journal))?;
        }
        self.store.rename(&self.names.part, target).inspect_err(|_| {
            if let Some(path) = self.names.journal.as_ref().filter(|_| journaled) {
                let state = self.state();
                // Best effort: without it the next transfer begins anew.
                let _ = Journal::create(&*self.store, path, &self.key, &state.present, &state.pieces);
            }
        })
    }

    fn remove(&self) -> Result<()> {
        if self.ours()?.is_none() {
            return Ok(());
        }
        if let Some(journal) = self.names.journal.as_ref().filter(|_| self.journal.get().is_some()) {
            ignore_missing(self.store.remove_file(journal))?;
        }
        ignore_missing(self.store.remove_file(&self.names.part))
    }

    /// Nobody knows whether what did not come will ever come: no space is kept for it.
    fn give_back(&self, state: &State) -> Result<()> {
        let size = self.key.size.unwrap_or_default();
        let missing = state.present.complement(0..size);
        // It may have its name already, and be somebody else's business.
        let Some(metadata) = self.ours()? else { return Ok(()) };
        missing.iter().for_each(|range| self.handle.leave_zero(range.start, range.end - range.start));
        self.handle.settle(metadata.size);
        Ok(())
    }

    fn sync_directory(&self) -> Result<()> {
        let directory = self.names.part.parent().unwrap_or_else(VirtualPath::root);
        crate::sync_name(&*self.store, &directory, &*self.handle)
    }

    /// After a failure it is not known which of the bytes are lost, and a second try would not fail: none are gone on with.
    fn or_distrust(&self, synced: Result<()>) -> Result<()> {
        synced.inspect_err(|_| {
            // As far as it can be done; what failed is what counts.
            let _ = self.discard();
        })
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // Nobody is left to be told of an error; then the next transfer begins anew.
        let _ = self.abandon();
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

fn first_few(ranges: &RangeSet) -> String {
    let few: RangeSet = ranges.iter().take(3).collect();
    if ranges.count() > 3 { format!("{few},...") } else { few.to_string() }
}

fn no_pieces() -> Pieces {
    Pieces::new(Algorithm::Crc32c)
}
