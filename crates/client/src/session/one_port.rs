//! The way of data connections to a server: to the port that it announces, or to one port for all.
//!
//! The control port is used if the user wants it, and for the rest of a run after an announced port
//! could not be reached. Channels over QUIC have one UDP port, which is used if the server has it,
//! and the announced ports after that could not be reached. To find that out, the first connection
//! is made before the command that uses it. That connection then serves the first transfer.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_layers::ControlPort;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::one_port::{OnePort, Token};
use ropewalk_protocol::server::Mode;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_transport::{
    ChannelToken, Connection, Driver, Endpoint as Address, Listener, Options as DriverOptions, Wait,
};

use super::{Binding, Session};
use crate::tune;
use crate::{Event, OnePortReason, RemoteError};

/// The time limit of the first connection to a port. Two lost segments are no failure.
const FIRST_CONNECTION: Duration = Duration::from_secs(5);

/// Where the data connections of a channel go.
pub(super) struct Way {
    /// More than one if the server is striped.
    pub(super) addresses: Vec<SocketAddr>,
    /// The driver that goes there, if it is not that of the stack.
    pub(super) driver: Option<Arc<dyn Driver>>,
    /// The channel at a port that channels over QUIC share.
    pub(super) token: Option<ChannelToken>,
}

/// The one port of a server for channels of a stack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnePlace {
    ControlPort,
    /// The UDP port that channels over QUIC share.
    QuicPort,
}

impl Session {
    /// The one port for channels of this session's stack, if the server offers one.
    fn one_place(&self) -> Option<OnePlace> {
        let driver = self.data_driver();
        let control = self.can.one_port && self.has_tcp_data();
        let quic = self.can.quic_port && driver.shares_port();
        control.then_some(OnePlace::ControlPort).or(quic.then_some(OnePlace::QuicPort))
    }

    /// Whether one port of the server can take the data connections of this session's stack.
    pub(crate) fn offers_one_port(&self) -> bool {
        self.one_place().is_some()
    }

    /// Whether data connections go to one port of the server.
    ///
    /// # Errors
    /// The user wants that, and the server does not offer it for this stack.
    pub(crate) fn uses_one_port(&self) -> Result<bool, RemoteError> {
        let wanted = self.setup.options.data.one_port;
        let endpoint = &self.endpoint;
        match self.one_place() {
            Some(OnePlace::ControlPort) => Ok(wanted || endpoint.one_port.load(Ordering::Relaxed)),
            Some(OnePlace::QuicPort) => Ok(wanted || !endpoint.no_quic_port.load(Ordering::Relaxed)),
            None if wanted => {
                let (over, why) = if !self.can.one_port {
                    ("", "it does not offer OnePort")
                } else if self.data_driver().shares_port() {
                    (" over QUIC", "it does not offer QuicPort")
                } else {
                    (" over this stack", "only TCP and QUIC can")
                };
                let what = format!("take data connections{over} at one port (--one-port): {why}");
                Err(RemoteError::Unsupported { peer: self.control.peer().to_owned(), what })
            }
            None => Ok(false),
        }
    }

