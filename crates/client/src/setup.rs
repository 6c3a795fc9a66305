//! The resources and options that sessions share, and the settings of their data channels.
//!
//! A client owns one [`Shared`]. Each run makes a [`Setup`] with its own options, events and
//! cancellation, which refers to the client's [`Shared`]; all sessions of the run use it, from any
//! thread. Idle sessions have a setup that belongs to no run.

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

/// The maximum number of data threads, which end when they are idle.
const DATA_THREADS: usize = 1024;
/// The maximum number of streams that a sending server may open to this side for one file.
const MAX_STREAMS: u32 = 256;

/// Shared by the jobs of a client.
pub(crate) struct Shared {
    /// Threads that move data.
    pub pool: Arc<Pool>,
    /// Memory for buffers.
    pub budget: Arc<BufferBudget>,
    /// The rate limit, which can change at any time.
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

    /// Makes the resources of a single job, with the limits of its options.
    pub(crate) fn of(options: &Options) -> Arc<Self> {
        let registry = match &options.path.manager {
            Some(manager) => Registry::standard().managed(manager),
            None => Registry::standard(),
        };
        let tuning = &options.tuning;
        Arc::new(Self::with_registry(tuning.buffer_memory, tuning.bandwidth.as_ref(), registry))
    }
}

/// The time between two fireflies about an open connection.
const FIREFLY_INTERVAL: Duration = Duration::from_secs(60);

/// The bounds of sessions that this program opens on behalf of its own clients.
#[derive(Clone, Default)]
pub struct Behalf {
    /// Decides which addresses may be connected to, for commands and data.
    pub gate: Option<Arc<dyn Gate>>,
    /// The credential for log-ins with certificates; `None` means that of the process.
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
    pub warned_of_slots: WarnedServers,
    /// Sends fireflies, if the options name destinations.
    pub fireflies: Option<Reporter>,
    /// Decides which addresses may be connected to.
    pub gate: Option<Arc<dyn Gate>>,
    /// The stacks of the sessions, by server.
    pub stacks: Mutex<BTreeMap<String, UsedStack>>,
}

impl Setup {
    /// Makes the setup of sessions that belong to no job.
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

    /// Makes the setup of sessions on behalf of a client of this program.
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
            warned_of_slots: WarnedServers::default(),
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
            // The first connection may be opened before its channel exists.
            flow_label: self.options.data.scitag.and_then(flow_label),
            bind: self.options.path.address,
            interface: self.options.path.interface.clone(),
            task: self.options.data.task.as_deref().map(Into::into),
            ..DriverOptions::default()
        }
    }

    /// The settings of a data channel of a session with `peer`.
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
            granted: None,
        }
    }
}

/// Starts the sender of fireflies. It is `None` also if there is no thread for it, because a
/// transfer does not fail for lack of these messages.
fn reporter(options: &Options) -> Option<Reporter> {
    let data = &options.data;
    if data.scitag.is_none() || data.fireflies.is_empty() {
        return None;
    }
    let started = Reporter::start(data.fireflies.clone(), FIREFLY_INTERVAL);
    started.inspect_err(|error| tracing::warn!(%error, "no thread for fireflies")).ok()
}

/// The address to which a server is to connect: `GLOBUS_HOSTNAME` (a name or an address) if it is
/// set and can be resolved, as in GCT's clients for hosts behind NAT; otherwise the listener's own.
pub(crate) fn advertised(listening: SocketAddr) -> SocketAddr {
    use std::net::ToSocketAddrs;
    let Ok(name) = std::env::var("GLOBUS_HOSTNAME") else { return listening };
    let found = (name.as_str(), listening.port()).to_socket_addrs();
    found.ok().and_then(|mut all| all.find(|a| a.is_ipv4() == listening.is_ipv4())).unwrap_or(listening)
}

/// The address at which a passive server is reached. Some servers announce an address that only
/// they themselves can use (behind NAT, in a container): a private, loopback or unspecified one,
/// although the control connection reached them at a public one. Then the address of the control
/// connection is used. If only ssh knows that address (`control_peer` is unspecified), the
/// announced one is used, unless it is unspecified, or it is a loopback address and nothing proves
/// that the peer is the server (`proves`): any program of this host could listen there.
///
/// # Errors
/// The address of the server is not known.
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
        // The server has a separate data node.
        assert_eq!(at("198.51.100.7:99", "192.0.2.1"), "198.51.100.7:99");
        assert_eq!(at("127.0.0.1:99", "127.0.0.1"), "127.0.0.1:99");
        // Only ssh knows the address of the server, so nothing is sent to a program of this host.
        assert_eq!(at("10.0.0.5:99", "0.0.0.0"), "10.0.0.5:99");
        for announced in ["127.0.0.1:99", "0.0.0.0:99", "[::1]:99"] {
            assert!(at(announced, "0.0.0.0").contains("only ssh knows"), "{announced}");
        }
        let here = "127.0.0.1:99".parse().unwrap();
        assert_eq!(reachable(here, [0, 0, 0, 0].into(), ("h", true)).unwrap(), here);
    }
}
