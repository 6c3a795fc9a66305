//! Receiving files: STOR, APPE and ESTO.
//!
//! An upload is planned and opened, received by the engine, verified and committed, all on the
//! thread of the session. If it fails, its part file stays for a retry; the channel is marked until
//! all data has arrived, so that late data does not become that of the next upload.

use std::thread;
use std::time::{Duration, Instant};

use bstr::ByteSlice as _;
use ropewalk_engine::{Progress, ReceiveJob, Received, Stage};
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Direction, Failure, Mode, RepresentationType, Transfer};
use ropewalk_security::Access;
use ropewalk_storage::{ErrorKind, Kind, WriteOptions};
use rustix::io::Errno;

use super::buffers::Sight;
use super::channel;
use super::destination::Destination;
use super::files::system;
use super::node;
use super::observer::{Markers, Observer};
use super::part_names;
use super::plan::Plan;
use super::room::claim_space;
use super::transfer::Checksum;
use super::uploads;
use crate::failure::failure;
use crate::host::checksum_cache::ChecksumCache;
use crate::host::claims::Claim;
use crate::host::parts::RELEASE_TIME;
use crate::host::writers::{Others, Writing};
use crate::session::data_channel::Channel;
use crate::session::dialogue::EndOfInput;
use crate::session::job::Job;

/// How often a session sends markers and reads commands while a store passes data on.
const SETTLING: Duration = Duration::from_millis(250);

pub(super) fn store(
    job: &mut Job<'_>,
    transfer: &Transfer,
    progress: &Progress,
) -> Result<Checksum, Failure> {
    let mut channel = channel::take(job, Direction::Store)?;
    // Until all of it has arrived.
    channel.desynchronized = true;
    let result = receive_file(job, &mut channel, transfer, progress);
    job.context.channel = Some(channel);
    result
}

/// An upload whose destination is open.
struct Begun {
    place: VirtualPath,
    plan: Plan,
    destination: Destination,
    /// The algorithm to compute during the transfer.
    sum: Option<ChecksumAlgorithm>,
    /// Its space on the disk, unless it belongs to SITE UPLOAD.
    claimed: Option<Claim>,
}

