use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ropewalk_lab::emulator::Rate;
use ropewalk_lab::library::{self, Direction};
use ropewalk_lab::report::{Table, capacity, rate_text, sweep_chart};
use ropewalk_lab::run::Stop;
use ropewalk_lab::scenario::Scenario;
use ropewalk_lab::sweep::{Design, Group, Options, Store, Trial, Vary, execute, groups, trials};

use super::progress::SweepProgress;
use super::{ScenarioFlags, WorkloadFlags, calls, of_library, of_scenario, of_sweep, stop_at_signal};
use crate::exit::{Exit, usage};
use crate::output::say;
use crate::picture::picture;

pub(super) const STOPPING: &str = "ropewalk: stopping; results are kept, rerun the same command to \
                                   resume (press Ctrl-C again to quit now)";

#[derive(Debug, Args)]
pub(crate) struct Sweep {
    #[command(flatten)]
    scenario: ScenarioFlags,
    /// A parameter and its values: streams=1,2,4, streams=1..50, streams=1..50/7 (every 7th),
    /// streams=1..64*2 (doubling). Programs know streams, files (in flight), buffer and block;
    /// links[0].path.both.queue=50,100 changes the scenario. If given twice: all combinations
    #[arg(long, required = true, value_name = "NAME=VALUES", value_parser = |given: &str| given.parse::<Vary>())]
    vary: Vec<Vary>,
    /// Run this program of the library, for example 'globus-url-copy -fast'; several are compared
    /// [default: the scenario's own commands, or ropewalk]
    #[arg(long, value_name = "PROGRAM")]
    program: Vec<String>,
    #[command(flatten)]
    workload: WorkloadFlags,
    #[command(flatten)]
    campaign: Campaign,
    /// File of results; if it exists, the sweep resumes [default: lab-SCENARIO.jsonl]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// File of the curve, SVG or PNG by its suffix [default: beside the results]
    #[arg(long, value_name = "FILE", value_parser = picture())]
    plot: Option<PathBuf>,
}

/// The number of repetitions, and of points at the same time.
#[derive(Debug, Args)]
pub(super) struct Campaign {
    /// Rounds: each has every point once
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) repeat: u32,
    /// Points that run at the same time. They share this machine's processors: for light paths only
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) jobs: u16,
    /// With --jobs: run points at the same time only if their paths together carry no more than
    /// this, for example 400Mbit/s
    #[arg(long, value_name = "RATE")]
    pub(super) budget: Option<Rate>,
    /// Repeat those points of the file whose results have warnings, such as a busy machine
    #[arg(long)]
    pub(super) redo_doubtful: bool,
    /// Print only errors and the result
    #[arg(short, long)]
    pub(super) quiet: bool,
}

impl Campaign {
    /// Runs missing trials. The exit code distinguishes an interruption from failures.
    pub(super) fn run(&self, trials: Vec<Trial>, store: &mut Store) -> anyhow::Result<Exit> {
        self.run_until(&stop_at_signal(STOPPING)?, trials, store)
    }

    /// The same, for a study of several parts with one stop flag.
    pub(super) fn run_until(
        &self,
        stop: &Stop,
        trials: Vec<Trial>,
        store: &mut Store,
    ) -> anyhow::Result<Exit> {
        let mut progress = SweepProgress::new(self.quiet);
        let options = Options {
            jobs: self.jobs.into(),
            budget: self.budget.and_then(Rate::get).map(|rate| rate as f64),
            redo_doubtful: self.redo_doubtful,
            stop: stop.clone(),
            program: None,
        };
        let result = execute(trials, store, &options, &mut |event| progress.tell(event));
        progress.finish();
        result.map_err(of_sweep)?;
        Ok(match (stop.is_stopped(), progress.failed) {
            (true, _) => Exit::Interrupted,
            (false, 0) => Exit::Done,
            (false, _) => Exit::Failed,
        })
    }
}

impl Sweep {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        if self.vary.len() > 2 {
            return Err(usage("at most two parameters can be varied"));
        }
        let name = self.scenario.name();
        let workload = self.workload.workload();
        let own = library::open(&self.scenario.scenario).and_then(|document| Ok(document.scenario()?));
        let mut programs = self.program.clone();
        if programs.is_empty() && own.map_err(of_library)?.commands.is_empty() {
            programs.push("ropewalk".into());
        }
        let programs = calls(&programs)?;
        let document = self.scenario.open(&programs, &workload)?;
        let own = document.scenario().map_err(of_scenario)?;
        let direction = workload.direction;
        let design =
            Design { programs, workload, vary: self.vary.clone(), repetitions: self.campaign.repeat };
        let trials = trials(&name, &document, &design).map_err(of_sweep)?;
        let output = self.output.clone().unwrap_or_else(|| format!("lab-{name}.jsonl").into());
        let plot = self.plot.clone().unwrap_or_else(|| output.with_extension("svg"));
        if plot == output {
            return Err(usage(format!("the curve would overwrite the results, {}", output.display())));
        }
        let mut store = Store::open(&output).map_err(of_sweep)?;
        let wanted: Vec<Trial> = trials.clone();
        let exit = self.campaign.run(trials, &mut store)?;

        // The file may have points of other sweeps.
        let groups = groups(wanted.iter().filter_map(|trial| store.measured(trial)));
        print(&groups, &self.vary)?;
        let chart = sweep_chart(&own.title, &self.vary, &groups, limit(&own, direction, &self.vary, &groups));
        chart.write(&plot)?;
        if !self.campaign.quiet {
            say(format_args!("Results are in {}, the curve is in {}", output.display(), plot.display()));
        }
        Ok(exit)
    }
}

/// The capacity of the path, unless the sweep varies it.
fn limit(scenario: &Scenario, direction: Direction, vary: &[Vary], groups: &[Group]) -> Option<f64> {
    let fixed = vary.iter().all(|vary| !vary.name.contains('.'));
    let segment = groups.iter().map(|group| group.segment).max().filter(|segment| *segment > 0)?;
    let seconds = groups.iter().map(|group| group.seconds).fold(0.0, f64::max);
    fixed.then(|| capacity(scenario, direction, seconds, segment))
}

fn print(groups: &[Group], vary: &[Vary]) -> anyhow::Result<()> {
    let names = vary.iter().map(|vary| vary.name.clone());
    let columns = ["program", "median", "least", "most", "loss", "CPU s/GB", "runs"].map(str::to_owned);
    let mut table = Table::new(names.chain(columns));
    for group in groups {
        let goodput = group.goodput;
        let values = group.values.iter().map(|(_, value)| value.clone());
        let figures = [
            group.program.clone(),
            rate_text(goodput.median),
            rate_text(goodput.min),
            rate_text(goodput.max),
            format!("{:.3} %", group.loss.median * 100.0),
            format!("{:.2}", group.cpu.median),
            group.runs(),
        ];
        table.row(values.chain(figures));
    }
    io::stdout().lock().write_all(table.text().as_bytes()).context("cannot write the table")
}
