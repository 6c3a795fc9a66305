//! TLS (RFC 4217): the server's certificate, and the state of a client that came over TLS.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_gsi::{Timestamp, validity};
use ropewalk_layers::{Layer, Peer, TlsLayer};
use ropewalk_nodes::{Secret, TlsIdentity, TlsOrder, TlsProof};
use ropewalk_protocol::command::Protection;
use ropewalk_protocol::server::{ChannelOptions, Failure};
use ropewalk_tls::{
    Binding, Fingerprint, Handshake, Revocations, Server, ServerIdentity, ServerSecrets, ServerSettings,
    SslVersion, X509,
};
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use zeroize::Zeroizing;

use crate::config::{self, Config, SessionReuse, TlsVersion};
use crate::security::codec::{ControlCodec, Secured, Tls};

/// The file in the state directory for the certificate that the server makes for itself.
const OWN: &str = "server.pem";

/// The server's side of all TLS connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Authority {
    server: Server,
    reuse: SessionReuse,
    users: Arc<BTreeMap<String, String>>,
}

impl Authority {
    /// Makes a certificate if the settings name none and there is none yet.
    pub(crate) fn load(config: &config::Tls, hosts: &[String]) -> Result<Self, String> {
        let (certificate, key) = match files(config)? {
            Some(pair) => pair,
            None => {
                let path = own(config)?;
                if ropewalk_tls::load_or_make(&path, hosts).map_err(|e| e.to_string())? {
                    tracing::info!(path = %path.display(), ?hosts, "made a certificate for TLS");
                }
                (path.clone(), path)
            }
        };
        let server = Server::new(&ServerSettings {
            certificate,
            key,
            client_authorities: config.client_authorities.clone(),
            client_revocations: config.client_revocations.clone(),
            min_version: match config.min_version {
                TlsVersion::Tls12 => SslVersion::TLS1_2,
                TlsVersion::Tls13 => SslVersion::TLS1_3,
            },
        });
        let server = server.map_err(|e| e.to_string())?;
        Ok(Self { server, reuse: config.session_reuse, users: Arc::new(config.users.clone()) })
    }

    /// Checks the files that the settings name. No file is created.
    pub(crate) fn check(config: &config::Tls) -> Result<(), String> {
        if let Some(path) = &config.client_revocations {
            Revocations::open(path).map_err(|e| e.to_string())?;
        }
        if files(config)?.is_none() {
            let path = own(config)?;
            if !path.exists() {
                return can_make(&path);
            }
        }
        Self::load(config, &[]).map(drop)
    }

    /// Certificates and revocation lists that have expired or soon will, with which the server
    /// starts nevertheless.
    pub(crate) fn doubts(config: &config::Tls) -> Vec<String> {
        let now = Timestamp::now();
        let shown = match files(config) {
            Ok(Some((certificate, _))) => Some(certificate),
            _ => own(config).ok().filter(|path| path.exists()),
        };
        let named = shown.iter().chain(&config.client_authorities);
        let mut told: Vec<_> = named.flat_map(|path| validity::of_certificates(path, now)).collect();
        if let Some(path) = &config.client_revocations {
            told.extend(validity::of_revocation_lists(path, now));
        }
        told
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.server.fingerprint()
    }

    /// The user to which the certificate belongs.
    pub(crate) fn user(&self, subject: &str) -> Option<&str> {
        self.users.get(subject).map(String::as_str)
    }
}

/// The files that the settings name.
fn files(config: &config::Tls) -> Result<Option<(PathBuf, PathBuf)>, String> {
    match (&config.certificate, &config.key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate.clone(), key.clone()))),
        (Some(both), None) => Ok(Some((both.clone(), both.clone()))),
        (None, Some(_)) => Err("there is a key, but no certificate".into()),
        (None, None) => Ok(None),
    }
}

/// The path of the certificate that the server makes for itself.
fn own(config: &config::Tls) -> Result<PathBuf, String> {
    if let Some(directory) = &config.state_directory {
        return Ok(directory.join(OWN));
    }
    let none =
        "there is no place for the certificate that the server makes for itself: set tls.state_directory";
    usual_state_directory().map(|directory| directory.join(OWN)).ok_or_else(|| none.into())
}

/// The directory of the server's state, if the configuration names none. systemd's directory comes
/// first. A list of several directories does not come from the service.
pub(crate) fn usual_state_directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    variable("STATE_DIRECTORY")
        .or_else(|| variable("XDG_STATE_HOME").map(|state| state.join("ropewalk")))
        .or_else(|| rustix::process::geteuid().is_root().then(|| Path::new("/var/lib/ropewalk").to_owned()))
        .or_else(|| variable("HOME").map(|home| home.join(".local/state/ropewalk")))
}

