//! Markers: 111 restart, 112 performance and 113 status (GFD.20 section 3.5), printed exactly like
//! those of GCT; and 115, a Ropewalk extension.

mod path;

use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
pub use path::{LimitedBy, PathMarker};

use crate::range::{RangeError, RangeSet};
use crate::reply::Reply;

/// A preliminary reply that reports the progress of a transfer or of a checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marker {
    /// 111: ranges that the receiver has written since its last 111. A restart may rely on them.
    Range(RangeSet),
    /// 112: progress of one stripe.
    Perf(PerfMarker),
    /// 113: progress of a checksum.
    Status(StatusMarker),
    /// 115: state of the path as the sender sees it.
    Path(PathMarker),
    /// 115: the time for which the streams of this transfer have waited for the server's storage
    /// until now, summed over the streams. On the wire in whole microseconds:
    /// `115 Storage wait=2500000`.
    Storage(Duration),
    /// 115: data nodes have joined, and a data channel that is made now is over this number of
    /// nodes and better than the present one. On the wire: `115 Nodes count=2`.
    Nodes(u32),
}

/// 112: progress of one stripe in this transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMarker {
    /// Time in tenths of a second since 1970.
    pub timestamp: u64,
    pub stripe: u32,
    /// Bytes since the transfer began.
    pub bytes: u64,
    pub stripes: u32,
}

/// 113: progress of CKSM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusMarker {
    /// Time in tenths of a second since 1970.
    pub timestamp: u64,
    pub bytes: u64,
}

