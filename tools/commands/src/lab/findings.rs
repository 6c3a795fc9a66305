use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use ropewalk_lab::report::findings::{
    LiveStudy, Section, library_section, library_trials, live_cases, live_section, paper_section,
    paper_trials,
};
use ropewalk_lab::sweep::Store;

use super::sweep::{Campaign, STOPPING};
use super::{case_study, labelled, of_sweep, stop_at_signal, stream_counts};
use crate::exit::Exit;

#[derive(Debug, Args)]
pub(crate) struct Findings {
    /// The study
    #[arg(value_enum)]
    study: Study,
    /// Numbers of streams, as in `lab sweep` [default: 1..50 for `paper`, 2,4,8,16,32 for
    /// `library`, 1,2,4,8,16,32,64 for `live`]
    #[arg(long, value_name = "VALUES")]
    streams: Option<String>,
    /// Seconds after which a run is stopped
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// `live`: seconds after which a run of the sweep of static settings is stopped; the best two
    /// are then measured in full length
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=3600))]
    coarse: u32,
    /// `live`: only these transfers
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(live_cases()))]
    case: Vec<String>,
    /// Only these scenarios of the library
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    #[command(flatten)]
    campaign: Campaign,
    /// File of results; if it exists, the study resumes
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write the text into this document, and plots into `plots` beside it [default: print the
    /// text]
    #[arg(long, value_name = "FILE")]
    docs: Option<PathBuf>,
    /// Run nothing: use the results in the file
    #[arg(long)]
    report_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Study {
    /// Goodput and loss of N connections on the paths of the papers
    Paper,
    /// Goodput of static settings on every scenario
    Library,
    /// Goodput of tuning on every scenario, beside static settings
    Live,
    /// Verdicts of the profiler on transfers with a known bottleneck; --scenario names cases
    Profiler,
    /// Repetition of the published case study of FTProfiler, for docs/case-study.md; --scenario
    /// names parts, --output a directory
    #[value(name = "case-study")]
    Published,
}

impl Findings {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        if self.study == Study::Profiler {
            let (exit, section) =
                labelled::study(&self.scenario, &self.output, self.campaign.jobs, self.report_only)?;
            self.write(&section)?;
            return Ok(exit);
        }
        if self.study == Study::Published {
            let (exit, sections) = case_study::study(&self.scenario, &self.output, self.report_only)?;
            sections.iter().try_for_each(|section| self.write(section))?;
            return Ok(exit);
        }
        let mut store = Store::open(&self.output).map_err(of_sweep)?;
        let mut exit = Exit::Done;
        if !self.report_only {
            exit = match self.study {
                Study::Live => {
                    let (live, stop) = (self.live()?, stop_at_signal(STOPPING)?);
                    let trials = live.trials().map_err(of_sweep)?;
                    let swept = self.campaign.run_until(&stop, trials, &mut store)?;
                    let finals = live.finals(&store.current()).map_err(of_sweep)?;
                    // None of these runs once the user has stopped the study.
                    let again = self.campaign.run_until(&stop, finals, &mut store)?;
                    if again == Exit::Done { swept } else { again }
                }
                Study::Library => {
                    let streams = self.streams("2,4,8,16,32")?;
                    let trials = library_trials(&self.scenario, &streams, self.seconds, self.campaign.repeat);
                    self.campaign.run(trials.map_err(of_sweep)?, &mut store)?
                }
                Study::Paper | Study::Profiler | Study::Published => {
                    let trials = paper_trials(&self.streams("1..50")?, self.seconds, self.campaign.repeat);
                    self.campaign.run(trials.map_err(of_sweep)?, &mut store)?
                }
            };
        }
        let records = store.current();
        let section = match self.study {
            Study::Paper => paper_section(&records),
            Study::Library => library_section(&records),
            Study::Live | Study::Profiler | Study::Published => live_section(&records, self.seconds),
        };
        self.write(&section)?;
        Ok(exit)
    }

    fn live(&self) -> anyhow::Result<LiveStudy> {
        Ok(LiveStudy {
            scenarios: self.scenario.clone(),
            cases: self.case.clone(),
            streams: self.streams("1,2,4,8,16,32,64")?,
            seconds: self.seconds,
            coarse: self.coarse,
            repetitions: self.campaign.repeat,
        })
    }

    fn write(&self, section: &Section) -> anyhow::Result<()> {
        let Some(docs) = &self.docs else {
            writeln!(io::stdout().lock(), "{}", section.text)?;
            return Ok(());
        };
        let text = fs::read_to_string(docs).with_context(|| format!("cannot read {}", docs.display()))?;
        let text = section.replace_in(&text).map_err(|message| anyhow!("{}: {message}", docs.display()))?;
        let plots = docs.parent().unwrap_or(Path::new(".")).join("plots");
        if !section.charts.is_empty() {
            fs::create_dir_all(&plots).with_context(|| format!("cannot make {}", plots.display()))?;
        }
        for (file, chart) in &section.charts {
            chart.write(plots.join(file))?;
        }
        fs::write(docs, text).with_context(|| format!("cannot write {}", docs.display()))
    }

    fn streams(&self, default: &str) -> anyhow::Result<Vec<u32>> {
        stream_counts(self.streams.as_deref().unwrap_or(default))
    }
}
