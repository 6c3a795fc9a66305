//! The destination of an upload: a file that gets its name at the end, or an existing file.
//!
//! [`Destination`] is the open file of a [`Plan`]. It belongs to the thread of the session, but
//! blocks are recorded from the threads of the streams. An upload that fails leaves its part file
//! for a retry.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::{Algorithm, checksum_file};
use ropewalk_storage::{
    Error, ErrorKind, Kind, PartFile, Positions, Result, Store, Upload, WriteHandle, WriteOptions, sync_name,
};

use super::plan::Plan;
use crate::config::{Files, Fsync};
use crate::host::claims::Claim;

/// The permissions that an owner needs to resume an upload.
pub(super) const OWNERS: u32 = 0o600;

/// A file that is being written.
pub(super) enum Destination {
    /// A file that gets its name at the end.
    Upload(Arc<dyn Upload>),
    /// A part file that is renamed by RNTO, once a client has seen that it is complete.
    Shared(Arc<PartFile>),
    /// An upload that SITE UPLOAD COMMIT completes.
    Ranges(Arc<dyn Upload>),
    InPlace(InPlace),
}

/// A file that is written under its own name.
pub(super) struct InPlace {
    store: Arc<dyn Store>,
    pub(super) place: VirtualPath,
    pub(super) handle: Arc<dyn WriteHandle>,
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
    /// Opens a file that is written under its own name, and creates it if there is none. `size` is
    /// the announced size of a file whose old content is replaced (`truncate`): if there is no
    /// space for it, the old content stays.
    pub(super) fn open_in_place(
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        truncate: bool,
        size: Option<u64>,
        files: &Files,
    ) -> Result<Self> {
        let found = store.stat(place, true);
        let created = matches!(&found, Err(error) if error.is_not_found());
        if let (true, Some(size), Ok(Kind::File)) = (truncate, size, found.map(|there| there.kind)) {
            let look = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
            store.open_write(place, look)?.admit(size)?;
        }
        let options = WriteOptions { create: true, truncate, exclusive: false, mode: files.create_mode };
        let handle = store.open_write(place, options)?;
        let (store, place) = (store.clone(), place.clone());
        Ok(Self::InPlace(InPlace { store, place, handle, created, named: AtomicBool::new(!created) }))
    }

    pub(super) fn handle(&self) -> Arc<dyn WriteHandle> {
        match self {
            Self::Upload(part) => part.writer(),
            Self::Shared(part) => part.writer(),
            Self::Ranges(upload) => upload.writer(),
            Self::InPlace(file) => Arc::clone(&file.handle),
        }
    }

    /// The upload claims space on its disk for this file.
    pub(super) fn claim(&self, claimed: &Claim) {
        match self {
            Self::Upload(upload) | Self::Ranges(upload) => claimed.began(upload),
            Self::Shared(part) => {
                let upload: Arc<dyn Upload> = Arc::clone(part) as _;
                claimed.began(&upload);
            }
            Self::InPlace(file) => claimed.began_in_place(&file.handle),
        }
    }

    /// Records a block that was written.
    pub(super) fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        match self {
            Self::Upload(part) => part.record(range, crc32c),
            Self::Shared(part) => part.record(range, crc32c),
            Self::Ranges(upload) => upload.record(range, crc32c),
            Self::InPlace(_) => Ok(()),
        }
    }

    /// The ranges that restart markers may report, if these are not all that were recorded.
    pub(super) fn stored(&self) -> Option<RangeSet> {
        match self {
            Self::Upload(upload) | Self::Ranges(upload) => upload.stored(),
            Self::Shared(_) | Self::InPlace(_) => None,
        }
    }

    /// Waits up to `limit` until a store that passes its data on has done so. Returns whether it
    /// has.
    pub(super) fn settle(&self, limit: Duration) -> Result<bool> {
        match self {
            Self::Upload(upload) | Self::Ranges(upload) => upload.settle(limit),
            Self::Shared(_) | Self::InPlace(_) => Ok(true),
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
            Self::Ranges(upload) => {
                if machine {
                    upload.checkpoint()
                } else {
                    upload.keep()
                }
            }
            Self::InPlace(file) if file.handle.positions() != Positions::Any || !machine => Ok(()),
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
        if self.handle().positions() != Positions::Any {
            return Err(Error::new(ErrorKind::Unsupported, "checksum", place.as_bytes())
                .with_detail("what a device or a pipe has taken cannot be read again"));
        }
        // Zeros at the end may not have been written.
        let written = self.handle();
        let metadata = written.metadata()?;
        if metadata.kind == Kind::File && metadata.size < length {
            written.set_len(length)?;
        }
        match self {
            Self::Upload(upload) | Self::Ranges(upload) => upload.checksum(algorithm, length, progress),
            Self::Shared(part) => part.checksum(algorithm, length, progress),
            Self::InPlace(file) => {
                let handle = file.store.open_read(&file.place)?;
                checksum_file(&*handle, algorithm, 0, Some(length), progress)
            }
        }
    }

    /// Completes the upload: the file gets its length, its time, its mode and its name. `received`
    /// has the ranges that came in this transfer.
    pub(super) fn commit(
        self,
        length: u64,
        modified: Option<i64>,
        plan: &Plan,
        received: &RangeSet,
        files: &Files,
    ) -> Result<()> {
        match self {
            Self::Upload(part) => {
                // Ranges that a sender in MODE E left out are holes. Starting with the last, each
                // joins the ranges that are present.
                let holes = part.present().complement(0..length);
                let lost: u64 =
                    plan.known(received).iter().map(|range| holes.intersection(range).len()).sum();
                if lost > 0 {
                    let detail = format!("{lost} bytes that had arrived are no longer in the store");
                    return Err(Error::new(ErrorKind::Incomplete, "finish", b"").with_detail(detail));
                }
                for hole in holes.iter().rev() {
                    if let Some(disk) = part.writer().disk() {
                        disk.leave_zero(hole.start, hole.end - hole.start);
                    }
                    part.record(hole, None)?;
                }
                let closed = OWNERS & !files.create_mode;
                let mode = match plan.mode {
                    None if closed != 0 || plan.resumes() => {
                        Some(part.writer().metadata()?.mode & 0o777 & !closed)
                    }
                    mode => mode,
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
            Self::Ranges(upload) if files.fsync == Fsync::None => upload.confirm(),
            Self::Ranges(upload) => upload.checkpoint(),
            Self::InPlace(file) if file.handle.positions() != Positions::Any => Ok(()),
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
            Self::Shared(_) | Self::Ranges(_) => Ok(()),
        };
        if let Err(error) = result {
            tracing::warn!(%error, "a wrong upload cannot be removed");
        }
    }
}

/// Uses holes if the file system supports them.
pub(super) fn write_zeros(handle: &dyn WriteHandle, range: Range<u64>) -> Result<()> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    if handle.disk().is_some_and(|disk| disk.punch(range.start, range.end - range.start)) {
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
