//! Checks the addresses that sessions connect to, after the resolution of names. The client library
//! asks for each connection, also for data, and connects to the address that was checked.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use ropewalk_remote_store::{Gate, Targets};
use ropewalk_transport::local_address;

use crate::target::Rules;

pub(crate) struct Guard {
    rules: Rules,
    targets: Targets,
    /// The addresses at which the gateway listens.
    own: Arc<OnceLock<Vec<SocketAddr>>>,
}

impl Guard {
    pub(crate) fn new(rules: Rules, targets: Targets, own: Arc<OnceLock<Vec<SocketAddr>>>) -> Self {
        Self { rules, targets, own }
    }

    /// Whether a connection would end at the gateway itself.
    fn is_own(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        self.own.get().into_iter().flatten().filter(|own| own.port() == address.port()).any(|own| {
            let listening = own.ip().to_canonical();
            // A gateway that listens at all addresses has those to which this host connects from
            // the same address.
            let is_here = || ip.is_loopback() || local_address(address).is_ok_and(|local| local == ip);
            listening == ip || listening.is_unspecified() && is_here()
        })
    }
}

impl Gate for Guard {
    fn permits(&self, host: &str, address: SocketAddr) -> Result<(), String> {
        if self.is_own(address) {
            return Err("the gateway cannot be its own target".to_owned());
        }
        match self.rules {
            Rules::Configured => Ok(()),
            Rules::Listed => self.targets.permits(host, address),
            Rules::Public if is_public(address.ip()) => Ok(()),
            Rules::Public => {
                let ip = address.ip();
                Err(format!("{ip} is no public address: the operator has to list it (--allow-target)"))
            }
        }
    }
}

/// Whether an address belongs to a host of the internet, as opposed to this host or its networks.
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => {
            let segments = ip.segments();
            // Addresses with an IPv4 address in them: 6to4, and NAT64 (RFC 6052).
            let embedded = match segments {
                [0x2002, a, b, ..] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => Some((a, b)),
                [0, 0, 0, 0, 0, 0, a, b] => Some((a, b)),
                _ => None,
            };
            let embedded = embedded.map(|(a, b)| Ipv4Addr::from(u32::from(a) << 16 | u32::from(b)));
            !(ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_unique_local()
                || ip.is_unicast_link_local()
                // Site-local (RFC 3879).
                || segments[0] & 0xffc0 == 0xfec0
                || embedded.is_some_and(|ip| !is_public_v4(ip)))
        }
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_broadcast()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        // Shared address space (RFC 6598), benchmarks (RFC 2544).
        || a == 100 && (64..128).contains(&b)
        || a == 198 && (b == 18 || b == 19))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn guard(rules: Rules, targets: &str, own: &str) -> Guard {
        let guard = Guard::new(rules, targets.parse().unwrap(), Arc::default());
        guard.own.set(vec![own.parse().unwrap()]).unwrap();
        guard
    }

    #[test]
    fn addresses_within_the_site_are_not_public() {
        for inside in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.1.1",
            "172.16.0.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "fe80::1",
            "fd00::1",
            "fec0::1",
            "ff02::1",
            "2002:7f00:1::",
            "64:ff9b::a00:1",
            "::10.0.0.1",
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["8.8.8.8", "192.0.2.1", "2001:4860::1", "64:ff9b::808:808"] {
            assert!(is_public(outside.parse().unwrap()), "{outside}");
        }
    }

    #[test]
    fn gateway_is_never_its_own_target() {
        for rules in [Rules::Listed, Rules::Public, Rules::Configured] {
            let guard = guard(rules, "*", "[::]:2121");
            assert!(guard.permits("h", "127.0.0.1:2121".parse().unwrap()).is_err());
            assert!(guard.permits("h", "[::1]:2121".parse().unwrap()).is_err());
        }
        let guard = guard(Rules::Listed, "127.0.0.1", "127.0.0.1:2121");
        assert!(guard.permits("h", "127.0.0.1:2121".parse().unwrap()).is_err());
        assert!(guard.permits("h", "127.0.0.1:2811".parse().unwrap()).is_ok());
        assert!(guard.permits("h", "127.0.0.2:2811".parse().unwrap()).is_err());
    }
}
