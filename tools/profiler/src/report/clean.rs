//! Cleans text from other hosts so that it can be shown.

use unicode_width::UnicodeWidthStr;

/// Longest name that is shown in full, in characters.
pub(super) const NAME: usize = 120;

/// Returns one line of text without control characters and without invisible characters that change
/// how other text is shown, such as those that reverse its direction. Text longer than `most`
/// characters is cut.
pub(super) fn plain(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == most {
            shown.push('…');
            break;
        }
        shown.push(match c {
            '\t' | '\n' | '\r' => ' ',
            c if c.is_control() || unseen(c) => '\u{fffd}',
            c => c,
        });
    }
    shown
}

/// Direction marks (UAX #9), joiners, separators, fillers, tags, and characters that XML does not
/// allow.
fn unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e0fff}')
}

/// Width of the text in columns of a terminal.
pub(super) fn columns(text: &str) -> usize {
    text.width()
}

/// Cuts the text to `width` columns.
pub(super) fn fitted(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let mut shown = String::new();
    for c in text.chars() {
        shown.push(c);
        // The width of the whole text is measured, because some characters make the one before them
        // wider.
        if columns(&shown) > room {
            shown.pop();
            break;
        }
    }
    if width > 0 {
        shown.push('…');
    }
    shown
}

/// Breaks the text into lines of at most `width` columns, at blanks if there are any.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_whitespace() {
        let wide = columns(word);
        if used > 0 && used + 1 + wide > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        if wide <= width {
            line.push_str(word);
            used += wide;
            continue;
        }
        for c in word.chars() {
            line.push(c);
            if columns(&line) > width {
                line.pop();
                lines.push(std::mem::take(&mut line));
                line.push(c);
            }
        }
        used = columns(&line);
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_when_text_has_controls_replaces_them() {
        assert_eq!(plain("a\x1b[2J\u{9b}b\n\u{202e}c", 99), "a\u{fffd}[2J\u{fffd}b \u{fffd}c");
        assert_eq!(plain("abcdef", 3), "abc…");
    }

    #[test]
    fn wrapped_breaks_lines_at_blanks() {
        assert_eq!(wrapped("one two  three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh i", 3), ["abc", "def", "gh", "i"]);
        assert!(wrapped(" ", 9).is_empty());
        // A character may become wider through the one after it.
        assert!(wrapped("0\u{fe0f}\u{9c7} a", 2).iter().all(|line| columns(line) <= 2));
        assert_eq!((fitted("abcdef", 4).as_str(), fitted("abc", 3).as_str()), ("abc…", "abc"));
    }

    proptest! {
        #[test]
        fn wrapped_lines_are_never_too_wide(text in "\\PC{0,200}", width in 2_usize..90) {
            for line in wrapped(&text, width) {
                prop_assert!(columns(&line) <= width, "{line:?}");
            }
            prop_assert!(columns(&fitted(&text, width)) <= width);
        }
    }
}
