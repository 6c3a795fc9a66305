//! UCX as a transport driver: RDMA, or whatever else `UCX_TLS` names.
//!
//! The library `libucp.so.0` is loaded when the driver is first used, so that a program with this
//! crate builds and runs without it. Each listener and each outgoing connection has one UCP worker
//! with one thread, which alone uses the worker and its endpoints, and sleeps until the worker or
//! the application has something to do. A UCP stream has no back-pressure, so frames with credit
//! lie above it ([`frame`]): a peer sends no more than its reader has room for. The driver neither
//! encrypts nor authenticates. Only the module [`sys`] has unsafe code.

mod driver;
mod entry;
mod frame;
mod inspection;
mod link;
#[allow(unsafe_code)]
mod sys;
mod worker;

pub use driver::Ucx;
pub use inspection::{Inspection, Resource};
