use std::io::{self, Write};

use clap::Args;
use ropewalk_lab::library::{Workload, attach};
use ropewalk_lab::run::{Lab, RunError, RunOptions};

use super::progress::RunProgress;
use super::{ScenarioFlags, calls, of_library, of_run, of_scenario, stop_at_signal};
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(crate) struct Up {
    #[command(flatten)]
    scenario: ScenarioFlags,
    /// Start this program's server as well
    #[arg(long, value_name = "PROGRAM")]
    program: Option<String>,
    /// The lab's name, for `lab shell` [default: generated]
    #[arg(long)]
    name: Option<String>,
}

impl Up {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let calls = calls(self.program.as_slice())?;
        let workload = Workload::default();
        let mut scenario = self.scenario.open(&calls, &workload)?.scenario().map_err(of_scenario)?;
        if let Some(call) = calls.first() {
            scenario = attach(&scenario, call, &workload).map_err(of_library)?;
        }
        let stop = stop_at_signal("ropewalk: taking the lab down")?;
        let progress = RunProgress::new(false);
        let options = RunOptions { name: self.name, program: None, stop, events: Some(progress.events()) };
        let mut lab = match Lab::start(&scenario, &options) {
            Err(RunError::Stopped) => return Ok(Exit::Interrupted),
            lab => lab.map_err(of_run)?,
        };
        progress.finish();
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "Lab {} is up. Enter its hosts from other terminals, and end it with Ctrl-C:",
            lab.name()
        )?;
        for host in lab.hosts() {
            writeln!(out, "  ropewalk lab shell --lab {} {host}", lab.name())?;
        }
        out.flush()?;
        drop(out);
        lab.wait().map_err(of_run)?;
        Ok(Exit::Done)
    }
}
