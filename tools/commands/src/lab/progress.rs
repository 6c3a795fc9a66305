//! Progress of runs and sweeps, on standard error.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ropewalk_lab::report::rate_text;
use ropewalk_lab::run::Event;
use ropewalk_lab::sweep::{Outcome, Progress};

use crate::output::{Loudness, harmless, progress_wanted, say};
use crate::units;

/// A line that follows one run.
pub(super) struct RunProgress {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl RunProgress {
    pub(super) fn new(quiet: bool) -> Self {
        let loudness = if quiet { Loudness::Quiet } else { Loudness::Normal };
        let bar = progress_wanted(loudness).then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, quiet }
    }

    pub(super) fn events(&self) -> Arc<dyn Fn(&Event) + Send + Sync> {
        let (bar, quiet) = (self.bar.clone(), self.quiet);
        Arc::new(move |event| match (event, &bar) {
            (Event::Warning(warning), Some(bar)) => bar.suspend(|| warn(warning)),
            (Event::Warning(warning), None) if !quiet => warn(warning),
            (event, Some(bar)) => {
                if let Some(text) = stage(event) {
                    bar.set_message(text);
                }
            }
            (_, None) => {}
        })
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn warn(warning: &str) {
    say(format_args!("ropewalk: warning: {}", harmless(warning)));
}

fn stage(event: &Event) -> Option<String> {
    Some(match event {
        Event::Building { lab } => format!("building lab {lab}"),
        Event::Preparing { host, run } => format!("preparing {host}: {}", harmless(run)),
        Event::Ready { server } => format!("{server} is ready"),
        Event::Progress { at, running, streams, rate } => {
            let streams = units::count(u64::from(*streams), "stream");
            format!("{}  {}  {}  {streams}", units::clock(*at), running.join(", "), rate_text(*rate))
        }
        Event::Stopping => "taking the lab down".to_owned(),
        _ => return None,
    })
}

/// A bar that follows a sweep: lines for trials that failed, and without a terminal a line for each
/// trial.
pub(super) struct SweepProgress {
    bar: Option<ProgressBar>,
    quiet: bool,
    done: usize,
    wanted: usize,
    pub(super) failed: usize,
}

impl SweepProgress {
    pub(super) fn new(quiet: bool) -> Self {
        let loudness = if quiet { Loudness::Quiet } else { Loudness::Normal };
        let bar = progress_wanted(loudness).then(|| {
            let bar = ProgressBar::new(0);
            let style =
                ProgressStyle::with_template("{bar:20} {pos}/{len}  {elapsed} (left: {eta})  {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { bar, quiet, done: 0, wanted: 0, failed: 0 }
    }

    pub(super) fn tell(&mut self, progress: &Progress) {
        match progress {
            Progress::Planned { wanted, all } => {
                self.wanted = *wanted;
                if let Some(bar) = &self.bar {
                    bar.set_length(*wanted as u64);
                }
                if wanted < all && !self.quiet {
                    self.line(format_args!("{} of {all} are there from an earlier run", all - wanted));
                }
            }
            Progress::Started(id) => self.message(id.to_string()),
            Progress::Running { id, at, rate, .. } => {
                self.message(format!("{id}: {}, {}", units::clock(*at), rate_text(*rate)));
            }
            Progress::Ended(record) => {
                self.done += 1;
                if let Some(bar) = &self.bar {
                    bar.inc(1);
                }
                match &record.outcome {
                    Outcome::Failed(error) => {
                        self.failed += 1;
                        self.line(format_args!("ropewalk: {}: {}", record.id, harmless_lines(error)));
                    }
                    Outcome::Measured(measurement) if self.bar.is_none() && !self.quiet => {
                        let rate = rate_text(measurement.goodput);
                        self.line(format_args!("{}/{}  {}: {rate}", self.done, self.wanted, record.id));
                    }
                    Outcome::Measured(_) => {}
                }
            }
        }
    }

    fn message(&self, text: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
        }
    }

    fn line(&self, text: impl std::fmt::Display) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Output of programs, line by line.
fn harmless_lines(text: &str) -> String {
    text.lines().map(harmless).collect::<Vec<_>>().join("\n  ")
}
