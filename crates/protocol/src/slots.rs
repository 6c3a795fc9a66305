//! `SITE SLOTS` (Ropewalk extension): permits for transfers at a time, and a rate, that a server
//! keeps for a user during a window of time.
//!
//! Windows are sent as seconds from now, so that the clocks of client and server need not agree.
//! Replies have the times of the server's clock. The seconds are whole: both sides round them up,
//! so that no window begins before the time that was asked for.

use std::fmt;
use std::time::Duration;

use bstr::BString;

use crate::command::CommandError;
use crate::command::arguments::{Arguments, number};
use crate::date::Stamp;
use crate::space::{is_token, parse_token};

/// The arguments of `SITE SLOTS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotsCommand {
    /// Reserves for later transfers of the user.
    Reserve(SlotsRequest),
    /// Moves the end of the lease to so many seconds from now, at most to the end of the window.
    Extend { token: String, seconds: u64 },
    /// Ends a reservation.
    Release(String),
    /// Later transfers of the session use this reservation, or none.
    Use(Option<String>),
    /// Reports the reservations of the user.
    List,
}

/// A wish for a reservation. One of `slots` and `rate` is above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsRequest {
    /// Transfers at a time.
    pub slots: u32,
    /// Bytes per second, of all transfers that use the reservation together.
    pub rate: u64,
    /// Seconds from now to the begin of the window.
    pub delay: u64,
    /// Seconds from the begin of the window to its end; above 0.
    pub length: u64,
    /// Seconds from now after which the reservation ends if its lease is not extended; above 0.
    pub lease: u64,
}

/// A reservation in a reply. Times are in seconds since 1970, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedSlots {
    pub token: String,
    /// Transfers at a time.
    pub slots: u32,
    /// Bytes per second.
    pub rate: u64,
    /// The begin of the window.
    pub from: u64,
    /// The end of the window.
    pub until: u64,
    /// The end of the lease, at most that of the window.
    pub lease: u64,
}

impl SlotsRequest {
    /// A wish for a window that begins in `delay` and is `length` long. `None` as the `lease`: the
    /// reservation is kept for the whole window at once.
    pub fn new(slots: u32, rate: u64, delay: Duration, length: Duration, lease: Option<Duration>) -> Self {
        let (delay, length) = (whole_seconds(delay), whole_seconds(length).max(1));
        let lease = lease.map_or(delay.saturating_add(length), |lease| whole_seconds(lease).max(1));
        Self { slots, rate, delay, length, lease }
    }
}

/// The seconds of a time from now, rounded up: rounded down, it would come too early.
pub fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

impl SlotsCommand {
    pub(crate) fn parse(mut args: Arguments<'_>) -> Result<Self, CommandError> {
        const WRONG: CommandError = CommandError::InvalidArguments;
        let verb = args.word()?.to_ascii_uppercase();
        match verb.as_slice() {
            b"RESERVE" => {
                let mut amount = || args.word().and_then(|word| number(word).ok_or(WRONG));
                let (slots, rate, delay, length) = (amount()?, amount()?, amount()?, amount()?);
                let slots = u32::try_from(slots).map_err(|_| WRONG)?;
                let lease = number(args.last_word()?).ok_or(WRONG)?;
                if slots == 0 && rate == 0 || length == 0 || lease == 0 {
                    return Err(WRONG);
                }
                Ok(Self::Reserve(SlotsRequest { slots, rate, delay, length, lease }))
            }
            b"EXTEND" => {
                let token = parse_token(args.word()?)?;
                let seconds = number(args.last_word()?).filter(|seconds| *seconds > 0);
                Ok(Self::Extend { token, seconds: seconds.ok_or(WRONG)? })
            }
            b"RELEASE" => Ok(Self::Release(parse_token(args.last_word()?)?)),
            b"USE" => match args.last_word()? {
                none if none.eq_ignore_ascii_case(b"NONE") => Ok(Self::Use(None)),
                word => Ok(Self::Use(Some(parse_token(word)?))),
            },
            b"LIST" if args.is_empty() => Ok(Self::List),
            _ => Err(WRONG),
        }
    }

