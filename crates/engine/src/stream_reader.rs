//! One stream of a MODE E receiver.

use std::io;

use parking_lot::Mutex;
use ropewalk_protocol::mode_e::{End, Header, ReceiveError, Receiver, StreamReceiver, Want};

use crate::block_writer::{BlockWriter, Taken};
use crate::error::{Error, Result};
use crate::wire::Wire;

/// The transfer's state, shared by its streams. Locked for a header and for the end of a block.
pub(crate) type Transfer = Mutex<Receiver>;

/// The result of one step of an [`StreamReader`].
pub(crate) enum Step {
    Moved,
    /// Nothing to read now.
    Blocked,
    Ended(End),
    /// The connection ended and had not brought a whole header in this transfer.
    Lost,
}

pub(crate) struct StreamReader<'a> {
    pub(crate) wire: Wire,
    pub(crate) id: u32,
    stream: StreamReceiver,
    pub(crate) writer: BlockWriter<'a>,
    payload: u64,
    /// It carries blocks that do not fit in the buffer ahead, so that no more is read ahead than
    /// has to be.
    large: bool,
    /// Its very first header was wrong.
    pub(crate) nonsense: bool,
}

impl<'a> StreamReader<'a> {
    pub(crate) fn new(wire: Wire, id: u32, stream: StreamReceiver, writer: BlockWriter<'a>) -> Self {
        Self { wire, id, stream, writer, payload: 0, large: false, nonsense: false }
    }

    /// True once a block has come that is worth a thread.
    pub(crate) fn is_large(&self) -> bool {
        self.large
    }

    /// True while nothing has come in this transfer.
    pub(crate) fn is_untouched(&self) -> bool {
        self.stream.is_untouched() && self.wire.ahead().is_empty()
    }

    /// True while no header has come in this transfer, not even where a part of one has.
    pub(crate) fn has_no_header(&self) -> bool {
        self.stream.has_no_header()
    }

    /// The connection takes no more part in the transfer, without having ended.
    pub(crate) fn leave(&self, transfer: &mut Receiver) {
        transfer.remove_stream(&self.stream);
    }

    /// Reads at most once from the connection, and does what can be done with what came.
    pub(crate) fn step(&mut self, transfer: &Transfer) -> Result<Step> {
        let mut read = false;
        loop {
            match self.stream.want() {
                Want::Nothing(end) => {
                    self.writer.settle()?;
                    return Ok(Step::Ended(end));
                }
                Want::Header { missing } => {
                    if self.wire.ahead().is_empty() {
                        if read {
                            return Ok(Step::Moved);
                        }
                        let most = if self.large { missing } else { Wire::ahead_capacity() };
                        if let Some(step) = self.read_ahead(most)? {
                            return Ok(step);
                        }
                        read = true;
                    }
                    let first = self.stream.has_no_header();
                    let taken = self.stream.header_bytes(self.wire.ahead(), &mut transfer.lock());
                    match taken {
                        Ok(n) => self.wire.consume(n),
                        Err(source) => {
                            // Where it has been counted among the ends already, all of them would
                            // be waited for in vain.
                            self.nonsense = first && !matches!(source, ReceiveError::TooManyEnded { .. });
                            return Err(self.protocol(source));
                        }
                    }
                }
                Want::Payload { file_offset, left, last } => {
                    let ahead = self.wire.ahead().len();
                    self.large |= left > Wire::ahead_capacity() as u64;
                    if !self.large && (ahead as u64) < left {
                        // A small block is written in one piece.
                        if read {
                            return Ok(Step::Moved);
                        }
                        if let Some(step) = self.read_ahead(Wire::ahead_capacity())? {
                            return Ok(step);
                        }
                        read = true;
                        continue;
                    }
                    if ahead == 0 && read {
                        return Ok(Step::Moved);
                    }
                    let beyond = if last { 0 } else { Header::LEN };
                    match self.writer.take(&mut self.wire, file_offset, left, beyond)? {
                        Taken::Bytes(n) => {
                            self.payload += n;
                            let result = self.stream.payload(n, &mut transfer.lock());
                            result.map_err(|e| self.protocol(e))?;
                        }
                        Taken::Blocked => return Ok(Step::Blocked),
                        Taken::End => return self.closed(),
                    }
                    read |= ahead == 0;
                }
            }
        }
    }

    /// `None` where something came.
    fn read_ahead(&mut self, most: usize) -> Result<Option<Step>> {
        match self.wire.read_ahead(most) {
            Ok(0) => self.closed().map(Some),
            Ok(n) => {
                self.writer.came(n);
                Ok(None)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Some(Step::Blocked)),
            Err(_) if self.has_no_header() => Ok(Some(Step::Lost)),
            Err(e) => Err(Error::io(&self.wire.peer)(e)),
        }
    }

    /// The connection has ended where more was wanted.
    fn closed(&mut self) -> Result<Step> {
        // A peer that has sent no valid header may be a stranger.
        if self.has_no_header() {
            return Ok(Step::Lost);
        }
        self.writer.settle()?;
        match self.stream.disconnected() {
            Err(ReceiveError::Lost { left, .. }) => Err(Error::PeerClosed {
                peer: self.wire.peer.clone(),
                stream: self.id,
                bytes: self.payload,
                left: left.saturating_sub(self.wire.ahead().len() as u64),
            }),
            Err(e) => Err(self.protocol(e)),
            Ok(()) => Ok(Step::Lost),
        }
    }

    fn protocol(&self, source: ReceiveError) -> Error {
        Error::Protocol { peer: self.wire.peer.clone(), stream: self.id, source }
    }
}
