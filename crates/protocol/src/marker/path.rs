//! 115 markers: TCP statistics from the sender's kernel, with which a receiver can tune a download.
//! They are a Ropewalk extension, requested with `OPTS RETR PathInfo=1;`.

use std::fmt;
use std::time::Duration;

use bstr::{BStr, ByteSlice};

use super::MarkerError;
use crate::reply::Reply;

pub(super) const CODE: u16 = 115;

/// 115: the path as the sender's connections see it. On the wire, times are whole microseconds.
///
/// `115 Path rtt=40180 minrtt=40003 retrans=10 sent=72415 cwnd=5242880 streams=4 limited=cwnd`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMarker {
    /// Smoothed round-trip time: the mean of the open connections.
    pub rtt: Duration,
    /// The lowest round-trip time that any connection measured.
    pub min_rtt: Duration,
    /// Retransmitted segments of all connections since the transfer began.
    pub retransmitted: u64,
    /// Data segments sent, including retransmissions, by all connections since the transfer began.
    pub sent: u64,
    /// Sum of the congestion windows of the open connections, in bytes.
    pub congestion_window: u64,
    /// Number of open connections.
    pub streams: u32,
    /// The limit that applied to the sender for most of the time since the last marker.
    pub limited: LimitedBy,
}

/// The reason for which a sender waits (RFC 4898, `tcpEStatsPerfSndLimState`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    CongestionWindow,
    ReceiveWindow,
    SendBuffer,
    /// There was no data to send.
    Application,
}

impl LimitedBy {
    pub const ALL: [Self; 4] =
        [Self::CongestionWindow, Self::ReceiveWindow, Self::SendBuffer, Self::Application];

    /// The word in the marker.
    pub fn name(self) -> &'static str {
        match self {
            Self::CongestionWindow => "cwnd",
            Self::ReceiveWindow => "rwnd",
            Self::SendBuffer => "sndbuf",
            Self::Application => "app",
        }
    }
}

impl fmt::Display for LimitedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

pub(super) fn to_reply(marker: &PathMarker) -> Reply {
    let text = format!(
        "Path rtt={} minrtt={} retrans={} sent={} cwnd={} streams={} limited={}",
        marker.rtt.as_micros(),
        marker.min_rtt.as_micros(),
        marker.retransmitted,
        marker.sent,
        marker.congestion_window,
        marker.streams,
        marker.limited,
    );
    Reply::new(CODE, text)
}

/// Parses the text after `115 Path `. Unknown words are ignored, so that words can be added later.
pub(super) fn parse(text: &[u8]) -> Result<PathMarker, MarkerError> {
    let number = |field| number(text, field);
    let micros = |field| micros(text, field);
    let limited = required(text, "limited")?;
    let limit =
        LimitedBy::ALL.into_iter().find(|limit| limit.name().as_bytes() == limited.to_ascii_lowercase());
    Ok(PathMarker {
        rtt: micros("rtt")?,
        min_rtt: micros("minrtt")?,
        retransmitted: number("retrans")?,
        sent: number("sent")?,
        congestion_window: number("cwnd")?,
        streams: small(text, "streams")?,
        limited: limit.ok_or_else(|| MarkerError::UnknownLimit(limited.into()))?,
    })
}

/// Returns the value of the word `field=value`.
fn required<'a>(text: &'a [u8], field: &'static str) -> Result<&'a BStr, MarkerError> {
    let value = |word| {
        <[u8]>::split_once_str(word, "=").filter(|(key, _)| key.eq_ignore_ascii_case(field.as_bytes()))
    };
    let value = text.split_str(" ").find_map(value);
    value.map(|(_, value)| value.as_bstr()).ok_or(MarkerError::Missing { code: CODE, field })
}

fn number(text: &[u8], field: &'static str) -> Result<u64, MarkerError> {
    required(text, field).and_then(|value| super::number(CODE, field, value))
}

/// Parses a number of streams or hosts.
pub(super) fn small(text: &[u8], field: &'static str) -> Result<u32, MarkerError> {
    let value = number(text, field)?;
    let wrong = |_| MarkerError::NotANumber { code: CODE, field, value: value.to_string().into() };
    u32::try_from(value).map_err(wrong)
}

