//! Human-readable listings: LIST, STAT and NLST (RFC 959 section 4.1.3).
//!
//! Lines are printed like those of GCT, except for the year. There is no standard for such lines;
//! the parser accepts the usual variants of the Unix form, and that of Windows servers.

mod parse;

use std::borrow::Cow;
use std::fmt::Write as _;

use bstr::{BStr, ByteSlice};

use crate::date::ListStamp;
use crate::facts::{Entry, EntryKind};

/// Appends the line of LIST or STAT to `out`, without line end: mode, links, owner, group, size,
/// time and name; for a symbolic link that is not followed also ` -> target`. The time is in UTC;
/// [`ListStamp`] decides whether the time of day or the year is printed. `now` is the current time
/// in seconds since 1970.
pub fn print_long(entry: &Entry, now: i64, out: &mut Vec<u8>) {
    let number = |n: Option<u32>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
    let owner = entry.owner.clone().unwrap_or_else(|| number(entry.uid));
    let group = entry.group.clone().unwrap_or_else(|| number(entry.gid));
    let mut line = mode_text(entry.kind, entry.mode.unwrap_or(0));
    let (links, size) = (entry.links.unwrap_or(1), entry.size.unwrap_or(0));
    let time = ListStamp { seconds: entry.modified.unwrap_or(0), now };
    // Writing to a string cannot fail.
    let _ = write!(line, " {links:>3} {owner:>8} {group:>8} {size:>12} {time} ");
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(&on_one_line(&entry.name));
    if let (EntryKind::Symlink, Some(target)) = (entry.kind, &entry.target) {
        out.extend_from_slice(b" -> ");
        out.extend_from_slice(&on_one_line(target));
    }
}

/// Whether a name would be printed as several lines of a listing.
pub fn has_line_end(name: &[u8]) -> bool {
    name.find_byteset(b"\r\n").is_some()
}

/// Returns the name in the form that a listing shows: with `?` for CR and LF, like `ls` on a
/// terminal.
pub fn on_one_line(name: &[u8]) -> Cow<'_, [u8]> {
    if !has_line_end(name) {
        return name.into();
    }
    name.iter().map(|&b| if matches!(b, b'\r' | b'\n') { b'?' } else { b }).collect()
}

/// Parses a line of LIST or STAT. Returns `None` if it is not an entry (`total 12`, an empty line,
/// another form).
///
/// Many lines have no year. In this case it is the latest year for which the time is not in the
/// future of `now` (seconds since 1970); if `now` is `None`, the entry has no time. The time zone
/// is unknown and taken as UTC, so times may be wrong by hours.
pub fn parse_long(line: &[u8], now: Option<i64>) -> Option<Entry> {
    parse::long(line, now)
}

/// Splits a listing into its lines, which end with LF or CR LF.
pub fn lines(data: &[u8]) -> impl Iterator<Item = &BStr> {
    data.lines().map(ByteSlice::as_bstr)
}

/// `drwxr-xr-x`.
fn mode_text(kind: EntryKind, mode: u32) -> String {
    let letter = match kind {
        EntryKind::Directory | EntryKind::CurrentDirectory | EntryKind::ParentDirectory => 'd',
        EntryKind::Symlink => 'l',
        EntryKind::BlockDevice => 'b',
        EntryKind::CharacterDevice => 'c',
        EntryKind::Fifo => 'p',
        EntryKind::Socket => 's',
        EntryKind::File | EntryKind::Other => '-',
    };
    let mut text = String::from(letter);
    for (shift, special, with, without) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => with,
            (false, true) => without,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    /// 2001-03-01T00:00:00.
    const NOW: i64 = 983_404_800;

    fn print(entry: &Entry) -> String {
        print_at(entry, NOW)
    }

    fn print_at(entry: &Entry, now: i64) -> String {
        let mut out = Vec::new();
        print_long(entry, now, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn entry() -> Entry {
        Entry {
            size: Some(6),
            modified: Some(981_173_106),
            mode: Some(0o644),
            owner: Some("root".into()),
            group: Some("root".into()),
            links: Some(1),
            ..Entry::new("a b", EntryKind::File)
        }
    }

    /// The lines are those of globus-gridftp-server 13.24.
    #[test]
    fn print_long_matches_gct() {
        assert_eq!(print(&entry()), "-rw-r--r--   1     root     root            6 Feb  3 04:05 a b");
        let dir = Entry {
            kind: EntryKind::Directory,
            mode: Some(0o755),
            links: Some(9),
            size: Some(4096),
            ..entry()
        };
        assert_eq!(print(&dir), "drwxr-xr-x   9     root     root         4096 Feb  3 04:05 a b");
        let fifo = Entry { kind: EntryKind::Fifo, mode: Some(0o0000), ..entry() };
        assert_eq!(print(&fifo), "p---------   1     root     root            6 Feb  3 04:05 a b");
    }

    #[test]
    fn print_long_with_missing_facts_prints_placeholders() {
        let link =
            Entry { kind: EntryKind::Symlink, target: Some("x y".into()), mode: Some(0o777), ..entry() };
        assert!(print(&link).starts_with("lrwxrwxrwx ") && print(&link).ends_with(" a b -> x y"));
        let bare = Entry::new("n", EntryKind::File);
        assert_eq!(print(&bare), "----------   1        ?        ?            0 Jan  1  1970 n");
        let by_number = Entry { uid: Some(1000), gid: Some(7), mode: Some(0o7777), ..bare };
        assert!(print(&by_number).starts_with("-rwsrwsrwt   1     1000        7 "));
        assert_eq!(mode_text(EntryKind::Socket, 0o7000), "s--S--S--T");
        let lines = Entry { name: "a\r\n-rw b".into(), target: Some("x\ny".into()), ..link };
        assert!(print(&lines).ends_with(" a??-rw b -> x?y"), "{}", print(&lines));
    }

    proptest! {
        #[test]
        fn print_long_line_is_parsed_back(
            kind in prop::sample::select(vec![EntryKind::File, EntryKind::Directory, EntryKind::Symlink, EntryKind::Fifo, EntryKind::Socket]),
            name in "[ -~]{1,12}", size: u64, mode in 0u32..0o10000, links in 0u64..10_000, owner in "[a-z0-9_]{1,12}",
            modified in 1_700_000_000i64..1_731_000_000,
        ) {
            let now = 1_731_000_000;
            let modified = modified - modified.rem_euclid(60);
            let target = (kind == EntryKind::Symlink).then(|| "x -> y".into());
            prop_assume!(!name.contains(" -> "));
            let entry = Entry {
                size: Some(size), mode: Some(mode), links: Some(links), modified: Some(modified), owner: Some(owner.clone()),
                group: Some(owner), target, ..Entry::new(name, kind)
            };
            let parsed = parse_long(print_at(&entry, now).as_bytes(), Some(now)).unwrap();
            let modified = if modified < now - 15_778_476 { modified - modified.rem_euclid(86_400) } else { modified };
            prop_assert_eq!(Entry { uid: None, gid: None, ..parsed }, Entry { modified: Some(modified), ..entry });
        }

        #[test]
        fn parse_long_on_any_input_does_not_panic(line: Vec<u8>, text in "[-dl][rwx-]{9} [ -~]{0,50}", now: Option<i64>) {
            let _ = parse_long(&line, now);
            let _ = parse_long(text.as_bytes(), now);
        }
    }
}
