use ropewalk_security::AddressPattern;
use serde::{Deserialize, Serialize};

/// From where clients may connect. An address that matches `deny` is turned away; where `allow` is not empty, so is
/// every address that does not match it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Addresses, networks (`10.0.0.0/8`, `2001:db8::/32`) or prefixes (`192.168.`). Default: everybody.
    pub allow: Vec<AddressPattern>,
    /// As `allow`. Default: nobody.
    pub deny: Vec<AddressPattern>,
}
