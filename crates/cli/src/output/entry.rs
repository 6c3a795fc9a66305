//! Entries of directories, as text and as JSON.

use std::borrow::Cow;
use std::io::{self, Write};

use bstr::{BStr, ByteSlice};
use ropewalk_client::Entry;
use ropewalk_storage::Kind;
use serde::Serialize;

use super::harmless;
use crate::{units, utc};

/// The `--json` form of an entry. Fields that the server did not report are omitted.
#[derive(Debug, Serialize)]
pub(crate) struct EntryLine {
    /// Bytes that are not UTF-8 are replaced.
    name: String,
    location: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Seconds since 1970, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<i64>,
    /// Four octal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl EntryLine {
    pub(crate) fn new(entry: &Entry, location: &BStr) -> Self {
        Self {
            name: entry.name.to_str_lossy().into_owned(),
            location: location.to_str_lossy().into_owned(),
            kind: kind_name(entry.kind),
            size: entry.size,
            modified: entry.modified,
            mode: entry.mode.map(|mode| format!("{mode:04o}")),
            owner: entry.owner.clone(),
            group: entry.group.clone(),
            target: entry.target.as_ref().map(|target| target.to_str_lossy().into_owned()),
        }
    }
}

pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::BlockDevice => "block-device",
        Kind::CharacterDevice => "character-device",
        Kind::Fifo => "fifo",
        Kind::Socket => "socket",
    }
}

fn kind_letter(kind: Kind) -> char {
    match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::BlockDevice => 'b',
        Kind::CharacterDevice => 'c',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
    }
}

/// `-rw-r--r--`; question marks if the permissions are unknown.
pub(crate) fn mode_text(kind: Kind, mode: Option<u32>) -> String {
    let Some(mode) = mode else { return format!("{}?????????", kind_letter(kind)) };
    let mut text = String::from(kind_letter(kind));
    for (shift, special, set, clear) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => clear,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Raw bytes for programs; without control characters for a terminal.
pub(crate) fn shown_name(name: &[u8], terminal: bool) -> Cow<'_, [u8]> {
    if terminal { Cow::Owned(harmless(&name.to_str_lossy()).into_bytes()) } else { Cow::Borrowed(name) }
}

/// The same as [`shown_name`] for text from a server.
pub(crate) fn shown_text(text: &str, terminal: bool) -> Cow<'_, str> {
    if terminal { Cow::Owned(harmless(text)) } else { Cow::Borrowed(text) }
}

/// A line as in `ls -l`; the time is UTC.
pub(crate) fn long_line(out: &mut impl Write, entry: &Entry, human: bool, terminal: bool) -> io::Result<()> {
    let size = match entry.size {
        Some(size) if human => units::size(size),
        Some(size) => size.to_string(),
        None => "?".into(),
    };
    let time = entry.modified.map_or_else(|| "?".into(), utc::show);
    write!(
        out,
        "{} {:<8} {:<8} {size:>14} {time:<19} ",
        mode_text(entry.kind, entry.mode),
        shown_text(entry.owner.as_deref().unwrap_or("?"), terminal),
        shown_text(entry.group.as_deref().unwrap_or("?"), terminal),
    )?;
    out.write_all(&shown_name(&entry.name, terminal))?;
    if let Some(target) = &entry.target {
        out.write_all(b" -> ")?;
        out.write_all(&shown_name(target, terminal))?;
    }
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry() -> Entry {
        Entry {
            size: Some(1536),
            modified: Some(0),
            mode: Some(0o4751),
            owner: Some("me".into()),
            target: Some("t".into()),
            ..Entry::new("a\x1b[2Jb", Kind::Symlink)
        }
    }

    #[test]
    fn long_format_lists_attributes() {
        let line = |human, terminal| {
            let mut out = Vec::new();
            long_line(&mut out, &entry(), human, terminal).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            line(false, false),
            "lrwsr-x--x me       ?                  1536 1970-01-01 00:00:00 a\x1b[2Jb -> t\n"
        );
        let owned = Entry { owner: Some("\x1b[2J".into()), ..entry() };
        let mut out = Vec::new();
        long_line(&mut out, &owned, false, true).unwrap();
        assert!(!out.contains(&0x1b));
        assert!(line(true, true).ends_with("1.50 KiB 1970-01-01 00:00:00 a\u{fffd}[2Jb -> t\n"));
    }

    #[test]
    fn modes_are_shown_as_letters() {
        assert_eq!(mode_text(Kind::Directory, Some(0o1777)), "drwxrwxrwt");
        assert_eq!(mode_text(Kind::File, Some(0o2640)), "-rw-r-S---");
        assert_eq!(mode_text(Kind::File, None), "-?????????");
    }

    #[test]
    fn json_omits_unknown_facts() {
        let entry = Entry { owner: None, target: None, mode: None, ..entry() };
        let value = serde_json::to_value(EntryLine::new(&entry, "/x/a".into())).unwrap();
        assert_eq!(value["type"], "symlink");
        assert_eq!(value["location"], "/x/a");
        assert!(value.get("owner").is_none());
    }
}
