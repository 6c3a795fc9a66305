//! UDP sockets for transport drivers that bring a protocol of their own over UDP.
//!
//! A driver has one thread for each socket. The thread sends and receives many datagrams with one
//! system call, waits for the socket and for a [`Waker`], and hands accepted connections to the
//! application through a [`Queue`]. A [`QueuedConnection`] and the thread exchange bytes by a
//! [`Link`]. The protocol and its queues are the driver's.

#![forbid(unsafe_code)]

mod connection;
mod link;
mod listener;
mod socket;
mod waker;

pub use connection::QueuedConnection;
pub use link::{Failure, Link, Queues, State, Wish};
pub use listener::{Queue, QueueListener};
pub use quinn_udp::EcnCodepoint;
pub use socket::{Datagrams, Fragments, Inbox, Route, UdpSocket, first_free, largest_payload};
pub use waker::Waker;
