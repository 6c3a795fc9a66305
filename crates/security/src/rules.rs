//! Path rules, as in GCT's `-restrict-paths` and `SITE RESTRICT`.
//!
//! [`Rules`] maps between names, which clients see, and places, which are paths within the
//! account's root. All functions only compute on paths; they do not look at the file system.

use bstr::{BString, ByteSlice};
use ropewalk_glob::{LONGEST_PATTERN, Pattern, is_glob};
use ropewalk_protocol::path::{InvalidPath, VirtualPath};

/// An operation on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Create, change or remove it.
    Write,
    /// Create it where nothing exists yet. Rules treat this as `Write`.
    Create,
    /// Create a directory. Rules treat this as `Write`.
    MakeDirectory,
    /// See its name and attributes, and the entries of a directory.
    List,
}

impl Access {
    /// Whether the operation changes something.
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Create | Self::MakeDirectory)
    }
}

/// A list of rules `[R][W][N]path`, separated by commas.
///
/// Without letters a rule means `RW`; `N` means no access. A rule applies to its path and
/// everything beneath. The rule that matches the longest part of a path decides, and a path that no
/// rule matches is closed. `~` at the beginning is the home directory; `*`, `?` and `[...]` match
/// within one component. The directories above an open path can be listed, and show only entries
/// that lead to an open path. An empty list permits everything.
///
/// A rule `path:alias` gives the place `path` the name `alias` and no other: rules apply to names,
/// and sessions use only this name. If something exists at the place whose path equals the alias,
/// it has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    aliases: Vec<Alias>,
}

/// The file or directory at `place` is called `name`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alias {
    place: VirtualPath,
    name: VirtualPath,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    components: Vec<Pattern>,
    /// The length of its path without slashes.
    letters: usize,
    read: bool,
    write: bool,
}

/// A rule that cannot be parsed, or conflicts with another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRule {
    #[error("path rule {0:?}: expected letters R, W or N and a path that begins with / or ~")]
    Form(BString),
    #[error("path rule {0:?}: N stands alone")]
    Letters(BString),
    #[error("path rule {0:?}: a component is longer than {LONGEST_PATTERN} bytes")]
    Long(BString),
    #[error("path rule {0:?}: patterns have no alias")]
    Pattern(BString),
    #[error("path rule {0:?}: the path has an alias already, or the alias is that of another path")]
    Twice(BString),
    #[error("path rule {rule:?}: {source}")]
    Path { rule: BString, source: InvalidPath },
}

impl Rules {
    /// Parses a list of rules; `~` stands for `home`.
    ///
    /// # Errors
    /// A rule has no path that begins with `/` or `~`, or has letters other than R, W, N; a pattern
    /// has an alias; two paths have the same alias, or one path has two.
    pub fn parse(list: &[u8], home: &VirtualPath) -> Result<Self, InvalidRule> {
        let mut all = Self::default();
        for text in list.split_str(",").map(|r| r.trim()).filter(|r| !r.is_empty()) {
            let (rule, alias) = Rule::parse(text, home)?;
            all.rules.push(rule);
            if let Some(alias) = alias {
                let same = |other: &Alias| other.place == alias.place || other.name == alias.name;
                if all.aliases.iter().any(same) {
                    return Err(InvalidRule::Twice(text.into()));
                }
                all.aliases.push(alias);
            }
        }
        Ok(all)
    }

    /// Whether there are no restrictions.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether some paths have aliases.
    pub fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    /// The place that has this name; `None` if no place has it.
    pub fn place(&self, name: &VirtualPath) -> Option<VirtualPath> {
        let place = self.place_of(name);
        (self.name(&place).as_ref() == Some(name)).then_some(place)
    }

    fn place_of(&self, name: &VirtualPath) -> VirtualPath {
        let above = self.aliases.iter().filter_map(|alias| Some((alias, name.relative_to(&alias.name)?)));
        let alias = above.max_by_key(|(alias, _)| alias.name.components().count());
        alias.map_or_else(|| name.clone(), |(alias, rest)| rest.beneath(&alias.place))
    }

