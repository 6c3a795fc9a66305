//! Log-in with certificates: the server's own credential, and what a session knows of its client.
//!
//! The authority is made from the configuration and shared by all sessions. A client belongs to one
//! session. The gridmap is read at each log-in.

use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_gsi::{
    Acceptor, AcceptorOptions, Account, Credential, DelegatedKeys, Expected, Gridmap, GsiConf, Identity,
    KeyPool, NameCompatibility, Peer, Places, Source, Step, Timestamp, TlsSettings, Trust, dcsc,
    decode_token, encode_token, lease, validity, virtual_hosts, voms_claims,
};
use ropewalk_layers::{GsiLayer, Layer, Level};
use ropewalk_nodes::{GsiOrder, Secret};
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::server::{ChannelOptions, Failure, Outcome};
use ropewalk_remote_store::Delegated;

use crate::config;

/// The user name that GridFTP clients send if the gridmap should decide.
pub(crate) const MAPPED: &[u8] = b":globus-mapping:";
/// RSA keys for delegated proxies that are generated in advance, for this number of log-ins at
/// once.
const KEYS: usize = 32;
/// The largest map in bytes.
pub(crate) const LONGEST_MAP: u64 = 64 << 20;

/// The part of the server that all log-ins share.
pub(crate) struct Authority {
    identity: Identity,
    trust: Arc<Trust>,
    settings: TlsSettings,
    compatibility: NameCompatibility,
    gridmap: PathBuf,
    pools: Option<PathBuf>,
    allow_root: bool,
    keys: DelegatedKeys,
    /// The directory that defines which services may speak for which virtual organisation.
    voms: PathBuf,
}

impl Authority {
    /// `relays`: delegated credentials are delegated further.
    pub(crate) fn load(config: &config::Gsi, relays: bool) -> Result<Self, String> {
        let places = Places::of_process();
        let conf = GsiConf::load(&places.gsi_conf(), |name| std::env::var(name).ok());
        let conf = conf.map_err(|e| e.to_string())?;
        let settings = TlsSettings::from(&conf);
        if let Some(path) = places.callouts() {
            tracing::warn!(
                path = %path.display(),
                "mapping callouts (GSI_AUTHZ_CONF, gsi-authz.conf) are not supported: subjects are mapped by the gridmap alone"
            );
        }
        let trust = Arc::new(trust(config, &places)?);
        let mut hosts = Vec::new();
        if let Some(directory) = places.virtual_hosts() {
            let owner = conf.vhost_cred_owner.as_deref().map(user_number).transpose()?;
            hosts = virtual_hosts(&directory, owner, &trust, &settings)
                .map_err(|error| format!("virtual hosts (X509_VHOST_CRED_DIR): {error}"))?;
            for host in &hosts {
                still_good(host.credential())?;
            }
        }
        let source = source(config, &places)?;
        let credential = match (&source, hosts.first()) {
            (Some(source), _) => source.load(&mut |_| None).map_err(|e| e.to_string())?,
            (None, Some(host)) => host.credential().clone(),
            (None, None) => return Err("there is no host certificate; name one".into()),
        };
        still_good(&credential)?;
        let identity =
            Identity::with_virtual_hosts(Arc::new(credential), Arc::clone(&trust), &settings, hosts)
                .map_err(|e| e.to_string())?;
        Ok(Self {
            keys: match config.delegated_keys {
                Some(config::DelegatedKeys::P256) => DelegatedKeys::P256,
                None if !relays => DelegatedKeys::P256,
                _ => DelegatedKeys::Rsa(Some(KeyPool::new(KEYS))),
            },
            voms: places.voms(),
            identity,
            trust,
            settings,
            compatibility: conf.name_compatibility.unwrap_or_default(),
            gridmap: config.gridmap.clone().unwrap_or_else(|| places.gridmap()),
            pools: config.pool_directory.clone().or_else(|| places.pool_directory()),
            allow_root: config.allow_root,
        })
    }

