//! The state that the sessions of a server share: settings, limits, logs, caches, open parts.
//!
//! Nothing here knows of sessions. All values may be used from every thread.

pub(crate) mod audit;
pub(crate) mod bandwidth;
pub(crate) mod checksum_cache;
pub(crate) mod claims;
pub(crate) mod clock;
pub(crate) mod expiry;
pub(crate) mod limits;
pub(crate) mod load;
pub(crate) mod names;
pub(crate) mod nodes;
pub(crate) mod parts;
pub(crate) mod presence;
pub(crate) mod profiling;
pub(crate) mod reservations;
pub(crate) mod routes;
pub(crate) mod scitags;
pub(crate) mod socket_memory;
pub(crate) mod space;
mod state;
pub(crate) mod stores;
pub(crate) mod throttle;
pub(crate) mod transfer_log;
pub(crate) mod uploads;
pub(crate) mod writers;

pub(crate) use state::{Host, Opened, Phase};
