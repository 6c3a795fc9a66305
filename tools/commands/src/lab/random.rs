//! `ropewalk lab match --random`: compares programs on randomly drawn paths.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use ropewalk_lab::emulator::Rate;
use ropewalk_lab::library::{Direction, RandomPath};
use ropewalk_lab::matches::{RandomStudy, build_of};
use ropewalk_lab::report::Table;
use ropewalk_lab::sweep::Store;

use super::sweep::{Campaign, STOPPING};
use super::{calls, of_sweep, stop_at_signal, stream_counts};
use crate::exit::Exit;
use crate::output::{json_line, say};

/// The paths, and the duration of runs.
#[derive(Debug, Args)]
pub(super) struct RandomFlags {
    /// Instead of a scenario: this many random paths (docs/lab.md has the ranges), each with static
    /// settings and --program [default: ropewalk], whose shares of the best static setting are
    /// shown
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u32>::new().range(1..=10_000))]
    random: Option<u32>,
    /// With --random: the first path's seed; each path depends only on its own seed
    #[arg(long, value_name = "S", default_value_t = 1, conflicts_with = "scenario")]
    seed: u32,
    /// With --random: print the paths as scenario files, and run nothing
    #[arg(long, conflicts_with = "scenario")]
    print: bool,
    /// With --random: skip paths with a higher rate
    #[arg(long, value_name = "RATE", conflicts_with = "scenario")]
    max_rate: Option<Rate>,
    /// With --random: intended duration of a transfer with the best static setting, in seconds
    #[arg(long, default_value_t = 30, conflicts_with = "scenario", value_parser = RangedU64ValueParser::<u32>::new().range(1..=3600))]
    seconds: u32,
    /// With --random: seconds after which a run is stopped that searches for the best two static
    /// settings
    #[arg(long, value_name = "SECONDS", default_value_t = 20, conflicts_with = "scenario", value_parser = RangedU64ValueParser::<u32>::new().range(1..=3600))]
    coarse: u32,
    /// With --random: the static settings, as in `lab sweep`
    #[arg(long, value_name = "VALUES", default_value = "1,4,16,32,64,128", conflicts_with = "scenario")]
    streams: String,
    /// With --random: this many plain cubic flows run at the same time, and their remaining share
    /// is shown
    #[arg(long, value_name = "FLOWS", default_value_t = 0, conflicts_with = "scenario", value_parser = RangedU64ValueParser::<u32>::new().range(0..=64))]
    beside: u32,
    /// With --random: accept results of static settings from any build of ropewalk
    #[arg(long, conflicts_with = "scenario")]
    any_build: bool,
    /// With --random: run nothing, use the results in the file
    #[arg(long, conflicts_with = "scenario")]
    report_only: bool,
    /// With --random: print all figures as JSON
    #[arg(long, conflicts_with = "scenario")]
    json: bool,
}

impl RandomFlags {
    fn paths(&self) -> Vec<RandomPath> {
        let most = self.max_rate.and_then(Rate::get).unwrap_or(u64::MAX);
        let seeds = self.seed..self.seed.saturating_add(self.random.unwrap_or_default());
        seeds.map(RandomPath::draw).filter(|path| path.rate * 1000 <= most).collect()
    }

    pub(super) fn run(
        &self,
        programs: &[String],
        direction: Direction,
        campaign: &Campaign,
        output: Option<&PathBuf>,
        markdown: bool,
    ) -> anyhow::Result<Exit> {
        let paths = self.paths();
        if self.print {
            let texts: Vec<String> = paths.iter().map(RandomPath::text).collect();
            io::stdout().lock().write_all(texts.join("\n").as_bytes())?;
            return Ok(Exit::Done);
        }
        let default = ["ropewalk".to_owned()];
        let study = RandomStudy {
            paths,
            programs: calls(if programs.is_empty() { &default } else { programs })?,
            direction,
            streams: stream_counts(&self.streams)?,
            seconds: self.seconds,
            coarse: self.coarse,
            repetitions: campaign.repeat,
            beside: self.beside,
            build: std::env::current_exe()
                .and_then(|program| build_of(&program))
                .context("cannot read itself")?,
            any_build: self.any_build,
        };
        let mut store = match output {
            Some(path) => Store::open(path).map_err(of_sweep)?,
            None => Store::in_memory(),
        };
        let mut exit = Exit::Done;
        if !self.report_only {
            if !campaign.quiet {
                for path in &study.paths {
                    say(format_args!("path {}: {}", path.seed, path.describe()));
                }
            }
            let stop = stop_at_signal(STOPPING)?;
            let swept = campaign.run_until(&stop, study.trials(&store).map_err(of_sweep)?, &mut store)?;
            // None of these runs once the user has stopped the match.
            let finals = study.finals(&store).map_err(of_sweep)?;
            let whole = campaign.run_until(&stop, finals, &mut store)?;
            exit = if whole == Exit::Done { swept } else { whole };
        }
        let results = study.results(&store).map_err(of_sweep)?;
        let mut stdout = io::stdout().lock();
        if self.json {
            json_line(&mut stdout, &results)?;
            return Ok(exit);
        }
        let text = |table: Table| if markdown { table.markdown() } else { table.text() };
        writeln!(stdout, "{}\n{}", text(results.table()), text(results.summary()))?;
        Ok(exit)
    }
}
