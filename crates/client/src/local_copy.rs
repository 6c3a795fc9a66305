//! Copies on this host: files, standard input and output, and measurements; also the download of a
//! file to standard output.
//!
//! The worker's thread copies the data through one buffer. Files are written by way of a
//! [`Download`] and are not resumed. A source that changes during the copy is an error, unless it
//! only grows. Data that was written to standard output cannot be taken back, so an error after
//! that is final.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::{Algorithm, Hasher};
use ropewalk_storage::{Kind, Metadata, Pages, Store};

use crate::download::Download;
use crate::part::part_apart;
use crate::place::Place;
use crate::report::Meter;
use crate::source::{Source, still_there, unchanged, wanted};
use crate::task::{Task, one_file};
use crate::verify::{Check, proof, proved, same};
use crate::work::Job;
use crate::worker::Worker;
use crate::{Cancel, ChecksumPolicy, Options, RemoteError};

/// Takes the data that belongs at an offset.
type Taker<'t> = dyn FnMut(&Piece<'_>, u64) -> Result<(), RemoteError> + 't;

const BUFFER: usize = 1 << 20;

pub(crate) fn run(worker: &Worker<'_>, job: Job) {
    let Job::File(mut task) = job else { return worker.done() };
    let ctx = worker.ctx;
    if task.compares() {
        match same_already(worker, &task) {
            Ok(Some(proof)) => return worker.have_already(task, proof),
            Ok(None) => {}
            Err(e) => return worker.fail(Job::File(task), e),
        }
    }
    ctx.report.anew(&mut task);
    let source = match open(worker, &mut task) {
        Ok(source) => source,
        Err(e) => return worker.fail(Job::File(task), e),
    };
    ctx.report.started(&task, 0);
    let mut written = 0;
    match copy(worker, &task, &source, ctx.options(), &mut written) {
        Ok(proof) => {
            let took = task.began.map(|at| at.elapsed()).unwrap_or_default();
            ctx.done(&task, written, took, proof);
            worker.done();
        }
        Err(e) => {
            ctx.report.put_back();
            let to_output = matches!(task.destination, Place::Standard);
            let e = if to_output { poured_once(e, written) } else { e };
            worker.fail(Job::File(task), e);
        }
    }
}

/// The proof that the destination has the same bytes; `None` if it has not.
fn same_already(worker: &Worker<'_>, task: &Task) -> Result<Option<String>, RemoteError> {
    let (Place::Local(source), Place::Local(destination)) = (&task.source, &task.destination) else {
        return Ok(None);
    };
    let Some(algorithm) = worker.ctx.comparison(&[]) else { return Ok(None) };
    let theirs = task.unless_missing(worker.ctx.local_sum(destination, algorithm))?;
    let Some(theirs) = theirs else { return Ok(None) };
    let ours = worker.ctx.local_sum(source, algorithm)?;
    Ok(proved(algorithm, &ours, &theirs))
}

fn open(worker: &Worker<'_>, task: &mut Task) -> Result<Source, RemoteError> {
    let store = &*worker.ctx.store;
    let source = Source::open(task, store)?;
    if is_one_file(task, store) { Err(one_file(task)) } else { Ok(source) }
}

/// Makes an error final if data was written to standard output, because it cannot be taken back.
fn poured_once(error: RemoteError, written: u64) -> RemoteError {
    match written > 0 && error.is_transient() {
        true => RemoteError::Lost { kind: error.kind(), reason: error.to_string() },
        false => error,
    }
}

