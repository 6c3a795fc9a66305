//! The command line of `ropewalk`: flags become requests of the libraries, events become output.
//!
//! [`commands`] has the commands that users of `cp` and `serve` need. The other public modules are
//! shared with the commands of `ropewalk-tools`; the program itself is the crate `ropewalk`.
#![forbid(unsafe_code)]

mod client;
// Each command returns an error that `exit::Exit::of_error` turns into an exit code.
#[allow(clippy::missing_errors_doc)]
pub mod commands;
pub mod credentials;
pub mod exit;
pub mod guc;
pub mod habits;
mod held;
mod listing;
mod local;
pub mod logging;
pub mod output;
mod pairs;
mod path_source;
mod path_use;
mod picture;
mod running;
mod secret;
mod selection;
pub mod settings;
pub mod signals;
pub mod sites;
mod survey;
mod switching;
pub mod units;
mod utc;
mod via;
pub mod whole;

/// Returns the error and its causes in one line. A cause that the text so far contains is omitted.
pub fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += ": ";
            text += &cause;
        }
    }
    output::plain(&text)
}
