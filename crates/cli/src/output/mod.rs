//! The output of a copy: a progress bar and messages for users, JSON lines for programs.

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

/// Longest line that is shown, in characters.
const LONGEST_LINE: usize = 2000;

/// The amount of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loudness {
    /// Errors only.
    Quiet,
    #[default]
    Normal,
    /// Each file.
    Verbose,
}

/// Whether progress is drawn: only on a terminal.
pub fn progress_wanted(loudness: Loudness) -> bool {
    loudness != Loudness::Quiet
        && io::stderr().is_terminal()
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Whether status lines are printed: only if no progress is shown.
fn status_wanted(loudness: Loudness) -> bool {
    loudness != Loudness::Quiet && !progress_wanted(loudness)
}

/// Colours only on a terminal, and as <https://no-color.org> asks.
pub fn colour_wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints one or several lines for users on standard error. A closed standard error does not stop
/// the copy. The text may come from a server, so control characters are not sent to the terminal.
pub fn say(message: impl std::fmt::Display) {
    let text = bounded(&harmless_but(&message.to_string(), &['\n', '\t']));
    let _ = screen::aside(|| writeln!(io::stderr().lock(), "{text}"));
}

/// The beginning of each line: a server may send lines of any length.
fn bounded(text: &str) -> String {
    let lines = text.split('\n').map(|line| match line.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => format!("{}... ({} bytes more)", &line[..end], line.len() - end),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Prints a line on standard output, which may also be the terminal.
fn print_aside(text: &impl std::fmt::Display) -> io::Result<()> {
    screen::aside(|| writeln!(io::stdout().lock(), "{text}"))
}

/// Makes a name safe for a terminal: replaces control characters, and those that change the
/// direction of text and so show another name.
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
    fn harmless_replaces_control_characters() {
        let said = "500 a\x1b]0;title\x07\u{9b}2J\r\u{202e}exe\u{2066}\n\tÄ \u{1f41f}";
        let shown = "500 a\u{fffd}]0;title\u{fffd}\u{fffd}2J\u{fffd}\u{fffd}exe\u{fffd}";
        assert_eq!(harmless(said), format!("{shown}\u{fffd}\u{fffd}Ä \u{1f41f}"));
        assert_eq!(harmless_but(said, &['\n', '\t']), format!("{shown}\n\tÄ \u{1f41f}"));
    }

    #[test]
    fn endless_line_is_cut() {
        assert_eq!(bounded("a\nÄ\n"), "a\nÄ\n");
        let long = "Ä".repeat(LONGEST_LINE);
        assert_eq!(bounded(&format!("{long}\n{long}Äb")), format!("{long}\n{long}... (3 bytes more)"));
    }
}
