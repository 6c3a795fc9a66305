//! Sending files: RETR and ERET.

use std::io;
use std::sync::Arc;

use ropewalk_engine::{Progress, SendJob, Stage};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Direction, Failure, Transfer};
use ropewalk_security::Access;
use ropewalk_storage::{Kind, Metadata, ReadHandle};
use rustix::io::Errno;

use super::buffers::Sight;
use super::channel;
use super::files::system;
use super::node;
use super::observer::{Markers, Observer};
use super::path_watch::PathWatch;
use super::transfer::Checksum;
use crate::failure::failure;
use crate::host::checksum_cache::ChecksumCache;
use crate::session::data_channel::Channel;
use crate::session::job::Job;

pub(super) fn retrieve(
    job: &mut Job<'_>,
    transfer: &Transfer,
    progress: &Progress,
) -> Result<Checksum, Failure> {
    let login = job.context.login()?;
    let acting = login.acting()?;
    let place = login.existing(&transfer.path, Access::Read)?;
    let source = login.store.open_read(&place).map_err(failure)?;
    drop(acting);
    let metadata = source.metadata().map_err(failure)?;
    if metadata.kind == Kind::Directory {
        return Err(system(Errno::ISDIR, "open"));
    }
    let mut channel = channel::take(job, Direction::Retrieve)?;
    let mut markers = Markers::new(transfer.perf_interval, 0, 0);
    markers.path = transfer.path_info.then(|| PathWatch::new(channel.data.flows()));
    markers.storage = transfer.storage_info.then_some(Stage::Source);
    markers.sight = Some(Sight::new(true));
    markers.stripes = channel.data.stripes();
    markers.nodes = node::news(job, &channel, transfer);
    job.dialogue.share(job.permit);
    job.dialogue.reply_early(&channel);
    let mut observer = Observer::new(&mut job.dialogue, markers);
    // Files that are generated while they are read (/proc) have the size 0.
    let generated = || {
        metadata.size == 0
            && source.read_at(&mut [0], transfer.window.map_or(0, |w| w.offset)).is_ok_and(|n| n > 0)
    };
    let result = if metadata.kind == Kind::File && !generated() {
        send_ranges(&mut channel, transfer, &source, &metadata, &mut observer, progress)
    } else {
        send_all(&mut channel, transfer, &source, &mut observer, progress)
    };
    observer.last_markers(progress, result.is_ok(), true);
    let result = result.map_err(|error| job.dialogue.broken_off().unwrap_or(error));
    job.context.channel = Some(channel);
    let (checksum, whole) = result?;
    if let (Some((algorithm, value)), true) = (&checksum, whole) {
        remember(job, &place, &source, &metadata, *algorithm, value);
    }
    Ok(checksum)
}

/// Sends a regular file. Returns true if all of it was sent.
fn send_ranges(
    channel: &mut Channel,
    transfer: &Transfer,
    source: &Arc<dyn ReadHandle>,
    metadata: &Metadata,
    observer: &mut Observer<'_, '_>,
    progress: &Progress,
) -> Result<(Checksum, bool), Failure> {
    let (origin, end) = match transfer.window {
        None => (0, metadata.size),
        Some(window) => (window.offset, window.offset.saturating_add(window.length).min(metadata.size)),
    };
    let ranges = match transfer.present.shift_up(origin) {
        Some(present) => present.complement(origin..end.max(origin)),
        // The ranges that the client has lie beyond every file.
        None => RangeSet::new(),
    };
    source.will_read(&ranges);
    let inline = transfer.inline_checksum.filter(|algorithm| algorithm.is_combinable());
    let send = SendJob {
        source: Arc::clone(source),
        ranges: ranges.clone(),
        origin,
        checksum: inline,
        // A log may grow while it is read.
        expected_size: None,
        resend: transfer.resend,
        feed: None,
    };
    let sent = channel.data.send(&send, observer, progress)?;
    // If the file was written meanwhile, the sum of what was read belongs to no version: the client
    // has to ask for the sum of the current file.
    let version = |metadata: &Metadata| (metadata.size, metadata.modified);
    let same = source.metadata().is_ok_and(|now| version(&now) == version(metadata));
    let sum = inline
        .filter(|_| same)
        .and_then(|algorithm| Some((algorithm, sent.pieces.as_ref()?.total_of(&ranges)?)));
    let whole = ranges == RangeSet::from_range(0..metadata.size);
    Ok((sum, whole))
}

/// Sends a device, a pipe or a generated file, whose size means nothing: everything that can be
/// read, or as much as was requested.
pub(super) fn send_all(
    channel: &mut Channel,
    transfer: &Transfer,
    source: &Arc<dyn ReadHandle>,
    observer: &mut Observer<'_, '_>,
    progress: &Progress,
) -> Result<(Checksum, bool), Failure> {
    let (offset, left) = transfer.window.map_or((0, u64::MAX), |window| (window.offset, window.length));
    let skip = transfer.present.prefix();
    let mut reader = Reader {
        source: Arc::clone(source),
        offset: offset.saturating_add(skip),
        left: left.saturating_sub(skip),
    };
    match source.wait_descriptor() {
        Some(descriptor) => channel.data.send_polled(&mut reader, descriptor, observer, progress),
        None => channel.data.send_reader(&mut reader, observer, progress),
    }?;
    Ok((None, false))
}

struct Reader {
    source: Arc<dyn ReadHandle>,
    offset: u64,
    left: u64,
}

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.source.read_now(&mut buffer[..most], self.offset)?;
        let n = read.ok_or(io::ErrorKind::WouldBlock)?;
        self.offset += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

fn remember(
    job: &Job<'_>,
    place: &VirtualPath,
    source: &Arc<dyn ReadHandle>,
    before: &Metadata,
    algorithm: ropewalk_protocol::command::ChecksumAlgorithm,
    value: &str,
) {
    if ChecksumCache::is_worth_keeping(before.size)
        && let Ok(after) = source.metadata()
        && (after.size, after.modified, after.changed) == (before.size, before.modified, before.changed)
    {
        let who = job.context.acting_uid();
        job.host.checksums.remember(who, place, &after, algorithm, value);
    }
}
