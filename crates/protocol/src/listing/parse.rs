//! Parses lines of LIST in the forms of Unix and Windows servers.

use bstr::ByteSlice;

use crate::date::{Civil, month};
use crate::facts::{Entry, EntryKind};

const DAY: i64 = 86_400;

/// A field, and the offset of its end in the line.
type Field<'a> = (&'a [u8], usize);

pub(super) fn long(line: &[u8], now: Option<i64>) -> Option<Entry> {
    let fields: Vec<Field<'_>> = fields(line).take(24).collect();
    let Some((kind, mode)) = parse_mode(fields.first()?.0) else { return dos(line, &fields) };
    // Owners and groups are free text, so the date is located first: the size is before it, the
    // name after it.
    let (at, date) = (2..fields.len()).find_map(|at| {
        number(fields[at - 1].0)?;
        Some((at, parse_date(&fields[at..], now)?))
    })?;
    // Exactly one space separates the name, because the name may begin with spaces.
    let name = line.get(date.end + 1..).filter(|name| !name.is_empty())?;
    let (name, target) = match name.split_once_str(" -> ") {
        Some((name, target)) if kind == EntryKind::Symlink => (name, Some(target.into())),
        _ => (name, None),
    };
    let is_device = fields[at - 2].0.ends_with(b",");
    let mut middle = &fields[1..at - 1 - usize::from(is_device && at > 2)];
    let mut links = None;
    if middle.len() > 1
        && let Some(n) = number(middle[0].0)
    {
        links = Some(n);
        middle = &middle[1..];
    }
    let text = |field: Option<&Field<'_>>| field.map(|f| f.0.to_str_lossy().into_owned());
    let id = |field: Option<&Field<'_>>| field.and_then(|f| u32::try_from(number(f.0)?).ok());
    let (owner, group) = (middle.first(), middle.get(1..).and_then(<[_]>::last));
    Some(Entry {
        size: if is_device { None } else { number(fields[at - 1].0) },
        modified: date.seconds,
        mode: Some(mode),
        uid: id(owner),
        gid: id(group),
        owner: text(owner),
        group: text(group),
        links,
        target,
        ..Entry::new(name, kind)
    })
}

/// Parses `01-10-26  12:34PM  <DIR>  name` of Windows servers. A file has its size in place of
/// `<DIR>`.
fn dos(line: &[u8], fields: &[Field<'_>]) -> Option<Entry> {
    let &[(date, _), (time, _), (size, end), ..] = fields else { return None };
    let [month, day, year] = date.split(|b| matches!(b, b'-' | b'/')).collect::<Vec<_>>()[..] else {
        return None;
    };
    let year = match (year.len(), number(year)? as i64) {
        (4, year) => year,
        (2, year @ 0..70) => 2000 + year,
        (2, year) => 1900 + year,
        _ => return None,
    };
    let (month, day) = (u8::try_from(number(month)?).ok()?, u8::try_from(number(day)?).ok()?);
    let (hour, minute) = half_day(time)?;
    let seconds = Civil { year, month, day, hour, minute, second: 0 }.to_seconds()?;
    let (kind, size) = match size {
        b"<DIR>" => (EntryKind::Directory, None),
        size => (EntryKind::File, Some(number(size)?)),
    };
    // All names begin in the same column: one space after a size, and several spaces after `<DIR>`.
    let name = line.get(end + 1..)?;
    let name = if kind == EntryKind::File { name } else { name.trim_start_with(|c| c == ' ') };
    let seconds = Some(seconds).filter(|_| !name.is_empty())?;
    Some(Entry { size, modified: Some(seconds), ..Entry::new(name, kind) })
}

/// Parses `12:34PM`, or `23:59` of servers that use the 24-hour clock.
fn half_day(text: &[u8]) -> Option<(u8, u8)> {
    let (clock, half) = text.split_at_checked(text.len().checked_sub(2)?)?;
    let afternoon = match half.to_ascii_uppercase().as_slice() {
        b"AM" => false,
        b"PM" => true,
        _ => return time(text),
    };
    let (hour, minute) = time(clock).filter(|(hour, _)| (1..=12).contains(hour))?;
    Some((hour % 12 + if afternoon { 12 } else { 0 }, minute))
}

/// Splits a line into fields, which are separated by spaces or tabs.
fn fields(line: &[u8]) -> impl Iterator<Item = Field<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + line[at..].iter().position(|b| !b" \t".contains(b))?;
        at = line[start..].iter().position(|b| b" \t".contains(b)).map_or(line.len(), |n| start + n);
        Some((&line[start..at], at))
    })
}

