//! Path rules, as GCT's `-restrict-paths` and `SITE RESTRICT` have them.

use bstr::{BString, ByteSlice};
use ropewalk_protocol::path::{InvalidPath, VirtualPath};

use crate::glob::{LONGEST_PATTERN, glob};

/// What somebody wants to do with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Make, change or remove it.
    Write,
    /// Make it where there is nothing yet. Rules know no difference to `Write`.
    Create,
    /// As `Create`, a directory.
    MakeDirectory,
    /// See its name and attributes, or its entries where it is a directory.
    List,
}

impl Access {
    /// Something is changed.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Create | Self::MakeDirectory)
    }
}

/// A list of rules `[R][W][N]path`, separated by commas.
///
/// No letter is `RW`; `N` is no access. A rule holds for its path and everything beneath; the one that matches the
/// longest part of a path decides, and a path that none matches is closed. `~` at the beginning is the home
/// directory; `*`, `?` and `[...]` match within one component. The directories above an open path can be listed,
/// and show only what leads to one. An empty list permits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    components: Vec<BString>,
    read: bool,
    write: bool,
}

/// A rule that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRule {
    #[error("path rule {0:?}: expected letters R, W or N and a path that begins with / or ~")]
    Form(BString),
    #[error("path rule {0:?}: N stands alone")]
    Letters(BString),
    #[error("path rule {0:?}: a component is longer than {LONGEST_PATTERN} bytes")]
    Long(BString),
    #[error("path rule {rule:?}: {source}")]
    Path { rule: BString, source: InvalidPath },
}

impl Rules {
    /// `home` is what `~` stands for.
    ///
    /// # Errors
    /// A rule without a path that begins with `/` or `~`, or with other letters than R, W, N.
    pub fn parse(list: &[u8], home: &VirtualPath) -> Result<Self, InvalidRule> {
        let rules = list.split_str(",").map(|r| r.trim()).filter(|r| !r.is_empty());
        rules.map(|rule| Rule::parse(rule, home)).collect::<Result<_, _>>().map(Self)
    }

    /// True where nothing is restricted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the path may be used so.
    pub fn allow(&self, path: &VirtualPath, access: Access) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let components: Vec<&[u8]> = path.components().map(|c| &**c).collect();
        let (read, write) = self.rights(&components);
        match access {
            Access::Read => read,
            Access::Write | Access::Create | Access::MakeDirectory => write,
            Access::List => read || write || self.leads_on(&components),
        }
    }

    /// Whether the path and everything beneath it may be written: moved or removed as a whole.
    pub fn allow_tree(&self, path: &VirtualPath) -> bool {
        if !self.allow(path, Access::Write) {
            return false;
        }
        let components: Vec<&[u8]> = path.components().map(|c| &**c).collect();
        !self.0.iter().any(|rule| !rule.write && rule.is_beneath(&components))
    }

    /// Whether the path and everything beneath it may be read.
    pub fn allow_reading_tree(&self, path: &VirtualPath) -> bool {
        let components: Vec<&[u8]> = path.components().map(|c| &**c).collect();
        self.allow(path, Access::Read)
            && !self.0.iter().any(|rule| !rule.read && rule.is_beneath(&components))
    }

    /// Whether neither the path nor anything beneath it may be read.
    pub fn hide_tree(&self, path: &VirtualPath) -> bool {
        let components: Vec<&[u8]> = path.components().map(|c| &**c).collect();
        !self.allow(path, Access::Read)
            && !self.0.iter().any(|rule| rule.read && rule.is_beneath(&components))
    }

    /// Rights that the rule with the longest match gives.
    fn rights(&self, path: &[&[u8]]) -> (bool, bool) {
        let matching = self.0.iter().filter(|rule| rule.covers(path));
        // Of two patterns that match as much, the one with more letters says more; then the later one.
        let best = matching.max_by_key(|rule| (rule.components.len(), rule.letters()));
        best.map_or((false, false), |rule| (rule.read, rule.write))
    }

    /// Whether something beneath the path may be open.
    fn leads_on(&self, path: &[&[u8]]) -> bool {
        self.0.iter().any(|rule| (rule.read || rule.write) && rule.is_beneath(path))
    }
}

impl Rule {
    fn parse(rule: &[u8], home: &VirtualPath) -> Result<Self, InvalidRule> {
        let at = rule.find_byteset(b"/~").ok_or_else(|| InvalidRule::Form(rule.into()))?;
        let (letters, path) = rule.split_at(at);
        let (mut read, mut write, mut none) = (false, false, false);
        for letter in letters {
            match letter {
                b'R' | b'r' => read = true,
                b'W' | b'w' => write = true,
                b'N' | b'n' => none = true,
                _ => return Err(InvalidRule::Form(rule.into())),
            }
        }
        if none && (read || write) {
            return Err(InvalidRule::Letters(rule.into()));
        }
        if letters.is_empty() {
            (read, write) = (true, true);
        }
        let invalid = |source| InvalidRule::Path { rule: rule.into(), source };
        let path = match path.strip_prefix(b"~") {
            None => VirtualPath::parse(path).map_err(invalid)?,
            Some(b"") => home.clone(),
            Some(rest @ [b'/', ..]) => home.join(&[b".", rest].concat()).map_err(invalid)?,
            Some(_) => return Err(InvalidRule::Form(rule.into())),
        };
        // No name is so long, and to match such a pattern against every entry of a directory takes its time.
        if path.components().any(|component| component.len() > LONGEST_PATTERN) {
            return Err(InvalidRule::Long(rule.into()));
        }
        Ok(Self { components: path.components().map(Into::into).collect(), read, write })
    }

