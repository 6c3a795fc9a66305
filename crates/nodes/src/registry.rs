//! The data nodes of a front end, and their leases. The module has no I/O and no clock.
//!
//! A node is a member from [`Registry::join`] until it leaves or misses its renewals. A name
//! belongs to one member at a time. [`Registry::choose`] gives a data channel to the nodes whose
//! capacity, divided by the number of their channels including the new one, is the largest; the
//! channels that a node has for other front ends count as well. A node that drains keeps its
//! channels and gets no new ones.
//!
//! A channel stays on its nodes. When a node has joined, [`Registry::propose`] says for which
//! channels a new one in their place would be better. Proposals count as if they were carried out,
//! so that no more channels are replaced than the new node is to have.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The interval in which a node renews its lease.
pub const RENEWAL: Duration = Duration::from_secs(2);
/// A node that has not renewed its lease for this time, which is three intervals, is no longer a
/// member.
pub const LEASE: Duration = Duration::from_secs(6);
/// The capacities that are accepted, in bytes per second: none of these is a mistake for certain.
const CAPACITIES: RangeInclusive<u64> = 1..=1_000_000_000_000_000;
const LONGEST_NAME: usize = 64;
/// The maximum number of addresses of a node.
const MOST_ADDRESSES: usize = 64;
/// The longest version that a refusal repeats, in characters.
const LONGEST_VERSION: usize = 64;
/// A channel is to be replaced if another node has at least this many hundredths of the free
/// capacity of the present one: new connections have to grow.
const GAIN: u64 = 125;

/// The number of a membership. A node that joins again gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u64);

/// The description of a node, which it sends when it joins.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Announcement {
    pub name: String,
    /// The version of the program.
    pub version: String,
    /// The addresses at which peers reach its data connections.
    pub addresses: Vec<IpAddr>,
    /// The rate of its network, in bytes per second.
    pub capacity: u64,
}

/// A channel that is to be replaced, because a new one would be on better nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The nodes that it would leave.
    from: Vec<NodeId>,
    /// The nodes that it would go to, besides those that it would keep.
    to: Vec<NodeId>,
    /// The number of nodes that it would have.
    pub count: usize,
}

/// A member, as an administrator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub announcement: Announcement,
    /// It gets no new channels.
    pub draining: bool,
    /// The number of its channels.
    pub channels: u32,
    /// The number of channels that it has for other front ends.
    pub elsewhere: u32,
}

/// The reason why a node cannot join.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum JoinError {
    #[error(
        "a node with the name {name} has joined from {peer} and renewed its lease {seconds} s ago: each node needs a name of its own"
    )]
    NameTaken { name: String, peer: SocketAddr, seconds: u64 },
    #[error("the node runs ropewalk {node}, and the front end {front_end}: both need the same version")]
    Version { node: String, front_end: String },
    #[error("a node's name has 1 to 64 letters, digits, dots, hyphens and underscores, and {0:?} is none")]
    Name(String),
    #[error("the node announces no address")]
    NoAddress,
    #[error("the node announces {0} addresses, and at most {MOST_ADDRESSES} are accepted")]
    Addresses(usize),
    #[error("no client can connect to the address {0}, which the node announces")]
    Address(IpAddr),
    #[error(
        "the node announces a capacity of {0} bytes per second, and at least {least} and at most {most} are accepted",
        least = CAPACITIES.start(), most = CAPACITIES.end()
    )]
    Capacity(u64),
}

fn check_addresses(addresses: &[IpAddr]) -> Result<(), JoinError> {
    if addresses.is_empty() {
        return Err(JoinError::NoAddress);
    }
    if addresses.len() > MOST_ADDRESSES {
        return Err(JoinError::Addresses(addresses.len()));
    }
    let nowhere = |ip: &&IpAddr| {
        let ip = ip.to_canonical();
        ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
    };
    addresses.iter().find(nowhere).map_or(Ok(()), |ip| Err(JoinError::Address(*ip)))
}

