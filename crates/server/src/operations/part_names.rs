//! Uploads under the name of a part file: the way of clients that do not know SITE UPLOAD.
//!
//! Such a client sends a file under the name `.NAME.ropewalk-part` and renames it when it is
//! complete. The server recognises the upload by this name alone, and accepts that for one more
//! version. While another session writes a part file, it is neither renamed nor removed. These
//! functions run on the thread of a session.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, Outcome, Transfer};
use ropewalk_security::Access;
use ropewalk_storage::{
    Error as StoreError, ErrorKind, HeldPart, Kind, Metadata, PartFile, Store, UploadOptions, UploadSpec,
    WriteHandle, WriteOptions, hold_part, is_temporary_name, journal_of_part, target_of_part,
};
use rustix::io::Errno;

use super::Answer;
use super::destination::OWNERS;
use super::files::done;
use crate::accounts::login::Login;
use crate::config::{Files, Fsync};
use crate::failure::failure;
use crate::host::parts::{CompletedParts, SharedParts};
use crate::session::context::Retry;

/// Whether a client names a part file by this path.
pub(super) fn is_part(place: &VirtualPath) -> bool {
    journal_of_part(place).is_some()
}

/// The path under which a transfer is accounted for: that of the file to which a part file belongs.
pub(super) fn accounted(place: &VirtualPath) -> VirtualPath {
    target_of_part(place).unwrap_or_else(|| place.clone())
}

/// The permission bits of the file that the part file at this path will replace.
pub(super) fn replaced_mode(store: &dyn Store, place: &VirtualPath) -> Option<u32> {
    store.stat(&target_of_part(place)?, true).ok().map(|there| there.mode & 0o777)
}

/// Opens a part file into which several sessions may put ranges (ESTO). Also returns the time at
/// which its source was modified, if that is known.
pub(super) fn open_shared(
    store: &Arc<dyn Store>,
    place: &VirtualPath,
    spec: &UploadSpec,
    parts: &SharedParts,
    progress: &mut dyn FnMut(u64) -> ropewalk_storage::Result<()>,
) -> ropewalk_storage::Result<(Arc<PartFile>, Option<i64>)> {
    let UploadSpec { key, options } = spec;
    let version = Cell::new(key.modified);
    let progress = RefCell::new(progress);
    let part = parts.open(store, place, &version, || {
        // Bytes that this has read need not be read again.
        let found = PartFile::interrupted(&**store, place, &mut |bytes| (progress.borrow_mut())(bytes));
        let old = found?.and_then(|part| part.key);
        version.set(old.as_ref().and_then(|old| old.modified).or(key.modified));
        // No upload reserves space for holes between ranges.
        let options = UploadOptions { resume: true, reserve: false, ..*options };
        PartFile::begin(store, place, old.unwrap_or_else(|| key.clone()), options)
    })?;
    Ok((part, version.get()))
}

/// Remembers that a session has uploaded all of a part file, until it renames the file. If a file
/// is assembled from ranges (ESTO, APPE), only the client knows when it is complete.
pub(super) fn note_completed(completed: &mut CompletedParts, transfer: &Transfer, written: &dyn WriteHandle) {
    match written.metadata() {
        Ok(whole) if transfer.adjust.is_none() && !transfer.append => {
            completed.insert(transfer.path.clone(), whole);
        }
        _ => completed.remove(&transfer.path),
    }
}

/// Removes the journal of a part file that was removed: it is useless now.
pub(super) fn remove_journal(store: &dyn Store, place: &VirtualPath) {
    if let Some(journal) = journal_of_part(place) {
        let _ = store.remove_file(&journal);
    }
}

/// A file that is about to be renamed, held if it is a part file.
pub(super) struct RenamedPart {
    part: Option<HeldPart>,
    journal: Option<(VirtualPath, (u64, u64))>,
}

impl RenamedPart {
    /// `own` is the part file as this session has uploaded it.
    pub(super) fn hold(login: &Login, from: &VirtualPath, own: Option<&Metadata>) -> Result<Self, Refusal> {
        let part = hold(login, from)?;
        let journal = journal_there(login, from);
        if let (Some(part), Some(own)) = (&part, own)
            && !part.is_still(own, &*login.store_for(from), from).map_err(failure)?
        {
            // The part file of this session is gone, and another upload has left the one with its
            // name.
            let reason = "GridFTP-Reason: The unfinished upload is another one by now.".to_owned();
            return Err(Failure::Class { class: ErrorClass::PathNotFound, lines: vec![reason] }.into());
        }
        Ok(Self { part, journal })
    }

