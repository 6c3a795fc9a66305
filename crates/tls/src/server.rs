//! The server's side of TLS: on control connections, and on data connections of both directions
//! (RFC 4217 section 7). Sessions are bound to their control connection ([`Binding`]), so a data
//! connection that resumes one belongs to the same client. A [`Server`] is immutable and shared
//! between threads.

use std::path::PathBuf;

use openssl::error::ErrorStack;
use openssl::rand::rand_bytes;
use openssl::ssl::{
    Ssl, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode, SslVerifyMode,
    SslVersion,
};
use openssl::stack::Stack;
use openssl::x509::store::X509StoreBuilder;
use openssl::x509::{X509, X509Name};
use zeroize::Zeroizing;

use crate::certificate::{CertificateError, Pair, certificates};
use crate::fingerprint::Fingerprint;
use crate::handshake::Handshake;
use crate::keylog;
use crate::revocation::{self, Revocations};
use crate::{self_signed, sys};

/// How long a session can be resumed: as long as TLS 1.3 allows, because control connections may
/// stay open for days.
const SESSION_LIFE: u32 = 7 * 24 * 3600;
/// The source of a certificate that is in no file, for texts.
const GIVEN: &str = "the certificate of the other program";
/// The name in certificates for clients that are refused. Some programs show it.
const NOBODY: &str = "resume-the-TLS-session-of-the-control-connection";

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

    /// Makes the binding with these bytes, for another program that serves data connections of the
    /// same control connection.
    pub fn of(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The secrets of a [`Server`], for another program that serves data connections in its place
/// ([`Server::on_behalf`]).
#[derive(Clone)]
pub struct ServerSecrets {
    /// `None`: clients have to resume a session, and no certificate is shown to them then.
    pub identity: Option<ServerIdentity>,
    /// The keys with which the server encrypts session tickets.
    pub ticket_keys: Zeroizing<Vec<u8>>,
    pub min_version: SslVersion,
}

/// A certificate with its key.
#[derive(Clone)]
pub struct ServerIdentity {
    /// The certificate and its chain, in PEM.
    pub certificates: String,
    /// The key, in PEM.
    pub key: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for ServerSecrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerSecrets")
    }
}

impl std::fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerIdentity")
    }
}

/// The certificates that a server requests from clients.
enum Requested<'a> {
    Nothing,
    /// Certificates of these authorities; others are refused.
    Authorities {
        found: &'a [X509],
        revocations: Option<Revocations>,
    },
    /// This one. Any other is accepted, too: the caller compares.
    Same(&'a X509),
}

/// A server's certificate in a context for any number of handshakes. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    context: SslContext,
    pair: Pair,
    fingerprint: Fingerprint,
    min_version: SslVersion,
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
        let revocations = settings.client_revocations.as_ref().map(Revocations::open).transpose()?;
        let authorities = settings.client_authorities.as_deref().map(certificates).transpose()?;
        let requested = match &authorities {
            Some(found) => Requested::Authorities { found, revocations },
            None => Requested::Nothing,
        };
        build(pair, requested, settings.min_version).map_err(|source| CertificateError::OpenSsl {
            what: settings.certificate.display().to_string(),
            source,
        })
    }

    /// The secrets with which another program can serve data connections of this server's control
    /// connections, with the certificate and its key if clients may do without resumption.
    ///
    /// # Errors
    /// OpenSSL cannot encode them.
    pub fn secrets(&self, with_identity: bool) -> Result<ServerSecrets, ErrorStack> {
        let identity = match with_identity {
            true => {
                let (certificates, key) = self.pair.to_pem()?;
                Some(ServerIdentity { certificates, key })
            }
            false => None,
        };
        let ticket_keys = Zeroizing::new(sys::ticket_keys(&self.context)?);
        Ok(ServerSecrets { identity, ticket_keys, min_version: self.min_version })
    }

    /// Makes a server for data connections of one control connection of another program, which has
    /// given its secrets, the session of the control connection if it remembers that
    /// ([`Established::remembered_session`](crate::Established::remembered_session)), and the
    /// certificate that the client has presented there. The client is asked for the same
    /// certificate. Any other is accepted, too, so the caller must compare it.
    ///
    /// Without an identity, a client that does not resume a session gets a certificate that is made
    /// here, for no host, so that the handshake ends and the caller can say why it refuses.
    ///
    /// # Errors
    /// The certificate, the key or the session cannot be read, the key belongs to another
    /// certificate, or the keys of tickets are those of another version of OpenSSL.
    pub fn on_behalf(
        secrets: &ServerSecrets,
        session: Option<&[u8]>,
        client_certificate: Option<&X509>,
    ) -> Result<Self, CertificateError> {
        let failed = |source| CertificateError::OpenSsl { what: GIVEN.into(), source };
        let pair = match &secrets.identity {
            Some(identity) => Pair::from_pem(identity.certificates.as_bytes(), &identity.key)?,
            None => {
                let made = self_signed::make(&[NOBODY.to_owned()]).map_err(failed)?;
                Pair::from_pem(&made, &made)?
            }
        };
        let requested = client_certificate.map_or(Requested::Nothing, Requested::Same);
        let server = build(pair, requested, secrets.min_version).map_err(failed)?;
        sys::set_ticket_keys(&server.context, &secrets.ticket_keys).map_err(failed)?;
        if let Some(session) = session {
            sys::remember_session(&server.context, session).map_err(failed)?;
        }
        Ok(server)
    }

    pub fn certificate(&self) -> &X509 {
        self.pair.certificate()
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

fn build(pair: Pair, requested: Requested<'_>, min_version: SslVersion) -> Result<Server, ErrorStack> {
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
    match requested {
        Requested::Nothing => {}
        Requested::Authorities { found, revocations } => {
            let mut store = X509StoreBuilder::new()?;
            let mut names = Stack::<X509Name>::new()?;
            for authority in found {
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
        Requested::Same(certificate) => {
            let mut names = Stack::<X509Name>::new()?;
            names.push(certificate.issuer_name().to_owned()?)?;
            builder.set_client_ca_list(names);
            builder.set_verify_callback(SslVerifyMode::PEER, |_, _| true);
        }
    }
    pair.put(&mut builder)?;
    let context = builder.build();
    sys::set_session_timeout(&context, SESSION_LIFE);
    let fingerprint = Fingerprint::of(pair.certificate())?;
    Ok(Server { context, pair, fingerprint, min_version })
}