/// A member.
#[derive(Debug)]
struct Entry {
    announcement: Announcement,
    peer: SocketAddr,
    renewed: Instant,
    draining: bool,
    channels: u32,
    elsewhere: u32,
    /// Channels that are proposed to come here, or to leave.
    coming: u32,
    leaving: u32,
}

impl Entry {
    /// The capacity that a channel has here beside `others`.
    fn free(&self, others: u64) -> u64 {
        self.announcement.capacity / (others + 1)
    }

    /// The channels when all proposals have been carried out, without one that has been here
    /// (`own`) until now.
    fn expected(&self, own: bool) -> u64 {
        let now = u64::from(self.channels) + u64::from(self.elsewhere) + u64::from(self.coming);
        now.saturating_sub(u64::from(self.leaving) + u64::from(own))
    }
}

/// The members.
#[derive(Debug)]
pub struct Registry {
    version: String,
    last: u64,
    entries: BTreeMap<NodeId, Entry>,
}

impl Registry {
    /// The registry of a front end of this version.
    pub fn new(version: &str) -> Self {
        Self { version: version.to_owned(), last: 0, entries: BTreeMap::new() }
    }

    /// Makes a node a member. `peer` is the address from which it has connected.
    ///
    /// # Errors
    /// Another node has the name, or the announcement is not acceptable.
    pub fn join(&mut self, node: Announcement, peer: SocketAddr, now: Instant) -> Result<NodeId, JoinError> {
        if node.version != self.version {
            let version = node.version.chars().take(LONGEST_VERSION).collect();
            return Err(JoinError::Version { node: version, front_end: self.version.clone() });
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if node.name.is_empty() || node.name.len() > LONGEST_NAME || !node.name.bytes().all(allowed) {
            return Err(JoinError::Name(node.name.chars().take(LONGEST_NAME + 1).collect()));
        }
        check_addresses(&node.addresses)?;
        if !CAPACITIES.contains(&node.capacity) {
            return Err(JoinError::Capacity(node.capacity));
        }
        self.expire(now);
        if let Some(other) = self.entries.values().find(|entry| entry.announcement.name == node.name) {
            let seconds = now.saturating_duration_since(other.renewed).as_secs();
            return Err(JoinError::NameTaken { name: node.name, peer: other.peer, seconds });
        }
        self.last += 1;
        let id = NodeId(self.last);
        let entry = Entry {
            announcement: node,
            peer,
            renewed: now,
            draining: false,
            channels: 0,
            elsewhere: 0,
            coming: 0,
            leaving: 0,
        };
        self.entries.insert(id, entry);
        Ok(id)
    }

    /// Renews a lease. The node has `elsewhere` channels of other front ends. Returns `false` if it
    /// had expired; then the node has to join again.
    pub fn renew(&mut self, id: NodeId, elsewhere: u32, now: Instant) -> bool {
        self.expire(now);
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        (entry.renewed, entry.elsewhere) = (now, elsewhere);
        true
    }

    /// Drains a node: it accepts no more channels, and leaves when its present ones are closed.
    pub fn drain(&mut self, id: NodeId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.draining = true;
        }
    }

    /// Ends a membership. Returns the name of the node if it was still a member.
    pub fn leave(&mut self, id: NodeId) -> Option<String> {
        self.entries.remove(&id).map(|entry| entry.announcement.name)
    }

    /// Ends the memberships whose leases have expired, and returns them with their names.
    pub fn expire(&mut self, now: Instant) -> Vec<(NodeId, String)> {
        let over = |entry: &Entry| now.saturating_duration_since(entry.renewed) >= LEASE;
        let gone: Vec<NodeId> =
            self.entries.iter().filter(|(_, entry)| over(entry)).map(|(id, _)| *id).collect();
        gone.into_iter().filter_map(|id| self.leave(id).map(|name| (id, name))).collect()
    }

