use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Log-in with certificates (GSI), compatible with GCT's programs. Environment variables
/// (`X509_USER_CERT`, `X509_CERT_DIR`, `GRIDMAP` and so on) apply if a setting is left out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gsi {
    /// The host's certificate, PEM. Default: `/etc/grid-security/hostcert.pem`.
    pub certificate: Option<PathBuf>,
    /// Its key, PEM, which no other user may be able to read. Default:
    /// `/etc/grid-security/hostkey.pem`.
    pub key: Option<PathBuf>,
    /// Directory of trusted authorities with their signing policies and revocation lists. Default:
    /// `/etc/grid-security/certificates`.
    pub authorities: Option<PathBuf>,
    /// The file that maps subjects of certificates to users; it is read at each log-in. Default:
    /// `/etc/grid-security/grid-mapfile`.
    pub gridmap: Option<PathBuf>,
    /// Directory with the leases of pool accounts (users that begin with a dot in the gridmap).
    /// Default: `GRIDMAPDIR`, or none.
    pub pool_directory: Option<PathBuf>,
    /// Refuse log-ins without a certificate. Default `false`.
    pub required: bool,
    /// The gridmap may name the user `root`. Default `false`.
    pub allow_root: bool,
    /// The keys of proxies that clients delegate: `p256` or `rsa`. Default: `rsa` at a relay,
    /// because GCT's servers take no other proxy from it, and `p256` at other servers.
    pub delegated_keys: Option<DelegatedKeys>,
}

/// The type of key that a delegated proxy gets.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DelegatedKeys {
    /// ECDSA with P-256, generated during the log-in.
    P256,
    /// RSA, as long as the client's key: for clients that sign no other type. It takes about a
    /// hundred times the CPU time of a log-in.
    Rsa,
}
