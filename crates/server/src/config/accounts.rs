use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Access without a password.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnonymousAccess {
    /// Names that log in without a password; `"*"` is any name that the password file does not
    /// have. Default `["anonymous", "ftp"]`.
    pub names: Vec<String>,
    /// May change files. Default `false`.
    pub write: bool,
    /// Directory of the host that anonymous sessions see as `/`. Default: the server's `root`.
    pub root: Option<PathBuf>,
    /// Path in which sessions begin. Default `/`.
    pub home: String,
    /// Path rules. Default: everything beneath the root.
    pub rules: Option<String>,
    /// May have data sent to, or accepted from, hosts other than the client's own: third-party transfers. Default
    /// `false`, since anybody could then aim the server at others.
    pub third_party: bool,
    /// Most anonymous sessions at a time. Default: none beyond those of all sessions.
    pub sessions: Option<u32>,
}

impl Default for AnonymousAccess {
    fn default() -> Self {
        Self {
            names: vec!["anonymous".into(), "ftp".into()],
            write: false,
            root: None,
            home: "/".into(),
            rules: None,
            third_party: false,
            sessions: None,
        }
    }
}

/// What a user of the password file may do. What is left out comes from `defaults`, then from what is said here.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct User {
    /// Directory of the host that the user sees as `/`; `{user}` stands for the name. Default: the server's `root`.
    pub root: Option<PathBuf>,
    /// Path in which sessions begin, as the user sees it; `{user}` stands for the name. Default `/`.
    pub home: Option<String>,
    /// Path rules (`RW~,R/data`). Default: everything beneath the root.
    pub rules: Option<String>,
    /// May not change files. Default `false`.
    pub read_only: Option<bool>,
    /// May have data sent to, or accepted from, hosts other than the client's own: third-party transfers. Default
    /// `true`.
    pub third_party: Option<bool>,
    /// Most sessions of this user at a time. Default: none beyond those of all sessions.
    pub sessions: Option<u32>,
}

impl User {
    /// These settings, and those of `defaults` where there are none.
    pub fn or(&self, defaults: &Self) -> Self {
        Self {
            root: self.root.clone().or_else(|| defaults.root.clone()),
            home: self.home.clone().or_else(|| defaults.home.clone()),
            rules: self.rules.clone().or_else(|| defaults.rules.clone()),
            read_only: self.read_only.or(defaults.read_only),
            third_party: self.third_party.or(defaults.third_party),
            sessions: self.sessions.or(defaults.sessions),
        }
    }
}
