//! The server's role: on control connections, and on data connections whoever connected them (RFC 4217 section 7).

use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::rand::rand_bytes;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode, SslVerifyMode,
    SslVersion,
};
use openssl::stack::Stack;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::{X509, X509Name};

use crate::certificate::{CertificateError, Pair, certificates};
use crate::fingerprint::Fingerprint;
use crate::handshake::Handshake;
use crate::keylog;
use crate::revocation::{self, Revocations};
use crate::sys;

/// How long a session can be resumed: as long as TLS 1.3 allows, since control connections may stay for days.
const SESSION_LIFE: u32 = 7 * 24 * 3600;

/// What a server shows, and what it asks of its clients.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// PEM: the certificate, and the chain after it.
    pub certificate: PathBuf,
    /// PEM; may be the same file.
    pub key: PathBuf,
    /// PEM file with the authorities of clients' certificates; `None`: clients are not asked for one.
    pub client_authorities: Option<PathBuf>,
    /// A file or hashed directory with lists of clients' certificates that were revoked.
    pub client_revocations: Option<PathBuf>,
    pub min_version: SslVersion,
}

/// Ties sessions to one control connection: only who has its secrets can resume them. Random.
#[derive(Clone, PartialEq, Eq)]
pub struct Binding([u8; 32]);

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Binding")
    }
}

impl Binding {
    /// A new one.
    ///
    /// # Errors
    /// OpenSSL has no random bytes.
    pub fn new() -> Result<Self, ErrorStack> {
        let mut bytes = [0; 32];
        rand_bytes(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// A server's certificate, ready for any number of handshakes. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    context: SslContext,
    certificate: X509,
    fingerprint: Fingerprint,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Server {
    /// Reads the files that are named.
    ///
    /// # Errors
    /// As [`Pair::load`]; the clients' authorities or revocation lists cannot be read, or OpenSSL does not take what
    /// was.
    pub fn new(settings: &ServerSettings) -> Result<Self, CertificateError> {
        let pair = Pair::load(&settings.certificate, &settings.key)?;
        let trusted = match settings.client_authorities.as_deref() {
            Some(path) => Some((path, certificates(path)?)),
            None => None,
        };
        let revocations = settings.client_revocations.as_ref().map(Revocations::open).transpose()?;
        build(
            &pair,
            trusted.as_ref().map(|(path, found)| (*path, found.as_slice())),
            revocations,
            settings.min_version,
        )
        .map_err(|source| CertificateError::OpenSsl {
            what: settings.certificate.display().to_string(),
            source,
        })
    }

    pub fn certificate(&self) -> &X509 {
        &self.certificate
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The handshake of a control connection, whose sessions belong to `binding`.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn accept(&self, binding: &Binding) -> Result<Handshake, ErrorStack> {
        self.begin(binding, Ssl::new(&self.context)?)
    }

    /// That of a data connection. One that resumes a session ([`Established::resumed`](crate::Established::resumed)) has
    /// resumed one of this binding that a control connection began: what a data connection begins, perhaps a stranger's, cannot
    /// be resumed. It gives no tickets: a client that has sent its file and closes the connection would
    /// not have read them, and its kernel would reset the connection and drop what is on the way.
    ///
    /// # Errors
    /// As [`Server::accept`].
    pub fn accept_data(&self, binding: &Binding) -> Result<Handshake, ErrorStack> {
        let mut ssl = Ssl::new(&self.context)?;
        ssl.set_num_tickets(0)?;
        keylog::for_data(&mut ssl)?;
        Ok(self.begin(binding, ssl)?.fleeting())
    }

    fn begin(&self, binding: &Binding, mut ssl: Ssl) -> Result<Handshake, ErrorStack> {
        sys::set_session_id_context(&mut ssl, &binding.0)?;
        revocation::listen(&mut ssl)?;
        ssl.set_accept_state();
        Handshake::new(ssl, &self.context)
    }
}

fn build(
    pair: &Pair,
    trusted: Option<(&Path, &[X509])>,
    revocations: Option<Revocations>,
    min_version: SslVersion,
) -> Result<Server, ErrorStack> {
    let mut builder = SslContextBuilder::new(SslMethod::tls_server())?;
    builder.set_min_proto_version(Some(min_version))?;
    builder.set_cipher_list("HIGH:!aNULL:!eNULL:!kRSA:!PSK:!SRP")?;
    builder.set_options(
        SslOptions::NO_RENEGOTIATION
            | SslOptions::NO_COMPRESSION
            | SslOptions::CIPHER_SERVER_PREFERENCE
            | SslOptions::SINGLE_ECDH_USE,
    );
    builder.set_mode(SslMode::RELEASE_BUFFERS);
    keylog::allow_data(&mut builder);
    builder.set_verify_depth(crate::MAX_CHAIN);
    builder.set_session_cache_mode(SslSessionCacheMode::SERVER);
    // Every connection has its own; without one OpenSSL would refuse to resume sessions with certificates.
    builder.set_session_id_context(b"ropewalk")?;
    if let Some((_, authorities)) = trusted {
        let mut store = X509StoreBuilder::new()?;
        let mut names = Stack::<X509Name>::new()?;
        for authority in authorities {
            store.add_cert(authority.clone())?;
            names.push(authority.subject_name().to_owned()?)?;
        }
        builder.set_verify_cert_store(store.build())?;
        builder.set_client_ca_list(names);
        // A client may have a password instead; one that shows a certificate has to have a good one.
        match revocations {
            Some(lists) => revocation::look_into(&mut builder, SslVerifyMode::PEER, lists)?,
            None => builder.set_verify(SslVerifyMode::PEER),
        }
    }
    pair.put(&mut builder)?;
    let context = builder.build();
    sys::set_session_timeout(&context, SESSION_LIFE);
    let certificate = pair.certificate().clone();
    let fingerprint = Fingerprint::of(&certificate)?;
    Ok(Server { context, certificate, fingerprint })
}
