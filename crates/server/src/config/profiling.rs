use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// `SITE PROFILE`: measures this host while a user's transfers run, for `ropewalk profile`. What is told is about the whole
/// host: processors, disks, network, kernel settings, names of programs; connections only of the user's own transfers. These
/// users also have `/dev/ropewalk-zero-SIZE`, a file of so many bytes of zeros, and `/dev/ropewalk-null`, which keeps
/// nothing, for transfers without disks; and they may have the disks measured where they read and write, and the processors
/// (`ropewalk profile --baseline`), a few seconds each.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profiling {
    /// Default `false`: the server does not know the command.
    pub enabled: bool,
    /// Who may use it, by the names of accounts; `anonymous` for those without a password. Default: nobody.
    pub users: Vec<String>,
    /// A profile ends by itself after so many seconds. Default 600.
    #[serde(with = "units::seconds")]
    pub longest: Duration,
    /// Profiles that are taken, or not fetched yet, at the same time; and as many iperf3. Default 2.
    pub at_once: u32,
    /// Use `perf`, where it is installed and the server may, for the shares of programs and functions. Default `true`.
    pub perf: bool,
    /// Users may have `iperf3 -s` run, where it is installed, for one test of the path: for a minute, on a port of the data
    /// channels' (or any, where those are not set), whoever gets there first. Default `false`.
    pub iperf3: bool,
}

impl Profiling {
    /// `user` as limits call it.
    pub(crate) fn permits(&self, user: &str) -> bool {
        self.enabled && self.users.iter().any(|name| name == user)
    }
}

impl Default for Profiling {
    fn default() -> Self {
        Self {
            enabled: false,
            users: Vec::new(),
            longest: Duration::from_secs(600),
            at_once: 2,
            perf: true,
            iperf3: false,
        }
    }
}