/// The reply has the code of a marker, but it cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    #[error("a {code} marker without {field}")]
    Missing { code: u16, field: &'static str },
    #[error("{field} of a {code} marker is {value:?}, expected a number")]
    NotANumber { code: u16, field: &'static str, value: BString },
    #[error("a 115 marker with the limit {0:?}, expected cwnd, rwnd, sndbuf or app")]
    UnknownLimit(BString),
    #[error("a 111 marker: {0}")]
    Ranges(#[from] RangeError),
}

impl Marker {
    /// Returns the reply that transmits this marker.
    pub fn to_reply(&self) -> Reply {
        match self {
            Self::Range(ranges) => Reply::new(111, format!("Range Marker {ranges}")),
            Self::Perf(marker) => {
                // The first line has two spaces, like that of globus-gridftp-server 13.24.
                let body = [
                    format!("Timestamp:  {}", tenths(marker.timestamp)),
                    format!("Stripe Index: {}", marker.stripe),
                    format!("Stripe Bytes Transferred: {}", marker.bytes),
                    format!("Total Stripe Count: {}", marker.stripes),
                ];
                Reply::indented(112, "Perf Marker", body, "End.")
            }
            Self::Status(marker) => {
                let body = [
                    format!("Timestamp: {}", tenths(marker.timestamp)),
                    format!("Bytes Processed: {}", marker.bytes),
                ];
                Reply::indented(113, "Status Marker", body, "End.")
            }
            Self::Path(marker) => path::to_reply(marker),
            Self::Storage(wait) => Reply::new(path::CODE, format!("Storage wait={}", wait.as_micros())),
            Self::Nodes(count) => Reply::new(path::CODE, format!("Nodes count={count}")),
        }
    }

    /// Returns `None` if the reply is not a marker. Spaces, case and the order of lines do not
    /// matter, and unknown lines are ignored. If the reply does not mention stripes, it is stripe 0
    /// of 1.
    pub fn from_reply(reply: &Reply) -> Option<Result<Self, MarkerError>> {
        match reply.code() {
            // Other servers also use 111 for other purposes (in RFC 959 the "restart marker reply"
            // is 110).
            111 => {
                let text = after(reply.text(), b"Range Marker")?.trim();
                let ranges = if text.is_empty() { Ok(RangeSet::new()) } else { RangeSet::parse(text) };
                Some(ranges.map(Self::Range).map_err(MarkerError::from))
            }
            112 => Some(parse_perf(reply).map(Self::Perf)),
            113 => Some(parse_status(reply).map(Self::Status)),
            path::CODE => {
                let text = |name: &[u8]| after(reply.text(), name);
                if let Some(text) = text(b"Storage ") {
                    return Some(path::micros(text, "wait").map(Self::Storage));
                }
                if let Some(text) = text(b"Nodes ") {
                    return Some(path::small(text, "count").map(Self::Nodes));
                }
                Some(path::parse(text(b"Path ")?).map(Self::Path))
            }
            _ => None,
        }
    }
}

fn parse_perf(reply: &Reply) -> Result<PerfMarker, MarkerError> {
    let small = |name: &'static str, default: u32| {
        let Some(value) = field(reply, name) else {
            return Ok(default);
        };
        let bad = |_| MarkerError::NotANumber { code: 112, field: name, value: value.into() };
        number(112, name, value).and_then(|n| u32::try_from(n).map_err(bad))
    };
    Ok(PerfMarker {
        timestamp: timestamp(reply)?,
        stripe: small("Stripe Index", 0)?,
        bytes: required(reply, "Stripe Bytes Transferred")?,
        stripes: small("Total Stripe Count", 1)?,
    })
}

fn parse_status(reply: &Reply) -> Result<StatusMarker, MarkerError> {
    Ok(StatusMarker { timestamp: timestamp(reply)?, bytes: required(reply, "Bytes Processed")? })
}

/// Returns the value of the line `name: value`.
fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a BStr> {
    let value =
        |line: &'a BStr| after(line.trim().as_bstr(), name.as_bytes())?.trim_start().strip_prefix(b":");
    reply.body().find_map(value).map(|v| v.trim().as_bstr())
}

/// Returns the text after `prefix`, which is matched in any case.
fn after<'a>(text: &'a BStr, prefix: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn required(reply: &Reply, name: &'static str) -> Result<u64, MarkerError> {
    let code = reply.code();
    number(code, name, field(reply, name).ok_or(MarkerError::Missing { code, field: name })?)
}

fn number(code: u16, field: &'static str, value: &BStr) -> Result<u64, MarkerError> {
    let digits = value.to_str().ok().filter(|v| v.bytes().all(|b| b.is_ascii_digit()));
    digits.and_then(|v| v.parse().ok()).ok_or_else(|| MarkerError::NotANumber {
        code,
        field,
        value: value.into(),
    })
}

/// Parses seconds with any number of decimals.
fn timestamp(reply: &Reply) -> Result<u64, MarkerError> {
    let (code, name) = (reply.code(), "Timestamp");
    let value = field(reply, name).ok_or(MarkerError::Missing { code, field: name })?;
    let (seconds, decimals) = value.split_once_str(".").unwrap_or((value, b"0"));
    let bad = || MarkerError::NotANumber { code, field: name, value: value.into() };
    if !decimals.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    let tenth = decimals.first().map_or(0, |d| u64::from(d - b'0'));
    let seconds = number(code, name, seconds.as_bstr()).map_err(|_| bad())?;
    seconds.checked_mul(10).and_then(|n| n.checked_add(tenth)).ok_or_else(bad)
}

fn tenths(timestamp: u64) -> String {
    format!("{}.{}", timestamp / 10, timestamp % 10)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn parse(reply: &Reply) -> Marker {
        Marker::from_reply(reply).unwrap().unwrap()
    }

    /// The lines are those of globus-gridftp-server 13.24.
    #[test]
    fn marker_replies_match_gct() {
        let perf = PerfMarker { timestamp: 17_952_891_462, stripe: 0, bytes: 10_000_000, stripes: 1 };
        assert_eq!(
            Marker::Perf(perf).to_reply().to_bytes().as_bstr(),
            "112-Perf Marker\r\n Timestamp:  1795289146.2\r\n Stripe Index: 0\r\n \
             Stripe Bytes Transferred: 10000000\r\n Total Stripe Count: 1\r\n112 End.\r\n"
        );
        let status = StatusMarker { timestamp: 17_952_891_462, bytes: 123 };
        assert_eq!(
            Marker::Status(status).to_reply().to_bytes().as_bstr(),
            "113-Status Marker\r\n Timestamp: 1795289146.2\r\n Bytes Processed: 123\r\n113 End.\r\n"
        );
        let ranges = [1_048_576..2_097_152, 3_145_728..4_194_304].into_iter().collect();
        assert_eq!(
            Marker::Range(ranges).to_reply().to_bytes().as_bstr(),
            "111 Range Marker 1048576-2097152,3145728-4194304\r\n"
        );
    }

    #[test]
    fn marker_with_unusual_spacing_and_order_is_parsed() {
        let body = ["Total stripe count : 4", "foo", "stripe bytes transferred:7", "Timestamp:\t12", "x: y"];
        let marker = parse(&Reply::indented(112, "perf", body, "End"));
        assert_eq!(marker, Marker::Perf(PerfMarker { timestamp: 120, stripe: 0, bytes: 7, stripes: 4 }));
        let body = ["Timestamp: 12.345", "Bytes Processed: 1"];
        assert_eq!(
            parse(&Reply::coded(113, ["a", body[0], body[1], "b"])),
            Marker::Status(StatusMarker { timestamp: 123, bytes: 1 })
        );
        assert_eq!(
            parse(&Reply::new(111, "range marker  0-5, 7-9 ")),
            Marker::Range([0..5, 7..9].into_iter().collect())
        );
        assert_eq!(Marker::from_reply(&Reply::new(150, "Range Marker 0-1")), None);
        assert_eq!(Marker::from_reply(&Reply::new(111, "Something else")), None);
    }

    #[test]
    fn marker_with_missing_or_bad_fields_fails() {
        let perf = |body: &[&str]| {
            Marker::from_reply(&Reply::indented(112, "x", body.iter().copied(), "End.")).unwrap().unwrap_err()
        };
        assert_eq!(perf(&[]), MarkerError::Missing { code: 112, field: "Timestamp" });
        assert_eq!(
            perf(&["Timestamp: 1"]),
            MarkerError::Missing { code: 112, field: "Stripe Bytes Transferred" }
        );
        for value in ["x", "1.x", "-1", "", "18446744073709551615.0"] {
            let line = format!("Timestamp: {value}");
            assert_eq!(
                perf(&[&line]),
                MarkerError::NotANumber { code: 112, field: "Timestamp", value: value.into() }
            );
        }
        assert!(matches!(
            Marker::from_reply(&Reply::new(111, "Range Marker 5-1")),
            Some(Err(MarkerError::Ranges(_)))
        ));
    }

    proptest! {
        #[test]
        fn marker_printed_is_parsed_back(timestamp in 0..u64::MAX / 2, stripe: u32, bytes: u64, stripes: u32, ranges in prop::collection::vec(0u64..1000, 2..8)) {
            let ranges = ranges.windows(2).map(|w| w[0].min(w[1])..w[0].max(w[1]) + 1).collect();
            for marker in [
                Marker::Perf(PerfMarker { timestamp, stripe, bytes, stripes }),
                Marker::Status(StatusMarker { timestamp, bytes }),
                Marker::Range(ranges),
            ] {
                prop_assert_eq!(parse(&marker.to_reply()), marker);
            }
        }
    }
}
