//! A netlink client (RFC 3549): lists the TCP connections of a network namespace, and sends the
//! requests that set up interfaces and routes.

#![forbid(unsafe_code)]

mod message;
mod socket;
mod tcp;

pub use message::{Attributes, Request};
pub use socket::{List, Netlink};
pub use tcp::{Connections, Destroyed, Memory, Seen, States};
