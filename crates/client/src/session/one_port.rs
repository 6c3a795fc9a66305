//! The way of data connections to a server: to the port that it announces, or to its control port.
//!
//! The control port is used if the user wants it, and for the rest of a run after an announced port
//! could not be reached. To find that out, the first connection to a server that takes data at its
//! control port is made before the command that uses it. That connection then serves the first
//! transfer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_layers::ControlPort;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::one_port::Token;
use ropewalk_protocol::server::Mode;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_transport::{
    Connection, Driver, Endpoint as Address, Listener, Options as DriverOptions, Tcp, Wait,
};

use super::{Binding, Session};
use crate::{Event, OnePortReason, RemoteError};

/// The time limit of the first connection to an announced port. Two lost segments are no failure.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);

/// Where the data connections of a channel go.
pub(super) struct Way {
    /// More than one if the server is striped.
    pub(super) addresses: Vec<SocketAddr>,
    /// The driver that goes there, if it is not that of the stack.
    pub(super) driver: Option<Arc<dyn Driver>>,
}

impl Session {
    /// Whether data connections go to the server's control port.
    ///
    /// # Errors
    /// The user wants that, and the server does not offer it, or the stack is not over TCP.
    pub(crate) fn uses_one_port(&self) -> Result<bool, RemoteError> {
        let wanted = self.setup.options.data.one_port;
        if wanted && !self.can.one_port {
            let what = "take data connections at its control port (--one-port): it does not offer OnePort";
            let (peer, what) = (self.control.peer().to_owned(), what.to_owned());
            return Err(RemoteError::Unsupported { peer, what });
        }
        if wanted && !self.has_tcp_data() {
            let what = "take data connections over this stack at its control port (--one-port): only TCP can";
            let (peer, what) = (self.control.peer().to_owned(), what.to_owned());
            return Err(RemoteError::Unsupported { peer, what });
        }
        Ok(self.can.one_port && (wanted || self.endpoint.one_port.load(Ordering::Relaxed)))
    }

    /// Why data connections go to the server's control port; `None` if they do not.
    pub(super) fn one_port_reason(&self) -> Option<OnePortReason> {
        match self.uses_one_port() {
            Ok(true) if self.setup.options.data.one_port => Some(OnePortReason::Chosen),
            Ok(true) => Some(OnePortReason::Fallback),
            Ok(false) | Err(_) => None,
        }
    }

    /// Makes a data channel of the server to which this program connects.
    pub(super) fn way(
        &mut self,
        mode: Mode,
        parallelism: Option<u32>,
        inline: Option<Algorithm>,
        binding: Option<&Binding>,
        options: &DriverOptions,
    ) -> Result<Way, RemoteError> {
        if !self.uses_one_port()? {
            // Only a sender uses several addresses of a server that listens.
            let addresses = match parallelism {
                None => self.passive_addresses(mode, inline, binding)?,
                Some(_) => vec![self.passive(mode, parallelism, inline, binding)?],
            };
            let [address] = addresses[..] else { return Ok(Way { addresses, driver: None }) };
            if !self.tries_announced_port() {
                return Ok(Way { addresses, driver: None });
            }
            let mut options = options.clone();
            self.data_stack(binding, None)?.apply(&mut options);
            let limit = self.setup.options.timeouts.connect.min(FIRST_CONNECTION);
            let tcp = self.setup.shared.registry.default_driver();
            match tcp.connect(address.into(), &options, limit) {
                Ok(connection) => {
                    self.endpoint.reached_data.store(true, Ordering::Relaxed);
                    return Ok(Way { addresses, driver: Some(Arc::new(Connected::new(connection))) });
                }
                Err(error) => self.fall_back(address, &error),
            }
        }
        let token = self.token(mode, parallelism, inline, binding)?;
        let addresses = vec![self.control.remote_addr()];
        Ok(Way {
            addresses,
            driver: Some(Arc::new(ControlPort::new(self.setup.shared.registry.default_driver(), token))),
        })
    }

    /// Makes a data channel of the server that is reached through its control port.
    pub(crate) fn token(
        &mut self,
        mode: Mode,
        parallelism: Option<u32>,
        inline: Option<Algorithm>,
        binding: Option<&Binding>,
    ) -> Result<Token, RemoteError> {
        let command = Command::Site(SiteCommand::OnePort(None));
        let Some(reply) = self.prepare(mode, parallelism, inline, binding, Some(command))? else {
            return Err(RemoteError::Desynchronized);
        };
        Token::of_reply(&reply).ok_or_else(|| self.nonsense("SITE ONEPORT", &reply))
    }

    /// Whether it has to be found out if announced ports can be reached.
    fn tries_announced_port(&self) -> bool {
        self.can.one_port && self.has_tcp_data() && !self.endpoint.reached_data.load(Ordering::Relaxed)
    }

    /// Uses the control port for data from now on.
    fn fall_back(&self, address: SocketAddr, error: &io::Error) {
        if self.endpoint.one_port.swap(true, Ordering::Relaxed) {
            return;
        }
        self.report_stack();
        self.setup.events.event(Event::Warning {
            message: format!(
                "{} announced {address} for data, which cannot be reached ({error}): data connections \
                 go to its control port instead",
                self.endpoint.name
            ),
        });
    }
}

/// TCP whose first connection has been made already.
struct Connected {
    first: Mutex<Option<Box<dyn Connection>>>,
}

impl Connected {
    fn new(first: Box<dyn Connection>) -> Self {
        Self { first: Mutex::new(Some(first)) }
    }
}

impl Driver for Connected {
    fn name(&self) -> &'static str {
        Tcp.name()
    }

    fn listen(&self, address: Address, options: &DriverOptions) -> io::Result<Box<dyn Listener>> {
        Tcp.listen(address, options)
    }

    fn connect_waiting(
        &self,
        address: Address,
        options: &DriverOptions,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let first = self.first.lock().take();
        match first {
            Some(connection) => {
                connection.tune(&options.tuning);
                Ok(connection)
            }
            None => Tcp.connect_waiting(address, options, timeout, wait),
        }
    }
}
