//! Questions to the kernel by netlink (RFC 3549): the TCP connections of a network namespace, and what whoever builds
//! interfaces and routes needs.

#![forbid(unsafe_code)]

mod message;
mod socket;
mod tcp;

pub use message::{Attributes, Request};
pub use socket::{List, Netlink};
pub use tcp::{Connections, Destroyed, Memory, Seen, States};
