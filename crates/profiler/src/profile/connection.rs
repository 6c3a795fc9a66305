//! TCP connections over time.

use std::time::Duration;

use ropewalk_transport::TcpInfo;
use serde::{Deserialize, Serialize};

use super::untrusted::{Check, ProfileError, ascending};

/// One data connection, as one of its ends saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Connection {
    /// Address and port.
    pub local: String,
    pub remote: String,
    /// Its congestion control; empty where it was not told.
    #[serde(default)]
    pub congestion: String,
    /// In the order of time, ten a second unless there were too many.
    #[serde(default)]
    pub samples: Vec<ConnectionSample>,
}

/// What the kernel said of it at a moment (tcp(7), TCP_INFO). Counters count from the connection's beginning. Where a
/// kernel does not tell something, it is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConnectionSample {
    /// Since the host's time zero, in seconds.
    pub time: f64,
    /// Smoothed round trip, in seconds.
    pub rtt: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rtt: Option<f64>,
    /// Congestion window, in segments.
    pub cwnd: u32,
    pub mss: u32,
    /// Segments sent again.
    pub retransmitted: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments_sent: Option<u64>,
    /// Bytes acknowledged, and received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Bytes per second as the kernel measured last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_rate: Option<f64>,
    /// The sender had less to send than it could have.
    #[serde(default)]
    pub application_limited: bool,
    /// Seconds with something to send; of these, those in which the peer's window and the own send buffer held it up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_limited: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_limited: Option<f64>,
    /// Bytes in the send buffer that are not on their way yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsent: Option<u64>,
    /// What the send buffer holds, sent and not acknowledged data included, in bytes as the kernel counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// Bytes that arrived and nobody read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<u64>,
    /// The peer's window, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_window: Option<u64>,
    /// Segments that came out of order: how a receiver sees losses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// Buffers in bytes as the kernel counts (half of it, roughly, is for data).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u64>,
}

impl ConnectionSample {
    /// From what the kernel says; buffers and queues are not in it.
    pub fn of(time: f64, info: &TcpInfo) -> Self {
        let seconds = |time: Duration| time.as_secs_f64();
        Self {
            time,
            rtt: seconds(info.rtt),
            min_rtt: info.min_rtt.map(seconds),
            cwnd: info.congestion_window,
            mss: info.mss,
            retransmitted: info.retransmitted,
            segments_sent: info.data_segments_sent.map(u64::from),
            acknowledged: info.bytes_acknowledged,
            received: info.bytes_received,
            delivery_rate: info.delivery_rate.map(|rate| rate as f64),
            application_limited: info.application_limited,
            busy: info.busy.map(seconds),
            window_limited: info.receive_window_limited.map(seconds),
            buffer_limited: info.send_buffer_limited.map(seconds),
            unsent: info.not_sent.map(u64::from),
            queued: None,
            unread: None,
            send_window: info.send_window.map(u64::from),
            out_of_order: info.out_of_order.map(u64::from),
            send_buffer: None,
            receive_buffer: None,
        }
    }
}

impl Check for Connection {
    fn check(&self) -> Result<(), ProfileError> {
        ascending("a connection's samples", self.samples.iter().map(|sample| sample.time))
    }
}
