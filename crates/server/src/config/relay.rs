use std::path::PathBuf;

use ropewalk_remote_store::Targets;
use serde::{Deserialize, Serialize};

use super::units;

/// Relays: paths such as `/ftp://HOST:PORT/data/f` name files at other servers, to which this
/// server connects on behalf of its sessions (docs/relays.md). The rules of accounts hold for these
/// paths as for all others. At a gsiftp server the session has the credential that the client
/// delegated; at others it is anonymous, unless the client gave a log-in (SITE HOPLOGIN).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Relay {
    /// The servers that may be connected to: names of hosts, addresses, networks
    /// (`["data.example.org", "192.0.2.0/24"]`). Addresses are checked after names were resolved.
    /// Default: none, the server is no relay.
    pub to: Vec<String>,
    /// The names of the accounts that may use it; `anonymous` stands for those without a password.
    /// Default: all accounts.
    pub users: Vec<String>,
    /// The most relays, this one included, in one path. Default 8.
    pub hops: u32,
    /// Memory for the data that has come from one side and has not left on the other, of all files
    /// together. Each file may use 1 MiB even if that is more. Default 64 MiB.
    #[serde(with = "units::bytes")]
    pub memory: u64,
    /// Whether data between this relay and gsiftp servers is encrypted. Default `false`: the data
    /// connections are authenticated only.
    pub private: bool,
    /// The certificates of authorities that vouch for ftpes and ftps servers: a file (PEM), or a
    /// directory of hashed names. Default: those that the system trusts.
    pub authorities: Option<PathBuf>,
}

impl Relay {
    /// The rules of `to`.
    ///
    /// # Errors
    /// The text about a rule that cannot be parsed.
    pub(crate) fn targets(&self) -> Result<Targets, String> {
        let mut targets = Targets::default();
        for rule in &self.to {
            targets.extend(rule.parse().map_err(|error| format!("{error}"))?);
        }
        Ok(targets)
    }

    /// `user` is the name that is used in limits.
    pub(crate) fn permits(&self, user: &str) -> bool {
        self.users.is_empty() || self.users.iter().any(|name| name == user)
    }
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            to: Vec::new(),
            users: Vec::new(),
            hops: 8,
            memory: 64 << 20,
            private: false,
            authorities: None,
        }
    }
}
