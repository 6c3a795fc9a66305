//! Rules for the addresses to which a client connects.

use std::net::SocketAddr;

/// Decides which addresses a client may connect to. It is asked after the resolution of a name, and
/// for the addresses that a server announces for data.
pub trait Gate: Send + Sync {
    /// # Errors
    /// The reason why no connection may be made.
    fn permits(&self, host: &str, address: SocketAddr) -> Result<(), String>;
}
