//! UCP behind a safe interface.
//!
//! The C library owns each buffer that it reads or writes until it calls back, so that no buffer
//! can be freed or changed too early; if it never calls back, the buffer leaks. A [`Worker`] and
//! its endpoints stay on one thread: UCP runs all callbacks in calls of that thread. [`Memory`] and
//! the rings in it ([`Producer`], [`Consumer`]) may be used by any thread. The library and its
//! contexts are never unloaded, because UCX has threads of its own. A thread has the
//! [`permission`] while it calls UCX, so that none does while the destructors of UCX run at the end
//! of the process.

mod context;
mod endpoint;
mod exit;
mod hooks;
mod leftovers;
mod library;
mod memory;
mod ring;
mod text;
mod worker;

pub(crate) use context::Context;
pub(crate) use endpoint::{Closing, Endpoint, Operation, Receive, ReceiveSlot, Space};
pub(crate) use exit::{Running, permission};
pub(crate) use memory::{Memory, PeerMemory};
pub(crate) use ring::{Consumer, HEADER, Producer, Ring, Role, Waiting};
pub(crate) use worker::{NewWorker, Worker};
