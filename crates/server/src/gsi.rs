//! Log-in with certificates: the server's own credential, and what a session knows of its client.

use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_gsi::{
    Acceptor, AcceptorOptions, Account, Credential, Expected, Gridmap, GsiConf, Identity, Places, Source,
    Step, TlsSettings, Trust, dcsc, decode_token, encode_token, lease,
};
use ropewalk_layers::{GsiLayer, Level};
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::server::{ChannelOptions, Failure, Outcome};

use crate::config;

/// What GridFTP clients say as user when the gridmap is to decide.
const MAPPED: &[u8] = b":globus-mapping:";

/// The server's side of all log-ins.
pub(crate) struct Authority {
    identity: Identity,
    trust: Arc<Trust>,
    settings: TlsSettings,
    gridmap: PathBuf,
    pools: Option<PathBuf>,
    allow_root: bool,
}

impl Authority {
    pub(crate) fn load(config: &config::Gsi) -> Result<Self, String> {
        let places = Places::of_process();
        let conf = std::fs::read_to_string(places.gsi_conf()).unwrap_or_default();
        let conf = GsiConf::parse(&conf, |name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
        let settings = TlsSettings::from(&conf);
        let source = match (&config.certificate, &config.key) {
            (Some(certificate), Some(key)) => {
                Source::Pair { certificate: certificate.clone(), key: key.clone() }
            }
            (Some(both), None) => Source::Proxy(both.clone()),
            (None, Some(_)) => return Err("there is a key, but no certificate".into()),
            (None, None) => places.server().ok_or("there is no host certificate; name one")?,
        };
        let credential = source.load(&mut |_| None).map_err(|e| e.to_string())?;
        let directory = config.authorities.clone().unwrap_or_else(|| places.authorities());
        if !directory.is_dir() {
            return Err(format!("{} is no directory of authorities", directory.display()));
        }
        let trust = Arc::new(Trust::directory(directory));
        let identity =
            Identity::new(Arc::new(credential), Arc::clone(&trust), &settings).map_err(|e| e.to_string())?;
        Ok(Self {
            identity,
            trust,
            settings,
            gridmap: config.gridmap.clone().unwrap_or_else(|| places.gridmap()),
            pools: config.pool_directory.clone().or_else(|| places.pool_directory()),
            allow_root: config.allow_root,
        })
    }

    /// The local user of an authenticated client that asked for `wanted`.
    pub(crate) fn user(&self, subject: &str, wanted: &[u8]) -> Result<String, Failure> {
        let denied = |text: String| Failure::LoginDenied(text);
        let map = std::fs::read_to_string(&self.gridmap).map_err(|error| {
            tracing::error!(path = %self.gridmap.display(), %error, "nobody can be mapped to a user");
            denied("The server cannot read its gridmap.".into())
        })?;
        let map = Gridmap::parse(&map);
        for problem in map.problems() {
            tracing::warn!(path = %self.gridmap.display(), %problem, "a line of the gridmap was passed over");
        }
        let name = if wanted == MAPPED {
            match map.default_account(subject) {
                None => return Err(denied(format!("{subject} is not in the gridmap."))),
                Some(Account::Local(name)) => name.clone(),
                Some(Account::Pool(pool)) => {
                    let directory = self
                        .pools
                        .as_ref()
                        .ok_or_else(|| denied("The server has no directory of pool accounts.".into()))?;
                    lease(directory, pool, subject).map_err(|error| {
                        tracing::error!(%error, subject, "no pool account");
                        denied("There is no free pool account.".into())
                    })?
                }
            }
        } else {
            let name = std::str::from_utf8(wanted).ok().filter(|name| map.permits(subject, name));
            let shown = String::from_utf8_lossy(wanted);
            name.ok_or_else(|| denied(format!("{subject} may not be the user {shown}.")))?.to_owned()
        };
        if !ropewalk_security::valid_user_name(&name) {
            return Err(denied("The gridmap names what cannot be a user.".into()));
        }
        if name == "root" && !self.allow_root {
            return Err(denied("User was mapped as root but root is not allowed.".into()));
        }
        Ok(name)
    }
}

/// What a session knows of its client.
#[derive(Default)]
pub(crate) struct Client {
    acceptor: Option<Acceptor>,
    /// Until the control connection is protected with it.
    established: Option<Box<ropewalk_gsi::Session>>,
    subject: Option<String>,
    /// The proxy that the client gave, for data connections.
    delegated: Option<Identity>,
    /// DCSC P.
    own: Option<Identity>,
}

impl Client {
    /// One-line subject without proxies, once authenticated.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    pub(crate) fn take_established(&mut self) -> Option<Box<ropewalk_gsi::Session>> {
        self.established.take()
    }