/// Whether the server could create a file with this name, and the missing directories above it.
fn can_make(path: &Path) -> Result<(), String> {
    let above = path.ancestors().skip(1).find(|above| !above.as_os_str().is_empty() && above.exists());
    let above = above.unwrap_or(Path::new("."));
    let failed = |error: Errno| format!("cannot make {}: {}: {error}", path.display(), above.display());
    if !above.is_dir() {
        return Err(failed(Errno::NOTDIR));
    }
    rustix::fs::accessat(CWD, above, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(failed)
}

/// The names and addresses under which clients may know this host.
pub(crate) fn host_names(config: &Config, hostname: &str) -> Vec<String> {
    let mut names = vec![hostname.to_owned()];
    let mut add = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    let told = config.data.advertise.map(|address| address.to_string());
    told.into_iter().for_each(&mut add);
    let listening: Vec<&SocketAddr> = config.listen.iter().chain(config.tls_implicit()).collect();
    for address in &listening {
        if !address.ip().is_unspecified() {
            add(address.ip().to_canonical().to_string());
        }
    }
    if listening.is_empty() || listening.iter().any(|address| address.ip().is_unspecified()) {
        for address in (hostname, 0).to_socket_addrs().into_iter().flatten() {
            add(address.ip().to_canonical().to_string());
        }
        // The address of the default route. Nothing is sent: these addresses are for documentation
        // (RFC 5737, RFC 3849).
        let nobody = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])];
        for there in nobody {
            if let Ok(local) = ropewalk_transport::local_address(SocketAddr::new(there, 9)) {
                add(local.to_string());
            }
        }
    }
    for local in ["localhost", "127.0.0.1", "::1"] {
        add(local.to_owned());
    }
    names
}

/// The state of a client that came over TLS.
pub(crate) struct Client {
    authority: Authority,
    binding: Binding,
    /// The handshake, until the control connection takes it.
    handshake: Option<Handshake>,
    address: IpAddr,
    certificate: Option<X509>,
    subject: Option<String>,
    /// See [`Secured::session`].
    session: Option<Zeroizing<Vec<u8>>>,
}

impl Client {
    pub(crate) fn new(authority: Option<&Authority>, address: IpAddr) -> Result<Self, Failure> {
        let refused = |code, text: String| Failure::Refused { code, text };
        let authority = authority.ok_or_else(|| refused(504, "Unknown authentication type.".into()))?.clone();
        // 431: a security resource is missing (RFC 2228 section 3).
        let failed = |error| refused(431, format!("TLS cannot begin: {error}"));
        let binding = Binding::new().map_err(failed)?;
        let handshake = authority.server.accept(&binding).map_err(failed)?;
        Ok(Self {
            authority,
            binding,
            handshake: Some(handshake),
            address,
            certificate: None,
            subject: None,
            session: None,
        })
    }

    pub(crate) fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// The user to which the client's certificate belongs.
    pub(crate) fn user(&self) -> Option<&str> {
        self.authority.user(self.subject.as_deref()?)
    }

    pub(crate) fn codec(&mut self) -> Option<Box<dyn ControlCodec>> {
        Some(Box::new(Tls::new(self.handshake.take()?)))
    }

    pub(crate) fn established(&mut self, secured: Secured) {
        // A certificate whose name cannot be read belongs to no user.
        self.subject = secured
            .certificate
            .as_ref()
            .and_then(|certificate| ropewalk_gsi::one_line(certificate.subject_name()).ok());
        self.certificate = secured.certificate;
        self.session = secured.session;
    }

    pub(crate) fn layer(&self, options: &ChannelOptions) -> Option<Arc<dyn Layer>> {
        if options.protection == Protection::Clear {
            return None;
        }
        let certificate = self.certificate.clone();
        let client = match self.authority.reuse {
            SessionReuse::Require => Peer::Same { certificate },
            SessionReuse::Prefer => Peer::From { certificate, address: self.address },
            SessionReuse::Off => Peer::Anybody,
        };
        let (server, binding) = (self.authority.server.clone(), self.binding.clone());
        Some(Arc::new(TlsLayer::Server { server, binding, client }))
    }

    /// The same for a node: the secrets go there.
    pub(crate) fn order(&self, options: &ChannelOptions) -> Result<Option<TlsOrder>, Failure> {
        if options.protection == Protection::Clear {
            return Ok(None);
        }
        let failed =
            |error| Failure::Refused { code: 431, text: format!("TLS cannot go to a node: {error}") };
        // A client that presents a certificate again need not resume.
        let with_identity = self.authority.reuse != SessionReuse::Require || self.certificate.is_some();
        let ServerSecrets { identity, ticket_keys, min_version } =
            self.authority.server.secrets(with_identity).map_err(failed)?;
        let identity = identity
            .map(|ServerIdentity { certificates, key }| TlsIdentity { certificates, key: Secret::new(key) });
        let certificate = self.certificate.as_ref().map(|certificate| certificate.to_pem()).transpose();
        let certificate = certificate.map_err(failed)?;
        Ok(Some(TlsOrder {
            identity,
            ticket_keys: Secret::new(ticket_keys),
            only_tls13: min_version == SslVersion::TLS1_3,
            binding: Secret::new(self.binding.bytes().to_vec()),
            session: self.session.clone().map(Secret::new),
            proof: match self.authority.reuse {
                SessionReuse::Require => TlsProof::Certificate,
                SessionReuse::Prefer => TlsProof::Address(self.address),
                SessionReuse::Off => TlsProof::Nothing,
            },
            client_certificate: certificate.map(|pem| String::from_utf8_lossy(&pem).into_owned()),
        }))
    }
}
