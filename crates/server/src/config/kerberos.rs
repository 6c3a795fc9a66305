use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Log-in with Kerberos tickets (AUTH GSSAPI, RFC 2228). It needs `libgssapi_krb5.so.2` on the
/// host.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kerberos {
    /// The server's keys, which other users must not be able to read. Default: `KRB5_KTNAME`, or
    /// the keytab that krb5.conf names (`/etc/krb5.keytab`).
    pub keytab: Option<PathBuf>,
    /// The server's principal (`host/data.example@EXAMPLE`). Default: any principal in the keytab
    /// that belongs to one of the `services`.
    pub principal: Option<String>,
    /// Services for which clients may have tickets. Default `["host", "ftp"]`.
    pub services: Vec<String>,
    /// Realms whose principals `name@REALM` are the users `name`. Default: none.
    pub realms: Vec<String>,
    /// Users of single principals: `"ada/admin@EXAMPLE" = "ada"`. An entry here takes precedence
    /// over `map` and `realms`.
    pub users: BTreeMap<String, String>,
    /// A file with a principal and its users in each line (`ada@OTHER ada,project`; the first is
    /// the usual one). It is read at each log-in and takes precedence over `realms`: a principal
    /// without users cannot log in. Default: none.
    pub map: Option<PathBuf>,
    /// Refuse log-ins without a ticket (or a certificate, if `gsi` is set up). Default `false`.
    pub required: bool,
    /// A principal may be the user `root`. Default `false`.
    pub allow_root: bool,
}

impl Default for Kerberos {
    fn default() -> Self {
        Self {
            keytab: None,
            principal: None,
            services: vec!["host".into(), "ftp".into()],
            realms: Vec::new(),
            users: BTreeMap::new(),
            map: None,
            required: false,
            allow_root: false,
        }
    }
}
