use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// How much the server does at a time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// The most sessions; 0 is no limit. Default 10000.
    pub sessions: u32,
    /// The most sessions from one address (for IPv6: from one network, /64); 0 is three quarters of
    /// `sessions`, and no limit for connections from this host. Default 0.
    pub sessions_per_address: u32,
    /// The most sessions of one user, unless the account has its own limit; 0 is no limit. Default
    /// 0.
    pub sessions_per_user: u32,
    /// The most transfers, checksums and removals of trees at the same time, up to three quarters
    /// of them for one address; others wait for a permit. Listings have permits of their own, a
    /// quarter as many. While others wait, a client that takes or sends less than 64 KiB a second
    /// loses its permit and continues without one; if more operations continue without a permit
    /// than there are permits, the slowest are ended. Default 256.
    pub active: u32,
    /// The most passwords that are verified at the same time. Each takes about 19 MiB of memory,
    /// which is kept for the next ones. Also the most handshakes at the same time. Default 2.
    pub password_checks: u32,
    /// The number of waiting steps of log-ins from which addresses that have their share of them
    /// are turned away with 421; 0 is no limit. Default 1000.
    pub waiting_logins: u32,
    /// The longest line of the control connection, in bytes. A client that sends a longer one gets
    /// an error and is disconnected. Default 16384.
    pub line_length: usize,
    /// The most commands of a session that wait to be carried out. Default 1000.
    pub queue: usize,
    /// New transfers wait in the queue while programs can get less memory than this: `MemAvailable`
    /// of the host, or what the limits of the server's control groups leave. One transfer may run
    /// in any case. Default 32 MiB; 0 is no limit.
    #[serde(with = "units::bytes")]
    pub free_memory: u64,
    /// New transfers wait in the queue while buffers take all of `data.buffer_memory`; one may run
    /// in any case. Default `false`: they get small buffers.
    pub wait_for_buffers: bool,
    /// New transfers wait in the queue while threads of the server's control group, or of the host,
    /// have waited for a processor for more than this share of the last ten seconds, in percent
    /// (`some avg10` of `cpu.pressure` or `/proc/pressure/cpu`); one may run in any case. Default
    /// 0, no limit.
    pub cpu_pressure: f64,
    /// Uploads wait in a queue of their own while the file system of their destination has fewer
    /// free bytes than this. Default 0, no limit.
    #[serde(with = "units::bytes")]
    pub free_disk: u64,
    /// An upload that has waited for `free_disk` for this time, in seconds, is refused (452).
    /// Default 60.
    #[serde(with = "units::seconds")]
    pub disk_wait: Duration,
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
            free_memory: 32 << 20,
            wait_for_buffers: false,
            cpu_pressure: 0.0,
            free_disk: 0,
            disk_wait: Duration::from_secs(60),
        }
    }
}

/// How long the server waits for clients.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// A client must have logged in after this time, in seconds; more than 0. Default 120.
    #[serde(with = "units::seconds")]
    pub login: Duration,
    /// A session without a command for this time, in seconds, is closed; more than 0, and ten years
    /// at most, as for all times. Transfers do not count as idle. Default 600.
    #[serde(with = "units::seconds")]
    pub idle: Duration,
    /// A client that does not read its replies for this time, in seconds, is disconnected; more
    /// than 0. Default 60.
    #[serde(with = "units::seconds")]
    pub write: Duration,
    /// When the server ends, transfers may finish for this time, in seconds; then they are broken
    /// off with a restart marker. Default 30.
    #[serde(with = "units::seconds")]
    pub drain: Duration,
    /// Pause in seconds before a failed log-in, or a certificate or ticket that is not trusted, is
    /// answered. It doubles with each failure from the same address, up to 16 times the value.
    /// Default 1.
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
