//! Progress and lines for people, on standard error and in a log.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_client::{Cancel, Event, EventSink, Summary};

use super::meter::Meter;
use super::screen::Ticker;
use super::{
    Loudness, about, bar, colour_wanted, harmless, plain, print_aside, progress_wanted, say, status_wanted,
    summary_lines,
};
use crate::{units, utc};

/// Draws the line of progress and prints what happens.
pub struct Human {
    loudness: Loudness,
    /// Nothing is said but to the log.
    mute: bool,
    meter: Arc<Mutex<Meter>>,
    /// The line of progress, and lines of status.
    tickers: Mutex<Vec<Ticker>>,
    log: Option<Arc<File>>,
    /// After it, files that were not done are no news.
    cancel: Cancel,
    /// Why a line of the result is lost.
    lost: OnceLock<io::Error>,
}

impl Human {
    pub fn new(loudness: Loudness, cancel: &Cancel) -> Self {
        let human = Self::plain(loudness, cancel);
        if progress_wanted(loudness) {
            let (meter, colour) = (Arc::clone(&human.meter), colour_wanted(true));
            // The text is made when it is drawn, so that rates sink while nothing comes.
            let line = move |columns| bar::line(&meter.lock(), Instant::now(), columns, colour);
            human.tickers.lock().push(Ticker::drawing(line));
        }
        human
    }

    /// Without a line of progress, whatever standard error is.
    pub(crate) fn plain(loudness: Loudness, cancel: &Cancel) -> Self {
        Self {
            loudness,
            mute: false,
            meter: Arc::new(Mutex::new(Meter::new(Instant::now()))),
            tickers: Mutex::default(),
            log: None,
            cancel: cancel.clone(),
            lost: OnceLock::new(),
        }
    }

    /// Where a program reads the events: only the log hears of them.
    pub(crate) fn mute(cancel: &Cancel) -> Self {
        Self { mute: true, ..Self::plain(Loudness::Normal, cancel) }
    }

    /// Says so often how far it is, where nobody sees the line of progress, and writes all that is said to `log`, too.
    ///
    /// # Errors
    /// The log cannot be opened.
    pub(crate) fn with_status(mut self, every: Duration, log: Option<&Path>) -> io::Result<Self> {
        let log = log.map(|path| OpenOptions::new().create(true).append(true).open(path)).transpose()?;
        self.log = log.map(Arc::new);
        let shown = !self.mute && status_wanted(self.loudness);
        if !every.is_zero() && (shown || self.log.is_some()) {
            let (meter, log) = (Arc::clone(&self.meter), self.log.clone());
            self.tickers.lock().push(Ticker::every(every, move || {
                let status = bar::status(&meter.lock(), Instant::now());
                write_log(log.as_deref(), &status);
                if shown {
                    say(format_args!("ropewalk: {status}"));
                }
            }));
        }
        Ok(self)
    }

    /// Takes the line of progress away; nothing is told of the status any more.
    pub fn finish(&self) {
        let tickers = std::mem::take(&mut *self.tickers.lock());
        drop(tickers);
    }

    /// Why lines of the result were lost, unless whoever read them has gone.
    pub(crate) fn lost(&self) -> Option<&io::Error> {
        self.lost.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// A line on standard error, and in the log.
    pub(crate) fn line(&self, text: impl fmt::Display) {
        let text = text.to_string();
        write_log(self.log.as_deref(), &text);
        if !self.mute {
            say(text);
        }
    }

    /// In the log alone: it is said elsewhere.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        write_log(self.log.as_deref(), &text.to_string());
    }

    /// The last words of a copy.
    pub(crate) fn summary(&self, summary: &Summary, dry_run: bool) {
        // What scrolled away, or stands in a file, is told once more.
        let again = self.log.is_some() || status_wanted(self.loudness);
        for line in summary_lines(summary, dry_run, again) {
            self.line(line);
        }
    }

    /// A line that is the result of the command.
    pub(crate) fn result(&self, text: impl fmt::Display) {
        if self.mute {
            return;
        }
        if let Err(error) = print_aside(&text) {
            let _ = self.lost.set(error);
        }
    }

    fn verbose(&self) -> bool {
        self.loudness == Loudness::Verbose
    }
}

/// With the time, in UTC. A log that cannot be written is no reason to stop.
fn write_log(log: Option<&File>, text: &str) {
    let Some(mut log) = log else { return };
    let time = utc::show(utc::now());
    let text = harmless(text.strip_prefix("ropewalk: ").unwrap_or(text));
    let _ = log.write_all(format!("{time} {text}\n").as_bytes());
}

impl EventSink for Human {
    fn event(&self, event: Event) {
        match event {
            Event::Planned { files, bytes, complete } => {
                self.meter.lock().planned(files, bytes, complete);
            }
            Event::Connecting { peer } => self.meter.lock().connecting(&peer),
            Event::Connected { peer } => self.meter.lock().connected(&peer),
            Event::FileStarted { id, source, destination, size, resumed_from } => {
                self.meter.lock().started(id, &source, size, resumed_from);
                if self.verbose() {
                    let again = if resumed_from > 0 {
                        format!(" (going on after {})", units::size(resumed_from))
                    } else {
                        String::new()
                    };
                    self.line(format_args!("{} -> {}{again}", harmless(&source), harmless(&destination)));
                }
            }
            Event::Progress { bytes, files_done, files_active, streams } => {
                self.meter.lock().progress(Instant::now(), bytes, files_done, files_active, streams);
            }
            Event::FileDone { id, .. } => self.meter.lock().ended(id),
            Event::Tuned { path, streams, bits_per_second, why, .. } if self.verbose() => {
                let rate = units::link_rate(bits_per_second / 8.0);
                let streams = units::count(streams.into(), "stream");
                self.line(format_args!("{}: {rate}; {streams} now: {why}", harmless(&path)));
            }
            Event::FileSkipped { source, reason } if self.verbose() => {
                self.line(format_args!("{}: skipped: {reason}", harmless(&source)));
            }
            Event::Removed { path } if self.verbose() => {
                self.line(format_args!("{}: removed", harmless(&path)));
            }
            Event::FileFailed { id, source, error, retry_in } => {
                self.meter.lock().ended(id);
                let told = about(&source, &error);
                match retry_in {
                    None if self.cancel.is_cancelled() && !self.verbose() => {}
                    None => self.line(format_args!("ropewalk: {told}")),
                    Some(seconds) if self.loudness != Loudness::Quiet => {
                        self.line(format_args!("ropewalk: {told}; trying again in {}", units::time(seconds)));
                    }
                    Some(_) => {}
                }
            }
            Event::WouldCopy { source, destination, size, .. } => {
                let size = size.map(|size| format!(" ({})", units::size(size))).unwrap_or_default();
                self.result(format_args!("copy {} -> {}{size}", harmless(&source), harmless(&destination)));
            }
            Event::WouldRemove { path } => self.result(format_args!("remove {}", harmless(&path))),
            Event::Warning { message } => {
                self.line(format_args!("ropewalk: warning: {}", plain(&harmless(&message))));
            }
            Event::Dialogue { peer, direction, line } => {
                self.line(format_args!("{peer} {direction} {}", harmless(&line)));
            }
            Event::Finished(_) => self.finish(),
            _ => {}
        }
    }
}