/// Parses `drwxr-xr-x`. The sign of an access control list or similar (`+`, `.`, `@`) may follow.
fn parse_mode(text: &[u8]) -> Option<(EntryKind, u32)> {
    let kind = match text.first()? {
        b'-' => EntryKind::File,
        b'd' => EntryKind::Directory,
        b'l' => EntryKind::Symlink,
        b'b' => EntryKind::BlockDevice,
        b'c' => EntryKind::CharacterDevice,
        b'p' => EntryKind::Fifo,
        b's' => EntryKind::Socket,
        _ => return None,
    };
    let letters = text.get(1..10)?;
    if !matches!(&text[10..], b"" | b"+" | b"." | b"@") {
        return None;
    }
    let mut mode = 0;
    for (i, letter) in letters.iter().enumerate() {
        let bit = 0o400 >> i;
        let special = 0o4000 >> (i / 3);
        mode |= match (i % 3, letter) {
            (_, b'-') => 0,
            (0, b'r') | (1, b'w') | (2, b'x') => bit,
            (2, b's' | b't') => bit | special,
            (2, b'S' | b'T' | b'l' | b'L') => special,
            _ => return None,
        };
    }
    Some((kind, mode))
}

struct Date {
    /// `None` if the year is unknown.
    seconds: Option<i64>,
    /// Offset of the end of the last field of the date in the line.
    end: usize,
}

