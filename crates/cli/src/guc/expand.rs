//! Expands a source URL: to one file, the files of a directory, or the files that match a pattern.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use bstr::{BStr, BString, ByteSlice};
use ropewalk_client::{
    Amount, Cancel, DANGLING, Entry, Event, EventSink, Location, Options, Pair, Preserve, copy, matching,
    parse_location, walk,
};
use ropewalk_protocol::url::Target;

use crate::exit::usage;

/// A pair as the user gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) pair: Pair,
    /// The last component of the source if it is a pattern: `*`, `?` and `[abc]`. No other
    /// character is special.
    pattern: Option<BString>,
    /// That component in URL form, from which it can be read again as a pattern.
    written: String,
}

impl Given {
    /// Local paths are made absolute, because they are shown as URLs.
    pub(super) fn new(source: &BStr, destination: &BStr, window: Amount) -> anyhow::Result<Self> {
        let place = |given: &BStr| absolute(parse_location(OsStr::from_bytes(given))?);
        let pair = Pair { source: place(source)?, destination: place(destination)?, window };
        let pattern = pattern(source);
        let name = &source[source.rfind_byte(b'/').map_or(0, |at| at + 1)..];
        let written = match is_url(source) {
            true => name.to_string(),
            false => escaped_but(b"*?[]", name),
        };
        Ok(Self { pair, pattern, written })
    }

    /// The source in the form that a later run reads.
    pub(super) fn source(&self) -> String {
        match self.pattern {
            Some(_) => show_with_password(&parent(&self.pair.source)) + &self.written,
            None => show_with_password(&self.pair.source),
        }
    }
}

fn is_url(given: &BStr) -> bool {
    given.to_str().is_ok_and(Target::looks_like_url)
}

/// Returns the last component of a given source if it is a pattern. Escaped characters of a URL
/// belong to the name.
fn pattern(given: &BStr) -> Option<BString> {
    let is_url = is_url(given);
    let name = &given[given.rfind_byte(b'/').map_or(0, |at| at + 1)..];
    name.find_byteset(b"*?[")?;
    let (mut pattern, mut rest) = (BString::default(), name.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let escaped = (is_url && first == b'%').then(|| behind.get(..2)?.to_str().ok()).flatten();
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let byte = escaped.unwrap_or(first);
        // Braces are alternatives in our patterns, but plain characters in those of GCT.
        if b"{}".contains(&byte) || escaped.is_some() && b"*?[".contains(&byte) {
            pattern.extend_from_slice(&[b'[', byte, b']']);
        } else {
            pattern.push(byte);
        }
        rest = if escaped.is_some() { &behind[2..] } else { behind };
    }
    Some(pattern)
}

/// The files that pairs stand for.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) pairs: Vec<Pair>,
    /// The trees that the pairs are the files of.
    trees: Vec<Pair>,
    /// Further sources, whose type could not be determined.
    pub(super) unknown: Vec<String>,
}

impl Found {
    fn new(pairs: Vec<Pair>) -> Self {
        Self { pairs, ..Self::default() }
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.pairs.extend(other.pairs);
        self.trees.extend(other.trees);
        self.unknown.extend(other.unknown);
    }
}

/// The state that expansion needs to list directories.
pub(super) struct Looker<'a> {
    pub(super) options: &'a Options,
    pub(super) events: &'a Arc<dyn EventSink>,
    pub(super) cancel: &'a Cancel,
    /// If unset, each file of a tree is a pair of its own, so that each can be accounted for.
    pub(super) whole_trees: bool,
}

