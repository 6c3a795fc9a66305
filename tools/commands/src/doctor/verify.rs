//! `ropewalk doctor --apply --verify`: keeps settings only if a transfer is faster with them.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use ropewalk_client::{Cancel, EventSink, Location, Options, Pair};
use ropewalk_profiler::collect::{self, Sockets};
use ropewalk_profiler::doctor::{Change, Goal, Journal, Judgement, Sysctls, Trial};
use ropewalk_profiler::profile::{Facts, Outcome, Profile, Role, SCHEMA};
use ropewalk_profiler::verdict::Evidence;
use serde::Serialize;

use super::elsewhere::Elsewhere;
use super::{Changes, Check, Doctor, checks, harmless_lines};
use crate::credentials::{self, Side};
use crate::exit::{Exit, usage};
use crate::output::{Human, Loudness, say};
use crate::profiling::{Ends, Moved, run};
use crate::settings::{Layers, Settings};
use crate::sites::Used;
use crate::{signals, units};

/// Printed at the first Ctrl-C.
const STOPPING: &str = "ropewalk: stopping, and restoring the old settings (press Ctrl-C again to \
                        quit now; `ropewalk doctor --restore` restores them later)";

/// A transfer shorter than this, in seconds, says little about its steady rate.
const SHORT: f64 = 3.0;

/// The result.
#[derive(Debug, Default, Serialize)]
pub(super) struct Verified {
    /// The rates; absent if no trial was possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) judgement: Option<Judgement>,
    /// Whether this host has the new settings now.
    pub(super) kept: bool,
    /// The other end, if it needs changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) elsewhere: Option<Elsewhere>,
    /// Settings that another program has changed meanwhile: name and value. They are left alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) foreign: Vec<(String, String)>,
}

/// The data for the report.
pub(super) struct Seen {
    pub(super) host: Facts,
    pub(super) goal: Goal,
    pub(super) checks: Vec<Check>,
    pub(super) applied: Vec<Change>,
    pub(super) verified: Verified,
    pub(super) exit: Exit,
}

struct Site<'a> {
    command: &'a Doctor,
    pair: Pair,
    options: Options,
    human: Arc<Human>,
    cancel: Cancel,
}

/// Tries the settings. Returns which are kept, and why.
pub(super) fn verify(command: &Doctor) -> anyhow::Result<Seen> {
    let mut sites = Used::default();
    let mut pair = pair(command, &mut sites)?;
    let settings = Layers::load_at(&command.flags.0, &sites)?.settings()?;
    let _keeper = settings.keep_socket_memory()?;
    let Settings { mut options, password_files, .. } = settings;
    // Each run moves all bytes.
    options.recovery.resume = false;
    let places = credentials::sides([&mut pair]);
    credentials::complete(&mut options, &password_files, true, places, sites.hops)?;
    let journal = command.journal()?;
    journal.is_idle()?;
    let cancel = Cancel::new();
    signals::watch(&cancel, STOPPING)?;
    let human = Arc::new(Human::new(if command.json { Loudness::Quiet } else { Loudness::Normal }, &cancel));
    let site = Site { command, pair, options, human, cancel };
    let seen = site.verify(&journal);
    site.human.finish();
    seen
}

fn pair(command: &Doctor, sites: &mut Used) -> anyhow::Result<Pair> {
    let [source, destination] = command.verify.as_slice() else {
        return Err(usage("--verify expects a source and a destination"));
    };
    let source = sites.parse(Side::Source, source)?;
    let destination = sites.parse(Side::Destination, destination)?;
    if source == Location::Standard || destination == Location::Standard {
        return Err(usage(
            "--verify copies several times: name files, or zero: and null:, not standard input or output",
        ));
    }
    if !matches!(source, Location::Remote(_)) && !matches!(destination, Location::Remote(_)) {
        return Err(usage(
            "--verify needs the network, whose settings are tried: the source or the destination has to be the URL of a server, \
             as in --verify zero:10G ftp://dtn.example.org/tmp/x",
        ));
    }
    if matches!((&source, &destination), (Location::Remote(_), Location::Remote(_))) {
        return Err(usage(
            "--verify tries settings of this host: the source or the destination has to be here; \
             run it on one of the servers",
        ));
    }
    Ok(Pair { source, destination, window: None })
}

