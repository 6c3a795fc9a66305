use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// Reservations of permits for transfers and of a rate (docs/limits.md).
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reservations {
    /// File in which the server keeps its reservations, of this server alone. It has to be set if
    /// `slots` or `bandwidth` is above 0.
    pub state_file: Option<PathBuf>,
    /// The share of the permits of `limits.active` that users can reserve, in percent, up to 90.
    /// Default 0: none.
    pub slots: u32,
    /// The share of the server's limit on the rate that users can reserve, in percent, up to 90: of
    /// the lowest rate of each `[[bandwidth]]` for all users and addresses. Default 0: none.
    pub bandwidth: u32,
    /// The most reservations that a user has at a time. Default 16.
    pub max_reservations: u32,
    /// The longest window in seconds. Default 86400, a day.
    #[serde(with = "units::seconds")]
    pub max_time: Duration,
    /// The longest time in seconds from a reservation to the begin of its window. Default 2592000,
    /// 30 days.
    #[serde(with = "units::seconds")]
    pub max_ahead: Duration,
}

impl Default for Reservations {
    fn default() -> Self {
        let day = Duration::from_secs(86_400);
        Self {
            state_file: None,
            slots: 0,
            bandwidth: 0,
            max_reservations: 16,
            max_time: day,
            max_ahead: day * 30,
        }
    }
}

impl Reservations {
    /// Whether anything can be reserved.
    pub(crate) fn are_enabled(&self) -> bool {
        self.slots > 0 || self.bandwidth > 0
    }
}
