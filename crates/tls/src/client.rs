//! The client's side of TLS. A [`Client`] starts handshakes of control connections and, with a
//! session ticket, of data connections. [`Client::distrust`] says whether a server can be trusted;
//! the caller must check that before it sends anything.

use std::net::IpAddr;
use std::path::PathBuf;

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode, SslVerifyMode,
    SslVersion,
};
use openssl::x509::X509Ref;
use openssl::x509::verify::X509CheckFlags;

use crate::certificate::{CertificateError, Pair};
use crate::handshake::{Established, Handshake};
use crate::keylog;
use crate::records::Ticket;
use crate::revocation::{self, RevocationError, Revocations};
use crate::sys;

/// The authorities that a client trusts, and its own credential.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// A PEM file or a hashed directory of trusted authorities; `None` for those of the system
    /// (`SSL_CERT_FILE`, `SSL_CERT_DIR`).
    pub authorities: Option<PathBuf>,
    /// A file or hashed directory with revocation lists. `None`: those in the directory of
    /// authorities, if `authorities` is a directory and has some.
    pub revocations: Option<PathBuf>,
    /// A PEM file with certificate, chain and key, for servers that request one.
    pub credential: Option<PathBuf>,
    pub min_version: SslVersion,
    /// `None` for the newest version that both sides support.
    pub max_version: Option<SslVersion>,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            authorities: None,
            revocations: None,
            credential: None,
            min_version: SslVersion::TLS1_2,
            max_version: None,
        }
    }
}

/// Why a client cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Credential(#[from] CertificateError),
    #[error(transparent)]
    Revocations(#[from] RevocationError),
    #[error("trusted authorities in {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("trusted authorities in {path}: {source}")]
    Authorities { path: PathBuf, source: ErrorStack },
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// Why a server's certificate is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    #[error("its certificate is self-signed")]
    SelfSigned,
    #[error("its certificate comes from an authority that is not trusted ({issuer})")]
    UnknownAuthority { issuer: String },
    #[error("its certificate is for {names}, not for {host}")]
    WrongHost { host: String, names: String },
    #[error("its certificate expired at {at}")]
    Expired { at: String },
    #[error("its certificate is not valid before {from}")]
    NotYetValid { from: String },
    #[error("its certificate cannot be trusted: {0}")]
    Revoked(String),
    #[error("its certificate is not accepted: {0}")]
    Other(String),
    #[error("it has shown no certificate")]
    None,
}

impl Distrust {
    /// Whether no trusted authority signed the certificate but nothing else is wrong with it. The
    /// user may then accept its fingerprint.
    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::SelfSigned | Self::UnknownAuthority { .. })
    }
}

