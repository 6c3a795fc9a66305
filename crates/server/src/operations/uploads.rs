//! SITE UPLOAD: uploads that a client begins and ends by commands of their own.
//!
//! An upload is opened here, gets its data from transfers (ESTO U), and gets its name here once all
//! of the file is present and right. All runs on the thread of the session. After a failed commit
//! the upload stays as it is, unless its bytes are wrong: these are removed.

use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, Outcome};
use ropewalk_protocol::upload::{UploadId, UploadParameters, UploadRequest, UploadStep};
use ropewalk_security::Access;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{ErrorKind, JournalKey, Journaling, Kind, Upload, UploadOptions, UploadSpec};

use super::Answer;
use super::destination::{OWNERS, write_zeros};
use super::observer::MOST_RANGES;
use super::room::claim_space;
use super::store::when_free;
use crate::config::Fsync;
use crate::failure::failure;
use crate::host::checksum_cache::ChecksumCache;
use crate::host::parts::RELEASE_TIME;
use crate::host::uploads::ActiveUpload;
use crate::session::job::Job;

pub(super) fn perform(job: &mut Job<'_>, request: &UploadRequest) -> Answer {
    let UploadRequest { id, path, step } = request;
    if let UploadStep::Begin(parameters) = step {
        return begin(job, id, path, parameters);
    }
    let active = active(job, id)?;
    match step {
        UploadStep::Begin(_) | UploadStep::Ranges => {
            let upload = active.upload().ok_or_else(ended)?;
            // Ranges that are left out are sent again.
            return Ok(Outcome::Ranges(upload.present().iter().take(MOST_RANGES).collect()));
        }
        UploadStep::Commit(parameters) => {
            let size = commit(job, &active, parameters)?;
            job.context.uploads.remove(id);
            return Ok(Outcome::Size(size));
        }
        // Other sessions may have the upload, too.
        UploadStep::Suspend => {}
        UploadStep::Discard => {
            let upload = take(job, &active)?;
            upload.discard().map_err(failure)?;
        }
    }
    job.context.uploads.remove(id);
    Ok(Outcome::Done)
}

/// The upload of this session with the ID, open or not.
pub(super) fn active(job: &Job<'_>, id: &UploadId) -> Result<Arc<ActiveUpload>, Failure> {
    job.context.uploads.get(id).cloned().ok_or_else(ended)
}

/// The failure of a command for an upload that has ended.
pub(super) fn ended() -> Failure {
    let text = "The upload has ended, or another one has taken its place: SITE UPLOAD BEGIN resumes it.";
    Failure::Refused { code: 503, text: text.into() }
}

fn begin(job: &mut Job<'_>, id: &UploadId, path: &VirtualPath, parameters: &UploadParameters) -> Answer {
    let host = Arc::clone(job.host);
    let writing = host.writers.begin(job.context.user(), path);
    let mut started_over = None;
    let active = when_free(job, &writing, &mut |job| {
        let user = job.context.user().to_owned();
        let (place, _) = job.context.login()?.target(path, true)?;
        if let Some(own) = job.context.uploads.get(id).filter(|own| own.upload().is_some()) {
            return Ok(Arc::clone(own));
        }
        host.uploads.begin(&user, &place, id, || open(job, id, path, parameters, &mut started_over))
    })?;
    let upload = active.upload().ok_or_else(ended)?;
    let bytes = upload.present().len();
    job.context.uploads.insert(id.clone(), active);
    Ok(Outcome::UploadBegun { bytes, started_over })
}

