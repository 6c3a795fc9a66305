//! Globs in paths: `*`, `?`, `[abc]`, `{a,b}`; `**` crosses directories.

use bstr::{BStr, BString, ByteSlice};
use ropewalk_glob::Pattern;

use crate::Entry;
use crate::model::filter::{PatternError, path_pattern};

/// A path with a glob in it, taken apart.
#[derive(Debug)]
pub(crate) struct Glob {
    /// The directory before the first component with a glob; it ends with `/` only if it is the
    /// root.
    pub base: BString,
    /// The components from there on.
    components: Vec<Component>,
}

#[derive(Debug)]
enum Component {
    /// `**`: any number of directories, including none.
    AnyDepth,
    Name(Pattern),
}

/// Whether a path is a match, and whether its directory has to be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub matches: bool,
    pub enter: bool,
}

impl Verdict {
    /// Whether the entry would have to be entered, and cannot be read.
    pub(crate) fn misses(self, entry: &Entry) -> bool {
        self.enter && !self.matches && entry.is_directory() && entry.error.is_some() && !entry.leads_back()
    }
}

/// Whether a path is a glob.
pub(crate) fn is_glob(path: &BStr) -> bool {
    path.find_byteset(b"*?[{").is_some()
}

impl Glob {
    pub(crate) fn new(path: &BStr) -> Result<Self, PatternError> {
        let first = path.find_byteset(b"*?[{").unwrap_or(path.len());
        let cut = path[..first].rfind_byte(b'/');
        let (base, rest): (&[u8], &[u8]) = match cut {
            Some(0) => (b"/", &path[1..]),
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (b".", path),
        };
        let components = rest
            .split_str("/")
            .filter(|component| !component.is_empty())
            .map(|component| match component {
                b"**" => Ok(Component::AnyDepth),
                name => path_pattern(name).map(Component::Name),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { base: base.into(), components })
    }

    /// Judges `path`, relative to the base.
    pub(crate) fn judge(&self, path: &BStr) -> Verdict {
        let names: Vec<&[u8]> = path.split_str("/").collect();
        judge(&self.components, &names)
    }
}

fn judge(components: &[Component], names: &[&[u8]]) -> Verdict {
    match (components.split_first(), names.split_first()) {
        (None, None) => Verdict { matches: true, enter: false },
        (None, Some(_)) => Verdict { matches: false, enter: false },
        (Some(_), None) => {
            // The rest may consist of `**` only, which also matches no directory.
            let empty = components.iter().all(|c| matches!(c, Component::AnyDepth));
            Verdict { matches: empty, enter: true }
        }
        (Some((Component::Name(glob), later)), Some((name, deeper))) => {
            if glob.matches(name) {
                judge(later, deeper)
            } else {
                Verdict { matches: false, enter: false }
            }
        }
        (Some((Component::AnyDepth, later)), Some((_, deeper))) => {
            let (none, one) = (judge(later, names), judge(components, deeper));
            Verdict { matches: none.matches || one.matches, enter: none.enter || one.enter }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(pattern: &str, path: &str) -> (bool, bool) {
        let v = Glob::new(pattern.into()).unwrap().judge(path.into());
        (v.matches, v.enter)
    }

    #[test]
    fn bytes_that_are_no_characters() {
        let judge =
            |pattern: &[u8], path: &[u8]| Glob::new(pattern.into()).unwrap().judge(path.into()).matches;
        assert!(judge(b"\xffa*", b"\xffab") && judge(b"\xff*\xfe", b"\xffa\xfe") && judge(b"*", b"\xff"));
        assert!(!judge(b"\xff*", b"\xfea") && !judge(b"\xff*", "\u{fffd}a".as_bytes()));
    }

    #[test]
    fn splits_at_the_first_glob() {
        assert_eq!(Glob::new("/a/b/*.c".into()).unwrap().base, "/a/b");
        assert_eq!(Glob::new("/*".into()).unwrap().base, "/");
        assert_eq!(Glob::new("*.c".into()).unwrap().base, ".");
        assert_eq!(Glob::new("a/x?/d".into()).unwrap().base, "a");
    }

    #[test]
    fn judges_names_and_directories() {
        assert_eq!(check("/d/*.c", "x.c"), (true, false));
        assert_eq!(check("/d/*.c", "x.h"), (false, false));
        assert_eq!(check("/d/r*/x", "run1"), (false, true));
        assert_eq!(check("/d/r*/x", "run1/x"), (true, false));
        assert_eq!(check("/d/r*/x", "other"), (false, false));
        assert_eq!(check("/d/{a,b}", "b"), (true, false));
    }

    #[test]
    fn any_depth() {
        assert_eq!(check("/d/**/*.c", "x.c"), (true, true));
        assert_eq!(check("/d/**/*.c", "a/b/x.c"), (true, true));
        assert_eq!(check("/d/**/*.c", "a"), (false, true));
    }
}
