//! The inputs of handshakes: TLS settings, a credential, and trusted authorities, combined in an
//! [`Identity`]. An identity is immutable and shared between threads; each handshake makes its own
//! TLS state from it. OpenSSL accepts any certificate of the peer here, and [`Trust`] decides about
//! it during the handshake.

use std::sync::Arc;

use openssl::error::ErrorStack;
use openssl::ssl::{
    NameType, SniError, SslContext, SslContextBuilder, SslMethod, SslMode, SslOptions, SslSessionCacheMode,
    SslVerifyMode, SslVersion,
};

use crate::credential::Credential;
use crate::gsi_conf::GsiConf;
use crate::host::{NameCompatibility, is_host};
use crate::trust::Trust;

/// TLS settings. The defaults are GCT's (`gsi.conf`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    pub min_version: SslVersion,
    pub max_version: SslVersion,
    /// OpenSSL's cipher list for TLS 1.2.
    pub ciphers: String,
    /// The server's order of ciphers takes precedence.
    pub server_order: bool,
    /// OpenSSL's security level. It is 0 if this side's certificate has an MD5 signature (DCSC of
    /// globus-url-copy).
    pub security_level: u32,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self {
            min_version: SslVersion::TLS1_2,
            max_version: SslVersion::TLS1_3,
            ciphers: "HIGH:!aNULL:!eNULL".to_owned(),
            server_order: true,
            security_level: 1,
        }
    }
}

impl From<&GsiConf> for TlsSettings {
    fn from(conf: &GsiConf) -> Self {
        let defaults = Self::default();
        Self {
            min_version: conf.min_version.unwrap_or(defaults.min_version),
            max_version: conf.max_version.unwrap_or(defaults.max_version),
            ciphers: match &conf.ciphers {
                // Peers without a certificate are never accepted.
                Some(list) => format!("{list}:!aNULL"),
                None => defaults.ciphers,
            },
            server_order: conf.server_order.unwrap_or(defaults.server_order),
            security_level: defaults.security_level,
        }
    }
}

/// A credential prepared for any number of concurrent handshakes. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    pub(crate) context: SslContext,
    pub(crate) credential: Arc<Credential>,
    pub(crate) trust: Arc<Trust>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("credential", &self.credential)
            .field("trust", &self.trust.place())
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Makes an identity without virtual hosts.
    ///
    /// # Errors
    /// OpenSSL does not accept the versions or ciphers, or a certificate or key at this security
    /// level.
    pub fn new(
        credential: Arc<Credential>,
        trust: Arc<Trust>,
        settings: &TlsSettings,
    ) -> Result<Self, ErrorStack> {
        Self::with_virtual_hosts(credential, trust, settings, Vec::new())
    }

    /// Makes the identity of a server with virtual hosts (`X509_VHOST_CRED_DIR`). A client that
    /// requests the host of one of them is sent its certificate. The first match is used.
    ///
    /// # Errors
    /// The same errors as [`Identity::new`].
    pub fn with_virtual_hosts(
        credential: Arc<Credential>,
        trust: Arc<Trust>,
        settings: &TlsSettings,
        hosts: Vec<Self>,
    ) -> Result<Self, ErrorStack> {
        let mut builder = SslContextBuilder::new(SslMethod::tls())?;
        builder.set_security_level(settings.security_level);
        builder.set_min_proto_version(Some(settings.min_version))?;
        builder.set_max_proto_version(Some(settings.max_version))?;
        builder.set_cipher_list(&settings.ciphers)?;
        // A session ticket would be a token that the peer does not expect.
        builder.set_num_tickets(0)?;
        builder.set_session_cache_mode(SslSessionCacheMode::OFF);
        builder.set_options(
            SslOptions::NO_TICKET | SslOptions::NO_RENEGOTIATION | SslOptions::IGNORE_UNEXPECTED_EOF,
        );
        if settings.server_order {
            builder.set_options(SslOptions::CIPHER_SERVER_PREFERENCE);
        }
        builder.set_mode(SslMode::RELEASE_BUFFERS);
        ropewalk_tls::allow_data(&mut builder);
        // OpenSSL must request a certificate. `Trust` knows all kinds of proxies and decides
        // whether the certificate is accepted, before anything is sent to the peer.
        builder.set_verify_callback(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT, |_, _| true);
        if !hosts.is_empty() {
            builder.set_servername_callback(move |ssl, _| {
                let name = ssl.servername(NameType::HOST_NAME).unwrap_or_default();
                let fits = |host: &&Self| {
                    is_host(host.credential.certificate(), name, NameCompatibility::StrictRfc2818)
                };
                match hosts.iter().find(fits) {
                    Some(host) => ssl.set_ssl_context(&host.context).map_err(|_| SniError::ALERT_FATAL),
                    None => Ok(()),
                }
            });
        }
        builder.set_certificate(credential.certificate())?;
        builder.set_private_key(credential.key())?;
        for link in credential.chain() {
            builder.add_extra_chain_cert(link.clone())?;
        }
        Ok(Self { context: builder.build(), credential, trust })
    }

    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    pub fn trust(&self) -> &Trust {
        &self.trust
    }
}
