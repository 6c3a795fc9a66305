//! Layers over data connections: a driver or listener wrapped in another one, whose connections are authenticated and,
//! where it is wanted, protected.
//!
//! GSI as on GridFTP's data channels (GFD.20 section 3.1, RFC 2228): who connects is the initiator. A connection that is only
//! authenticated is handed over as it is, so that it keeps its plain descriptor; a protected one has none.

#![forbid(unsafe_code)]

mod driver;
mod handshake;
mod listener;
mod protected;

use ropewalk_gsi::{Expected, Identity};

pub use driver::SecureDriver;
pub use listener::SecureListener;

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
#[derive(Clone, Debug)]
pub struct GsiLayer {
    /// Who we are, and whom we trust.
    pub identity: Identity,
    /// Who the peer must be.
    pub expected: Expected,
    pub level: Level,
}