    pub(crate) fn begin(&mut self, authority: Option<&Authority>) -> Result<Outcome, Failure> {
        let unknown = || refused(504, "Unknown authentication type.");
        let authority = authority.ok_or_else(unknown)?;
        let acceptor = Acceptor::new(&authority.identity, AcceptorOptions::default());
        self.acceptor = Some(acceptor.map_err(|error| refused(530, error.to_string()))?);
        Ok(Outcome::Done)
    }

    pub(crate) fn token(&mut self, authority: Option<&Authority>, token: &[u8]) -> Result<Outcome, Failure> {
        let (Some(mut acceptor), Some(authority)) = (self.acceptor.take(), authority) else {
            return Err(refused(503, "Send AUTH GSSAPI first."));
        };
        let wrong = |text: String| refused(530, format!("GSSAPI authentication failed: {text}"));
        let text = std::str::from_utf8(token).map_err(|_| wrong("the token is not base64".into()))?;
        let token = decode_token(text).map_err(|e| wrong(e.to_string()))?;
        match acceptor.step(&token).map_err(|e| wrong(e.to_string()))? {
            Step::Continue(out) => {
                self.acceptor = Some(acceptor);
                Ok(Outcome::SecurityToken(encode_token(&out)))
            }
            Step::Done(out, mut session) => {
                if let Some(proxy) = session.take_delegated() {
                    let identity = authority.data_identity(proxy).map_err(wrong)?;
                    self.delegated = Some(identity);
                }
                self.subject = Some(session.peer().identity.clone());
                self.established = Some(session);
                Ok(Outcome::Secured((!out.is_empty()).then(|| encode_token(&out))))
            }
        }
    }

    /// DCSC.
    pub(crate) fn set_own(
        &mut self,
        authority: Option<&Authority>,
        blob: Option<&[u8]>,
    ) -> Result<Outcome, Failure> {
        let wrong = |text: String| refused(501, text);
        self.own = match (blob, authority) {
            (Some(blob), Some(authority)) => {
                let text = std::str::from_utf8(blob).map_err(|e| wrong(e.to_string()))?;
                let credential = dcsc::parse(text).map_err(|e| wrong(e.to_string()))?;
                let identity = dcsc::identity(credential, Some(&authority.trust), &authority.settings);
                Some(identity.map_err(|e| wrong(e.to_string()))?)
            }
            _ => None,
        };
        Ok(Outcome::Done)
    }

    /// How data connections of a channel are secured; `None`: not at all.
    pub(crate) fn layer(&self, options: &ChannelOptions) -> Result<Option<Arc<GsiLayer>>, Failure> {
        let (Some(subject), false) = (&self.subject, options.authentication == DataAuthentication::None)
        else {
            return Ok(None);
        };
        let Some(identity) = self.own.as_ref().or(self.delegated.as_ref()) else {
            return Err(refused(
                500,
                "No credential for data connections: delegate one when logging in, or send DCAU N.",
            ));
        };
        let expected = match &options.authentication {
            DataAuthentication::Subject(subject) => String::from_utf8_lossy(subject).into_owned(),
            _ if self.own.is_some() => identity.credential().identity().to_owned(),
            _ => subject.clone(),
        };
        let level = match options.protection {
            Protection::Clear => Level::Clear,
            Protection::Safe | Protection::Private => Level::Protected,
        };
        let identity = identity.clone();
        Ok(Some(Arc::new(GsiLayer { identity, expected: Expected::Subject(expected), level })))
    }
}

impl Authority {
    fn data_identity(&self, proxy: Credential) -> Result<Identity, String> {
        Identity::new(Arc::new(proxy), Arc::clone(&self.trust), &self.settings).map_err(|e| e.to_string())
    }
}

fn refused(code: u16, text: impl Into<String>) -> Failure {
    Failure::Refused { code, text: text.into() }
}
