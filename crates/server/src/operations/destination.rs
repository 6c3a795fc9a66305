//! Where an upload goes: a part file that gets its name at the end, or the file itself.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use ropewalk_engine::Received;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Failure, Mode, Transfer};
use ropewalk_storage::checksum::{Algorithm, checksum_file};
use ropewalk_storage::{
    Error, ErrorKind, JournalKey, Journaling, Kind, Metadata, PartFile, PartOptions, Result, Store,
    WriteHandle, WriteOptions, journal_of_part, part_name, sync_name, target_of_part,
};

use crate::config::{Files, Fsync};
use crate::failure::failure;
use crate::host::parts::{Appending, Appends, SharedParts};

/// Where systems end to count bytes of a file.
const LONGEST: u64 = i64::MAX as u64;
/// What an owner needs to go on with a file.
pub(super) const OWNERS: u32 = 0o600;

/// How an upload is written.
pub(super) struct Plan {
    way: Way,
    /// File offset of the transfer's offset 0.
    pub(super) origin: u64,
    /// What is there already, as file offsets.
    pub(super) present: RangeSet,
    /// The file is new: bytes that are not written are zero.
    pub(super) fresh: bool,
    /// Permission bits of the file that is replaced.
    mode: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// Into the file itself; what was in it goes where `truncate`.
    InPlace { truncate: bool },
    /// Into a new part file.
    Part,
    /// Into the part file that an earlier upload left.
    Continue(Option<JournalKey>),
    /// The path is itself that of a part file.
    AsPart { resume: bool },
    /// The path is itself that of a part file, into which ranges are put, maybe by several sessions at a time (ESTO).
    Shared,
}

