//! Relays: files of other servers as a part of the store of a session.
//!
//! A [`Relay`] belongs to the host; each log-in that may use it gets a store in which paths such as
//! `/ftp://HOST:PORT/data/f` lead to that server ([`RemoteStore`]), and all others to the store of
//! the account. A name is checked after its resolution, and the connection goes to the address that
//! was checked. A path without a permitted server behind it fails with a text that says why.

mod hops;
mod name;
mod store;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_client::{Authentication, Auto, ClientLimits, DataProtection, Options};
use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::url::{Scheme, Url};
use ropewalk_remote_store::{Behalf, Delegated, Gate, RemoteClient, RemoteSettings, Targets};
use ropewalk_storage::Store;

use crate::config::{self, Problem, Severity};
use crate::error::Error;
use crate::security::tls::usual_state_directory;
pub(crate) use hops::Hops;
use store::RelayStore;

/// Idle sessions with one server, and how long they stay.
const IDLE: (usize, Duration) = (8, Duration::from_secs(60));

/// The end of an error text about a server that needs a credential.
const NOTHING_DELEGATED: &str = "the relay needs a credential of its client for gsiftp://: log in at the relay with gsiftp:// and \
     delegate a proxy";

/// See the description of the module.
pub(crate) struct Relay {
    client: Arc<RemoteClient>,
    gate: Arc<dyn Gate>,
    config: config::Relay,
}

impl Relay {
    /// `own`: the addresses on which this server listens. `None` if it is no relay.
    ///
    /// # Errors
    /// The spool cannot be made.
    pub(crate) fn new(config: &config::Relay, own: &[SocketAddr]) -> Result<Option<Arc<Self>>, Error> {
        let Some(targets) = config.targets().ok().filter(|targets| !targets.is_empty()) else {
            return Ok(None);
        };
        let spool = config.make_spool().map_err(|(setting, text)| {
            let (setting, severity) = (setting.to_owned(), Severity::Error);
            Error::Config(vec![Problem { severity, setting, text }])
        })?;
        let mut limits = ClientLimits::default();
        (limits.idle_sessions, limits.idle_time) = IDLE;
        let memory = usize::try_from(config.memory).unwrap_or(usize::MAX);
        let client = RemoteClient::new(&limits, memory, spool);
        let gate: Arc<dyn Gate> = Arc::new(Others { targets, own: own.to_vec() });
        Ok(Some(Arc::new(Self { client, gate, config: config.clone() })))
    }

    /// The store of a log-in that may use other servers, and what it has there. `delegated` is the
    /// credential that the client delegated, if it did.
    pub(crate) fn over(
        self: &Arc<Self>,
        inner: Arc<dyn Store>,
        delegated: Option<Delegated>,
    ) -> (Arc<dyn Store>, Arc<Hops>) {
        let delegated = delegated.unwrap_or_else(|| Delegated::missing(NOTHING_DELEGATED));
        let hops = Hops::new(self, delegated);
        (RelayStore::over(inner, &hops), hops)
    }

    /// Settings and credentials of the server's user are not those of its clients: a log-in at a
    /// gsiftp server takes the client's delegated credential, others are anonymous, unless the
    /// client gave a log-in ([`Hops`]).
    fn settings(&self, server: &Url, delegated: &Delegated) -> RemoteSettings {
        let hop = self.config.hop_to(&ServerAddress::of(server));
        let options = Options::default().with(|options| {
            options.data.stack = hop.stack;
            // Without a number, the tuner of the client library finds one.
            options.tuning.streams = hop.streams.map_or(Auto::Auto, Auto::Set);
            options.state_directory = usual_state_directory();
            match server.scheme {
                Scheme::Gsiftp => {
                    options.login.authentication = Authentication::Gsi;
                    if self.config.private {
                        options.data_security.protection = DataProtection::Private;
                    }
                }
                _ => {
                    options.login.insecure = true;
                    options.trust.authorities.clone_from(&self.config.authorities);
                }
            }
        });
        let behalf = Behalf { gate: Some(self.gate.clone()), delegated: Some(delegated.clone()) };
        RemoteSettings { options, behalf }
    }
}

/// Permits servers that the rules name, except for this one.
struct Others {
    targets: Targets,
    own: Vec<SocketAddr>,
}

impl Gate for Others {
    fn permits(&self, host: &str, address: SocketAddr) -> Result<(), String> {
        let listens =
            |own: &SocketAddr| own.port() == address.port() && (own.ip() == address.ip() || is_any(own.ip()));
        if self.own.iter().any(listens) && is_local(address.ip()) {
            return Err(format!("{host}:{} is this relay itself", address.port()));
        }
        self.targets.permits(host, address)
    }
}

fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified()
}

/// Whether the address is one of this host.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn relay_is_not_its_own_destination() {
        let gate =
            |own: &str| Others { targets: "127.0.0.0/8".parse().unwrap(), own: vec![own.parse().unwrap()] };
        for own in ["127.0.0.1:2811", "0.0.0.0:2811", "[::]:2811"] {
            let refused = gate(own).permits("localhost", "127.0.0.1:2811".parse().unwrap());
            assert_eq!(refused.unwrap_err(), "localhost:2811 is this relay itself");
            assert!(gate(own).permits("localhost", "127.0.0.1:2812".parse().unwrap()).is_ok());
        }
    }
}
