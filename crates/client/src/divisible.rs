//! Files whose ranges several sessions can move.

use std::ops::{Deref, Range};
use std::sync::Arc;

use ropewalk_protocol::range::RangeSet;

use crate::download::Download;
use crate::piece::Piece;
use crate::relay::Relay;
use crate::upload::Upload;
use crate::work::Job;

/// A file that can be cut up.
pub(crate) trait Divisible {
    /// The bytes that need not be moved.
    fn present(&self) -> RangeSet;
    /// There will be `more` ranges besides the ones that are known of.
    fn expect(&self, more: u32);
    /// It has failed, or is sent again as a whole: no range of it need be moved.
    fn is_given_up(&self) -> bool;
    fn piece(&self) -> &Piece;
    fn job(self: Arc<Self>, range: Range<u64>) -> Job;
    /// Its bytes that this job is about.
    fn bytes_of(self: &Arc<Self>, job: &Job) -> u64;
}

/// `$keeper` knows of the ranges of `$file`, of which `$job` is one.
macro_rules! divisible {
    ($file:ty, $job:path, $this:ident => $keeper:expr) => {
        impl Divisible for $file {
            fn present(&self) -> RangeSet {
                let $this = self;
                $keeper.present()
            }

            fn expect(&self, more: u32) {
                let $this = self;
                $keeper.expect(more);
            }

            fn is_given_up(&self) -> bool {
                let $this = self;
                $keeper.has_failed()
            }

            fn piece(&self) -> &Piece {
                &self.piece
            }

            fn job(self: Arc<Self>, range: Range<u64>) -> Job {
                $job(self, range)
            }

            fn bytes_of(self: &Arc<Self>, job: &Job) -> u64 {
                match job {
                    $job(file, range) if Arc::ptr_eq(file, self) => range.end - range.start,
                    _ => 0,
                }
            }
        }
    };
}

divisible!(Download, Job::Get, file => file);
// Those of the other two are kept by what they have in common.
divisible!(Upload, Job::Put, file => file.deref());
divisible!(Relay, Job::Third, file => file.deref());
