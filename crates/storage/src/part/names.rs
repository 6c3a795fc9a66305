//! Names of the temporary files of an upload.

use bstr::{BStr, BString, ByteSlice};
use ropewalk_protocol::path::VirtualPath;
use xxhash_rust::xxh3::xxh3_64;

const PART: &[u8] = b".ropewalk-part";
const JOURNAL: &[u8] = b".ropewalk-journal";
/// The longest name that file systems accept, in bytes.
const LONGEST: usize = 255;
/// The longest stem: a dot is added before it, and the longer of the two suffixes after it.
const LONGEST_STEM: usize = LONGEST - 1 - JOURNAL.len();

/// The path of the part file of `target`: `.NAME.ropewalk-part` in the same directory.
///
/// A name that would be too long is truncated, and a hash is added to keep it unique.
pub fn part_name(target: &VirtualPath) -> VirtualPath {
    beside(target, PART)
}

/// The path of the journal of `target`: `.NAME.ropewalk-journal` in the same directory.
pub fn journal_name(target: &VirtualPath) -> VirtualPath {
    beside(target, JOURNAL)
}

/// The target of the part file with this name, unless the name was truncated; `None` if `part` is
/// not such a name.
pub fn target_of_part(part: &VirtualPath) -> Option<VirtualPath> {
    let stem = part.file_name()?.strip_prefix(b".")?.strip_suffix(PART)?;
    part.parent()?.child(stem).ok()
}

/// Like [`target_of_part`], but also for journals.
pub fn target_of_temporary(place: &VirtualPath) -> Option<VirtualPath> {
    place.parent()?.child(stem_of_temporary(place.file_name()?)?).ok()
}

fn stem_of_temporary(name: &BStr) -> Option<&[u8]> {
    let rest = name.strip_prefix(b".")?;
    rest.strip_suffix(PART).or_else(|| rest.strip_suffix(JOURNAL)).filter(|stem| !stem.is_empty())
}

/// The journal of a part file; `None` if `part` is not the name of a part file.
pub fn journal_of_part(part: &VirtualPath) -> Option<VirtualPath> {
    let stem = part.file_name()?.strip_prefix(b".")?.strip_suffix(PART)?;
    (!stem.is_empty()).then(|| sibling(part, stem, JOURNAL))
}

/// Whether this is the name of a part file or a journal.
pub fn is_temporary_name(name: &BStr) -> bool {
    stem_of_temporary(name).is_some()
}

/// Whether the part file's name is truncated, so that it does not show whether the file system
/// accepts the name itself.
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
    // Not within a UTF-8 character, because some file systems require valid UTF-8.
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
    fn part_and_journal_names_are_in_the_same_directory() {
        let target = path(b"/a/b.dat");
        assert_eq!(part_name(&target), path(b"/a/.b.dat.ropewalk-part"));
        assert_eq!(journal_name(&target), path(b"/a/.b.dat.ropewalk-journal"));
        assert_eq!(journal_of_part(&part_name(&target)), Some(journal_name(&target)));
        assert_eq!(journal_of_part(&target), None);
        assert_eq!(journal_of_part(&path(b"/..ropewalk-part")), None);
    }

    #[test]
    fn part_name_of_long_names_is_unique_and_short_enough() {
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
    fn is_temporary_name_recognises_both_suffixes() {
        assert!(is_temporary_name(".x.ropewalk-part".into()));
        assert!(is_temporary_name(".x.ropewalk-journal".into()));
        assert!(!is_temporary_name("x.ropewalk-part".into()));
        assert!(!is_temporary_name(".ropewalk-part".into()));
    }
}
