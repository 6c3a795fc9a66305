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
///
/// With `path:alias` what is at `path` has the name `alias`, and no other: rules, which are about names, and sessions know it
/// by that alone. What is in the place of an alias itself has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
    aliases: Vec<Alias>,
}

/// `place` is called `name`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Alias {
    place: VirtualPath,
    name: VirtualPath,
}

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
    #[error("path rule {0:?}: patterns have no alias")]
    Pattern(BString),
    #[error("path rule {0:?}: the path has an alias already, or the alias is that of another path")]
    Twice(BString),
    #[error("path rule {rule:?}: {source}")]
    Path { rule: BString, source: InvalidPath },
}

impl Rules {
    /// `home` is what `~` stands for.
    ///
    /// # Errors
    /// A rule without a path that begins with `/` or `~`, or with other letters than R, W, N; an alias of a pattern, of two
    /// paths, or two of one.
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

    /// True where nothing is restricted.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether some paths have other names.
    pub fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    /// The place that has this name; `None` where it is called otherwise.
    pub fn place(&self, name: &VirtualPath) -> Option<VirtualPath> {
        let place = self.place_of(name);
        (self.name(&place).as_ref() == Some(name)).then_some(place)
    }

    fn place_of(&self, name: &VirtualPath) -> VirtualPath {
        let above = self.aliases.iter().filter_map(|alias| Some((alias, name.relative_to(&alias.name)?)));
        let alias = above.max_by_key(|(alias, _)| alias.name.components().count());
        alias.map_or_else(|| name.clone(), |(alias, rest)| rest.beneath(&alias.place))
    }

    /// What a place is called; `None` where it has no name.
    pub fn name(&self, place: &VirtualPath) -> Option<VirtualPath> {
        if self.aliases.is_empty() {
            return Some(place.clone());
        }
        let above = self.aliases.iter().filter_map(|alias| Some((alias, place.relative_to(&alias.place)?)));
        let alias = above.max_by_key(|(alias, _)| alias.place.components().count());
        let name = alias.map_or_else(|| place.clone(), |(alias, rest)| rest.beneath(&alias.name));
        // Another alias may lie over it.
        (self.place_of(&name) == *place).then_some(name)
    }

    /// Whether something beneath the place is called as if it were elsewhere, or is covered by what is.
    fn holds_aliases(&self, place: &VirtualPath, name: &VirtualPath) -> bool {
        let beneath = |path: &VirtualPath, top: &VirtualPath| path != top && path.starts_with(top);
        self.aliases.iter().any(|alias| beneath(&alias.place, place) || beneath(&alias.name, name))
    }

    /// Whether the place may be used so.
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

    /// Whether the place and everything beneath it may be written: moved or removed as a whole.
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

    /// Whether no rule about something beneath the place is such a one. Of what is called otherwise there, or has no name, any
    /// might be.
    fn no_rule_beneath(&self, place: &VirtualPath, such: impl Fn(&Rule) -> bool) -> bool {
        let Some(name) = self.name(place) else { return false };
        let components: Vec<&[u8]> = name.components().map(|c| &**c).collect();
        !self.holds_aliases(place, &name)
            && !self.rules.iter().any(|rule| such(rule) && rule.is_beneath(&components))
    }

    /// Rights that the rule with the longest match gives.
    fn rights(&self, path: &[&[u8]]) -> (bool, bool) {
        let matching = self.rules.iter().filter(|rule| rule.covers(path));
        // Of two patterns that match as much, the one with more letters says more; then the later one.
        let best = matching.max_by_key(|rule| (rule.components.len(), rule.letters()));
        best.map_or((false, false), |rule| (rule.read, rule.write))
    }

    /// Whether something beneath the path may be open.
    fn leads_on(&self, path: &[&[u8]]) -> bool {
        self.rules.iter().any(|rule| (rule.read || rule.write) && rule.is_beneath(path))
    }
}

impl Rule {
    /// With the alias, where there is one.
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
                if path.find_byteset(b"*?[").is_some() {
                    return Err(InvalidRule::Pattern(rule.into()));
                }
                let (place, name) = (resolve(&path[..at])?, resolve(&path[at + 1..])?);
                (name.clone(), Some(Alias { place, name }))
            }
        };
        // No name is so long, and to match such a pattern against every entry of a directory takes its time.
        if name.components().any(|component| component.len() > LONGEST_PATTERN) {
            return Err(InvalidRule::Long(rule.into()));
        }
        Ok((Self { components: name.components().map(Into::into).collect(), read, write }, alias))
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
    fn an_alias_is_the_only_name() {
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
        // What lies beneath an alias.
        assert_eq!((name("/data"), name("/data/x"), name("/srv/big/in")), (None, None, None));
        assert_eq!(rights(&rules, "/srv/big/x"), "rl");
        assert_eq!(rights(&rules, "/home/ann/in/x"), "wl");
        for closed in ["/data", "/data/x", "/srv/big/in/x", "/srv", "/home", "/etc"] {
            assert_eq!(rights(&rules, closed), "", "{closed}");
        }
        assert_eq!((rights(&rules, "/"), rights(&rules, "/tmp/x")), ("l".into(), "rwl".into()));
    }

    #[test]
    fn trees_with_something_that_is_called_otherwise_stay_where_they_are() {
        let rules = rules("RW/,R/a/b:/c");
        assert!(!rules.allow_tree(&path("/a")) && rules.allow_tree(&path("/a/c")));
        assert!(!rules.allow_tree(&path("/a/b")) && !rules.allow_tree(&path("/c")));
        assert!(!rules.allow_reading_tree(&path("/a")) && rules.allow_reading_tree(&path("/a/b/x")));
        assert!(!rules.hide_tree(&path("/a")) && !rules.hide_tree(&path("/c")));
        // What is covered would come to light.
        let covering = self::rules("RW/,RW/in:/x/in");
        assert!(!covering.allow_tree(&path("/x")) && !covering.allow_reading_tree(&path("/x")));
        assert!(covering.allow_tree(&path("/in")) && covering.allow_tree(&path("/x/y")));
    }

    #[test]
    fn a_root_of_ones_own() {
        let rules = rules("/srv/data:/");
        assert_eq!(rules.place(&path("/x")).unwrap().to_string(), "/srv/data/x");
        assert_eq!(
            (rights(&rules, "/srv/data/x"), rights(&rules, "/srv"), rights(&rules, "/")),
            ("rwl".into(), String::new(), String::new())
        );
    }

    #[test]
    fn nonsense_is_refused() {
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
        fn parsing_never_panics(list: Vec<u8>, at: Vec<u8>) {
            let home = VirtualPath::root();
            if let (Ok(rules), Ok(at)) = (Rules::parse(&list, &home), VirtualPath::parse(&at)) {
                rules.allow(&at, Access::List);
            }
        }

        /// Names and places belong to one another, and where two names differ, so do their places.
        #[test]
        fn names_and_places_are_one_to_one(
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

        /// What is moved, removed or read as a whole has nothing in it that has another name, or none.
        #[test]
        fn trees_are_called_as_they_stand(
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
