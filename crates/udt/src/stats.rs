//! The statistics of a connection.

use std::time::Duration;

/// The state of a connection at one moment. Counts are those since its start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub rtt: Duration,
    pub min_rtt: Option<Duration>,
    /// The congestion control, its window in packets and its interval in microseconds.
    pub controller: &'static str,
    pub congestion_window: f64,
    pub pacing_interval: f64,
    /// The most bytes of the stream in a packet.
    pub payload: usize,
    /// Data packets that were sent, and how many of them not for the first time.
    pub sent: u64,
    pub retransmitted: u64,
    pub acknowledged_bytes: u64,
    pub unsent_bytes: u64,
    pub in_flight_bytes: u64,
    /// Bytes per second, from the transmission to the ACK of the latest packets.
    pub delivery_rate: f64,
    /// The room that the peer has reported, and the room here.
    pub send_window_bytes: u64,
    pub receive_window_bytes: u64,
    pub send_buffer: usize,
    pub receive_buffer: usize,
    /// Data packets that arrived, those after a later one, and those that were there already.
    pub received: u64,
    pub out_of_order: u64,
    pub duplicates: u64,
    /// Estimates of the receiver in packets per second; 0 while they are unknown.
    pub arrival_rate: f64,
    pub capacity: f64,
    /// Packets that made no sense.
    pub invalid: u64,
}
