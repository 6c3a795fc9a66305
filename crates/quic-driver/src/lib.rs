//! QUIC as a transport driver, between two programs of Ropewalk.
//!
//! The protocol is in the crate `quinn-proto`, which does no I/O; this crate adds sockets, threads
//! and timers. A connection of the transport interface is a QUIC connection with one bidirectional
//! stream. Each UDP socket has one thread, which alone uses the QUIC connections of that socket:
//! one for a connector, any number for a listener. An application and the thread exchange bytes
//! through two bounded queues under a lock. The thread ends when the last connection is delivered
//! and the listener is dropped. A [`SharedPort`] serves the listeners of many channels.

#![forbid(unsafe_code)]

mod congestion;
mod driver;
mod entry;
mod failure;
mod link;
mod observer;
mod port;
mod settings;
mod tls;
mod worker;

pub use driver::Quic;
pub use port::SharedPort;
