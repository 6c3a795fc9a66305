//! Entries of a directory, as a server sent them.
//!
//! A [`Listing`] iterates over a reply that has arrived completely; its owner passes the parser for
//! the format (MLSD, LIST). Names that lead out of the directory count as unparsable. A line that
//! cannot be parsed does not end the iteration: the error for the first such line follows the
//! entries.

use std::io::{self, BufRead, BufReader, Read, Seek};

use bstr::{BString, ByteSlice};
use tempfile::SpooledTempFile;

use crate::model::entry::Line;
use crate::place::base_name;
use crate::{Entry, RemoteError};

/// Longer lines cannot belong to a listing: names have at most 255 bytes and paths 4096, and a line
/// may repeat them a few times.
const LONGEST_LINE: u64 = 1 << 20;

/// The maximum number of bytes of an unparsable line that an error shows.
const LINE_SHOWN: usize = 200;

/// The entries of a listing that was fetched. Long listings are in a temporary file. The last item
/// is an error if a line could not be parsed, or if the server has more entries than it sent.
pub(crate) struct Listing {
    lines: BufReader<SpooledTempFile>,
    parse: fn(&[u8]) -> Line,
    peer: String,
    /// The entries are those of one directory: names have no `/`, unless a server sends full paths.
    flat: bool,
    /// Each entry ends with a line end (RFC 3659 section 7.2).
    terminated: bool,
    /// The first line that could not be parsed.
    unknown: Option<BString>,
    /// There is a line that is known to be no entry.
    totals: bool,
    /// Why the listing is incomplete.
    cut_off: Option<String>,
    /// All lines were read, and the error after them was returned.
    ended: bool,
}

impl Listing {
    /// `lines` are positioned at their start, as `peer` sent them.
    pub(crate) fn new(lines: SpooledTempFile, parse: fn(&[u8]) -> Line, peer: String) -> Self {
        Self {
            lines: BufReader::new(lines),
            parse,
            peer,
            flat: false,
            terminated: false,
            unknown: None,
            totals: false,
            cut_off: None,
            ended: false,
        }
    }

    /// Marks the listing as incomplete, for this reason.
    pub(crate) fn cut_off(self, why: Option<String>) -> Self {
        Self { cut_off: why, ..self }
    }

    /// The entries are those of one directory.
    pub(crate) fn flat(self) -> Self {
        Self { flat: true, ..self }
    }

    /// A last line without a line end counts as cut off.
    pub(crate) fn terminated(self) -> Self {
        Self { terminated: true, ..self }
    }

    /// Refuses names that lead out of the requested directory.
    fn named(&self, line: Line) -> Line {
        let Line::Entry(mut entry) = line else { return line };
        if self.flat && entry.name.contains(&b'/') {
            entry.name = base_name(&entry.name).into();
        }
        let leads_away = |part: &[u8]| matches!(part, b"" | b"." | b"..");
        if entry.name.split_str("/").any(leads_away) { Line::Unknown } else { Line::Entry(entry) }
    }

    /// Whether any line can be parsed.
    pub(crate) fn tells_something(&mut self) -> Result<bool, RemoteError> {
        let told = self.by_ref().next().is_some_and(|first| first.is_ok()) || self.totals;
        self.lines.rewind().map_err(RemoteError::Output)?;
        self.unknown = None;
        self.ended = false;
        Ok(told)
    }
}

