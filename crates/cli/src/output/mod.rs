//! How a copy is told: a progress bar and lines for people, JSON lines for programs.

mod bar;
mod entry;
mod human;
mod json;
mod meter;
mod phrase;
pub(crate) mod screen;
mod summary;

use std::io::{self, IsTerminal, Write};

use ropewalk_protocol::text::is_harmful;

pub(crate) use entry::{EntryLine, kind_name, long_line, mode_text, shown_name, shown_text};
pub use human::Human;
pub(crate) use json::Json;
pub use json::json_line;
pub(crate) use phrase::{about, plain};
use summary::lines as summary_lines;

/// So many characters of a line are shown.
const LONGEST_LINE: usize = 2000;

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loudness {
    /// Errors only.
    Quiet,
    #[default]
    Normal,
    /// Every file.
    Verbose,
}

/// Whether progress is drawn: only where someone sees it.
pub fn progress_wanted(loudness: Loudness) -> bool {
    loudness != Loudness::Quiet
        && io::stderr().is_terminal()
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Whether lines of status are said: where nobody sees progress.
fn status_wanted(loudness: Loudness) -> bool {
    loudness != Loudness::Quiet && !progress_wanted(loudness)
}

/// Colours only on a terminal, and not against <https://no-color.org>.
pub fn colour_wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A line for people on standard error, or several. A closed standard error is no reason to stop. What servers said may be part of
/// it: control characters are not sent to the terminal.
pub fn say(message: impl std::fmt::Display) {
    let text = bounded(&harmless_but(&message.to_string(), &['\n', '\t']));
    let _ = screen::aside(|| writeln!(io::stderr().lock(), "{text}"));
}

/// The beginning of each line: a server may say any amount in one.
fn bounded(text: &str) -> String {
    let lines = text.split('\n').map(|line| match line.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => format!("{}... ({} bytes more)", &line[..end], line.len() - end),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A line on standard output, which may be the terminal, too.
fn print_aside(text: &impl std::fmt::Display) -> io::Result<()> {
    screen::aside(|| writeln!(io::stdout().lock(), "{text}"))
}

/// Names as they are shown on a terminal: control characters could do anything there, and those that change the direction of text
/// would show another name.
pub fn harmless(text: &str) -> String {
    harmless_but(text, &[])
}

fn harmless_but(text: &str, kept: &[char]) -> String {
    text.chars().map(|c| if is_harmful(c) && !kept.contains(&c) { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_servers_say_does_nothing_to_a_terminal() {
        let said = "500 a\x1b]0;title\x07\u{9b}2J\r\u{202e}exe\u{2066}\n\tÄ \u{1f41f}";
        let shown = "500 a\u{fffd}]0;title\u{fffd}\u{fffd}2J\u{fffd}\u{fffd}exe\u{fffd}";
        assert_eq!(harmless(said), format!("{shown}\u{fffd}\u{fffd}Ä \u{1f41f}"));
        assert_eq!(harmless_but(said, &['\n', '\t']), format!("{shown}\n\tÄ \u{1f41f}"));
    }

    #[test]
    fn lines_without_end_are_cut() {
        assert_eq!(bounded("a\nÄ\n"), "a\nÄ\n");
        let long = "Ä".repeat(LONGEST_LINE);
        assert_eq!(bounded(&format!("{long}\n{long}Äb")), format!("{long}\n{long}... (3 bytes more)"));
    }
}
