//! Rules for the addresses that clients may connect from.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of addresses: one address (`192.0.2.1`), a network (`192.0.2.0/24`, `2001:db8::/32`), a
/// prefix of whole numbers (`192.0.2.` or `192.0.2`, as GCT writes them; `2001:db8:`), or every
/// address (`*`).
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressPattern {
    base: IpAddr,
    bits: u8,
    everything: bool,
}

/// The text is not an address, a network or a prefix of an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address, a network such as 192.0.2.0/24, or a prefix such as 192.0.2.")]
pub struct InvalidAddressPattern(String);

impl AddressPattern {
    pub fn matches(&self, address: IpAddr) -> bool {
        if self.everything {
            return true;
        }
        match (self.base, canonical(address)) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                (u32::from(base) ^ u32::from(address)) & mask == 0
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                (u128::from(base) ^ u128::from(address)) & mask == 0
            }
            _ => false,
        }
    }
}

/// Returns an IPv4 address that arrived through an IPv6 socket (`::ffff:192.0.2.1`) as IPv4, and
/// any other address unchanged.
pub fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

impl FromStr for AddressPattern {
    type Err = InvalidAddressPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let invalid = || InvalidAddressPattern(text.to_owned());
        if text == "*" {
            return Ok(Self { base: IpAddr::from([0; 4]), bits: 0, everything: true });
        }
        let whole = |base: IpAddr| if base.is_ipv4() { 32 } else { 128 };
        let (base, bits) = if let Some((address, bits)) = text.split_once('/') {
            let base: IpAddr = address.parse().map_err(|_| invalid())?;
            let bits: u8 = bits.parse().map_err(|_| invalid())?;
            if bits > whole(base) {
                return Err(invalid());
            }
            // `matches` compares mapped addresses as IPv4, so a mapped IPv6 network would never
            // match.
            match (base, canonical(base)) {
                (IpAddr::V6(_), v4 @ IpAddr::V4(_)) if bits >= 96 => (v4, bits - 96),
                _ => (base, bits),
            }
        } else if let Ok(base) = text.parse::<IpAddr>() {
            let base = canonical(base);
            (base, whole(base))
        } else if let Some(prefix) = v4_prefix(text).or_else(|| v6_prefix(text)) {
            prefix
        } else {
            return Err(invalid());
        };
        Ok(Self { base, bits, everything: false })
    }
}

/// Parses an IPv4 prefix: `192.0.2.`, `192.0.2`, `10.`
fn v4_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let mut octets = [0; 4];
    let mut count = 0;
    for part in text.strip_suffix('.').unwrap_or(text).split('.') {
        *octets.get_mut(count)? = part.parse().ok()?;
        count += 1;
    }
    (count < 4).then_some((IpAddr::from(octets), count as u8 * 8))
}

/// Parses an IPv6 prefix: `2001:db8:`
fn v6_prefix(text: &str) -> Option<(IpAddr, u8)> {
    let mut groups = [0; 8];
    let mut count = 0;
    for part in text.strip_suffix(':')?.split(':') {
        *groups.get_mut(count)? = u16::from_str_radix(part, 16).ok()?;
        count += 1;
    }
    (count < 8).then_some((IpAddr::from(groups), count as u8 * 16))
}

impl TryFrom<String> for AddressPattern {
    type Error = InvalidAddressPattern;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<AddressPattern> for String {
    fn from(pattern: AddressPattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for AddressPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.everything { f.write_str("*") } else { write!(f, "{}/{}", self.base, self.bits) }
    }
}

/// Decides which addresses may connect: none that `deny` names, and if `allow` is not empty, only
/// those that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessList {
    allow: Vec<AddressPattern>,
    deny: Vec<AddressPattern>,
}

impl AccessList {
    pub fn new(allow: Vec<AddressPattern>, deny: Vec<AddressPattern>) -> Self {
        Self { allow, deny }
    }

    pub fn permits(&self, address: IpAddr) -> bool {
        let named = |list: &[AddressPattern]| list.iter().any(|p| p.matches(address));
        !named(&self.deny) && (self.allow.is_empty() || named(&self.allow))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn matches(pattern: &str, address: &str) -> bool {
        pattern.parse::<AddressPattern>().unwrap().matches(address.parse().unwrap())
    }

    #[test]
    fn pattern_matches_addresses() {
        assert!(matches("192.0.2.1", "192.0.2.1"));
        assert!(matches("192.0.2.1", "::ffff:192.0.2.1"));
        assert!(matches("::ffff:192.0.2.0/120", "192.0.2.9"));
        assert!(matches("192.0.2.0/24", "192.0.2.200"));
        assert!(!matches("192.0.2.0/24", "192.0.3.1"));
        assert!(matches("0.0.0.0/0", "8.8.8.8"));
        assert!(!matches("0.0.0.0/0", "::1"));
        assert!(matches("10.1.", "10.1.200.3"));
        assert!(!matches("10.1.", "10.100.0.1"));
        assert!(!matches("10.1", "10.100.0.1"));
        assert!(matches("2001:db8::/32", "2001:db8:1::1"));
        assert!(matches("2001:db8:", "2001:db8:ffff::1"));
        assert!(!matches("2001:db8:", "2001:db9::1"));
        assert!(matches("::1", "::1"));
        assert!(matches("*", "::1") && matches("*", "10.0.0.1"));
    }

    #[test]
    fn pattern_of_invalid_text_fails() {
        for text in ["", ".", "300.1.", "10.0.0.0/33", "::/129", "host", "1.2.3.4.5", "10..1", "/8"] {
            assert!(text.parse::<AddressPattern>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn access_list_address_in_both_lists_refuses() {
        let list = AccessList::new(vec!["10.".parse().unwrap()], vec!["10.1.".parse().unwrap()]);
        assert!(list.permits("10.0.0.1".parse().unwrap()));
        assert!(!list.permits("10.1.0.1".parse().unwrap()));
        assert!(!list.permits("11.0.0.1".parse().unwrap()));
        assert!(AccessList::default().permits("11.0.0.1".parse().unwrap()));
    }
}