/// Opens a file for writing. If another upload writes it, and its client is gone, this waits for a
/// moment.
pub(super) fn when_free<T>(
    job: &mut Job<'_>,
    writing: &Writing<'_>,
    open: &mut dyn FnMut(&mut Job<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let until = Instant::now() + 2 * RELEASE_TIME;
    let mut last = false;
    loop {
        match open(job) {
            Err(Failure::Class { class: ErrorClass::TooBusy, .. }) if !last => {}
            begun => return begun,
        }
        match writing.ask() {
            Others::Asked if Instant::now() < until => thread::sleep(RELEASE_TIME / 200),
            // The other upload may have released the file meanwhile.
            _ => last = true,
        }
        if job.dialogue.check().is_break() {
            return Err(job.dialogue.broken_off().unwrap_or(Failure::Aborted));
        }
    }
}

fn begin(job: &mut Job<'_>, transfer: &Transfer) -> Result<Begun, Failure> {
    if let Some(id) = &transfer.upload {
        let active = uploads::active(job, id)?;
        let upload = active.upload().ok_or_else(uploads::ended)?;
        let plan = Plan::of_ranges(transfer, &*upload)?;
        // Only these sums can be kept with the ranges.
        let expected = active.parameters.checksum.as_ref().map(|(algorithm, _)| *algorithm);
        let kept = expected.filter(|algorithm| *algorithm == ChecksumAlgorithm::Crc32c);
        let sum = wanted_sum(transfer).or(kept);
        return Ok(Begun {
            place: active.place.clone(),
            plan,
            destination: Destination::Ranges(upload),
            sum,
            claimed: None,
        });
    }
    let login = job.context.login()?;
    let acting = login.acting()?;
    let files = &job.context.settings.config.files;
    let (place, existing) = login.target(&transfer.path, transfer.replaces)?;
    login.is_free(&place)?;
    match &existing {
        Some(metadata) if metadata.kind == Kind::Directory => return Err(system(Errno::ISDIR, "open")),
        _ => {}
    }
    let storage = login.store_for(&place);
    job.host.uploads.release(job.context.user(), &place);
    if let Some(metadata) = &existing
        && metadata.kind == Kind::File
        && !metadata.writable
        && !transfer.replaces
    {
        // The bits of its mode deny writing, but there may be an access control list.
        let write = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
        storage.open_write(&place, write).map_err(failure)?;
    }
    let size_reported = job.context.reported.has(&transfer.path);
    let mut proceed = |_| job.dialogue.proceed(&place);
    let plan =
        Plan::choose(&storage, &place, existing.as_ref(), transfer, size_reported, files, &mut proceed)
            .map_err(|error| job.dialogue.broken_off().unwrap_or(error))?;
    if transfer.expected.is_some() && plan.keeps_bytes() && !login.allows(&place, Access::Read) {
        return Err(Failure::NotAllowed);
    }
    let claimed = match files.check_free_space {
        true => claim_space(job, transfer.allocated, transfer.present.len(), &place, existing.as_ref())?,
        false => None,
    };
    if let Some(metadata) = &existing {
        job.host.checksums.forget(metadata);
    }
    let parts = &job.host.parts;
    let destination = plan
        .open(&storage, &place, transfer, files, parts, &mut |_| job.dialogue.proceed(&place))
        .map_err(|error| job.dialogue.broken_off().unwrap_or(error))?;
    if let Err(refused) = plan.admit(&destination, transfer) {
        destination.abandon(true, None);
        return Err(refused);
    }
    if let Some(claimed) = &claimed {
        destination.claim(claimed);
    }
    drop(acting);
    Ok(Begun { place, plan, destination, sum: wanted_sum(transfer), claimed })
}

fn receive_file(
    job: &mut Job<'_>,
    channel: &mut Channel,
    transfer: &Transfer,
    progress: &Progress,
) -> Result<Checksum, Failure> {
    let host = job.host;
    let writing = host.writers.begin(job.context.user(), &transfer.path);
    let begun = when_free(job, &writing, &mut |job| begin(job, transfer))?;
    let Begun { place, mut plan, destination, sum, claimed: _claimed } = begun;
    let files = &job.context.settings.config.files;
    let _appending = plan.append_alone(&destination, transfer, &host.appends)?;
    let origin = plan.origin;
    let secure = |whole| destination.secure(whole, files.fsync);
    let mut markers = Markers::new(transfer.perf_interval, transfer.restart_interval, origin);
    markers.secure = Some(&secure);
    let stored = || destination.stored();
    markers.stored = Some(&stored);
    markers.sight = Some(Sight::new(false));
    markers.stripes = channel.data.stripes();
    markers.nodes = node::news(job, channel, transfer);
    markers.storage = transfer.storage_info.then_some(Stage::Destination);
    let end = match (proves_its_end(transfer), transfer.mode) {
        (true, Mode::Stream) => EndOfInput::Nothing,
        // In MODE E the control connection shows first that a client has died.
        (true, Mode::ExtendedBlock) => EndOfInput::DiedUnlessQueued,
        (false, _) => EndOfInput::DiedUnlessQuit,
    };
    job.dialogue.share(job.permit);
    job.dialogue.reply_early(channel);
    let mut observer = Observer::of_upload(&mut job.dialogue, markers, end, writing.writer());
    let receive = ReceiveJob {
        sink: destination.handle(),
        origin,
        accept: accepted(transfer, &plan.present, origin),
        checksum: sum,
        sparse: files.sparse && plan.fresh,
        written: &|range, value| {
            destination.record(range, value.filter(|_| sum == Some(ChecksumAlgorithm::Crc32c)))
        },
    };
    let result = channel.data.receive(&receive, &mut observer, progress);
    channel.desynchronized = result.is_err();
    let result = result.and_then(|received| {
        settle(&destination, &mut observer, progress).map_err(failure).map(|()| received)
    });
    // If little has arrived and space is short, no part file is left to resume from, unless markers
    // have reported ranges of it.
    let short = result.as_ref().is_err_and(is_of_space) && !observer.has_reported_ranges();
    let few = short.then_some(files.journal_above).filter(|&few| destination.has_at_most(few));
    observer.last_markers(progress, result.is_ok(), few.is_none());
    // A client that dies closes its connections together, so the end of the data may be its death.
    // In MODE E the data itself says whether it is complete.
    if result.is_err() || transfer.mode == Mode::Stream {
        let _ = observer.drain();
    }
    job.dialogue.share(None);
    let result = match job.dialogue.broken_off() {
        Some(failure) => Err(failure),
        None => result.and_then(|received| complete(transfer, &plan, &received).map(|()| received)),
    };
    drop(receive);
    match result {
        Ok(received) => finish(job, transfer, &place, &plan, destination, &received, sum),
        Err(failure) if channel.data.is_doubtful() => {
            discard_reported(job, transfer, destination);
            Err(failure)
        }
        Err(failure) => {
            destination.abandon(progress.bytes() == 0, few);
            Err(failure)
        }
    }
}

/// Waits until a store that passes its data on has done so, and reports the progress meanwhile.
fn settle(
    destination: &Destination,
    observer: &mut Observer<'_, '_>,
    progress: &Progress,
) -> ropewalk_storage::Result<()> {
    while !destination.settle(SETTLING)? && observer.settling(progress).is_continue() {}
    Ok(())
}

/// Discards an upload of which ranges may be recorded that are not there, so that no client resumes
/// it.
fn discard_reported(job: &Job<'_>, transfer: &Transfer, destination: Destination) {
    let place = transfer.path.as_bytes().as_bstr();
    tracing::warn!(session = job.context.id, path = ?place, "an upload with reports that cannot be true is removed");
    match destination {
        Destination::Ranges(upload) => {
            if let Err(error) = upload.discard() {
                tracing::warn!(%error, "the upload cannot be removed");
            }
            drop(upload);
            // A transfer of another session may still write to it; what it writes gets no name.
            if let Some(active) = transfer.upload.as_ref().and_then(|id| uploads::active(job, id).ok()) {
                drop(active.end());
            }
        }
        destination => destination.discard(),
    }
}

/// The algorithm to compute during the transfer: the one that the client wants reported, or the one
/// that it expects.
fn wanted_sum(transfer: &Transfer) -> Option<ChecksumAlgorithm> {
    let expected = transfer.expected.as_ref().map(|expected| expected.algorithm);
    transfer.inline_checksum.into_iter().chain(expected).find(|algorithm| algorithm.is_combinable())
}

/// The ranges that may be written.
fn accepted(transfer: &Transfer, present: &RangeSet, origin: u64) -> RangeSet {
    match transfer.mode {
        // The bytes that arrive are the missing ones, in order. The length of text changes during
        // the transfer, so this also applies to MODE E.
        _ if transfer.representation == RepresentationType::Ascii => present.complement(origin..u64::MAX),
        Mode::Stream => present.complement(origin..u64::MAX),
        // Each block states its offset. A block that exists already is written again, as GCT does.
        Mode::ExtendedBlock => RangeSet::from_range(origin..u64::MAX),
    }
}

/// Whether the failure is a lack of space.
fn is_of_space(failure: &Failure) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
    match failure {
        Failure::System { errno, .. } => full.contains(errno),
        Failure::Refused { code, .. } => *code == 552,
        _ => false,
    }
}

