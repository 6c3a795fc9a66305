//! Names of congestion control algorithms, for `OPTS RETR Congestion=`. This is a Ropewalk
//! extension.

use std::fmt;
use std::str::FromStr;

/// Longest name in the kernel: TCP_CA_NAME_MAX without the final NUL (linux/tcp.h).
const MAX: usize = 15;

/// The word that resets the choice. It is therefore not a valid name.
pub(crate) const DEFAULT: &[u8] = b"default";

/// The name of a congestion control algorithm (`bbr`), as tcp(7) takes it for TCP_CONGESTION: lower
/// case letters, digits, `_` and `-`. The type does not ensure that a host supports the algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CongestionName {
    bytes: [u8; MAX],
    length: u8,
}

/// The text cannot be the name of a congestion control algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a congestion control has a name of 1 to {MAX} letters, digits, _ and -, and not \"default\"")]
pub struct NotACongestionName;

impl CongestionName {
    pub(crate) fn parse(name: &[u8]) -> Result<Self, NotACongestionName> {
        let valid = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
        if name.is_empty()
            || name.len() > MAX
            || !name.iter().all(valid)
            || name.eq_ignore_ascii_case(DEFAULT)
        {
            return Err(NotACongestionName);
        }
        let mut bytes = [0; MAX];
        bytes[..name.len()].copy_from_slice(name);
        bytes.make_ascii_lowercase();
        Ok(Self { bytes, length: name.len() as u8 })
    }

    pub fn as_str(&self) -> &str {
        // `parse` has checked that these bytes are ASCII.
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

/// Names are accepted in any case.
impl FromStr for CongestionName {
    type Err = NotACongestionName;

    fn from_str(name: &str) -> Result<Self, NotACongestionName> {
        Self::parse(name.as_bytes())
    }
}

impl fmt::Display for CongestionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for CongestionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_name_accepts_only_valid_names() {
        for name in ["bbr", "dctcp-reno", "a", "exactly_fifteen"] {
            assert_eq!(name.parse::<CongestionName>().map(|n| n.to_string()), Ok(name.to_owned()));
        }
        assert_eq!("BBR".parse::<CongestionName>(), "bbr".parse());
        for name in ["", "default", "Default", "a b", "a;b", "sixteen_letters_", "b\u{e4}r", "a\0"] {
            assert_eq!(name.parse::<CongestionName>(), Err(NotACongestionName), "{name}");
        }
    }
}
