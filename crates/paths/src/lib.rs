//! Network paths on request: a path is reserved before a transfer and released after it.
//!
//! [`Life`] decides each step of a reservation, without I/O and without a clock. [`Runner`] carries
//! the steps out: it writes the journal before each request, and passes requests to a [`Provider`].
//! A process that crashes leaves its entries in the [`Journal`]; the next one terminates them.
//! [`Hook`] is the provider that runs a program or posts to an HTTP endpoint; it also gets the nine
//! events of GCT's network manager for each data connection. [`Tc`] is the provider that guarantees
//! a rate on an interface of this host.

#![forbid(unsafe_code)]

mod entry;
mod hook;
mod journal;
mod life;
mod manager;
mod provider;
mod runner;
mod tc;

pub use entry::{Binding, Entry, Held, Id, Owner, Part, Phase, Request};
pub use hook::{Hook, HookError, Target};
pub use journal::{Journal, JournalError, Locked};
pub use life::{Action, Goal, Life, Notice};
pub use manager::{HookManager, Policy};
pub use provider::{Answer, Limits, Order, Outcome, Provider, State, Step};
pub use runner::{PathError, Runner, now};
pub use tc::{Tc, TcError};
