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
    /// The last bytes made the transfer complete.
    pub(crate) completes: bool,
    /// Bytes that were sent again: they are stored only if no other stream has brought them when
    /// the transfer is complete.
    copies: Vec<(u64, Vec<u8>)>,
}

impl<'a> StreamReader<'a> {
    pub(crate) fn new(wire: Wire, id: u32, stream: StreamReceiver, writer: BlockWriter<'a>) -> Self {
        Self {
            wire,
            id,
            stream,
            writer,
            payload: 0,
            large: false,
            nonsense: false,
            completes: false,
            copies: Vec::new(),
        }
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

    /// Takes the bytes that were sent again, with their positions in the file.
    pub(crate) fn take_copies(&mut self) -> Vec<(u64, Vec<u8>)> {
        std::mem::take(&mut self.copies)
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
                    let taken = {
                        let mut transfer = transfer.lock();
                        let taken = self.stream.header_bytes(self.wire.ahead(), &mut transfer);
                        self.completes = transfer.is_complete();
                        taken
                    };
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
                Want::Payload { file_offset, left, .. } if self.stream.is_resent() => {
                    if self.wire.ahead().is_empty() {
                        if read {
                            return Ok(Step::Moved);
                        }
                        if let Some(step) = self.read_ahead(Wire::ahead_capacity())? {
                            return Ok(step);
                        }
                        read = true;
                    }
                    self.keep_copy(file_offset, left, transfer)?;
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
                            // The rest may come on another stream only: then this part counts.
                            if ahead > 0 && matches!(step, Step::Blocked) && transfer.lock().total().is_some()
                            {
                                self.keep_copy(file_offset, left, transfer)?;
                            }
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
                            self.count(n, transfer)?;
                        }
                        Taken::Blocked => return Ok(Step::Blocked),
                        Taken::End => return self.closed(),
                    }
                    read |= ahead == 0;
                }
            }
        }
    }

    /// `n` bytes of the expected payload have come.
    fn count(&mut self, n: u64, transfer: &Transfer) -> Result<()> {
        let mut transfer = transfer.lock();
        let result = self.stream.payload(n, &mut transfer);
        self.completes = transfer.is_complete();
        result.map_err(|e| self.protocol(e))
    }

    /// Keeps bytes of a block that was sent again.
    fn keep_copy(&mut self, at: u64, left: u64, transfer: &Transfer) -> Result<()> {
        let ahead = self.wire.ahead();
        let data = &ahead[..(ahead.len() as u64).min(left) as usize];
        let n = data.len();
        match self.copies.last_mut() {
            Some((start, copy)) if *start + copy.len() as u64 == at => copy.extend_from_slice(data),
            _ => self.copies.push((at, data.to_vec())),
        }
        self.wire.consume(n);
        self.count(n as u64, transfer)
    }

    /// `None` where something came.
    fn read_ahead(&mut self, most: usize) -> Result<Option<Step>> {
        let Some(permitted) = self.writer.permit(most) else { return Ok(Some(Step::Blocked)) };
        match self.wire.read_ahead(permitted.bytes()) {
            Ok(0) => self.closed().map(Some),
            Ok(n) => {
                permitted.moved(n);
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
