//! The UDP port that all data channels over QUIC of a process share. A program without the driver
//! has none.

use std::io;
use std::net::SocketAddr;

/// The port, which is open as long as a value or a registry has it.
#[derive(Clone)]
pub struct QuicPort {
    #[cfg(feature = "quic")]
    pub(crate) port: ropewalk_quic_driver::SharedPort,
    #[cfg(not(feature = "quic"))]
    never: std::convert::Infallible,
}

impl QuicPort {
    /// Whether this program can open such a port.
    pub const EXISTS: bool = cfg!(feature = "quic");

    /// Opens the port at each of these addresses.
    ///
    /// # Errors
    /// The port is taken, an address is not one of this host, or the program has no QUIC
    /// (`Unsupported`).
    #[cfg_attr(not(feature = "quic"), allow(unused_variables))]
    pub fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        #[cfg(feature = "quic")]
        return Ok(Self { port: ropewalk_quic_driver::SharedPort::bind(addresses)? });
        #[cfg(not(feature = "quic"))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The addresses of the port, in the order in which they were given.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        #[cfg(feature = "quic")]
        return self.port.addresses().collect();
        #[cfg(not(feature = "quic"))]
        match self.never {}
    }
}
