//! The traits of everything that stands between a driver and the data of a connection. A [`Layer`]
//! starts a [`Handshake`] on a connection. The caller advances it whenever the connection is ready,
//! and finally gets the connection for the data. A handshake never blocks.

use std::io;

use ropewalk_transport::{Connection, Interest};

use crate::reader::over;

/// The protection of data after the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// Data is sent in clear (PROT C).
    #[default]
    Clear,
    /// Data is sent in records that others can neither change nor read (PROT P, and PROT S, which
    /// GCT's programs encrypt too).
    Protected,
}

/// The properties that a layer gives to the data of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assurance {
    /// Only the expected peer can take part: another one cannot read the data, and data that it
    /// sends is refused.
    pub bound: bool,
    /// Data is sent in records that others on the path cannot change unnoticed (PROT S and P).
    pub protected: bool,
}

/// A step that connections take after a driver has made them, and before they carry data.
pub trait Layer: Send + Sync {
    /// The name in a stack string (`gsi`).
    fn name(&self) -> &'static str;
    fn assurance(&self) -> Assurance {
        Assurance::default()
    }
    /// Starts the handshake of a connection that this side made (`initiates`) or accepted. The
    /// connection is non-blocking until it is handed over.
    ///
    /// # Errors
    /// A precondition of the handshake is missing, or the connection has failed.
    fn begin(&self, connection: Box<dyn Connection>, initiates: bool) -> io::Result<Box<dyn Handshake>>;
}

/// A handshake in progress.
pub trait Handshake: Send {
    /// The connection that it uses.
    ///
    /// # Errors
    /// The handshake is complete.
    fn connection(&self) -> io::Result<&dyn Connection>;
    /// Continues until the handshake is complete or would have to wait. It reads no byte beyond the
    /// handshake.
    ///
    /// # Errors
    /// The peer is not the expected one (`PermissionDenied`), violates the protocol (`InvalidData`)
    /// or has closed the connection (`UnexpectedEof`).
    fn advance(&mut self) -> io::Result<Progress>;
}

/// The state of a handshake after a step.
pub enum Progress {
    /// The handshake is complete. Data goes over this connection, which is still non-blocking.
    Done(Box<dyn Connection>),
    /// The handshake continues when the connection is ready for this.
    Waits(Interest),
}

/// The handshake of a layer that has none: its connection is ready at once.
pub(crate) struct Ready(Option<Box<dyn Connection>>);

impl Ready {
    pub(crate) fn new(connection: impl Connection + 'static) -> Self {
        Self(Some(Box::new(connection)))
    }
}

impl Handshake for Ready {
    fn connection(&self) -> io::Result<&dyn Connection> {
        self.0.as_deref().ok_or_else(over)
    }

    fn advance(&mut self) -> io::Result<Progress> {
        Ok(Progress::Done(self.0.take().ok_or_else(over)?))
    }
}