/// Parses a time in whole microseconds.
pub(super) fn micros(text: &[u8], field: &'static str) -> Result<Duration, MarkerError> {
    number(text, field).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::Marker;
    use super::*;

    fn read(text: &str) -> Result<Marker, MarkerError> {
        Marker::from_reply(&Reply::new(CODE, text)).unwrap()
    }

    #[test]
    fn path_marker_is_printed_and_parsed() {
        let marker = PathMarker {
            rtt: Duration::from_micros(40_180),
            min_rtt: Duration::from_millis(40),
            retransmitted: 14_480,
            sent: 104_857_600,
            congestion_window: 5 << 20,
            streams: 4,
            limited: LimitedBy::CongestionWindow,
        };
        let text =
            "Path rtt=40180 minrtt=40000 retrans=14480 sent=104857600 cwnd=5242880 streams=4 limited=cwnd";
        assert_eq!(Marker::Path(marker).to_reply(), Reply::new(115, text));
        let mixed = "path LIMITED=cwnd new=word cwnd=5242880 sent=104857600 x retrans=14480  streams=4 minrtt=40000 rtt=40180";
        assert_eq!(read(mixed), Ok(Marker::Path(marker)));
        assert_eq!(Marker::from_reply(&Reply::new(115, "Pathological")), None);
        assert_eq!(Marker::from_reply(&Reply::new(115, "Something else")), None);
    }

    #[test]
    fn path_marker_with_missing_or_bad_fields_fails() {
        let good = "Path rtt=1 minrtt=1 retrans=0 sent=1 cwnd=1 streams=1 limited=app";
        assert!(read(good).is_ok());
        assert_eq!(
            read(&good.replace("sent=1 ", "")),
            Err(MarkerError::Missing { code: 115, field: "sent" })
        );
        assert_eq!(
            read(&good.replace("cwnd=1", "cwnd=-1")),
            Err(MarkerError::NotANumber { code: 115, field: "cwnd", value: "-1".into() })
        );
        assert!(matches!(
            read(&good.replace("streams=1", "streams=4294967296")),
            Err(MarkerError::NotANumber { .. })
        ));
        assert_eq!(read(&good.replace("app", "moon")), Err(MarkerError::UnknownLimit("moon".into())));
        assert!(read("Path ").is_err());
    }

    #[test]
    fn storage_marker_round_trips_and_needs_a_number() {
        let marker = Marker::Storage(Duration::from_micros(2_500_000));
        assert_eq!(marker.to_reply(), Reply::new(115, "Storage wait=2500000"));
        assert_eq!(read("storage new=1 WAIT=2500000"), Ok(marker));
        assert_eq!(read("Storage w=1"), Err(MarkerError::Missing { code: 115, field: "wait" }));
        assert!(matches!(read("Storage wait=-1"), Err(MarkerError::NotANumber { .. })));
    }

    #[test]
    fn nodes_marker_round_trips_and_needs_a_number() {
        assert_eq!(Marker::Nodes(2).to_reply(), Reply::new(115, "Nodes count=2"));
        assert_eq!(read("nodes new=1 COUNT=2"), Ok(Marker::Nodes(2)));
        assert_eq!(read("Nodes c=1"), Err(MarkerError::Missing { code: 115, field: "count" }));
        assert!(matches!(read("Nodes count=4294967296"), Err(MarkerError::NotANumber { .. })));
    }

    proptest! {
        #[test]
        fn path_marker_printed_is_parsed_back(
            rtt: u64, min_rtt: u64, retransmitted: u64, sent: u64, congestion_window: u64, streams: u32,
            limited in prop::sample::select(LimitedBy::ALL.to_vec()),
        ) {
            let (rtt, min_rtt) = (Duration::from_micros(rtt), Duration::from_micros(min_rtt));
            let marker = Marker::Path(PathMarker { rtt, min_rtt, retransmitted, sent, congestion_window, streams, limited });
            prop_assert_eq!(Marker::from_reply(&marker.to_reply()), Some(Ok(marker)));
        }

        #[test]
        fn path_marker_on_any_text_does_not_panic(text in "[Pp]ath( ?(rtt|minrtt|retrans|sent|cwnd|streams|limited)=[0-9a-z=-]{0,21}){0,8}") {
            let _ = Marker::from_reply(&Reply::new(CODE, text));
        }
    }
}
