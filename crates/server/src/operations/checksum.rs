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
    drop(acting);
    let Wanted { algorithm, offset, length, marker_interval } = *wanted;
    let mut markers = Schedule::every(marker_interval);
    let mut progress = |bytes| {
        let mut flow = job.dialogue.check();
        if flow.is_continue() && markers.due() {
            flow = job.dialogue.event(Event::Checksummed { timestamp: timestamp(), bytes });
        }
        if flow.is_break() {
            return Err(Error::new(ErrorKind::Interrupted, "checksum", place.as_bytes()));
        }
        Ok(())
    };
    if let Some(result) = store.checksum(&place, algorithm, offset, length, &mut progress) {
        return answer(job, result);
    }
    let handle = store.open_read(&place).map_err(failure)?;
    let metadata = handle.metadata().map_err(failure)?;
    if metadata.kind == Kind::Directory {
        return Err(system(Errno::ISDIR, "open"));
    }
    // Reading a pipe would change it, and might take forever.
    if metadata.kind != Kind::File {
        let text = "What is no regular file has no checksum.".to_owned();
        return Err(Failure::Refused { code: 550, text });
    }
    let whole = offset == 0 && length.is_none_or(|length| length >= metadata.size);
    if whole
        && let Some(value) = job.host.checksums.recall(job.context.acting_uid(), &place, &metadata, algorithm)
    {
        return Ok(Outcome::Checksum(value));
    }
    let result = checksum_file(&*handle, algorithm, offset, length, &mut progress);
    answer(job, result)
}

/// The checksum, unless the client has broken the command off.
fn answer(job: &Job<'_>, result: ropewalk_storage::Result<String>) -> Answer {
    match (job.dialogue.broken_off(), result) {
        (Some(broken_off), _) => Err(broken_off),
        (None, Ok(value)) => Ok(Outcome::Checksum(value)),
        (None, Err(error)) => Err(failure(error)),
    }
}
