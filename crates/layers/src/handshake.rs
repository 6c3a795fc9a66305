//! The handshake on a connection that does not block.

use std::io::{self, ErrorKind, Read, Write};

use ropewalk_gsi::{
    Acceptor, AcceptorOptions, After, HandshakeError, Initiator, InitiatorOptions, Session, Step,
};
use ropewalk_transport::Connection;
use rustix::event::PollFlags;

use crate::protected::Protected;
use crate::{GsiLayer, Level};

/// The longest TLS record, without its header.
const MAX_RECORD: usize = (16 << 10) + 2048;
const HEADER: usize = 5;

enum Machine {
    Initiator(Initiator),
    Acceptor(Acceptor),
}

impl Machine {
    fn step(&mut self, token: &[u8]) -> Result<Step, HandshakeError> {
        match self {
            Self::Initiator(machine) => machine.step(token),
            Self::Acceptor(machine) => machine.step(token),
        }
    }
}

/// How far it came.
pub(crate) enum Progress {
    Done(Box<dyn Connection>),
    /// The connection has to become ready for these first.
    Waits(PollFlags),
}

pub(crate) struct Handshake {
    /// `None` once it was handed over.
    connection: Option<Box<dyn Connection>>,
    machine: Machine,
    level: Level,
    /// What is to be sent, and how much of it was.
    out: Vec<u8>,
    sent: usize,
    /// The record that comes, as far as it came. Nothing beyond it is read: what follows may be clear.
    record: Vec<u8>,
    session: Option<Box<Session>>,
}

impl Handshake {
    /// For a connection that we made (`initiates`) or accepted.
    pub(crate) fn new(
        mut connection: Box<dyn Connection>,
        layer: &GsiLayer,
        initiates: bool,
    ) -> io::Result<Self> {
        connection.set_nonblocking(true)?;
        let after = match layer.level {
            Level::Clear => After::Flag,
            Level::Protected => After::Nothing,
        };
        let expected = layer.expected.clone();
        let machine = if initiates {
            let options = InitiatorOptions { expected, delegate: None, after, server_name: None };
            Initiator::new(&layer.identity, options).map(Machine::Initiator)
        } else {
            let options = AcceptorOptions { expected, after, accept_limited: true };
            Acceptor::new(&layer.identity, options).map(Machine::Acceptor)
        };
        let mut handshake = Self {
            connection: Some(connection),
            machine: machine.map_err(failed)?,
            level: layer.level,
            out: Vec::new(),
            sent: 0,
            record: Vec::new(),
            session: None,
        };
        if initiates {
            handshake.step(&[])?;
        }
        Ok(handshake)
    }

    pub(crate) fn connection(&self) -> io::Result<&dyn Connection> {
        self.connection.as_deref().ok_or_else(over)
    }

    /// Goes on as far as it goes without waiting.
    pub(crate) fn advance(&mut self) -> io::Result<Progress> {
        loop {
            while self.sent < self.out.len() {
                let connection = self.connection.as_mut().ok_or_else(over)?;
                match connection.write(&self.out[self.sent..]) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(n) => self.sent += n,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        return Ok(Progress::Waits(PollFlags::OUT));
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            self.out.clear();
            self.sent = 0;
            if let Some(session) = self.session.take() {
                let connection = self.connection.take().ok_or_else(over)?;
                return Ok(Progress::Done(match self.level {
                    Level::Clear => connection,
                    Level::Protected => Box::new(Protected::new(connection, session)),
                }));
            }
            if !self.read_record()? {
                return Ok(Progress::Waits(PollFlags::IN));
            }
            let record = std::mem::take(&mut self.record);
            self.step(&record)?;
        }
    }

    fn step(&mut self, token: &[u8]) -> io::Result<()> {
        match self.machine.step(token).map_err(failed)? {
            Step::Continue(out) => self.out.extend(out),
            Step::Done(out, session) => {
                self.out.extend(out);
                self.session = Some(session);
            }
        }
        Ok(())
    }

    /// Reads one whole TLS record; `false` when more of it has to come.
    fn read_record(&mut self) -> io::Result<bool> {
        let connection = self.connection.as_mut().ok_or_else(over)?;
        loop {
            let wanted = match self.record.get(..HEADER) {
                None => HEADER,
                Some(header) => {
                    // Content types of TLS are 20 to 26.
                    if !(0x14..=0x1a).contains(&header[0]) {
                        let text = "what came on the data connection is no TLS record";
                        return Err(io::Error::new(ErrorKind::InvalidData, text));
                    }
                    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
                    if length > MAX_RECORD {
                        let text = format!("a TLS record of {length} bytes");
                        return Err(io::Error::new(ErrorKind::InvalidData, text));
                    }
                    HEADER + length
                }
            };
            let had = self.record.len();
            if had == wanted && had > HEADER {
                return Ok(true);
            }
            if had >= HEADER && wanted == HEADER {
                let text = "an empty TLS record";
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
            self.record.resize(wanted, 0);
            let result = connection.read(&mut self.record[had..]);
            self.record.truncate(had + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => return Err(failed(HandshakeError::Closed)),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn failed(error: HandshakeError) -> io::Error {
    let kind = match error {
        HandshakeError::Chain(_) | HandshakeError::WrongPeer(_) | HandshakeError::LimitedProxy { .. } => {
            ErrorKind::PermissionDenied
        }
        HandshakeError::Closed => ErrorKind::UnexpectedEof,
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, format!("authentication of the data connection: {error}"))
}

fn over() -> io::Error {
    io::Error::other("the handshake is over")
}