impl Looker<'_> {
    /// The pairs that `given` stands for.
    pub(super) fn expand(&self, given: &Given) -> anyhow::Result<Found> {
        let pair = &given.pair;
        let directory = pair.source.ends_with_slash();
        if !directory && given.pattern.is_none() {
            return Ok(Found::new(vec![pair.clone()]));
        }
        if !pair.destination.ends_with_slash() && !matches!(pair.destination, Location::Measure { .. }) {
            return Err(usage(format!(
                "Multiple source urls must be transferred to a directory destination url:\n{}",
                show(&pair.destination)
            )));
        }
        if directory && self.options.selection.recursive {
            return self.tree(pair.clone(), pair);
        }
        let base = parent(&pair.source);
        let pattern = given.pattern.as_ref().map(|pattern| pattern.as_bstr());
        let entries = matching(&base, pattern, self.options, self.events, self.cancel)?;
        if let (true, Some(_)) = (entries.is_empty(), pattern) {
            anyhow::bail!("{}: no such file or directory", show(&pair.source));
        }
        let mut found = Found::default();
        for entry in entries {
            let beneath = |slash| beneath(pair, &base, &entry, slash);
            if let (true, Some(reason)) = (entry.name.is_empty(), &entry.error) {
                found.unknown.push(format!("{}: {reason}", show(&base)));
            } else if entry.leads_nowhere() {
                let source = beneath("").source.in_events(self.options);
                self.events.event(Event::FileSkipped { source, reason: DANGLING.to_owned() });
            } else if !entry.is_directory() {
                found.pairs.push(beneath(""));
            } else if self.options.selection.recursive {
                // Without the trailing slash the directory itself is copied, with its name.
                let whole = Pair { destination: pair.destination.clone(), ..beneath("") };
                found.extend(self.tree(whole, &beneath("/"))?);
            }
        }
        Ok(found)
    }

    /// Makes the directories of trees whose files are copied one by one, as a copy of the whole
    /// tree would. `preserve`: sets their times and modes, which has to come after the files: a new
    /// file changes the time, and the mode may refuse it.
    pub(super) fn make_directories(&self, found: &Found, options: &Options, preserve: bool) {
        let keeps = options.preserve.times || options.preserve.modes;
        if options.dry_run || found.trees.is_empty() || preserve && !keeps {
            return;
        }
        let mut options = options.clone().with(|o| {
            o.selection.filters = vec![(true, "*/".to_owned())];
            o.selection.sync = None;
            o.recovery.retries = 0;
        });
        if !preserve {
            options.preserve = Preserve { times: false, modes: false, ..options.preserve };
        }
        // The copies of the files will report the errors.
        let _ = copy(found.trees.clone(), &options, &|_: Event| {}, self.cancel);
    }

    /// A tree. `whole` copies it at once; `inside` copies the contents of one directory into the
    /// other.
    fn tree(&self, whole: Pair, inside: &Pair) -> anyhow::Result<Found> {
        if !self.whole_trees {
            return Ok(Found::new(vec![whole]));
        }
        let mut pairs = Vec::new();
        walk(&inside.source, self.options, self.events, self.cancel, &mut |entry| {
            if !entry.is_directory() && !entry.leads_nowhere() {
                pairs.push(beneath(inside, &inside.source, &entry, ""));
            } else if entry.is_directory() && entry.error.is_some() && !entry.leads_back() {
                // The type is unknown. The attempt to copy it reports the reason, and the pair
                // stays in the list of pending files.
                pairs.push(beneath(inside, &inside.source, &entry, "/"));
            }
            ControlFlow::Continue(())
        })?;
        Ok(Found { pairs, trees: vec![whole], ..Found::default() })
    }
}

fn beneath(pair: &Pair, base: &Location, entry: &Entry, slash: &str) -> Pair {
    let name = [entry.name.as_bytes(), slash.as_bytes()].concat();
    Pair { source: child(base, &name), destination: child(&pair.destination, &name), window: pair.window }
}

/// `name` in a directory that ends with a slash.
fn child(directory: &Location, name: &[u8]) -> Location {
    match directory {
        Location::Local(path) => {
            let mut path = path.as_os_str().as_bytes().to_vec();
            path.extend_from_slice(name);
            Location::Local(PathBuf::from(std::ffi::OsString::from_vec(path)))
        }
        Location::Remote(url) => Location::Remote(url.with_path(&[url.path.as_bytes(), name].concat())),
        other => other.clone(),
    }
}

/// The directory of a path, with its slash.
fn parent(location: &Location) -> Location {
    let path = location.path();
    let directory = &path[..path.rfind_byte(b'/').map_or(0, |at| at + 1)];
    match location {
        Location::Local(_) => {
            Location::Local(PathBuf::from(std::ffi::OsString::from_vec(directory.to_vec())))
        }
        Location::Remote(url) => Location::Remote(url.with_path(directory)),
        other => other.clone(),
    }
}

/// Makes a local path absolute.
fn absolute(location: Location) -> anyhow::Result<Location> {
    let Location::Local(path) = location else { return Ok(location) };
    let directory = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    let mut path =
        std::path::absolute(&path).with_context(|| format!("{}: no current directory", path.display()))?;
    if directory {
        path.push("");
    }
    Ok(Location::Local(path))
}

/// Escapes a path as GCT does in URLs.
pub(super) fn escaped(path: &[u8]) -> String {
    escaped_but(b"", path)
}

/// Escapes a path, except for the bytes in `plain`.
fn escaped_but(plain: &[u8], path: &[u8]) -> String {
    let mut text = String::new();
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"-._/:@!$&'()+,=".contains(byte) || plain.contains(byte) {
            text.push(char::from(*byte));
        } else {
            text += &format!("%{byte:02X}");
        }
    }
    text
}

/// A location as a URL, as in GCT's files and messages.
pub(super) fn show(location: &Location) -> String {
    match location {
        Location::Remote(url) => url.to_string(),
        other => show_with_password(other),
    }
}