/// Copies the data and returns the proof of its checksum. `written` counts the copied bytes.
fn copy(
    worker: &Worker<'_>,
    task: &Task,
    source: &Source,
    options: &Options,
    written: &mut u64,
) -> Result<Option<String>, RemoteError> {
    let ctx = worker.ctx;
    let mut meter = Meter::new(&ctx.report, task);
    // A local copy loses no data on the way, so it is read back only if a checksum is required.
    let check = match options.integrity.checksum {
        ChecksumPolicy::Require(algorithm) => Check::Asked(algorithm),
        ChecksumPolicy::Default | ChecksumPolicy::None => Check::Size,
    };
    let grows = task.grows && options.integrity.checksum == ChecksumPolicy::Default;
    let summed = check.algorithm().or(grows.then_some(Algorithm::Crc32c));
    let mut hasher = summed.map(Hasher::new);
    let mut pass = |piece: Piece<'_>, write: &mut Taker<'_>| {
        if ctx.cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        write(&piece, *written)?;
        if let Some(hasher) = &mut hasher {
            hasher.update(piece.bytes());
        }
        *written += piece.bytes().len() as u64;
        meter.update(*written, 0);
        Ok(())
    };
    let mut each: Box<Taker<'_>>;
    let mut download = None;
    if let Place::Standard = task.destination {
        let mut out = std::io::stdout().lock();
        each = Box::new(move |piece, _| out.write_all(piece.bytes()).map_err(RemoteError::Output));
    } else {
        let begun = Download::begin(task.clone(), check, &ctx.store, options, false)?;
        if check != Check::Size
            && let Err(e) = begun.keeper()
        {
            begun.discard();
            return Err(e);
        }
        let (writer, handle) = (begun.clone(), begun.handle());
        let (path, offset) = (task.destination.path(), task.offset());
        each = Box::new(move |piece, at| {
            let range = offset + at..offset + at + piece.bytes().len() as u64;
            let written = match piece {
                Piece::Data(data) => handle.write_at(data, range.start),
                Piece::Hole(zeros) => {
                    if let Some(disk) = handle.disk() {
                        disk.leave_zero(range.start, zeros.len() as u64);
                    }
                    Ok(())
                }
            };
            let recorded = written.and_then(|()| writer.record(range, None));
            recorded.map_err(|e| RemoteError::local(path.clone(), e))
        });
        download = Some(begun);
    }
    // In an existing destination (a device, a pipe), a hole would keep the old data.
    let sparse = download.as_ref().is_some_and(|download| download.sparse);
    let poured = pour(source, task, sparse, &ctx.cancel, &mut |piece| pass(piece, &mut each));
    drop(each);
    let Some(download) = download else {
        poured?;
        std::io::stdout().flush().map_err(RemoteError::Output)?;
        return Ok(None);
    };
    if let Err(e) = poured {
        // A restart is as fast as resuming.
        download.discard();
        return Err(download.once_only(e));
    }
    let end = task.offset() + *written;
    let arrived = RangeSet::from_range(task.offset()..end);
    download.range_arrived(&arrived, None, None)?;
    let read = hasher.map(Hasher::finish);
    if let Source::Ranged(handle, version) = source
        && task.grows
    {
        let sum = summed.zip(read.as_deref());
        still_there(&**handle, *version, task, task.offset()..end, sum)
            .inspect_err(|_| download.discard())?;
        ctx.report.tell_growth(task);
    }
    if let Some(read) = read {
        download.compare_sum(&read).inspect_err(|_| download.discard())?;
    }
    let nanoseconds = if let Source::Ranged(_, version) = source { version.nanoseconds() } else { 0 };
    download.commit(options, nanoseconds)
}

/// Whether both names belong to one file. The copy would replace the file under one name, and its
/// other names would keep the old one.
fn is_one_file(task: &Task, store: &dyn Store) -> bool {
    let file = |place: &Place| match place {
        Place::Local(path) => store.stat(path, true).ok().filter(|m| m.kind == Kind::File),
        _ => None,
    };
    // The destination is checked first, because it usually does not exist.
    let same = |there: Metadata| {
        file(&task.source).is_some_and(|s| (s.device, s.inode) == (there.device, there.inode) && s.inode != 0)
    };
    file(&task.destination).is_some_and(same)
}

/// The next data of a source.
enum Piece<'d> {
    Data(&'d [u8]),
    /// A hole of the source: as many zeros.
    Hole(&'d [u8]),
}

impl Piece<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Data(bytes) | Self::Hole(bytes) => bytes,
        }
    }
}

