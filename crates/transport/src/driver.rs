//! The interface of a driver: it makes connections and listeners.

use std::io;
use std::time::Duration;

use crate::{Connection, Endpoint, Listener, Options, Wait, WaitAlone};

/// Makes connections.
pub trait Driver: Send + Sync {
    /// The name in a stack string (`tcp`).
    fn name(&self) -> &'static str;
    /// Reads an option of a stack string into `options`. Returns whether the driver has the option
    /// and can take the value. The key is in lower case; a value that is missing is empty.
    fn read_option(&self, key: &str, value: &[u8], options: &mut Options) -> bool {
        let _ = (key, value, options);
        false
    }
    /// Whether the connections of this driver are encrypted, and have a
    /// [`Connection::channel_binding`].
    fn encrypts(&self) -> bool {
        false
    }
    /// Whether channels of this driver can share one port, at which [`Options::token`] tells them
    /// apart. A listener with a token is a channel of the port that the driver was given.
    fn shares_port(&self) -> bool {
        false
    }
    /// Listens at `address` (port 0: any port, within `options.ports`).
    ///
    /// # Errors
    /// No permitted port is free, `address` is not an address of this host, the driver has no such
    /// addresses (`Unsupported`), or the system cannot make a socket.
    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>>;
    /// Connects to `address`. `timeout` applies to the connection, and again to the handshake of
    /// each layer.
    ///
    /// # Errors
    /// The peer refuses or cannot be reached, the time is over (`TimedOut`), a layer's handshake
    /// fails, or no permitted local port is free.
    fn connect(
        &self,
        address: Endpoint,
        options: &Options,
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
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>>;
}
