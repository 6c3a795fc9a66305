//! The properties of a file on which the driver of all routes and the cutting of big files depend.

use std::ops::{Deref, Range};
use std::sync::Arc;

use ropewalk_protocol::range::RangeSet;
use ropewalk_transfer::File;

use crate::RemoteError;
use crate::download::Download;
use crate::piece::Piece;
use crate::relay::Relay;
use crate::remote_upload::RemoteUpload;
use crate::task::Task;
use crate::upload::Upload;
use crate::work::Job;

/// A file whose ranges several sessions can move.
pub(crate) trait InFlight: File<Error = RemoteError> + Sized {
    fn task(&self) -> &Task;
    /// The bytes that need not be moved.
    fn present(&self) -> RangeSet;
    /// Announces `more` ranges in addition to the known ones.
    fn expect(&self, more: u32);
    fn piece(&self) -> &Piece;
    fn job(self: Arc<Self>, range: Range<u64>) -> Job;
    /// The file and the range of a job, if it is one of this kind of files.
    fn of_job(job: &Job) -> Option<(&Arc<Self>, &Range<u64>)>;
    /// The upload at the server that receives it; `None` if its destination is here.
    fn remote(&self) -> Option<&RemoteUpload>;
    /// The wanted range of the source; its end is open if the size is not known.
    fn whole(&self) -> Range<u64>;
    /// The number of bytes that the destination has when the file is complete.
    fn bytes(&self) -> u64;
    /// Whether the destination keeps the data, which devices do not.
    fn is_kept(&self) -> bool;
    /// Whether a try has failed since the start, so that the server may have to be asked for its
    /// ranges.
    fn was_tried(&self) -> bool;
    /// Whether the file must not share the pipeline: if another file were refused, this one could
    /// get its data without an error.
    fn must_be_alone(&self) -> bool {
        self.remote().is_some_and(RemoteUpload::must_be_alone)
    }
    /// The error, unless its source or its destination permits no second try.
    fn once_only(&self, error: RemoteError) -> RemoteError;
}

/// `$keeper` keeps the ranges of `$file`, and `$job` is the job for one of them. `$remote` is the
/// state at a server that receives the file.
macro_rules! in_flight {
    ($file:ty, $job:path, $this:ident => $keeper:expr, $remote:expr) => {
        impl InFlight for $file {
            fn task(&self) -> &Task {
                &self.task
            }

            fn present(&self) -> RangeSet {
                let $this = self;
                $keeper.present()
            }

            fn expect(&self, more: u32) {
                let $this = self;
                $keeper.expect(more);
            }

            fn piece(&self) -> &Piece {
                &self.piece
            }

            fn job(self: Arc<Self>, range: Range<u64>) -> Job {
                $job(self, range)
            }

            fn of_job(job: &Job) -> Option<(&Arc<Self>, &Range<u64>)> {
                if let $job(file, range) = job { Some((file, range)) } else { None }
            }

            fn remote(&self) -> Option<&RemoteUpload> {
                let remote: fn(&Self) -> Option<&RemoteUpload> = $remote;
                remote(self)
            }

            fn whole(&self) -> Range<u64> {
                self.whole()
            }

            fn bytes(&self) -> u64 {
                self.bytes()
            }

            fn is_kept(&self) -> bool {
                let $this = self;
                $keeper.is_kept()
            }

            fn was_tried(&self) -> bool {
                let $this = self;
                $keeper.was_tried()
            }

            fn once_only(&self, error: RemoteError) -> RemoteError {
                self.once_only(error)
            }
        }
    };
}

in_flight!(Download, Job::Get, file => file, |_| None);
// The ranges of the other two are kept by their common `RemoteUpload`.
in_flight!(Upload, Job::Put, file => file.deref(), |file| Some(file));
in_flight!(Relay, Job::Third, file => file.deref(), |file| Some(file));
