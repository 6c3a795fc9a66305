//! Checks of text from a peer before it is shown to a user.

/// Whether a character could act on a terminal, or disguise a text as another one: control
/// characters, line ends, and characters that change the direction of text (UAX #9).
pub fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
