//! The state of a file that is uploaded, perhaps by several sessions at the same time.
//!
//! The sessions share an [`Upload`] in an `Arc`. It adds the local source to the [`RemoteUpload`],
//! which has the state at the server. A source that is a stream is read once, so an upload whose
//! stream was read cannot be repeated. A source that changes during the transfer is an error,
//! unless it only grows.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::ReadHandle;
use ropewalk_storage::checksum::{Algorithm, Hasher, Pieces, checksum_file};
use ropewalk_transfer::{Arrival, File, Purpose, Side, Sides};

use crate::RemoteError;
use crate::path_defaults::SMALL;
use crate::remote_upload::RemoteUpload;
use crate::source::{Source, Stream, Version, read_whole, still_there, unchanged};
use crate::staging::{Staging, UploadProof};
use crate::task::Task;
use crate::verify::{Check, add_holes, proof, same};

/// Files up to this size are read once, and kept in memory until they are sent.
const TINY: u64 = 64 << 10;

pub(crate) struct Upload {
    remote_upload: RemoteUpload,
    pub check: Check,
    pub source: UploadSource,
    /// The version of a local source when it was opened.
    opened: Version,
    /// The range of the source that is sent.
    pub wanted: Range<u64>,
    /// The checksum of a small file, which the server compares.
    pub expected: Option<(Algorithm, String)>,
    /// Data was read from a source that cannot be read again.
    pub spent: Arc<AtomicBool>,
    state: Mutex<State>,
}

impl Deref for Upload {
    type Target = RemoteUpload;

    fn deref(&self) -> &RemoteUpload {
        &self.remote_upload
    }
}

pub(crate) enum UploadSource {
    Ranged(Arc<dyn ReadHandle>),
    Stream(Stream),
}

struct State {
    /// The number of bytes of a stream that were sent, and their checksum.
    streamed: u64,
    stream_sum: Option<String>,
    proof: Option<String>,
    /// Holes of the source were not sent.
    holes: bool,
}

/// The way to upload a file, as far as it depends on the server.
pub(crate) struct Manner {
    pub check: Check,
    /// The server is a Ropewalk server: a small file whose checksum is announced may go to its
    /// final name, and replaces an existing file atomically.
    pub atomic: bool,
    /// The place of other files until they are complete.
    pub staging: Staging,
    /// The checksum can be announced to the server.
    pub expect: bool,
    pub present: RangeSet,
}

impl Upload {
    pub(crate) fn begin(task: Task, source: Source, manner: Manner) -> Result<Arc<Self>, RemoteError> {
        let device = task.is_to_device();
        let wanted = crate::source::wanted(task.window, task.size.unwrap_or(u64::MAX));
        let check = if device { Check::Size } else { manner.check };
        let mut expected = None;
        let mut opened = Version::default();
        let source = match source {
            Source::Stream(stream) => UploadSource::Stream(stream),
            Source::Ranged(handle, version) => {
                opened = version;
                let size = task.size.unwrap_or_default();
                let in_passing = check.in_passing();
                match in_passing.filter(|_| size <= SMALL && task.window.is_none() && manner.expect) {
                    Some(algorithm) if size <= TINY => {
                        let data = read_whole(&*handle, &task, size)?;
                        let mut hasher = Hasher::new(algorithm);
                        hasher.update(&data);
                        let sum = hasher.finish();
                        still_there(&*handle, version, &task, 0..size, Some((algorithm, &sum)))?;
                        expected = Some((algorithm, sum));
                        UploadSource::Ranged(Arc::new(crate::source::Bytes(data)))
                    }
                    Some(algorithm) => {
                        // Reading the file a second time when it is sent costs less than keeping it
                        // in memory. If it changes in between, it does not have the announced
                        // checksum.
                        let sum = checksum_file(&*handle, algorithm, 0, Some(size), &mut |_| Ok(()))
                            .map_err(|e| RemoteError::local(task.source.path(), e))?;
                        still_there(&*handle, version, &task, 0..size, Some((algorithm, &sum)))?;
                        expected = Some((algorithm, sum));
                        UploadSource::Ranged(handle)
                    }
                    None => UploadSource::Ranged(handle),
                }
            }
        };
        let direct = manner.atomic && expected.is_some();
        let staging = if direct { Staging::Direct } else { manner.staging };
        let mut remote_upload = RemoteUpload::new(task, staging, manner.present, check);
        remote_upload.is_expected = expected.is_some();
        let state = State { streamed: 0, stream_sum: None, proof: None, holes: false };
        Ok(Arc::new(Self {
            remote_upload,
            check,
            source,
            opened,
            wanted,
            expected,
            spent: Arc::default(),
            state: Mutex::new(state),
        }))
    }

