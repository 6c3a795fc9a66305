//! Settings of a connection, and the values that both ends have agreed on.

use std::time::Duration;

use crate::congestion::Congestion;
use crate::handshake::Handshake;
use crate::{OVERHEAD, Seq};

/// libudt's limit for its own packets: room for a handshake.
pub const LEAST_MSS: u32 = 92;
/// The largest UDP datagram on IPv4.
pub const LARGEST_MSS: u32 = 65_507 + 28;
/// The fewest packets that a buffer or a window has, as with libudt.
const LEAST_SLOTS: u32 = 32;
/// The window of the peer is a promise that costs this side nothing, but the loss list of this side
/// is not larger.
const LARGEST_WINDOW: u32 = 1 << 20;
/// libudt repeats its answers with a window that it does not have, but its true window is at least
/// this large by default (UDT 4.11, core.cpp).
const ASSUMED_WINDOW: u32 = 8192;

/// The settings of one end of a connection.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest IP packet, as libudt counts it: the payload and 44 bytes.
    pub mss: u32,
    /// The memory for data that the application has not read, in bytes.
    pub receive_buffer: usize,
    /// The memory for data that the peer has not acknowledged, in bytes.
    pub send_buffer: usize,
    /// The most packets that the peer may have in flight, at least 32, as with libudt's UDT_FC. The
    /// memory limits them, too.
    pub flight: Option<u32>,
    /// How long a connector waits for an answer.
    pub connect_timeout: Duration,
    /// A peer that is silent for so long is dead. libudt waits 46 seconds.
    pub silence: Duration,
    /// How long a closed connection tries to deliver its data. libudt waits 180 seconds.
    pub linger: Duration,
    /// The rate that ACKs report before one was measured, in packets per second. A libudt sender
    /// that loses a packet before it has a rate continues with 16 packets per second.
    pub initial_rate: i32,
    pub congestion: Congestion,
    /// The most bytes of packets' payload per second that this end sends, repeated ones included,
    /// whatever the congestion control says; at least a packet in a second. It holds for any time
    /// of more than a few milliseconds.
    pub ceiling: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mss: 1500,
            receive_buffer: 32 << 20,
            send_buffer: 32 << 20,
            flight: None,
            connect_timeout: Duration::from_secs(10),
            silence: Duration::from_secs(45),
            linger: Duration::from_secs(180),
            initial_rate: 20_000,
            congestion: Congestion::default(),
            ceiling: None,
        }
    }
}

impl Config {
    /// The MSS, within the limits of the protocol.
    pub(crate) fn mss(&self) -> u32 {
        self.mss.clamp(LEAST_MSS, LARGEST_MSS)
    }

    /// The receive window in packets that the handshake reports.
    pub(crate) fn window(&self) -> u32 {
        let slots = slots(self.receive_buffer, payload(self.mss()));
        self.flight.map_or(slots, |flight| slots.min(flight.max(LEAST_SLOTS)))
    }
}

/// The values that both ends of a connection have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The id of this end, to which the peer sends.
    pub id: u32,
    pub peer_id: u32,
    /// The number of the first packet of both directions.
    pub initial: Seq,
    pub mss: u32,
    /// How many packets the peer takes before it has sent an ACK.
    pub peer_window: u32,
    /// Whether the peer is a program of Ropewalk.
    pub ropewalk: bool,
}

impl Parameters {
    /// Returns `None` if a value of the peer's handshake is not usable.
    pub(crate) fn agree(own_mss: u32, id: u32, peer: &Handshake, ropewalk: bool) -> Option<Self> {
        let mss = own_mss.min(peer.mss);
        let id_is_valid = 0 < peer.id && peer.id.cast_signed() > 0;
        if !id_is_valid || mss < LEAST_MSS || !(2..=i32::MAX as u32).contains(&peer.window) {
            return None;
        }
        let most = if ropewalk { LARGEST_WINDOW } else { ASSUMED_WINDOW };
        let peer_window = peer.window.min(most);
        Some(Self { id, peer_id: peer.id, initial: peer.initial, mss, peer_window, ropewalk })
    }

    /// The most bytes of the stream in a packet.
    pub fn payload(&self) -> usize {
        payload(self.mss)
    }
}

pub(crate) fn payload(mss: u32) -> usize {
    mss as usize - OVERHEAD
}

/// The number of packets that a buffer of `bytes` holds.
pub(crate) fn slots(bytes: usize, payload: usize) -> u32 {
    u32::try_from(bytes / payload).unwrap_or(LARGEST_WINDOW).clamp(LEAST_SLOTS, LARGEST_WINDOW)
}
