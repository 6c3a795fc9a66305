//! `ropewalk doctor`: checks whether this host is ready for a link, changes its settings, and
//! restores them.

mod elsewhere;
#[cfg(feature = "ucx")]
mod rdma;
mod verify;

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ropewalk_profiler::collect::facts::{self, Root};
use ropewalk_profiler::doctor::{
    Change, Changes, Check, CheckState, Goal, Journal, JournalError, Judgement, Refused, Restored, SCHEMA,
    Sysctls, checks,
};
use ropewalk_profiler::profile::Facts;
use serde::Serialize;

use crate::exit::{Exit, usage};
use crate::output::{colour_wanted, harmless, say};
use crate::settings::CopyFlags;
use crate::units;

/// Check whether this host is ready for a link: kernel settings, interface, limits. Each check
/// reports the present value, the wanted value, and why. With --apply, kernel settings (net.*) are
/// changed until the next reboot; --restore brings back the old values.
///
/// With --verify they are kept only if a transfer is faster with them: it is repeated with the old
/// and the new settings alternately.
///
/// With --rdma it checks instead whether data can go over RDMA (--stack ucx): the UCX library,
/// devices and transports, and a transfer within this host.
///
/// Exit code 1 means that something keeps the host from using the link, or RDMA; with --verify,
/// that nothing was kept.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Rate of the link
    #[arg(long, value_name = "RATE", value_parser = rate, required_unless_present_any = ["restore", "rdma"])]
    rate: Option<u64>,
    /// Round trip time of the link [default with --verify: as measured]
    #[arg(long, value_name = "TIME", value_parser = round_trip, required_unless_present_any = ["rdma", "restore", "verify"])]
    rtt: Option<Duration>,
    /// Check whether data can go over RDMA
    #[arg(long, conflicts_with_all = ["apply", "rate", "restore", "rtt", "state", "verify"])]
    rdma: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
    /// Show the changes, ask, and apply them
    #[arg(long)]
    apply: bool,
    /// Do not ask
    #[arg(long, requires = "apply")]
    yes: bool,
    /// Keep the changes only if this copy is faster with them: it is made once to find its limit,
    /// then --rounds times with the old and as often with the new settings, alternately. A copy of
    /// 10 seconds or more gives the best evidence
    #[arg(long, num_args = 2, value_names = ["SOURCE", "DESTINATION"], requires = "apply")]
    verify: Vec<OsString>,
    /// With --verify: number of transfers with the old and with the new settings
    #[arg(long, value_name = "N", default_value_t = Judgement::RUNS, requires = "verify",
          value_parser = clap::value_parser!(u32).range(i64::from(Judgement::RUNS)..=20))]
    rounds: u32,
    /// With --verify: write profiles of a transfer before and after to before.json and after.json
    /// in this directory
    #[arg(long, value_name = "DIRECTORY", requires = "verify")]
    profiles: Option<PathBuf>,
    /// Restore the settings that --apply changed
    #[arg(long, conflicts_with_all = ["apply", "rate", "rtt", "verify"])]
    restore: bool,
    /// Also restore settings that another program has changed since
    #[arg(long, requires = "restore")]
    force: bool,
    /// Directory of the old values [default: $XDG_STATE_HOME/ropewalk/doctor; root without it:
    /// /var/lib/ropewalk/doctor]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
    #[command(flatten)]
    flags: CopyFlags,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    event: &'static str,
    host: &'a str,
    rate_bytes_per_second: f64,
    rtt_seconds: f64,
    ready: bool,
    checks: &'a [Check],
    /// Changes made before the checks.
    applied: &'a [Change],
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<&'a verify::Verified>,
}

#[derive(Serialize)]
struct RestoreReport<'a> {
    schema: u32,
    event: &'static str,
    #[serde(flatten)]
    restored: &'a Restored,
}

impl Doctor {
    pub fn run(self) -> anyhow::Result<Exit> {
        if self.restore {
            return self.restore();
        }
        if self.rdma {
            return self.rdma();
        }
        if !self.verify.is_empty() {
            let seen = verify::verify(&self)?;
            self.print(&seen.host, &seen.goal, &seen.checks, &seen.applied, Some(&seen.verified))?;
            return Ok(seen.exit);
        }
        self.ensure_no_copy_flags()?;
        let (Some(rate), Some(rtt)) = (self.rate, self.rtt) else {
            return Err(usage("--rate and --rtt are required: they describe the link"));
        };
        // An interrupted change is repaired first, even if the settings look right.
        if self.apply
            && let Some(journal) = Journal::open_existing(&self.state_directory()?)?
        {
            journal.is_idle()?;
        }
        let goal = Goal { rate: rate as f64, rtt: rtt.as_secs_f64() };
        let mut host = facts::gather(&Root::default(), &[]);
        let mut found = checks(&host, &goal);
        let mut applied = Vec::new();
        if self.apply {
            let (changes, others) = Changes::of(&found).split(&Sysctls::default());
            say_others(&others);
            if changes.0.is_empty() && !others.is_empty() {
                let denied = io::Error::from(io::ErrorKind::PermissionDenied);
                return Err(anyhow::Error::new(denied).context("none of the settings may be changed"));
            }
            if changes.0.is_empty() {
                say("ropewalk: no kernel setting has to be changed");
            } else {
                if !self.agreed(&changes)? {
                    say("ropewalk: nothing was changed");
                    return Ok(Exit::Failed);
                }
                let came = self.journal()?.apply(&changes)?;
                say_refused(&came.refused);
                applied = came.changes;
                host = facts::gather(&Root::default(), &[]);
                found = checks(&host, &goal);
            }
        }
        self.print(&host, &goal, &found, &applied, None)?;
        Ok(if ready(&found) { Exit::Done } else { Exit::Failed })
    }

