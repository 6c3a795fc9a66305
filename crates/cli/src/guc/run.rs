//! Runs a copy from the options, and returns its exit code.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use bstr::ByteSlice;
use ropewalk_client::{Amount, Cancel, EventSink, copy_with};

use super::expand::{Found, Given, Looker};
use super::options::Guc;
use super::pending::Wrong;
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
    let report = Arc::new(Report::new(guc, &cancel));
    let events: Arc<dyn EventSink> = report.clone();
    let mut options = guc.options();
    // GCT has no options for ssh; ours come from ROPEWALK_SSH and the configuration file.
    options.ssh = Layers::load(&Flags::default())?.settings()?.options.ssh;
    options.ssh.interactive = credentials::ssh_may_ask();
    signals::watch(&cancel, "\nCancelling copy...")?;
    if let Some(url) = &guc.list {
        let mut target = Target::parse(url)?;
        let place = (Side::Only, &mut target.location);
        credentials::complete(&mut options, &PasswordFiles::default(), false, [place], Vec::new())?;
        list::run(url, &target, &options.of_source(), &events, &cancel)?;
        return Ok(Exit::Done);
    }
    let Some(Asked { mut given, wrong }) = given(guc)? else {
        let _ = std::io::stdout().lock().write_all(b"Dumpfile exists and is empty.  Nothing to do.\n");
        return Ok(Exit::Usage);
    };
    anyhow::ensure!(!given.is_empty() || !wrong.is_empty(), "No files matched the source url.");
    for (_, error) in &wrong {
        say(format_args!("\nerror: {}\n", message(error)));
        report.lost();
    }
    let sides = credentials::sides(given.iter_mut().map(|given| &mut given.pair));
    credentials::complete(&mut options, &PasswordFiles::default(), false, sides, Vec::new())?;

    let of_source = options.of_source();
    let looker = Looker {
        options: &of_source,
        events: &events,
        cancel: &cancel,
        whole_trees: guc.dump_file.is_some(),
    };
    let (mut all, mut lost) = (Found::default(), Vec::new());
    for one in &given {
        let pair = &one.pair;
        match looker.expand(one) {
            Ok(found) => {
                report.given(&found.pairs, found.pairs.first() == Some(pair), &options);
                for unknown in &found.unknown {
                    say(format_args!("\nerror: {unknown}\n"));
                    report.lost();
                }
                all.extend(found);
            }
            Err(error) if guc.continue_on_error => {
                say(format_args!("\nerror: {}\n", message(&error)));
                report.lost();
                lost.push(one);
            }
            Err(error) => {
                if let Some(path) = &guc.dump_file {
                    pending::write(path, &[], &given.iter().collect::<Vec<_>>(), &wrong)?;
                }
                return Err(error);
            }
        }
    }
    let clock = guc.run_time.map(|time| Clock::start(time, &cancel)).transpose()?;
    looker.make_directories(&all, &options, false);
    let result = copy_with(all.pairs.clone(), &options, &events, &cancel);
    looker.make_directories(&all, &options, true);
    let time_is_up = clock.is_some_and(Clock::stop);

    if let Some(path) = &guc.dump_only {
        pending::write_listed(path, &report.would_copy(), &wrong)?;
    }
    if let Some(path) = &guc.dump_file {
        pending::write(path, &report.left(&all.pairs, &options), &lost, &wrong)?;
    }
    let summary = result?;
    // Files that were in flight or not started at the cancellation are in the summary, and are not
    // failures.
    let broken_off = time_is_up || summary.interrupted;
    let failed = if broken_off { report.failures() } else { report.failures().max(summary.files_failed) };
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

/// The pairs that the command line or files request.
struct Asked {
    given: Vec<Given>,
    /// Lines that name no location; the others are copied all the same.
    wrong: Wrong,
}

/// `None` if a dump file says that everything is done.
fn given(guc: &Guc) -> anyhow::Result<Option<Asked>> {
    if let Some(path) = guc.dump_file.as_deref().filter(|path| path.exists()) {
        let lines = pairs::read(path)?;
        return if lines.is_empty() { Ok(None) } else { from_lines(lines, None, guc.goes_on()).map(Some) };
    }
    if let Some(path) = &guc.pairs_file {
        if !guc.urls.is_empty() {
            return Err(usage("No urls are provided on the command line when using the -f option."));
        }
        return from_lines(pairs::read(path)?, guc.window(), guc.goes_on()).map(Some);
    }
    let [source, destination] = guc.urls.as_slice() else {
        let problem = if guc.urls.len() < 2 {
            "source and dest url strings are required"
        } else {
            "too many url strings specified"
        };
        return Err(usage(format!("{problem}\n\n{}", help::SYNTAX)));
    };
    let (source, destination) = (source.as_bytes().as_bstr(), destination.as_bytes().as_bstr());
    let given = vec![Given::new(source, destination, guc.window())?];
    Ok(Some(Asked { given, wrong: Wrong::new() }))
}

/// `window` applies to lines without a window of their own.
fn from_lines(lines: Vec<pairs::Line>, window: Amount, goes_on: bool) -> anyhow::Result<Asked> {
    let mut asked = Asked { given: Vec::with_capacity(lines.len()), wrong: Wrong::new() };
    for line in lines {
        let window = line.window.unwrap_or(window);
        match Given::new(line.source.as_bstr(), line.destination.as_bstr(), window) {
            Ok(given) => asked.given.push(given),
            Err(error) => {
                let error = line.at.wrong(message(&error));
                if !goes_on {
                    return Err(error);
                }
                asked.wrong.push((line, error));
            }
        }
    }
    Ok(asked)
}

/// Cancels the copy after the time of `-t`.
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

    /// Stops the clock. Returns whether the time had expired.
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
    fn window_of_a_line_overrides_the_common_one() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("list");
        std::fs::write(&list, "/a /b\n/a /b 0,-1\n/a foo://b\n/a /b 5,1\n").unwrap();
        let whole = Some(Window { offset: 2, length: None });
        let own = Some(Window { offset: 5, length: Some(1) });
        let asked = |goes_on| from_lines(pairs::read(&list).unwrap(), whole, goes_on);
        let all = asked(true).unwrap();
        let windows: Vec<_> = all.given.into_iter().map(|given| given.pair.window).collect();
        assert_eq!(windows, [whole, None, own]);
        assert_eq!(all.wrong.len(), 1);
        let error = asked(false).err().unwrap().to_string();
        assert!(error.contains("list, line 3: "), "{error}");
    }
}
