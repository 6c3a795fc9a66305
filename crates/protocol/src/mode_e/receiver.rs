//! The receiving side of a MODE E transfer, without I/O.
//!
//! A [`Receiver`] is the state of one transfer, a [`StreamReceiver`] that of one of its
//! connections. The caller reads from the connections and passes the header bytes in; it moves the
//! payload itself, to the position that [`Want::Payload`] states. A [`ReceiveError`] means that the
//! sender violated the protocol, so the transfer cannot be completed.

use std::ops::Range;

use crate::mode_e::Header;
use crate::range::RangeSet;

/// A violation of the protocol by the sender. Offsets and counts are in bytes, and are those on the
/// wire unless stated otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    #[error("a block of {count} bytes at offset {offset} (origin {origin}) ends beyond 2^64")]
    Overflow { offset: u64, count: u64, origin: u64 },
    /// `nearest` is the last accepted range of the file that begins before the block, if there is
    /// one.
    #[error(
        "a block of {count} bytes at offset {offset} (origin {origin}) is outside of what was asked for; \
         the nearest range of the file that was: {}",
        nearest.as_ref().map_or_else(|| "none".to_owned(), |r| format!("{}-{}", r.start, r.end))
    )]
    OutsideAccepted { offset: u64, count: u64, origin: u64, nearest: Option<Range<u64>> },
    #[error("EOF announces no stream at all")]
    NoStreams,
    /// In such a header the offset has another meaning (GFD.20 section 3.4), so its payload would
    /// have no position.
    #[error("EOF with {count} bytes of payload, for which it has no offset")]
    EndWithPayload { count: u64 },
    #[error("EOF announces {announced} streams, EOF before announced {before}")]
    Inconsistent { announced: u64, before: u64 },
    #[error("EOF announces {announced} streams, at most {most} are accepted")]
    TooManyAnnounced { announced: u64, most: u64 },
    #[error("{ended} streams have ended, but EOF announced {announced}")]
    TooManyEnded { ended: u64, announced: u64 },
    #[error("more than {most} streams in one transfer")]
    TooManyStreams { most: u64 },
    #[error("the sender announces {announced} bytes, before it announced {before}")]
    InconsistentTotal { announced: u64, before: u64 },
    #[error("more than {most} bytes were sent again")]
    TooMuchResent { most: u64 },
    #[error(
        "the connection ended before EOD: {left} bytes of payload and {header} bytes of a header were outstanding"
    )]
    Lost { left: u64, header: usize },
}

/// The maximum number of bytes of a transfer that are sent again: the caller keeps them in memory.
const MOST_RESENT: u64 = 16 << 20;

/// One transfer as its receiver sees it: the number of streams that have ended, the number that
/// will end, and the accepted ranges.
#[derive(Debug)]
pub struct Receiver {
    accept: RangeSet,
    origin: u64,
    most_streams: u64,
    joined: u64,
    ended: u64,
    /// The senders whose EOF is still to come, and the streams that the others have announced.
    missing_ends: u64,
    counted: u64,
    announced: Option<u64>,
    /// The bytes of the file that have come, on any stream, if some may be sent again.
    came: Option<RangeSet>,
    /// The number of bytes that the transfer moves, if the sender has sent bytes again.
    total: Option<u64>,
    resent: u64,
}

impl Receiver {
    /// `accept` are the ranges of the file that blocks may touch (up to `u64::MAX` if the length is
    /// unknown). The position in the file is the offset on the wire plus `origin`. More than
    /// `most_streams` streams are an error; streams that ended with CLOSE, and streams that were
    /// removed, do not count.
    pub fn new(accept: RangeSet, origin: u64, most_streams: u32) -> Self {
        Self {
            accept,
            origin,
            most_streams: most_streams.into(),
            joined: 0,
            ended: 0,
            missing_ends: 1,
            counted: 0,
            announced: None,
            came: None,
            total: None,
            resent: 0,
        }
    }

    /// Several senders, each of which ends with an EOF of its own that counts its streams (GFD.20
    /// section 3.4: a striped server).
    #[must_use]
    pub fn with_senders(mut self, senders: u32) -> Self {
        self.missing_ends = u64::from(senders).max(1);
        self
    }

    /// Lets the sender send bytes again. Every block then costs an entry in a set of ranges.
    #[must_use]
    pub fn with_resend(mut self) -> Self {
        self.came = Some(RangeSet::new());
        self
    }

    /// Records that bytes have come, for a transfer that may send some again.
    #[cold]
    #[inline(never)]
    fn noted(
        &mut self,
        range: std::ops::Range<u64>,
        result: Result<(), ReceiveError>,
    ) -> Result<(), ReceiveError> {
        if let Some(came) = &mut self.came {
            came.insert(range);
        }
        result
    }

    fn came(&self) -> u64 {
        self.came.as_ref().map_or(0, RangeSet::len)
    }

    /// A connection joins the transfer.
    ///
    /// # Errors
    /// The maximum number of streams is reached.
    pub fn add_stream(&mut self) -> Result<StreamReceiver, ReceiveError> {
        if self.joined >= self.most_streams {
            return Err(ReceiveError::TooManyStreams { most: self.most_streams });
        }
        self.joined += 1;
        Ok(StreamReceiver {
            state: State::Header { bytes: [0; Header::LEN], filled: 0 },
            headers: 0,
            closing: false,
            resent: false,
        })
    }

