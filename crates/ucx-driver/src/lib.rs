//! UCX as a transport driver: RDMA, or whatever else `UCX_TLS` names.
//!
//! The library `libucp.so.0` is loaded when the driver is first used, so that a program with this
//! crate builds and runs without it. Each listener and each outgoing connection has one UCP worker
//! with one thread, which alone uses the worker and its endpoints, and sleeps until the worker or
//! the application has something to do. Each end has a ring of bytes for what its peer sends. If
//! UCX uses shared memory between the two, the application of the peer writes straight into that
//! ring, and the threads of the workers have nothing to do; otherwise they move the data through a
//! UCP stream from a ring to the other ([`streaming`]). The stream also carries what controls the
//! connection ([`frame`]). The size of the ring bounds what waits to be read. The driver neither
//! encrypts nor authenticates. Only the module [`sys`] has unsafe code.

mod connection;
mod driver;
mod entry;
mod frame;
mod inspection;
mod link;
mod streaming;
#[allow(unsafe_code)]
mod sys;
mod worker;

pub use driver::Ucx;
pub use inspection::{Inspection, Resource};
