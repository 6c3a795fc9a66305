//! Progress and messages for users, on standard error and in a log.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_client::{Cancel, Event, EventSink, Summary};

use super::meter::{Meter, Waiting};
use super::screen::Ticker;
use super::{
    Loudness, about, bar, colour_wanted, harmless, plain, print_aside, progress_wanted, say, status_wanted,
    summary_lines,
};
use crate::{units, utc};

/// Draws the progress line and prints events.
pub struct Human {
    loudness: Loudness,
    /// If set, messages go only to the log.
    mute: bool,
    meter: Arc<Mutex<Meter>>,
    /// The progress line, and status lines.
    tickers: Mutex<Vec<Ticker>>,
    log: Option<Arc<File>>,
    /// Set after an interruption; files that were not copied are then not reported.
    cancel: Cancel,
    /// The first error of writing a result line.
    lost: OnceLock<io::Error>,
}

impl Human {
    pub fn new(loudness: Loudness, cancel: &Cancel) -> Self {
        let human = Self::plain(loudness, cancel);
        if progress_wanted(loudness) {
            let (meter, colour) = (Arc::clone(&human.meter), colour_wanted(true));
            // The text is made at drawing time, so that rates fall while no data arrives.
            let line = move |columns| bar::line(&meter.lock(), Instant::now(), columns, colour);
            human.tickers.lock().push(Ticker::drawing(line));
        }
        human
    }

    /// Without a progress line, whatever standard error is.
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

    /// For a program that reads the events: only the log gets messages.
    pub(crate) fn mute(cancel: &Cancel) -> Self {
        Self { mute: true, ..Self::plain(Loudness::Normal, cancel) }
    }

    /// Prints a status line at this interval if no progress line is shown, and also writes all
    /// messages to `log`.
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

    /// Removes the progress line and stops status lines.
    pub fn finish(&self) {
        let tickers = std::mem::take(&mut *self.tickers.lock());
        drop(tickers);
    }

    /// Returns the error by which result lines were lost. A reader that closed the pipe is not an
    /// error.
    pub(crate) fn lost(&self) -> Option<&io::Error> {
        self.lost.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// Writes a line to standard error and to the log.
    pub(crate) fn line(&self, text: impl fmt::Display) {
        let text = text.to_string();
        write_log(self.log.as_deref(), &text);
        if !self.mute {
            say(text);
        }
    }

    /// Writes to the log only, because the message is printed elsewhere.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        write_log(self.log.as_deref(), &text.to_string());
    }

    /// Prints the summary of a copy.
    pub(crate) fn summary(&self, summary: &Summary, dry_run: bool) {
        // Failures that scrolled away, or stand in a file, are repeated.
        let again = self.log.is_some() || status_wanted(self.loudness);
        for line in summary_lines(summary, dry_run, again) {
            self.line(line);
        }
    }

    /// Prints a line of the command's result.
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

/// Adds the time, in UTC. A failure to write the log does not stop the copy.
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
                        format!(" (resuming after {})", units::size(resumed_from))
                    } else {
                        String::new()
                    };
                    self.line(format_args!("{} -> {}{again}", harmless(&source), harmless(&destination)));
                }
            }
            Event::Progress { bytes, files_done, files_active, streams } => {
                self.meter.lock().progress(Instant::now(), bytes, files_done, files_active, streams);
            }
            Event::Queued { id, position, .. } => self.meter.lock().waits(id, Waiting::Queue(position)),
            Event::Forwarding { id, stored, size } => {
                let share = stored as f64 / size.max(1) as f64;
                self.meter.lock().waits(id, Waiting::Relay(share.min(1.0)));
            }
            Event::FileDone { id, .. } => self.meter.lock().ended(id),
            Event::Tuned { path, streams, bits_per_second, why, .. } if self.verbose() => {
                let rate = units::link_rate(bits_per_second / 8.0);
                let streams = units::count(streams.into(), "stream");
                self.line(format_args!("{}: {rate}; {streams} now: {why}", harmless(&path)));
            }
            Event::Route { path, why, .. } if self.loudness != Loudness::Quiet => {
                self.line(format_args!("ropewalk: path {}: {}", harmless(&path.join(" > ")), harmless(&why)));
            }
            Event::Stack { path, stack, why, .. } if self.verbose() => {
                self.line(format_args!("{}: over {stack} from now on: {why}", harmless(&path)));
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
                        self.line(format_args!("ropewalk: {told}; retrying in {}", units::time(seconds)));
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
