//! The UDT protocol, version 4, for streams of bytes, compatible with libudt 4.11.
//!
//! The crate does no I/O and reads no clock: datagrams and the time come in, datagrams and the time
//! of the next call go out. One driver or test owns each value; nothing here starts threads. A
//! packet that makes no sense is ignored, because libudt and the network produce such packets.

#![forbid(unsafe_code)]

mod acceptor;
mod config;
pub mod congestion;
mod connection;
mod connector;
mod estimate;
mod handshake;
mod intervals;
mod loss_list;
mod packet;
mod pages;
mod queue_delay;
mod receive_buffer;
mod rtt;
mod send_buffer;
mod seq;
mod stats;

pub use acceptor::{Acceptor, Answer};
pub use config::{Config, LARGEST_MSS, LEAST_MSS, Parameters};
pub use connection::{Connection, Error};
pub use connector::{ConnectError, Connector};
pub use handshake::{CONFIRM, Handshake, REFUSED, REQUEST_COOKIE, STREAM, VERSION, address_bytes};
pub use loss_list::LossList;
pub use packet::{Ack, Arrivals, Body, Control, Data, HEADER, OVERHEAD, Packet, Rates, ReceiverState};
pub use seq::Seq;
pub use stats::Stats;

/// A time in microseconds, since the start of a connection or as a duration.
pub type Micros = u64;

/// Datagrams to send: parts of `bytes`, each of `segment` bytes; the last may be shorter.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub bytes: Vec<u8>,
    pub segment: usize,
}

impl Batch {
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks(self.segment.max(1))
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.segment = 0;
    }
}
