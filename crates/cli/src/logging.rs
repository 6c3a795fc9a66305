//! Diagnostics on standard error. The messages of `cp` come from events instead.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::exit::usage;
use crate::output::{colour_wanted, screen};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

const LEVELS: &str = "error, warn, info, debug, trace or off";

/// A single word that is not a level would name a module, and silence all others.
fn is_directive(word: &str) -> bool {
    word.is_empty() || word.contains(['=', '[', ':']) || word.parse::<LevelFilter>().is_ok()
}

/// Starts logging. `filter` has the form of the `ROPEWALK_LOG` variable, which it overrides: a
/// level, or `module=level` with commas between. Without either, `default` applies.
///
/// # Errors
/// The filter is invalid.
pub fn init(filter: Option<&str>, default: &str, format: LogFormat) -> anyhow::Result<()> {
    let variable = std::env::var("ROPEWALK_LOG").ok().filter(|value| !value.is_empty());
    let text = filter.or(variable.as_deref()).unwrap_or(default);
    let wrong = |reason: String| usage(format!("log filter {text:?}: {reason}"));
    if let Some(word) = text.split(',').map(str::trim).find(|word| !is_directive(word)) {
        let reason = format!(
            "{word:?} is not a level: expected {LEVELS}, or MODULE=LEVEL with \
                              commas between"
        );
        return Err(wrong(reason));
    }
    let filter = EnvFilter::builder().parse(text).map_err(|error| wrong(error.to_string()))?;
    // If standard error is closed, the line is lost. Reporting that failure would use the same
    // closed output.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| screen::Log)
        .log_internal_errors(false);
    match format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => {
            builder.with_ansi(colour_wanted(io::stderr().is_terminal())).with_target(false).init();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_with_an_unknown_level_fails() {
        for right in ["info", "WARN", "off", "ropewalk_server=debug", "info,audit=off", ""] {
            assert!(right.split(',').all(is_directive), "{right}");
        }
        for wrong in ["inof", "debug,ropewalk_server", "verbose"] {
            assert!(!wrong.split(',').all(is_directive), "{wrong}");
        }
    }
}