    /// The range of the source that is sent; its end is open if the size is not known.
    pub(crate) fn whole(&self) -> Range<u64> {
        self.wanted.clone()
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Makes an error final if data of a stream was read, because it cannot be read again.
    pub(crate) fn once_only(&self, error: RemoteError) -> RemoteError {
        match error {
            RemoteError::Cancelled | RemoteError::Desynchronized | RemoteError::Spent { .. } => error,
            error if self.is_spent() => RemoteError::Spent { source: Box::new(error) },
            error => error,
        }
    }

    /// The ranges of `range` that are sent: holes of the file are left out, except for its last
    /// byte, which sets its length.
    pub(crate) fn data(&self, range: Range<u64>, sparse: bool) -> Result<RangeSet, RemoteError> {
        let UploadSource::Ranged(handle) = &self.source else { return Ok(RangeSet::from_range(range)) };
        let mut data = RangeSet::from_range(range.clone());
        if sparse {
            let local = |e| RemoteError::local(self.task.source.path(), e);
            data = handle.data_ranges(range.start, range.end).map_err(local)?.intersection(range.clone());
            if range.end == self.wanted.end && range.end > range.start {
                data.insert(range.end - 1..range.end);
            }
            if data.len() < range.end - range.start {
                self.state.lock().holes = true;
            }
        }
        data.subtract(&self.present());
        Ok(data)
    }

    /// Records that the server has received a range. `sums` are the checksums of the sent data, and
    /// `theirs` is the server's checksum of it. Returns `true` for the last range.
    pub(crate) fn range_arrived(
        &self,
        sent: &RangeSet,
        sums: Option<&Pieces>,
        theirs: Option<&str>,
    ) -> Result<bool, RemoteError> {
        let state = self.state.lock();
        let ours = match &self.source {
            UploadSource::Ranged(_) => sums.and_then(|sums| sums.total_of(sent)),
            UploadSource::Stream(_) => state.stream_sum.clone(),
        };
        if let (Some(algorithm), Some(ours), Some(theirs)) = (self.check.algorithm(), ours, theirs) {
            if !same(&ours, theirs) {
                return Err(self.mismatch(algorithm, ours, theirs.to_owned()));
            }
            self.prove(sent);
        }
        if let Some(sums) = sums {
            self.add_sums(sums);
        }
        Ok(self.range_done(sent))
    }

    /// Records that a stream was sent to its end.
    pub(crate) fn streamed(&self, bytes: u64, sum: Option<String>) {
        let mut state = self.state.lock();
        state.streamed = bytes;
        state.stream_sum = sum;
    }

    pub(crate) fn bytes(&self) -> u64 {
        match self.source {
            UploadSource::Ranged(_) => self.wanted.end - self.wanted.start,
            UploadSource::Stream(_) => self.state.lock().streamed,
        }
    }

    /// Whether the server still has to be asked for the checksum of the whole.
    pub(crate) fn needs_sum(&self) -> bool {
        match self.check {
            // The server has compared the checksum.
            _ if self.expected.is_some() => false,
            Check::Size => false,
            Check::Asked(_) => true,
            // Ranges that were verified before may have been lost since, for example when the
            // server's host crashed, or another session may have overwritten them.
            Check::Inline(_) if self.was_tried() => true,
            Check::Inline(_) => {
                let proved = self.proved();
                let holes_only = match self.source {
                    // Ranges that were neither sent nor present before are zeros at both ends.
                    UploadSource::Ranged(_) => self.present() == proved && proved.end() == self.wanted.end,
                    UploadSource::Stream(_) => proved.end() == self.state.lock().streamed,
                };
                !holes_only && self.wanted.start < self.wanted.end
            }
        }
    }

    /// The values that the server needs in order to complete the upload.
    pub(crate) fn upload_proof(&self) -> UploadProof {
        let state = self.state.lock();
        let asked = self.check.algorithm().zip(state.proof.clone());
        UploadProof { checksum: self.expected.clone().or(asked), holes: state.holes }
    }

    /// The size of a stream that has been sent.
    pub(crate) fn size_of_stream(&self) -> Option<u64> {
        match self.source {
            UploadSource::Ranged(_) => None,
            UploadSource::Stream(_) => Some(self.state.lock().streamed),
        }
    }

    /// Compares the server's checksum of the whole (or of the window) with that of the source.
    pub(crate) fn compare_sum(&self, theirs: &str) -> Result<(), RemoteError> {
        let Some(algorithm) = self.check.algorithm() else { return Ok(()) };
        let ours = self.sum(algorithm)?;
        if !same(&ours, theirs) {
            return Err(self.mismatch(algorithm, ours, theirs.to_owned()));
        }
        self.state.lock().proof = Some(ours);
        Ok(())
    }

    fn sum(&self, algorithm: Algorithm) -> Result<String, RemoteError> {
        let state = self.state.lock();
        let UploadSource::Ranged(handle) = &self.source else {
            // The checksum was computed while the stream passed.
            return Ok(state.stream_sum.clone().unwrap_or_default());
        };
        let whole = self.wanted.clone();
        if let Some(mut pieces) = self.sums() {
            // Holes were not sent. Data that was present before has no checksum here; then the file
            // is read again.
            let known = pieces.covered();
            if self.present() == known {
                add_holes(&mut pieces, &known, whole.clone());
            }
            if let Some(sum) = pieces.total(whole.clone()) {
                return Ok(sum);
            }
        }
        drop(state);
        let length = Some(whole.end - whole.start);
        checksum_file(&**handle, algorithm, whole.start, length, &mut |_| Ok(()))
            .map_err(|e| RemoteError::local(self.task.source.path(), e))
    }

    /// Checks that the source did not change while it was read. With `last`, all of it has been
    /// read.
    pub(crate) fn check_source(&self, last: bool) -> Result<(), RemoteError> {
        match &self.source {
            UploadSource::Ranged(handle) if self.task.grows && !self.in_memory() => {
                if !last {
                    return Ok(());
                }
                let sum = match (&self.expected, self.check.algorithm()) {
                    (Some(expected), _) => Some(expected.clone()),
                    (None, Some(algorithm)) => Some((algorithm, self.sum(algorithm)?)),
                    (None, None) => None,
                };
                let sum = sum.as_ref().map(|(algorithm, sum)| (*algorithm, sum.as_str()));
                still_there(&**handle, self.opened, &self.task, self.wanted.clone(), sum)
            }
            UploadSource::Ranged(handle) if !last && !self.in_memory() => {
                unchanged(&**handle, self.opened, &self.task)
            }
            _ => Ok(()),
        }
    }

    /// Whether the file was read as a whole when it was opened.
    fn in_memory(&self) -> bool {
        self.expected.is_some() && self.task.size.is_some_and(|size| size <= TINY)
    }

    /// The proof of the checksum, for the event.
    pub(crate) fn proof(&self) -> Option<String> {
        let algorithm = self.check.algorithm()?;
        let state = self.state.lock();
        let expected = self.expected.as_ref().map(|(_, sum)| sum.clone());
        let known = || self.sums()?.total(self.wanted.clone());
        let sum =
            expected.or_else(|| state.proof.clone()).or_else(|| state.stream_sum.clone()).or_else(known);
        let sum = sum.unwrap_or_default();
        Some(proof(algorithm, &sum))
    }

    fn mismatch(&self, algorithm: Algorithm, ours: String, theirs: String) -> RemoteError {
        RemoteError::ChecksumMismatch { path: self.task.destination.path(), algorithm, ours, theirs }
    }
}

impl File for Upload {
    type Error = RemoteError;

