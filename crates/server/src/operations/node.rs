//! Chooses between this process and data nodes for a new data channel.
//!
//! Nodes are chosen if the server is a front end, a node can be had, and the node can have the
//! security of the data connections: a delegated credential or one of DCSC goes to the node, and so
//! do data keys and the secrets for TLS. Kerberos protects data connections of the front end
//! itself, because they have the context of its control connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ropewalk_nodes::{ChannelOrder, Chosen, Placement, Suits};
use ropewalk_protocol::server::{ChannelOptions, Failure, Family, Listen, Mode, Transfer};

use super::buffers::Buffers;
use crate::session::data_channel::{Channel, NodeNews, congestion};
use crate::session::job::Job;
use crate::session::striped_channel::Session;

/// The nodes for a channel, and the placement that finds better ones later; `None`: such a channel
/// is on no node.
pub(super) type Choice = (Vec<Chosen>, Option<Placement>);

/// The nodes for a channel to which the client connects: one, or as many as there are for SPAS.
/// `current` are the nodes of the channel before. Empty: the server listens itself.
pub(super) fn for_listening(job: &Job<'_>, listen: &Listen, current: Vec<Chosen>) -> Result<Choice, Failure> {
    let local = job.context.peer.ip().is_loopback();
    let v4 = match listen.family {
        Some(family) => family == Family::V4,
        None => job.context.local.ip().to_canonical().is_ipv4(),
    };
    // The loopback addresses of two hosts have nothing to do with each other.
    let suits = move |ip: IpAddr| ip.is_ipv4() == v4 && ip.is_loopback() == local;
    let stripes = if listen.striped { most_stripes(job, &listen.channel) } else { 1 };
    choose(job, &listen.channel, Box::new(suits), stripes, current)
}

/// In MODE S there is one data connection, and so one node.
fn most_stripes(job: &Job<'_>, channel: &ChannelOptions) -> usize {
    let nodes = job.context.settings.config.nodes.as_ref().filter(|_| channel.mode == Mode::ExtendedBlock);
    nodes.map_or(1, |nodes| nodes.max_stripes as usize)
}

/// The nodes for a channel that connects to `peers`: at most one for each.
pub(super) fn for_connecting(
    job: &Job<'_>,
    channel: &ChannelOptions,
    peers: &[SocketAddr],
    current: Vec<Chosen>,
) -> Result<Choice, Failure> {
    // A node with a loopback address is on this host.
    let reaches = |ip: IpAddr, peer: IpAddr| {
        ip.is_ipv4() == peer.is_ipv4() && (ip.is_loopback() || !peer.is_loopback())
    };
    let stripes = peers.len().min(most_stripes(job, channel));
    let peers: Vec<IpAddr> = peers.iter().map(SocketAddr::ip).collect();
    let suits = move |ip: IpAddr| peers.iter().all(|peer| reaches(ip, *peer));
    choose(job, channel, Box::new(suits), stripes, current)
}

fn choose(
    job: &Job<'_>,
    channel: &ChannelOptions,
    suits: Suits,
    stripes: usize,
    current: Vec<Chosen>,
) -> Result<Choice, Failure> {
    let none = (Vec::new(), None);
    // Stores of a caller are not in a file system that nodes share.
    let Some(nodes) = job.host.nodes.as_ref().filter(|_| job.host.stores.have_identities()) else {
        return Ok(none);
    };
    // A program is a process of this host.
    if job.context.login()?.program.is_some() {
        return Ok(none);
    }
    if !job.context.client.suits_node(channel)? {
        return Ok(none);
    }
    let (chosen, placement) = nodes.front_end.choose(suits, stripes, current);
    for chosen in &chosen {
        tracing::info!(
            session = job.context.id, node = chosen.name, address = %chosen.address, "data channel on a node"
        );
    }
    Ok((chosen, Some(placement)))
}

/// News of nodes for the client of this transfer, if it wants them.
pub(super) fn news(job: &Job<'_>, channel: &Channel, transfer: &Transfer) -> Option<NodeNews> {
    channel.looks_for_nodes(transfer.nodes, most_stripes(job, &channel.options))
}

/// The files of the session for its nodes.
pub(super) fn session(job: &Job<'_>) -> Result<Session, Failure> {
    let nodes = job.host.nodes.as_ref().map(Arc::clone);
    let Some(nodes) = nodes else { return Err(Failure::DataConnection("there are no data nodes".into())) };
    Ok(Session {
        nodes,
        budget: Arc::clone(&job.host.budget),
        owner: job.context.login()?.identity.clone(),
        fsync: job.context.settings.config.files.fsync,
    })
}

/// The properties of the channel for its nodes.
pub(super) fn order(
    job: &Job<'_>,
    channel: &ChannelOptions,
    buffers: Buffers,
    peer: IpAddr,
    only_from: Option<IpAddr>,
) -> Result<ChannelOrder, Failure> {
    let config = &job.context.settings.config.data;
    let milliseconds = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(ChannelOrder {
        // Each node gets one of its own.
        account: 0,
        extended_block: channel.mode == Mode::ExtendedBlock,
        parallelism: channel.parallelism.clamp(1, config.max_streams),
        max_streams: config.max_streams,
        block_size: usize::try_from(config.block_size).unwrap_or(1 << 20),
        send_buffer: buffers.send,
        receive_buffer: buffers.receive,
        congestion: congestion(channel.congestion, config),
        connect_timeout_ms: milliseconds(config.connect_timeout),
        stall_timeout_ms: milliseconds(config.stall_timeout),
        only_from,
        peer,
        // `gsi` in it describes what `security` of the order has, and was checked here.
        stack: channel.stack.clone().and_then(|stack| stack.without("gsi")).map(|stack| stack.to_string()),
        drivers: config.drivers.clone(),
        key: channel.key.as_ref().map(|key| (key.number(), *key.secret())),
        security: job.context.client.for_node(&job.context.settings, channel)?,
    })
}
