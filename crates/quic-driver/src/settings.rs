//! The settings of connections, in the terms of quinn.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quinn_proto::{
    AckFrequencyConfig, ClientConfig, ConnectionId, EndpointConfig, IdleTimeout, MtuDiscoveryConfig,
    ServerConfig, TransportConfig, VarInt,
};
use ropewalk_transport::{ChannelToken, Options};
use ropewalk_udp::largest_payload;

use crate::congestion::Congestion;
use crate::observer::{Counters, Observed};
use crate::tls::Tls;

/// The bytes in flight and the bytes that were received ahead of the application, if no size is
/// chosen: 10 Gbit/s over 25 ms. Memory is used for bytes that are there.
const WINDOW: usize = 32 << 20;
/// With less, connections stand still.
const LEAST_WINDOW: usize = 256 << 10;
/// UDP payload of an Ethernet frame of 9000 bytes over IPv6. The driver probes how much of it the
/// path carries, but no more than its own interface does.
const LARGEST_PAYLOAD: u16 = 9000 - 48;
/// The UDP payload that each path must carry (RFC 9000, section 14).
const INITIAL_MTU: u16 = 1200;
/// How many packets one ACK covers, if none is missing.
const PACKETS_FOR_ACK: u32 = 10;

/// The settings of the connections that a driver makes or accepts.
#[derive(Clone)]
pub(crate) struct Settings {
    send_window: usize,
    receive_window: usize,
    congestion: Congestion,
    /// A peer that is silent for so long is dead.
    idle: Duration,
    /// The channel at a shared port to connect to.
    token: Option<ChannelToken>,
    tls: Tls,
}

impl Settings {
    pub(crate) fn new(options: &Options, idle: Duration, tls: Tls) -> Self {
        let tuning = &options.tuning;
        // A name of another transport's congestion control, such as one of the kernel's for TCP,
        // is not an error.
        let congestion = tuning.congestion.as_deref().and_then(Congestion::from_name);
        Self {
            send_window: tuning.send_buffer.unwrap_or(WINDOW).max(LEAST_WINDOW),
            receive_window: tuning.receive_buffer.unwrap_or(WINDOW).max(LEAST_WINDOW),
            congestion: congestion.unwrap_or(Congestion::Bbr),
            idle,
            token: options.token,
            tls,
        }
    }

    /// The sizes for sending and for receiving, in bytes.
    pub(crate) fn windows(&self) -> (usize, usize) {
        (self.send_window, self.receive_window)
    }

    pub(crate) fn tls(&self) -> &Tls {
        &self.tls
    }

    pub(crate) fn client(&self, counters: &Arc<Counters>, peer: SocketAddr) -> ClientConfig {
        let mut config = ClientConfig::new(Arc::clone(&self.tls.client) as _);
        if let Some(token) = self.token {
            config.initial_dst_cid_provider(Arc::new(move || first_id(token)));
        }
        config.transport_config(Arc::new(self.transport(counters, peer)));
        config
    }

    pub(crate) fn server(&self, counters: &Arc<Counters>, peer: SocketAddr) -> ServerConfig {
        let mut config = ServerConfig::with_crypto(Arc::clone(&self.tls.server) as _);
        config.transport_config(Arc::new(self.transport(counters, peer))).migration(false);
        config
    }

    fn transport(&self, counters: &Arc<Counters>, peer: SocketAddr) -> TransportConfig {
        let window = |bytes: usize| VarInt::from_u64(bytes as u64).unwrap_or(VarInt::MAX);
        let mut mtu = MtuDiscoveryConfig::default();
        let payload = largest_payload(canonical(peer)).unwrap_or(LARGEST_PAYLOAD);
        mtu.upper_bound(payload.clamp(INITIAL_MTU, LARGEST_PAYLOAD));
        let mut acks = AckFrequencyConfig::default();
        acks.ack_eliciting_threshold(PACKETS_FOR_ACK.into());
        let observed = Observed { factory: self.congestion.factory(), counters: Arc::clone(counters) };
        let mut transport = TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(1_u32.into())
            .max_concurrent_uni_streams(0_u32.into())
            .datagram_receive_buffer_size(None)
            .stream_receive_window(window(self.receive_window))
            .receive_window(window(self.receive_window))
            .send_window(self.send_window as u64)
            .max_idle_timeout(IdleTimeout::try_from(self.idle).ok())
            .keep_alive_interval(Some(self.idle / 3))
            .mtu_discovery_config(Some(mtu))
            .ack_frequency_config(Some(acks))
            .congestion_controller_factory(Arc::new(observed));
        transport
    }
}

/// The settings of a socket.
pub(crate) fn endpoint() -> Arc<EndpointConfig> {
    let mut config = EndpointConfig::default();
    // The bound is within the limits of the setting.
    let _ = config.max_udp_payload_size(LARGEST_PAYLOAD);
    Arc::new(config)
}

/// The settings with which a socket accepts connections, before those of their channel are known.
pub(crate) fn endpoint_server(tls: &Tls) -> ServerConfig {
    let mut config = ServerConfig::with_crypto(Arc::clone(&tls.server) as _);
    config.migration(false);
    config
}

/// The first destination connection ID of a connection to a channel: its token, and bytes that
/// differ for each connection of this process. The token makes it unpredictable.
fn first_id(token: ChannelToken) -> ConnectionId {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    ConnectionId::new(&[&token.0[..], &number].concat())
}

/// An address without the IPv6 form of IPv4 addresses.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
