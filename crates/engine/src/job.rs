//! The parameters and the results of a transfer. They are plain values without state of their own; the
//! caller of [`crate::DataChannel`] makes a job, and the channel returns the result.

use std::ops::Range;
use std::sync::Arc;

use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::{Algorithm, Pieces};
use ropewalk_storage::{ReadHandle, WriteHandle};

/// What to send.
pub struct SendJob {
    pub source: Arc<dyn ReadHandle>,
    /// File ranges to send (file offsets).
    pub ranges: RangeSet,
    /// Wire offset = file offset - origin (ERET P). MODE E only.
    pub origin: u64,
    /// Compute this while the data passes, over the ranges sent (combinable kinds only; otherwise `None` comes back).
    pub checksum: Option<Algorithm>,
    /// The file must still have this size when it has been sent, else [`Error::SourceChanged`].
    pub expected_size: Option<u64>,
}

/// What was sent.
#[derive(Debug)]
pub struct Sent {
    /// Bytes of the file.
    pub bytes: u64,
    /// Data connections that carried them.
    pub streams: u32,
    /// The checksums of the ranges, where they were asked for.
    pub pieces: Option<Pieces>,
}

/// What to receive, and where to put it.
pub struct ReceiveJob<'a> {
    pub sink: Arc<dyn WriteHandle>,
    /// File offset = wire offset + origin (ESTO A, a window). MODE E only.
    pub origin: u64,
    /// MODE S: the file ranges that the bytes that come belong to, in order (REST a-b,c-d); the last may be open (`u64::MAX`).
    /// MODE E: blocks outside of these ranges are an error (lying peer).
    pub accept: RangeSet,
    /// Compute this while the data passes (combinable kinds only).
    pub checksum: Option<Algorithm>,
    /// Do not write runs of zeros (the file is new; the caller sets its length at the end).
    pub sparse: bool,
    /// Called after each block is in the store, from any stream's thread: file range, and its checksum where computed.
    /// What was received is reported once, but not necessarily in the blocks in which it came. An error ends the transfer.
    pub written: &'a (dyn Fn(Range<u64>, Option<u32>) -> ropewalk_storage::Result<()> + Sync),
}

/// What was received.
#[derive(Debug)]
pub struct Received {
    /// Bytes that the store got.
    pub bytes: u64,
    /// Data connections that brought them.
    pub streams: u32,
    /// File ranges.
    pub ranges: RangeSet,
    /// The checksums of the ranges, where they were asked for.
    pub pieces: Option<Pieces>,
}
