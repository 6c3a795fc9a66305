use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ropewalk_lab::library::Workload;
use ropewalk_lab::matches;
use ropewalk_lab::report::capacity;
use ropewalk_lab::scenario::Value;
use ropewalk_lab::sweep::{Design, Store, Trial, groups, trials};

use super::random::RandomFlags;
use super::sweep::Campaign;
use super::{ScenarioFlags, WorkloadFlags, calls, of_sweep, setting};
use crate::exit::{Exit, usage};

#[derive(Debug, Args)]
pub(crate) struct Match {
    /// A scenario of the library (`ropewalk lab list`), or a file
    #[arg(value_name = "SCENARIO", required_unless_present = "random", conflicts_with = "random")]
    scenario: Option<String>,
    /// Change a variable (streams=4) or a field (links[0].path.both.loss=0.1%) of the scenario
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting, conflicts_with = "random")]
    set: Vec<(String, Value)>,
    /// A program of the library (`ropewalk lab list`) with its arguments, for example
    /// 'globus-url-copy -p 8'; the others are compared with the first
    #[arg(long, required_unless_present = "random", value_name = "PROGRAM")]
    program: Vec<String>,
    #[command(flatten)]
    workload: WorkloadFlags,
    #[command(flatten)]
    random: RandomFlags,
    #[command(flatten)]
    campaign: Campaign,
    /// Keep the results of every round, one JSON object on a line; if the file exists, the match
    /// resumes
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the table for Markdown
    #[arg(long)]
    markdown: bool,
}

impl Match {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let workload = self.workload.workload();
        let Some(scenario) = self.scenario else {
            if workload != (Workload { direction: workload.direction, ..Workload::default() }) {
                return Err(usage(
                    "--random with --size, --count, --limit or --unstored: --seconds says how much is moved",
                ));
            }
            let (campaign, output) = (&self.campaign, self.output.as_ref());
            return self.random.run(&self.program, workload.direction, campaign, output, self.markdown);
        };
        let flags = ScenarioFlags { scenario, set: self.set };
        let name = flags.name();
        let programs = calls(&self.program)?;
        let document = flags.open(&programs, &workload)?;
        let scenario = document.scenario().map_err(super::of_scenario)?;
        let direction = workload.direction;
        let design = Design { programs, workload, vary: vec![], repetitions: self.campaign.repeat };
        let trials = trials(&name, &document, &design).map_err(of_sweep)?;
        let wanted: Vec<Trial> = trials.clone();
        let mut store = match &self.output {
            Some(path) => Store::open(path).map_err(of_sweep)?,
            None => Store::in_memory(),
        };
        let exit = self.campaign.run(trials, &mut store)?;
        // The table also has failures, but no results of an older version of the scenario.
        let current = |fingerprint: &str| wanted.iter().any(|trial| trial.fingerprint == fingerprint);
        let groups = groups(store.records().iter().filter(|record| current(&record.fingerprint)));
        let table =
            matches::table(&groups, |group| capacity(&scenario, direction, group.seconds, group.segment));
        let text = if self.markdown { table.markdown() } else { table.text() };
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(exit)
    }
}