    /// Whether the user agrees to the changes.
    fn agreed(&self, changes: &Changes) -> anyhow::Result<bool> {
        let mut errors = io::stderr().lock();
        write!(errors, "{}", harmless_lines(&changes.diff()))?;
        if self.yes {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            return Err(usage("there is no terminal to ask at: --apply needs --yes"));
        }
        let ask = if self.verify.is_empty() {
            "Change these settings until the next reboot?"
        } else {
            "Try these settings, and keep them until the next reboot if they help?"
        };
        write!(errors, "{ask} [y/N] ")?;
        errors.flush()?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    #[cfg(feature = "ucx")]
    fn rdma(&self) -> anyhow::Result<Exit> {
        self.ensure_no_copy_flags()?;
        Ok(rdma::run(self.json)?)
    }

    #[cfg(not(feature = "ucx"))]
    fn rdma(&self) -> anyhow::Result<Exit> {
        Err(usage("this program was built without the driver for RDMA (the feature ucx)"))
    }

    fn ensure_no_copy_flags(&self) -> anyhow::Result<()> {
        self.flags.0.0.first().map_or(Ok(()), |(flag, _)| {
            Err(usage(format!("--{flag} is for the transfer of --verify SOURCE DESTINATION")))
        })
    }

    fn restore(&self) -> anyhow::Result<Exit> {
        let directory = self.state_directory()?;
        // A read-only command creates no journal.
        let journal = Journal::open_existing(&directory)?;
        let restored = journal.as_ref().map(|journal| journal.restore(self.force)).transpose()?;
        let saved = restored.is_some();
        let restored = restored.unwrap_or_default();
        let mut out = io::stdout().lock();
        if self.json {
            let report = RestoreReport { schema: SCHEMA, event: "restored", restored: &restored };
            serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
        } else if !saved {
            let place = harmless(&directory.display().to_string());
            writeln!(out, "nothing was saved in {place}: nothing to restore")?;
        } else {
            out.write_all(restored_text(&restored).as_bytes())?;
        }
        Ok(if restored.foreign.is_empty() && restored.failed.is_empty() { Exit::Done } else { Exit::Failed })
    }

    fn journal(&self) -> anyhow::Result<Journal> {
        Journal::open(&self.state_directory()?).map_err(|error: JournalError| error.into())
    }

    fn state_directory(&self) -> anyhow::Result<PathBuf> {
        self.state.clone().map_or_else(state_directory, Ok)
    }

    fn print(
        &self,
        host: &Facts,
        goal: &Goal,
        found: &[Check],
        applied: &[Change],
        verified: Option<&verify::Verified>,
    ) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            let report = Report {
                schema: SCHEMA,
                event: "doctor",
                host: &host.name,
                rate_bytes_per_second: goal.rate,
                rtt_seconds: goal.rtt,
                ready: ready(found),
                checks: found,
                applied,
                verified,
            };
            serde_json::to_writer(&mut out, &report)?;
            return writeln!(out);
        }
        match verified {
            // The checks were not requested.
            Some(verified) => out.write_all(verify::text(verified).as_bytes())?,
            None => out.write_all(text(host, goal, found, colour_wanted(out.is_terminal())).as_bytes())?,
        }
        if !applied.is_empty() {
            writeln!(
                out,
                "\n{} changed until the next reboot; `ropewalk doctor --restore` brings back the \
                 old values, a file in /etc/sysctl.d keeps the new ones.",
                units::count(applied.len() as u64, "setting")
            )?;
        }
        Ok(())
    }
}

fn say_others(others: &[Change]) {
    for change in others {
        say(format_args!(
            "ropewalk: {} cannot be changed here (root can, in the host's own network namespace)",
            change.name
        ));
    }
}

fn say_refused(refused: &[Refused]) {
    for Refused { name, value, why } in refused {
        say(format_args!(
            "ropewalk: {name} = {value} is only recommended, and refused here ({why}): left as it is"
        ));
    }
}

