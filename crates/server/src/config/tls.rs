use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::RequiredProtection;

/// TLS (RFC 4217).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// AUTH TLS is offered. Default `true`.
    pub enabled: bool,
    /// The server's certificate with its chain, PEM. Default: one that the server makes for itself on its first start, and
    /// whose fingerprint it prints; clients remember it.
    pub certificate: Option<PathBuf>,
    /// Its key, PEM, which nobody else may read. Default: in the certificate's file.
    pub key: Option<PathBuf>,
    /// Where the certificate is kept that the server makes for itself. Default: `$STATE_DIRECTORY`,
    /// `$XDG_STATE_HOME/ropewalk`, `/var/lib/ropewalk` for root, `~/.local/state/ropewalk`.
    pub state_directory: Option<PathBuf>,
    /// PEM file with the authorities of clients' certificates. Default: none, clients have passwords.
    pub client_authorities: Option<PathBuf>,
    /// Lists of clients' certificates that were revoked (CRLs): a file, or a directory where they are called `HASH.r0`
    /// (`openssl rehash`). They are read again when they change; an authority without one is not asked, and one whose list
    /// has ended is not believed. Default: none.
    pub client_revocations: Option<PathBuf>,
    /// Users of clients' certificates, by one-line subject: `"/O=Example/CN=Ada" = "ada"`. They need no password.
    pub users: BTreeMap<String, String>,
    /// What is refused in clear: `none`, log-ins (`control`), or transfers and listings too (`data`). It holds where TLS is
    /// switched off, too: GSI and Kerberos protect as well. Default `none`.
    pub required: RequiredProtection,
    /// Whether data connections have to resume the control connection's TLS session (or show its client's certificate):
    /// `require`; `prefer`, where those that do not are taken from the client's address; `off`. Default `require`.
    pub session_reuse: SessionReuse,
    /// Oldest version: `1.2` or `1.3`. Default `1.2`.
    pub min_version: TlsVersion,
    /// Further addresses, where TLS begins at once (implicit TLS, port 990 by custom). Default: none.
    pub implicit: Vec<SocketAddr>,
    /// If it cannot be had, a server without passwords goes on without it. For servers that were not asked for it.
    #[serde(skip)]
    pub optional: bool,
}

/// How data connections are bound to their control connection.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionReuse {
    #[default]
    Require,
    Prefer,
    Off,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub enum TlsVersion {
    #[default]
    #[serde(rename = "1.2")]
    Tls12,
    #[serde(rename = "1.3")]
    Tls13,
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            enabled: true,
            certificate: None,
            key: None,
            state_directory: None,
            client_authorities: None,
            client_revocations: None,
            users: BTreeMap::new(),
            required: RequiredProtection::None,
            session_reuse: SessionReuse::Require,
            min_version: TlsVersion::Tls12,
            implicit: Vec::new(),
            optional: false,
        }
    }
}
