use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::units;

/// With whose rights the server works on files.
///
/// A server that may take on other identities (one that runs as root, or has CAP_SETUID and CAP_SETGID) works on the
/// files of each session as the local account that has the session's user's name: user, primary and supplementary
/// groups are those that the system has for it at log-in. A server that may not works as its own user.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Identity {
    /// `false`: work as the server's own user for everybody, even where that is root. Default `true`.
    pub mapped: bool,
    /// Accounts with a smaller user number are system accounts. Default 1000.
    pub minimum_uid: u32,
    /// Sessions may work as root. Default `false`: refused.
    pub allow_root: bool,
    /// Sessions may work as system accounts. Default `false`: refused.
    pub allow_system: bool,
    /// Sessions may work as accounts whose shell does not exist or cannot be run (as with GCT's
    /// `-allow-disabled-login`). Default `false`: refused.
    pub allow_disabled: bool,
    /// The local account as which users without one of their own, and anonymous ones, work. Default: none; such users are
    /// refused, anonymous ones work as the server's own user.
    pub unprivileged_user: Option<String>,
    /// The umask of the whole process, for instance 0o027. Default: what the process was started with.
    #[serde(with = "units::optional_mode")]
    pub umask: Option<u32>,
    /// Home directory of the user as whom the process runs, where it serves this user alone (over ssh).
    #[serde(skip)]
    pub own_home: Option<PathBuf>,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            mapped: true,
            minimum_uid: 1000,
            allow_root: false,
            allow_system: false,
            allow_disabled: false,
            unprivileged_user: None,
            umask: None,
            own_home: None,
        }
    }
}

/// Whose identity a session takes.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAs {
    /// That of the local account of the user's name.
    #[default]
    User,
    /// None: it works as the server's own user.
    Server,
}

/// What must be protected, by TLS, GSI, Kerberos or SSH, before an account can be used.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequiredProtection {
    #[default]
    None,
    /// The control connection.
    Control,
    /// Data connections as well (PROT S or P).
    Data,
}
