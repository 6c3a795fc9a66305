//! What every kind of security on data connections has in common.

use std::io;

use ropewalk_transport::Connection;
use rustix::event::PollFlags;

/// What happens to the bytes after the handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Level {
    /// They travel as they are (PROT C).
    #[default]
    Clear,
    /// In records that others can neither change nor read (PROT P, and PROT S, which GCT's programs encrypt too).
    Protected,
}

/// How data connections are secured.
pub trait Layer: Send + Sync {
    /// The name in a stack string (`gsi`).
    fn name(&self) -> &'static str;
    /// Begins with a connection that we made (`initiates`) or accepted. It does not block until it is handed over.
    ///
    /// # Errors
    /// What the handshake needs is not to be had, or the connection is broken.
    fn begin(&self, connection: Box<dyn Connection>, initiates: bool) -> io::Result<Box<dyn Handshake>>;
}

/// A handshake under way.
pub trait Handshake: Send {
    /// What it goes over.
    ///
    /// # Errors
    /// The handshake is over.
    fn connection(&self) -> io::Result<&dyn Connection>;
    /// Goes on as far as it goes without waiting. It reads nothing that follows the handshake.
    ///
    /// # Errors
    /// The peer is not who it should be, talks nonsense or has gone: `PermissionDenied`, `InvalidData`, `UnexpectedEof`.
    fn advance(&mut self) -> io::Result<Progress>;
}

/// How far a handshake came.
pub enum Progress {
    /// What the data goes over from here on; still non-blocking.
    Done(Box<dyn Connection>),
    /// The connection has to become ready for these first.
    Waits(PollFlags),
}
