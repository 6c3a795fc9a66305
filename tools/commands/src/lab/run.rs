use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use ropewalk_lab::library::{self, Workload, attach};
use ropewalk_lab::report::{Table, rate_text, run_chart};
use ropewalk_lab::results::{End, RunResult};
use ropewalk_lab::run::{RunError, RunOptions, run};
use ropewalk_lab::scenario::Scenario;
use ropewalk_lab::sweep::Measurement;

use super::progress::RunProgress;
use super::{ScenarioFlags, WorkloadFlags, calls, of_library, of_run, of_scenario, stop_at_signal};
use crate::exit::{Exit, usage};
use crate::output::{json_line, say};

const STOPPING: &str = "ropewalk: stopping, taking the lab down (press Ctrl-C again to quit now)";

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    scenario: ScenarioFlags,
    /// Run this program of the library instead of the scenario's own commands, for example
    /// 'globus-url-copy -p 8' [default: ropewalk, for scenarios without commands]
    #[arg(long, value_name = "PROGRAM")]
    program: Option<String>,
    #[command(flatten)]
    workload: WorkloadFlags,
    /// Directory of results: result.json, series.json and run.svg [default: a new directory here]
    #[arg(short, long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// The lab's name, for `lab shell`
    #[arg(long)]
    name: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Print errors only
    #[arg(short, long)]
    quiet: bool,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let scenario = self.scenario()?;
        // Before the measurement, so that its figures cannot be lost for want of a directory.
        let directory = Directory::make(self.output.as_deref(), &self.scenario.name())?;
        let stop = stop_at_signal(STOPPING)?;
        let progress = RunProgress::new(self.quiet);
        let options =
            RunOptions { name: self.name.clone(), program: None, stop, events: Some(progress.events()) };
        let result = run(&scenario, &options);
        progress.finish();
        let result = match result {
            Err(RunError::Stopped) => return Ok(Exit::Interrupted),
            result => result.map_err(of_run)?,
        };
        // Each may fail independently: a full disk, a reader that has gone.
        let printed = match (self.json, self.quiet) {
            (true, _) => json_line(&mut io::stdout().lock(), &result),
            (false, false) => print(&result),
            (false, true) => Ok(()),
        };
        directory.write(&result, &scenario)?;
        printed?;
        if !self.json && !self.quiet {
            say(format_args!("Results are in {}", directory.path.display()));
        }
        let may_fail = |name: &str| scenario.commands.iter().any(|own| own.name == name && own.may_fail);
        let failed = |end: End| !matches!(end, End::Exit(0) | End::Stopped);
        let all_well = result.commands.iter().all(|command| !failed(command.end) || may_fail(&command.name));
        Ok(if all_well { Exit::Done } else { Exit::Failed })
    }

    fn scenario(&self) -> anyhow::Result<Scenario> {
        let workload = self.workload.workload();
        let own = library::open(&self.scenario.scenario).and_then(|document| Ok(document.scenario()?));
        let without_commands = own.map_err(of_library)?.commands.is_empty();
        let program = self.program.as_deref().or(without_commands.then_some("ropewalk"));
        let calls = calls(program.map(str::to_owned).as_slice())?;
        let scenario = self.scenario.open(&calls, &workload)?.scenario().map_err(of_scenario)?;
        match calls.first() {
            Some(call) => attach(&scenario, call, &workload).map_err(of_library),
            None if workload == Workload::default() => Ok(scenario),
            None => Err(usage(
                "the scenario has its own commands: --put, --size, --count and --limit go with --program",
            )),
        }
    }
}

/// The directory of results. If it was created for them and stays empty, it is removed.
struct Directory {
    path: PathBuf,
    own: bool,
}