    /// Removes a connection that was lost before the end of its stream. The caller may do so, and
    /// continue the transfer, if the connection had sent no data or no valid header.
    pub fn remove_stream(&mut self, stream: &StreamReceiver) {
        // Streams that ended with CLOSE no longer count; streams that ended otherwise stay counted.
        if !matches!(stream.state, State::Ended(_)) {
            self.joined = self.joined.saturating_sub(1);
        }
    }

    /// Whether the transfer is complete: EOF has come, and as many EODs as it announced. If the
    /// sender has sent bytes again, every byte has come, and streams that have not ended are of no
    /// further use.
    pub fn is_complete(&self) -> bool {
        match self.total {
            Some(total) => self.came() == total,
            None => self.announced == Some(self.ended),
        }
    }

    /// The number of bytes of the file that the transfer moves, if the sender has announced it
    /// because it sends bytes again. No connection serves another transfer then.
    pub fn total(&self) -> Option<u64> {
        self.total
    }

    /// Whether all streams that EOF announced have ended, but bytes are missing that the sender has
    /// announced: returns the number of those that have come, and of all.
    pub fn shortfall(&self) -> Option<(u64, u64)> {
        let total = self.total.filter(|_| self.announced == Some(self.ended) && !self.is_complete())?;
        Some((self.came(), total))
    }

    /// Takes the header of a block that another stream may carry as well, or of the size of the
    /// transfer.
    #[cold]
    #[inline(never)]
    fn resent_header(&mut self, header: &Header) -> Result<(), ReceiveError> {
        if header.count == 0 { self.set_total(header.offset) } else { self.add_resent(header.count) }
    }

    fn set_total(&mut self, announced: u64) -> Result<(), ReceiveError> {
        match self.total.replace(announced) {
            Some(before) if before != announced => Err(ReceiveError::InconsistentTotal { announced, before }),
            _ => Ok(()),
        }
    }

    fn add_resent(&mut self, count: u64) -> Result<(), ReceiveError> {
        self.resent = self.resent.saturating_add(count);
        if self.resent > MOST_RESENT {
            return Err(ReceiveError::TooMuchResent { most: MOST_RESENT });
        }
        Ok(())
    }

    /// Number of streams that ended with EOD.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// The number of streams that EOF announced, once it has come from every sender.
    pub fn announced(&self) -> Option<u64> {
        self.announced
    }

    fn end_of_file(&mut self, announced: u64) -> Result<(), ReceiveError> {
        if announced == 0 {
            return Err(ReceiveError::NoStreams);
        }
        if let Some(before) = self.announced {
            return if before == announced {
                self.check_ended()
            } else {
                Err(ReceiveError::Inconsistent { announced, before })
            };
        }
        let all = self.counted.saturating_add(announced);
        // Streams that have ended may have made room for others.
        if all.saturating_sub(self.ended) > self.most_streams {
            return Err(ReceiveError::TooManyAnnounced { announced: all, most: self.most_streams });
        }
        self.counted = all;
        self.missing_ends -= 1;
        if self.missing_ends == 0 {
            self.announced = Some(all);
        }
        self.check_ended()
    }

    fn end_of_data(&mut self) -> Result<(), ReceiveError> {
        self.ended += 1;
        self.check_ended()
    }

    fn check_ended(&self) -> Result<(), ReceiveError> {
        match self.announced {
            Some(announced) if self.ended > announced => {
                Err(ReceiveError::TooManyEnded { ended: self.ended, announced })
            }
            _ => Ok(()),
        }
    }

    /// Returns the position of a block in the file.
    fn place(&self, header: &Header) -> Result<u64, ReceiveError> {
        let Header { offset, count, .. } = *header;
        let origin = self.origin;
        let start = offset.checked_add(origin);
        let (Some(start), Some(end)) = (start, start.and_then(|s| s.checked_add(count))) else {
            return Err(ReceiveError::Overflow { offset, count, origin });
        };
        if self.accept.contains(start..end) {
            return Ok(start);
        }
        let nearest =
            self.accept.iter().take_while(|r| r.start <= start).last().or_else(|| self.accept.iter().next());
        Err(ReceiveError::OutsideAccepted { offset, count, origin, nearest })
    }
}

/// The way in which a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With EOD. The connection may serve the next transfer, whose blocks may already be on it.
    Reusable,
    /// With EOD, and the sender closes the connection.
    Closing,
    /// CLOSE was the first header: the connection took no part in this transfer.
    Retired,
}

/// The bytes that a connection expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// `missing` bytes of a header.
    Header { missing: usize },
    /// Payload. Another header follows, unless this is the `last` block of the connection.
    Payload {
        /// Position in the file (the origin is included).
        file_offset: u64,
        left: u64,
        last: bool,
    },
    /// No bytes: those that follow belong to another transfer.
    Nothing(End),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header { bytes: [u8; Header::LEN], filled: usize },
    Payload { file_offset: u64, left: u64, last: bool },
    Ended(End),
}