    pub(crate) fn print(&self) -> BString {
        let text = match self {
            Self::Reserve(SlotsRequest { slots, rate, delay, length, lease }) => {
                format!("RESERVE {slots} {rate} {delay} {length} {lease}")
            }
            Self::Extend { token, seconds } => format!("EXTEND {token} {seconds}"),
            Self::Release(token) => format!("RELEASE {token}"),
            Self::Use(None) => "USE NONE".to_owned(),
            Self::Use(Some(token)) => format!("USE {token}"),
            Self::List => "LIST".to_owned(),
        };
        text.into()
    }
}

impl fmt::Display for ReservedSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, slots, rate, from, until, lease } = self;
        let [from, until, lease] =
            [from, until, lease].map(|time| Stamp(i64::try_from(*time).unwrap_or(i64::MAX)));
        write!(f, "SLOTS {token} COUNT {slots} RATE {rate} FROM {from} UNTIL {until} LEASE {lease}")
    }
}

impl ReservedSlots {
    /// Reads a line of a reply; `None`: it is something else.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        let [
            b"SLOTS",
            token,
            b"COUNT",
            slots,
            b"RATE",
            rate,
            b"FROM",
            from,
            b"UNTIL",
            until,
            b"LEASE",
            lease,
        ] = words.as_slice()
        else {
            return None;
        };
        let token = is_token(token).then(|| String::from_utf8_lossy(token).into_owned())?;
        let time = |word| u64::try_from(crate::date::parse(word).ok()?).ok();
        Some(Self {
            token,
            slots: number(slots)?.try_into().ok()?,
            rate: number(rate)?,
            from: time(from)?,
            until: time(until)?,
            lease: time(lease)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn printed_reservation_is_parsed_to_the_same(
            token in "[!-~]{1,64}", slots: u32, rate: u64, times in prop::array::uniform3(0u64..4_000_000_000),
        ) {
            let [from, until, lease] = times;
            let reserved = ReservedSlots { token, slots, rate, from, until, lease };
            prop_assert_eq!(ReservedSlots::parse(reserved.to_string().as_bytes()), Some(reserved));
        }

        #[test]
        fn any_line_is_parsed_without_panic(line: Vec<u8>) {
            let _ = ReservedSlots::parse(&line);
        }
    }

    #[test]
    fn request_begins_and_ends_at_the_wanted_time_or_later() {
        let seconds = Duration::from_millis;
        let request = |delay, length, lease: Option<u64>| {
            let request = SlotsRequest::new(4, 7, seconds(delay), seconds(length), lease.map(seconds));
            (request.delay, request.length, request.lease)
        };
        assert_eq!(request(0, 3_600_000, None), (0, 3600, 3600));
        assert_eq!(request(9_001, 3_600_000, None), (10, 3600, 3610));
        assert_eq!(request(9_999, 5_300, None), (10, 6, 16));
        assert_eq!(request(10_000, 60_000, Some(119_001)), (10, 60, 120));
        assert_eq!(request(0, 0, Some(0)), (0, 1, 1));
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn line_that_is_no_reservation_is_not_parsed() {
        for line in [
            "",
            "Reservations",
            "SLOTS t COUNT 1 RATE 0 FROM 20261130012000 UNTIL 20261130022000",
            "SLOTS t COUNT -1 RATE 0 FROM 20261130012000 UNTIL 20261130022000 LEASE 20261130012200",
            "SLOTS t COUNT 4294967296 RATE 0 FROM 20261130012000 UNTIL 20261130022000 LEASE 20261130012200",
            "SLOTS t COUNT 1 RATE 0 FROM now UNTIL 20261130022000 LEASE 20261130012200",
        ] {
            assert_eq!(ReservedSlots::parse(line.as_bytes()), None, "{line}");
        }
    }
}
