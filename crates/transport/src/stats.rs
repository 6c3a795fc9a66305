//! The statistics of a connection, in terms that every driver can fill in as far as it knows them.

use std::time::Duration;

/// The state of a connection and of the path below it at one moment. Counts start when the
/// connection is made. A driver leaves unknown values at `None` or 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// The smoothed round-trip time that the sender measures.
    pub rtt: Option<Duration>,
    pub min_rtt: Option<Duration>,
    /// The round-trip time that the receiver estimates, which takes some data.
    pub receiver_rtt: Option<Duration>,
    /// In bytes.
    pub congestion_window: u64,
    /// Packets that were sent with data, and how many of them were sent again.
    pub sent: u64,
    pub retransmitted: u64,
    /// Packets that were received with data, and how many of them came out of order.
    pub received: u64,
    pub out_of_order: u64,
    /// Bytes that the peer has acknowledged.
    pub delivered: Option<u64>,
    /// Bytes per second, as the sender last measured them.
    pub delivery_rate: Option<u64>,
    /// Bytes that were sent and not acknowledged yet, and bytes that wait to be sent.
    pub in_flight: u64,
    pub not_sent: u64,
    /// Bytes that were written and not acknowledged yet, exactly. `None` if a layer holds back
    /// bytes or changes their number.
    pub unacknowledged: Option<u64>,
    pub limits: Limits,
    /// The windows that the peer and that this side offer, in bytes.
    pub send_window: Option<u32>,
    pub receive_window: Option<u32>,
    /// The sizes of the buffers in bytes. A kernel may count its bookkeeping as well.
    pub send_buffer: Option<usize>,
    pub receive_buffer: Option<usize>,
}

/// How long a sender had data to send, and how long the peer or its own buffer limited it. In the
/// rest of that time the path was the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The time with data to send.
    pub busy: Duration,
    /// The parts of it in which the window of the peer, or the send buffer, was the limit.
    pub receive_window: Duration,
    pub send_buffer: Duration,
}
