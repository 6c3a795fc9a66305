//! Text of a peer that people are shown.

/// Whether a character could act on a terminal, or have text look like another: control characters, ends of lines, and those
/// that turn the direction of text around (UAX #9).
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
