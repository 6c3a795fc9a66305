use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::units;

/// The rights with which the server works on files.
///
/// A server that may take on other identities (one that runs as root, or has CAP_SETUID and
/// CAP_SETGID) works on the files of each session as the local account with the name of the
/// session's user. The user, the primary group and the supplementary groups are those that the
/// system has for the account at log-in. A server that may not take on identities works as its own
/// user.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Identity {
    /// `false`: work as the server's own user for all sessions, even if that is root. Default
    /// `true`.
    pub mapped: bool,
    /// Accounts with a smaller user number are system accounts. Default 1000.
    pub minimum_uid: u32,
    /// Sessions may work as root. Default `false`: refused.
    pub allow_root: bool,
    /// Sessions may work as system accounts. Default `false`: refused.
    pub allow_system: bool,
    /// Sessions may work as accounts whose shell does not exist or cannot be executed (as with
    /// GCT's `-allow-disabled-login`). Default `false`: refused.
    pub allow_disabled: bool,
    /// The local account as which sessions work if their user has no local account or is anonymous.
    /// Default: none; users without an account are refused, anonymous sessions work as the server's
    /// own user.
    pub unprivileged_user: Option<String>,
    /// The umask of the whole process, for instance 0o027. Default: the umask with which the
    /// process was started.
    #[serde(with = "units::optional_mode")]
    pub umask: Option<u32>,
    /// Home directory of the user as whom the process runs, if it serves this user alone (over
    /// ssh).
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

/// The identity that a session takes on.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunAs {
    /// That of the local account with the name of the user.
    #[default]
    User,
    /// None: the session works as the server's own user.
    Server,
}

/// The protection, by TLS, GSI, Kerberos or SSH, that is required before an account can be used.
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
