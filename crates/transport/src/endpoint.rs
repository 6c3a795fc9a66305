//! The addresses that drivers listen at and connect to.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A place to listen at or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// An internet address and a port.
    Socket(SocketAddr),
    /// A name that one driver alone understands.
    Opaque(Arc<[u8]>),
}

impl Endpoint {
    /// The IP address, in IPv4 form if it has one; `None` if the endpoint is no internet address.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Socket(address) => Some(address.ip().to_canonical()),
            Self::Opaque(_) => None,
        }
    }

    /// The endpoint without its port.
    pub fn host(&self) -> String {
        self.ip().map_or_else(|| self.to_string(), |ip| ip.to_string())
    }

    /// The internet address.
    ///
    /// # Errors
    /// `Unsupported`: the endpoint is no internet address.
    pub fn socket(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Socket(address) => Ok(*address),
            Self::Opaque(_) => {
                let text = format!("{self} is not an internet address");
                Err(io::Error::new(io::ErrorKind::Unsupported, text))
            }
        }
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::Socket(address)
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Endpoint {
    fn from(address: (I, u16)) -> Self {
        Self::Socket(address.into())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Opaque(name) => write!(f, "\"{}\"", name.escape_ascii()),
        }
    }
}