impl Directory {
    fn make(given: Option<&Path>, scenario: &str) -> anyhow::Result<Self> {
        let Some(path) = given else {
            return Ok(Self { path: new_directory(&format!("lab-{scenario}"))?, own: true });
        };
        let own = !path.exists();
        let failed = || format!("cannot write to {}", path.display());
        fs::create_dir_all(path).with_context(failed)?;
        let directory = Self { path: path.to_owned(), own };
        if !path.is_dir() || rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_err() {
            let error = io::Error::from(ErrorKind::PermissionDenied);
            return Err(anyhow::Error::new(error).context(failed()));
        }
        Ok(directory)
    }

    fn write(&self, result: &RunResult, scenario: &Scenario) -> anyhow::Result<()> {
        let failed = || format!("cannot write to {}", self.path.display());
        result.write(&self.path).with_context(failed)?;
        run_chart(result, Some(scenario)).write(self.path.join("run.svg"))?;
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.own {
            // An error means that it contains results.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// `NAME`, or `NAME-2` and so on: results of earlier runs stay.
fn new_directory(name: &str) -> anyhow::Result<PathBuf> {
    for number in 1.. {
        let path = if number == 1 { name.to_owned() } else { format!("{name}-{number}") };
        match fs::create_dir(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            result => {
                result.with_context(|| format!("cannot make directory {path}"))?;
                return Ok(Path::new(&path).to_owned());
            }
        }
    }
    Ok(PathBuf::from(name))
}

fn print(result: &RunResult) -> io::Result<()> {
    let mut table = Table::new(["command", "seconds", "rate", "streams", "CPU s", "ended"]);
    // The data that had arrived when the only command was stopped.
    let ran = result.commands.iter().filter(|command| command.ran()).count();
    let arrived = (ran == 1).then(|| Measurement::of(result).goodput);
    for command in &result.commands {
        let arrived = arrived.filter(|_| command.ran());
        let ended = match command.end {
            _ if !command.ran() => "not started".to_owned(),
            End::Exit(0) => "well".to_owned(),
            End::Exit(code) => format!("with {code}"),
            End::Signal(signal) => format!("by signal {signal}"),
            End::Timeout => "timed out".to_owned(),
            End::Stopped => "stopped".to_owned(),
        };
        table.row([
            command.name.clone(),
            format!("{:.2}", command.seconds),
            command.goodput.or(arrived).map(rate_text).unwrap_or_default(),
            command.streams_max.to_string(),
            format!("{:.2}", command.cpu_user + command.cpu_system),
            ended,
        ]);
    }
    let mut links = Table::new(["link", "rate", "packets", "dropped", "lost", "longest queue"]);
    for link in &result.links {
        let [first, second] = &link.between;
        for (name, direction) in [
            (format!("{first} to {second}"), &link.forward),
            (format!("{second} to {first}"), &link.backward),
        ] {
            links.row([
                name,
                rate_text(direction.bytes as f64 * 8.0 / result.seconds.max(1e-9)),
                direction.packets_in.to_string(),
                direction.dropped.to_string(),
                direction.lost.to_string(),
                direction.queue_max.to_string(),
            ]);
        }
    }
    let mut traffic = Table::new(["cross traffic", "rate"]);
    for flows in &result.traffic {
        traffic.row([flows.name.clone(), rate_text(flows.rate)]);
    }
    let mut out = io::stdout().lock();
    for table in [table, links, traffic].iter().filter(|table| !table.is_empty()) {
        writeln!(out, "{}", table.text())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn empty_directory_of_results_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a").join("b");
        drop(Directory::make(Some(&path), "s").unwrap());
        assert!(!path.exists());
        let directory = Directory::make(Some(&path), "s").unwrap();
        fs::write(path.join("result.json"), "{}").unwrap();
        drop(directory);
        assert!(path.join("result.json").exists());
        // An existing directory is not removed.
        let old = place.path().join("old");
        fs::create_dir(&old).unwrap();
        drop(Directory::make(Some(&old), "s").unwrap());
        assert!(old.exists());
        assert!(Directory::make(Some(&path.join("result.json")), "s").is_err(), "a file");
    }
}