impl Site<'_> {
    fn verify(&self, journal: &Journal) -> anyhow::Result<Seen> {
        say("ropewalk: a first transfer determines its limit; nothing is changed yet");
        let (before, here, exit) = self.profile()?;
        self.write(&before, "before.json")?;
        if let Outcome::Failed(why) = &before.workload.outcome {
            say(format_args!(
                "ropewalk: nothing was changed: the transfer fails with the present \
                              settings: {why}"
            ));
            return Ok(self.seen(&before, here, exit));
        }
        if self.command.rtt.is_none() && Evidence::of(&before).rtt.is_none() {
            return Err(usage(
                "the round trip is unknown, because the sending end could not be measured: use \
                 --rtt; nothing was changed",
            ));
        }
        let mut seen = self.seen(&before, here, Exit::Failed);
        if let Some(elsewhere) = &seen.verified.elsewhere {
            say(format_args!("ropewalk: {}", elsewhere.text()));
        }
        let (changes, others) = Changes::of(&seen.checks).split(&Sysctls::default());
        super::say_others(&others);
        if changes.0.is_empty() && !others.is_empty() {
            let denied = io::Error::from(io::ErrorKind::PermissionDenied);
            return Err(anyhow::Error::new(denied).context("none of the settings may be changed"));
        }
        if changes.0.is_empty() {
            say("ropewalk: no kernel setting of this host has to be changed");
            seen.exit = if super::ready(&seen.checks) && seen.verified.elsewhere.is_none() {
                Exit::Done
            } else {
                Exit::Failed
            };
            return Ok(seen);
        }
        if !self.command.agreed(&changes)? {
            say("ropewalk: nothing was changed");
            return Ok(seen);
        }
        let mut trial = journal.try_out(&changes)?;
        let result = self.rounds(&mut trial);
        let taken_back = |trial: Trial<'_>| {
            trial
                .abandon()
                .context("not all old settings are restored; `ropewalk doctor --restore` tries again")
        };
        let judged = match result {
            Ok(Ok(judgement)) => judgement,
            Ok(Err((exit, why))) => {
                seen.verified.foreign = taken_back(trial)?;
                say(format_args!("ropewalk: {why}: the old settings are restored"));
                seen.exit = exit;
                return Ok(seen);
            }
            Err(error) => {
                let foreign = taken_back(trial)?;
                say("ropewalk: the old settings are restored");
                say_foreign(&foreign);
                return Err(error);
            }
        };
        seen.verified.kept = judged.helped;
        if judged.helped {
            seen.applied = trial.keep()?.changes;
            seen.exit = Exit::Done;
            let host = collect::facts::gather(&collect::facts::Root::default(), &[]);
            seen.checks = checks(&host, &seen.goal);
            seen.host = host;
            if self.command.profiles.is_some() {
                say("ropewalk: the settings are kept; the last transfer is for the profile");
                // The results so far are reported in any case.
                if let Err(error) = self.profile().and_then(|(after, ..)| self.write(&after, "after.json")) {
                    say(format_args!("ropewalk: {}", crate::message(&error)));
                }
            }
        } else {
            seen.verified.foreign = taken_back(trial)?;
        }
        seen.verified.judgement = Some(judged);
        Ok(seen)
    }

    /// Measures old and new settings alternately, in reversed order from round to round, so that
    /// slow changes and after-effects of a run concern both alike. Each run uses connections of its
    /// own.
    fn rounds(&self, trial: &mut Trial<'_>) -> anyhow::Result<Result<Judgement, (Exit, String)>> {
        let (mut old, mut new) = (Vec::new(), Vec::new());
        let mut shortest = f64::INFINITY;
        for round in 0..self.command.rounds {
            for with_new in if round % 2 == 0 { [false, true] } else { [true, false] } {
                if with_new {
                    let before = trial.refused().len();
                    trial.set_new()?;
                    super::say_refused(trial.refused().get(before..).unwrap_or_default());
                    if trial.is_empty() {
                        let why = "the kernel refuses all of the new settings";
                        return Ok(Err((Exit::Failed, why.to_owned())));
                    }
                } else {
                    trial.set_old()?;
                }
                let settings = if with_new { "new" } else { "old" };
                let moved = run(&self.pair, &self.options, &*self.human, &self.cancel);
                if self.cancel.is_cancelled() {
                    return Ok(Err((Exit::Interrupted, "interrupted".to_owned())));
                }
                if let Outcome::Failed(why) = &moved.workload.outcome {
                    let exit = moved.summary.as_ref().map_or(Exit::Failed, Exit::of_summary);
                    return Ok(Err((
                        exit,
                        format!("the transfer failed with the {settings} settings ({why})"),
                    )));
                }
                let rate = moved.workload.rate();
                shortest = shortest.min(moved.workload.seconds);
                let place = format!("round {} of {}", round + 1, self.command.rounds);
                say(format_args!("ropewalk: {place}, {settings} settings: {}", units::rate(rate)));
                if with_new { new.push(rate) } else { old.push(rate) }
            }
        }
        if shortest < SHORT {
            say(format_args!(
                "ropewalk: the shortest transfer took {}: connecting and slow start dominate; use a \
                 larger file",
                units::time(shortest)
            ));
        }
        Ok(Ok(Judgement::of(&old, &new)))
    }

    /// Measures a transfer at this end, and at the other end if its server takes profiles. Returns
    /// the index of this host too.
    fn profile(&self) -> anyhow::Result<(Profile, Option<usize>, Exit)> {
        let mut ends = Ends::default();
        let mut control = Vec::new();
        let mut role = Role::Both;
        for (place, at, ours) in [
            (&self.pair.source, Role::Source, Role::Destination),
            (&self.pair.destination, Role::Destination, Role::Source),
        ] {
            if let Location::Remote(url) = place {
                control.push(url.port);
                role = ours;
                let events: Arc<dyn EventSink> = self.human.clone();
                ends.server(url, at, None, &self.options, &events, &self.cancel);
            }
        }
        // Measuring programs would outlive this process if it were killed; the kernel's own figures
        // are sufficient here.
        ends.here(&collect::Options {
            role,
            perf: false,
            sysstat: false,
            sockets: Sockets { own: true, except: control, ..Sockets::default() },
            programs: vec![std::process::id()],
            ..collect::Options::default()
        });
        ends.read_clocks();
        let moved = ends.during(|| run(&self.pair, &self.options, &*self.human, &self.cancel));
        let measured = ends.finish();
        let exit = moved.summary.as_ref().map_or(Exit::Failed, Exit::of_summary);
        let Moved { began, workload, stages, .. } = moved;
        let mut hosts = measured.hosts;
        let here = measured.here.filter(|&here| here < hosts.len());
        if let Some(here) = here {
            hosts[here].stages = stages;
        }
        // The source comes first.
        let swap = hosts.len() == 2 && hosts[1].role.sends() && !hosts[0].role.sends();
        if swap {
            hosts.swap(0, 1);
        }
        let here = here.map(|here| if swap { 1 - here } else { here });
        let profile = Profile { schema: SCHEMA, started: began, workload, hosts, ..Profile::default() };
        Ok((profile, here, exit))
    }

    fn seen(&self, before: &Profile, here: Option<usize>, exit: Exit) -> Seen {
        let facts = here.and_then(|here| before.hosts.get(here)).map(|host| host.facts.clone());
        let host = facts.unwrap_or_else(|| collect::facts::gather(&collect::facts::Root::default(), &[]));
        let rtt = self.command.rtt.map(|rtt| rtt.as_secs_f64());
        let goal = Goal {
            rate: self.command.rate.unwrap_or_default() as f64,
            // A failed transfer gives no evidence, and nothing is changed.
            rtt: rtt.or(Evidence::of(before).rtt).unwrap_or(1e-4),
        };
        let found = checks(&host, &goal);
        let elsewhere = Elsewhere::of(before, here, &goal);
        let verified = Verified { elsewhere, ..Verified::default() };
        Seen { host, goal, checks: found, applied: Vec::new(), verified, exit }
    }

    fn write(&self, profile: &Profile, name: &str) -> anyhow::Result<()> {
        let Some(directory) = &self.command.profiles else { return Ok(()) };
        let write = |path: &Path| {
            fs::create_dir_all(directory)?;
            fs::write(path, profile.to_json()?)
        };
        let path = directory.join(name);
        write(&path).with_context(|| format!("cannot write {}", path.display()))
    }
}

