use ropewalk_security::AddressPattern;
use serde::{Deserialize, Serialize};

/// The addresses from which clients may connect. An address that matches `deny` is turned away. If
/// `allow` is not empty, each address that does not match it is turned away as well.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Addresses, networks (`10.0.0.0/8`, `2001:db8::/32`) or prefixes (`192.168.`). Default: all
    /// addresses.
    pub allow: Vec<AddressPattern>,
    /// As `allow`. Default: none.
    pub deny: Vec<AddressPattern>,
}