fn open(
    job: &mut Job<'_>,
    id: &UploadId,
    path: &VirtualPath,
    parameters: &UploadParameters,
    started_over: &mut Option<String>,
) -> Result<ActiveUpload, Failure> {
    let login = job.context.login()?;
    let _acting = login.acting()?;
    let files = &job.context.settings.config.files;
    let (place, existing) = login.target(path, true)?;
    login.is_free(&place)?;
    let store = login.store_for(&place);
    // A link to a device or pipe is not replaced either.
    match store.stat(&place, true).ok().or(existing.clone()).map(|metadata| metadata.kind) {
        None | Some(Kind::File | Kind::Symlink) => {}
        Some(Kind::Directory) if existing.is_none() => {}
        Some(Kind::Directory) => return Err(super::files::system(rustix::io::Errno::ISDIR, "open")),
        Some(_) => {
            let text = "Nothing takes the place of a device, pipe or socket.".to_owned();
            return Err(Failure::Refused { code: 553, text });
        }
    }
    let claimed = match files.check_free_space {
        true => claim_space(job, parameters.size, 0, &place, existing.as_ref())?,
        false => None,
    };
    if let Some(metadata) = &existing {
        job.host.checksums.forget(metadata);
    }
    if parameters.resume {
        // After a crash of the machine this reads what is there, and the client may not want to
        // wait for it.
        let looked = store.interrupted_upload(&place, &mut |_| job.dialogue.proceed(&place));
        looked.map_err(|error| job.dialogue.broken_off().unwrap_or_else(|| failure(error)))?;
    }
    // That of a link is the mode of the file to which it leads.
    let replaced = match existing {
        None => login.target(path, false).ok().and_then(|(_, followed)| followed),
        existing => existing,
    };
    let replaced = replaced.filter(|there| there.kind == Kind::File).map(|there| there.mode & 0o777);
    let wanted = parameters.mode.or(replaced).unwrap_or(0o7777);
    let options = UploadOptions {
        // As for other uploads: closed to users who may not read the file in the end, and open to
        // the owner, who resumes it.
        mode: files.create_mode & wanted | OWNERS,
        resume: parameters.resume,
        journal: Journaling::Above(files.journal_above),
        sync: files.fsync != Fsync::None,
        direct: files.direct_io.into(),
        reserve: true,
    };
    let key =
        JournalKey { source: id.as_str().to_owned(), size: parameters.size, modified: parameters.modified };
    let upload = store.begin_upload(&place, UploadSpec { key, options }).map_err(failure)?;
    if let Some(size) = parameters.size
        && let Err(refused) = upload.writer().admit(size)
    {
        let ended = if upload.present().is_empty() { upload.discard() } else { upload.suspend() };
        if let Err(error) = ended {
            tracing::warn!(%error, "an upload that does not fit cannot be put aside");
        }
        return Err(failure(refused));
    }
    if let Some(claimed) = &claimed {
        claimed.began(&upload);
    }
    *started_over = upload.started_over().map(str::to_owned);
    Ok(ActiveUpload::new(id.clone(), place, parameters.clone(), replaced, upload).claiming(claimed))
}

/// Ends the upload for all sessions. A client may know that all data has arrived before the session
/// that received it has released the upload, so a transfer in progress is waited for.
fn take(job: &mut Job<'_>, active: &ActiveUpload) -> Result<Arc<dyn Upload>, Failure> {
    let until = Instant::now() + RELEASE_TIME;
    loop {
        if let Some(upload) = active.end() {
            return Ok(upload);
        }
        if !active.is_in_use() {
            return Err(ended());
        }
        if Instant::now() >= until {
            return Err(Failure::Busy("A transfer writes to the upload.".into()));
        }
        if job.dialogue.check().is_break() {
            return Err(job.dialogue.broken_off().unwrap_or(Failure::Aborted));
        }
        thread::sleep(RELEASE_TIME / 200);
    }
}

/// Gives the file its name, and returns its size.
fn commit(job: &mut Job<'_>, active: &ActiveUpload, parameters: &UploadParameters) -> Result<u64, Failure> {
    let upload = take(job, active)?;
    let parameters = parameters.clone().or(&active.parameters);
    let result = complete(job, active, &*upload, &parameters);
    match &result {
        Ok(_) => {}
        Err(Failure::ChecksumMismatch { .. }) => {
            if let Err(error) = upload.discard() {
                tracing::warn!(%error, "a wrong upload cannot be removed");
            }
        }
        Err(_) => active.reopen(upload),
    }
    result
}