    /// Whether the node is a member that accepts new channels.
    pub fn takes_channels(&self, id: NodeId) -> bool {
        self.entries.get(&id).is_some_and(|entry| !entry.draining)
    }

    pub fn is_member(&self, id: NodeId) -> bool {
        self.entries.contains_key(&id)
    }

    pub fn name(&self, id: NodeId) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.announcement.name.as_str())
    }

    /// Up to `count` nodes that have an address that `suits`, each with that address: those with
    /// the most free capacity first. Among equal ones, the nodes of `current` are preferred, and
    /// then those that joined first.
    pub fn choose(
        &mut self,
        suits: impl Fn(IpAddr) -> bool,
        current: &[NodeId],
        count: usize,
        now: Instant,
    ) -> Vec<(NodeId, IpAddr)> {
        self.expire(now);
        let mut free: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| !entry.draining)
            .filter_map(|(id, entry)| {
                let address = entry.announcement.addresses.iter().copied().find(|ip| suits(*ip))?;
                let own = u32::from(current.contains(id));
                let others = u64::from(entry.channels.saturating_sub(own)) + u64::from(entry.elsewhere);
                Some((Reverse((entry.free(others), own)), *id, address))
            })
            .collect();
        free.sort_unstable();
        free.into_iter().take(count).map(|(_, id, address)| (id, address)).collect()
    }

    /// A channel over the nodes `current` might be over up to `count` nodes that have an address
    /// that `suits`. Returns a proposal if these would be more nodes, or nodes with clearly more
    /// free capacity, and counts it until [`Self::withdraw`].
    pub fn propose(
        &mut self,
        suits: impl Fn(IpAddr) -> bool,
        current: &[NodeId],
        count: usize,
        now: Instant,
    ) -> Option<Proposal> {
        self.expire(now);
        let free = |id: &NodeId, entry: &Entry| entry.free(entry.expected(current.contains(id)));
        let can = |entry: &Entry| !entry.draining && entry.announcement.addresses.iter().any(|ip| suits(*ip));
        let mut best: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| can(entry))
            .map(|(id, entry)| (Reverse((free(id, entry), current.contains(id))), *id))
            .collect();
        best.sort_unstable();
        best.truncate(count.max(current.len()));
        let to: Vec<NodeId> = best.iter().map(|(_, id)| *id).filter(|id| !current.contains(id)).collect();
        let from: Vec<NodeId> =
            current.iter().copied().filter(|own| best.iter().all(|(_, id)| id != own)).collect();
        let weakest = |ids: &[NodeId]| {
            let entries = ids.iter().filter_map(|id| self.entries.get_key_value(id));
            entries.map(|(id, entry)| if entry.draining { 0 } else { free(id, entry) }).min()
        };
        // A node that is gone has nothing to offer.
        let (before, after) = (weakest(&from).unwrap_or(0), weakest(&to)?);
        let gains = u128::from(after) * 100 >= u128::from(before) * u128::from(GAIN);
        if best.len() <= current.len() && !gains {
            return None;
        }
        for id in &from {
            self.entries.entry(*id).and_modify(|entry| entry.leaving += 1);
        }
        for id in &to {
            self.entries.entry(*id).and_modify(|entry| entry.coming += 1);
        }
        Some(Proposal { from, to, count: best.len() })
    }

    /// Counts a proposal no more: the channel has ended.
    pub fn withdraw(&mut self, proposal: &Proposal) {
        for id in &proposal.from {
            self.entries.entry(*id).and_modify(|entry| entry.leaving = entry.leaving.saturating_sub(1));
        }
        for id in &proposal.to {
            self.entries.entry(*id).and_modify(|entry| entry.coming = entry.coming.saturating_sub(1));
        }
    }

    /// Records that a session has taken a connection of the node.
    pub fn channel_opened(&mut self, id: NodeId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.channels += 1;
        }
    }

    pub fn channel_closed(&mut self, id: NodeId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.channels = entry.channels.saturating_sub(1);
        }
    }

    /// The members, in the order in which they joined.
    pub fn members(&self) -> Vec<Membership> {
        let members = self.entries.values().map(|entry| Membership {
            announcement: entry.announcement.clone(),
            draining: entry.draining,
            channels: entry.channels,
            elsewhere: entry.elsewhere,
        });
        members.collect()
    }

    /// The member with this name.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        let named = self.entries.iter().find(|(_, entry)| entry.announcement.name == name);
        named.map(|(id, _)| *id)
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn members_are_listed_and_found_by_name() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        let id = registry.join(node("a", 10), peer(), now).unwrap();
        registry.channel_opened(id);
        registry.drain(id);
        let [member] = &registry.members()[..] else { panic!("one member") };
        assert_eq!((&*member.announcement.name, member.channels, member.draining), ("a", 1, true));
        assert_eq!((registry.find("a"), registry.find("b")), (Some(id), None));
    }

    fn node(name: &str, capacity: u64) -> Announcement {
        let addresses = vec![[192, 0, 2, 1].into()];
        Announcement { name: name.into(), version: "1".into(), addresses, capacity }
    }

    fn peer() -> SocketAddr {
        ([192, 0, 2, 1], 4000).into()
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn lease_that_is_renewed_lasts_and_one_that_is_not_ends() {
        let (mut registry, start) = (Registry::new("1"), Instant::now());
        let a = registry.join(node("a", 1), peer(), start).unwrap();
        let b = registry.join(node("b", 1), peer(), start).unwrap();
        for renewal in 1..=10 {
            assert!(registry.renew(a, 0, start + RENEWAL * renewal));
            if renewal < 3 {
                assert!(registry.is_member(b), "it has missed {renewal}");
            }
        }
        assert!(registry.is_member(a) && !registry.is_member(b));
        assert!(!registry.renew(b, 0, start + seconds(20)), "a stale node has to join again");
        let again = registry.join(node("b", 1), peer(), start + seconds(20)).unwrap();
        assert_ne!(again, b);
    }

    #[test]
    fn name_in_use_is_refused_until_its_lease_ends() {
        let (mut registry, start) = (Registry::new("1"), Instant::now());
        let first = registry.join(node("a", 1), peer(), start).unwrap();
        let refused = registry.join(node("a", 1), peer(), start + seconds(5)).unwrap_err();
        assert_eq!(refused, JoinError::NameTaken { name: "a".into(), peer: peer(), seconds: 5 });
        let second = registry.join(node("a", 1), peer(), start + LEASE).unwrap();
        assert!(registry.is_member(second) && !registry.is_member(first));
        // The stale node neither renews nor ends the membership of its successor.
        assert!(!registry.renew(first, 0, start + LEASE));
        assert_eq!(registry.leave(first), None);
        assert!(registry.is_member(second));
    }

    #[test]
    fn node_of_other_version_or_without_name_or_address_is_refused() {
        let (mut registry, now) = (Registry::new("2"), Instant::now());
        let text = registry.join(node("a", 1), peer(), now).unwrap_err().to_string();
        assert_eq!(text, "the node runs ropewalk 1, and the front end 2: both need the same version");
        let mut registry = Registry::new("1");
        for name in ["", "a b", "a\n", &"x".repeat(65)] {
            let refused = registry.join(node(name, 1), peer(), now);
            assert_eq!(refused, Err(JoinError::Name(name.into())));
        }
        let nowhere = Announcement { addresses: Vec::new(), ..node("a", 1) };
        assert_eq!(registry.join(nowhere, peer(), now), Err(JoinError::NoAddress));
        assert!(registry.is_empty());
    }

    #[test]
    fn node_with_absurd_capacity_or_address_is_refused() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        for capacity in [0, 1_000_000_000_000_001, u64::MAX] {
            assert_eq!(registry.join(node("a", capacity), peer(), now), Err(JoinError::Capacity(capacity)));
        }
        for address in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "::ffff:0.0.0.0"] {
            let address: IpAddr = address.parse().unwrap();
            let announced = Announcement { addresses: vec![peer().ip(), address], ..node("a", 1) };
            assert_eq!(registry.join(announced, peer(), now), Err(JoinError::Address(address)));
        }
        let everywhere = Announcement { addresses: vec![peer().ip(); 65], ..node("a", 1) };
        assert_eq!(registry.join(everywhere, peer(), now), Err(JoinError::Addresses(65)));
        assert!(registry.is_empty());
        for (name, capacity) in [("a", 1), ("b", 1_000_000_000_000_000)] {
            registry.join(node(name, capacity), peer(), now).unwrap();
        }
    }

    #[test]
    fn channel_goes_to_node_with_most_free_capacity() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        assert_eq!(registry.choose(|_| true, &[], 1, now), []);
        let small = registry.join(node("small", 10), peer(), now).unwrap();
        let large = registry.join(node("large", 30), peer(), now).unwrap();
        let mut given = Vec::new();
        for _ in 0..8 {
            let [(id, _)] = registry.choose(|_| true, &[], 1, now)[..] else { panic!() };
            registry.channel_opened(id);
            given.push(id);
        }
        assert_eq!(given.iter().filter(|id| **id == large).count(), 6, "{given:?}");
        // A session keeps its node if none is better.
        assert_eq!(registry.choose(|_| true, &[small], 1, now)[0].0, small);
        for _ in 0..6 {
            registry.channel_closed(large);
        }
        assert_eq!(registry.choose(|_| true, &[small], 1, now)[0].0, large);
        assert_eq!(registry.choose(|ip| ip.is_ipv6(), &[], 1, now), []);
    }

    #[test]
    fn channels_of_other_front_ends_count() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        let [a, b] = ["a", "b"].map(|name| registry.join(node(name, 10), peer(), now).unwrap());
        let chosen = |registry: &mut Registry| registry.choose(|_| true, &[], 1, now)[0].0;
        assert_eq!(chosen(&mut registry), a);
        assert!(registry.renew(a, 2, now));
        assert_eq!(chosen(&mut registry), b);
        registry.channel_opened(b);
        registry.channel_opened(b);
        assert!(registry.renew(a, 1, now));
        assert_eq!(chosen(&mut registry), a);
        // A node that reports more than there can be gets no channel before others.
        assert!(registry.renew(a, u32::MAX, now));
        registry.channel_opened(a);
        assert_eq!(chosen(&mut registry), b);
        assert_eq!(registry.members()[0].elsewhere, u32::MAX);
    }

    #[test]
    fn striped_channel_gets_as_many_nodes_as_there_are_up_to_the_limit() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        let ids = [("a", 10), ("b", 30), ("c", 20)]
            .map(|(name, capacity)| registry.join(node(name, capacity), peer(), now).unwrap());
        let chosen = |registry: &mut Registry, count| -> Vec<NodeId> {
            registry.choose(|_| true, &[], count, now).into_iter().map(|(id, _)| id).collect()
        };
        assert_eq!(chosen(&mut registry, 9), [ids[1], ids[2], ids[0]]);
        assert_eq!(chosen(&mut registry, 2), [ids[1], ids[2]]);
        registry.drain(ids[1]);
        assert_eq!(chosen(&mut registry, 9), [ids[2], ids[0]]);
    }

    /// The number of channels on each node after proposals to all of them have been carried out.
    fn spread(registry: &mut Registry, channels: &mut [NodeId], now: Instant) -> Vec<usize> {
        let proposed: Vec<_> =
            channels.iter().map(|own| registry.propose(|_| true, &[*own], 1, now)).collect();
        for (own, proposal) in channels.iter_mut().zip(&proposed) {
            let Some(proposal) = proposal else { continue };
            assert_eq!((&*proposal.from, proposal.count), (&[*own][..], 1));
            registry.channel_closed(*own);
            registry.withdraw(proposal);
            *own = registry.choose(|_| true, &[], 1, now)[0].0;
            registry.channel_opened(*own);
        }
        let ids: Vec<NodeId> = registry.entries.keys().copied().collect();
        ids.iter().map(|id| channels.iter().filter(|own| *own == id).count()).collect()
    }

    #[test]
    fn node_that_joins_gets_its_share_of_channels_and_no_channel_moves_twice() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        let a = registry.join(node("a", 10_000), peer(), now).unwrap();
        let mut channels = [a; 8];
        (0..8).for_each(|_| registry.channel_opened(a));
        assert_eq!(spread(&mut registry, &mut channels, now), [8]);
        registry.join(node("b", 10_000), peer(), now).unwrap();
        assert_eq!(spread(&mut registry, &mut channels, now), [4, 4]);
        assert_eq!(spread(&mut registry, &mut channels, now), [4, 4]);
        registry.join(node("c", 30_000), peer(), now).unwrap();
        assert_eq!(spread(&mut registry, &mut channels, now), [2, 1, 5]);
        assert_eq!(spread(&mut registry, &mut channels, now), [2, 1, 5]);
    }

    #[test]
    fn proposal_needs_a_clear_gain_a_suitable_address_and_a_node_that_takes_channels() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        let a = registry.join(node("a", 100), peer(), now).unwrap();
        registry.channel_opened(a);
        // One channel has a node for itself already.
        let b = registry.join(node("b", 124), peer(), now).unwrap();
        assert_eq!(registry.propose(|_| true, &[a], 1, now), None);
        let c = registry.join(node("c", 125), peer(), now).unwrap();
        assert_eq!(registry.propose(|ip| ip.is_ipv6(), &[a], 1, now), None);
        let moves = registry.propose(|_| true, &[a], 1, now).unwrap();
        assert_eq!(moves, Proposal { from: vec![a], to: vec![c], count: 1 });
        // It counts until it is withdrawn.
        let other = registry.propose(|_| true, &[], 1, now).unwrap();
        assert_eq!(other.to, [b]);
        registry.withdraw(&other);
        registry.withdraw(&moves);
        registry.drain(c);
        assert_eq!(registry.propose(|_| true, &[a], 1, now), None);
        // A node that drains is left, and so is one that is gone.
        registry.drain(a);
        let leaves = registry.propose(|_| true, &[a], 1, now).unwrap();
        assert_eq!((&leaves.from[..], &leaves.to[..]), (&[a][..], &[b][..]));
        registry.withdraw(&leaves);
        registry.leave(a);
        assert_eq!(registry.propose(|_| true, &[a], 1, now).unwrap().to, [b]);
    }

    #[test]
    fn striped_channel_is_proposed_more_nodes_and_one_of_this_process_its_first() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        assert_eq!(registry.propose(|_| true, &[], 1, now), None);
        let a = registry.join(node("a", 10), peer(), now).unwrap();
        assert_eq!(registry.propose(|_| true, &[], 1, now).unwrap().to, [a]);
        registry.channel_opened(a);
        assert_eq!(registry.propose(|_| true, &[a], 8, now), None);
        let b = registry.join(node("b", 1), peer(), now).unwrap();
        let more = registry.propose(|_| true, &[a], 8, now).unwrap();
        assert_eq!(more, Proposal { from: Vec::new(), to: vec![b], count: 2 });
        // It has as many as it may have.
        registry.join(node("c", 1), peer(), now).unwrap();
        assert_eq!(registry.propose(|_| true, &[a, b], 2, now), None);
    }

    #[test]
    fn draining_node_gets_no_channel() {
        let (mut registry, now) = (Registry::new("1"), Instant::now());
        let a = registry.join(node("a", 10), peer(), now).unwrap();
        registry.drain(a);
        assert_eq!(registry.choose(|_| true, &[a], 1, now), []);
        assert!(registry.is_member(a) && !registry.takes_channels(a));
        assert!(registry.renew(a, 0, now + RENEWAL));
        assert_eq!(registry.leave(a).as_deref(), Some("a"));
    }
}
