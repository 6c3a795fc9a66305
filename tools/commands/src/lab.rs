//! `ropewalk lab`: long paths on one machine.

mod case_study;
mod change;
mod compare;
mod findings;
mod labelled;
mod list;
mod progress;
mod random;
mod run;
mod shell;
mod sweep;
mod up;

use std::time::Duration;

use clap::{Args, Subcommand};
use ropewalk_lab::library::{self, Call, Direction, LibraryError, Workload};
use ropewalk_lab::run::{RunError, Stop};
use ropewalk_lab::scenario::{Document, ScenarioError, Value};
use ropewalk_lab::sweep::{SweepError, Vary};

use crate::exit::{Exit, usage};
use crate::{signals, units};

#[derive(Debug, Args)]
pub struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a scenario from start to end, and write results and plots
    Run(run::Run),
    /// Build a scenario and keep it until Ctrl-C, for `lab shell`
    Up(up::Up),
    /// Open a shell on a host of a running lab, or run a command there
    Shell(shell::Shell),
    /// Change the path of a running lab: its delay, rate, queue or losses
    Change(change::Change),
    /// Vary parameters, and draw the curve
    Sweep(sweep::Sweep),
    /// Run several programs in turn on the same path, and compare them
    Match(compare::Match),
    /// Measure the results in docs/lab.md and docs/evaluation/tuning.md, and write their tables and
    /// plots
    Findings(findings::Findings),
    /// List the scenarios and programs of the library, and the running labs
    List(list::List),
    /// Print a scenario or a program of the library, as a start for one's own
    Show(list::Show),
}

impl Lab {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.command {
            Command::Run(command) => command.run(),
            Command::Up(command) => command.run(),
            Command::Shell(command) => command.run(),
            Command::Change(command) => command.run(),
            Command::Sweep(command) => command.run(),
            Command::Match(command) => command.run(),
            Command::Findings(command) => command.run(),
            Command::List(command) => command.run(),
            Command::Show(command) => command.run(),
        }
    }
}

/// The scenario.
#[derive(Debug, Args)]
struct ScenarioFlags {
    /// A scenario of the library (`ropewalk lab list`), or a file
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// Change a variable (streams=4) or a field (links[0].path.both.loss=0.1%) of the scenario
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    set: Vec<(String, Value)>,
}

/// The workload.
#[derive(Debug, Args)]
struct WorkloadFlags {
    /// From `left` to `right`; otherwise from `right` (the server) to `left`
    #[arg(long)]
    put: bool,
    /// Bytes to move, all files together [default: the scenario's]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    size: Option<u64>,
    /// Split into this many files of the same size [default: one file]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: Option<u32>,
    /// Stop the program after this time, and count the bytes that have arrived
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    limit: Option<Duration>,
    /// Move zeros that are stored nowhere, for more data than memory can hold
    #[arg(long, conflicts_with = "count")]
    unstored: bool,
}

