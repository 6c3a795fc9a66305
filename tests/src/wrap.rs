//! Breaks the paragraphs of documents that tests write into lines.

/// Columns of a line.
const WIDTH: usize = 100;

/// Breaks a paragraph into lines. All lines but the first are indented by this many spaces.
#[must_use]
pub fn wrapped(text: &str, indent: usize) -> String {
    let mut wrapped = String::new();
    let mut columns = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if columns == 0 {
            columns = length;
        } else if columns + 1 + length <= WIDTH {
            wrapped.push(' ');
            columns += 1 + length;
        } else {
            wrapped.push('\n');
            wrapped += &" ".repeat(indent);
            columns = indent + length;
        }
        wrapped += word;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_paragraph_has_no_line_beyond_the_width() {
        let word = "x".repeat(49);
        assert_eq!(wrapped(&format!("{word} y {word}"), 2), format!("{word} y\n  {word}"));
        assert_eq!(wrapped(&format!("{word} {word}y"), 2), format!("{word} {word}y"));
        assert_eq!(wrapped("one", 2), "one");
    }
}
