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
    /// The server's certificate with its chain, PEM. Default: one that the server makes for itself
    /// at its first start. The server prints its fingerprint, and clients remember it.
    pub certificate: Option<PathBuf>,
    /// Its key, PEM, which no other user may be able to read. Default: in the certificate's file.
    pub key: Option<PathBuf>,
    /// The directory for the certificate that the server makes for itself. Default:
    /// `$STATE_DIRECTORY`, `$XDG_STATE_HOME/ropewalk`, `/var/lib/ropewalk` for root,
    /// `~/.local/state/ropewalk`.
    pub state_directory: Option<PathBuf>,
    /// PEM file with the authorities of clients' certificates. Default: none, clients have
    /// passwords.
    pub client_authorities: Option<PathBuf>,
    /// Lists of revoked client certificates (CRLs): a file, or a directory with files named
    /// `HASH.r0` (`openssl rehash`). They are read again when they change. Certificates of an
    /// authority without a list are accepted; those of an authority whose list has expired are
    /// refused. Default: none.
    pub client_revocations: Option<PathBuf>,
    /// Users of clients' certificates, by one-line subject: `"/O=Example/CN=Ada" = "ada"`. These
    /// users need no password.
    pub users: BTreeMap<String, String>,
    /// The operations that are refused on a clear connection: `none`, log-ins (`control`), or
    /// transfers and listings as well (`data`). This also holds if TLS is switched off, since GSI
    /// and Kerberos protect connections too. Default `none`.
    pub required: RequiredProtection,
    /// Whether data connections have to resume the control connection's TLS session (or present its
    /// client's certificate): `require`; `prefer`, which also accepts other connections from the
    /// client's address; `off`. Default `require`.
    pub session_reuse: SessionReuse,
    /// Oldest version: `1.2` or `1.3`. Default `1.2`.
    pub min_version: TlsVersion,
    /// Further addresses with implicit TLS, where TLS starts at once (port 990 by custom). Default:
    /// none.
    pub implicit: Vec<SocketAddr>,
    /// If TLS is not available, a server without passwords runs without it. This is for servers
    /// whose configuration does not mention TLS.
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
