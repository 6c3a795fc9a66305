use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{RequiredProtection, RunAs};

/// Access without a password.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnonymousAccess {
    /// Names that log in without a password; `"*"` is any name that the password file does not
    /// have. Default `["anonymous", "ftp", ":globus-mapping:"]`. GridFTP clients send the last of
    /// these to leave the choice of the user to the server.
    pub names: Vec<String>,
    /// These sessions may change files. Default `false`.
    pub write: bool,
    /// Directory of the host that anonymous sessions see as `/`. Default: the server's `root`.
    pub root: Option<PathBuf>,
    /// Path in which sessions begin. Default `/`.
    pub home: String,
    /// Path rules. Default, and if they are empty: everything beneath the root.
    pub rules: Option<String>,
    /// The server may send data to, and accept data from, hosts other than the client: third-party
    /// transfers. Default `false`, since otherwise anyone could aim the server at other hosts.
    pub third_party: bool,
    /// The most anonymous sessions at a time; 0 is no limit. Default: none beyond the limit for all
    /// sessions.
    pub sessions: Option<u32>,
    /// The local account as which these sessions work on files, if the server may take on
    /// identities. Default: `identity.unprivileged_user`; without that, `nobody` if the server runs
    /// as root, and otherwise its own user.
    pub user: Option<String>,
    /// `"server"`: the sessions work as the server's own user, even if that is root. Default
    /// `"user"`.
    pub run_as: Option<RunAs>,
    /// The required protection: `"none"`, `"control"` or `"data"` (both connections). Default
    /// `"none"`.
    pub protection: RequiredProtection,
}

impl Default for AnonymousAccess {
    fn default() -> Self {
        Self {
            names: ["anonymous", "ftp", ":globus-mapping:"].map(String::from).into(),
            write: false,
            root: None,
            home: "/".into(),
            rules: None,
            third_party: false,
            sessions: None,
            user: None,
            run_as: None,
            protection: RequiredProtection::None,
        }
    }
}

/// The rights of a logged-in user, whichever way the log-in was made. Settings that are left out
/// come from `defaults`, and then from the defaults given here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    /// Directory of the host that the user sees as `/`; `{user}` stands for the name, `{home}` for
    /// the home directory of the local account that the session works as (over ssh, of the user).
    /// Default: the server's `root`; without that, `/` for users whose sessions work as a local
    /// account.
    pub root: Option<PathBuf>,
    /// Path in which sessions begin, as the user sees it; `{user}` stands for the name. Default:
    /// the home directory of the local account that the session works as (over ssh, of the user) if
    /// it is within the root; otherwise `/`.
    pub home: Option<String>,
    /// Path rules (`RW~,R/data`), of paths as the user sees them; `{user}` stands for the name.
    /// Default: everything beneath the root.
    pub rules: Option<String>,
    /// The user may not change files. Default `false`.
    pub read_only: Option<bool>,
    /// The server may send data to, and accept data from, hosts other than the client: third-party
    /// transfers. Default `true`.
    pub third_party: Option<bool>,
    /// The most sessions of this user at a time; 0 is no limit. Default: none beyond the limit for
    /// all sessions.
    pub sessions: Option<u32>,
    /// The rights with which sessions work on files, if the server may take on identities:
    /// `"user"`, those of the local account with the name of the user, or `"server"`, those of the
    /// server's own user. Default `"user"`.
    pub run_as: Option<RunAs>,
    /// The required protection: `"none"`; `"control"`, for the connection for commands, by TLS,
    /// GSI, Kerberos or SSH; or `"data"`, for the data connections as well (PROT S or P, or QUIC
    /// with a data key; with Kerberos, PROT S counts only with a data key). Default `"none"`.
    pub protection: Option<RequiredProtection>,
}

impl User {
    /// These settings, completed by those of `defaults`.
    pub fn or(&self, defaults: &Self) -> Self {
        Self {
            root: self.root.clone().or_else(|| defaults.root.clone()),
            home: self.home.clone().or_else(|| defaults.home.clone()),
            rules: self.rules.clone().or_else(|| defaults.rules.clone()),
            read_only: self.read_only.or(defaults.read_only),
            third_party: self.third_party.or(defaults.third_party),
            sessions: self.sessions.or(defaults.sessions),
            run_as: self.run_as.or(defaults.run_as),
            protection: self.protection.or(defaults.protection),
        }
    }
}

/// Puts a user's name, and the home directory if it is known, into a setting.
pub(crate) fn expand(template: &str, user: &str, home: Option<&Path>) -> String {
    let named = template.replace("{user}", user);
    match home.and_then(Path::to_str) {
        Some(home) => named.replace("{home}", home),
        None => named,
    }
}