fn say_foreign(foreign: &[(String, String)]) {
    for (name, value) in foreign {
        say(format_args!("ropewalk: {name} = {value}: another program has set this meanwhile, left alone"));
    }
}

/// The text for the terminal.
pub(super) fn text(verified: &Verified) -> String {
    let mut text = String::new();
    for (name, value) in &verified.foreign {
        text += &format!("{name} = {value}: another program has set this meanwhile, left alone\n");
    }
    if let Some(judged) = &verified.judgement {
        for (name, rates, median) in
            [("old", &judged.old, judged.old_median), ("new", &judged.new, judged.new_median)]
        {
            let rates: Vec<String> = rates.iter().map(|rate| units::rate(*rate)).collect();
            text += &format!("{name} settings  median {}  ({})\n", units::rate(median), rates.join(", "));
        }
        text += &said(judged);
    }
    match &verified.elsewhere {
        Some(elsewhere) => text += &(elsewhere.text() + "\n"),
        None if verified.judgement.as_ref().is_some_and(|judged| !judged.helped) => {
            text += "To find the limit of the transfer: `ropewalk profile SOURCE DESTINATION`.\n";
        }
        None => {}
    }
    harmless_lines(&text)
}

fn said(judged: &Judgement) -> String {
    let gain = if judged.gain >= 1.0 {
        format!("{:.1} times as fast", judged.gain + 1.0)
    } else {
        format!("{:+.1} %", judged.gain * 100.0)
    };
    if judged.helped {
        return format!(
            "The new settings help: {gain}, which chance alone would do in {:.1} % of cases. They \
             are kept.\n",
            judged.chance * 100.0
        );
    }
    let why = if judged.gain < Judgement::GAIN {
        format!("less than {:+.0} %", Judgement::GAIN * 100.0)
    } else {
        format!("within the noise: chance alone does as well in {:.0} % of cases", judged.chance * 100.0)
    };
    format!("The new settings do not help: {gain}, {why}. The old ones are restored.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_trial_has_gain_and_decision() {
        let helped = Judgement::of(&[1e6, 1.1e6, 1.05e6], &[5e6, 5.1e6, 5.2e6]);
        assert!(
            said(&helped).contains("4.9 times as fast") && said(&helped).contains("kept"),
            "{}",
            said(&helped)
        );
        let noise = Judgement::of(&[1e6, 1.1e6, 1.3e6], &[1.2e6, 1.4e6, 1.2e6]);
        assert!(said(&noise).contains("within the noise"), "{}", said(&noise));
        let slower = Judgement::of(&[2e6; 3], &[1e6; 3]);
        assert!(said(&slower).contains("-50.0 %, less than +2 %"), "{}", said(&slower));
        let verified = Verified {
            judgement: Some(slower),
            foreign: vec![("net.a".into(), "\x1b7".into())],
            ..Verified::default()
        };
        let text = text(&verified);
        assert!(
            text.contains("left alone") && text.contains("ropewalk profile") && !text.contains('\x1b'),
            "{text}"
        );
    }
}
