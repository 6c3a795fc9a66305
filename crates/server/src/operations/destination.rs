//! The destination of an upload: a file that gets its name at the end, or an existing file.
//!
//! [`Plan`] decides how an upload is written, from the command and from what an earlier upload has
//! left. [`Destination`] is the open file. It belongs to the thread of the session, but blocks are
//! recorded from the threads of the streams. An upload that fails leaves its part file for a retry.

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
    Error, ErrorKind, JournalKey, Journaling, Kind, Metadata, PartFile, Result, Store, Upload, UploadOptions,
    UploadSpec, WriteHandle, WriteOptions, journal_of_part, sync_name, target_of_part,
};

use crate::config::{Files, Fsync};
use crate::failure::failure;
use crate::host::parts::{Appending, Appends, SharedParts};

/// The largest offset that systems can address.
const LONGEST: u64 = i64::MAX as u64;
/// The permissions that an owner needs to resume an upload.
pub(super) const OWNERS: u32 = 0o600;

/// How an upload is written.
pub(super) struct Plan {
    way: Way,
    /// File offset of the transfer's offset 0.
    pub(super) origin: u64,
    /// The ranges that exist already, as file offsets.
    pub(super) present: RangeSet,
    /// The file is new: bytes that are not written are zero.
    pub(super) fresh: bool,
    /// Permission bits of the file that is replaced.
    mode: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Way {
    /// Into the file itself, which is truncated first if `truncate`.
    InPlace { truncate: bool },
    /// Into a new part file.
    Part,
    /// Into the part file of an earlier upload.
    Continue(Option<JournalKey>),
    /// The path is itself that of a part file.
    AsPart { resume: bool },
    /// The path is itself that of a part file into which several sessions may put ranges (ESTO).
    Shared,
}

impl Plan {
    /// Chooses how to write the upload. After a crash of the machine this may read all of a part
    /// file; `progress` can stop it by an error. `size_reported`: the session has asked for the
    /// size of the file.
    pub(super) fn choose(
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        existing: Option<&Metadata>,
        transfer: &Transfer,
        size_reported: bool,
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
        if again
            && let Some(plan) = Self::continued(store, place, existing, transfer, size_reported, progress)?
        {
            return Ok(plan);
        }
        let size = existing.map_or(0, |metadata| metadata.size);
        let (origin, present) = Self::offsets(transfer, size)?;
        if present.end() > size {
            // With holes instead, the file would be wrong and no side would notice.
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

    /// The plan of an upload that resumes an earlier one to this name.
    fn continued(
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        existing: Option<&Metadata>,
        transfer: &Transfer,
        size_reported: bool,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> std::result::Result<Option<Self>, Failure> {
        let Some(part) = store.interrupted_upload(place, progress).map_err(failure)? else {
            return Ok(None);
        };
        let (origin, present) = Self::offsets(transfer, part.present.prefix())?;
        // The path of a part file names the upload itself, which replaces no file.
        let replaced = existing.filter(|_| journal_of_part(place).is_none());
        let has_all = present.iter().all(|range| part.present.contains(range));
        let continues = match (existing, transfer.mode) {
            _ if !has_all => false,
            // An ESTO that continues exactly at the end of the part file. Other ones fill a file of
            // their own.
            (None, Mode::Stream) if transfer.adjust.is_some() => origin == part.present.prefix(),
            (None, Mode::ExtendedBlock) if transfer.adjust.is_some() => false,
            (None, _) => true,
            (Some(_), _) if transfer.append || transfer.adjust.is_some() || present.is_empty() => false,
            // Restart markers referred to the part file. In MODE S they come from SIZE, which
            // reported the file.
            (Some(_), Mode::ExtendedBlock) => true,
            (Some(metadata), Mode::Stream) => present.end() != metadata.size,
        };
        // SIZE reported the file that would be replaced, so the data is the rest of another one. A
        // client that has not asked, and comes long after that upload, appends to the file (a log,
        // for instance).
        if let Some(metadata) = replaced
            && !continues
            && transfer.mode == Mode::Stream
            && transfer.adjust.is_none()
            && (transfer.append || present.end() == metadata.size)
            && part.modified >= metadata.modified
            && (!transfer.append || size_reported || is_recent(part.modified.0))
        {
            let text = "An upload that was to replace this file was interrupted: send all of it again (STOR without REST), or \
                        remove what it left (.NAME.ropewalk-part)."
                .to_owned();
            return Err(Failure::Refused { code: 554, text });
        }
        if continues
            && let Some(metadata) = replaced
            && part.changed < metadata.changed
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

    /// Writes zeros over data of an older upload for which neither this one nor its client has
    /// ranges: these are holes, as in a new file.
    pub(super) fn clear(&self, destination: &Destination, received: &RangeSet, length: u64) -> Result<()> {
        let Destination::Upload(part) = destination else { return Ok(()) };
        if self.fresh {
            return Ok(());
        }
        let mut known = self.present.clone();
        known.insert(0..self.origin);
        known.union(received);
        let unknown = part.present().intersection(0..length);
        let handle = part.writer();
        for range in known.complement(0..length).iter() {
            for old in unknown.intersection(range).iter() {
                write_zeros(&*handle, old.clone())?;
                part.record(old, None)?;
            }
        }
        Ok(())
    }

    /// The origin of the transfer and the ranges that it has already, both as file offsets. APPE
    /// begins at `size`.
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

    /// Opens the destination. As [`Self::choose`], this may read all of a part file.
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
        // An upload under the name of a part file will replace another file.
        let of_part = || store.stat(&target_of_part(place)?, true).ok().map(|there| there.mode & 0o777);
        let replaced = self.mode.or_else(of_part);
        let options = UploadOptions {
            // A user who may not read the old file may not read the new one from the first byte on.
            // A client that resumes the upload needs the rights of the owner, whatever the mode
            // will be in the end.
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
            Way::Part => match store.begin_upload(place, UploadSpec { key, options }) {
                Ok(upload) => Ok(Destination::Upload(upload)),
                // The directory takes no new files, but this one may be written.
                Err(error) if error.kind() == ErrorKind::PermissionDenied && self.mode.is_some() => {
                    Self::open_in_place(store, place, true, files)
                }
                Err(error) => Err(error),
            },
            Way::Continue(old) => {
                let options = UploadOptions { resume: true, ..options };
                let spec = UploadSpec { key: old.clone().unwrap_or(key), options };
                store.begin_upload(place, spec).map(Destination::Upload)
            }
            Way::AsPart { resume } => {
                let options = UploadOptions { resume: *resume, ..options };
                PartFile::begin(store, place, key, options).map(|part| Destination::Upload(Arc::new(part)))
            }
            Way::Shared => parts
                .open(store, place, &version, || {
                    // Bytes that this has read need not be read again.
                    let found =
                        PartFile::interrupted(&**store, place, &mut |bytes| (progress.borrow_mut())(bytes));
                    let old = found?.and_then(|part| part.key);
                    version.set(old.as_ref().and_then(|key| key.modified).or(transfer.modified));
                    let journal = Journaling::Above(files.journal_above);
                    // No upload reserves space for holes between ranges.
                    let options = UploadOptions { resume: true, journal, reserve: false, ..options };
                    PartFile::begin(store, place, old.unwrap_or_else(|| key.clone()), options)
                })
                .map(Destination::Shared),
        };
        let destination = destination.map_err(failure)?;
        if matches!(destination, Destination::Shared(_)) {
            // The version is not checked again before the file gets its name.
            same_version(version.get(), transfer.modified)?;
        }
        if let Destination::Upload(part) = &destination {
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

    /// The length of the whole file after this transfer. A resumed upload never makes the file
    /// shorter than its start, even if nothing arrives. ALLO states how much space is needed (RFC
    /// 959 section 4.1.3), and adds no bytes: a client that leaves out a hole at the end of a file
    /// sends its last byte.
    pub(super) fn length(&self, received: &Received) -> u64 {
        received.ranges.end().max(self.present.end()).max(self.origin)
    }

    /// Appends at the current end of the file. No other session of this server appends until the
    /// result is dropped.
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
        // Another session may have appended since the first look.
        let size = file.handle.metadata().map_err(failure)?.size;
        (self.origin, self.present) = Self::offsets(transfer, size)?;
        Ok(Some(appending))
    }

    /// The file will have bytes that this transfer does not send.
    pub(super) fn keeps_bytes(&self) -> bool {
        !self.fresh && (self.origin > 0 || !self.present.is_empty())
    }
}

/// The client of a recently interrupted upload may come back.
fn is_recent(modified: i64) -> bool {
    const COMING_BACK: u64 = 600;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_secs().saturating_sub(u64::try_from(modified).unwrap_or(0)) < COMING_BACK
}

/// Checks that the existing data is of the same version of the source, if both versions are known.
fn same_version(old: Option<i64>, new: Option<i64>) -> std::result::Result<(), Failure> {
    match (old, new) {
        (Some(old), Some(new)) if old != new => {
            Err(another_source(&format!("the source was modified ({old}, now {new})")))
        }
        _ => Ok(()),
    }
}

/// Checks the same for the size. An announced size can be that of the rest.
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

/// Uses holes if the file system supports them.
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
    /// A file that gets its name at the end.
    Upload(Arc<dyn Upload>),
    /// A part file that is renamed by RNTO, once a client has seen that it is complete.
    Shared(Arc<PartFile>),
    InPlace(InPlace),
}

/// A file that is written under its own name.
pub(super) struct InPlace {
    store: Arc<dyn Store>,
    place: VirtualPath,
    handle: Arc<dyn WriteHandle>,
    /// The file did not exist before.
    created: bool,
    /// Its name is on stable storage.
    named: AtomicBool,
}

impl InPlace {
    /// Forces the data and the name to stable storage.
    fn sync(&self) -> Result<()> {
        self.handle.sync()?;
        if !self.named.load(Ordering::Relaxed) {
            let directory = self.place.parent().unwrap_or_else(VirtualPath::root);
            sync_name(&*self.store, &directory, &*self.handle)?;
            self.named.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes the file, unless it existed before or another file has its name by now.
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
            Self::Upload(part) => part.writer(),
            Self::Shared(part) => part.writer(),
            Self::InPlace(file) => Arc::clone(&file.handle),
        }
    }

    /// Records a block that was written.
    pub(super) fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        match self {
            Self::Upload(part) => part.record(range, crc32c),
            Self::Shared(part) => part.record(range, crc32c),
            Self::InPlace(_) => Ok(()),
        }
    }

    /// Makes what was written so far resumable after a crash of this program or, if markers are to
    /// be `fsync`ed, of the machine, as a restart marker promises. A part file that is `whole`
    /// needs no journal any more: it is about to get its name.
    pub(super) fn secure(&self, whole: bool, fsync: Fsync) -> Result<()> {
        let machine = fsync == Fsync::EachMarker;
        match self {
            Self::Upload(part) if whole => {
                if machine {
                    part.sync()
                } else {
                    Ok(())
                }
            }
            Self::Upload(part) => {
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

    /// Reads the written data again and returns its checksum. This takes long; `progress` can stop
    /// it by an error.
    pub(super) fn checksum(
        &self,
        place: &VirtualPath,
        length: u64,
        algorithm: Algorithm,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<String> {
        if self.handle().positionless() {
            return Err(Error::new(ErrorKind::Unsupported, "checksum", place.as_bytes())
                .with_detail("what a device or a pipe has taken cannot be read again"));
        }
        // Zeros at the end may not have been written.
        let written = self.handle();
        let metadata = written.metadata()?;
        if metadata.kind == Kind::File && metadata.size < length {
            written.set_len(length)?;
        }
        let handle = match self {
            Self::Upload(part) => part.reader()?,
            Self::Shared(part) => part.reader()?,
            Self::InPlace(file) => file.store.open_read(&file.place)?,
        };
        checksum_file(&*handle, algorithm, 0, Some(length), progress)
    }

    /// Completes the upload: the file gets its length, its time, its mode and its name.
    pub(super) fn commit(self, length: u64, modified: Option<i64>, plan: &Plan, files: &Files) -> Result<()> {
        match self {
            Self::Upload(part) => {
                // Ranges that a sender in MODE E left out are holes. Starting with the last, each
                // joins the ranges that are present.
                for hole in part.present().complement(0..length).iter().rev() {
                    part.writer().leave_zero(hole.start, hole.end - hole.start);
                    part.record(hole, None)?;
                }
                let closed = OWNERS & !files.create_mode;
                let mode = match (plan.mode, &plan.way) {
                    (None, way) if closed != 0 || matches!(way, Way::Continue(_)) => {
                        Some(part.writer().metadata()?.mode & 0o777 & !closed)
                    }
                    (mode, _) => mode,
                };
                part.commit(length, modified.map(|seconds| (seconds, 0)), mode)
            }
            Self::Shared(part) => {
                // If another transfer has restarted the part file, these bytes are lost.
                part.check_ours()?;
                // Ranges behind this one may be written or in progress: the file never gets
                // shorter.
                let handle = part.writer();
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

    /// Whether at most this number of bytes is left to resume from.
    pub(super) fn has_at_most(&self, bytes: u64) -> bool {
        matches!(self, Self::Upload(part) if part.present().len() <= bytes)
    }

    /// Ends a failed upload. The data stays for a retry, unless there is `nothing`, or at most
    /// `few` bytes.
    pub(super) fn abandon(self, nothing: bool, few: Option<u64>) {
        let Self::Upload(part) = self else {
            return;
        };
        let present = part.present();
        let nothing = nothing && present.is_empty() || few.is_some_and(|few| present.len() <= few);
        let result = if nothing { part.discard() } else { part.suspend() };
        if let Err(error) = result {
            tracing::warn!(%error, "an interrupted upload cannot be put aside");
        }
    }

    /// Removes wrong data.
    pub(super) fn discard(self) {
        let result = match self {
            Self::Upload(part) => part.discard(),
            Self::InPlace(file) => file.discard(),
            Self::Shared(_) => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "a wrong upload cannot be removed");
        }
    }
}
