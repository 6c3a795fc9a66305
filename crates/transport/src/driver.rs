//! The interface of a driver: it makes connections and listeners.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::{Connection, Listener, Wait, WaitAlone};

/// Makes connections.
pub trait Driver: Send + Sync {
    /// The name in a stack string (`tcp`).
    fn name(&self) -> &'static str;
    /// Listens at `address` (port 0: any port, within `options.ports`).
    ///
    /// # Errors
    /// No permitted port is free, `address` is not an address of this host, or the system cannot
    /// make a socket.
    fn listen(&self, address: SocketAddr, options: &SocketOptions) -> io::Result<Box<dyn Listener>>;
    /// Connects to `address`. `timeout` applies to the connection, and again to the handshake of
    /// each layer.
    ///
    /// # Errors
    /// The peer refuses or cannot be reached, the time is over (`TimedOut`), a layer's handshake
    /// fails, or no permitted local port is free.
    fn connect(
        &self,
        address: SocketAddr,
        options: &SocketOptions,
        timeout: Duration,
    ) -> io::Result<Box<dyn Connection>> {
        self.connect_waiting(address, options, timeout, &mut WaitAlone)
    }
    /// Like [`Driver::connect`], but all waiting is done by `wait`.
    ///
    /// # Errors
    /// The same errors as [`Driver::connect`], or the error of `wait`.
    fn connect_waiting(
        &self,
        address: SocketAddr,
        options: &SocketOptions,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>>;
}

/// Socket options that must be set before a connection is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// SO_SNDBUF in bytes; `None` leaves the kernel's autotuning on.
    pub send_buffer: Option<usize>,
    /// SO_RCVBUF in bytes; `None` leaves the kernel's autotuning on.
    pub receive_buffer: Option<usize>,
    /// TCP_CONGESTION. If the host does not have or does not allow this congestion control, a
    /// warning is logged and the connection uses the host's default; see [`congestion`]. `None` is
    /// the host's default, but Reno for connections to this host and for listeners on loopback
    /// addresses.
    pub congestion: Option<String>,
    /// The range of local ports to choose from, inclusive; `None` for any port.
    pub ports: Option<(u16, u16)>,
    /// The local address to bind to.
    pub bind: Option<IpAddr>,
}