/// The context for any number of handshakes. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    context: SslContext,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// Authorities, revocation lists or the credential cannot be used, or OpenSSL does not accept
    /// the versions.
    pub fn new(settings: &ClientSettings) -> Result<Self, ClientError> {
        let mut builder = SslContextBuilder::new(SslMethod::tls_client())?;
        builder.set_min_proto_version(Some(settings.min_version))?;
        builder.set_max_proto_version(settings.max_version)?;
        builder.set_cipher_list("HIGH:!aNULL:!eNULL:!PSK:!SRP")?;
        builder.set_options(SslOptions::NO_RENEGOTIATION | SslOptions::NO_COMPRESSION);
        builder.set_verify_depth(crate::MAX_CHAIN);
        builder.set_mode(SslMode::RELEASE_BUFFERS);
        // With a cache, OpenSSL marks a session as used up when one of several connections that
        // resume it gets a new ticket.
        builder.set_session_cache_mode(SslSessionCacheMode::OFF);
        keylog::allow_data(&mut builder);
        match &settings.authorities {
            None => builder.set_default_verify_paths()?,
            Some(path) => {
                // OpenSSL would block if the file is a pipe.
                if !path.is_dir() {
                    let opened = ropewalk_files::open(path);
                    opened.map_err(|source| ClientError::Read { path: path.clone(), source })?;
                }
                let (file, directory) = if path.is_dir() { (None, Some(path)) } else { (Some(path), None) };
                let found = builder
                    .load_verify_locations(file.map(PathBuf::as_path), directory.map(PathBuf::as_path));
                found.map_err(|source| ClientError::Authorities { path: path.clone(), source })?;
            }
        }
        // The handshake continues even if the verification fails. `distrust` reports the result
        // afterwards, because the user may have accepted the fingerprint of an unknown server.
        let lists = match (&settings.revocations, &settings.authorities) {
            (Some(path), _) => Some(Revocations::open(path)?),
            (None, Some(path)) if path.is_dir() => Revocations::beside(path)?,
            _ => None,
        };
        match lists {
            Some(lists) => revocation::look_into(&mut builder, SslVerifyMode::NONE, lists)?,
            None => builder.set_verify(SslVerifyMode::NONE),
        }
        if let Some(path) = &settings.credential {
            let pair = Pair::load(path, path)?;
            pair.put(&mut builder)?;
        }
        Ok(Self { context: builder.build() })
    }

    /// Starts the handshake of a control connection with this host. The caller must check
    /// [`Client::distrust`] before it sends anything to the server.
    ///
    /// # Errors
    /// OpenSSL does not accept the host name, or has no memory.
    pub fn connect(&self, host: &str) -> Result<Handshake, ErrorStack> {
        let mut ssl = Ssl::new(&self.context)?;
        ssl.set_connect_state();
        revocation::listen(&mut ssl)?;
        let parameters = ssl.param_mut();
        match host.parse::<IpAddr>() {
            Ok(address) => parameters.set_ip(address)?,
            Err(_) => {
                // The common name is not used as a host name (RFC 9525 section 2).
                let flags = X509CheckFlags::NO_PARTIAL_WILDCARDS | X509CheckFlags::NEVER_CHECK_SUBJECT;
                parameters.set_hostflags(flags);
                parameters.set_host(host)?;
                ssl.set_hostname(host)?;
            }
        }
        Handshake::new(ssl, &self.context)
    }

    /// Starts the handshake of a data connection that resumes the session of the control
    /// connection. If the server starts a new session instead, the caller must check that its
    /// certificate is that of the control connection.
    ///
    /// # Errors
    /// OpenSSL cannot read the session in the ticket, or has no memory.
    pub fn resume(ticket: &Ticket) -> Result<Handshake, ErrorStack> {
        let mut ssl = Ssl::new(ticket.context())?;
        ssl.set_connect_state();
        keylog::for_data(&mut ssl)?;
        let session = ticket.session()?;
        sys::resume(&mut ssl, &session)?;
        Handshake::new(ssl, ticket.context())
    }

    /// Returns what is wrong with the certificate of the server at `host`, or `None` if a trusted
    /// authority has signed it.
    pub fn distrust(established: &Established, host: &str) -> Option<Distrust> {
        let Some(certificate) = established.certificate() else { return Some(Distrust::None) };
        let ssl = established.records.ssl();
        if let Some(text) = revocation::told(ssl) {
            return Some(Distrust::Revoked(text));
        }
        let result = ssl.verify_result();
        // The numbers are X509_V_ERR_* of OpenSSL.
        let distrust = match result.as_raw() {
            0 => return None,
            18 => Distrust::SelfSigned,
            2 | 19 | 20 | 21 => Distrust::UnknownAuthority { issuer: words(certificate.issuer_name()) },
            9 => Distrust::NotYetValid { from: certificate.not_before().to_string() },
            10 => Distrust::Expired { at: certificate.not_after().to_string() },
            62 | 64 => Distrust::WrongHost { host: host.to_owned(), names: names(&certificate) },
            _ => Distrust::Other(result.error_string().to_owned()),
        };
        if distrust.is_unknown() {
            // OpenSSL checks the validity period only if a trusted authority has signed the
            // certificate.
            let Ok(now) = Asn1Time::days_from_now(0) else { return Some(distrust) };
            if certificate.not_after() < now {
                return Some(Distrust::Expired { at: certificate.not_after().to_string() });
            }
            if certificate.not_before() > now {
                return Some(Distrust::NotYetValid { from: certificate.not_before().to_string() });
            }
        }
        Some(distrust)
    }
}

pub(crate) fn words(name: &openssl::x509::X509NameRef) -> String {
    let parts = name.entries().map(|entry| {
        let key = entry.object().nid().short_name().unwrap_or("?");
        format!("{key}={}", String::from_utf8_lossy(entry.data().as_slice()).escape_debug())
    });
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() { "without a name".to_owned() } else { parts.join(", ") }
}

/// The hosts in a certificate, for messages.
fn names(certificate: &X509Ref) -> String {
    let mut all = Vec::new();
    for general in certificate.subject_alt_names().iter().flatten() {
        if let Some(dns) = general.dnsname() {
            all.push(dns.escape_debug().to_string());
        } else if let Some(address) = general.ipaddress() {
            let v4 = <[u8; 4]>::try_from(address).map(IpAddr::from);
            all.extend(
                v4.or_else(|_| <[u8; 16]>::try_from(address).map(IpAddr::from)).map(|ip| ip.to_string()),
            );
        }
    }
    match all.is_empty() {
        true => format!(
            "no host (it has no alternative names, and its common name is none: {})",
            words(certificate.subject_name())
        ),
        false => all.join(", "),
    }
}