impl Plan {
    /// After a crash of the machine this can read all of an unfinished file; `progress` can stop it by an error. `told`: the
    /// session has asked for the size of what is there.
    pub(super) fn choose(
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        existing: Option<&Metadata>,
        transfer: &Transfer,
        told: bool,
        files: &Files,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> std::result::Result<Self, Failure> {
        let again = transfer.restarted || transfer.append || transfer.adjust.is_some();
        let in_place = |truncate, origin, present| Self {
            way: Way::InPlace { truncate },
            origin,
            present,
            fresh: existing.is_none(),
            mode: None,
        };
        if existing.is_some_and(|metadata| metadata.kind != Kind::File) {
            let (origin, present) = Self::offsets(transfer, 0)?;
            return Ok(in_place(false, origin, present));
        }
        if journal_of_part(place).is_some() && transfer.adjust.is_some() {
            let (origin, present) = Self::offsets(transfer, 0)?;
            return Ok(Self { way: Way::Shared, origin, present, fresh: false, mode: None });
        }
        if again && let Some(plan) = Self::continued(store, place, existing, transfer, told, progress)? {
            return Ok(plan);
        }
        let size = existing.map_or(0, |metadata| metadata.size);
        let (origin, present) = Self::offsets(transfer, size)?;
        if present.end() > size {
            // With holes instead, the file would be wrong and nobody would know.
            return Err(Failure::Refused {
                code: 554,
                text: format!(
                    "The restart marker names bytes up to {}, and {size} are there.",
                    present.end()
                ),
            });
        }
        if journal_of_part(place).is_some() && !transfer.append {
            let way = Way::AsPart { resume: transfer.restarted };
            return Ok(Self { way, origin, present, fresh: !transfer.restarted, mode: None });
        }
        if again || !files.part_files {
            return Ok(in_place(!again, origin, present));
        }
        Ok(Self {
            way: Way::Part,
            origin,
            present,
            fresh: true,
            mode: existing.map(|metadata| metadata.mode & 0o777),
        })
    }

    /// Where an earlier upload to this name was broken off and this one goes on with it.
    fn continued(
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        existing: Option<&Metadata>,
        transfer: &Transfer,
        told: bool,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> std::result::Result<Option<Self>, Failure> {
        // Before anything is done to it.
        let left = store.stat(&part_name(place), false);
        let Some(part) = PartFile::interrupted(store, place, progress).map_err(failure)? else {
            return Ok(None);
        };
        let (origin, present) = Self::offsets(transfer, part.present.prefix())?;
        let has_all = present.iter().all(|range| part.present.contains(range));
        let continues = match (existing, transfer.mode) {
            _ if !has_all => false,
            // An ESTO that goes on exactly where the part ends; others fill a file of their own.
            (None, Mode::Stream) if transfer.adjust.is_some() => origin == part.present.prefix(),
            (None, Mode::ExtendedBlock) if transfer.adjust.is_some() => false,
            (None, _) => true,
            (Some(_), _) if transfer.append || transfer.adjust.is_some() || present.is_empty() => false,
            // Restart markers were told of the part. In MODE S they come from SIZE, which told of the file.
            (Some(_), Mode::ExtendedBlock) => true,
            (Some(metadata), Mode::Stream) => present.end() != metadata.size,
        };
        // SIZE told of the file that is to be replaced: what comes is the rest of another one. Who has not asked, and comes
        // long after that upload, adds to the file (a log, say).
        if let Some(metadata) = existing
            && !continues
            && transfer.mode == Mode::Stream
            && transfer.adjust.is_none()
            && (transfer.append || present.end() == metadata.size)
            && let Ok(left) = &left
            && left.modified >= metadata.modified
            && (!transfer.append || told || is_recent(left.modified.0))
        {
            let text = "An upload that was to replace this file was interrupted: send all of it again (STOR without REST), or \
                        remove what it left (.NAME.ropewalk-part)."
                .to_owned();
            return Err(Failure::Refused { code: 554, text });
        }
        if continues
            && let (Some(metadata), Ok(left)) = (existing, &left)
            && left.changed < metadata.changed
        {
            let text = "The file, or its attributes, were changed after an upload that was to replace it was interrupted: send all of it again (STOR \
                        without REST), or remove what was left (.NAME.ropewalk-part)."
                .to_owned();
            return Err(Failure::Refused { code: 554, text });
        }
        if continues && let Some(key) = &part.key {
            same_version(key.modified, transfer.modified)?;
            same_size(key.size, transfer, &present)?;
        }
        Ok(continues.then(|| Self {
            way: Way::Continue(part.key),
            origin,
            present,
            fresh: false,
            mode: existing.map(|metadata| metadata.mode & 0o777),
        }))
    }

    /// Makes zeros of what an older upload has left where this one and its client say nothing of it: these are holes, as in
    /// a new file.
    pub(super) fn clear(&self, destination: &Destination, received: &RangeSet, length: u64) -> Result<()> {
        let Destination::Part(part) = destination else { return Ok(()) };
        if self.fresh {
            return Ok(());
        }
        let mut known = self.present.clone();
        known.insert(0..self.origin);
        known.union(received);
        let unknown = part.present().intersection(0..length);
        let handle = part.handle();
        for range in known.complement(0..length).iter() {
            for old in unknown.intersection(range).iter() {
                write_zeros(&*handle, old.clone())?;
                part.record(old, None)?;
            }
        }
        Ok(())
    }

    /// The transfer's origin and what it says is there, both in the file; `size` is where APPE begins.
    fn offsets(transfer: &Transfer, size: u64) -> std::result::Result<(u64, RangeSet), Failure> {
        let origin = if transfer.append { size } else { transfer.adjust.unwrap_or(0) };
        let beyond =
            |what: &str| Failure::Refused { code: 554, text: format!("{what} is beyond every file.") };
        if origin > LONGEST {
            return Err(beyond("The offset"));
        }
        let present = transfer.present.shift_up(origin).ok_or_else(|| beyond("The restart marker"))?;
        Ok((origin, present))
    }

    /// As [`Self::choose`], this can read all of an unfinished file.
    pub(super) fn open(
        &self,
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        transfer: &Transfer,
        files: &Files,
        parts: &SharedParts,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> std::result::Result<Destination, Failure> {
        let progress = RefCell::new(progress);
        let key = JournalKey { source: String::new(), size: transfer.allocated, modified: transfer.modified };
        // What comes under the name of a part will replace another file.
        let of_part = || store.stat(&target_of_part(place)?, true).ok().map(|there| there.mode & 0o777);
        let replaced = self.mode.or_else(of_part);
        let options = PartOptions {
            // Who may not read what is replaced may not read what replaces it, from the first byte on.
            // Who goes on with it has to be able to, whatever it may be in the end.
            mode: files.create_mode & replaced.unwrap_or(0o7777) | OWNERS,
            resume: false,
            journal: match transfer.mode {
                Mode::Stream => Journaling::Sequential,
                Mode::ExtendedBlock => Journaling::Above(files.journal_above),
            },
            sync: files.fsync != Fsync::None,
            direct: files.direct_io.into(),
            reserve: true,
        };
        let version = Cell::new(transfer.modified);
        let destination = match &self.way {
            Way::InPlace { truncate } => Self::open_in_place(store, place, *truncate, files),
            Way::Part => match PartFile::begin(store, place, key, options) {
                Ok(part) => Ok(Destination::Part(Box::new(part))),
                // The directory takes no new files, but this one may be written.
                Err(error) if error.kind() == ErrorKind::PermissionDenied && self.mode.is_some() => {
                    Self::open_in_place(store, place, true, files)
                }
                Err(error) => Err(error),
            },
            Way::Continue(old) => {
                let options = PartOptions { resume: true, ..options };
                PartFile::begin(store, place, old.clone().unwrap_or(key), options)
                    .map(|part| Destination::Part(Box::new(part)))
            }
            Way::AsPart { resume } => {
                let options = PartOptions { resume: *resume, ..options };
                PartFile::begin(store, place, key, options).map(|part| Destination::Part(Box::new(part)))
            }
            Way::Shared => parts
                .open(store, place, &version, || {
                    // What this has read need not be read again.
                    let found =
                        PartFile::interrupted(store, place, &mut |bytes| (progress.borrow_mut())(bytes));
                    let old = found?.and_then(|part| part.key);
                    version.set(old.as_ref().and_then(|key| key.modified).or(transfer.modified));
                    let journal = Journaling::Above(files.journal_above);
                    // Holes between ranges are nobody's.
                    let options = PartOptions { resume: true, journal, reserve: false, ..options };
                    PartFile::begin(store, place, old.unwrap_or_else(|| key.clone()), options)
                })
                .map(Destination::Shared),
        };
        let destination = destination.map_err(failure)?;
        if matches!(destination, Destination::Shared(_)) {
            // Nobody looks at it again before it gets its name.
            same_version(version.get(), transfer.modified)?;
        }
        if let Destination::Part(part) = &destination {
            let there = part.present();
            if !self.present.iter().all(|range| there.contains(range)) {
                let why = part.started_over().unwrap_or("the restart marker names bytes that are not there");
                let text = format!("The upload cannot be continued: {why}.");
                destination.abandon(false, None);
                return Err(Failure::Refused { code: 554, text });
            }
        }
        Ok(destination)
    }

    fn open_in_place(
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        truncate: bool,
        files: &Files,
    ) -> Result<Destination> {
        let created = matches!(store.stat(place, true), Err(error) if error.is_not_found());
        let options = WriteOptions { create: true, truncate, exclusive: false, mode: files.create_mode };
        let handle = store.open_write(place, options)?;
        let (store, place) = (store.clone(), place.clone());
        Ok(Destination::InPlace(InPlace { store, place, handle, created, named: AtomicBool::new(!created) }))
    }

    /// Bytes of the whole file after this transfer. What goes on at some place never makes the file shorter than that, even
    /// where nothing comes. ALLO says how much room is wanted (RFC 959 section 4.1.3), and makes no bytes up: who leaves out
    /// a hole at a file's end sends its last byte.
    pub(super) fn length(&self, received: &Received) -> u64 {
        received.ranges.end().max(self.present.end()).max(self.origin)
    }

    /// What is appended goes behind what is there now, and nobody else of this server appends until the result is dropped.
    pub(super) fn append_alone<'h>(
        &mut self,
        destination: &Destination,
        transfer: &Transfer,
        appends: &'h Appends,
    ) -> std::result::Result<Option<Appending<'h>>, Failure> {
        let Destination::InPlace(file) = destination else { return Ok(None) };
        let there = file.handle.metadata().map_err(failure)?;
        if !transfer.append || there.kind != Kind::File {
            return Ok(None);
        }
        let Some(appending) = appends.begin((there.device, there.inode)) else {
            let busy = Error::new(ErrorKind::Busy, "append", file.place.as_bytes());
            return Err(failure(busy.with_detail("another session appends to it")));
        };
        // Another one may have ended since it was looked at.
        let size = file.handle.metadata().map_err(failure)?.size;
        (self.origin, self.present) = Self::offsets(transfer, size)?;
        Ok(Some(appending))
    }

    /// The file will have bytes that this transfer does not send.
    pub(super) fn goes_on(&self) -> bool {
        !self.fresh && (self.origin > 0 || !self.present.is_empty())
    }
}

/// Whoever was broken off may be coming back.
fn is_recent(modified: i64) -> bool {
    const COMING_BACK: u64 = 600;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().saturating_sub(u64::try_from(modified).unwrap_or(0)) < COMING_BACK
}

/// What is there is of the version of the source that is to come, as far as both say.
fn same_version(old: Option<i64>, new: Option<i64>) -> std::result::Result<(), Failure> {
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            Err(another_source(&format!("the source was modified ({old}, now {new})")))
        }
        _ => Ok(()),
    }
}