    fn has_failed(&self) -> bool {
        self.remote_upload.has_failed()
    }

    fn is_in_place(&self) -> bool {
        self.remote_upload.is_in_place()
    }

    fn arrived(&self, arrival: &Arrival<'_>) -> Result<bool, RemoteError> {
        self.check_source(false)?;
        let last = self.range_arrived(arrival.moved, arrival.sums, arrival.in_passing.destination)?;
        if last {
            self.check_source(true)?;
        }
        Ok(last)
    }

    fn compare(&self, reported: &Sides<Option<String>>) -> Result<(), RemoteError> {
        match &reported.destination {
            // The server compares it when the upload is committed.
            None if self.staging.upload().is_some() && self.needs_sum() => {
                let sum = self.check.algorithm().map(|algorithm| self.sum(algorithm)).transpose()?;
                self.state.lock().proof = sum;
                Ok(())
            }
            None => Ok(()),
            Some(size) if self.check == Check::Size => {
                self.compare_size(size, self.wanted.start + self.bytes())
            }
            Some(sum) => self.compare_sum(sum),
        }
    }

    fn is_source(&self, _: &Reply) -> Result<(), RemoteError> {
        // The source is local, see [`Self::check_source`].
        Ok(())
    }

    fn replaces(&self, status: &Reply) {
        self.remote_upload.replaces(status);
    }