impl ScenarioFlags {
    /// The name in tables and of files: without directories and `.toml`.
    fn name(&self) -> String {
        let file = std::path::Path::new(&self.scenario);
        let stem = if self.scenario.ends_with(".toml") { file.file_stem() } else { file.file_name() };
        stem.unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Opens the scenario with its changes. A changed variable must exist in it, or in one of
    /// `programs`.
    fn open(&self, programs: &[Call], workload: &Workload) -> anyhow::Result<Document> {
        let mut document = library::open(&self.scenario).map_err(of_library)?;
        let own = document.scenario().map_err(of_scenario)?;
        for (name, value) in &self.set {
            let plain = !name.contains(['.', '[']);
            let known =
                own.variables.contains_key(name) || programs.iter().any(|call| call.uses(name, workload));
            if plain && !known {
                return Err(usage(format!("--set {name}: nothing depends on a variable of this name")));
            }
            let field = if plain { format!("variables.{name}") } else { name.clone() };
            document.set(&field, value).map_err(of_scenario)?;
        }
        Ok(document)
    }
}

impl WorkloadFlags {
    fn workload(&self) -> Workload {
        let direction = if self.put { Direction::Put } else { Direction::Get };
        Workload {
            direction,
            size: self.size,
            files: self.count,
            limit: self.limit,
            unstored: self.unstored,
            hollow: false,
        }
    }
}

fn setting(given: &str) -> Result<(String, Value), String> {
    let vary: Vary = given.parse().map_err(|_| format!("{given:?}: expected NAME=VALUE"))?;
    match <[Value; 1]>::try_from(vary.values) {
        Ok([value]) => Ok((vary.name, value)),
        Err(_) => Err(format!("{given:?}: expected one value")),
    }
}

/// Numbers of streams, in the syntax of `lab sweep --vary`.
fn stream_counts(given: &str) -> anyhow::Result<Vec<u32>> {
    let vary: Vary = format!("streams={given}").parse().map_err(of_sweep)?;
    let number = |value: &Value| match value {
        Value::Integer(number @ 1..=1000) => u32::try_from(*number).ok(),
        _ => None,
    };
    let streams: Option<Vec<u32>> = vary.values.iter().map(number).collect();
    streams.ok_or_else(|| usage(format!("--streams {given}: expected numbers from 1 to 1000")))
}

/// The named programs, if they are installed.
fn calls(programs: &[String]) -> anyhow::Result<Vec<Call>> {
    let calls: Vec<Call> =
        programs.iter().map(|text| Call::parse(text)).collect::<Result<_, _>>().map_err(of_library)?;
    for call in &calls {
        call.program.check_installed()?;
    }
    Ok(calls)
}

/// An invalid request: exit code 2.
fn of_library(error: LibraryError) -> anyhow::Error {
    match error {
        LibraryError::Scenario(ScenarioError::Read { error, path }) => {
            anyhow::Error::new(error).context(format!("cannot read {}", path.display()))
        }
        LibraryError::Missing { .. } => error.into(),
        error => usage(error.to_string()),
    }
}

fn of_scenario(error: ScenarioError) -> anyhow::Error {
    of_library(error.into())
}

fn of_sweep(error: SweepError) -> anyhow::Error {
    match error {
        SweepError::Library(error) => of_library(error),
        SweepError::Scenario(error) => of_scenario(error),
        SweepError::Store { path, error } => {
            anyhow::Error::new(error).context(format!("cannot use {}", path.display()))
        }
        SweepError::Run(error) => of_run(error),
        error => usage(error.to_string()),
    }
}

fn of_run(error: RunError) -> anyhow::Error {
    match error {
        // The exit code depends on this error.
        RunError::NotRoot => anyhow::Error::new(std::io::Error::from(std::io::ErrorKind::PermissionDenied))
            .context(error.to_string()),
        error => error.into(),
    }
}

/// Stops at the first Ctrl-C.
fn stop_at_signal(message: &'static str) -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let at_signal = stop.clone();
    signals::on_first(message, move || at_signal.stop())?;
    Ok(stop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        lab: Lab,
    }

    #[test]
    fn set_option_is_parsed() {
        assert_eq!(setting("streams=4").unwrap(), ("streams".into(), Value::Integer(4)));
        assert_eq!(setting("links[0].path.both.loss=0.1%").unwrap().1, Value::Text("0.1%".into()));
        for wrong in ["streams", "=4", "streams=1,2"] {
            assert!(setting(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn scenario_name_has_no_directory_and_suffix() {
        let name = |scenario: &str| ScenarioFlags { scenario: scenario.into(), set: vec![] }.name();
        assert_eq!(name("metro"), "metro");
        assert_eq!(name("/x/my.path.toml"), "my.path");
    }

    #[test]
    fn invalid_requests_are_usage_errors() {
        for words in [
            "lab run moon",
            "lab run metro --program rsync",
            "lab run metro --set links=5",
            "lab sweep metro --vary streams",
            "lab sweep metro --vary streams=1,2 --program curl",
            "lab match metro --program ''",
            "lab show moon",
            "lab change",
            "lab change links",
            "lab change links[0].path.both.loss=200% --lab x",
            "lab change kernel.congestion=bbr --lab x",
            "lab sweep metro --vary streams=1,2 -o curve.svg",
            "lab match",
            "lab match metro",
            "lab match metro --program curl --seed 7",
            "lab match metro --random 1",
            "lab match --random 0",
            "lab match --random 1 --size 1M",
            "lab match --random 1 --streams 0",
        ] {
            let words: Vec<&str> = words.split(' ').map(|word| word.trim_matches('\'')).collect();
            match Program::try_parse_from(words.clone()) {
                Err(error) => assert_eq!(error.exit_code(), 2, "{words:?}"),
                Ok(program) => {
                    let error = program.lab.run().unwrap_err();
                    assert_eq!(Exit::of_error(&error), Exit::Usage, "{words:?}: {error}");
                }
            }
        }
    }
}
