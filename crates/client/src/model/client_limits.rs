//! The limits of a client.

use std::time::Duration;

use crate::model::options::Options;

/// Limits that all jobs of a client share.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientLimits {
    /// Memory for buffers of data, in bytes.
    pub buffer_memory: usize,
    /// The rate of all jobs together, in bytes per second; `None`: no limit.
    pub bandwidth: Option<u64>,
    /// Sessions with a server that stay logged in for the next job, at most; 0: none do.
    pub idle_sessions: usize,
    /// How long they stay.
    pub idle_time: Duration,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            buffer_memory: Options::default().tuning.buffer_memory,
            bandwidth: None,
            idle_sessions: 8,
            idle_time: Duration::from_secs(60),
        }
    }
}