/// Reads the wanted range of a source in order. With `sparse`, holes are passed as [`Piece::Hole`].
fn pour(
    source: &Source,
    task: &Task,
    sparse: bool,
    cancel: &Cancel,
    pass: &mut dyn FnMut(Piece<'_>) -> Result<(), RemoteError>,
) -> Result<(), RemoteError> {
    let mut buffer = Pages::new(BUFFER);
    match source {
        Source::Ranged(handle, version) => {
            let range = wanted(task.window, task.size.unwrap_or_default());
            let failed = |e| RemoteError::local(task.source.path(), e);
            let holes = match sparse {
                true => handle.data_ranges(range.start, range.end).map_err(failed)?.complement(range.clone()),
                false => RangeSet::new(),
            };
            let mut at = range.start;
            while at < range.end {
                let mut want = usize::try_from(range.end - at).unwrap_or(BUFFER).min(BUFFER);
                if let Some(hole) = holes.intersection(at..at + want as u64).iter().next() {
                    if hole.start == at {
                        want = usize::try_from(hole.end - at).unwrap_or(want);
                        buffer[..want].fill(0);
                        pass(Piece::Hole(&buffer[..want]))?;
                        at = hole.end;
                        continue;
                    }
                    want = usize::try_from(hole.start - at).unwrap_or(want);
                }
                let got = handle
                    .read_at(&mut buffer[..want], at)
                    .map_err(|e| RemoteError::local(task.source.path(), e))?;
                if got == 0 {
                    return Err(RemoteError::SourceChanged { path: task.source.path() });
                }
                pass(Piece::Data(&buffer[..got]))?;
                at += got as u64;
            }
            // For a growing file the checksum decides.
            let later = task.grows && !matches!(task.destination, Place::Standard);
            if later { Ok(()) } else { unchanged(&**handle, *version, task) }
        }
        Source::Stream(stream) => {
            let read = |e| {
                let path = task.source.path();
                let source = ropewalk_storage::Error::from_io(&e, "read", path.as_slice());
                RemoteError::local(path, source)
            };
            let mut reader = stream.open(task.window, Arc::default()).map_err(read)?;
            loop {
                match reader.read(&mut buffer) {
                    Ok(0) => return Ok(()),
                    Ok(n) => pass(Piece::Data(&buffer[..n]))?,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => reader.wait(cancel)?,
                    Err(e) => return Err(read(e)),
                }
            }
        }
    }
}

/// Downloads a file in order to standard output.
pub(crate) fn to_standard_output(worker: &Worker<'_>, mut task: Task) {
    let ctx = worker.ctx;
    ctx.report.anew(&mut task);
    let Place::Remote(endpoint, path) = &task.source else { return worker.done() };
    let mut session = match worker.session(endpoint) {
        Ok(session) => session,
        Err(e) => return worker.fail(Job::File(task.clone()), e),
    };
    let began = Instant::now();
    ctx.report.started(&task, 0);
    let algorithm = match task.source_program {
        true => Ok(None),
        false => ctx.check(&session).map(Check::algorithm),
    };
    let hasher = algorithm.as_ref().ok().copied().flatten().map(Hasher::new);
    let mut out =
        Metered { out: std::io::stdout().lock(), meter: Meter::new(&ctx.report, &task), bytes: 0, hasher };
    let result = algorithm.and_then(|algorithm| {
        let bytes = session.read_whole(path, &mut out, task.window)?;
        out.flush().map_err(RemoteError::Output)?;
        let (Some(algorithm), Some(hasher)) = (algorithm, out.hasher.take()) else {
            return Ok((bytes, None));
        };
        let (ours, theirs) = (hasher.finish(), session.checksum(path, algorithm, task.window, Some(bytes))?);
        if !same(&ours, &theirs) {
            let path = path.clone();
            return Err(RemoteError::ChecksumMismatch { path, algorithm, ours: theirs, theirs: ours });
        }
        Ok((bytes, Some(proof(algorithm, &ours))))
    });
    let written = out.bytes;
    drop(out);
    match result {
        Ok((bytes, proof)) => {
            ctx.done(&task, bytes, began.elapsed(), proof);
            worker.keep(session);
            worker.done();
        }
        Err(e) => {
            if !e.breaks_session() {
                worker.keep(session);
            }
            ctx.report.put_back();
            worker.fail(Job::File(task.clone()), poured_once(e, written));
        }
    }
}

struct Metered<'r, W> {
    out: W,
    meter: Meter<'r>,
    bytes: u64,
    hasher: Option<Hasher>,
}

impl<W: Write> Write for Metered<'_, W> {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let n = self.out.write(data)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&data[..n]);
        }
        self.bytes += n as u64;
        self.meter.update(self.bytes, 1);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Makes a symbolic link, which replaces an existing entry of its name.
pub(crate) fn replace_link(
    store: &dyn Store,
    target: &bstr::BString,
    link: &VirtualPath,
) -> Result<(), RemoteError> {
    use bstr::ByteSlice;
    let local = |e| RemoteError::local(link.as_bytes(), e);
    match store.symlink(target.as_bstr(), link) {
        Err(e) if store.stat(link, false).is_ok() => {
            // The link is made beside its place first, so that the existing entry stays if no link
            // can be made.
            let beside = VirtualPath::parse(&part_apart(link.as_bytes())).map_err(|_| local(e.clone()))?;
            store.symlink(target.as_bstr(), &beside).map_err(|_| local(e))?;
            store.rename(&beside, link).map_err(|e| {
                let _ = store.remove_file(&beside);
                local(e)
            })
        }
        made => made.map_err(local),
    }
}
