use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// How much the server does at a time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most sessions; 0 is no limit. Default 10000.
    pub sessions: u32,
    /// Most sessions from one address (of IPv6: from one network, /64); 0 is three quarters of `sessions`, and no limit for this machine's own. Default 0.
    pub sessions_per_address: u32,
    /// Most sessions of one user, unless the account says otherwise; 0 is no limit. Default 0.
    pub sessions_per_user: u32,
    /// Most transfers, checksums and removals of trees at the same time, three quarters of them for one address; others wait
    /// for their turn. A quarter as many listings have turns of their own. While others wait, a client that takes or sends less
    /// than 64 KiB a second loses its turn and goes on beside; beyond as many as there are turns the slowest are ended. Default
    /// 256.
    pub active: u32,
    /// Most passwords that are verified at the same time, about 19 MiB of memory each, which is kept for the next ones; also most
    /// handshakes. Default 2.
    pub password_checks: u32,
    /// Steps of log-ins that wait for that. When there are so many, addresses that have their share of them are told to
    /// try again later (421); 0 is no limit. Default 1000.
    pub waiting_logins: u32,
    /// Longest line of the control connection, in bytes; a client that sends a longer one is told so and dropped.
    /// Default 16384.
    pub line_length: usize,
    /// Most commands of a session that wait for their turn. Default 1000.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 10_000,
            sessions_per_address: 0,
            sessions_per_user: 0,
            active: 256,
            password_checks: 2,
            waiting_logins: 1000,
            line_length: 16 << 10,
            queue: 1000,
        }
    }
}

/// How long the server waits for clients.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// A client must have logged in after so many seconds, more than 0. Default 120.
    #[serde(with = "units::seconds")]
    pub login: Duration,
    /// A session without a command for so many seconds (more than 0; ten years at most, as for all times) is closed; transfers do not count as idle. Default 600.
    #[serde(with = "units::seconds")]
    pub idle: Duration,
    /// A client that does not read its replies for so many seconds, more than 0, is dropped. Default 60.
    #[serde(with = "units::seconds")]
    pub write: Duration,
    /// When the server is told to end, transfers get so many seconds to finish; then they are broken off with a
    /// restart marker. Default 30.
    #[serde(with = "units::seconds")]
    pub drain: Duration,
    /// Pause before a log-in that failed, or a certificate or ticket that is not believed, is answered, in seconds;
    /// doubles with each failure from the same address up to 16 times as long. Default 1.
    #[serde(with = "units::seconds")]
    pub login_failure: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            login: Duration::from_secs(120),
            idle: Duration::from_secs(600),
            write: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            login_failure: Duration::from_secs(1),
        }
    }
}
