//! From options to a copy and its exit code.

use std::io::Write;
use std::path::absolute;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use ropewalk_client::{Amount, Cancel, Location, Pair, copy, parse_location};

use super::expand::Looker;
use super::options::Guc;
use super::report::Report;
use super::{help, list, pending};
use crate::client::Target;
use crate::credentials::Side;
use crate::exit::{Exit, usage};
use crate::output::say;
use crate::settings::{Flags, Layers, PasswordFiles};
use crate::{credentials, message, pairs, signals};

pub(super) fn run(guc: Guc) -> Exit {
    if guc.help {
        let _ = std::io::stdout().lock().write_all(help::text().as_bytes());
        return Exit::Done;
    }
    if guc.version {
        say(format_args!("globus-url-copy: ropewalk {}", env!("CARGO_PKG_VERSION")));
        return Exit::Done;
    }
    match try_run(&guc) {
        Ok(exit) => exit,
        Err(error) => {
            say(format_args!("\nerror: {}\n", message(&error)));
            Exit::Failed
        }
    }
}

fn try_run(guc: &Guc) -> anyhow::Result<Exit> {
    let cancel = Cancel::new();
    let report = Report::new(guc, &cancel);
    let mut options = guc.options();
    // It has no options for ssh; ours come from ROPEWALK_SSH and the configuration file.
    options.ssh = Layers::load(&Flags::default())?.settings()?.options.ssh;
    options.ssh.interactive = credentials::ssh_may_ask();
    signals::watch(&cancel, "\nCancelling copy...")?;
    if let Some(url) = &guc.list {
        let mut target = Target::parse(url)?;
        let place = (Side::Only, &mut target.location);
        credentials::complete(&mut options, &PasswordFiles::default(), false, [place])?;
        list::run(url, &target, &options.of_source(), &report, &cancel)?;
        return Ok(Exit::Done);
    }
    let Some(mut pairs) = given(guc)? else {
        let _ = std::io::stdout().lock().write_all(b"Dumpfile exists and is empty.  Nothing to do.\n");
        return Ok(Exit::Usage);
    };
    anyhow::ensure!(!pairs.is_empty(), "No files matched the source url.");
    credentials::complete(&mut options, &PasswordFiles::default(), false, credentials::sides(&mut pairs))?;

    let of_source = options.of_source();
    let looker = Looker {
        options: &of_source,
        events: &report,
        cancel: &cancel,
        whole_trees: guc.dump_file.is_some(),
    };
    let (mut expanded, mut lost) = (Vec::new(), Vec::new());
    for pair in &pairs {
        match looker.expand(pair.clone()) {
            Ok(files) => {
                report.given(&files, files.first() == Some(pair), &options);
                expanded.extend(files);
            }
            Err(error) if guc.continue_on_error => {
                say(format_args!("\nerror: {}\n", message(&error)));
                report.lost();
                lost.push(pair.clone());
            }
            Err(error) => {
                if let Some(path) = &guc.dump_file {
                    pending::write(path, &report.left(&pairs, &options))?;
                }
                return Err(error);
            }
        }
    }
    let clock = guc.run_time.map(|time| Clock::start(time, &cancel)).transpose()?;
    looker.make_directories(&pairs, &options);
    let result = copy(expanded.clone(), &options, &report, &cancel);
    let time_is_up = clock.is_some_and(Clock::stop);

    if let Some(path) = &guc.dump_only {
        pending::store(path, &report.would_copy())?;
    }
    expanded.extend(lost);
    if let Some(path) = &guc.dump_file {
        pending::write(path, &report.left(&expanded, &options))?;
    }
    let summary = result?;
    // What was under way when the time was up is in the summary, and is no failure.
    let failed = if time_is_up { report.failures() } else { report.failures().max(summary.files_failed) };
    if guc.continue_on_error {
        match failed {
            0 => {}
            1 => say("\n\nerror: There was an error with 1 transfer.\n"),
            failed => say(format_args!("\n\nerror: There were errors with {failed} transfers.\n")),
        }
    }
    let well = failed == 0 && (time_is_up || !summary.interrupted);
    Ok(if well { Exit::Done } else { Exit::Failed })
}

/// The pairs of the command or of files; `None` where a dump file says that all is done.
fn given(guc: &Guc) -> anyhow::Result<Option<Vec<Pair>>> {
    if let Some(path) = guc.dump_file.as_deref().filter(|path| path.exists()) {
        let lines = pairs::read(path)?;
        return if lines.is_empty() { Ok(None) } else { from_lines(&lines, None).map(Some) };
    }
    if let Some(path) = &guc.pairs_file {
        if !guc.urls.is_empty() {
            return Err(usage("No urls are provided on the command line when using the -f option."));
        }
        return from_lines(&pairs::read(path)?, guc.window()).map(Some);
    }
    let [source, destination] = guc.urls.as_slice() else {
        let problem = if guc.urls.len() < 2 {
            "source and dest url strings are required"
        } else {
            "too many url strings specified"
        };
        return Err(usage(format!("{problem}\n\n{}", help::SYNTAX)));
    };
    let pair = Pair {
        source: location(parse_location(source)?)?,
        destination: location(parse_location(destination)?)?,
        window: guc.window(),
    };
    Ok(Some(vec![pair]))
}

/// `window` is that of lines without one of their own.
fn from_lines(lines: &[pairs::Line], window: Amount) -> anyhow::Result<Vec<Pair>> {
    let pair = |line: &pairs::Line| {
        let Pair { source, destination, .. } = line.pair()?;
        let window = line.window.unwrap_or(window);
        Ok(Pair { source: location(source)?, destination: location(destination)?, window })
    };
    lines.iter().map(pair).collect()
}

/// Local paths are made absolute: they are shown as URLs.
fn location(location: Location) -> anyhow::Result<Location> {
    let Location::Local(path) = location else { return Ok(location) };
    let directory = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let mut path = absolute(&path).with_context(|| format!("{}: no current directory", path.display()))?;
    if directory {
        path.push("");
    }
    Ok(Location::Local(path))
}

/// Cancels after the time of `-t`.
struct Clock {
    stop: mpsc::Sender<()>,
    rang: Arc<AtomicBool>,
}

impl Clock {
    fn start(time: Duration, cancel: &Cancel) -> anyhow::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let rang = Arc::new(AtomicBool::new(false));
        let (cancel, ring) = (cancel.clone(), Arc::clone(&rang));
        let wait = move || {
            if stopped.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout) {
                ring.store(true, Ordering::Release);
                say("\nCancelling copy...");
                cancel.cancel();
            }
        };
        thread::Builder::new().name("clock".into()).spawn(wait).context("cannot start a thread")?;
        Ok(Self { stop, rang })
    }

    /// Whether the time was up.
    fn stop(self) -> bool {
        let _ = self.stop.send(());
        self.rang.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::Window;

    use super::*;

    #[test]
    fn lines_with_a_window_of_their_own_keep_it() {
        let whole = Some(Window { offset: 2, length: None });
        let own = Some(Window { offset: 5, length: Some(1) });
        let line = |window| pairs::Line { source: "/a".into(), destination: "/b".into(), window };
        let lines = [line(None), line(Some(None)), line(Some(own))];
        let windows: Vec<_> =
            from_lines(&lines, whole).unwrap().into_iter().map(|pair| pair.window).collect();
        assert_eq!(windows, [whole, None, own]);
    }
}
