//! Progress and lines for people, on standard error.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;
use ropewalk_client::{Cancel, Event, EventSink};

use super::meter::Meter;
use super::{Loudness, colour_wanted, harmless, progress_wanted, say};
use crate::units;

/// Draws the bar and prints what happens.
pub(crate) struct Human {
    loudness: Loudness,
    meter: Arc<Mutex<Meter>>,
    bar: Option<ProgressBar>,
    /// After it, files that were not done are no news.
    cancel: Cancel,
    /// Why a line of the result is lost.
    lost: OnceLock<io::Error>,
}

impl Human {
    pub(crate) fn new(loudness: Loudness, cancel: &Cancel) -> Self {
        let meter = Arc::new(Mutex::new(Meter::new(Instant::now())));
        let bar = progress_wanted(loudness).then(|| bar(&meter));
        Self { loudness, meter, bar, cancel: cancel.clone(), lost: OnceLock::new() }
    }

    /// Without a bar, whatever standard error is.
    pub(crate) fn plain(loudness: Loudness, cancel: &Cancel) -> Self {
        let meter = Arc::new(Mutex::new(Meter::new(Instant::now())));
        Self { loudness, meter, bar: None, cancel: cancel.clone(), lost: OnceLock::new() }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Why lines of the result were lost, unless whoever read them has gone.
    pub(crate) fn lost(&self) -> Option<&io::Error> {
        self.lost.get().filter(|error| error.kind() != io::ErrorKind::BrokenPipe)
    }

    fn line(&self, text: impl fmt::Display) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    /// A line that is the result of the command.
    pub(crate) fn result(&self, text: impl fmt::Display) {
        let print = || {
            if let Err(error) = writeln!(io::stdout().lock(), "{text}") {
                let _ = self.lost.set(error);
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    fn verbose(&self) -> bool {
        self.loudness == Loudness::Verbose
    }
}

impl EventSink for Human {
    fn event(&self, event: Event) {
        match event {
            Event::Planned { files, bytes, complete } => {
                self.meter.lock().planned(files, bytes, complete);
                if let Some(bar) = &self.bar {
                    bar.set_length(bytes);
                }
            }
            Event::FileStarted { source, destination, resumed_from, .. } => {
                self.meter.lock().resumed(resumed_from);
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
                if let Some(bar) = &self.bar {
                    bar.set_position(bytes);
                }
            }
            Event::FileDone { .. } => {}
            Event::Tuned { path, streams, bits_per_second, why, .. } => {
                if self.verbose() {
                    let rate = units::link_rate(bits_per_second / 8.0);
                    let streams = units::count(streams.into(), "stream");
                    self.line(format_args!("{}: {rate}; {streams} now: {why}", harmless(&path)));
                }
            }
            Event::FileSkipped { source, reason } => {
                if self.verbose() {
                    self.line(format_args!("{}: skipped: {reason}", harmless(&source)));
                }
            }
            Event::Removed { path } => {
                if self.verbose() {
                    self.line(format_args!("{}: removed", harmless(&path)));
                }
            }
            Event::FileFailed { source, error, retry_in, .. } => {
                // It often begins with what it is about.
                let error =
                    error.strip_prefix(&*source).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&error);
                let (source, error) = (harmless(&source), harmless(error));
                let source = if source.is_empty() { source } else { format!("{source}: ") };
                match retry_in {
                    None if self.cancel.is_cancelled() && !self.verbose() => {}
                    None => self.line(format_args!("ropewalk: {source}{error}")),
                    Some(seconds) if self.loudness != Loudness::Quiet => self.line(format_args!(
                        "ropewalk: {source}{error}; trying again in {}",
                        units::time(seconds)
                    )),
                    Some(_) => {}
                }
            }
            Event::WouldCopy { source, destination, size, .. } => {
                let size = size.map(|size| format!(" ({})", units::size(size))).unwrap_or_default();
                self.result(format_args!("copy {} -> {}{size}", harmless(&source), harmless(&destination)));
            }
            Event::WouldMake { .. } => {}
            Event::WouldRemove { path } => self.result(format_args!("remove {}", harmless(&path))),
            Event::Warning { message } => {
                self.line(format_args!("ropewalk: warning: {}", harmless(&message)));
            }
            Event::Dialogue { peer, direction, line } => {
                self.line(format_args!("{peer} {direction} {}", harmless(&line)));
            }
            Event::Finished(_) => self.finish(),
        }
    }
}

fn bar(meter: &Arc<Mutex<Meter>>) -> ProgressBar {
    let template = if colour_wanted(true) {
        "{amount} {wide_bar:.cyan/dim} {rates}{left}{files}"
    } else {
        "{amount} {wide_bar} {rates}{left}{files}"
    };
    // The texts are made when the bar is drawn, so that rates sink while nothing comes.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let key = |style: ProgressStyle, name, text: fn(&Meter, Instant) -> String| {
        let meter = Arc::clone(meter);
        style.with_key(name, move |_: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = out.write_str(&text(&meter.lock(), Instant::now()));
        })
    };
    let style = key(style, "amount", amount);
    let style = key(style, "rates", rates);
    let style = key(style, "left", left);
    let style = key(style, "files", files);
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(5)).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn amount(meter: &Meter, _: Instant) -> String {
    if meter.planned_bytes == 0 && !meter.plan_complete {
        return units::size(meter.bytes);
    }
    let more = if meter.plan_complete { "" } else { "+" };
    let percent = match meter.planned_bytes {
        0 => String::new(),
        total if meter.plan_complete => {
            format!(" {} %", meter.bytes.min(total) as u128 * 100 / total as u128)
        }
        _ => String::new(),
    };
    format!("{} of {}{more}{percent}", units::size(meter.bytes), units::size(meter.planned_bytes))
}

fn rates(meter: &Meter, now: Instant) -> String {
    format!("{} (average {})", units::rate(meter.now(now)), units::rate(meter.average(now)))
}

fn left(meter: &Meter, now: Instant) -> String {
    match meter.left(now) {
        None => String::new(),
        Some(seconds) if meter.plan_complete => format!(", {} left", units::clock(seconds)),
        Some(seconds) => format!(", at least {} left", units::clock(seconds)),
    }
}

fn files(meter: &Meter, _: Instant) -> String {
    let more = if meter.plan_complete { "" } else { "+" };
    let files = match meter.planned_files {
        0 | 1 => String::new(),
        total => format!(", {}/{total}{more} files", meter.files_done),
    };
    let streams = if meter.streams > 0 {
        format!(", {}", units::count(meter.streams.into(), "stream"))
    } else {
        String::new()
    };
    files + &streams
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_of_the_bar() {
        let start = Instant::now();
        let mut meter = Meter::new(start);
        meter.planned(12, 4 << 20, false);
        meter.progress(start + Duration::from_secs(2), 1 << 20, 3, 2, 4);
        let now = start + Duration::from_secs(2);
        assert_eq!(amount(&meter, now), "1.00 MiB of 4.00 MiB+");
        assert_eq!(rates(&meter, now), "512 KiB/s (average 512 KiB/s)");
        assert_eq!(left(&meter, now), ", at least 0:06 left");
        assert_eq!(files(&meter, now), ", 3/12+ files, 4 streams");
        meter.planned(12, 4 << 20, true);
        assert_eq!(amount(&meter, now), "1.00 MiB of 4.00 MiB 25 %");
        assert_eq!(left(&meter, now), ", 0:06 left");
    }
}
