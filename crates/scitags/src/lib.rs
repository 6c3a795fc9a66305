//! SciTags (scitags.org): data connections are marked with the experiment and the activity that
//! they serve, in the IPv6 flow label and in UDP messages about each connection (fireflies).
//!
//! [`SciTag`], labels, messages and the [`Registry`] of names do no network I/O. The [`Reporter`]
//! sends fireflies on a thread of its own, and a [`RegistryCopy`] fetches the registry before
//! anything moves. Marks never delay or fail a transfer.

#![forbid(unsafe_code)]

mod copy;
mod firefly;
mod label;
mod registry;
mod reporter;
mod tag;

pub use copy::{InvalidRegistryUrl, RegistryCopy, RegistryUrl};
pub use firefly::{Firefly, FlowId, FlowState, FlowTransport, Usage};
pub use label::{flow_label, read_flow_label};
pub use registry::{Registry, RegistryError};
pub use reporter::{Collector, InvalidCollector, Reporter};
pub use ropewalk_protocol::scitag::{InvalidSciTag, SciTag};
pub use tag::marking;
