use std::net::SocketAddr;
use std::sync::Arc;

use ropewalk_tls::Fingerprint;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::handle::ServerHandle;
use crate::host::Host;
use crate::host::socket_memory;
use crate::host::stores::{StoreFactory, Stores};
use crate::scheduling::listeners::Listeners;
use crate::scheduling::reactor::Reactor;
use crate::scheduling::scheduler::Scheduler;
use crate::security::tls;
use crate::settings::Settings;

/// A server that is listening; [`Server::run`] makes it serve.
pub struct Server {
    scheduler: Arc<Scheduler>,
    reactor: Reactor,
    addresses: Vec<SocketAddr>,
}

impl Server {
    /// Checks the settings and listens on their addresses.
    ///
    /// # Errors
    /// The settings have errors, nobody could log in, or an address cannot be listened on.
    pub fn bind(config: Config) -> Result<Self> {
        Error::refuse(config.check())?;
        Self::bind_stores(config, Stores::posix())
    }

    /// As [`Server::bind`], with storage of the caller's: `stores` is asked once for each root directory that
    /// accounts name, which need not be a directory of this host.
    ///
    /// # Errors
    /// As [`Server::bind`].
    pub fn bind_with(config: Config, stores: StoreFactory) -> Result<Self> {
        let problems = config.check().into_iter().filter(|p| !p.setting.ends_with("root"));
        Error::refuse(problems.collect())?;
        Self::bind_stores(config, Stores::new(stores))
    }

    fn bind_stores(config: Config, stores: Stores) -> Result<Self> {
        raise_open_files();
        let settings = Settings::prepare(config, &stores)?;
        let listeners = Listeners::bind(&settings.config.listen, settings.config.tls_implicit())?;
        let addresses = listeners.addresses();
        let (reactor, registry, waker) = Reactor::new(listeners)?;
        let scheduler = Scheduler::new(Host::new(settings, stores, waker)?, registry);
        Ok(Self { scheduler, reactor, addresses })
    }

    /// With settings that were checked.
    pub(crate) fn bind_prepared(config: Config) -> Result<Self> {
        Self::bind_stores(config, Stores::posix())
    }

    pub(crate) fn host(&self) -> &Arc<Host> {
        &self.scheduler.host
    }

    pub(crate) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.scheduler
    }

    /// Where it listens, in the order of the settings, with the ports that the system chose.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Of the certificate for TLS, where AUTH TLS is offered.
    pub fn tls_fingerprint(&self) -> Option<Fingerprint> {
        self.scheduler.host.settings().tls.as_ref().map(tls::Authority::fingerprint)
    }

    /// To steer the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle(Arc::clone(&self.scheduler.host))
    }

    /// Calls `f` at least every `interval` while the server is well.
    pub(crate) fn sign_of_life(&mut self, interval: std::time::Duration, f: impl FnMut() + Send + 'static) {
        self.reactor.set_sign_of_life(interval, f);
    }

    /// Serves until the server has been told to end and every session is closed.
    ///
    /// # Errors
    /// The system cannot wait for connections any more.
    pub fn run(self) -> Result<()> {
        let Self { scheduler, reactor, addresses } = self;
        tracing::info!(?addresses, "server listening");
        let _keeper = socket_memory::keep(&scheduler.host);
        let result = reactor.run(&scheduler);
        tracing::info!("server ended");
        result
    }
}

/// Each session needs a descriptor, each transfer several; shells grant few, but let programs ask for more.
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
