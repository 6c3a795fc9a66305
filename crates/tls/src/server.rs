//! The server's side of TLS: on control connections, and on data connections of both directions
//! (RFC 4217 section 7). Sessions are bound to their control connection ([`Binding`]), so a data
//! connection that resumes one belongs to the same client. A [`Server`] is immutable and shared
//! between threads.

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

/// How long a session can be resumed: as long as TLS 1.3 allows, because control connections may
/// stay open for days.
const SESSION_LIFE: u32 = 7 * 24 * 3600;

/// The certificate of a server, and the certificates that it requests from clients.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// A PEM file with the certificate and its chain.
    pub certificate: PathBuf,
    /// A PEM file with the key; may be the same file.
    pub key: PathBuf,
    /// A PEM file with the authorities of clients' certificates; `None` if clients are not asked
    /// for one.
    pub client_authorities: Option<PathBuf>,
    /// A file or hashed directory with revocation lists for clients' certificates.
    pub client_revocations: Option<PathBuf>,
    pub min_version: SslVersion,
}

/// Binds sessions to one control connection: only its client has the secrets to resume them. The
/// value is random.
#[derive(Clone, PartialEq, Eq)]
pub struct Binding([u8; 32]);

impl std::fmt::Debug for Binding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Binding")
    }
}

impl Binding {
    /// Makes a new binding.
    ///
    /// # Errors
    /// OpenSSL has no random bytes.
    pub fn new() -> Result<Self, ErrorStack> {
        let mut bytes = [0; 32];
        rand_bytes(&mut bytes)?;
        Ok(Self(bytes))
    }
}

/// A server's certificate in a context for any number of handshakes. Cheap to clone.
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
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// The same errors as [`Pair::load`]; or the clients' authorities or revocation lists cannot be
    /// read, or OpenSSL does not accept the content of a file.
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

    /// Starts the handshake of a control connection, whose sessions belong to `binding`.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn accept(&self, binding: &Binding) -> Result<Handshake, ErrorStack> {
        self.begin(binding, Ssl::new(&self.context)?)
    }

    /// Starts the handshake of a data connection. If a session is resumed
    /// ([`Established::resumed`](crate::Established::resumed)), it is one of this binding that a
    /// control connection started. A session that a data connection starts, possibly with an
    /// unexpected peer, cannot be resumed. The server sends no tickets: a client that has sent its
    /// file and closes the connection would not have read them, so its kernel would reset the
    /// connection and drop the data in flight.
    ///
    /// # Errors
    /// The same errors as [`Server::accept`].
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
    // Every connection has its own. Without a default, OpenSSL would refuse to resume sessions with
    // client certificates.
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
        // A client may log in with a password instead, but a certificate that it sends must be
        // valid.
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
