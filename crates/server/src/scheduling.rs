//! The scheduling of sessions: which one runs when, and on which thread.
//!
//! A session is parked in the reactor while its client is silent, and runs on a pool of threads
//! when input arrives. Operations that can take long need a permit, for which addresses take turns.

pub(crate) mod admission;
pub(crate) mod connection;
mod data_connections;
pub(crate) mod fair_queue;
pub(crate) mod listeners;
pub(crate) mod logins;
pub(crate) mod parking;
pub(crate) mod permit;
pub(crate) mod reactor;
pub(crate) mod runner;
pub(crate) mod scheduler;
pub(crate) mod semaphore;
pub(crate) mod waiting;
