//! What sessions share: options, and the machinery of data channels.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_engine::{Bandwidth, BufferBudget, ChannelSettings, Pool};
use ropewalk_layers::Registry;
use ropewalk_limits::Timetable;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_protocol::stack::StackSpec;
use ropewalk_scitags::{FlowTransport, Reporter, flow_label, marking};
use ropewalk_transport::{FlowMarking, Options as DriverOptions, Tuning};

use crate::credential::{Delegated, Ours};
use crate::model::gate::Gate;
use crate::model::warned::WarnedServers;
use crate::{Cancel, EventSink, Options, RemoteError, UsedStack};

/// Data threads at most; they end when idle.
const DATA_THREADS: usize = 1024;
/// Streams at most that a sending server may open to us for one file.
const MAX_STREAMS: u32 = 256;

/// Shared by the jobs of a client.
pub(crate) struct Shared {
    /// Threads that move data.
    pub pool: Arc<Pool>,
    /// Memory for buffers.
    pub budget: Arc<BufferBudget>,
    /// The limit on the rate, which can change at any time.
    pub bandwidth: Arc<Bandwidth>,
    /// The drivers and layers of data connections.
    pub registry: Registry,
}

impl Shared {
    /// `buffer_memory` is in bytes.
    pub(crate) fn new(buffer_memory: usize, bandwidth: Option<&Timetable>) -> Arc<Self> {
        Arc::new(Self::with_registry(buffer_memory, bandwidth, Registry::standard()))
    }

    fn with_registry(buffer_memory: usize, bandwidth: Option<&Timetable>, registry: Registry) -> Self {
        Self {
            pool: Arc::new(Pool::new("data", DATA_THREADS)),
            budget: BufferBudget::new(buffer_memory),
            bandwidth: Arc::new(Bandwidth::new(bandwidth.unwrap_or(&Timetable::always(None)))),
            registry,
        }
    }

    /// For a single job, as its options have it.
    pub(crate) fn of(options: &Options) -> Arc<Self> {
        let registry = match &options.path.manager {
            Some(manager) => Registry::standard().managed(manager),
            None => Registry::standard(),
        };
        let tuning = &options.tuning;
        Arc::new(Self::with_registry(tuning.buffer_memory, tuning.bandwidth.as_ref(), registry))
    }
}

/// Time between fireflies about a connection that is open.
const FIREFLY_INTERVAL: Duration = Duration::from_secs(60);

/// The bounds of sessions that this program opens on behalf of its own clients.
#[derive(Clone, Default)]
pub struct Behalf {
    /// Decides which addresses may be connected to, for commands and data.
    pub gate: Option<Arc<dyn Gate>>,
    /// The credential for log-ins with certificates; `None`: that of the process.
    pub delegated: Option<Delegated>,
}

pub(crate) struct Setup {
    pub options: Options,
    pub events: Arc<dyn EventSink>,
    pub cancel: Cancel,
    pub shared: Arc<Shared>,
    pub ours: Ours,
    pub tls: crate::tls::Shared,
    pub warned_of_clear: WarnedServers,
    pub warned_of_congestion: WarnedServers,
    /// Sends fireflies, if the options name destinations.
    pub fireflies: Option<Reporter>,
    /// Decides which addresses may be connected to.
    pub gate: Option<Arc<dyn Gate>>,
    /// The stacks of the sessions, by server.
    pub stacks: Mutex<BTreeMap<String, UsedStack>>,
}

impl Setup {
    /// For sessions that belong to no job.
    pub(crate) fn new(options: &Options, events: &Arc<dyn EventSink>, cancel: &Cancel) -> Arc<Self> {
        Self::sharing(&Shared::of(options), options, events, cancel)
    }

