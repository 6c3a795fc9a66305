//! The parameters and the results of a transfer. They are plain values: the caller of a
//! [`DataChannel`](crate::DataChannel) makes a job, and the channel returns the result.

use std::ops::Range;
use std::sync::Arc;

use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::{Algorithm, Pieces};
use ropewalk_storage::{ReadHandle, WriteHandle};

use crate::Feed;

/// The parameters of a transfer that sends.
pub struct SendJob {
    pub source: Arc<dyn ReadHandle>,
    /// The ranges of the file to send.
    pub ranges: RangeSet,
    /// The offset in a block's header is the file offset less the origin (ERET P). MODE E only.
    pub origin: u64,
    /// The checksum to compute over the ranges while the data passes. Kinds that cannot be combined
    /// are not computed.
    pub checksum: Option<Algorithm>,
    /// The size that the file must still have when it has been sent. If it has not, the transfer
    /// fails with [`Error::SourceChanged`](crate::Error::SourceChanged).
    pub expected_size: Option<u64>,
    /// MODE E: the receiver takes blocks that are sent again on another stream, and ends the
    /// transfer without the streams that they replace.
    pub resend: bool,
    /// MODE E: ranges that are sent in addition, as soon as they are there. Nothing is sent again
    /// then.
    pub feed: Option<Arc<Feed>>,
}

/// The result of a transfer that sends.
#[derive(Debug)]
pub struct Sent {
    /// Bytes of the file.
    pub bytes: u64,
    /// The number of data connections that carried them.
    pub streams: u32,
    /// The checksums of the ranges, if they were requested.
    pub pieces: Option<Pieces>,
}

/// The parameters of a transfer that receives.
pub struct ReceiveJob<'a> {
    pub sink: Arc<dyn WriteHandle>,
    /// The file offset is the offset in a block's header plus the origin (ESTO A, a window). MODE E
    /// only.
    pub origin: u64,
    /// MODE S: the file ranges that the received bytes fill in order (REST a-b,c-d). The last one
    /// may be open (`u64::MAX`). MODE E: blocks outside of these ranges are an error of the peer.
    pub accept: RangeSet,
    /// The checksum to compute while the data passes. Kinds that cannot be combined are not
    /// computed.
    pub checksum: Option<Algorithm>,
    /// Runs of zeros are not written. The file must be new, and the caller sets its length at the
    /// end.
    pub sparse: bool,
    /// Any stream's thread calls this after bytes are in the store, with their range in the file
    /// and their checksum if it was computed. Each byte is reported once, but not necessarily in
    /// the block in which it came. An error ends the transfer.
    pub written: &'a (dyn Fn(Range<u64>, Option<u32>) -> ropewalk_storage::Result<()> + Sync),
}

/// The result of a transfer that receives.
#[derive(Debug)]
pub struct Received {
    /// Bytes that the store has taken.
    pub bytes: u64,
    /// The number of data connections that brought them.
    pub streams: u32,
    /// The ranges of the file that they fill.
    pub ranges: RangeSet,
    /// The checksums of the ranges, if they were requested.
    pub pieces: Option<Pieces>,
}
