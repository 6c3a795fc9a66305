use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Log-in with certificates (GSI), as GCT's programs do it. The environment's variables (`X509_USER_CERT`,
/// `X509_CERT_DIR`, `GRIDMAP` and so on) hold where a setting is left out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gsi {
    /// The host's certificate, PEM. Default: `/etc/grid-security/hostcert.pem`.
    pub certificate: Option<PathBuf>,
    /// Its key, PEM, which nobody else may read. Default: `/etc/grid-security/hostkey.pem`.
    pub key: Option<PathBuf>,
    /// Directory of trusted authorities with their signing policies and revocation lists. Default:
    /// `/etc/grid-security/certificates`.
    pub authorities: Option<PathBuf>,
    /// The file that maps certificates' subjects to users; it is read at each log-in. Default:
    /// `/etc/grid-security/grid-mapfile`.
    pub gridmap: Option<PathBuf>,
    /// Leases of pool accounts (users that begin with a dot in the gridmap). Default: `GRIDMAPDIR`, or none.
    pub pool_directory: Option<PathBuf>,
    /// Nobody logs in without a certificate. Default `false`.
    pub required: bool,
    /// The gridmap may name the user `root`. Default `false`.
    pub allow_root: bool,
}
