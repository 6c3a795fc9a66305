//! Addresses and routes of a host, set through netlink. The interfaces must exist already.
//! Addresses have no automatic prefix routes; all routes are set here, because a route can also set
//! the congestion control.

use crate::scenario::{Interface, Route, V4_PREFIX, V6_PREFIX, networks};
use ropewalk_netlink::{Netlink, Request};
use rustix::net::netdevice::name_to_index;
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    path::Path,
};

const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const IFF_UP: u32 = 1;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
const IFA_F_NODAD: u32 = 2;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_METRICS: u16 = 8;
const RTAX_CC_ALGO: u16 = 16;
const RT_TABLE_MAIN: u8 = 254;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const RTN_UNICAST: u8 = 1;

/// The addresses and routes of one host.
pub(crate) struct Ends<'a> {
    /// The interfaces, which must exist.
    pub(crate) interfaces: &'a [Interface],
    /// Networks behind other hosts.
    pub(crate) routes: &'a [Route],
    /// Congestion control that the routes set.
    pub(crate) congestion: Option<&'a str>,
}

/// Sets up the addresses and routes of the interfaces in the calling thread's network namespace.
pub(crate) fn configure(ends: &Ends<'_>) -> io::Result<()> {
    let mut netlink = Netlink::route()?;
    let with_v6 = Path::new("/proc/sys/net/ipv6").exists();
    for interface in ends.interfaces {
        set_up(&mut netlink, &interface.name)?;
        let index = name_to_index(&netlink, &interface.name)?;
        let (v4, v6) = networks(interface.link);
        netlink.ask(address(index, interface.v4.into(), V4_PREFIX))?;
        netlink.ask(route(index, (v4.into(), V4_PREFIX), None, ends.congestion))?;
        if with_v6 {
            netlink.ask(address(index, interface.v6.into(), V6_PREFIX))?;
            netlink.ask(route(index, (v6.into(), V6_PREFIX), None, ends.congestion))?;
        }
    }
    for beyond in ends.routes {
        let Some(interface) = ends.interfaces.get(beyond.interface) else { continue };
        let index = name_to_index(&netlink, &interface.name)?;
        let (v4, v6) = networks(beyond.link);
        netlink.ask(route(index, (v4.into(), V4_PREFIX), Some(interface.peer_v4.into()), ends.congestion))?;
        if with_v6 {
            netlink.ask(route(
                index,
                (v6.into(), V6_PREFIX),
                Some(interface.peer_v6.into()),
                ends.congestion,
            ))?;
        }
    }
    Ok(())
}

/// Brings an interface up.
pub(super) fn set_up(netlink: &mut Netlink, interface: &str) -> io::Result<()> {
    let mut fixed = vec![0; 4];
    fixed.extend(name_to_index(&*netlink, interface)?.to_ne_bytes());
    fixed.extend(IFF_UP.to_ne_bytes());
    fixed.extend(IFF_UP.to_ne_bytes());
    netlink.ask(Request::new(RTM_NEWLINK, 0, &fixed))
}

fn address(index: u32, address: IpAddr, prefix: u8) -> Request {
    let bytes = octets(address);
    let mut fixed = vec![family(address), prefix, 0, RT_SCOPE_UNIVERSE];
    fixed.extend(index.to_ne_bytes());
    // `configure` adds the prefix routes itself, as they may carry a congestion control. No other
    // host can have the address, so duplicate address detection is off.
    let flags = IFA_F_NODAD | IFA_F_NOPREFIXROUTE;
    Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &fixed)
        .with(IFA_LOCAL, &bytes)
        .with(IFA_ADDRESS, &bytes)
        .with(IFA_FLAGS, &flags.to_ne_bytes())
}

fn route(index: u32, to: (IpAddr, u8), gateway: Option<IpAddr>, congestion: Option<&str>) -> Request {
    let scope = if gateway.is_none() && to.0.is_ipv4() { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
    let mut fixed = vec![family(to.0), to.1, 0, 0, RT_TABLE_MAIN, RTPROT_STATIC, scope, RTN_UNICAST];
    fixed.extend([0; 4]);
    let mut request = Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &fixed)
        .with(RTA_DST, &octets(to.0))
        .with(RTA_OIF, &index.to_ne_bytes());
    if let Some(gateway) = gateway {
        request = request.with(RTA_GATEWAY, &octets(gateway));
    }
    if let Some(congestion) = congestion {
        let mut name = congestion.as_bytes().to_vec();
        name.push(0);
        let mut metric = (name.len() as u16 + 4).to_ne_bytes().to_vec();
        metric.extend(RTAX_CC_ALGO.to_ne_bytes());
        metric.extend(name);
        metric.resize(metric.len().next_multiple_of(4), 0);
        request = request.with(RTA_METRICS, &metric);
    }
    request
}

fn family(address: IpAddr) -> u8 {
    // AF_INET, AF_INET6
    if address.is_ipv4() { 2 } else { 10 }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => Ipv4Addr::octets(&address).to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
