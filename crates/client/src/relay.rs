//! The state of a file that moves from one server to another, perhaps over several pairs of
//! sessions at the same time.
//!
//! The sessions share a [`Relay`] in an `Arc`. It adds the comparison of both servers' checksums to
//! the [`RemoteUpload`], which has the state at the destination. If the data passes through this
//! program, an interrupted transfer is restarted from the beginning.

use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::checksum::{Algorithm, Pieces};
use ropewalk_transfer::{Arrival, File, Purpose, Side, Sides};

use crate::RemoteError;
use crate::remote_upload::RemoteUpload;
use crate::staging::{Staging, UploadProof};
use crate::task::Task;
use crate::verify::{Check, proof, same};

pub(crate) struct Relay {
    remote_upload: RemoteUpload,
    pub check: Check,
    /// The checksum of the whole file, which both servers have.
    proof: OnceLock<String>,
    /// The number of bytes that have passed through this program, if the data does pass through it.
    passed: OnceLock<u64>,
}

impl Deref for Relay {
    type Target = RemoteUpload;

    fn deref(&self) -> &RemoteUpload {
        &self.remote_upload
    }
}

impl Relay {
    /// If `passes_here` is set, the data passes through this program in order, and is not resumed.
    pub(crate) fn begin(
        task: Task,
        check: Check,
        staging: Staging,
        present: RangeSet,
        passes_here: bool,
    ) -> Arc<Self> {
        let check = if task.is_to_device() || task.source_program { Check::Size } else { check };
        let mut remote_upload = RemoteUpload::new(task, staging, present, check);
        remote_upload.restarts = passes_here;
        Arc::new(Self { remote_upload, check, proof: OnceLock::new(), passed: OnceLock::new() })
    }

    /// Records that all of the data, this many bytes, has passed through this program.
    pub(crate) fn passed(&self, bytes: u64) {
        let _ = self.passed.set(bytes);
    }

    pub(crate) fn passed_here(&self) -> Option<u64> {
        self.passed.get().copied()
    }

    /// The number of bytes that the destination should have, if it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        self.passed_here().or_else(|| self.task.length())
    }

    /// The wanted range of the source; its end is open if the size is not known.
    pub(crate) fn whole(&self) -> Range<u64> {
        let start = self.task.offset();
        start..self.task.length().map_or(u64::MAX, |length| start + length)
    }

    /// Makes an error final if the transfer starts a program, which must not run again for data
    /// that was lost with the session.
    pub(crate) fn once_only(&self, error: RemoteError) -> RemoteError {
        match error {
            RemoteError::Cancelled | RemoteError::Desynchronized | RemoteError::Spent { .. } => error,
            error if self.restarts && self.task.starts_program() => {
                RemoteError::Spent { source: Box::new(error) }
            }
            error => error,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.length().unwrap_or_else(|| self.present().len())
    }

    /// Records that a range has arrived, of which `moved` was moved now. `source` and `destination`
    /// are the checksums of the moved data at the two servers. Returns `true` for the last range.
    pub(crate) fn range_arrived(
        &self,
        range: Range<u64>,
        moved: &RangeSet,
        source: Option<&str>,
        destination: Option<&str>,
    ) -> Result<bool, RemoteError> {
        if let (Some(source), Some(destination)) = (source, destination) {
            if !same(source, destination) {
                return Err(self.mismatch(source, destination));
            }
            self.prove(moved);
            let sum = u32::from_str_radix(source.trim(), 16);
            // If one checksum covers several ranges, those of the single ranges are not known.
            if let (Some(algorithm), Ok(sum), 1) = (self.check.in_passing(), sum, moved.count()) {
                let mut sums = Pieces::new(algorithm);
                moved.iter().for_each(|range| sums.insert(range, sum));
                self.add_sums(&sums);
            }
        }
        // Without a size the range has no end.
        let arrived = if self.task.size.is_some() { RangeSet::from_range(range) } else { RangeSet::new() };
        Ok(self.range_done(&arrived))
    }

    pub(crate) fn needs_sum(&self) -> bool {
        match self.check {
            Check::Size => false,
            Check::Asked(_) => true,
            // Ranges that were verified before may have been lost since, for example when the
            // server's host crashed, or another session may have overwritten them.
            Check::Inline(_) => self.was_tried() || !self.proved().contains(self.whole()),
        }
    }

    /// Whether no checksum would reveal that another process wrote to the source during the
    /// transfer.
    pub(crate) fn is_unwatched(&self) -> bool {
        let task = &self.task;
        // Checksums of single ranges may come from two files that had the name one after the other.
        let told =
            self.check != Check::Size && !(self.piece.is_cut() && matches!(self.check, Check::Inline(_)));
        !told && task.window.is_none() && task.size.is_some() && task.modified.is_some()
    }

    fn compare_sums(&self, source: &str, destination: &str) -> Result<(), RemoteError> {
        if !same(source, destination) {
            return Err(self.mismatch(source, destination));
        }
        let _ = self.proof.set(source.to_owned());
        Ok(())
    }

    fn mismatch(&self, source: &str, destination: &str) -> RemoteError {
        RemoteError::ChecksumMismatch {
            path: self.task.destination.path(),
            algorithm: self.check.algorithm().unwrap_or(Algorithm::Crc32c),
            ours: source.to_owned(),
            theirs: destination.to_owned(),
        }
    }

    /// The values that the server needs in order to complete the upload.
    pub(crate) fn upload_proof(&self) -> UploadProof {
        let sum = self.check.algorithm().zip(self.proof.get());
        sum.map(|(algorithm, sum)| UploadProof::of(algorithm, sum)).unwrap_or_default()
    }

    pub(crate) fn proof(&self) -> Option<String> {
        let algorithm = self.check.algorithm()?;
        let of_ranges = || self.sums()?.total(self.whole());
        let sum = self.proof.get().cloned().or_else(of_ranges).unwrap_or_default();
        Some(proof(algorithm, &sum))
    }
}

impl File for Relay {
    type Error = RemoteError;

    fn has_failed(&self) -> bool {
        self.remote_upload.has_failed()
    }

    fn is_in_place(&self) -> bool {
        self.remote_upload.is_in_place()
    }

    fn arrived(&self, arrival: &Arrival<'_>) -> Result<bool, RemoteError> {
        let Sides { source, destination } = &arrival.in_passing;
        self.range_arrived(arrival.range.clone(), arrival.moved, *source, *destination)
    }

    fn compare(&self, reported: &Sides<Option<String>>) -> Result<(), RemoteError> {
        match (&reported.source, &reported.destination, self.passed_here().or(self.task.size)) {
            (_, Some(size), Some(expected)) if self.check == Check::Size => self.compare_size(size, expected),
            (Some(source), Some(destination), _) => self.compare_sums(source, destination),
            // The destination compares it when the upload is committed.
            (Some(source), None, _) if self.staging.upload().is_some() => {
                let _ = self.proof.set(source.to_owned());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_source(&self, status: &Reply) -> Result<(), RemoteError> {
        self.task.is_source(status)
    }

    fn replaces(&self, status: &Reply) {
        self.remote_upload.replaces(status);
    }

    fn refused(&self, side: Side, purpose: Purpose, reply: Reply) -> RemoteError {
        self.remote_upload.refused(side, purpose, reply)
    }
}
