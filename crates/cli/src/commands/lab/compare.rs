use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ropewalk_lab::matches;
use ropewalk_lab::report::capacity;
use ropewalk_lab::sweep::{Design, Store, Trial, groups, trials};

use super::sweep::Campaign;
use super::{ScenarioFlags, WorkloadFlags, calls, of_sweep};
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(crate) struct Match {
    #[command(flatten)]
    scenario: ScenarioFlags,
    /// A program of the library (`ropewalk lab list`) with its arguments, for example 'globus-url-copy -p 8'; the
    /// others are compared with the first
    #[arg(long, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
    #[command(flatten)]
    workload: WorkloadFlags,
    #[command(flatten)]
    campaign: Campaign,
    /// Keep the results of every round, one JSON object a line; when the file is there already, the match goes on
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the table for Markdown
    #[arg(long)]
    markdown: bool,
}

impl Match {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let name = self.scenario.name();
        let workload = self.workload.workload();
        let programs = calls(&self.program)?;
        let document = self.scenario.open(&programs, &workload)?;
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
        // What failed is in the table as well, but not what an older version of the scenario gave.
        let current = |fingerprint: &str| wanted.iter().any(|trial| trial.fingerprint == fingerprint);
        let groups = groups(store.records().iter().filter(|record| current(&record.fingerprint)));
        let table =
            matches::table(&groups, |group| capacity(&scenario, direction, group.seconds, group.segment));
        let text = if self.markdown { table.markdown() } else { table.text() };
        io::stdout().lock().write_all(text.as_bytes())?;
        Ok(exit)
    }
}
