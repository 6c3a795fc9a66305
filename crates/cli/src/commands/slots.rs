use std::io::{self, Write as _};
use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::tz::TimeZone;
use ropewalk_client::{ReservedSlots, SlotsRequest};
use ropewalk_paths::{Part, now};
use serde::Serialize;

use super::reserve::{NO_RATE, window};
use super::space::At;
use crate::exit::{Exit, usage};
use crate::held::shown;
use crate::output::{harmless, json_line};
use crate::units::{parse_duration, parse_rate};
use crate::utc;

#[derive(Debug, Args)]
pub struct Slots {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Reserve for later copies, and print the token for cp --destination-slots-token and
    /// --source-slots-token
    #[command(after_help = crate::exit::HELP)]
    Reserve {
        #[command(flatten)]
        at: At,
        /// Transfers at a time
        #[arg(long, value_name = "N", required_unless_present = "bandwidth",
              value_parser = clap::value_parser!(u32).range(1..))]
        slots: Option<u32>,
        /// The rate of all transfers that use the reservation together, for example 5Gbit/s
        #[arg(long, value_name = "RATE", value_parser = parse_rate)]
        bandwidth: Option<u64>,
        /// The begin, in local time: 22:00 (the next one), or a date such as 2026-01-31T22:00; with
        /// Z at the end in UTC [default: now]
        #[arg(long, value_name = "WHEN")]
        from: Option<String>,
        /// The time after which the reservation ends by itself
        #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
        time: Duration,
    },
    /// End a reservation
    #[command(after_help = crate::exit::HELP)]
    Release {
        #[command(flatten)]
        at: At,
        /// The token that `slots reserve` has printed
        #[arg(value_name = "TOKEN")]
        reservation: String,
    },
    /// List the reservations of the user
    #[command(after_help = crate::exit::HELP)]
    List {
        #[command(flatten)]
        at: At,
    },
}

/// Times are in seconds since 1970, `rate` is in bytes per second.
#[derive(Serialize)]
struct Line<'a> {
    token: &'a str,
    slots: u32,
    rate: u64,
    from: u64,
    until: u64,
    lease: u64,
}

impl Slots {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.action {
            Action::Reserve { bandwidth: Some(0), .. } => Err(usage(NO_RATE)),
            Action::Reserve { at, slots, bandwidth, from, time } => {
                let (slots, rate) = (slots.unwrap_or_default(), bandwidth.unwrap_or_default());
                let zone = TimeZone::system();
                let window = window(from.as_deref(), time, now(), &zone).map_err(usage)?;
                at.with(
                    |remote, _| {
                        let (delay, length) = window.at_present();
                        remote.reserve_slots(SlotsRequest::new(slots, rate, delay, length, None))
                    },
                    |reserved| match at.json {
                        true => print(&at, &reserved),
                        // Only the token, for scripts.
                        false => writeln!(io::stdout(), "{}", reserved.token),
                    },
                )
            }
            Action::Release { at, reservation } => {
                at.release(&reservation, |remote| remote.release_slots(&reservation))
            }
            Action::List { at } => at.with(
                |remote, _| remote.reserved_slots(),
                |reserved| reserved.iter().try_for_each(|reserved| print(&at, reserved)),
            ),
        }
    }
}

fn print(at: &At, reserved: &ReservedSlots) -> io::Result<()> {
    let mut out = io::stdout();
    let ReservedSlots { token, slots, rate, from, until, lease } = reserved;
    let (slots, rate, from, until, lease) = (*slots, *rate, *from, *until, *lease);
    if at.json {
        return json_line(&mut out, &Line { token, slots, rate, from, until, lease });
    }
    let [from, end] = [from, lease].map(|time| utc::show(time.try_into().unwrap_or(i64::MAX)));
    let shown = shown(Part::Slots { slots, rate });
    writeln!(out, "{}  {shown}  {from} - {end} UTC", harmless(token))
}
