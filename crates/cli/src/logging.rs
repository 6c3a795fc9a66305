//! Diagnostics, on standard error. What `cp` tells people comes from events, not from here.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::exit::usage;
use crate::output::colour_wanted;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Starts logging. `filter` has the form of the `ROPEWALK_LOG` variable, which it overrides: a level, or
/// `module=level` with commas between; `default` holds where neither is given.
pub(crate) fn init(filter: Option<&str>, default: &str, format: LogFormat) -> anyhow::Result<()> {
    let variable = std::env::var("ROPEWALK_LOG").ok().filter(|value| !value.is_empty());
    let text = filter.or(variable.as_deref()).unwrap_or(default);
    let filter =
        EnvFilter::builder().parse(text).map_err(|error| usage(format!("log filter {text:?}: {error}")))?;
    // Where nobody reads it any more a line is lost, and no more: it must not be told on the same way.
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).log_internal_errors(false);
    match format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => {
            builder.with_ansi(colour_wanted(io::stderr().is_terminal())).with_target(false).init();
        }
    }
    Ok(())
}
