//! UCP behind a safe interface.
//!
//! The C library owns each buffer that it reads or writes until it calls back, so that no buffer
//! can be freed or changed too early; if it never calls back, the buffer leaks. A [`Worker`] and
//! its endpoints stay on one thread: UCP runs all callbacks in calls of that thread. The library
//! and its contexts are never unloaded, because UCX has threads of its own. A thread has the
//! [`permission`] while it uses UCX, so that none does while the destructors of UCX run at the end
//! of the process.

mod context;
mod endpoint;
mod exit;
mod library;
mod worker;

pub(crate) use context::Context;
pub(crate) use endpoint::{Closing, Endpoint, Receive, ReceiveSlot};
pub(crate) use exit::permission;
pub(crate) use worker::{NewWorker, Worker};