    /// Why data connections go to one port; `None` if they do not.
    pub(super) fn one_port_reason(&self) -> Option<OnePortReason> {
        match self.uses_one_port() {
            Ok(true) if self.setup.options.data.one_port => Some(OnePortReason::Chosen),
            Ok(true) if self.one_place() == Some(OnePlace::QuicPort) => Some(OnePortReason::Shared),
            Ok(true) if self.endpoint.remembers_one_port.load(Ordering::Relaxed) => {
                Some(OnePortReason::Remembered)
            }
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
        self.recall_way();
        if !self.uses_one_port()? {
            // Only a sender uses several addresses of a server that listens.
            let addresses = match parallelism {
                None => self.passive_addresses(mode, inline, binding)?,
                Some(_) => vec![self.passive(mode, parallelism, inline, binding)?],
            };
            let [address] = addresses[..] else { return Ok(Way { addresses, driver: None, token: None }) };
            if !self.tries_announced_port() {
                return Ok(Way { addresses, driver: None, token: None });
            }
            match self.first_connection(address, None, binding, options)? {
                Ok(connected) => {
                    self.endpoint.reached_data.store(true, Ordering::Relaxed);
                    return Ok(Way { addresses, driver: Some(connected), token: None });
                }
                Err(error) => self.fall_back(address, &error),
            }
        }
        let (token, address) = self.one_port_channel(mode, parallelism, inline, binding)?;
        let addresses = vec![address];
        if self.one_place() == Some(OnePlace::ControlPort) {
            let driver = ControlPort::new(self.setup.shared.registry.default_driver(), token);
            return Ok(Way { addresses, driver: Some(Arc::new(driver)), token: None });
        }
        let token = Some(ChannelToken(token.bytes()));
        if !self.tries_quic_port() {
            return Ok(Way { addresses, driver: None, token });
        }
        match self.first_connection(address, token, binding, options)? {
            Ok(connected) => {
                self.endpoint.reached_quic_port.store(true, Ordering::Relaxed);
                Ok(Way { addresses, driver: Some(connected), token })
            }
            Err(error) => {
                self.leave_quic_port(address, &error);
                self.way(mode, parallelism, inline, binding, options)
            }
        }
    }

    /// Makes a data channel of the server that is reached through one port. Returns its token and
    /// the address of the port.
    pub(crate) fn one_port_channel(
        &mut self,
        mode: Mode,
        parallelism: Option<u32>,
        inline: Option<Algorithm>,
        binding: Option<&Binding>,
    ) -> Result<(Token, SocketAddr), RemoteError> {
        let command = Command::Site(SiteCommand::OnePort(None));
        let Some(reply) = self.prepare(mode, parallelism, inline, binding, Some(command))? else {
            return Err(RemoteError::Desynchronized);
        };
        let control = self.control.remote_addr();
        let channel = match (OnePort::of_reply(&reply), self.one_place()) {
            (Some(OnePort { token, udp_port: Some(port) }), Some(OnePlace::QuicPort)) => {
                Some((token, SocketAddr::new(control.ip(), port)))
            }
            (Some(OnePort { token, udp_port: None }), Some(OnePlace::ControlPort)) => Some((token, control)),
            _ => None,
        };
        channel.ok_or_else(|| self.nonsense("SITE ONEPORT", &reply))
    }

    /// The first connection to an address of the server, to find out if it can be reached: a driver
    /// that returns it for the first connection of the channel, or why there is none.
    fn first_connection(
        &self,
        address: SocketAddr,
        token: Option<ChannelToken>,
        binding: Option<&Binding>,
        options: &DriverOptions,
    ) -> Result<io::Result<Arc<dyn Driver>>, RemoteError> {
        let mut options = options.clone();
        self.data_stack(binding, None)?.apply(&mut options);
        options.token = token;
        let limit = self.setup.options.timeouts.connect.min(FIRST_CONNECTION);
        let inner = self.data_driver();
        let first = inner.connect(address.into(), &options, limit);
        Ok(first
            .map(|first| Arc::new(Connected { inner, first: Mutex::new(Some(first)) }) as Arc<dyn Driver>))
    }

    /// Looks up whether the usual way of data connections was blocked in an earlier run, and takes
    /// the other one then.
    fn recall_way(&self) {
        let (endpoint, options) = (&self.endpoint, &self.setup.options);
        let (which, usual) = match self.one_place() {
            Some(OnePlace::ControlPort) => (0, "the ports that it announces could not be reached"),
            Some(OnePlace::QuicPort) => (1, "its UDP port for QUIC could not be reached"),
            None => return,
        };
        if options.data.one_port || endpoint.recalled_ways[which].swap(true, Ordering::Relaxed) {
            return;
        }
        if !tune::recall_blocked(&self.usual_way(), options) {
            return;
        }
        let other = match which {
            0 => {
                endpoint.remembers_one_port.store(true, Ordering::Relaxed);
                endpoint.one_port.store(true, Ordering::Relaxed);
                "to its control port"
            }
            _ => {
                endpoint.no_quic_port.store(true, Ordering::Relaxed);
                "to the ports that it announces"
            }
        };
        self.report_stack();
        self.setup.events.event(Event::Warning {
            message: format!(
                "data connections to {} go {other}, because {usual} in an earlier run less than a day ago",
                endpoint.name
            ),
        });
    }

    /// The name under which later runs find that the usual way of data connections is blocked.
    fn usual_way(&self) -> String {
        let url = &self.endpoint.url;
        format!("{} {}:{}", self.data_driver().name(), url.host, url.port)
    }

    /// Whether it has to be found out if announced ports can be reached.
    fn tries_announced_port(&self) -> bool {
        self.can.one_port && self.has_tcp_data() && !self.endpoint.reached_data.load(Ordering::Relaxed)
    }

    /// Whether it has to be found out if the port that channels over QUIC share can be reached.
    fn tries_quic_port(&self) -> bool {
        let reached = &self.endpoint.reached_quic_port;
        !self.setup.options.data.one_port && !reached.load(Ordering::Relaxed)
    }

    /// Uses announced ports for data over QUIC from now on.
    fn leave_quic_port(&self, address: SocketAddr, error: &io::Error) {
        if self.endpoint.no_quic_port.swap(true, Ordering::Relaxed) {
            return;
        }
        tune::keep_blocked(&self.usual_way(), &self.setup.options);
        self.report_stack();
        self.setup.events.event(Event::Warning {
            message: format!(
                "{} takes data over QUIC at UDP port {}, which cannot be reached ({error}): data \
                 connections go to the ports that it announces instead",
                self.endpoint.name,
                address.port()
            ),
        });
    }

    /// Uses the control port for data from now on.
    fn fall_back(&self, address: SocketAddr, error: &io::Error) {
        if self.endpoint.one_port.swap(true, Ordering::Relaxed) {
            return;
        }
        tune::keep_blocked(&self.usual_way(), &self.setup.options);
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

/// A driver whose first connection has been made already.
struct Connected {
    inner: Arc<dyn Driver>,
    first: Mutex<Option<Box<dyn Connection>>>,
}

impl Driver for Connected {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn encrypts(&self) -> bool {
        self.inner.encrypts()
    }

    fn shares_port(&self) -> bool {
        self.inner.shares_port()
    }

    fn listen(&self, address: Address, options: &DriverOptions) -> io::Result<Box<dyn Listener>> {
        self.inner.listen(address, options)
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
            None => self.inner.connect_waiting(address, options, timeout, wait),
        }
    }
}
