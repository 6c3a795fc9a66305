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

const STOPPING: &str = "ropewalk: stopping, taking the lab down (again: stop at once)";

#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    scenario: ScenarioFlags,
    /// Run this program of the library instead of the scenario's own commands, for example 'globus-url-copy -p 8'
    /// [default: ropewalk, for scenarios without commands]
    #[arg(long, value_name = "PROGRAM")]
    program: Option<String>,
    #[command(flatten)]
    workload: WorkloadFlags,
    /// Where results go: result.json, series.json and run.svg [default: a new directory here]
    #[arg(short, long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// The lab's name, for `lab shell`
    #[arg(long)]
    name: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let scenario = self.scenario()?;
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
        let directory = self.write(&result, &scenario)?;
        if self.json {
            json_line(&mut io::stdout().lock(), &result)?;
        } else if !self.quiet {
            print(&result)?;
            say(format_args!("Results are in {}", directory.display()));
        }
        let failed = |end: End| !matches!(end, End::Exit(0) | End::Stopped);
        Ok(if result.commands.iter().any(|command| failed(command.end)) { Exit::Failed } else { Exit::Done })
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

    fn write(&self, result: &RunResult, scenario: &Scenario) -> anyhow::Result<PathBuf> {
        let directory = match &self.output {
            Some(directory) => directory.clone(),
            None => new_directory(&format!("lab-{}", self.scenario.name()))?,
        };
        result.write(&directory).with_context(|| format!("cannot write to {}", directory.display()))?;
        run_chart(result, Some(scenario)).write(directory.join("run.svg"))?;
        Ok(directory)
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
    // What had arrived when the only command was stopped.
    let arrived = (result.commands.len() == 1).then(|| Measurement::of(result).goodput);
    for command in &result.commands {
        let ended = match command.end {
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