    pub(crate) fn sharing(
        shared: &Arc<Shared>,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> Arc<Self> {
        Self::on_behalf(shared, options, events, cancel, Behalf::default())
    }

    /// For sessions on behalf of a client of this program.
    pub(crate) fn on_behalf(
        shared: &Arc<Shared>,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
        Behalf { gate, delegated }: Behalf,
    ) -> Arc<Self> {
        Arc::new(Self {
            options: options.clone(),
            events: events.clone(),
            cancel: cancel.clone(),
            shared: shared.clone(),
            ours: Ours::delegated(delegated),
            tls: crate::tls::Shared::default(),
            warned_of_clear: WarnedServers::default(),
            warned_of_congestion: WarnedServers::default(),
            fireflies: reporter(options),
            gate,
            stacks: Mutex::default(),
        })
    }

    /// The marks of data connections over this stack.
    pub(crate) fn marking(&self, stack: Option<&StackSpec>) -> FlowMarking {
        let udp = stack.is_some_and(|stack| stack.has("udt") || stack.has("quic"));
        let transport = if udp { FlowTransport::Udp } else { FlowTransport::Tcp };
        marking(self.options.data.scitag, true, transport, self.fireflies.as_ref())
    }

    /// Refuses an address for data that the gate does not permit. The address of the control
    /// connection was permitted before.
    pub(crate) fn permits_data(
        &self,
        peer: &str,
        control: IpAddr,
        address: SocketAddr,
    ) -> Result<SocketAddr, RemoteError> {
        match &self.gate {
            Some(gate) if address.ip() != control => {
                let refused = |reason| RemoteError::Security { peer: peer.to_owned(), reason };
                gate.permits(&address.ip().to_string(), address).map_err(refused)?;
                Ok(address)
            }
            _ => Ok(address),
        }
    }

    pub(crate) fn driver_options(&self) -> DriverOptions {
        let buffer = self.options.tuning.tcp_buffer.and_then(|n| usize::try_from(n).ok());
        DriverOptions {
            tuning: Tuning { send_buffer: buffer, receive_buffer: buffer, ..Tuning::default() },
            ports: self.options.data.ports,
            // The first connection may be made before its channel.
            flow_label: self.options.data.scitag.and_then(flow_label),
            bind: self.options.path.address,
            interface: self.options.path.interface.clone(),
            ..DriverOptions::default()
        }
    }

    /// For a data channel of a session with `peer`.
    pub(crate) fn channel_settings(
        &self,
        mode: Mode,
        streams: u32,
        only_from: Option<IpAddr>,
        options: DriverOptions,
    ) -> ChannelSettings {
        ChannelSettings {
            mode,
            representation: if self.options.data.ascii {
                RepresentationType::Ascii
            } else {
                RepresentationType::Image
            },
            parallelism: streams.max(1),
            block_size: self.options.data.block_size,
            options,
            connect_timeout: self.options.timeouts.connect,
            stall_timeout: self.options.timeouts.stall.map(|limit| limit.time.max(Duration::from_secs(1))),
            max_streams: MAX_STREAMS.max(streams),
            only_from,
            bandwidth: Some(Arc::clone(&self.shared.bandwidth)),
        }
    }
}

/// `None` also if there is no thread for it: messages about a transfer are no reason to fail.
fn reporter(options: &Options) -> Option<Reporter> {
    let data = &options.data;
    if data.scitag.is_none() || data.fireflies.is_empty() {
        return None;
    }
    let started = Reporter::start(data.fireflies.clone(), FIREFLY_INTERVAL);
    started.inspect_err(|error| tracing::warn!(%error, "no thread for fireflies")).ok()
}

/// The address that a server is told to connect to: `GLOBUS_HOSTNAME` (a name or an address) where it is set and can
/// be resolved, as GCT's clients have it for hosts behind NAT; the listener's own otherwise.
pub(crate) fn advertised(listening: SocketAddr) -> SocketAddr {
    use std::net::ToSocketAddrs;
    let Ok(name) = std::env::var("GLOBUS_HOSTNAME") else { return listening };
    let found = (name.as_str(), listening.port()).to_socket_addrs();
    found.ok().and_then(|mut all| all.find(|a| a.is_ipv4() == listening.is_ipv4())).unwrap_or(listening)
}

/// The address of a passive server. Some announce an address that only they themselves know (behind NAT, in a container):
/// a private, loopback or empty one, though we reached the server at a public one. Then that one is used. Where only ssh knows at
/// which one (`control_peer` is unspecified), what is announced has to do, unless it would lead to whoever listens on this host
/// and nothing proves that this is the server (`proves`).
///
/// # Errors
/// Nobody knows where the server is.
pub(crate) fn reachable(
    announced: SocketAddr,
    control_peer: IpAddr,
    (server, proves): (&str, bool),
) -> Result<SocketAddr, RemoteError> {
    let ip = announced.ip();
    if control_peer.is_unspecified() {
        if !ip.is_unspecified() && (!ip.is_loopback() || proves) {
            return Ok(announced);
        }
        let what = format!("be reached for data: it announces {announced}, and only ssh knows the way to it");
        return Err(RemoteError::Unsupported { peer: server.to_owned(), what });
    }
    let wrong = ip.is_unspecified()
        || (ip.is_loopback() && !control_peer.is_loopback())
        || (is_private(ip) && !is_private(control_peer) && !control_peer.is_loopback());
    Ok(if wrong { SocketAddr::new(control_peer, announced.port()) } else { announced })
}

fn is_private(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn private_addresses_of_public_servers_are_not_believed() {
        let at = |announced: &str, peer: &str| {
            let reached = reachable(announced.parse().unwrap(), peer.parse().unwrap(), ("h", false));
            reached.map_or_else(|error| error.to_string(), |address| address.to_string())
        };
        assert_eq!(at("10.0.0.5:99", "192.0.2.1"), "192.0.2.1:99");
        assert_eq!(at("0.0.0.0:99", "10.0.0.1"), "10.0.0.1:99");
        assert_eq!(at("10.0.0.5:99", "10.0.0.1"), "10.0.0.5:99");
        // A data node of its own.
        assert_eq!(at("198.51.100.7:99", "192.0.2.1"), "198.51.100.7:99");
        assert_eq!(at("127.0.0.1:99", "127.0.0.1"), "127.0.0.1:99");
        // Only ssh knows where it is: nothing goes to whoever listens here.
        assert_eq!(at("10.0.0.5:99", "0.0.0.0"), "10.0.0.5:99");
        for announced in ["127.0.0.1:99", "0.0.0.0:99", "[::1]:99"] {
            assert!(at(announced, "0.0.0.0").contains("only ssh knows"), "{announced}");
        }
        let here = "127.0.0.1:99".parse().unwrap();
        assert_eq!(reachable(here, [0, 0, 0, 0].into(), ("h", true)).unwrap(), here);
    }
}
