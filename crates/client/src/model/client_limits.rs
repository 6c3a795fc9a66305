//! The limits of a client.

use std::time::Duration;

use ropewalk_limits::Timetable;

use crate::model::options::Options;

/// Limits that all jobs of a client share.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientLimits {
    /// Memory for buffers of data, in bytes.
    pub buffer_memory: usize,
    /// The rate of all jobs together; `None`: no limit until [`crate::Client::set_bandwidth`] sets
    /// one.
    pub bandwidth: Option<Timetable>,
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
