//! The UDT protocol, version 4, for streams of bytes, compatible with libudt 4.11.
//!
//! The crate does no I/O and reads no clock: datagrams and the time come in, datagrams and the time
//! of the next call go out. One driver or test owns each value; nothing here starts threads. A
//! packet that makes no sense is ignored, because libudt and the network produce such packets.

#![forbid(unsafe_code)]

mod acceptor;
mod config;
mod connector;
mod handshake;
mod loss_list;
mod packet;
mod seq;

pub use acceptor::{Acceptor, Answer};
pub use config::{Config, Parameters};
pub use connector::{ConnectError, Connector};
pub use handshake::{CONFIRM, Handshake, REFUSED, REQUEST_COOKIE, STREAM, VERSION, address_bytes};
pub use loss_list::LossList;
pub use packet::{Ack, Body, Control, Data, HEADER, OVERHEAD, Packet, Rates, ReceiverState};
pub use seq::Seq;
