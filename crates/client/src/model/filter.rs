//! Selects the files of a tree: include and exclude globs, lists of names, sizes and ages.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use bstr::{BStr, BString, ByteSlice};
use ropewalk_glob::Pattern;
use ropewalk_storage::Kind;

use crate::{Entry, Error, Limits, Options};

/// An invalid glob.
#[derive(Debug, thiserror::Error)]
#[error("bad pattern {pattern:?}: {source}")]
pub struct PatternError {
    pub pattern: String,
    #[source]
    source: ropewalk_glob::PatternError,
}

impl From<PatternError> for Error {
    fn from(error: PatternError) -> Self {
        Self::usage(error.to_string())
    }
}

/// Selects paths of a tree. The last matching pattern decides; without a match, a path is selected
/// unless the first pattern is an include. In addition a path must be in the list, if there is one,
/// and a file within the limits.
pub(crate) struct Filter {
    rules: Vec<Rule>,
    list: Option<List>,
    limits: Limits,
    /// Creation time, in seconds since 1970.
    now: i64,
}

/// The only names that are selected.
struct List {
    names: HashSet<BString>,
    /// Their parent directories.
    above: HashSet<BString>,
}

struct Rule {
    include: bool,
    glob: Pattern,
    /// A pattern without `/` matches names at any depth.
    name_only: bool,
    directory_only: bool,
}

impl Filter {
    pub(crate) fn new(options: &Options) -> Result<Self, PatternError> {
        let rules = options.selection.filters.iter().map(|(include, text)| Rule::new(*include, text));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
            list: options.selection.listed.as_deref().map(List::new),
            limits: options.selection.limits,
            now: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        })
    }

    /// Whether everything is selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.list.is_none() && self.limits == Limits::default()
    }

    /// The names that must exist.
    pub(crate) fn listed(&self) -> Option<&HashSet<BString>> {
        self.list.as_ref().map(|list| &list.names)
    }

    /// Whether an entry with a selected name is selected: a file must be within the limits.
    pub(crate) fn fits(&self, entry: &Entry) -> bool {
        if entry.kind != Kind::File {
            return true;
        }
        let Limits { min_size, max_size, min_age, max_age } = self.limits;
        let size = |within: &dyn Fn(u64) -> bool| entry.size.is_none_or(within);
        let age = |within: &dyn Fn(i64) -> bool| {
            entry.modified.is_none_or(|modified| within(self.now.saturating_sub(modified)))
        };
        let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        min_size.is_none_or(|least| size(&|size| size >= least))
            && max_size.is_none_or(|most| size(&|size| size <= most))
            && min_age.is_none_or(|least| age(&|age| age >= seconds(least)))
            && max_age.is_none_or(|most| age(&|age| age <= seconds(most)))
    }

    /// Whether `path`, relative to the top of the tree, is selected. An excluded directory is not
    /// entered, unless only the lack of an include excludes it: files beneath it may be selected.
    pub(crate) fn passes(&self, path: &BStr, directory: bool) -> bool {
        if !self.list.as_ref().is_none_or(|list| list.passes(path, directory)) {
            return false;
        }
        let last = self.rules.iter().rev().find(|rule| rule.matches(path, directory));
        match (last, self.rules.first()) {
            (Some(rule), _) => rule.include,
            (None, Some(first)) => !first.include || directory,
            (None, None) => true,
        }
    }

    /// Whether a directory of this name, or one above it, is excluded.
    pub(crate) fn hides(&self, path: &BStr) -> bool {
        let ends = path.find_iter("/").chain([path.len()]);
        ends.filter(|&end| end > 0).any(|end| !self.passes(path[..end].as_bstr(), true))
    }
}

impl List {
    fn new(names: &[BString]) -> Self {
        let mut above = HashSet::new();
        for name in names {
            let ends: Vec<usize> = name.find_iter("/").collect();
            // The ancestors of a known directory are known, too.
            for end in ends.into_iter().rev() {
                if !above.insert(name[..end].into()) {
                    break;
                }
            }
        }
        Self { names: names.iter().cloned().collect(), above }
    }

    fn passes(&self, path: &BStr, directory: bool) -> bool {
        let of = |end: usize| self.names.contains(&path[..end]);
        // The source itself may be listed.
        of(0)
            || of(path.len())
            || path.find_iter("/").any(of)
            || directory && self.above.contains(path.as_bytes())
    }
}

impl Rule {
    fn new(include: bool, text: &str) -> Result<Self, PatternError> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        let name_only = !trimmed.contains('/');
        let glob = path_pattern(trimmed.strip_prefix('/').unwrap_or(trimmed).as_bytes())?;
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

pub(crate) fn path_pattern(pattern: &[u8]) -> Result<Pattern, PatternError> {
    Pattern::path(pattern)
        .map_err(|source| PatternError { pattern: pattern.to_str_lossy().into_owned(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn filter(rules: &[(bool, &str)]) -> Filter {
        let filters = rules.iter().map(|(include, glob)| (*include, (*glob).to_owned())).collect();
        Filter::new(&Options::default().with(|o| o.selection.filters = filters)).unwrap()
    }

    #[test]
    fn list_lets_in_its_names_and_the_way_to_them() {
        let listed = ["a/b/f", "a/d", "top"].map(BString::from).to_vec();
        let filters = vec![(false, "*.tmp".to_owned())];
        let f = Filter::new(&Options::default().with(|o| {
            o.selection.listed = Some(listed);
            o.selection.filters = filters;
        }))
        .unwrap();
        for (path, directory) in
            [("a", true), ("a/b", true), ("a/b/f", false), ("a/d", true), ("a/d/x/y", false), ("top", false)]
        {
            assert!(f.passes(path.into(), directory), "{path}");
        }
        for (path, directory) in [
            ("a", false),
            ("a/b/g", false),
            ("b", true),
            ("a/d/x.tmp", false),
            ("to", false),
            ("top2", false),
        ] {
            assert!(!f.passes(path.into(), directory), "{path}");
        }
        assert!(!f.is_empty());
        let all =
            Filter::new(&Options::default().with(|o| o.selection.listed = Some(vec!["".into()]))).unwrap();
        assert!(all.passes("any/thing".into(), false));
    }

    #[test]
    fn limits_are_for_files_and_for_what_is_known_of_them() {
        use std::time::Duration;
        const HOUR: Duration = Duration::from_secs(3600);
        let limits = |limits| Filter::new(&Options::default().with(|o| o.selection.limits = limits)).unwrap();
        let entry = |kind, size, modified| Entry { size, modified, ..Entry::new("f", kind) };
        let f = limits(Limits { min_size: Some(10), max_size: Some(20), ..Limits::default() });
        let sized = |kind, size| f.fits(&entry(kind, size, None));
        assert_eq!([9, 10, 20, 21].map(|size| sized(Kind::File, Some(size))), [false, true, true, false]);
        assert!(
            sized(Kind::File, None) && sized(Kind::Directory, Some(4096)) && sized(Kind::Symlink, Some(3))
        );
        let f = limits(Limits { min_age: Some(HOUR), max_age: Some(24 * HOUR), ..Limits::default() });
        let aged = |age: i64| f.fits(&entry(Kind::File, None, Some(f.now - age)));
        assert_eq!([-10, 0, 3599, 3600, 86_400, 86_401].map(aged), [false, false, false, true, true, false]);
        assert!(f.fits(&entry(Kind::File, None, None)) && !f.is_empty());
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
