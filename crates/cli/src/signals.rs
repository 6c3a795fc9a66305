//! Handles Ctrl-C: the first stops the command and keeps partial files for a later run, the second
//! ends the program at once. A closed terminal counts as the first.

use std::fs;
use std::io;
use std::process;
use std::thread;

use anyhow::Context;
use ropewalk_client::{Cancel, Error};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::Exit;
use crate::output::say;

/// Cancels at the first SIGINT, SIGTERM or SIGHUP, and ends the process at the second SIGINT or
/// SIGTERM.
///
/// # Errors
/// Signals cannot be received, or a thread cannot be created.
pub fn watch(cancel: &Cancel, message: &'static str) -> anyhow::Result<()> {
    let cancel = cancel.clone();
    on_first(message, move || cancel.cancel())
}

/// Prints `message` and calls `act` at the first SIGINT, SIGTERM or SIGHUP, and ends the process at
/// the second SIGINT or SIGTERM.
///
/// # Errors
/// The same as those of [`watch`].
pub fn on_first(message: &'static str, act: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut watched = vec![SIGINT, SIGTERM];
    if !hangup_is_ignored() {
        watched.push(SIGHUP);
    }
    let mut signals = Signals::new(watched).context("cannot watch for signals")?;
    let run = move || {
        let (mut acted, mut asked) = (false, false);
        for signal in signals.forever() {
            // Both the shell and the kernel may send SIGHUP for a closed terminal, and the end of a
            // session sends SIGTERM too. So SIGHUP does not count as a request: no user is in a
            // hurry.
            if signal != SIGHUP {
                if asked {
                    process::exit(Exit::Interrupted as i32);
                }
                asked = true;
            }
            if !acted {
                acted = true;
                say(message);
                act();
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(run).map(drop).context("cannot start a thread")
}

/// nohup(1) starts programs with SIGHUP ignored, so that they continue when the terminal is closed.
fn hangup_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 << (SIGHUP - 1) != 0)
}

/// Restores the default for SIGPIPE: a program whose output goes to `head` should end silently, not
/// with an error. Rust's runtime ignores SIGPIPE, so the broken pipe arrives as an error.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let output = cause.downcast_ref::<Error>().and_then(Error::output_error);
        let error = output.or_else(|| cause.downcast_ref::<io::Error>());
        error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
