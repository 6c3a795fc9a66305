//! Rules for the servers to which connections on behalf of clients are permitted.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ropewalk_client::far::Gate;
use ropewalk_security::{AddressPattern, InvalidAddressPattern, canonical};

/// A host name, or addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// Permits all addresses of the name, except addresses of this host or this link.
    Name(String),
    Addresses(AddressPattern),
}

/// The permitted servers: `data.example.org,192.0.2.0/24`. An empty list permits none.
///
/// Addresses are compared after a name is resolved, and the connection goes to the address that was
/// compared. The same rules apply to another address that a server announces for data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets(Vec<Rule>);

/// A rule is neither a host name, nor an address, nor a network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    #[error("there is an empty rule in the list of servers")]
    Empty,
    #[error(transparent)]
    Address(#[from] InvalidAddressPattern),
    #[error("{0:?} is not the name of a host")]
    Name(String),
}

impl Targets {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the rules of another list.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

impl FromStr for Targets {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(',').map(|rule| rule.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Rule {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err(InvalidTarget::Empty);
        }
        let numeric = text.contains('/') || text.contains(':') || text == "*";
        let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        if numeric || digits {
            return Ok(Self::Addresses(text.parse()?));
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if !text.bytes().all(plain) {
            return Err(InvalidTarget::Name(text.to_owned()));
        }
        Ok(Self::Name(text.trim_end_matches('.').to_ascii_lowercase()))
    }
}

impl fmt::Display for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, rule) in self.0.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            match rule {
                Rule::Name(name) => write!(f, "{comma}{name}")?,
                Rule::Addresses(pattern) => write!(f, "{comma}{pattern}")?,
            }
        }
        Ok(())
    }
}

impl Gate for Targets {
    fn permits(&self, host: &str, address: SocketAddr) -> Result<(), String> {
        let ip = canonical(address.ip());
        let name = host.trim_end_matches('.');
        let permitted = self.0.iter().any(|rule| match rule {
            Rule::Name(rule) => rule.eq_ignore_ascii_case(name) && !is_inside(rule, ip),
            Rule::Addresses(pattern) => pattern.matches(ip),
        });
        if permitted {
            return Ok(());
        }
        Err(format!("the rules of this host permit no connection to {host} ({ip})"))
    }
}

/// Addresses that the name of another host must not resolve to.
fn is_inside(rule: &str, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => {
            v4.is_loopback() && rule != "localhost" || v4.is_link_local() || v4.is_unspecified()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback() && rule != "localhost" || v6.is_unicast_link_local() || v6.is_unspecified()
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn permits(rules: &str, host: &str, address: &str) -> bool {
        let targets: Targets = rules.parse().unwrap();
        targets.permits(host, format!("{address}:21").parse().unwrap()).is_ok()
    }

    #[test]
    fn targets_permit_addresses_of_networks_and_names_of_hosts() {
        assert!(permits("127.0.0.1", "127.0.0.1", "127.0.0.1"));
        assert!(permits("192.0.2.0/24, data.example.org", "any", "192.0.2.77"));
        assert!(permits("192.0.2.0/24,Data.example.org.", "data.EXAMPLE.org", "203.0.113.5"));
        assert!(permits("2001:db8::/32", "any", "[2001:db8::1]"));
        assert!(permits("127.0.0.0/8", "any", "[::ffff:127.0.0.1]"));
        assert!(!permits("192.0.2.0/24", "192.0.2.1.example.org", "203.0.113.5"));
    }

    #[test]
    fn name_that_resolves_to_this_host_or_link_is_refused() {
        assert!(!permits("data.example.org", "data.example.org", "127.0.0.1"));
        assert!(!permits("data.example.org", "data.example.org", "169.254.169.254"));
        assert!(!permits("data.example.org", "data.example.org", "[::1]"));
        assert!(permits("localhost", "localhost", "127.0.0.1"));
    }

    #[test]
    fn invalid_or_empty_rule_is_an_error() {
        for text in ["", "a,,b", "192.0.2.0/99", "a b", "ftp://host"] {
            assert!(text.parse::<Targets>().is_err(), "{text}");
        }
        assert_eq!("A.b,10.0.0.0/8".parse::<Targets>().unwrap().to_string(), "a.b,10.0.0.0/8");
        assert!(Targets::default().permits("h", "192.0.2.1:21".parse().unwrap()).is_err());
    }
}
