//! Creation of data channels.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bstr::ByteSlice as _;
use parking_lot::Mutex;
use ropewalk_engine::{Bandwidth, ChannelSettings, DataChannel};
use ropewalk_layers::ControlPort;
use ropewalk_nodes::{ChannelOrder, ChannelPurse, Placement};
use ropewalk_protocol::command::Protection;
use ropewalk_protocol::one_port::{OnePort, Token};
use ropewalk_protocol::server::{ChannelOptions, Connect, Direction, Failure, Family, Listen, Mode, Outcome};
use ropewalk_security::canonical;
use ropewalk_transport::{ChannelToken, Driver, Options, Tuning};

use super::buffers::Buffers;
use super::{Answer, node, stack};
use crate::config::{Data, TransferDirection};
use crate::host::bandwidth::{FlowOwner, NodePurse};
use crate::security::client::SecurityContext;
use crate::session::context::Context;
use crate::session::data_channel::{Channel, congestion};
use crate::session::data_plane::DataPlane;
use crate::session::job::Job;
use crate::session::node_channel::NodeChannel;
use crate::session::striped_channel::StripedChannel;

/// PASV and related commands: listens, here or on data nodes, and returns the addresses for the
/// client.
pub(super) fn listen(job: &mut Job<'_>, listen: &Listen) -> Result<Vec<SocketAddr>, Failure> {
    let current = job.context.channel.take().map_or_else(Vec::new, |channel| channel.data.into_nodes());
    let third_party = job.context.login()?.account.third_party;
    let (chosen, placement) = node::for_listening(job, listen, current)?;
    if !chosen.is_empty() {
        let stack = stack::build(job, &listen.channel, None)?;
        let peer = job.context.peer.ip();
        let buffers = Buffers::choose(job, &listen.channel, &stack.options.tuning, peer);
        let order = node::order(job, &listen.channel, buffers, peer, (!third_party).then_some(peer))?;
        let bandwidth = job.host.bandwidth.join(flow_owner(job.context));
        let count = chosen.len();
        let mut failed = None;
        let (mut nodes, mut addresses) = (Vec::new(), Vec::new());
        for chosen in chosen {
            match NodeChannel::listen(chosen, order.clone(), purse(&bandwidth, count)) {
                Ok((node, address)) => {
                    nodes.push(node);
                    addresses.push(address);
                }
                Err(failure) => failed = Some(failure),
            }
        }
        // The others do without a node that cannot listen.
        if let Some(failure) = failed.filter(|_| nodes.is_empty()) {
            return Err(failure);
        }
        let data = striped(job, nodes, &listen.channel, order)?;
        put(job, data, &listen.channel, peer, Way { passive: true, one_port: false }, buffers);
        limit(job, bandwidth);
        watch(job, placement);
        return Ok(addresses);
    }
    let bound = listen_with(job, listen, None)?;
    watch(job, placement);
    let config = &job.context.settings.config.data;
    Ok(vec![SocketAddr::new(config.advertise.unwrap_or_else(|| canonical(bound.ip())), bound.port())])
}

/// SITE ONEPORT: as [`listen`], but connections come through the control port, or through the port
/// that channels over QUIC share.
pub(super) fn listen_at_one_port(job: &mut Job<'_>, listen: &Listen) -> Answer {
    let channel = job.host.router.channel();
    let (token, driver) =
        channel.map_err(|e| Failure::DataConnection(format!("cannot make a token: {e}")))?;
    let shares = job.host.has_quic_port && shares_port(job, &listen.channel);
    let way = OnePortWay { token, driver: (!shares).then_some(driver) };
    let bound = listen_with(job, listen, Some(way))?;
    let udp_port = shares.then_some(bound.port());
    Ok(Outcome::OnePort(OnePort { token, udp_port }))
}

/// Whether the driver of the channel has a port that channels share, besides the control port.
fn shares_port(job: &Job<'_>, channel: &ChannelOptions) -> bool {
    job.host.registry.driver_of(channel.stack.as_ref()).shares_port()
}

/// How connections come through one port.
struct OnePortWay {
    token: Token,
    /// The driver at the control port; `None`: that of the stack has a port that channels share.
    driver: Option<Arc<dyn Driver>>,
}

