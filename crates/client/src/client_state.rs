//! The state that the jobs of a client share.

use std::sync::Arc;
use std::time::Duration;

use crate::idle::IdleSessions;
use crate::setup::Shared;
use crate::tune::Paths;
use crate::{ClientLimits, Options};

/// Owned by a client and its jobs. It is not a part of [`Shared`], which sessions refer to: a
/// session must not own the place where it is kept.
pub(crate) struct ClientState {
    /// Threads, memory and the limit on the rate.
    pub shared: Arc<Shared>,
    pub sessions: IdleSessions,
    /// The paths and their tuners.
    pub paths: Arc<Paths>,
}

impl ClientState {
    pub(crate) fn new(limits: &ClientLimits) -> Arc<Self> {
        let shared = Shared::new(limits.buffer_memory, limits.bandwidth.as_ref());
        let sessions = IdleSessions::new(&shared, limits.idle_sessions, limits.idle_time);
        Arc::new(Self { shared, sessions, paths: Arc::default() })
    }

    /// Makes the state of a single job, with the limits of its options. It keeps no idle sessions,
    /// because no job follows.
    pub(crate) fn of(options: &Options) -> Arc<Self> {
        let shared = Shared::of(options);
        let sessions = IdleSessions::new(&shared, 0, Duration::ZERO);
        Arc::new(Self { shared, sessions, paths: Arc::default() })
    }
}
