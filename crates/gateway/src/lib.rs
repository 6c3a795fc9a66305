//! A gateway for FTP clients: the server in front, and behind it the one that each session names.
//!
//! A [`Gateway`] prepares the settings of the server and its store factory. At each log-in the
//! factory finds the target and the credential of the user, checks the rules, and logs in there.
//! Nothing is stored here. A refusal is the reply to the log-in.

#![forbid(unsafe_code)]

mod config;
mod gate;
mod myproxy;
mod target;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use ropewalk_client::{ClientLimits, Options, TokenSource, TunerKind};
use ropewalk_protocol::url::Scheme;
use ropewalk_remote_store::{Behalf, RemoteClient, RemoteSettings, RemoteStore};
use ropewalk_server::{Backends, Config, Credential, StoreLogin};
use ropewalk_storage::{Error, ErrorKind, Store};

pub use config::{FarLogin, GatewayConfig, GatewayError, Site, User};
pub use myproxy::MyProxy;
pub use ropewalk_remote_store::{InvalidTarget, Targets};

use crate::gate::Guard;
use crate::myproxy::Logon;
use crate::target::{Rules, Target};

/// Memory for the data of all sessions, in bytes.
const MEMORY: usize = 64 << 20;

/// A gateway whose settings were checked.
pub struct Gateway {
    config: GatewayConfig,
    /// Streams, tuner and trust of connections to targets.
    options: Options,
    /// The addresses of the gateway itself, once it listens.
    own: Arc<OnceLock<Vec<SocketAddr>>>,
    behind: [Behind; 3],
    /// Logs users on at the MyProxy server.
    logon: Option<Logon>,
}

/// Sessions that are held to the same rules.
struct Behind {
    rules: Rules,
    client: Arc<RemoteClient>,
    guard: Arc<Guard>,
}

impl Gateway {
    /// `options` are those of the client library for connections to targets; their log-in is not
    /// used.
    ///
    /// # Errors
    /// No client could log in, or a setting is invalid.
    pub fn new(config: GatewayConfig, options: Options) -> Result<Arc<Self>, GatewayError> {
        config.check()?;
        let logon = config.myproxy.as_ref().map(MyProxy::prepare).transpose();
        let logon = logon.map_err(|(setting, reason)| GatewayError::MyProxy { setting, reason })?;
        let own = Arc::<OnceLock<Vec<SocketAddr>>>::default();
        let behind = [Rules::Listed, Rules::Public, Rules::Configured].map(|rules| Behind {
            rules,
            client: RemoteClient::new(&ClientLimits::default(), MEMORY, None),
            guard: Arc::new(Guard::new(rules, config.allow_targets.clone(), Arc::clone(&own))),
        });
        Ok(Arc::new(Self { config, options, own, behind, logon }))
    }

    /// The doubtful setting with which the gateway starts nevertheless, if there is one.
    pub fn doubt(&self) -> Option<&'static str> {
        self.config.has_clear_passwords().then_some(
            "myproxy: passwords travel in clear text where clients do not use TLS: set \
             server.tls.required = \"control\", or use it on networks that you trust only",
        )
    }

    /// The settings of the server in front.
    pub fn server_config(&self) -> Config {
        self.config.server_config()
    }

    /// The storage of the server in front.
    pub fn backends(self: &Arc<Self>) -> Backends {
        let gateway = Arc::clone(self);
        Backends {
            stores: Some(Arc::new(move |login: &StoreLogin<'_>| gateway.open(login))),
            targets: true,
            passwords: self.logon.is_some(),
            ..Backends::default()
        }
    }

    /// The gateway listens at these addresses, which no session may name as its target.
    pub fn listens_at(&self, addresses: &[SocketAddr]) {
        // A second call would be for the same server.
        let _ = self.own.set(addresses.to_vec());
    }

    /// Logs in at the target of a session.
    fn open(&self, login: &StoreLogin<'_>) -> Result<Arc<dyn Store>, Error> {
        let store = self.remote(login).map_err(|text| {
            Error::new(ErrorKind::NotAllowed, "log in", login.target.unwrap_or_default()).with_detail(text)
        })?;
        Ok(store)
    }

    fn remote(&self, login: &StoreLogin<'_>) -> Result<Arc<RemoteStore>, String> {
        let delegated = match (&self.logon, login.credential) {
            (Some(logon), Credential::Password(password)) => {
                Some(logon.log_on(&self.options, login.user, password)?)
            }
            _ => None,
        };
        let Target { url, rules } = self.config.target(login.target)?;
        let far = match login.credential {
            _ if delegated.is_some() => FarLogin::default(),
            Credential::Anonymous => self.config.hosts.clone(),
            _ => self.config.users.get(login.user).map(User::far).unwrap_or_default(),
        };
        if url.scheme == Scheme::Gsiftp && far.credential.is_none() && delegated.is_none() {
            let user = login.user;
            return Err(format!(
                "The gateway has no credential of user {user} for gsiftp:// (users.{user}.credential)."
            ));
        }
        let options = self.options_for(far);
        let behind = self.behind.iter().find(|behind| behind.rules == rules);
        let behind = behind.ok_or("The gateway has no rules for this target.")?;
        let behalf = Behalf { gate: Some(Arc::clone(&behind.guard) as _), delegated };
        let settings = RemoteSettings { options, behalf };
        let store = RemoteStore::new(&behind.client, &url, settings);
        store.connect().map_err(|error| error.to_string())?;
        Ok(store)
    }

    /// The log-in of one user. The credential of the gateway's own process is never used.
    fn options_for(&self, far: FarLogin) -> Options {
        let mut options = self.options.clone();
        options.login = ropewalk_client::LoginOptions::default();
        options.login.credential = far.credential;
        // Clients of the gateway read in order, so that more streams need more memory.
        options.tuning.tuner = TunerKind::Fixed;
        options.login.token = far.token_file.map_or(TokenSource::None, TokenSource::File);
        options
    }
}