/// Makes a passive channel. Returns its address.
fn listen_with(
    job: &mut Job<'_>,
    listen: &Listen,
    one_port: Option<OnePortWay>,
) -> Result<SocketAddr, Failure> {
    // The port of the old channel may be the only one in the range.
    job.context.channel = None;
    let third_party = job.context.login()?.account.third_party;
    let local = local_address(job.context, listen.family)?;
    let token = one_port.as_ref().map(|way| way.token);
    let stack = stack::build(job, &listen.channel, one_port.and_then(|way| way.driver))?;
    let buffers = Buffers::choose(job, &listen.channel, &stack.options.tuning, job.context.peer.ip());
    let context = &mut *job.context;
    let config = &context.settings.config.data;
    let mut options = driver_options(config, &listen.channel, buffers, config.ports);
    stack.apply_protocol(&mut options);
    options.token = token.map(|token| ChannelToken(token.bytes()));
    options.task = context.task.as_ref().map(|task| task.to_str_lossy().into());
    let listener = stack.driver.listen(SocketAddr::new(local, 0).into(), &options).map_err(|error| {
        tracing::warn!(session = context.id, %error, "cannot listen for data connections");
        Failure::DataConnection(format!("cannot listen on {local}: {error}"))
    })?;
    let bound = listener
        .local_addr()
        .and_then(|bound| bound.socket())
        .map_err(|e| Failure::DataConnection(e.to_string()))?;
    let mut settings = channel_settings(context, &listen.channel, options);
    let bandwidth = job.host.bandwidth.join(flow_owner(context));
    settings.bandwidth = Some(Arc::clone(&bandwidth));
    settings.only_from = (!third_party).then_some(context.peer.ip());
    let (pool, budget) = (Arc::clone(&job.host.streams), Arc::clone(&job.host.budget));
    let mut data = DataChannel::passive(listener, settings, pool, budget);
    // A pipe that no program fills or empties must not hold a permit.
    data.set_patient(false);
    put(
        job,
        Box::new(data),
        &listen.channel,
        job.context.peer.ip(),
        Way { passive: true, one_port: token.is_some() },
        buffers,
    );
    limit(job, bandwidth);
    Ok(bound)
}

/// PORT and related commands: stores the addresses to connect to.
pub(super) fn connect(job: &mut Job<'_>, connect: Connect) -> Answer {
    let current = job.context.channel.take().map_or_else(Vec::new, |channel| channel.data.into_nodes());
    let third_party = job.context.login()?.account.third_party;
    let context = &mut *job.context;
    let config = &context.settings.config.data;
    let addresses: Vec<_> =
        connect.addresses.iter().map(|a| SocketAddr::new(canonical(a.ip()), a.port())).collect();
    for address in &addresses {
        permitted(context.peer.ip(), *address, third_party, config.privileged_ports).map_err(|text| {
            tracing::warn!(session = context.id, peer = %context.peer, %address, "data address refused: {text}");
            Failure::Refused { code: 500, text: format!("Illegal PORT command: {text}") }
        })?;
    }
    let Some(first) = addresses.first().map(SocketAddr::ip) else {
        return Err(Failure::Refused { code: 501, text: "Illegal PORT command: no address.".into() });
    };
    let one_port = connect.token.is_some();
    let at_control_port = connect.token.filter(|_| !shares_port(job, &connect.channel));
    let base = at_control_port.map(|token| {
        Arc::new(ControlPort::new(job.host.registry.default_driver(), token)) as Arc<dyn Driver>
    });
    let stack = stack::build(job, &connect.channel, base)?;
    let buffers = Buffers::choose(job, &connect.channel, &stack.options.tuning, first);
    // Connections to a control port are made here.
    let (chosen, placement) = match one_port {
        true => (Vec::new(), None),
        false => node::for_connecting(job, &connect.channel, &addresses, current)?,
    };
    if !chosen.is_empty() {
        let order = node::order(job, &connect.channel, buffers, first, None)?;
        let bandwidth = job.host.bandwidth.join(flow_owner(job.context));
        let count = chosen.len();
        // If there are more addresses than nodes, the nodes take them in turn.
        let of_node = |at| addresses.iter().skip(at).step_by(count).copied().collect();
        let nodes: Result<Vec<_>, Failure> = chosen
            .into_iter()
            .enumerate()
            .map(|(at, chosen)| {
                NodeChannel::connect(chosen, of_node(at), order.clone(), purse(&bandwidth, count))
            })
            .collect();
        let data = striped(job, nodes?, &connect.channel, order)?;
        put(job, data, &connect.channel, first, Way { passive: false, one_port }, buffers);
        limit(job, bandwidth);
        watch(job, placement);
        return Ok(Outcome::Done);
    }
    let context = &mut *job.context;
    let config = &context.settings.config.data;
    let mut options = driver_options(config, &connect.channel, buffers, config.source_ports);
    stack.apply_protocol(&mut options);
    options.token = connect.token.map(|token| ChannelToken(token.bytes()));
    options.task = context.task.as_ref().map(|task| task.to_str_lossy().into());
    // A peer may only accept data from the address that it knows.
    options.bind =
        config.interface.or_else(|| (first == context.peer.ip()).then(|| canonical(context.local.ip())));
    let mut settings = channel_settings(context, &connect.channel, options);
    let bandwidth = job.host.bandwidth.join(flow_owner(context));
    settings.bandwidth = Some(Arc::clone(&bandwidth));
    let (pool, budget) = (Arc::clone(&job.host.streams), Arc::clone(&job.host.budget));
    let mut data = DataChannel::active(stack.driver, addresses, settings, pool, budget);
    data.set_patient(false);
    put(job, Box::new(data), &connect.channel, first, Way { passive: false, one_port }, buffers);
    limit(job, bandwidth);
    watch(job, placement);
    Ok(Outcome::Done)
}