    /// The local user of an authenticated client that requested the user `wanted`.
    pub(crate) fn user(&self, subject: &str, wanted: &[u8]) -> Result<String, Failure> {
        let denied = |text: String| Failure::LoginDenied(text);
        let map = ropewalk_files::read_map(&self.gridmap, LONGEST_MAP).map_err(|error| {
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

/// The state of one client.
#[derive(Default)]
pub(crate) struct Client {
    acceptor: Option<Acceptor>,
    /// The session, until the control connection is protected with it.
    established: Option<Box<ropewalk_gsi::Session>>,
    subject: Option<String>,
    /// The proxy that the client delegated, for data connections.
    delegated: Option<Identity>,
    /// The credential of DCSC P.
    own: Option<Identity>,
}

impl Client {
    /// The one-line subject without proxies, after authentication.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// The credential that the client delegated, for log-ins on its behalf.
    pub(crate) fn delegated(&self, authority: Option<&Authority>) -> Option<Delegated> {
        let (identity, authority) = (self.delegated.clone()?, authority?);
        Some(Delegated::new(identity, authority.settings.clone(), authority.compatibility))
    }

    pub(crate) fn take_established(&mut self) -> Option<Box<ropewalk_gsi::Session>> {
        self.established.take()
    }

    pub(crate) fn begin(&mut self, authority: Option<&Authority>) -> Result<Outcome, Failure> {
        let unknown = || refused(504, "Unknown authentication type.");
        let authority = authority.ok_or_else(unknown)?;
        let options = AcceptorOptions { keys: authority.keys.clone(), ..AcceptorOptions::default() };
        let acceptor = Acceptor::new(&authority.identity, options);
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
                authority.tell(session.peer());
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

    /// The layer that protects data connections of a channel; `None`: they are not protected.
    pub(crate) fn layer(&self, options: &ChannelOptions) -> Result<Option<Arc<dyn Layer>>, Failure> {
        Ok(self.data_layer(options)?.map(|layer| Arc::new(layer) as Arc<dyn Layer>))
    }

    /// The same for data connections of a node. The credential goes there.
    pub(crate) fn order(
        &self,
        authority: Option<&Authority>,
        options: &ChannelOptions,
    ) -> Result<Option<GsiOrder>, Failure> {
        let Some(GsiLayer { identity, expected, level }) = self.data_layer(options)? else {
            return Ok(None);
        };
        let Expected::Subject(expected) = expected else { return Ok(None) };
        let credential = dcsc::encode(identity.credential());
        let credential = credential.map_err(|error| refused(500, error.to_string()))?;
        let credential = Secret::new(credential.as_bytes().to_vec());
        let protected = level == Level::Protected;
        let further = authority.map(|authority| authority.trust.anchors_pem()).transpose();
        let further = further.map_err(|error| refused(500, error.to_string()))?.unwrap_or_default();
        let further_authorities = String::from_utf8_lossy(&further).into_owned();
        let own_authorities = self.own.is_some();
        Ok(Some(GsiOrder { credential, expected, protected, own_authorities, further_authorities }))
    }

    fn data_layer(&self, options: &ChannelOptions) -> Result<Option<GsiLayer>, Failure> {
        let Some(subject) = &self.subject else {
            return Ok(None);
        };
        if options.authentication == DataAuthentication::None {
            // There is no key to protect them with. GCT's server answers PROT with 200
            // nevertheless, and moves the data in clear.
            return match options.protection {
                Protection::Clear => Ok(None),
                Protection::Safe | Protection::Private => Err(refused(
                    521,
                    "Without DCAU data connections cannot be protected: send DCAU A, or PROT C.",
                )),
            };
        }
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
        Ok(Some(GsiLayer { identity, expected: Expected::Subject(expected), level }))
    }
}

impl Authority {
    /// Logs an authenticated client. Statements of VOMS servers are logged as claims, and no rights
    /// follow from them.
    fn tell(&self, peer: &Peer) {
        let proxy = peer.proxy.map(|kind| kind.to_string());
        tracing::info!(
            subject = peer.identity, proxy, until = %peer.not_after,
            "a client has authenticated itself with a certificate"
        );
        for claim in voms_claims(&peer.chain) {
            let verified = match peer.end_entity() {
                Some(holder) => claim
                    .verify(holder, &self.voms, &self.trust, Timestamp::now())
                    .map_or_else(|error| format!("no: {error}"), |()| "yes".to_owned()),
                None => "no".to_owned(),
            };
            let (attributes, authority) = (claim.fqans.join(" "), claim.authority);
            tracing::info!(subject = peer.identity, attributes, authority, verified, "VOMS attributes");
        }
    }

    fn data_identity(&self, proxy: Credential) -> Result<Identity, String> {
        Identity::new(Arc::new(proxy), Arc::clone(&self.trust), &self.settings).map_err(|e| e.to_string())
    }
}

/// Checks the server's own certificate before clients find that it is not valid.
fn still_good(credential: &Credential) -> Result<(), String> {
    let (now, end, subject) = (Timestamp::now(), credential.not_after(), credential.subject());
    if end <= now {
        return Err(format!("the certificate of {subject} expired at {end}"));
    }
    if credential.details().not_before > now {
        return Err(format!(
            "the certificate of {subject} is valid only from {} on",
            credential.details().not_before
        ));
    }
    Ok(())
}

/// The certificate authorities that the server trusts.
fn trust(config: &config::Gsi, places: &Places) -> Result<Trust, String> {
    let directory = config.authorities.clone().unwrap_or_else(|| places.authorities());
    if !directory.is_dir() {
        return Err(format!("{} is no directory of authorities", directory.display()));
    }
    let trust = Trust::directory(directory);
    match places.further_authorities() {
        Some(pem) => {
            trust.with_pem_anchors(&pem).map_err(|error| format!("GLOBUS_GFS_EXTRA_CA_CERTS: {error}"))
        }
        None => Ok(trust),
    }
}

/// The place of the server's own credential.
fn source(config: &config::Gsi, places: &Places) -> Result<Option<Source>, String> {
    match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => {
            Ok(Some(Source::Pair { certificate: certificate.clone(), key: key.clone() }))
        }
        (Some(both), None) => Ok(Some(Source::Proxy(both.clone()))),
        (None, Some(_)) => Err("there is a key, but no certificate".into()),
        (None, None) => Ok(places.server()),
    }
}

/// Reasons why certificates of either side are not trusted, or soon will not be, with which the
/// server starts nevertheless.
pub(crate) fn doubts(config: &config::Gsi) -> Vec<String> {
    let (places, now) = (Places::of_process(), Timestamp::now());
    let mut told = trust(config, &places).map(|trust| trust.doubts(now)).unwrap_or_default();
    let own = source(config, &places).ok().flatten().and_then(|source| source.load(&mut |_| None).ok());
    if let Some(credential) = own {
        // A proxy is short-lived by design.
        let proxy = credential.details().proxy.is_some();
        let certificates = (!proxy).then(|| credential.certificate()).into_iter().chain(credential.chain());
        told.extend(certificates.filter_map(|certificate| validity::of_certificate(certificate, now)));
    }
    told
}

/// The number of a user, from its name or number.
fn user_number(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .or_else(|| uzers::get_user_by_name(text).map(|user| user.uid()))
        .ok_or_else(|| format!("gsi.conf: VHOST_CRED_OWNER is {text:?}, which is no user here"))
}

fn refused(code: u16, text: impl Into<String>) -> Failure {
    Failure::Refused { code, text: text.into() }
}

#[cfg(test)]
mod tests {
    use ropewalk_protocol::server::{Mode, RepresentationType, StripeLayout};

    use super::*;

    #[test]
    fn protection_without_dcau_is_refused() {
        let client = Client { subject: Some("/CN=Ada".into()), ..Client::default() };
        let layer = |authentication, protection| {
            let options = ChannelOptions {
                stack: None,
                mode: Mode::Stream,
                representation: RepresentationType::Image,
                parallelism: 1,
                layout: StripeLayout::ServerDefault,
                send_buffer: None,
                receive_buffer: None,
                automatic_buffers: None,
                congestion: None,
                authentication,
                protection,
                protection_buffer: 0,
                key: None,
            };
            client.layer(&options).map(|layer| layer.is_some())
        };
        assert_eq!(layer(DataAuthentication::None, Protection::Clear), Ok(false));
        for protection in [Protection::Safe, Protection::Private] {
            let refused = layer(DataAuthentication::None, protection);
            assert!(matches!(refused, Err(Failure::Refused { code: 521, .. })), "{refused:?}");
        }
    }
}