/// One connection of a [`Receiver`]. It does not see payload, so the caller may move payload with
/// `splice`.
#[derive(Debug)]
pub struct StreamReceiver {
    state: State,
    headers: u64,
    closing: bool,
    /// The current block is one that another stream may carry as well.
    resent: bool,
}

impl StreamReceiver {
    pub fn want(&self) -> Want {
        match self.state {
            State::Header { filled, .. } => Want::Header { missing: Header::LEN - filled },
            State::Payload { file_offset, left, last } => Want::Payload { file_offset, left, last },
            State::Ended(end) => Want::Nothing(end),
        }
    }

    /// Whether the expected payload may come, or may have come, on another stream as well. Such
    /// bytes are needed only if no other stream brings them until the transfer is complete.
    pub fn is_resent(&self) -> bool {
        self.resent
    }

    /// Takes bytes of a header if a header is wanted, at most as many as are missing. Returns the
    /// number of bytes taken.
    ///
    /// # Errors
    /// A block is outside of the accepted ranges; EOF has payload, announces no streams or too
    /// many, or contradicts an earlier EOF; or more streams have ended than EOF announced.
    pub fn header_bytes(&mut self, bytes: &[u8], transfer: &mut Receiver) -> Result<usize, ReceiveError> {
        let State::Header { bytes: header, filled } = &mut self.state else {
            return Ok(0);
        };
        let n = bytes.len().min(Header::LEN - *filled);
        header[*filled..*filled + n].copy_from_slice(&bytes[..n]);
        *filled += n;
        if *filled == Header::LEN {
            let header = Header::from_bytes(*header);
            self.header(&header, transfer)?;
        }
        Ok(n)
    }

    /// Records that `n` bytes of the expected payload were received and stored. If they are the
    /// last of the stream, the stream ends, and the transfer may be complete.
    ///
    /// # Errors
    /// The stream ends, and more streams have ended than EOF announced.
    ///
    /// # Panics
    /// If `n` exceeds the expected number of bytes.
    #[inline(always)]
    pub fn payload(&mut self, n: u64, transfer: &mut Receiver) -> Result<(), ReceiveError> {
        let State::Payload { file_offset, left, last } = self.state else {
            assert_eq!(n, 0, "no payload was wanted");
            return Ok(());
        };
        assert!(n <= left, "{n} bytes of payload where {left} were wanted");
        self.state = State::Payload { file_offset: file_offset + n, left: left - n, last };
        let ended = if n == left { self.block_ended(last, transfer) } else { Ok(()) };
        if transfer.came.is_some() {
            return transfer.noted(file_offset..file_offset + n, ended);
        }
        ended
    }

    /// Records that the connection ended, with an end of file or a read error.
    ///
    /// # Errors
    /// The stream had not ended.
    pub fn disconnected(&self) -> Result<(), ReceiveError> {
        match self.state {
            State::Header { filled, .. } => Err(ReceiveError::Lost { left: 0, header: Header::LEN - filled }),
            State::Payload { left, .. } => Err(ReceiveError::Lost { left, header: 0 }),
            State::Ended(_) => Ok(()),
        }
    }

    /// Whether no header of this transfer is complete.
    pub fn has_no_header(&self) -> bool {
        self.headers == 0
    }

    /// Whether the connection has sent no byte in this transfer. Such a connection, kept from an
    /// earlier transfer, may be closed without an error.
    pub fn is_untouched(&self) -> bool {
        self.headers == 0 && matches!(self.state, State::Header { filled: 0, .. })
    }

    fn header(&mut self, header: &Header, transfer: &mut Receiver) -> Result<(), ReceiveError> {
        let first = self.headers == 0;
        self.headers += 1;
        self.closing |= header.is_close();
        let last = header.is_end_of_data();
        if header.is_end_of_file() {
            // No program is known to send this. GCT would take the payload for the next header.
            if header.count > 0 {
                return Err(ReceiveError::EndWithPayload { count: header.count });
            }
            transfer.end_of_file(header.offset)?;
            return self.block_ended(last, transfer);
        }
        if first && header.is_close() && !last && header.count == 0 {
            self.state = State::Ended(End::Retired);
            transfer.joined -= 1;
            return Ok(());
        }
        // Without an agreement on resends the bit has no meaning, and is ignored like other ones.
        self.resent = header.is_resent() && transfer.came.is_some();
        if self.resent {
            transfer.resent_header(header)?;
        }
        if header.count == 0 {
            return self.block_ended(last, transfer);
        }
        let file_offset = transfer.place(header)?;
        self.state = State::Payload { file_offset, left: header.count, last };
        Ok(())
    }

    fn block_ended(&mut self, last: bool, transfer: &mut Receiver) -> Result<(), ReceiveError> {
        self.state = if last {
            State::Ended(if self.closing { End::Closing } else { End::Reusable })
        } else {
            State::Header { bytes: [0; Header::LEN], filled: 0 }
        };
        if last && self.closing {
            transfer.joined -= 1;
        }
        if last { transfer.end_of_data() } else { Ok(()) }
    }
}