/// The channel over `nodes`, which have been given `order`.
fn striped(
    job: &Job<'_>,
    nodes: Vec<NodeChannel>,
    channel: &ChannelOptions,
    order: ChannelOrder,
) -> Result<Box<dyn DataPlane>, Failure> {
    let ChannelOrder { parallelism, congestion, .. } = order;
    let session = node::session(job)?;
    Ok(Box::new(StripedChannel::new(nodes, session, channel.layout, parallelism, congestion)))
}

/// How the connections of a channel are made.
struct Way {
    /// The client connects.
    passive: bool,
    /// Through the control port.
    one_port: bool,
}

/// Makes this the session's channel.
fn put(
    job: &mut Job<'_>,
    data: Box<dyn DataPlane>,
    options: &ChannelOptions,
    peer: IpAddr,
    way: Way,
    buffers: Buffers,
) {
    let Way { passive, one_port } = way;
    job.context.channel = Some(Box::new(Channel {
        data,
        options: ChannelOptions { key: None, ..options.clone() },
        passive,
        one_port,
        peer,
        tls: has_tls(job.context, options),
        buffer: buffers.larger(),
        desynchronized: false,
        bandwidth: None,
        placement: None,
    }));
    if passive {
        job.dialogue.streams = job.context.streams();
    }
}

/// Pays for one of `nodes` nodes of a channel.
fn purse(bandwidth: &Arc<Bandwidth>, nodes: usize) -> ChannelPurse {
    Arc::new(NodePurse { flow: Arc::clone(bandwidth), nodes })
}

/// The session's channel moves its bytes within these limits.
fn limit(job: &mut Job<'_>, bandwidth: Arc<Bandwidth>) {
    if let Some(channel) = &mut job.context.channel {
        channel.bandwidth = Some(bandwidth);
    }
}

/// The client can learn that nodes have joined to which the session's channel might go.
fn watch(job: &mut Job<'_>, placement: Option<Placement>) {
    if let Some(channel) = &mut job.context.channel {
        channel.placement = placement.map(Mutex::new).map(Arc::new);
    }
}

fn flow_owner(context: &Context) -> FlowOwner {
    FlowOwner {
        user: context.counted_as().to_owned(),
        address: context.peer.ip(),
        direction: None,
        reservation: context.reservation(),
    }
}

