//! Include and exclude globs.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use bstr::{BStr, ByteSlice};
use globset::{GlobBuilder, GlobMatcher};

/// A glob that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("bad pattern {pattern:?}: {source}")]
pub struct PatternError {
    pub pattern: String,
    #[source]
    source: globset::Error,
}

/// Which paths of a tree take part. The last pattern that matches decides; where none does, all take part unless
/// the first pattern is an include.
pub(crate) struct Filter {
    rules: Vec<Rule>,
}

struct Rule {
    include: bool,
    glob: Pattern,
    /// Without `/` a pattern is for names at any depth.
    name_only: bool,
    directory_only: bool,
}

impl Filter {
    pub(crate) fn new(rules: &[(bool, String)]) -> Result<Self, PatternError> {
        let rules =
            rules.iter().map(|(include, text)| Rule::new(*include, text)).collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }

    /// It leaves nothing out.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether `path`, relative to the top of the tree, takes part. A directory that does not is not entered, except
    /// where only includes could have let it in: files beneath it still may.
    pub(crate) fn passes(&self, path: &BStr, directory: bool) -> bool {
        let last = self.rules.iter().rev().find(|rule| rule.matches(path, directory));
        match (last, self.rules.first()) {
            (Some(rule), _) => rule.include,
            (None, Some(first)) => !first.include || directory,
            (None, None) => true,
        }
    }

    /// Whether a directory of this name, or one above it, is left out.
    pub(crate) fn hides(&self, path: &BStr) -> bool {
        let ends = path.find_iter("/").chain([path.len()]);
        ends.filter(|&end| end > 0).any(|end| !self.passes(path[..end].as_bstr(), true))
    }
}

impl Rule {
    fn new(include: bool, text: &str) -> Result<Self, PatternError> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        let name_only = !trimmed.contains('/');
        let glob = Pattern::new(trimmed.strip_prefix('/').unwrap_or(trimmed).as_bytes())?;
        Ok(Self { include, glob, name_only, directory_only: text.ends_with('/') })
    }

    fn matches(&self, path: &BStr, directory: bool) -> bool {
        if self.directory_only && !directory {
            return false;
        }
        let subject = match path.rfind_byte(b'/') {
            Some(at) if self.name_only => path[at + 1..].as_bstr(),
            _ => path,
        };
        self.glob.matches(subject)
    }
}

/// A glob in which `*` and `?` do not match `/`, `**` does.
#[derive(Debug)]
pub(crate) struct Pattern {
    glob: GlobMatcher,
    /// It has bytes that are part of no character.
    stray: bool,
}

impl Pattern {
    pub(crate) fn new(pattern: &[u8]) -> Result<Self, PatternError> {
        let text = as_text(pattern);
        let glob = GlobBuilder::new(&text).literal_separator(true).backslash_escape(true).build();
        let glob = glob
            .map_err(|source| PatternError { pattern: pattern.to_str_lossy().into_owned(), source })?
            .compile_matcher();
        Ok(Self { glob, stray: matches!(text, Cow::Owned(_)) })
    }

    pub(crate) fn matches(&self, name: &BStr) -> bool {
        if self.stray {
            self.glob.is_match(&*as_text(name))
        } else {
            self.glob.is_match(OsStr::from_bytes(name))
        }
    }
}

/// Globs are of characters, names of bytes: in a pattern that has some that are part of no character, and in the names that it is
/// to match, each of those is one of its own, of those for private use, from here on.
const STRAY: u32 = 0x10_FF00;

fn as_text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = bytes.to_str() {
        return text.into();
    }
    let stray = |byte: &u8| char::from_u32(STRAY + u32::from(*byte)).unwrap_or(char::REPLACEMENT_CHARACTER);
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(stray));
    }
    text.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn filter(rules: &[(bool, &str)]) -> Filter {
        Filter::new(&rules.iter().map(|(i, p)| (*i, (*p).to_owned())).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn last_match_decides() {
        let f = filter(&[(false, "*.tmp"), (true, "keep.tmp")]);
        assert!(!f.passes("a/b.tmp".into(), false));
        assert!(f.passes("a/keep.tmp".into(), false));
        assert!(f.passes("a/b".into(), false));
    }

    #[test]
    fn includes_first_leave_the_rest_out_but_enter_directories() {
        let f = filter(&[(true, "*.root")]);
        assert!(f.passes("d/x.root".into(), false));
        assert!(!f.passes("d/x.txt".into(), false));
        assert!(f.passes("d".into(), true));
    }

    #[test]
    fn slash_anchors_and_trailing_slash_means_directories() {
        let f = filter(&[(false, "/top.txt"), (false, "cache/"), (false, "a/**")]);
        assert!(f.passes("x/top.txt".into(), false));
        assert!(!f.passes("x/cache".into(), true));
        assert!(f.passes("x/cache".into(), false));
        assert!(!f.passes("a/b/c".into(), false));
    }

    #[test]
    fn what_is_beneath_a_directory_that_is_left_out_is_hidden() {
        let f = filter(&[(false, "/backup")]);
        assert!(f.hides("backup".into()) && f.hides("backup/sub/d".into()));
        assert!(!f.hides("".into()) && !f.hides("d/backup".into()));
    }

    #[test]
    fn raw_bytes() {
        let f = filter(&[(false, "*.dat")]);
        assert!(!f.passes(b"\xff\xfe.dat".as_bstr(), false));
        for (pattern, matched) in [("\u{fffd}*", false), ("*.dat", true), ("?*at", true), ("??.dat", true)] {
            let f = filter(&[(false, pattern)]);
            assert_eq!(f.passes(b"\xff\xfe.dat".as_bstr(), false), !matched, "{pattern}");
        }
    }
}
