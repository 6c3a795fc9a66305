use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// `SITE PROFILE`: measures this host while transfers of a user run, for `ropewalk profile`. A
/// profile is about the whole host: processors, disks, network, kernel settings, names of programs;
/// but it contains connections of the user's own transfers only. These users can also use
/// `/dev/ropewalk-zero-SIZE`, a file of SIZE zero bytes, and `/dev/ropewalk-null`, which discards
/// data, for transfers without disks. They can also measure the disks that they read and write, and
/// the processors (`ropewalk profile --baseline`), for a few seconds each.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profiling {
    /// Default `false`: the server does not know the command.
    pub enabled: bool,
    /// The names of the accounts that may use it; `anonymous` stands for those without a password.
    /// Default: none.
    pub users: Vec<String>,
    /// A profile ends by itself after this time, in seconds. Default 600.
    #[serde(with = "units::seconds")]
    pub longest: Duration,
    /// The most profiles that are being taken, or have not been fetched yet, at the same time; also
    /// the most iperf3 servers. Default 2.
    pub at_once: u32,
    /// Use `perf`, if it is installed and the server may use it, for the shares of programs and
    /// functions. Default `true`.
    pub perf: bool,
    /// Users may start `iperf3 -s`, if it is installed, for one test of the path. It runs for a
    /// minute on a port of the data channels (or on any port, if those are not set), and serves the
    /// first client that connects. Default `false`.
    pub iperf3: bool,
}

impl Profiling {
    /// `user` is the name that is used in limits.
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