/// The same including the password, for files that only a later run reads.
pub(super) fn show_with_password(location: &Location) -> String {
    match location {
        Location::Local(path) => format!("file://{}", escaped(path.as_os_str().as_bytes())),
        Location::Remote(url) => {
            let text = url.to_string_with_password();
            // A name from a listing is not a pattern, and is read back as a name.
            let host = text.find("://").map_or(0, |at| at + 3);
            let path = text[host..].find('/').map_or(text.len(), |at| host + at);
            let plain = text[path..].replace('*', "%2A").replace('?', "%3F").replace('[', "%5B");
            format!("{}{plain}", &text[..path])
        }
        Location::Standard => "-".into(),
        Location::Measure { size: 0 } => "null:".into(),
        Location::Measure { size } => format!("zero:{size}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    fn expand(
        source: &str,
        destination: &str,
        recursive: bool,
        whole_trees: bool,
    ) -> anyhow::Result<Vec<String>> {
        let options = Options::default().with(|o| o.selection.recursive = recursive);
        let events = ropewalk_client::no_events();
        let cancel = Cancel::new();
        let looker = Looker { options: &options, events: &events, cancel: &cancel, whole_trees };
        let given = Given::new(source.into(), destination.into(), None)?;
        let pairs = looker.expand(&given)?.pairs;
        let mut shown: Vec<_> =
            pairs.iter().map(|pair| format!("{} {}", show(&pair.source), show(&pair.destination))).collect();
        shown.sort();
        Ok(shown)
    }

    #[test]
    fn expand_lists_directories_and_patterns() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().to_str().unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        for name in ["a1", "a2", "b", "sub/c"] {
            fs::write(directory.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("nowhere", directory.path().join("d")).unwrap();
        std::os::unix::fs::symlink("sub", directory.path().join("e")).unwrap();
        let tree = format!("{base}/");
        let to = |destination: &str, recursive, whole_trees, source: &str| {
            let pairs = expand(source, destination, recursive, whole_trees).unwrap();
            let short = pairs.iter().map(|pair| pair.replace(&format!("file://{base}/"), ""));
            short.collect::<Vec<_>>()
        };
        assert_eq!(to("/x", false, false, &format!("{base}/b")), ["b file:///x"]);
        let files = ["a1 file:///x/a1", "a2 file:///x/a2", "b file:///x/b"];
        assert_eq!(to("/x/", false, false, &tree), files);
        assert_eq!(to("/x/", true, false, &tree), [" file:///x/"]);
        let all = [&files[..], &["e/c file:///x/e/c", "sub/c file:///x/sub/c"]].concat();
        assert_eq!(to("/x/", true, true, &tree), all);
        assert_eq!(to("/x/", false, false, &format!("{base}/a*")), files[..2]);
        assert_eq!(to("/x/", true, false, &format!("{base}/s*")), ["sub file:///x/"]);
        assert_eq!(to("/x/", true, true, &format!("{base}/s*")), ["sub/c file:///x/sub/c"]);
        assert!(expand(&tree, "/x", true, false).is_err(), "the destination is no directory");
        assert!(expand(&format!("{base}/z*"), "/x/", true, false).is_err(), "nothing matches");
    }

    #[test]
    fn escaped_pattern_characters_belong_to_the_name() {
        let of = |given: &str| pattern(given.into()).map(|pattern| pattern.to_string());
        assert_eq!(of("ftp://h/d*/f"), None);
        assert_eq!(of("ftp://h/d/a%3Fb"), None);
        assert_eq!(of("ftp://h/d/a?b").unwrap(), "a?b");
        assert_eq!(of("file:///d/a%2A%20*").unwrap(), "a[*] *");
        assert_eq!(of("d/{a}%2A*").unwrap(), "[{]a[}]%2A*");
    }

    #[test]
    fn unexpanded_pattern_is_written_as_a_pattern() {
        for source in ["ftp://h/d%2A/a%3F*", "/d*/{a}%2A[12]"] {
            let given = Given::new(source.into(), "/x/".into(), None).unwrap();
            let again = Given::new(given.source().as_str().into(), "/x/".into(), None).unwrap();
            assert_eq!((&again.pair, &again.pattern), (&given.pair, &given.pattern), "{}", given.source());
        }
    }

    #[test]
    fn expanded_name_is_written_as_a_name() {
        let location = parse_location("ftp://[::1]:2100/d/s%2Ar%5B%3F").unwrap();
        assert_eq!(show_with_password(&location), "ftp://[::1]:2100/d/s%2Ar%5B%3F");
    }

    #[test]
    fn url_is_split_into_directory_and_pattern() {
        let location = Location::Remote(ropewalk_protocol::url::Url::parse("ftp://h/d[1]/f*").unwrap());
        let parent = parent(&location);
        assert!(parent.ends_with_slash());
        assert_eq!(child(&parent, b"x").path(), "/d[1]/x");
    }
}
