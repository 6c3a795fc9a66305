use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Log-in with Kerberos tickets (AUTH GSSAPI, RFC 2228). Needs `libgssapi_krb5.so.2` on the host.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kerberos {
    /// The server's keys, which others may not read. Default: `KRB5_KTNAME`, or what krb5.conf says (`/etc/krb5.keytab`).
    pub keytab: Option<PathBuf>,
    /// The server's principal (`host/data.example@EXAMPLE`). Default: any in the keytab of one of the `services`.
    pub principal: Option<String>,
    /// Services for which clients may have tickets. Default `["host", "ftp"]`.
    pub services: Vec<String>,
    /// Realms whose principals `name@REALM` are the users `name`. Default: none.
    pub realms: Vec<String>,
    /// Users of single principals: `"ada/admin@EXAMPLE" = "ada"`. What is said here holds, whatever `map` and `realms` say.
    pub users: BTreeMap<String, String>,
    /// A file with a principal and its users (`ada@OTHER ada,project`, the first is the usual one) in each line; it is
    /// read at each log-in, and what it says holds before `realms`: a principal without users is nobody. Default: none.
    pub map: Option<PathBuf>,
    /// Nobody logs in without a ticket (or a certificate, where `gsi` is set up). Default `false`.
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
