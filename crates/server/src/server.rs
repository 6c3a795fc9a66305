use std::net::SocketAddr;
use std::sync::Arc;

use ropewalk_tls::Fingerprint;

use crate::admin::{AdminSocket, Reload};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::handle::ServerHandle;
use crate::host::nodes::Nodes;
use crate::host::socket_memory;
use crate::host::space::Keeper;
use crate::host::stores::{StoreFactory, Stores};
use crate::host::{Host, Opened};
use crate::measurements::Measurements;
use crate::quic_port;
use crate::relay::Relay;
use crate::scheduling::listeners::Listeners;
use crate::scheduling::reactor::Reactor;
use crate::scheduling::scheduler::Scheduler;
use crate::security::tls;
use crate::settings::Settings;

/// A server that listens; [`Server::run`] makes it serve.
pub struct Server {
    scheduler: Arc<Scheduler>,
    reactor: Reactor,
    addresses: Vec<SocketAddr>,
    admin: Option<AdminSocket>,
    /// Reads the configuration again.
    pub(crate) reload: Option<Reload>,
}

/// Storage and measurements that the program around the server provides.
#[derive(Clone, Default)]
pub struct Backends {
    /// Storage in place of directories of this host. It is asked at each log-in.
    pub stores: Option<StoreFactory>,
    /// Clients may name a target for `stores`: `USER name::target`.
    pub targets: bool,
    /// `stores` verifies passwords in place of the file of passwords: each log-in with one gets to
    /// it as [`Credential::Password`](crate::Credential::Password), and fails if it fails.
    pub passwords: bool,
    /// Measures this host; without it, the server does not know SITE PROFILE.
    pub measurements: Option<Arc<dyn Measurements>>,
}

impl Backends {
    fn stores(&self) -> Stores {
        let other = |factory: &StoreFactory| Stores::new(factory.clone(), self.targets, self.passwords);
        self.stores.as_ref().map_or_else(Stores::posix, other)
    }
}

impl Server {
    /// Checks the settings and listens on their addresses. The accounts use directories of this
    /// host, and SITE PROFILE is not available.
    ///
    /// # Errors
    /// The settings have errors, no user could log in, or an address cannot be listened on.
    pub fn bind(config: Config) -> Result<Self> {
        Self::bind_with(config, Backends::default())
    }

    /// As [`Server::bind`], with storage and measurements of the caller.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_with(config: Config, backends: Backends) -> Result<Self> {
        let problems = backends.stores().concerned(config.check());
        Error::refuse(problems)?;
        Self::bind_prepared(config, backends)
    }

    /// As [`Server::bind_with`], with settings that were checked.
    pub(crate) fn bind_prepared(config: Config, backends: Backends) -> Result<Self> {
        raise_open_files();
        let (stores, measurements) = (backends.stores(), backends.measurements);
        let settings = Settings::prepare(config, &stores, measurements.is_some())?;
        let listeners = Listeners::bind(&settings.config.listen, settings.config.tls_implicit())?;
        let addresses = listeners.addresses();
        let nodes = Nodes::bind(&settings.config)?;
        let admin = settings.config.admin.socket.as_deref().map(AdminSocket::bind).transpose()?;
        let (reactor, registry, waker) = Reactor::new(listeners)?;
        let relay = Relay::new(&settings.config.relay, &addresses)?;
        let quic_port = match nodes {
            // Channels at the control port are not on data nodes.
            Some(_) => None,
            None => quic_port::bind(&settings.config.data, &addresses)?,
        };
        let opened = Opened { waker, nodes, relay, quic_port };
        let host = Host::new(settings, stores, measurements, opened)?;
        let scheduler = Scheduler::new(host, registry);
        Ok(Self { scheduler, reactor, addresses, admin, reload: None })
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.scheduler.host
    }

    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    /// The addresses on which it listens, in the order of the settings, with the ports that the
    /// system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address on which data nodes join, if the server is a front end.
    pub fn nodes_addr(&self) -> Option<SocketAddr> {
        self.scheduler.host.nodes.as_ref().map(|nodes| nodes.front_end.local_addr())
    }

    /// The fingerprint of the certificate for TLS, if AUTH TLS is offered.
    pub fn tls_fingerprint(&self) -> Option<Fingerprint> {
        self.scheduler.host.settings().tls.as_ref().map(tls::Authority::fingerprint)
    }

    /// A handle to control the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(Arc::clone(&self.scheduler.host))
    }

    /// Calls `f` at least every `interval` while the server works.
    pub(crate) fn sign_of_life(&mut self, interval: std::time::Duration, f: impl FnMut() + Send + 'static) {
        self.reactor.set_sign_of_life(interval, f);
    }

    /// Serves until the server is stopped and every session is closed.
    ///
    /// # Errors
    /// The system cannot wait for connections any more.
    pub fn run(self) -> Result<()> {
        let Self { scheduler, reactor, addresses, admin, reload } = self;
        tracing::info!(?addresses, "server listening");
        let _keeper = socket_memory::keep(&scheduler.host);
        let nodes = scheduler.host.nodes.as_ref().map(|nodes| &nodes.front_end);
        if let Some(front_end) = nodes {
            front_end.start().map_err(Error::system("cannot start a thread"))?;
        }
        let host = &scheduler.host;
        let interval = host.settings().config.space.count_interval;
        let accounts = host.space.as_ref().map(|space| Keeper::start(space, interval)).transpose();
        let _accounts = accounts.map_err(Error::system("cannot start a thread"))?;
        // It answers until the last session has ended.
        let _admin = admin.map(|socket| socket.start(&scheduler, reload)).transpose()?;
        let result = reactor.run(&scheduler);
        if let Some(front_end) = nodes {
            front_end.end();
        }
        tracing::info!("server ended");
        result
    }
}

/// Each session needs a descriptor, each transfer several. Shells set a low limit that programs may
/// raise.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "the limit of open files stays as it is");
        }
    }
}