impl Iterator for Listing {
    type Item = Result<Entry, RemoteError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        loop {
            line.clear();
            match self.lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(0) if std::mem::replace(&mut self.ended, true) => return None,
                Ok(0) => {
                    let peer = self.peer.clone();
                    if let Some(reason) = self.cut_off.clone() {
                        return Some(Err(RemoteError::CutOff { peer, reason }));
                    }
                    let line = self.unknown.take()?;
                    return Some(Err(RemoteError::Listing { peer, line }));
                }
                Ok(_) => {}
                Err(error) => return Some(Err(RemoteError::Output(error))),
            }
            let text = line.trim_end_with(|c| c == '\r' || c == '\n');
            if line.len() as u64 == LONGEST_LINE || self.terminated && !line.ends_with(b"\n") {
                // The line was cut off: its name is incomplete, and further entries may be missing.
                let _ = self.lines.seek(io::SeekFrom::End(0));
                self.unknown.get_or_insert_with(|| text[..text.len().min(LINE_SHOWN)].into());
                continue;
            }
            match self.named((self.parse)(text)) {
                Line::Entry(entry) => return Some(Ok(*entry)),
                Line::Nothing => self.totals = true,
                Line::Unknown if text.trim_ascii().is_empty() => {}
                Line::Unknown => {
                    self.unknown.get_or_insert_with(|| text[..text.len().min(LINE_SHOWN)].into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;
    use crate::model::entry::{from_facts, from_long};

    #[test]
    fn a_listing_is_read_back_line_by_line() {
        let mut spool = tempfile::spooled_tempfile(8);
        spool.write_all(b"Type=cdir; .\r\nType=file;Size=1; a\r\n\r\nType=dir; b").unwrap();
        spool.rewind().unwrap();
        let names: Vec<_> =
            listing(spool, |line| from_facts(line.as_bstr())).map(|e| e.unwrap().name.to_string()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    /// Names that were cut off must not be taken for other files.
    #[test]
    fn a_line_that_was_cut_off_is_no_entry() {
        let mut spool = tempfile::spooled_tempfile(1024);
        spool.write_all(b"Type=file; a\r\nType=file; bc").unwrap();
        spool.rewind().unwrap();
        let mut all = listing(spool, |line| from_facts(line.as_bstr())).terminated();
        assert_eq!(all.next().unwrap().unwrap().name, "a");
        assert!(all.next().unwrap().is_err() && all.next().is_none());
        let mut spool = tempfile::spooled_tempfile(1024);
        let long = [b"Type=file; ".as_slice(), &vec![b'x'; 3 << 20], b"\r\nType=file; b\r\n"].concat();
        spool.write_all(&long).unwrap();
        spool.rewind().unwrap();
        let mut all = listing(spool, |line| from_facts(line.as_bstr()));
        assert!(all.next().unwrap().is_err() && all.next().is_none());
    }

    fn listing(lines: SpooledTempFile, parse: fn(&[u8]) -> Line) -> Listing {
        Listing::new(lines, parse, "host".into())
    }

    #[test]
    fn entries_that_have_not_come_are_missed() {
        for lines in [&b""[..], b"Type=file; a\r\n"] {
            let mut spool = tempfile::spooled_tempfile(1024);
            spool.write_all(lines).unwrap();
            spool.rewind().unwrap();
            let mut all = listing(spool, |line| from_facts(line.as_bstr())).cut_off(Some("why".into()));
            assert_eq!(all.tells_something().unwrap(), !lines.is_empty());
            let all: Vec<_> = all.by_ref().collect();
            let (last, before) = all.split_last().unwrap();
            assert!(before.iter().all(Result::is_ok) && before.len() == usize::from(!lines.is_empty()));
            assert_eq!(last.as_ref().unwrap_err().to_string(), "host did not send the whole listing: why");
        }
    }

    #[test]
    fn names_do_not_lead_away() {
        for (flat, name, shown) in [
            (true, "/d/f", Some("f")),
            (true, "../../etc/f", Some("f")),
            (true, "d/..", None),
            (false, "d/f", Some("d/f")),
            (false, "d/../../f", None),
            (false, "/etc/f", None),
            (false, "d/.", None),
        ] {
            let mut spool = tempfile::spooled_tempfile(1024);
            write!(spool, "Type=file;Size=1; {name}\r\n").unwrap();
            spool.rewind().unwrap();
            let all = listing(spool, |line| from_facts(line.as_bstr()));
            let first = if flat { all.flat() } else { all }.next().unwrap();
            assert_eq!(first.ok().map(|entry| entry.name.to_string()).as_deref(), shown, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_told_after_the_rest() {
        let facts: fn(&[u8]) -> Line = |line| from_facts(line.as_bstr());
        type Case = (&'static str, fn(&[u8]) -> Line, &'static [&'static str], Option<&'static str>);
        let cases: [Case; 5] = [
            ("Type=file;Size=-1; a\r\nType=file; b\r\nwhat\r\n", facts, &["b"], Some("Type=file;Size=-1; a")),
            ("10-21-26  07:01PM       <DIR>          data\r\n", from_long, &["data"], None),
            ("10-21-26  07:01PM       <OUT>          data\r\n", from_long, &[], Some("10-21-26")),
            (
                "total 8\r\n-rw-r--r-- 1 a b 5 Nov 21 19:17 f\r\ndrwxr-xr-x 1 a b 0 Nov 21 19:17 .\r\n",
                from_long,
                &["f"],
                None,
            ),
            ("insgesamt 4,0K\r\n", from_long, &[], None),
        ];
        for (text, parse, names, unknown) in cases {
            let mut spool = tempfile::spooled_tempfile(1024);
            spool.write_all(text.as_bytes()).unwrap();
            spool.rewind().unwrap();
            let mut all: Vec<_> = listing(spool, parse).collect();
            let error = all.pop_if(|last| last.is_err()).map(|last| last.unwrap_err().to_string());
            assert_eq!(error.is_some(), unknown.is_some(), "{text}: {error:?}");
            assert!(error.unwrap_or_default().contains(unknown.unwrap_or_default()), "{text}");
            assert_eq!(all.iter().map(|e| e.as_ref().unwrap().name.to_string()).collect::<Vec<_>>(), names);
        }
    }
}
