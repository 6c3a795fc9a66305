//! Interfaces, addresses and routes of a scenario's hosts. They follow from the order of the links
//! alone, so a scenario always has the same addresses. Hosts and links must form a tree, so there
//! is exactly one way between two hosts.

use super::Scenario;
use std::{
    collections::{BTreeMap, VecDeque},
    net::{Ipv4Addr, Ipv6Addr},
};

/// The interfaces of all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Interfaces of each host, in the order of the links.
    pub interfaces: BTreeMap<String, Vec<Interface>>,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface in its namespace.
    pub name: String,
    /// Index of the link.
    pub link: usize,
    /// The host at the other end.
    pub peer: String,
    /// IPv4 address; the network prefix has 30 bits.
    pub v4: Ipv4Addr,
    /// IPv6 address; the network prefix has 64 bits.
    pub v6: Ipv6Addr,
    /// IPv4 address of the other end.
    pub peer_v4: Ipv4Addr,
    /// IPv6 address of the other end.
    pub peer_v6: Ipv6Addr,
}

/// A route to a link behind an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of the interface in [`Topology::interfaces`].
    pub interface: usize,
    /// Index of the link whose networks are reached.
    pub link: usize,
}

/// Prefix length of the IPv4 network of a link.
pub(crate) const V4_PREFIX: u8 = 30;
/// Prefix length of the IPv6 network of a link.
pub(crate) const V6_PREFIX: u8 = 64;

/// The number of a link is one octet of its addresses.
pub(super) const MAX_LINKS: usize = 250;

/// The networks of a link.
pub(crate) fn networks(link: usize) -> (Ipv4Addr, Ipv6Addr) {
    addresses(link, 0)
}

fn addresses(link: usize, end: u8) -> (Ipv4Addr, Ipv6Addr) {
    // The namespaces are private, so these addresses cannot collide with those of the machine.
    (
        Ipv4Addr::new(10, 77, link as u8, end),
        Ipv6Addr::new(0xfd77, 0, 0, link as u16, 0, 0, 0, u16::from(end)),
    )
}

impl Topology {
    /// The topology of a scenario.
    pub fn new(scenario: &Scenario) -> Self {
        let mut interfaces: BTreeMap<String, Vec<Interface>> =
            scenario.hosts.keys().map(|host| (host.clone(), Vec::new())).collect();
        for (link, config) in scenario.links.iter().enumerate() {
            for (own, other) in [(0, 1), (1, 0)] {
                let (v4, v6) = addresses(link, own as u8 + 1);
                let (peer_v4, peer_v6) = addresses(link, other as u8 + 1);
                let of_host = interfaces.entry(config.between[own].clone()).or_default();
                let name = format!("wan{}", of_host.len());
                let peer = config.between[other].clone();
                of_host.push(Interface { name, link, peer, v4, v6, peer_v4, peer_v6 });
            }
        }
        Self { interfaces }
    }

    /// The interfaces of a host.
    pub fn of(&self, host: &str) -> &[Interface] {
        self.interfaces.get(host).map_or(&[], Vec::as_slice)
    }

    /// The routes by which `host` reaches the links that it is not connected to. `None` if hosts
    /// and links are not a tree: some host cannot be reached, or can be reached in two ways.
    pub fn routes(&self, host: &str) -> Option<Vec<Route>> {
        let mut routes = Vec::new();
        let mut seen = BTreeMap::from([(host, ())]);
        let mut queue = VecDeque::new();
        for (index, interface) in self.of(host).iter().enumerate() {
            if seen.insert(&interface.peer, ()).is_some() {
                return None;
            }
            queue.push_back((interface.peer.as_str(), interface.link, index));
        }
        while let Some((at, from, first)) = queue.pop_front() {
            for interface in self.of(at).iter().filter(|interface| interface.link != from) {
                if seen.insert(&interface.peer, ()).is_some() {
                    return None;
                }
                routes.push(Route { interface: first, link: interface.link });
                queue.push_back((&interface.peer, interface.link, first));
            }
        }
        (seen.len() == self.interfaces.len()).then_some(routes)
    }

    /// The addresses at which `from` reaches `host`: those of the nearest interface. If the two are
    /// the same host, those of its first interface.
    pub fn address(&self, host: &str, from: &str) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let own = self.of(host);
        let towards = if host == from {
            own.first()?
        } else {
            // In a tree exactly one interface is on the way to `from`.
            own.iter().find(|interface| self.leads_to(interface, from))?
        };
        Some((towards.v4, towards.v6))
    }

    fn leads_to(&self, interface: &Interface, host: &str) -> bool {
        interface.peer == host
            || self
                .of(&interface.peer)
                .iter()
                .any(|further| further.link != interface.link && self.leads_to(further, host))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn topology(links: &[(&str, &str)]) -> Topology {
        let mut text = String::from("title = \"t\"\nkernel.congestion = \"reno\"\n");
        let mut hosts: Vec<_> = links.iter().flat_map(|(a, b)| [*a, *b]).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts.iter().for_each(|host| text.push_str(&format!("[hosts.{host}]\n")));
        links.iter().for_each(|(a, b)| {
            text.push_str(&format!("[[links]]\nbetween = [\"{a}\", \"{b}\"]\npath = {{}}\n"));
        });
        Topology::new(&toml::from_str(&text).unwrap())
    }

    #[test]
    fn routes_in_a_chain_lead_through_the_relay() {
        let topology = topology(&[("left", "relay"), ("relay", "right")]);
        assert_eq!(topology.routes("left"), Some(vec![Route { interface: 0, link: 1 }]));
        assert_eq!(topology.routes("relay"), Some(vec![]));
        let (v4, v6) = topology.address("right", "left").unwrap();
        assert_eq!((v4.to_string(), v6.to_string()), ("10.77.1.2".into(), "fd77:0:0:1::2".into()));
        assert_eq!(topology.address("relay", "right").unwrap().0.to_string(), "10.77.1.1");
        assert_eq!(topology.address("relay", "left").unwrap().0.to_string(), "10.77.0.2");
        assert_eq!(topology.address("left", "left").unwrap().0.to_string(), "10.77.0.1");
    }

    #[test]
    fn routes_without_a_tree_are_none() {
        assert_eq!(topology(&[("a", "b"), ("b", "c"), ("c", "a")]).routes("a"), None);
        assert_eq!(topology(&[("a", "b"), ("b", "a")]).routes("a"), None);
        assert_eq!(topology(&[("a", "b"), ("c", "d")]).routes("a"), None);
        assert_eq!(topology(&[("s", "a"), ("s", "b"), ("s", "c")]).routes("a").unwrap().len(), 2);
    }
}
