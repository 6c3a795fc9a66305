//! Files of pairs, in the format of GCT's `-f`: `SOURCE DESTINATION [OFFSET[,LENGTH]]
//! [ATTRIBUTES]`, one pair on a line.
//!
//! Names with spaces stand in double quotes; empty lines and lines that begin with `#` are ignored.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice, io::BufReadExt};
use ropewalk_client::{Pair, Window};

use crate::credentials::Side;
use crate::exit::usage;
use crate::sites::Used;

/// One line, whose locations are not parsed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) source: BString,
    pub(crate) destination: BString,
    /// `None`: the line has no window. `Some(None)`: the whole file.
    pub(crate) window: Option<Option<Window>>,
    pub(crate) at: At,
}

/// The file and the line number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct At {
    file: Arc<str>,
    number: usize,
}

impl At {
    /// Adds the position of a line to an error.
    pub(crate) fn wrong(&self, problem: impl Display) -> anyhow::Error {
        usage(format!("{}, line {}: {problem}", self.file, self.number))
    }
}

impl Line {
    pub(crate) fn pair(&self, sites: &mut Used) -> anyhow::Result<Pair> {
        let mut place =
            |side, given: &BString| sites.parse(side, given.to_os_str_lossy()).map_err(|e| self.at.wrong(e));
        let source = place(Side::Source, &self.source)?;
        let destination = place(Side::Destination, &self.destination)?;
        Ok(Pair { source, destination, window: self.window.flatten() })
    }
}

/// Reads the file at `path`; `-` is standard input.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Line>> {
    if path.as_os_str() == "-" {
        return parse(io::stdin().lock(), "standard input");
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| usage(format!("cannot open {name}: {error}")))?;
    parse(file, &name)
}

fn parse(input: impl Read, name: &str) -> anyhow::Result<Vec<Line>> {
    let file: Arc<str> = name.into();
    let mut lines = Vec::new();
    for (index, line) in BufReader::new(input).byte_lines().enumerate() {
        let line = line.map_err(|error| usage(format!("cannot read {name}: {error}")))?;
        let text = line.trim();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        let at = At { file: Arc::clone(&file), number: index + 1 };
        match parse_line(text.as_bstr()) {
            Ok((source, destination, window)) => lines.push(Line { source, destination, window, at }),
            Err(problem) => return Err(at.wrong(problem)),
        }
    }
    Ok(lines)
}

/// Returns source, destination, and the window as in [`Line::window`].
type Words = (BString, BString, Option<Option<Window>>);

fn parse_line(line: &BStr) -> Result<Words, String> {
    let (source, rest) = word(line)?;
    let (destination, rest) = word(rest)?;
    if source.is_empty() || destination.is_empty() {
        return Err("expected a source and a destination".into());
    }
    let (third, _) = word(rest)?;
    // GCT writes attributes (`size=1;modify=..;`) into its dump files, and ignores them as well.
    let window = if third.is_empty() || third.contains(&b'=') { None } else { Some(window(third)?) };
    Ok((source.into(), destination.into(), window))
}

/// The next word and the rest of the line; empty at the end.
fn word(text: &BStr) -> Result<(&BStr, &BStr), String> {
    let text = text.trim_start();
    if let Some(quoted) = text.strip_prefix(b"\"") {
        let end = quoted.find_byte(b'"').ok_or("a quote is not closed")?;
        return Ok((quoted[..end].as_bstr(), quoted[end + 1..].as_bstr()));
    }
    let end = text.find_byteset(b" \t").unwrap_or(text.len());
    Ok((text[..end].as_bstr(), text[end..].as_bstr()))
}

/// `OFFSET[,[LENGTH]]`; a length of -1, or none, means up to the end.
fn window(text: &BStr) -> Result<Option<Window>, String> {
    let wrong = || format!("{text:?}: expected OFFSET[,LENGTH]");
    let text = text.to_str().map_err(|_| wrong())?;
    let (offset, length) = text.split_once(',').unwrap_or((text, "-1"));
    let number = |text: &str| -> Result<Option<u64>, String> {
        if matches!(text, "" | "-1") { Ok(None) } else { text.parse().map(Some).map_err(|_| wrong()) }
    };
    if offset.is_empty() {
        return Err(wrong());
    }
    let offset = number(offset)?.unwrap_or(0);
    let length = number(length)?;
    Ok((offset > 0 || length.is_some()).then_some(Window { offset, length }))
}

/// Writes a name in the format of such a file.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_in_the_format_of_gct_are_parsed() {
        let text = "# comment\n\nftp://h/a file:///b\r\n\"ftp://h/a b\"\t\"file:///c d\" 0,-1 size=3;mode=0644;\na b 5\na b 5,\na b 0,2\na b size=3;\n";
        let lines = parse(text.as_bytes(), "x").unwrap();
        assert_eq!(lines.iter().map(|line| line.at.number).collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8]);
        let window = |offset, length| Some(Some(Window { offset, length }));
        let words = lines.into_iter().map(|line| (line.source, line.destination, line.window));
        assert_eq!(
            words.collect::<Vec<_>>(),
            [
                ("ftp://h/a".into(), "file:///b".into(), None),
                ("ftp://h/a b".into(), "file:///c d".into(), Some(None)),
                ("a".into(), "b".into(), window(5, None)),
                ("a".into(), "b".into(), window(5, None)),
                ("a".into(), "b".into(), window(0, Some(2))),
                ("a".into(), "b".into(), None),
            ]
        );
    }

    #[test]
    fn invalid_line_is_named() {
        for text in ["a\n", "\"a b\n", "a b x\n", "a b 1,y\n", "a b ,2\n", "\"\" b\n"] {
            let error = parse(text.as_bytes(), "list").unwrap_err().to_string();
            assert!(error.starts_with("list, line 1:"), "{error}");
        }
        let lines = parse("a b\na foo://h/b\n".as_bytes(), "list").unwrap();
        assert!(lines[0].pair(&mut Used::default()).is_ok());
        let error = lines[1].pair(&mut Used::default()).unwrap_err().to_string();
        assert!(error.starts_with("list, line 2:"), "{error}");
    }
}