    /// The name of a place; `None` if it has none.
    pub fn name(&self, place: &VirtualPath) -> Option<VirtualPath> {
        if self.aliases.is_empty() {
            return Some(place.clone());
        }
        let above = self.aliases.iter().filter_map(|alias| Some((alias, place.relative_to(&alias.place)?)));
        let alias = above.max_by_key(|(alias, _)| alias.place.components().count());
        let name = alias.map_or_else(|| place.clone(), |(alias, rest)| rest.beneath(&alias.name));
        // Another alias may cover this name.
        (self.place_of(&name) == *place).then_some(name)
    }

    /// Whether something beneath the place has a name elsewhere, or is covered by an alias.
    fn holds_aliases(&self, place: &VirtualPath, name: &VirtualPath) -> bool {
        let beneath = |path: &VirtualPath, top: &VirtualPath| path != top && path.starts_with(top);
        self.aliases.iter().any(|alias| beneath(&alias.place, place) || beneath(&alias.name, name))
    }

    /// Whether the operation is permitted at the place.
    pub fn allow(&self, place: &VirtualPath, access: Access) -> bool {
        if self.rules.is_empty() {
            return true;
        }
        let Some(name) = self.name(place) else { return false };
        let components: Vec<&[u8]> = name.components().map(|c| &**c).collect();
        let (read, write) = self.rights(&components);
        match access {
            Access::Read => read,
            Access::Write | Access::Create | Access::MakeDirectory => write,
            Access::List => read || write || self.leads_on(&components),
        }
    }

    /// Whether the place and everything beneath it may be written, so that it may be moved or
    /// removed as a whole.
    pub fn allow_tree(&self, place: &VirtualPath) -> bool {
        self.allow(place, Access::Write) && self.no_rule_beneath(place, |rule| !rule.write)
    }

    /// Whether the place and everything beneath it may be read.
    pub fn allow_reading_tree(&self, place: &VirtualPath) -> bool {
        self.allow(place, Access::Read) && self.no_rule_beneath(place, |rule| !rule.read)
    }

    /// Whether neither the place nor anything beneath it may be read.
    pub fn hide_tree(&self, place: &VirtualPath) -> bool {
        !self.allow(place, Access::Read) && self.no_rule_beneath(place, |rule| rule.read)
    }

    /// Whether no rule for something beneath the place satisfies `such`. Returns false if aliases
    /// move or cover something beneath the place, because any rule might apply to it then.
    fn no_rule_beneath(&self, place: &VirtualPath, such: impl Fn(&Rule) -> bool) -> bool {
        let Some(name) = self.name(place) else { return false };
        let components: Vec<&[u8]> = name.components().map(|c| &**c).collect();
        !self.holds_aliases(place, &name)
            && !self.rules.iter().any(|rule| such(rule) && rule.is_beneath(&components))
    }

    /// The rights (read, write) of the rule with the longest match.
    fn rights(&self, path: &[&[u8]]) -> (bool, bool) {
        let matching = self.rules.iter().filter(|rule| rule.covers(path));
        // If two rules match equally many components, the one with more letters is more specific;
        // after that the later one decides.
        let best = matching.max_by_key(|rule| (rule.components.len(), rule.letters));
        best.map_or((false, false), |rule| (rule.read, rule.write))
    }

    /// Whether something beneath the path may be open.
    fn leads_on(&self, path: &[&[u8]]) -> bool {
        self.rules.iter().any(|rule| (rule.read || rule.write) && rule.is_beneath(path))
    }
}

impl Rule {
    /// Returns the rule, and its alias if it has one.
    fn parse(rule: &[u8], home: &VirtualPath) -> Result<(Self, Option<Alias>), InvalidRule> {
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
        let resolve = |path: &[u8]| match path.strip_prefix(b"~") {
            None => VirtualPath::parse(path).map_err(invalid),
            Some(b"") => Ok(home.clone()),
            Some(rest @ [b'/', ..]) => home.join(&[b".", rest].concat()).map_err(invalid),
            Some(_) => Err(InvalidRule::Form(rule.into())),
        };
        let colon = path.rfind(":/").max(path.rfind(":~"));
        let (name, alias) = match colon {
            None => (resolve(path)?, None),
            Some(at) => {
                if is_glob(path) {
                    return Err(InvalidRule::Pattern(rule.into()));
                }
                let (place, name) = (resolve(&path[..at])?, resolve(&path[at + 1..])?);
                (name.clone(), Some(Alias { place, name }))
            }
        };
        // No file name is this long, and matching such a pattern against every entry of a directory
        // would be slow.
        if name.components().any(|component| component.len() > LONGEST_PATTERN) {
            return Err(InvalidRule::Long(rule.into()));
        }
        let letters = name.components().map(|component| component.len()).sum();
        let components = name.components().map(|component| Pattern::shell(component)).collect();
        Ok((Self { components, letters, read, write }, alias))
    }

