//! CKSM: checksums of files and of ranges of files.

use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Event, Failure, Outcome};
use ropewalk_storage::checksum::checksum_file;
use ropewalk_storage::{Error, ErrorKind, Kind};
use rustix::io::Errno;

use super::Answer;
use super::files::system;
use super::observer::{Schedule, timestamp};
use crate::failure::failure;
use crate::session::job::Job;

pub(super) struct Wanted {
    pub(super) algorithm: ChecksumAlgorithm,
    pub(super) offset: u64,
    pub(super) length: Option<u64>,
    /// Seconds between 113 markers, 0 for none.
    pub(super) marker_interval: u32,
}

pub(super) fn checksum(job: &mut Job<'_>, path: &VirtualPath, wanted: &Wanted) -> Answer {
    let login = job.context.login()?;
    let acting = login.acting()?;
    let (place, store) = login.summed(path, wanted.offset == 0 && wanted.length.is_none())?;
    if let Some(value) = store.checksum(&place, wanted.algorithm, wanted.offset, wanted.length) {
        return value.map(Outcome::Checksum).map_err(failure);
    }
    let handle = store.open_read(&place).map_err(failure)?;
    drop(acting);
    let metadata = handle.metadata().map_err(failure)?;
    if metadata.kind == Kind::Directory {
        return Err(system(Errno::ISDIR, "open"));
    }
    // Reading a pipe would change it, and might take forever.
    if metadata.kind != Kind::File {
        let text = "What is no regular file has no checksum.".to_owned();
        return Err(Failure::Refused { code: 550, text });
    }
    let whole = wanted.offset == 0 && wanted.length.is_none_or(|length| length >= metadata.size);
    if whole
        && let Some(value) =
            job.host.checksums.recall(job.context.acting_uid(), &place, &metadata, wanted.algorithm)
    {
        return Ok(Outcome::Checksum(value));
    }
    let mut markers = Schedule::every(wanted.marker_interval);
    let result = checksum_file(&*handle, wanted.algorithm, wanted.offset, wanted.length, &mut |bytes| {
        let mut flow = job.dialogue.check();
        if flow.is_continue() && markers.due() {
            flow = job.dialogue.event(Event::Checksummed { timestamp: timestamp(), bytes });
        }
        if flow.is_break() {
            return Err(Error::new(ErrorKind::Interrupted, "checksum", place.as_bytes()));
        }
        Ok(())
    });
    match (job.dialogue.broken_off(), result) {
        (Some(broken_off), _) => Err(broken_off),
        (None, Ok(value)) => Ok(Outcome::Checksum(value)),
        (None, Err(error)) => Err(failure(error)),
    }
}