fn ready(found: &[Check]) -> bool {
    found.iter().all(|check| check.state != CheckState::Bad)
}

/// The text for the terminal.
fn text(host: &Facts, goal: &Goal, found: &[Check], colour: bool) -> String {
    let mut text = format!(
        "{}: {} over {:.1} ms ({} in flight): {}\n",
        harmless(&host.name),
        units::link_rate(goal.rate),
        goal.rtt * 1000.0,
        units::size(goal.bdp() as u64),
        if ready(found) { "ready" } else { "not ready" },
    );
    text += &listed(found, colour);
    text
}

/// The checks as text, failed ones first.
fn listed(found: &[Check], colour: bool) -> String {
    let count = |state| found.iter().filter(|check| check.state == state).count();
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{} bad, {} to improve, {} unknown, {} good",
        count(CheckState::Bad),
        count(CheckState::Advice),
        count(CheckState::Unknown),
        count(CheckState::Good)
    );
    for state in [CheckState::Bad, CheckState::Advice, CheckState::Unknown, CheckState::Good] {
        for check in found.iter().filter(|check| check.state == state) {
            let (word, paint) = match state {
                CheckState::Bad => ("BAD    ", "\x1b[31m"),
                CheckState::Advice => ("improve", "\x1b[33m"),
                CheckState::Unknown => ("unknown", ""),
                CheckState::Good => ("good   ", "\x1b[32m"),
            };
            let (on, off) = if colour && !paint.is_empty() { (paint, "\x1b[0m") } else { ("", "") };
            let _ = writeln!(
                text,
                "\n{on}{word}{off} {}\n        found  {}\n        wanted {}\n        {}",
                harmless(&check.name),
                harmless(&check.found),
                harmless(&check.wanted),
                check.why
            );
        }
    }
    text
}

fn restored_text(restored: &Restored) -> String {
    let mut text = String::new();
    for change in &restored.restored {
        let _ = writeln!(text, "{} = {} (was {})", change.name, change.before, change.after);
    }
    for change in &restored.unchanged {
        let _ = writeln!(text, "{} = {} already", change.name, change.before);
    }
    for (name, value) in &restored.foreign {
        let _ = writeln!(
            text,
            "{name} = {value}: another program has set this since, left alone \
                                (--force)"
        );
    }
    for (name, why) in &restored.failed {
        let _ = writeln!(text, "{name}: {why}");
    }
    if restored.rebooted {
        text += "the machine has been rebooted since: its settings are those of its configuration\n";
    } else if text.is_empty() {
        text += "nothing to restore\n";
    }
    harmless_lines(&text)
}

fn harmless_lines(text: &str) -> String {
    text.lines().map(|line| harmless(line) + "\n").collect()
}

fn state_directory() -> anyhow::Result<PathBuf> {
    // The XDG specification says that relative paths are ignored.
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| rustix::process::geteuid().is_root().then(|| "/var/lib".into()))
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .map(|base| base.join("ropewalk/doctor"))
        .ok_or_else(|| {
            usage(
                "there is no place for the old values: neither XDG_STATE_HOME nor HOME is set: \
                   use --state",
            )
        })
}

fn rate(text: &str) -> Result<u64, String> {
    match units::parse_rate(text)? {
        0 => Err("expected more than 0".into()),
        rate => Ok(rate),
    }
}

fn round_trip(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    if time > Duration::ZERO && time <= Duration::from_secs(3600) {
        Ok(time)
    } else {
        Err("expected more than 0 and at most an hour, for example 80ms".into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(name: &str, state: CheckState) -> Check {
        Check {
            name: name.into(),
            state,
            found: "a\x1b[2J".into(),
            wanted: "b".into(),
            why: "because",
            set: None,
        }
    }

    #[test]
    fn text_has_failed_checks_first_without_control_characters() {
        let found = [check("net.good", CheckState::Good), check("net.bad", CheckState::Bad)];
        let goal = Goal { rate: 1.25e9, rtt: 0.08 };
        let text = text(&Facts::default(), &goal, &found, false);
        assert!(text.contains("10.0 Gbit/s over 80.0 ms (95.4 MiB in flight): not ready"), "{text}");
        assert!(text.find("net.bad") < text.find("net.good") && !text.contains('\x1b'), "{text}");
    }

    #[test]
    fn rate_and_round_trip_of_zero_are_refused() {
        assert!(rate("10Gbit/s").is_ok() && rate("0").is_err());
        assert!(round_trip("80ms").is_ok() && round_trip("0").is_err() && round_trip("2h").is_err());
    }

    #[test]
    fn text_of_a_restore_lists_each_setting() {
        assert_eq!(restored_text(&Restored::default()), "nothing to restore\n");
        let restored = Restored { foreign: vec![("net.a".into(), "7".into())], ..Restored::default() };
        assert!(restored_text(&restored).contains("left alone"));
    }
}
