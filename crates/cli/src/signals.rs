//! Ctrl-C: once, to stop with everything kept that a later run can use; twice, at once.

use std::io;
use std::process;
use std::thread;

use anyhow::Context;
use ropewalk_client::{Cancel, RemoteError};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::Exit;
use crate::output::say;

/// Cancels at the first SIGINT or SIGTERM and ends the process at the second.
pub(crate) fn watch(cancel: &Cancel, message: &'static str) -> anyhow::Result<()> {
    let cancel = cancel.clone();
    on_first(message, move || cancel.cancel())
}

/// Says `message` and calls `act` at the first SIGINT or SIGTERM, and ends the process at the second.
pub(crate) fn on_first(message: &'static str, act: impl Fn() + Send + 'static) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let run = move || {
        for (count, _) in signals.forever().enumerate() {
            if count > 0 {
                process::exit(Exit::Interrupted as i32);
            }
            say(message);
            act();
        }
    };
    thread::Builder::new().name("signals".into()).spawn(run).map(drop).context("cannot start a thread")
}

/// A program whose output goes to `head` should end as others do there, not with an error: SIGPIPE is ignored by
/// Rust's runtime, so the broken pipe arrives as an error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let error = match cause.downcast_ref::<RemoteError>() {
            Some(RemoteError::Output(error)) => Some(error),
            _ => cause.downcast_ref::<io::Error>(),
        };
        error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
