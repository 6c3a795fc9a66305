//! LIST as Unix servers print it (`ls -l`), for servers without MLSD. There is no standard: what cannot be read is
//! left out.

use bstr::{BStr, ByteSlice};
use ropewalk_storage::Kind;

use crate::Entry;

/// One line: `-rw-r--r-- 1 owner group 12 Nov 21 19:17 name`; the group may be missing.
pub(crate) fn parse_line(line: &[u8]) -> Option<Entry> {
    let line = line.as_bstr();
    let kind = match line.first()? {
        b'-' => Kind::File,
        b'd' => Kind::Directory,
        b'l' => Kind::Symlink,
        b'b' => Kind::BlockDevice,
        b'c' => Kind::CharacterDevice,
        b'p' => Kind::Fifo,
        b's' => Kind::Socket,
        _ => return None,
    };
    let mode = mode(line.get(1..10)?)?;
    // The month is the landmark: size stands before it; day, time (or year) and name after it.
    let fields: Vec<(usize, &BStr)> = fields(line);
    let month = (3..=5).find(|&at| fields.get(at).is_some_and(|(_, field)| is_month(field)))?;
    let size = fields[month - 1].1.to_str().ok()?.parse().ok();
    let (at, time) = fields.get(month + 2)?;
    // Exactly one space separates the name, which may itself begin with spaces.
    let name = line.get(at + time.len() + 1..)?;
    let (name, target) = match (kind, name.find(b" -> ")) {
        (Kind::Symlink, Some(arrow)) => (&name[..arrow], Some(name[arrow + 4..].into())),
        _ => (name, None),
    };
    let owner = fields.get(2).filter(|_| month >= 4).map(|(_, f)| f.to_string());
    let group = fields.get(3).filter(|_| month >= 5).map(|(_, f)| f.to_string());
    Some(Entry { size, mode: Some(mode), owner, group, target, ..Entry::new(name, kind) })
}

fn fields(line: &BStr) -> Vec<(usize, &BStr)> {
    let mut found = Vec::new();
    let mut at = 0;
    while found.len() < 9 {
        let Some(start) = line[at..].iter().position(|b| *b != b' ').map(|n| at + n) else { break };
        let end = line[start..].find_byte(b' ').map_or(line.len(), |n| start + n);
        found.push((start, line[start..end].as_bstr()));
        at = end;
    }
    found
}

fn is_month(field: &BStr) -> bool {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    MONTHS.iter().any(|month| field.eq_ignore_ascii_case(month.as_bytes()))
}

/// `rwxr-xr-x` with `s`, `S`, `t`, `T`.
fn mode(text: &[u8]) -> Option<u32> {
    let mut mode = 0;
    for (i, b) in text.iter().enumerate() {
        let bit = 1 << (8 - i);
        let special = 0o1000 << (2 - i / 3);
        mode |= match b {
            b'-' => 0,
            b'r' | b'w' | b'x' => bit,
            b's' | b't' => bit | special,
            b'S' | b'T' => special,
            _ => return None,
        };
    }
    Some(mode)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lines_of_servers() {
        let e = parse_line(b"-rw-r--r--    1 0        0              12 Nov 21 19:17 a b").unwrap();
        assert_eq!((e.name.as_slice(), e.size, e.mode), (&b"a b"[..], Some(12), Some(0o644)));
        let e = parse_line(b"drwxrwxrwt   2 root  wheel  4096 Jan  1  2020  leading").unwrap();
        assert_eq!((e.name.as_slice(), e.kind, e.mode), (&b" leading"[..], Kind::Directory, Some(0o1777)));
        let e = parse_line(b"lrwxrwxrwx 1 u g 3 Dec 31 23:59 l -> a/b").unwrap();
        assert_eq!((e.name.as_slice(), e.target.unwrap().as_slice()), (&b"l"[..], &b"a/b"[..]));
        // Without a group.
        let e = parse_line(b"-rwsr-xr-x 1 u 3 Dec 31 23:59 x").unwrap();
        assert_eq!((e.size, e.owner.as_deref(), e.group, e.mode), (Some(3), Some("u"), None, Some(0o4755)));
        assert!(parse_line(b"total 12").is_none());
        assert!(parse_line(b"").is_none());
        assert!(parse_line(b"-rw-r--r--").is_none());
    }
}
