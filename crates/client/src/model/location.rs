//! One end of a copy.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bstr::{BStr, ByteSlice};
use ropewalk_protocol::url::{Target, Url};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::as_text::Name;

/// Where data is or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A local file or directory; a trailing `/` means a directory.
    Local(PathBuf),
    /// Standard input (source) or standard output (destination): `-`.
    Standard,
    /// `zero:SIZE` (source: that many zero bytes) or `null:` (destination: discards).
    Measure {
        size: u64,
    },
    Remote(Url),
}

impl Location {
    /// Whether it ends with `/`: the contents of a source, the inside of a destination.
    pub fn ends_with_slash(&self) -> bool {
        match self {
            Self::Local(path) => path.as_os_str().as_bytes().ends_with(b"/"),
            Self::Remote(url) => url.is_directory(),
            Self::Standard | Self::Measure { .. } => false,
        }
    }

    /// Its path, raw bytes; empty without a path.
    pub fn path(&self) -> &BStr {
        match self {
            Self::Local(path) => path.as_os_str().as_bytes().as_bstr(),
            Self::Remote(url) => url.path.as_bstr(),
            Self::Standard | Self::Measure { .. } => b"".as_bstr(),
        }
    }
}

pub(crate) fn describe(location: &Location) -> String {
    match location {
        Location::Local(path) => path.to_string_lossy().into_owned(),
        Location::Remote(url) => url.to_string(),
        Location::Standard => "-".to_owned(),
        Location::Measure { size: 0 } => "null:".to_owned(),
        Location::Measure { size } => format!("zero:{size}"),
    }
}

/// The text that [`parse_location`] reads as the same location, without the password of a URL; of a
/// local path without such a text the array of its bytes.
impl Serialize for Location {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = match self {
            Self::Local(path) if parse_location(path).as_ref() != Ok(self) => {
                Name::Bytes(path.as_os_str().as_bytes().to_vec())
            }
            Self::Local(path) => Name::new(path.as_os_str().as_bytes()),
            other => Name::Text(describe(other)),
        };
        name.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Location {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Name::deserialize(deserializer)? {
            Name::Text(text) => parse_location(text).map_err(D::Error::custom),
            Name::Bytes(path) => Ok(Self::Local(OsStr::from_bytes(&path).into())),
        }
    }
}

/// A text that names no location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given}: {reason}")]
pub struct LocationError {
    pub given: String,
    pub reason: String,
}

/// Parses `-`, `zero:SIZE` (with K, M, G, T for powers of 1024), `null:`, `file:`, `gsiftp:` and
/// `ftp:` URLs; any other text is a local path. Local paths may have bytes that are not UTF-8.
///
/// # Errors
/// The text is empty, `zero:` is not followed by a size, or the text begins like a URL and is not a
/// known one ([`Target::parse`]).
pub fn parse_location(given: impl AsRef<OsStr>) -> Result<Location, LocationError> {
    let given = given.as_ref();
    let Some(text) = given.to_str() else { return Ok(Location::Local(given.into())) };
    let wrong = |reason: String| LocationError { given: text.to_owned(), reason };
    if text.is_empty() {
        return Err(wrong("names nothing".to_owned()));
    }
    if text == "-" {
        return Ok(Location::Standard);
    }
    if text == "null:" {
        return Ok(Location::Measure { size: 0 });
    }
    if let Some(size) = text.strip_prefix("zero:") {
        let size =
            bytes(size).ok_or_else(|| wrong("expected zero:SIZE, a size as 10G or 4096".to_owned()))?;
        return Ok(Location::Measure { size });
    }
    if !Target::looks_like_url(text) {
        return Ok(Location::Local(given.into()));
    }
    match Target::parse(text).map_err(|e| wrong(e.to_string()))? {
        Target::File(path) => Ok(Location::Local(OsStr::from_bytes(&path).into())),
        Target::Remote(url) => Ok(Location::Remote(url)),
    }
}

/// A number of bytes: `4096`, `10G`, `1.5M`, `64KiB`.
fn bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let power = match unit.to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << (10 * power));
    }
    let value = number.parse::<f64>().ok()? * (1u64 << (10 * power)) as f64;
    (value >= 0.0 && value < u64::MAX as f64).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(parse_location("-").unwrap(), Location::Standard);
        assert_eq!(parse_location("zero:10M").unwrap(), Location::Measure { size: 10 << 20 });
        assert_eq!(parse_location("zero:1.5KiB").unwrap(), Location::Measure { size: 1536 });
        assert_eq!(parse_location("null:").unwrap(), Location::Measure { size: 0 });
        assert_eq!(parse_location("file:///tmp/a%20b").unwrap(), Location::Local("/tmp/a b".into()));
        assert_eq!(parse_location("a:b").unwrap(), Location::Local("a:b".into()));
        assert!(matches!(parse_location("ftp://h/x").unwrap(), Location::Remote(_)));
        assert!(parse_location("http://h/x").is_err());
        assert!(parse_location("zero:many").is_err());
        assert!(parse_location("").is_err());
    }

    #[test]
    fn local_paths_keep_their_bytes() {
        let name = OsStr::from_bytes(b"\xff\xfe");
        assert_eq!(parse_location(name).unwrap(), Location::Local(name.into()));
    }
}
