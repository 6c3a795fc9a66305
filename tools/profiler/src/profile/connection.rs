//! Samples of TCP connections over time.

use std::time::Duration;

use ropewalk_transport::TcpInfo;
use serde::{Deserialize, Serialize};

use super::untrusted::{Check, ProfileError, ascending};

/// One data connection, as seen by one of its ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Connection {
    /// Address and port.
    pub local: String,
    pub remote: String,
    /// The congestion control of the connection; empty if unknown.
    #[serde(default)]
    pub congestion: String,
    /// In the order of time, ten per second unless there were too many.
    #[serde(default)]
    pub samples: Vec<ConnectionSample>,
}

/// The state of a connection at a moment, from the kernel (tcp(7), TCP_INFO). Counters start with
/// the connection. Values that a kernel does not report are absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConnectionSample {
    /// Seconds since the host's time zero.
    pub time: f64,
    /// Smoothed round trip, in seconds.
    pub rtt: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_rtt: Option<f64>,
    /// Congestion window, in segments.
    pub cwnd: u32,
    pub mss: u32,
    /// Segments retransmitted.
    pub retransmitted: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segments_sent: Option<u64>,
    /// Bytes acknowledged, and bytes received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
    /// Bytes per second, as the kernel measured last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_rate: Option<f64>,
    /// The sender had less data to send than the connection could have carried.
    #[serde(default)]
    pub application_limited: bool,
    /// Seconds with data to send; of these, the seconds in which the peer's window and the own send
    /// buffer limited sending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_limited: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_limited: Option<f64>,
    /// Bytes in the send buffer that were not sent yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsent: Option<u64>,
    /// Contents of the send buffer, including data that is sent but not acknowledged, in bytes as
    /// the kernel counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued: Option<u64>,
    /// Bytes that arrived but were not read yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<u64>,
    /// The peer's window, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_window: Option<u64>,
    /// Segments that arrived out of order: a receiver sees losses in this way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_order: Option<u64>,
    /// Sizes of the buffers, in bytes as the kernel counts (roughly half of it is for data).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub send_buffer: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer: Option<u64>,
}

impl ConnectionSample {
    /// Converts TCP_INFO of the kernel, which has no sizes of buffers and queues.
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
