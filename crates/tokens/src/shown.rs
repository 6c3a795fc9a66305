//! Formats untrusted text and times for messages.

/// Maximum number of characters; longer texts are cut.
const LONGEST: usize = 80;

/// The text in quotes, on one line, shortened if necessary.
pub(crate) fn shown(text: &str) -> String {
    let cut: String = text.chars().take(LONGEST).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("{cut:?}{dots}")
}

/// A duration in words.
pub(crate) fn span(seconds: i64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_is_one_short_line() {
        assert_eq!(shown("a\nb"), "\"a\\nb\"");
        assert!(shown(&"x".repeat(1000)).len() < 100);
        assert_eq!(
            (span(5), span(300), span(7200), span(864_000)),
            ("5 s".into(), "5 min".into(), "2 h".into(), "10 days".into())
        );
    }
}
