//! GSI on data connections. The handshake runs over a non-blocking connection and reads no byte
//! beyond its last record. A connection that is only authenticated is then handed over unwrapped; a
//! protected one is wrapped in `Protected`. A peer that is not the expected one is refused.

use std::io::{self, ErrorKind};

use ropewalk_gsi::{
    Acceptor, AcceptorOptions, After, Expected, HandshakeError, Identity, Initiator, InitiatorOptions,
    Session, Step,
};
use ropewalk_transport::{Connection, Interest};

use crate::outgoing::Outgoing;
use crate::protected::{Protected, Silence};
use crate::reader::{RecordReader, over};
use crate::{Assurance, Handshake, Layer, Level, Progress};

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

/// GSI, as on GridFTP's data channels (GFD.20 section 3.1, RFC 2228). The side that connects is the
/// initiator.
#[derive(Clone, Debug)]
pub struct GsiLayer {
    /// This side's credential and the trusted authorities.
    pub identity: Identity,
    /// The identity that the peer must have.
    pub expected: Expected,
    pub level: Level,
}

impl Layer for GsiLayer {
    fn name(&self) -> &'static str {
        "gsi"
    }

    fn assurance(&self) -> Assurance {
        Assurance { bound: true, protected: self.level == Level::Protected }
    }

    fn begin(&self, connection: Box<dyn Connection>, initiates: bool) -> io::Result<Box<dyn Handshake>> {
        Ok(Box::new(GsiHandshake::new(connection, self, initiates)?))
    }
}

struct GsiHandshake {
    /// `None` after the connection was handed over.
    connection: Option<Box<dyn Connection>>,
    machine: Machine,
    level: Level,
    out: Outgoing,
    /// Reads no byte beyond a record, because clear data may follow.
    reader: RecordReader,
    session: Option<Box<Session>>,
}

impl GsiHandshake {
    /// Prepares the handshake of a connection that this side made (`initiates`) or accepted.
    fn new(mut connection: Box<dyn Connection>, layer: &GsiLayer, initiates: bool) -> io::Result<Self> {
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
            let options =
                AcceptorOptions { expected, after, accept_limited: true, ..AcceptorOptions::default() };
            Acceptor::new(&layer.identity, options).map(Machine::Acceptor)
        };
        let mut handshake = Self {
            connection: Some(connection),
            machine: machine.map_err(failed)?,
            level: layer.level,
            out: Outgoing::default(),
            reader: RecordReader::default(),
            session: None,
        };
        if initiates {
            handshake.step(&[])?;
        }
        Ok(handshake)
    }

    fn step(&mut self, token: &[u8]) -> io::Result<()> {
        match self.machine.step(token).map_err(failed)? {
            Step::Continue(out) => self.out.bytes.extend(out),
            Step::Done(out, session) => {
                self.out.bytes.extend(out);
                self.session = Some(session);
            }
        }
        Ok(())
    }
}

impl Handshake for GsiHandshake {
    fn connection(&self) -> io::Result<&dyn Connection> {
        self.connection.as_deref().ok_or_else(over)
    }

    fn advance(&mut self) -> io::Result<Progress> {
        loop {
            let connection = self.connection.as_mut().ok_or_else(over)?;
            if !self.out.send(connection.as_mut())? {
                return Ok(Progress::Waits(Interest::Write));
            }
            if let Some(session) = self.session.take() {
                let connection = self.connection.take().ok_or_else(over)?;
                return Ok(Progress::Done(match self.level {
                    Level::Clear => connection,
                    Level::Protected => {
                        Box::new(Protected::new(connection, session.into_records(), Silence::Ends))
                    }
                }));
            }
            let connection = self.connection.as_mut().ok_or_else(over)?;
            let Some(record) = self.reader.read(connection.as_mut())? else {
                return Ok(Progress::Waits(Interest::Read));
            };
            self.step(&record)?;
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
