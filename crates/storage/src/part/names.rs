//! Names of what stands beside an unfinished file.

use bstr::{BStr, BString, ByteSlice};
use ropewalk_protocol::path::VirtualPath;
use xxhash_rust::xxh3::xxh3_64;

const PART: &[u8] = b".ropewalk-part";
const JOURNAL: &[u8] = b".ropewalk-journal";
/// What file systems take at most.
const LONGEST: usize = 255;
/// Room for the name itself: a dot goes before it, the longer ending after it.
const LONGEST_STEM: usize = LONGEST - 1 - JOURNAL.len();

/// Where the bytes of an unfinished file are: `.NAME.ropewalk-part` beside it.
///
/// A name that would become too long is cut and told apart by a hash.
pub fn part_name(target: &VirtualPath) -> VirtualPath {
    beside(target, PART)
}

/// Where the journal of an unfinished file is: `.NAME.ropewalk-journal` beside it.
pub fn journal_name(target: &VirtualPath) -> VirtualPath {
    beside(target, JOURNAL)
}

/// What the part of this name belongs to, unless the name was cut; `None` where `part` has no such name.
pub fn target_of_part(part: &VirtualPath) -> Option<VirtualPath> {
    let stem = part.file_name()?.strip_prefix(b".")?.strip_suffix(PART)?;
    part.parent()?.child(stem).ok()
}

/// As [`target_of_part`], of journals as well.
pub fn target_of_temporary(place: &VirtualPath) -> Option<VirtualPath> {
    place.parent()?.child(stem_of_temporary(place.file_name()?)?).ok()
}

fn stem_of_temporary(name: &BStr) -> Option<&[u8]> {
    let rest = name.strip_prefix(b".")?;
    rest.strip_suffix(PART).or_else(|| rest.strip_suffix(JOURNAL)).filter(|stem| !stem.is_empty())
}

/// The journal of what is itself a part; `None` where `part` has no such name.
pub fn journal_of_part(part: &VirtualPath) -> Option<VirtualPath> {
    let stem = part.file_name()?.strip_prefix(b".")?.strip_suffix(PART)?;
    (!stem.is_empty()).then(|| sibling(part, stem, JOURNAL))
}

/// True for names of parts and of journals.
pub fn is_temporary_name(name: &BStr) -> bool {
    stem_of_temporary(name).is_some()
}

/// Whether the part's name says nothing of whether the file system takes the name itself.
pub(super) fn is_cut(target: &VirtualPath) -> bool {
    target.file_name().is_some_and(|name| name.len() > LONGEST_STEM)
}

fn beside(target: &VirtualPath, ending: &[u8]) -> VirtualPath {
    let name = target.file_name().unwrap_or_default().as_bytes();
    if !is_cut(target) {
        return sibling(target, name, ending);
    }
    let hash = format!("~{:016x}", xxh3_64(name));
    let mut cut = LONGEST_STEM - hash.len();
    // Not within a character of UTF-8, which some file systems insist on.
    while cut > 0 && name[cut] & 0xc0 == 0x80 {
        cut -= 1;
    }
    sibling(target, &[&name[..cut], hash.as_bytes()].concat(), ending)
}

fn sibling(path: &VirtualPath, stem: &[u8], ending: &[u8]) -> VirtualPath {
    let mut name = BString::from(".");
    name.extend_from_slice(stem);
    name.extend_from_slice(ending);
    let parent = path.parent().unwrap_or_else(VirtualPath::root);
    // The stem came from a path, so it has no `/` and no NUL, and the name is not `.` or `..`.
    parent.child(&name).unwrap_or(parent)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn path(bytes: &[u8]) -> VirtualPath {
        VirtualPath::parse(bytes).unwrap()
    }

    #[test]
    fn names_stand_beside_the_file() {
        let target = path(b"/a/b.dat");
        assert_eq!(part_name(&target), path(b"/a/.b.dat.ropewalk-part"));
        assert_eq!(journal_name(&target), path(b"/a/.b.dat.ropewalk-journal"));
        assert_eq!(journal_of_part(&part_name(&target)), Some(journal_name(&target)));
        assert_eq!(journal_of_part(&target), None);
        assert_eq!(journal_of_part(&path(b"/..ropewalk-part")), None);
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        for fill in ["x", "\u{e9}", "\u{1f600}"] {
            let long = fill.repeat(LONGEST / fill.len() - 1);
            let (one, two) = (path(format!("/d/{long}1").as_bytes()), path(format!("/d/{long}2").as_bytes()));
            assert_ne!(part_name(&one), part_name(&two));
            let journal = journal_name(&one);
            let name = journal.file_name().unwrap();
            assert!(name.len() <= LONGEST, "{}", name.len());
            assert!(name.to_str().is_ok());
            assert_eq!(journal_of_part(&part_name(&one)), Some(journal_name(&one)));
        }
        let longest = path(&[b"/", &[b'y'; LONGEST_STEM][..]].concat());
        assert_eq!(journal_name(&longest).file_name().unwrap().len(), LONGEST);
        assert!(!journal_name(&longest).as_bytes().contains(&b'~'));
    }

    #[test]
    fn temporary_names_are_known() {
        assert!(is_temporary_name(".x.ropewalk-part".into()));
        assert!(is_temporary_name(".x.ropewalk-journal".into()));
        assert!(!is_temporary_name("x.ropewalk-part".into()));
        assert!(!is_temporary_name(".ropewalk-part".into()));
    }
}