/// Takes the session's channel for a transfer. The caller returns it afterwards.
pub(super) fn take(job: &mut Job<'_>, direction: Direction) -> Result<Box<Channel>, Failure> {
    let Some(channel) = job.context.channel.take() else {
        return Err(Failure::NoDataChannel("No data channel: send PASV or PORT first.".into()));
    };
    let sends = direction == Direction::Retrieve;
    if channel.options.mode == Mode::ExtendedBlock && !channel.passive && !channel.one_port && !sends {
        job.context.channel = Some(channel);
        // In MODE E the sender connects (GFD.20 section 3.4). The text is that of GCT. A sender
        // that listens is the extension PassiveSender of Ropewalk; a receiver that connects is
        // OnePort.
        return Err(Failure::NoDataChannel("globus_gridftp_server_register_read failed.".into()));
    }
    if let Some(bandwidth) = &channel.bandwidth {
        let direction = if sends { TransferDirection::Download } else { TransferDirection::Upload };
        job.host.bandwidth.begin(bandwidth, direction, job.context.reservation());
    }
    // The sender determines the number of streams.
    job.dialogue.streams = channel.streams().filter(|_| sends);
    Ok(channel)
}

fn has_tls(context: &Context, options: &ChannelOptions) -> bool {
    matches!(context.client, SecurityContext::Tls(_)) && options.protection != Protection::Clear
}

fn permitted(client: IpAddr, address: SocketAddr, third_party: bool, privileged: bool) -> Result<(), String> {
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::from([255; 4]) || address.port() == 0 {
        return Err(format!("{address} is not an address to connect to."));
    }
    if ip != client && !third_party {
        return Err(format!("this account may send data to {client} only, not to {ip}."));
    }
    // Services on loopback are for this host only.
    if ip.is_loopback() && !client.is_loopback() {
        return Err(format!("{ip} is an address of this host alone."));
    }
    if address.port() < 1024 && !privileged {
        return Err(format!("port {} is below 1024.", address.port()));
    }
    Ok(())
}

fn local_address(context: &Context, family: Option<Family>) -> Result<IpAddr, Failure> {
    let config = &context.settings.config.data;
    let local = config.interface.unwrap_or_else(|| canonical(context.local.ip()));
    let told = config.advertise.unwrap_or(local);
    match family {
        Some(Family::V4) if told.is_ipv6() => {
            Err(Failure::Refused { code: 522, text: "Network protocol not supported, use (2).".into() })
        }
        Some(Family::V6) if told.is_ipv4() => {
            Err(Failure::Refused { code: 522, text: "Network protocol not supported, use (1).".into() })
        }
        _ => Ok(local),
    }
}

fn driver_options(
    config: &Data,
    options: &ChannelOptions,
    buffers: Buffers,
    ports: Option<(u16, u16)>,
) -> Options {
    Options {
        tuning: Tuning {
            send_buffer: buffers.send,
            receive_buffer: buffers.receive,
            congestion: congestion(options.congestion, config),
            ..Tuning::default()
        },
        ports,
        ..Options::default()
    }
}

fn channel_settings(context: &Context, options: &ChannelOptions, driver_options: Options) -> ChannelSettings {
    let config = &context.settings.config.data;
    ChannelSettings {
        bandwidth: None,
        granted: None,
        mode: options.mode,
        representation: options.representation,
        parallelism: options.parallelism.clamp(1, config.max_streams),
        block_size: usize::try_from(config.block_size).unwrap_or(1 << 20),
        options: driver_options,
        connect_timeout: config.connect_timeout,
        stall_timeout: (!config.stall_timeout.is_zero()).then_some(config.stall_timeout),
        max_streams: config.max_streams,
        only_from: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn data_address_is_checked_against_account() {
        let check = |client: &str, address: &str, third_party, privileged| {
            permitted(client.parse().unwrap(), address.parse().unwrap(), third_party, privileged).is_ok()
        };
        assert!(check("192.0.2.1", "192.0.2.1:5000", false, false));
        assert!(!check("192.0.2.1", "192.0.2.2:5000", false, false));
        assert!(check("192.0.2.1", "192.0.2.2:5000", true, false));
        assert!(!check("192.0.2.1", "192.0.2.1:22", true, false));
        assert!(check("192.0.2.1", "192.0.2.1:22", true, true));
        for nowhere in ["0.0.0.0:5000", "[::]:5000", "224.0.0.1:5000", "255.255.255.255:5000", "192.0.2.1:0"]
        {
            assert!(!check("192.0.2.1", nowhere, true, true), "{nowhere}");
        }
        // A remote client cannot reach services on loopback.
        for loopback in ["127.0.0.1:5000", "127.9.9.9:5000", "[::1]:5000"] {
            assert!(!check("192.0.2.1", loopback, true, true), "{loopback}");
            assert!(check("127.0.0.1", loopback, true, false), "{loopback}");
        }
    }
}