/// The same of its size. What is announced can be the rest.
fn same_size(old: Option<u64>, transfer: &Transfer, present: &RangeSet) -> std::result::Result<(), Failure> {
    let whole = !transfer.append && transfer.adjust.is_none();
    let (Some(old), Some(new)) = (old, transfer.allocated.filter(|_| whole)) else { return Ok(()) };
    let there = if transfer.mode == Mode::Stream { present.prefix() } else { present.len() };
    let is_rest = old.checked_sub(there) == Some(new);
    if old == new || is_rest {
        return Ok(());
    }
    Err(another_source(&format!("the size was {old} and is {new}")))
}

fn another_source(why: &str) -> Failure {
    let text = format!("The upload cannot be continued: {why}. Send all of it again.");
    Failure::Refused { code: 554, text }
}

/// At once where the file system can do that.
fn write_zeros(handle: &dyn WriteHandle, range: Range<u64>) -> Result<()> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    if handle.punch(range.start, range.end - range.start) {
        return Ok(());
    }
    let mut at = range.start;
    while at < range.end {
        let n = (range.end - at).min(ZEROS.len() as u64);
        handle.write_at(&ZEROS[..n as usize], at)?;
        at += n;
    }
    Ok(())
}

/// A file that is being written.
pub(super) enum Destination {
    Part(Box<PartFile>),
    /// A part that gets its name by RNTO, from whoever has seen that it is whole.
    Shared(Arc<PartFile>),
    InPlace(InPlace),
}