/// Whether an incomplete upload can be recognised without the client.
fn proves_its_end(transfer: &Transfer) -> bool {
    transfer.mode == Mode::ExtendedBlock
        || transfer.expected.is_some()
        || counts_bytes(transfer) && !transfer.restarted && transfer.allocated.is_some_and(|size| size > 0)
}

/// Whether an announced size counts the bytes that arrive, in MODE S.
fn counts_bytes(transfer: &Transfer) -> bool {
    transfer.mode == Mode::Stream
        && transfer.representation == RepresentationType::Image
        && !transfer.append
        && transfer.adjust.is_none()
}

/// In MODE S the end of the connection is the end of the file, even if the sender died; the
/// announced size shows that. After REST it may be the size of the whole file or of the rest (RFC
/// 959 does not define it): no complete file is shorter than either.
fn complete(transfer: &Transfer, plan: &Plan, received: &Received) -> Result<(), Failure> {
    let plain = counts_bytes(transfer);
    let mut there = plan.present.clone();
    there.union(&received.ranges);
    let there = there.prefix();
    match transfer.allocated {
        Some(size) if plain && there < size => Err(Failure::DataBroken(format!(
            "the data connection ended after {there} of the {size} bytes announced"
        ))),
        _ => Ok(()),
    }
}

/// All data has arrived: verifies it if that was requested, and commits the file.
fn finish(
    job: &mut Job<'_>,
    transfer: &Transfer,
    place: &VirtualPath,
    plan: &Plan,
    destination: Destination,
    received: &Received,
    sum: Option<ChecksumAlgorithm>,
) -> Result<Checksum, Failure> {
    let login = job.context.login()?;
    let storage = login.store_for(place);
    let length = plan.length(received);
    if let Err(error) = plan.clear(&destination, &received.ranges, length) {
        destination.abandon(false, None);
        return Err(failure(error));
    }
    let whole = sum.and_then(|_| received.pieces.as_ref()?.total(0..length));
    // The checksum would reveal bytes that others have sent to a user who may not read them, even
    // if it only confirms a guess.
    let own =
        received.ranges.contains(0..length) || plan.fresh && matches!(destination, Destination::Upload(_));
    if transfer.expected.is_some() && !own && !login.allows(place, Access::Read) {
        destination.abandon(false, None);
        return Err(Failure::NotAllowed);
    }
    if let Some(expected) = &transfer.expected {
        let computed = match &whole {
            Some(value) if sum == Some(expected.algorithm) => value.clone(),
            _ => {
                let mut proceed = |_| job.dialogue.proceed(place);
                match destination.checksum(place, length, expected.algorithm, &mut proceed) {
                    Ok(value) => value,
                    Err(error) => {
                        destination.abandon(false, None);
                        return Err(job.dialogue.broken_off().unwrap_or_else(|| failure(error)));
                    }
                }
            }
        };
        if !computed.eq_ignore_ascii_case(&expected.value) {
            destination.discard();
            return Err(Failure::ChecksumMismatch { computed, expected: expected.value.clone() });
        }
    }
    let _acting = login.acting()?;
    if let (Destination::Upload(_), Err(taken)) = (&destination, job.context.login()?.is_free(place)) {
        // Another session was faster.
        destination.discard();
        return Err(taken);
    }
    let written = destination.handle();
    // An ESTO without data makes no file longer.
    let nothing = received.ranges.is_empty() && !matches!(destination, Destination::Upload(_));
    let grown = if nothing { 0 } else { length };
    let files = &job.context.settings.config.files;
    destination.commit(grown, transfer.modified, plan, &received.ranges, files).map_err(|error| {
        match (error.kind(), job.context.login()) {
            // Another session was faster after the check.
            (ErrorKind::AlreadyExists, Ok(login)) => {
                login.is_free(place).err().unwrap_or_else(|| failure(error))
            }
            _ => failure(error),
        }
    })?;
    if let (Some(algorithm), Some(value)) = (sum, &whole)
        && ChecksumCache::is_worth_keeping(length)
        && let (Ok(metadata), Ok(named)) = (written.metadata(), storage.stat(place, false))
        && metadata.kind == Kind::File
        && metadata.size == length
        // The directory may have been moved, and another one may have its name.
        && (named.device, named.inode) == (metadata.device, metadata.inode)
    {
        job.host.checksums.remember(job.context.acting_uid(), place, &metadata, algorithm, value);
    }
    if part_names::is_part(place) {
        part_names::note_completed(&mut job.context.completed_parts, transfer, &*written);
    }
    let inline = transfer.inline_checksum.filter(|&wanted| sum == Some(wanted));
    Ok(inline.and_then(|wanted| Some((wanted, received.pieces.as_ref()?.total_of(&received.ranges)?))))
}