    fn refused(&self, side: Side, purpose: Purpose, reply: Reply) -> RemoteError {
        self.remote_upload.refused(side, purpose, reply)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::ffi::OsStrExt;

    use ropewalk_protocol::path::VirtualPath;
    use ropewalk_storage::{PosixOptions, PosixStore};

    use super::*;
    use crate::place::Place;

    fn begin(path: &std::path::Path) -> Arc<Upload> {
        let place = Place::Local(VirtualPath::parse(path.as_os_str().as_bytes()).unwrap());
        let mut task = Task::new(0, place.clone(), place);
        let store = PosixStore::new(std::path::Path::new("/"), PosixOptions::default()).unwrap();
        let source = Source::open(&mut task, &store).unwrap();
        let check = Check::Inline(Algorithm::Crc32c);
        let staging = Staging::Part("/.part".into());
        let manner = Manner { check, atomic: true, expect: true, present: RangeSet::new(), staging };
        Upload::begin(task, source, manner).unwrap()
    }

    #[test]
    fn what_was_proved_counts_until_a_try_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        std::fs::File::create(&path).unwrap().set_len(SMALL + 10).unwrap();
        let upload = begin(&path);
        upload.expect(1);
        let (first, second) = (RangeSet::from_range(0..SMALL), RangeSet::from_range(SMALL..SMALL + 10));
        let sums = |range: &RangeSet| {
            let mut pieces = Pieces::new(Algorithm::Crc32c);
            range.iter().for_each(|range| pieces.insert(range, 7));
            pieces
        };
        for (range, last) in [(&first, false), (&second, true)] {
            let pieces = sums(range);
            let theirs = pieces.total_of(range).unwrap();
            assert_eq!(upload.range_arrived(range, Some(&pieces), Some(&theirs)).unwrap(), last);
        }
        assert!(!upload.needs_sum());
        // The server's host may have crashed and lost a range.
        upload.count_try(std::time::Duration::ZERO, false);
        assert!(upload.needs_sum());
    }

    #[test]
    fn small_files_are_summed_before_they_are_sent() {
        let directory = tempfile::tempdir().unwrap();
        for size in [0, 3, TINY as usize, TINY as usize + 1, 1 << 20] {
            let path = directory.path().join(size.to_string());
            let data: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            std::fs::write(&path, &data).unwrap();
            let upload = begin(&path);
            let mut hasher = Hasher::new(Algorithm::Crc32c);
            hasher.update(&data);
            assert_eq!(upload.expected, Some((Algorithm::Crc32c, hasher.finish())), "{size} bytes");
            assert!(!upload.needs_sum() && upload.check_source(false).is_ok());
            // A later change is either not sent or detected.
            std::fs::write(&path, b"other").unwrap();
            let UploadSource::Ranged(handle) = &upload.source else { panic!("a stream") };
            let mut buffer = vec![0; size];
            let kept = handle.read_at(&mut buffer, 0).unwrap() == size && buffer == data;
            assert_eq!(kept, size as u64 <= TINY);
            assert_eq!(upload.check_source(false).is_ok(), kept, "{size} bytes");
        }
    }
}