    /// Whether the rule's path is this path or one above it.
    fn covers(&self, path: &[&[u8]]) -> bool {
        self.components.len() <= path.len() && self.matches(path)
    }

    /// Whether the rule's path is beneath this path.
    fn is_beneath(&self, path: &[&[u8]]) -> bool {
        self.components.len() > path.len() && self.matches(path)
    }

    /// Whether all components that both have match.
    fn matches(&self, path: &[&[u8]]) -> bool {
        self.components.iter().zip(path).all(|(pattern, name)| pattern.matches(name))
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
    fn allow_several_matches_uses_longest() {
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
    fn list_directory_above_open_path_is_allowed() {
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
    fn allow_write_only_rule_refuses_reading() {
        let rules = rules("W~/drop, R~/pub");
        assert_eq!(rights(&rules, "/home/ann/drop/x"), "wl");
        assert_eq!(rights(&rules, "/home/ann/pub"), "rl");
        assert_eq!(rights(&rules, "/home/ann"), "l");
        assert_eq!(rights(&rules, "/home/bob"), "");
    }

    #[test]
    fn allow_empty_list_permits_everything() {
        assert_eq!(rights(&rules(""), "/x"), "rwl");
    }

    #[test]
    fn allow_matches_of_equal_length_uses_more_letters() {
        let rules = rules("N/data/secret,RW/data/*");
        assert_eq!(rights(&rules, "/data/secret/x"), "");
        assert_eq!(rights(&rules, "/data/public/x"), "rwl");
    }

    #[test]
    fn allow_tree_with_closed_path_beneath_refuses() {
        let rules = rules("RW/data,N/data/a/private,R/data/b/*/x");
        assert!(rules.allow_tree(&path("/data/c")));
        assert!(rules.allow_tree(&path("/data/a/other")));
        assert!(!rules.allow_tree(&path("/data/a")));
        assert!(!rules.allow_tree(&path("/data/b/any")));
        assert!(!rules.allow_tree(&path("/")));
    }

    #[test]
    fn allow_reading_tree_with_unreadable_path_beneath_refuses() {
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
    fn place_with_alias_has_no_other_name() {
        let rules = rules("R/srv/big:/data,RW/tmp,W~/in:/data/in");
        let place = |name| rules.place(&path(name)).map(|place| place.to_string());
        assert_eq!(place("/data"), Some("/srv/big".into()));
        assert_eq!(place("/data/x/y"), Some("/srv/big/x/y".into()));
        assert_eq!(place("/data/in/x"), Some("/home/ann/in/x".into()));
        assert_eq!(place("/database"), Some("/database".into()));
        for unknown in ["/srv/big", "/srv/big/x", "/home/ann/in/x"] {
            assert_eq!(place(unknown), None, "{unknown}");
        }
        let name = |place| rules.name(&path(place)).map(|name| name.to_string());
        assert_eq!(name("/srv/big/x"), Some("/data/x".into()));
        // Places that an alias covers have no name.
        assert_eq!((name("/data"), name("/data/x"), name("/srv/big/in")), (None, None, None));
        assert_eq!(rights(&rules, "/srv/big/x"), "rl");
        assert_eq!(rights(&rules, "/home/ann/in/x"), "wl");
        for closed in ["/data", "/data/x", "/srv/big/in/x", "/srv", "/home", "/etc"] {
            assert_eq!(rights(&rules, closed), "", "{closed}");
        }
        assert_eq!((rights(&rules, "/"), rights(&rules, "/tmp/x")), ("l".into(), "rwl".into()));
    }

    #[test]
    fn allow_tree_with_alias_beneath_refuses() {
        let rules = rules("RW/,R/a/b:/c");
        assert!(!rules.allow_tree(&path("/a")) && rules.allow_tree(&path("/a/c")));
        assert!(!rules.allow_tree(&path("/a/b")) && !rules.allow_tree(&path("/c")));
        assert!(!rules.allow_reading_tree(&path("/a")) && rules.allow_reading_tree(&path("/a/b/x")));
        assert!(!rules.hide_tree(&path("/a")) && !rules.hide_tree(&path("/c")));
        // A covered file would become visible if its directory were moved.
        let covering = self::rules("RW/,RW/in:/x/in");
        assert!(!covering.allow_tree(&path("/x")) && !covering.allow_reading_tree(&path("/x")));
        assert!(covering.allow_tree(&path("/in")) && covering.allow_tree(&path("/x/y")));
    }

    #[test]
    fn alias_of_root_hides_other_places() {
        let rules = rules("/srv/data:/");
        assert_eq!(rules.place(&path("/x")).unwrap().to_string(), "/srv/data/x");
        assert_eq!(
            (rights(&rules, "/srv/data/x"), rights(&rules, "/srv"), rights(&rules, "/")),
            ("rwl".into(), String::new(), String::new())
        );
    }

    #[test]
    fn parse_invalid_rules_fails() {
        let home = VirtualPath::root();
        for text in ["/a*:/b", "/a:/b?", "/a:/b,/a:/c", "/a:/c,/b:/c", "/a:~bob", ":/a"] {
            assert!(Rules::parse(text.as_bytes(), &home).is_err(), "{text:?}");
        }
        for text in ["data", "X/data", "RN/data", "R", "~bob", "R/da\0ta"] {
            assert!(Rules::parse(text.as_bytes(), &home).is_err(), "{text:?}");
        }
        assert!(Rules::parse(format!("/*[{}]", "a".repeat(300)).as_bytes(), &home).is_err());
    }

    proptest! {
        #[test]
        fn parse_any_bytes_never_panics(list: Vec<u8>, at: Vec<u8>) {
            let home = VirtualPath::root();
            if let (Ok(rules), Ok(at)) = (Rules::parse(&list, &home), VirtualPath::parse(&at)) {
                rules.allow(&at, Access::List);
            }
        }

        /// Names and places correspond one to one: different names have different places.
        #[test]
        fn name_and_place_are_inverse(
            list in "(/[abc]{1}(/[abc]{1}){0,2}:/[abc]{1}(/[abc]{1}){0,2},){0,3}/",
            at in "(/[abc]{1}){1,4}", other in "(/[abc]{1}){1,4}"
        ) {
            if let Ok(rules) = Rules::parse(list.as_bytes(), &VirtualPath::root()) {
                let (at, other) = (path(&at), path(&other));
                if let Some(place) = rules.place(&at) {
                    prop_assert_eq!(rules.name(&place), Some(at.clone()));
                    prop_assert!(at == other || rules.place(&other) != Some(place));
                }
                if let Some(name) = rules.name(&at) {
                    prop_assert_eq!(rules.place(&name), Some(at.clone()));
                } else {
                    prop_assert!(!rules.allow(&at, Access::List) && !rules.allow_tree(&at));
                }
            }
        }

        /// A tree that may be moved, removed or read as a whole contains nothing with an alias or
        /// without a name.
        #[test]
        fn tree_permitted_as_a_whole_has_no_alias_beneath(
            list in "(/[abc]{1}(/[abc]{1}){0,2}:/[abc]{1}(/[abc]{1}){0,2},){0,3}/",
            at in "(/[abc]{1}){1,2}", beneath in "(/[abc]{1}){1,3}"
        ) {
            if let Ok(rules) = Rules::parse(list.as_bytes(), &VirtualPath::root()) {
                let (at, beneath) = (path(&at), path(&beneath));
                if rules.allow_tree(&at) || rules.allow_reading_tree(&at) || rules.hide_tree(&at) {
                    let expected = rules.name(&at).map(|name| beneath.beneath(&name));
                    prop_assert_eq!(rules.name(&beneath.beneath(&at)), expected);
                }
            }
        }

        /// A path that may be read or written can be listed, and so can all directories above it.
        #[test]
        fn list_readable_path_is_allowed(list in "([RWN]{0,1}/[ab*]{1,2}(/[ab]{1,2}){0,2},){0,4}", at in "(/[ab]{1,2}){1,4}") {
            if let Ok(rules) = Rules::parse(list.as_bytes(), &VirtualPath::root()) {
                let at = path(&at);
                let rule_paths_open = rules.allow(&at, Access::Read) || rules.allow(&at, Access::Write);
                prop_assert!(!rule_paths_open || rules.allow(&at, Access::List));
            }
        }
    }
}