    /// Removes what marked the file as a part file, after it was renamed. If uploads are to survive
    /// a crash of the machine, the new name does as well.
    pub(super) fn finish(
        self,
        login: &Login,
        from: &VirtualPath,
        to: &VirtualPath,
        files: &Files,
    ) -> Result<(), Failure> {
        if let Some(part) = self.part
            && !is_temporary_name(to.file_name().unwrap_or_default())
            && let Err(error) = part.unmark(OWNERS & !files.create_mode)
        {
            tracing::warn!(%error, "a file keeps the mark of an unfinished upload");
        }
        // The upload has its name now, and the journal is useless. But another upload may have
        // started since.
        if let Some((journal, inode)) = &self.journal
            && journal_there(login, from).is_some_and(|(_, there)| there == *inode)
            && let Err(error) = login.store_for(from).remove_file(journal)
        {
            tracing::warn!(%error, "a journal of an upload stays");
        }
        if files.fsync != Fsync::None && is_part(from) {
            let directory = to.parent().unwrap_or_else(VirtualPath::root);
            let synced = match login.store.sync_directory(&directory) {
                // The directory may be written, but not read.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    let write = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
                    login.store_for(to).open_write(to, write).and_then(|file| file.sync_system())
                }
                synced => synced,
            };
            synced.map_err(failure)?;
        }
        Ok(())
    }
}

/// Removes a directory. If it only contains what interrupted uploads have left, that is removed
/// too: clients do not see it and could not remove it.
pub(super) fn remove_directory(login: &Login, place: &VirtualPath) -> Result<Outcome, Refusal> {
    let store = login.store_for(place);
    let Err(error) = store.remove_directory(place) else { return Ok(Outcome::Done) };
    if !matches!(error.errno().map(Errno::from_raw_os_error), Some(Errno::NOTEMPTY | Errno::EXIST)) {
        return Err(failure(error).into());
    }
    let Some(leftovers) = leftovers(login, place) else { return Err(failure(error).into()) };
    // All or none: if one of them is being written, the others may be needed too.
    for leftover in &leftovers {
        drop(hold(login, leftover)?);
    }
    for leftover in &leftovers {
        let held = hold(login, leftover)?;
        let gone = store.remove_file(leftover);
        drop(held);
        gone.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) }).map_err(failure)?;
    }
    Ok(done(store.remove_directory(place))?)
}

/// The files in a directory, journals first, if all of them were left by uploads and the session
/// may remove them.
fn leftovers(login: &Login, place: &VirtualPath) -> Option<Vec<VirtualPath>> {
    let mut found = Vec::new();
    let listed = login.store.list(place, &mut |name, metadata| {
        let child = place.child(name).ok().filter(|child| {
            metadata.kind == Kind::File && is_temporary_name(name) && login.allows(child, Access::Write)
        });
        match child {
            Some(child) => {
                found.push(child);
                Ok(())
            }
            None => Err(StoreError::new(ErrorKind::Interrupted, "list", place.as_bytes())),
        }
    });
    listed.ok()?;
    found.sort_by_key(is_part);
    Some(found)
}

/// The journal of a part file, with its identity.
fn journal_there(login: &Login, part: &VirtualPath) -> Option<(VirtualPath, (u64, u64))> {
    let journal = journal_of_part(part)?;
    let there = login.store_for(part).stat(&journal, false).ok()?;
    Some((journal, (there.device, there.inode)))
}

/// Locks a part file that is about to be renamed or removed. While an upload writes it, it is not
/// complete, and later writes would change the file. `None` if it is not a part file.
pub(super) fn hold(login: &Login, from: &VirtualPath) -> Result<Option<HeldPart>, Refusal> {
    let store = login.store_for(from);
    let is_part = is_part(from) && store.stat(from, false).is_ok_and(|metadata| metadata.kind == Kind::File);
    if !is_part {
        return Ok(None);
    }
    match hold_part(&*store, from) {
        Ok(Some(held)) => Ok(Some(held)),
        Ok(None) => {
            let busy = StoreError::new(ErrorKind::Busy, "rename", from.as_bytes());
            Err(Refusal::Held(failure(busy.with_detail("another transfer writes it"))))
        }
        Err(error) => Err(Refusal::Final(failure(error))),
    }
}

/// The reason why a part file can be neither renamed nor removed.
pub(super) enum Refusal {
    /// Another session writes it, or is about to release it: the client may know that all data has
    /// arrived before that session has released the file.
    Held(Failure),
    Final(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}

impl Refusal {
    pub(super) fn into_failure(self) -> Failure {
        let (Self::Held(failure) | Self::Final(failure)) = self;
        failure
    }

    /// The answer of an operation that needs a part file for itself. It is retried for a moment
    /// ([`crate::session::context::Retry`]).
    pub(super) fn answer(self, retry: &mut Retry) -> Answer {
        if matches!(self, Self::Held(_)) {
            retry.ask();
        }
        Err(self.into_failure())
    }
}
