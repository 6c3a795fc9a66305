//! Files of pairs, in the format of GCT's `-f`: `SOURCE DESTINATION [OFFSET[,LENGTH]] [ATTRIBUTES]`, one pair a line.
//!
//! Names with spaces stand in double quotes; empty lines and lines that begin with `#` mean nothing.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use anyhow::Context;
use bstr::{BStr, BString, ByteSlice, io::BufReadExt};
use ropewalk_client::{Pair, Window, parse_location};

use crate::exit::usage;

/// One line, not yet understood as places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) source: BString,
    pub(crate) destination: BString,
    /// `None`: nothing is said of it. `Some(None)`: all of the file.
    pub(crate) window: Option<Option<Window>>,
}

impl Line {
    pub(crate) fn pair(&self) -> anyhow::Result<Pair> {
        Ok(Pair {
            source: parse_location(self.source.to_os_str_lossy())?,
            destination: parse_location(self.destination.to_os_str_lossy())?,
            window: self.window.flatten(),
        })
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
    let mut lines = Vec::new();
    for (index, line) in BufReader::new(input).byte_lines().enumerate() {
        let line = line.with_context(|| format!("cannot read {name}"))?;
        let text = line.trim();
        if text.is_empty() || text.starts_with(b"#") {
            continue;
        }
        let line = parse_line(text.as_bstr())
            .map_err(|problem| usage(format!("{name}, line {}: {problem}", index + 1)))?;
        lines.push(line);
    }
    Ok(lines)
}

fn parse_line(line: &BStr) -> Result<Line, String> {
    let (source, rest) = word(line)?;
    let (destination, rest) = word(rest)?;
    if source.is_empty() || destination.is_empty() {
        return Err("expected a source and a destination".into());
    }
    let (third, _) = word(rest)?;
    // GCT writes attributes (`size=1;modify=..;`) into its dump files and does not need them either.
    let window = if third.is_empty() || third.contains(&b'=') { None } else { Some(window(third)?) };
    Ok(Line { source: source.into(), destination: destination.into(), window })
}

/// The next word and what follows it; empty at the end.
fn word(text: &BStr) -> Result<(&BStr, &BStr), String> {
    let text = text.trim_start();
    if let Some(quoted) = text.strip_prefix(b"\"") {
        let end = quoted.find_byte(b'"').ok_or("a quote is not closed")?;
        return Ok((quoted[..end].as_bstr(), quoted[end + 1..].as_bstr()));
    }
    let end = text.find_byteset(b" \t").unwrap_or(text.len());
    Ok((text[..end].as_bstr(), text[end..].as_bstr()))
}

/// `OFFSET[,[LENGTH]]`; a length of -1, or none, is all.
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

/// A name as such a file has it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn line(source: &str, destination: &str, window: Option<Option<(u64, Option<u64>)>>) -> Line {
        Line {
            source: source.into(),
            destination: destination.into(),
            window: window.map(|window| window.map(|(offset, length)| Window { offset, length })),
        }
    }

    #[test]
    fn the_format_of_gct() {
        let text = "# comment\n\nftp://h/a file:///b\r\n\"ftp://h/a b\"\t\"file:///c d\" 0,-1 size=3;mode=0644;\na b 5\na b 5,\na b 0,2\na b size=3;\n";
        assert_eq!(
            parse(text.as_bytes(), "x").unwrap(),
            [
                line("ftp://h/a", "file:///b", None),
                line("ftp://h/a b", "file:///c d", Some(None)),
                line("a", "b", Some(Some((5, None)))),
                line("a", "b", Some(Some((5, None)))),
                line("a", "b", Some(Some((0, Some(2))))),
                line("a", "b", None),
            ]
        );
    }

    #[test]
    fn mistakes_name_the_line() {
        for text in ["a\n", "\"a b\n", "a b x\n", "a b 1,y\n", "a b ,2\n", "\"\" b\n"] {
            let error = parse(text.as_bytes(), "list").unwrap_err().to_string();
            assert!(error.starts_with("list, line 1:"), "{error}");
        }
    }
}
