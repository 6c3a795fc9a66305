//! `docs/interop.md`: one section for each test, between markers, with the same text in every run.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use parking_lot::Mutex;
use ropewalk_tests::peers;
use ropewalk_tests::wrap::wrapped;

use crate::cells::{Cell, Expected};

/// A table of the document.
pub(crate) struct Section {
    /// The name in the markers.
    pub(crate) key: &'static str,
    pub(crate) title: &'static str,
    pub(crate) text: &'static str,
    /// The heading of the column of rows.
    pub(crate) corner: &'static str,
}

const HEAD: &str = "# Interoperability

`cargo test -p ropewalk-tests --test interop` writes this document. For each cell, the named
programs run against each other on loopback, and the bytes at the destination are compared with
those at the source. A cell that fails fails the test. \"yes\" means that it works. If a foreign
program does not support a task, a footnote says so, and the test checks that this is still true.
GCT is the Grid Community Toolkit, with the server `globus-gridftp-server` and the client
`globus-url-copy`. A pair of GCT's own programs is the control group.
";

/// The order of sections.
const KEYS: [&str; 15] = [
    "gridftp",
    "third-party",
    "striped",
    "gsi",
    "gsi-stacks",
    "udt",
    "tls",
    "ssh",
    "kerberos",
    "tokens",
    "data-keys",
    "curl",
    "lftp",
    "clients",
    "plain-ftp",
];

static WRITING: Mutex<()> = Mutex::new(());

fn path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/interop.md"))
}

fn markers(key: &str) -> (String, String) {
    (format!("<!-- begin {key} -->\n"), format!("<!-- end {key} -->\n"))
}

/// Replaces the section. In CI a change is an error, because it means that the document in the
/// repository is out of date.
pub(crate) fn write(section: &Section, cells: &[Cell]) {
    let _alone = WRITING.lock();
    let old = fs::read_to_string(path()).unwrap_or_default();
    let mut new = HEAD.to_owned();
    for key in KEYS {
        let (begin, end) = markers(key);
        let body = if key == section.key {
            Some(table(section, cells))
        } else {
            old.split_once(&begin)
                .and_then(|(_, rest)| rest.split_once(&end))
                .map(|(body, _)| body.to_owned())
        };
        if let Some(body) = body {
            let _ = write!(new, "\n{begin}{body}{end}");
        }
    }
    if new == old {
        return;
    }
    assert!(
        !peers::everything_required(),
        "docs/interop.md is out of date: run this test and commit the document"
    );
    fs::create_dir_all(path().parent().unwrap()).unwrap();
    fs::write(path(), new).unwrap();
}

fn table(section: &Section, cells: &[Cell]) -> String {
    let mut rows: Vec<&str> = Vec::new();
    let mut columns: Vec<&str> = Vec::new();
    for cell in cells {
        if !rows.contains(&cell.row.as_str()) {
            rows.push(&cell.row);
        }
        if !columns.contains(&cell.column.as_str()) {
            columns.push(&cell.column);
        }
    }
    let mut footnotes: Vec<&str> = Vec::new();
    let mut text = format!("## {}\n\n{}\n\n| {} |", section.title, wrapped(section.text, 0), section.corner);
    for column in &columns {
        let _ = write!(text, " {column} |");
    }
    let _ = write!(text, "\n|---|{}\n", "---|".repeat(columns.len()));
    for row in rows {
        let _ = write!(text, "| {row} |");
        for column in &columns {
            let cell = cells.iter().find(|cell| cell.row == row && cell.column == *column);
            let word = match cell.map(|cell| cell.expected) {
                Some(Expected::Works) => "yes".to_owned(),
                Some(Expected::PeerCannot(why)) => format!("peer cannot ({})", note(&mut footnotes, why)),
                None => String::new(),
            };
            let _ = write!(text, " {word} |");
        }
        text.push('\n');
    }
    if !footnotes.is_empty() {
        text.push('\n');
    }
    for (number, footnote) in footnotes.iter().enumerate() {
        let _ = writeln!(text, "({}) {footnote}  ", number + 1);
    }
    text
}

fn note<'a>(footnotes: &mut Vec<&'a str>, why: &'a str) -> usize {
    let at = footnotes.iter().position(|other| *other == why).unwrap_or_else(|| {
        footnotes.push(why);
        footnotes.len() - 1
    });
    at + 1
}
