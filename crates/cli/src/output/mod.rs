//! How a copy is told: a progress bar and lines for people, JSON lines for programs.

mod entry;
mod human;
mod json;
mod meter;
mod summary;

use std::io::{self, IsTerminal};

pub(crate) use entry::{EntryLine, kind_name, long_line, mode_text, shown_name};
pub(crate) use human::Human;
pub(crate) use json::{Json, json_line};
pub(crate) use summary::print_summary;

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Loudness {
    /// Errors only.
    Quiet,
    #[default]
    Normal,
    /// Every file.
    Verbose,
}

/// Whether progress is drawn: only where someone sees it.
pub(crate) fn progress_wanted(loudness: Loudness) -> bool {
    loudness != Loudness::Quiet
        && io::stderr().is_terminal()
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Colours only on a terminal, and not against <https://no-color.org>.
pub(crate) fn colour_wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A line for people on standard error. A closed standard error is no reason to stop.
pub(crate) fn say(message: impl std::fmt::Display) {
    use io::Write;
    let _ = writeln!(io::stderr().lock(), "{message}");
}

/// Names as they are shown on a terminal: control characters could do anything there.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