/// Parses `Nov 21 19:17`, `Nov 21 2001`, `21 Nov 2001` or `2001-11-21 19:17[:05]` at the beginning
/// of `fields`.
fn parse_date(fields: &[Field<'_>], now: Option<i64>) -> Option<Date> {
    let &[(a, _), (b, end_of_second), ref rest @ ..] = fields else {
        return None;
    };
    if let Some((year, month, day)) = iso_date(a) {
        let (hour, minute) = time(b)?;
        let seconds = Civil { year, month, day, hour, minute, second: 0 }.to_seconds()?;
        return Some(Date { seconds: Some(seconds), end: end_of_second });
    }
    let (month, day) = match (month(a), month(b)) {
        (Some(month), _) => (month, b),
        (_, Some(month)) => (month, a),
        _ => return None,
    };
    let day = u8::try_from(number(day)?).ok().filter(|day| (1..=31).contains(day))?;
    let &(last, end) = rest.first()?;
    let civil = Civil { year: 0, month, day, hour: 0, minute: 0, second: 0 };
    if let Some((hour, minute)) = time(last) {
        let civil = Civil { hour, minute, ..civil };
        return Some(Date { seconds: now.and_then(|now| latest(civil, now)), end });
    }
    let year = (last.len() == 4).then(|| number(last)).flatten()?;
    let seconds = Civil { year: year as i64, ..civil }.to_seconds()?;
    Some(Date { seconds: Some(seconds), end })
}

/// Returns the time in the latest year that does not put it more than a day (for time zones) into
/// the future.
fn latest(civil: Civil, now: i64) -> Option<i64> {
    let this_year = Civil::from_seconds(now.checked_add(DAY)?).year;
    // The last leap day may be up to eight years ago.
    (0..=8)
        .filter_map(|back| Civil { year: this_year - back, ..civil }.to_seconds())
        .find(|t| *t <= now + DAY)
}

/// Parses `2001-11-21`.
fn iso_date(text: &[u8]) -> Option<(i64, u8, u8)> {
    if text.len() != 10 || text[4] != b'-' || text[7] != b'-' {
        return None;
    }
    Some((number(&text[..4])? as i64, number(&text[5..7])? as u8, number(&text[8..])? as u8))
}

/// Parses `19:17`. Seconds and fractions are dropped.
fn time(text: &[u8]) -> Option<(u8, u8)> {
    let (hour, rest) = text.split_once_str(":")?;
    let (minute, _) = rest.split_at_checked(2)?;
    let (hour, minute) = (number(hour)?, number(minute)?);
    (hour < 24 && minute < 60).then_some((hour as u8, minute as u8))
}

fn number(text: &[u8]) -> Option<u64> {
    let text = text.to_str().ok().filter(|t| t.bytes().all(|b| b.is_ascii_digit()))?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::date;

    const NOW: i64 = 1_795_288_659; // 2026-11-21T19:17:39

    fn parse(line: &str) -> Entry {
        long(line.as_bytes(), Some(NOW)).unwrap()
    }

    fn stamp(entry: &Entry) -> String {
        date::Stamp(entry.modified.unwrap()).to_string()
    }

    #[test]
    fn parse_long_reads_lines_of_vsftpd() {
        let entry = parse("-rw-r--r--    1 0        0               6 Nov 21 21:59 a b");
        assert_eq!((entry.kind, entry.name.as_slice()), (EntryKind::File, &b"a b"[..]));
        // The time is a few hours in the future: this is another time zone, not last year.
        assert_eq!(stamp(&entry), "20261121215900");
        assert_eq!((entry.size, entry.links, entry.uid, entry.gid), (Some(6), Some(1), Some(0), Some(0)));
        let entry = parse("drwxr-xr-x    2 1000     1000         4096 Feb 03  2001  sp ");
        assert_eq!((entry.kind, entry.name.as_slice()), (EntryKind::Directory, &b" sp "[..]));
        assert_eq!(stamp(&entry), "20010203000000");
        let entry = parse("lrwxrwxrwx    1 0        0               7 Dec 31 23:59 li -> sub dir");
        assert_eq!(
            (entry.kind, entry.name, entry.target),
            (EntryKind::Symlink, "li".into(), Some("sub dir".into()))
        );
        assert_eq!(entry.modified, Some(1_767_225_540)); // 2025-12-31T23:59
    }

    #[test]
    fn parse_long_reads_lines_of_other_servers() {
        let entry = parse("-rw-rw-r--+  1 John Doe domain users 18446744073709551615 Jan  1 00:00 x -> y");
        assert_eq!((entry.owner.as_deref(), entry.group.as_deref()), (Some("John"), Some("users")));
        assert_eq!((entry.size, entry.name.as_slice()), (Some(u64::MAX), &b"x -> y"[..]));
        let entry = parse("crw-rw-rw- 1 root root 1, 3 Nov 19 10:43 null");
        assert_eq!((entry.kind, entry.size), (EntryKind::CharacterDevice, None));
        assert_eq!((entry.owner.as_deref(), entry.group.as_deref()), (Some("root"), Some("root")));
        let entry = parse("-rwsr-Sr-t. 1 ftp 12 2024-02-29 04:05:06.7 odd");
        assert_eq!(
            (entry.mode, entry.owner.as_deref(), entry.group.as_deref()),
            (Some(0o7745), Some("ftp"), None)
        );
        assert_eq!(stamp(&entry), "20240229040500");
        assert_eq!(stamp(&parse("-rw-r--r-- 1 o g 5 21 Nov 2001 x")), "20011121000000");
        assert_eq!(stamp(&parse("-rw-r--r-- 1 o g 5 Feb 29 12:00 x")), "20240229120000");
        let entry = parse("-rw-r--r-- 1 Mar 12 5 Nov 21 2001 Nov 21 2001");
        assert_eq!((entry.size, entry.name.as_slice()), (Some(5), &b"Nov 21 2001"[..]));
        assert_eq!(long(b"-rw-r--r-- 1 o g 5 Nov 21 10:00 x", None).unwrap().modified, None);
        assert_eq!(long(b"-rw-r--r-- 1 o g 5 Nov 21 10:00 \xff", None).unwrap().name, &b"\xff"[..]);
    }

    #[test]
    fn parse_long_reads_lines_of_windows() {
        let entry = parse("01-10-26  12:34PM                   23 hello  there.txt");
        assert_eq!((entry.kind, entry.size), (EntryKind::File, Some(23)));
        assert_eq!(
            (entry.name.as_slice(), stamp(&entry).as_str()),
            (&b"hello  there.txt"[..], "20260110123400")
        );
        let entry = parse("12-31-1999  12:05AM       <DIR>          a b");
        assert_eq!((entry.kind, entry.name.as_slice()), (EntryKind::Directory, &b"a b"[..]));
        assert_eq!((stamp(&entry).as_str(), entry.size), ("19991231000500", None));
        assert_eq!(stamp(&parse("02-29-96  23:59              0 x")), "19960229235900");
        assert_eq!(parse("01-10-26  12:34PM  5  x").name, " x");
    }

    #[test]
    fn parse_long_of_other_lines_returns_none() {
        for line in [
            "",
            "total 12",
            "drwxr-xr-x",
            "-rw-r--r-- 1 o g 5 Nov 21 10:00",
            "-rw-r--r-- 1 o g 5 Nov 21 10:00 ",
            "-rw-r--r-- 1 o g 5 Nov 32 10:00 x",
            "-rw-r--r-- 1 o g 5 Nov 21 24:00 x",
            "-rw-r--r-- 1 o g x Nov 21 10:00 x",
            "?rw-r--r-- 1 o g 5 Nov 21 10:00 x",
            "-rwxrwxrwz 1 o g 5 Nov 21 10:00 x",
            "01-10-26  12:34PM  <OUT> x",
            "01-10-26  13:34PM  23 x",
            "13-10-26  12:34PM  23 x",
            "01-10-26  12:34PM  23 ",
            "01-10-26  12:34PM  23",
            "01-10-26  12:34PM",
        ] {
            assert_eq!(long(line.as_bytes(), Some(NOW)), None, "{line}");
        }
    }
}
