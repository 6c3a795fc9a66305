//! The plan of an upload: how a file is written, considering the command and an earlier upload.
//!
//! [`Plan`] belongs to the thread of the session. It refuses uploads that would mix two versions of
//! a file, and opens the [`Destination`] of the others.

use std::sync::Arc;
use std::time::SystemTime;

use ropewalk_engine::Received;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Failure, Mode, Transfer};
use ropewalk_storage::{
    Error, ErrorKind, JournalKey, Journaling, Kind, Metadata, PartFile, Result, Store, Upload, UploadOptions,
    UploadSpec,
};

use super::destination::{Destination, OWNERS, write_zeros};
use super::part_names;
use crate::config::{Files, Fsync};
use crate::failure::failure;
use crate::host::parts::{Appending, Appends, SharedParts};

/// The largest offset that systems can address.
const LONGEST: u64 = i64::MAX as u64;

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
    pub(super) mode: Option<u32>,
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
    /// Ranges of an upload that SITE UPLOAD COMMIT completes.
    Ranges,
}

impl Plan {
    /// The plan of a transfer into an upload that was begun before.
    pub(super) fn of_ranges(transfer: &Transfer, upload: &dyn Upload) -> std::result::Result<Self, Failure> {
        let (origin, present) = Self::offsets(transfer, 0)?;
        // Zeros need not be written over bytes that are zero.
        let fresh = upload.is_blank() && upload.present().is_empty();
        Ok(Self { way: Way::Ranges, origin, present, fresh, mode: None })
    }

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
        if part_names::is_part(place) && transfer.adjust.is_some() {
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
        if part_names::is_part(place) && !transfer.append {
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
        let replaced = existing.filter(|_| !part_names::is_part(place));
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

    /// The ranges of the file that are there, by the client's restart marker or by this transfer.
    pub(super) fn known(&self, received: &RangeSet) -> RangeSet {
        let mut known = self.present.clone();
        known.union(received);
        known
    }

    /// Writes zeros over data of an older upload for which neither this one nor its client has
    /// ranges: these are holes, as in a new file.
    pub(super) fn clear(&self, destination: &Destination, received: &RangeSet, length: u64) -> Result<()> {
        let Destination::Upload(part) = destination else { return Ok(()) };
        if self.fresh {
            return Ok(());
        }
        let mut known = self.known(received);
        known.insert(0..self.origin);
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
        let key = JournalKey { source: String::new(), size: transfer.allocated, modified: transfer.modified };
        let replaced = self.mode.or_else(|| part_names::replaced_mode(&**store, place));
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
        let mut version = None;
        let destination = match &self.way {
            Way::InPlace { truncate } => {
                Destination::open_in_place(store, place, *truncate, transfer.allocated, files)
            }
            Way::Part => match store.begin_upload(place, UploadSpec { key, options }) {
                Ok(upload) => Ok(Destination::Upload(upload)),
                // The directory takes no new files, but this one may be written.
                Err(error) if error.kind() == ErrorKind::PermissionDenied && self.mode.is_some() => {
                    Destination::open_in_place(store, place, true, transfer.allocated, files)
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
            // The upload is open already.
            Way::Ranges => Err(Error::new(ErrorKind::Invalid, "open", place.as_bytes())),
            Way::Shared => {
                let journal = Journaling::Above(files.journal_above);
                let options = UploadOptions { journal, ..options };
                let spec = UploadSpec { key, options };
                part_names::open_shared(store, place, &spec, parts, progress).map(|(part, known)| {
                    version = known;
                    Destination::Shared(part)
                })
            }
        };
        let destination = destination.map_err(failure)?;
        if matches!(destination, Destination::Shared(_)) {
            // The version is not checked again before the file gets its name.
            same_version(version, transfer.modified)?;
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

    /// Asks for the space of the file, if the client has announced its size.
    pub(super) fn admit(
        &self,
        destination: &Destination,
        transfer: &Transfer,
    ) -> std::result::Result<(), Failure> {
        let Some(size) = transfer.allocated else { return Ok(()) };
        // An announced size can be that of the rest: then the file ends behind it.
        let end = if transfer.append { self.origin.saturating_add(size) } else { size };
        destination.handle().admit(end).map_err(failure)
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

    /// The upload resumes the part file of an earlier one.
    pub(super) fn resumes(&self) -> bool {
        matches!(self.way, Way::Continue(_))
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
