use std::ffi::OsString;
use std::io::{self, Write as _};
use std::time::Duration;

use clap::{Args, Subcommand};
use ropewalk_client::{Error, Remote, ReservedSpace};
use serde::Serialize;

use crate::client::{Client, Place, Sessions, Target, parse_targets};
use crate::exit::{Exit, usage};
use crate::output::{harmless, json_line, say};
use crate::settings::ConnectionFlags;
use crate::units::{self, parse_duration, parse_size};
use crate::utc;

#[derive(Debug, Args)]
pub struct Space {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show the bytes that are used and free in a directory of a server
    #[command(after_help = crate::exit::HELP)]
    Usage {
        #[command(flatten)]
        at: At,
        /// Of the quota with this name [default: the one in which the user has the least space]
        #[arg(long, value_name = "NAME")]
        quota: Option<String>,
    },
    /// Reserve bytes for later uploads to a directory, and print the token for cp --space-token
    #[command(after_help = crate::exit::HELP)]
    Reserve {
        #[command(flatten)]
        at: At,
        /// For example 2TiB
        #[arg(value_name = "SIZE", value_parser = parse_size)]
        bytes: u64,
        /// The time after which the reservation ends by itself
        #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, default_value = "24h")]
        time: Duration,
    },
    /// Move the end of a reservation
    #[command(after_help = crate::exit::HELP)]
    Extend {
        #[command(flatten)]
        at: At,
        /// The token that `space reserve` has printed
        #[arg(value_name = "TOKEN")]
        reservation: String,
        /// The time from now after which the reservation ends by itself
        #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, default_value = "24h")]
        time: Duration,
    },
    /// End a reservation
    #[command(after_help = crate::exit::HELP)]
    Release {
        #[command(flatten)]
        at: At,
        /// The token that `space reserve` has printed
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

#[derive(Debug, Args)]
pub(super) struct At {
    /// The URL of a directory (ftp:, ftpes:, ftps:, gsiftp:, sshftp:)
    #[arg(value_name = "URL")]
    url: OsString,
    /// Write JSON objects, each on one line
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Serialize)]
struct UsageLine {
    used: u64,
    free: u64,
    total: u64,
}

/// `until` is in seconds since 1970.
#[derive(Serialize)]
struct ReservationLine<'a> {
    token: &'a str,
    bytes: u64,
    left: u64,
    until: u64,
}

impl Space {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.action {
            Action::Usage { at, quota } => at.with(
                |remote, path| remote.space_usage(path, quota.as_deref()),
                |found| at.print_usage(found.used, found.free, found.total),
            ),
            Action::Reserve { time, .. } | Action::Extend { time, .. } if time.as_secs() == 0 => {
                Err(usage("--for: expected at least 1s"))
            }
            Action::Reserve { bytes: 0, .. } => Err(usage("expected at least 1 byte")),
            Action::Reserve { at, bytes, time } => at.with(
                |remote, path| remote.reserve_space(path, bytes, time),
                |reserved| match at.json {
                    true => at.print(&reserved),
                    // Only the token, for scripts.
                    false => writeln!(io::stdout(), "{}", reserved.token),
                },
            ),
            Action::Extend { at, reservation, time } => {
                at.with(|remote, _| remote.extend_space(&reservation, time), |extended| at.print(&extended))
            }
            Action::Release { at, reservation } => {
                at.release(&reservation, |remote| remote.release_space(&reservation))
            }
            Action::List { at } => at.with(
                |remote, _| remote.reserved_space(),
                |reserved| reserved.iter().try_for_each(|reserved| at.print(reserved)),
            ),
        }
    }
}

impl At {
    /// Runs an operation at the server, and shows the result.
    pub(super) fn with<T>(
        &self,
        run: impl FnOnce(&mut Remote, &[u8]) -> Result<T, Error>,
        show: impl FnOnce(T) -> io::Result<()>,
    ) -> anyhow::Result<Exit> {
        let mut targets: Vec<Target> = parse_targets(std::slice::from_ref(&self.url))?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let (mut run, mut show) = (Some(run), Some(show));
        let exit = client.each(&targets, |target| {
            let Place::Remote(url) = target.place()? else {
                return Err(usage("expected the URL of a directory of a server"));
            };
            if let (Some(run), Some(show)) = (run.take(), show.take()) {
                show(sessions.with(url, run)?)?;
            }
            Ok(())
        })?;
        sessions.quit();
        Ok(exit)
    }

    /// Ends a reservation, of which `release` returns whether there was one.
    pub(super) fn release(
        &self,
        reservation: &str,
        release: impl FnOnce(&mut Remote) -> Result<bool, Error>,
    ) -> anyhow::Result<Exit> {
        let mut released = true;
        let exit = self.with(
            |remote, _| release(remote),
            |there| {
                released = there;
                Ok(())
            },
        )?;
        if !released {
            say(format_args!("ropewalk: there is no reservation {}", harmless(reservation)));
            return Ok(Exit::NotFound);
        }
        Ok(exit)
    }

    fn print_usage(&self, used: u64, free: u64, total: u64) -> io::Result<()> {
        let mut out = io::stdout();
        if self.json {
            return json_line(&mut out, &UsageLine { used, free, total });
        }
        let size = units::size;
        writeln!(out, "{} used, {} free of {}", size(used), size(free), size(total))
    }

    fn print(&self, reserved: &ReservedSpace) -> io::Result<()> {
        let mut out = io::stdout();
        let ReservedSpace { token, bytes, left, end } = reserved;
        if self.json {
            let line = ReservationLine { token, bytes: *bytes, left: *left, until: *end };
            return json_line(&mut out, &line);
        }
        let until = utc::show((*end).try_into().unwrap_or(i64::MAX));
        let size = units::size;
        writeln!(out, "{}  {} left of {}  until {until} UTC", harmless(token), size(*left), size(*bytes))
    }
}