    /// The rule's path is this path or one above it.
    fn covers(&self, path: &[&[u8]]) -> bool {
        self.components.len() <= path.len() && self.components.iter().zip(path).all(|(p, n)| glob(p, n))
    }

    /// The rule's path is beneath this path.
    fn is_beneath(&self, path: &[&[u8]]) -> bool {
        self.components.len() > path.len() && self.components.iter().zip(path).all(|(p, n)| glob(p, n))
    }

    fn letters(&self) -> usize {
        self.components.iter().map(|c| c.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> VirtualPath {
        VirtualPath::parse(text.as_bytes()).unwrap()
    }

    fn rules(text: &str) -> Rules {
        Rules::parse(text.as_bytes(), &path("/home/ann")).unwrap()
    }

    fn rights(rules: &Rules, at: &str) -> String {
        [(Access::Read, 'r'), (Access::Write, 'w'), (Access::List, 'l')]
            .into_iter()
            .filter(|(access, _)| rules.allow(&path(at), *access))
            .map(|(_, letter)| letter)
            .collect()
    }

    #[test]
    fn the_longest_match_decides() {
        let rules = rules("R/data,RW~,N/data/private,/data/private/open");
        assert_eq!(rights(&rules, "/data/x"), "rl");
        assert_eq!(rights(&rules, "/data"), "rl");
        assert_eq!(rights(&rules, "/home/ann/a/b"), "rwl");
        assert_eq!(rights(&rules, "/data/private/x"), "");
        assert_eq!(rights(&rules, "/data/private/open/x"), "rwl");
        assert_eq!(rights(&rules, "/etc"), "");
        assert_eq!(rights(&rules, "/database"), "");
    }

    #[test]
    fn what_leads_to_an_open_path_can_be_listed() {
        let rules = rules("R/a/*/c,N/a/secret");
        assert_eq!(rights(&rules, "/"), "l");
        assert_eq!(rights(&rules, "/a"), "l");
        assert_eq!(rights(&rules, "/a/b"), "l");
        assert_eq!(rights(&rules, "/a/b/c"), "rl");
        assert_eq!(rights(&rules, "/a/b/d"), "");
        assert_eq!(rights(&rules, "/b"), "");
        assert_eq!(rights(&self::rules("N/a"), "/"), "");
    }

    #[test]
    fn write_only_and_home() {
        let rules = rules("W~/drop, R~/pub");
        assert_eq!(rights(&rules, "/home/ann/drop/x"), "wl");
        assert_eq!(rights(&rules, "/home/ann/pub"), "rl");
        assert_eq!(rights(&rules, "/home/ann"), "l");
        assert_eq!(rights(&rules, "/home/bob"), "");
    }

    #[test]
    fn an_empty_list_permits_everything() {
        assert_eq!(rights(&rules(""), "/x"), "rwl");
    }

    #[test]
    fn equal_lengths() {
        let rules = rules("N/data/secret,RW/data/*");
        assert_eq!(rights(&rules, "/data/secret/x"), "");
        assert_eq!(rights(&rules, "/data/public/x"), "rwl");
    }

    #[test]
    fn trees() {
        let rules = rules("RW/data,N/data/a/private,R/data/b/*/x");
        assert!(rules.allow_tree(&path("/data/c")));
        assert!(rules.allow_tree(&path("/data/a/other")));
        assert!(!rules.allow_tree(&path("/data/a")));
        assert!(!rules.allow_tree(&path("/data/b/any")));
        assert!(!rules.allow_tree(&path("/")));
    }

    #[test]
    fn trees_to_read() {
        let rules = rules("RW/data,W/data/in,W/drop,R/drop/out/x");
        let reads = |at| (rules.allow_reading_tree(&path(at)), rules.hide_tree(&path(at)));
        assert_eq!(reads("/data/a"), (true, false));
        assert_eq!(reads("/data"), (false, false));
        assert_eq!(reads("/data/in/a"), (false, true));
        assert_eq!(reads("/drop/a"), (false, true));
        assert_eq!(reads("/drop"), (false, false));
        assert_eq!(reads("/drop/out"), (false, false));
        assert!(Rules::default().allow_reading_tree(&path("/")) && !Rules::default().hide_tree(&path("/")));
    }

    #[test]
    fn nonsense_is_refused() {
        let home = VirtualPath::root();
        for text in ["data", "X/data", "RN/data", "R", "~bob", "R/da\0ta"] {
            assert!(Rules::parse(text.as_bytes(), &home).is_err(), "{text:?}");
        }
        assert!(Rules::parse(format!("/*[{}]", "a".repeat(300)).as_bytes(), &home).is_err());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(list: Vec<u8>, at: Vec<u8>) {
            let home = VirtualPath::root();
            if let (Ok(rules), Ok(at)) = (Rules::parse(&list, &home), VirtualPath::parse(&at)) {
                rules.allow(&at, Access::List);
            }
        }

        /// What may be read or written can be listed, and so can everything above it.
        #[test]
        fn open_paths_can_be_reached(list in "([RWN]{0,1}/[ab*]{1,2}(/[ab]{1,2}){0,2},){0,4}", at in "(/[ab]{1,2}){1,4}") {
            if let Ok(rules) = Rules::parse(list.as_bytes(), &VirtualPath::root()) {
                let at = path(&at);
                let rule_paths_open = rules.allow(&at, Access::Read) || rules.allow(&at, Access::Write);
                prop_assert!(!rule_paths_open || rules.allow(&at, Access::List));
            }
        }
    }
}