fn complete(
    job: &mut Job<'_>,
    active: &ActiveUpload,
    upload: &dyn Upload,
    parameters: &UploadParameters,
) -> Result<u64, Failure> {
    let place = &active.place;
    let present = upload.present();
    let length = parameters.size.unwrap_or_else(|| present.end());
    let missing = present.complement(0..length);
    if !missing.is_empty() && !parameters.holes {
        let few: ropewalk_protocol::range::RangeSet = missing.iter().take(3).collect();
        let text = format!("{} of {length} bytes are missing, the first at {few}.", missing.len());
        return Err(Failure::Refused { code: 554, text });
    }
    if present.end() > length {
        let text = format!("The upload has {} bytes, and the file {length}.", present.end());
        return Err(Failure::Refused { code: 554, text });
    }
    let login = job.context.login()?;
    let acting = login.acting()?;
    let writer = upload.writer();
    // Starting with the last, each joins the ranges that are present.
    for hole in missing.iter().rev() {
        if upload.is_blank() {
            if let Some(disk) = writer.disk() {
                disk.leave_zero(hole.start, hole.end - hole.start);
            }
        } else {
            write_zeros(&*writer, hole.clone()).map_err(failure)?;
        }
        upload.record(hole, None).map_err(failure)?;
    }
    // Zeros at the end may not have been written.
    let metadata = writer.metadata().map_err(failure)?;
    if metadata.kind == Kind::File && metadata.size < length {
        writer.set_len(length).map_err(failure)?;
    }
    drop(acting);
    let known = verify(job, active, upload, parameters, length)?;
    let login = job.context.login()?;
    let _acting = login.acting()?;
    // Another session may have been faster.
    login.is_free(place)?;
    let files = &job.context.settings.config.files;
    let closed = OWNERS & !files.create_mode;
    let mode = match parameters.mode.or(active.replaced) {
        None if closed != 0 || active.resumed => Some(metadata.mode & 0o777 & !closed),
        mode => mode,
    };
    let modified = parameters.modified.map(|seconds| (seconds, 0));
    if files.fsync != Fsync::None {
        // The disk may need a while.
        let _ = job.dialogue.flush();
    }
    upload.commit(length, modified, mode).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => login.is_free(place).err().unwrap_or_else(|| failure(error)),
        _ => failure(error),
    })?;
    if let Some((algorithm, value)) = known
        && ChecksumCache::is_worth_keeping(length)
        && let Ok(metadata) = login.store_for(place).stat(place, false)
        && let Ok(written) = writer.metadata()
        // The directory may have been moved, and another one may have its name.
        && (metadata.device, metadata.inode) == (written.device, written.inode)
    {
        job.host.checksums.remember(job.context.acting_uid(), place, &metadata, algorithm, &value);
    }
    Ok(length)
}

/// Compares the checksum with the expected one, and returns the sum that is known.
fn verify(
    job: &mut Job<'_>,
    active: &ActiveUpload,
    upload: &dyn Upload,
    parameters: &UploadParameters,
    length: u64,
) -> Result<Option<(Algorithm, String)>, Failure> {
    let recorded = upload.pieces().total(0..length).map(|sum| (Algorithm::Crc32c, sum));
    let Some((algorithm, expected)) = &parameters.checksum else { return Ok(recorded) };
    // The checksum would reveal bytes that others have sent to a user who may not read them, even
    // if it only confirms a guess.
    if active.has_data_of_others() && !job.context.login()?.allows(&active.place, Access::Read) {
        return Err(Failure::NotAllowed);
    }
    let known = recorded.filter(|(known, _)| known == algorithm);
    let computed = match known {
        // Bytes of an earlier session may have been changed since.
        Some((_, sum)) if !active.resumed => sum,
        _ => {
            let mut proceed = |_| job.dialogue.proceed(&active.place);
            let sum = upload.checksum(*algorithm, length, &mut proceed);
            sum.map_err(|error| job.dialogue.broken_off().unwrap_or_else(|| failure(error)))?
        }
    };
    let expected = String::from_utf8_lossy(expected);
    if !computed.eq_ignore_ascii_case(&expected) {
        return Err(Failure::ChecksumMismatch { computed, expected: expected.into_owned() });
    }
    Ok(Some((*algorithm, computed)))
}
