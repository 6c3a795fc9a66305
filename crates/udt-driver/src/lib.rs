//! UDT as a transport driver.
//!
//! The protocol is in the crate `ropewalk-udt`; this crate adds sockets, threads and timers. Each
//! UDP socket has one thread, which moves the datagrams of all connections of that socket: one
//! connection for a connector, any number for a listener. The thread ends when the last connection
//! is delivered and the listener is dropped. An application uses a connection under a lock that it
//! shares with the thread; neither makes a system call for the network while it holds the lock.

#![forbid(unsafe_code)]

mod connection;
mod driver;
mod link;
mod worker;

pub use driver::Udt;
