//! The state of one session: its control connection, its client, its data channel.
//!
//! One thread at a time owns a session. It passes from the reactor to a thread of the pool and
//! back.

pub(crate) mod context;
pub(crate) mod control;
pub(crate) mod data_channel;
pub(crate) mod data_plane;
pub(crate) mod dialogue;
mod follow;
pub(crate) mod job;
pub(crate) mod login_audit;
pub(crate) mod node_channel;
mod node_claims;
pub(crate) mod striped_channel;