/// A file that is written under its own name.
pub(super) struct InPlace {
    store: Arc<dyn Store>,
    place: VirtualPath,
    handle: Arc<dyn WriteHandle>,
    /// There was no file of this name.
    created: bool,
    /// Its name is on stable storage.
    named: AtomicBool,
}

impl InPlace {
    /// Puts on stable storage what is written, and the name.
    fn sync(&self) -> Result<()> {
        self.handle.sync()?;
        if !self.named.load(Ordering::Relaxed) {
            let directory = self.place.parent().unwrap_or_else(VirtualPath::root);
            sync_name(&*self.store, &directory, &*self.handle)?;
            self.named.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes the file, unless it was there before or another one has its name by now.
    fn discard(&self) -> Result<()> {
        let own = self.handle.metadata()?;
        match self.store.stat(&self.place, false) {
            Ok(there) if self.created && (there.device, there.inode) == (own.device, own.inode) => {
                self.store.remove_file(&self.place)
            }
            _ => Ok(()),
        }
    }
}

impl Destination {
    pub(super) fn handle(&self) -> Arc<dyn WriteHandle> {
        match self {
            Self::Part(part) => part.handle(),
            Self::Shared(part) => part.handle(),
            Self::InPlace(file) => Arc::clone(&file.handle),
        }
    }

    /// A block is in the store.
    pub(super) fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        match self {
            Self::Part(part) => part.record(range, crc32c),
            Self::Shared(part) => part.record(range, crc32c),
            Self::InPlace(_) => Ok(()),
        }
    }

    /// What is written so far can be gone on with after a crash, as a restart marker promises: of this program, or, where
    /// markers are to be `fsync`ed, of the machine. Of a part that is `whole` nothing need say so: it is about to get its name.
    pub(super) fn secure(&self, whole: bool, fsync: Fsync) -> Result<()> {
        let machine = fsync == Fsync::EachMarker;
        match self {
            Self::Part(part) if whole => {
                if machine {
                    part.sync()
                } else {
                    Ok(())
                }
            }
            Self::Part(part) => {
                if machine {
                    part.checkpoint()
                } else {
                    part.keep()
                }
            }
            Self::Shared(part) => {
                if machine {
                    part.checkpoint()
                } else {
                    part.keep()
                }
            }
            Self::InPlace(file) if file.handle.positionless() || !machine => Ok(()),
            Self::InPlace(file) => file.sync(),
        }
    }

    /// The sum of what is written, read again, which takes its time: `progress` can stop it by an error.
    pub(super) fn checksum(
        &self,
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        length: u64,
        algorithm: Algorithm,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<String> {
        if self.handle().positionless() {
            return Err(Error::new(ErrorKind::Unsupported, "checksum", place.as_bytes())
                .with_detail("what a device or a pipe has taken cannot be read again"));
        }
        let path = match self {
            Self::Part(_) if journal_of_part(place).is_none() => part_name(place),
            _ => place.clone(),
        };
        // Zeros at the end may not have been written.
        let written = self.handle();
        let metadata = written.metadata()?;
        if metadata.kind == Kind::File && metadata.size < length {
            written.set_len(length)?;
        }
        let handle = store.open_read(&path)?;
        checksum_file(&*handle, algorithm, 0, Some(length), progress)
    }

    /// The file is whole.
    pub(super) fn commit(self, length: u64, modified: Option<i64>, plan: &Plan, files: &Files) -> Result<()> {
        match self {
            Self::Part(part) => {
                // What a sender in MODE E left out are holes. From the last on: each joins those that are done.
                for hole in part.present().complement(0..length).iter().rev() {
                    part.handle().leave_zero(hole.start, hole.end - hole.start);
                    part.record(hole, None)?;
                }
                let closed = OWNERS & !files.create_mode;
                let mode = match (plan.mode, &plan.way) {
                    (None, way) if closed != 0 || matches!(way, Way::Continue(_)) => {
                        Some(part.handle().metadata()?.mode & 0o777 & !closed)
                    }
                    (mode, _) => mode,
                };
                part.commit(length, modified.map(|seconds| (seconds, 0)), mode)
            }
            Self::Shared(part) => {
                // Another transfer can have begun it anew: then nobody will ever find these bytes.
                part.check_ours()?;
                // Ranges beyond this one may be under way or there already: the file never gets shorter.
                let handle = part.handle();
                if handle.metadata()?.size < length {
                    handle.set_len(length)?;
                }
                if let Some(seconds) = modified {
                    handle.set_modified(seconds, 0)?;
                }
                if files.fsync == Fsync::None { part.confirm() } else { part.checkpoint() }
            }
            Self::InPlace(file) if file.handle.positionless() => Ok(()),
            Self::InPlace(file) => {
                let handle = &file.handle;
                // Zeros at the end may not have been written.
                let metadata = handle.metadata()?;
                if metadata.size < length {
                    handle.set_len(length)?;
                }
                if let Some(seconds) = modified {
                    handle.set_modified(seconds, 0)?;
                }
                handle.confirm(&metadata)?;
                if files.fsync == Fsync::None { Ok(()) } else { file.sync() }
            }
        }
    }

    /// No more than so many bytes are there to be gone on with.
    pub(super) fn has_at_most(&self, bytes: u64) -> bool {
        matches!(self, Self::Part(part) if part.present().len() <= bytes)
    }

    /// The upload has failed; what came of it stays for another try, unless there is `nothing`, or no more than so `few` bytes.
    pub(super) fn abandon(self, nothing: bool, few: Option<u64>) {
        let Self::Part(part) = self else {
            return;
        };
        let present = part.present();
        let nothing = nothing && present.is_empty() || few.is_some_and(|few| present.len() <= few);
        let result = if nothing { part.discard() } else { part.abandon() };
        if let Err(error) = result {
            tracing::warn!(%error, "an interrupted upload cannot be put aside");
        }
    }

    /// What was written is wrong and has to go.
    pub(super) fn discard(self) {
        let result = match self {
            Self::Part(part) => part.discard(),
            Self::InPlace(file) => file.discard(),
            Self::Shared(_) => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "a wrong upload cannot be removed");
        }
    }
}
