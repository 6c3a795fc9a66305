use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// A limit on the bytes and files beneath a directory (docs/space.md).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Name in replies, logs and the ledger. It has to be unique.
    pub name: String,
    /// Directory of this host; everything beneath it counts. If its last component is `*`
    /// (`/srv/home/*`), each directory there has an account of its own.
    pub tree: PathBuf,
    /// Users whose files count, as names or patterns (`["atlas*"]`). Default: none, the files of
    /// all users.
    #[serde(default)]
    pub users: Vec<String>,
    /// Groups of the file system whose files count, as names or patterns. Default: none, the files
    /// of all groups.
    #[serde(default)]
    pub groups: Vec<String>,
    /// Each user has an account of its own. Default `false`: all of them have one together.
    #[serde(default)]
    pub per_user: bool,
    /// The most bytes. Default: none, no limit.
    #[serde(default, with = "units::optional_bytes")]
    pub bytes: Option<u64>,
    /// The most files. Default: none, no limit.
    #[serde(default)]
    pub files: Option<u64>,
    /// Bytes that may be exceeded for the time of `grace`. Default: none.
    #[serde(default, with = "units::optional_bytes")]
    pub soft_bytes: Option<u64>,
    /// Files that may be exceeded for the time of `grace`. Default: none.
    #[serde(default)]
    pub soft_files: Option<u64>,
    /// The time in seconds for which soft limits may be exceeded. Default 604800, a week.
    #[serde(default = "week", with = "units::seconds")]
    pub grace: Duration,
}

fn week() -> Duration {
    Duration::from_secs(7 * 86_400)
}

/// The accounts of quotas.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Space {
    /// Directory in which the server keeps its accounts, of this server alone. It has to be set if
    /// there is a `[[quota]]`.
    pub state_directory: Option<PathBuf>,
    /// Pause in seconds between two counts of all files that quotas concern. The first count begins
    /// with the server. Default 86400, a day.
    #[serde(with = "units::seconds")]
    pub count_interval: Duration,
    /// The most reservations that a user has at a time (docs/space.md). Default 16; with 0 the
    /// server reserves nothing.
    pub max_reservations: u32,
    /// The most bytes of a reservation. Default: none, what is free in the quotas.
    #[serde(with = "units::optional_bytes")]
    pub max_reservation: Option<u64>,
    /// The longest time in seconds for which bytes are reserved. Default 86400, a day.
    #[serde(with = "units::seconds")]
    pub max_reservation_time: Duration,
    /// The age in seconds from which the unfinished files of interrupted uploads are removed, the
    /// oldest first, if an upload or a reservation would be refused for lack of space otherwise; 0:
    /// they stay. It counts from the last change. Default 604800, a week.
    #[serde(with = "units::seconds")]
    pub expire_parts_after: Duration,
}

impl Default for Space {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Self {
            state_directory: None,
            count_interval: day,
            max_reservations: 16,
            max_reservation: None,
            max_reservation_time: day,
            expire_parts_after: week(),
        }
    }
}
