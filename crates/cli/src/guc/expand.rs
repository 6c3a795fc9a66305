//! Which files a source URL stands for: one, those of a directory, or those that match a pattern.

use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use bstr::{BStr, ByteSlice};
use ropewalk_client::{Cancel, Entry, Event, EventSink, Location, Options, Pair, copy, list, walk};

use crate::exit::usage;

/// What expanding needs to look at directories.
pub(super) struct Looker<'a> {
    pub(super) options: &'a Options,
    pub(super) events: &'a dyn EventSink,
    pub(super) cancel: &'a Cancel,
    /// Every file of a tree is a pair of its own, so that each can be accounted for.
    pub(super) whole_trees: bool,
}

impl Looker<'_> {
    /// The pairs that `pair` stands for.
    pub(super) fn expand(&self, pair: Pair) -> anyhow::Result<Vec<Pair>> {
        let directory = pair.source.ends_with_slash();
        if !directory && !has_glob(&pair.source) {
            return Ok(vec![pair]);
        }
        let globs = !directory;
        let found =
            if globs { list(&pair.source, self.options, self.events, self.cancel)? } else { Vec::new() };
        // Escaped in the URL, the characters of a pattern are those of a name.
        if globs
            && let [only] = &found[..]
            && only.name == file_name(&pair.source)
            && !only.is_directory()
        {
            return Ok(vec![pair]);
        }
        if !pair.destination.ends_with_slash() && !matches!(pair.destination, Location::Measure { .. }) {
            return Err(usage(format!(
                "Multiple source urls must be transferred to a directory destination url:\n{}",
                show(&pair.destination)
            )));
        }
        if directory && self.options.recursive {
            return if self.whole_trees { self.tree(&pair) } else { Ok(vec![pair]) };
        }
        let base = if directory { pair.source.clone() } else { parent(&pair.source) };
        let found = if globs { found } else { list(&pair.source, self.options, self.events, self.cancel)? };
        let mut pairs = Vec::new();
        for entry in found {
            let child = |slash| beneath(&pair, &base, &entry, slash);
            if !entry.is_directory() {
                pairs.push(child(""));
            } else if self.options.recursive {
                pairs.extend(self.expand(child("/"))?);
            }
        }
        Ok(pairs)
    }

    /// Makes the directories of trees of which only the files are copied, as a copy of the whole trees would.
    pub(super) fn make_directories(&self, pairs: &[Pair], options: &Options) {
        let is_tree = |pair: &&Pair| pair.source.ends_with_slash() && pair.destination.ends_with_slash();
        let trees: Vec<Pair> = pairs.iter().filter(is_tree).cloned().collect();
        if !self.whole_trees || !options.recursive || options.dry_run || trees.is_empty() {
            return;
        }
        let options =
            Options { filters: vec![(true, "*/".to_owned())], sync: None, retries: 0, ..options.clone() };
        // What is wrong with them the files will tell.
        let _ = copy(trees, &options, &|_: Event| {}, self.cancel);
    }

    fn tree(&self, pair: &Pair) -> anyhow::Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        walk(&pair.source, self.options, self.events, self.cancel, &mut |entry| {
            if !entry.is_directory() {
                pairs.push(beneath(pair, &pair.source, &entry, ""));
            } else if entry.error.is_some() && !entry.leads_back() {
                // Nobody knows what is in it: to copy it will say why, and it stays to be done.
                pairs.push(beneath(pair, &pair.source, &entry, "/"));
            }
            ControlFlow::Continue(())
        })?;
        Ok(pairs)
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

/// Only the last component may have one.
fn has_glob(location: &Location) -> bool {
    file_name(location).find_byteset(b"*?[").is_some()
}

/// The last component of a path.
fn file_name(location: &Location) -> &BStr {
    let path = location.path();
    path.rfind_byte(b'/').map_or(path, |at| path[at + 1..].as_bstr())
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

/// A path as GCT writes it in URLs.
pub(super) fn escaped(path: &[u8]) -> String {
    let mut text = String::new();
    for byte in path {
        if byte.is_ascii_alphanumeric() || b"-._/:@!$&'()+,=".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text += &format!("%{byte:02X}");
        }
    }
    text
}

/// A location as GCT's files and messages have it: a URL.
pub(super) fn show(location: &Location) -> String {
    match location {
        Location::Remote(url) => url.to_string(),
        other => show_with_password(other),
    }
}

/// The same for files that a later run reads, and nobody else.
pub(super) fn show_with_password(location: &Location) -> String {
    match location {
        Location::Local(path) => format!("file://{}", escaped(path.as_os_str().as_bytes())),
        Location::Remote(url) => url.to_string_with_password(),
        Location::Standard => "-".into(),
        Location::Measure { size: 0 } => "null:".into(),
        Location::Measure { size } => format!("zero:{size}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use ropewalk_client::Event;

    use super::*;

    fn expand(
        source: &str,
        destination: &str,
        recursive: bool,
        whole_trees: bool,
    ) -> anyhow::Result<Vec<String>> {
        let options = Options { recursive, ..Options::default() };
        let events = |_: Event| {};
        let cancel = Cancel::new();
        let looker = Looker { options: &options, events: &events, cancel: &cancel, whole_trees };
        let pair = Pair {
            source: Location::Local(source.into()),
            destination: Location::Local(destination.into()),
            window: None,
        };
        let mut pairs: Vec<_> = looker.expand(pair)?.iter().map(|pair| show(&pair.destination)).collect();
        pairs.sort();
        Ok(pairs)
    }

    #[test]
    fn directories_and_patterns() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().to_str().unwrap();
        fs::create_dir(directory.path().join("sub")).unwrap();
        for name in ["a1", "a2", "b", "sub/c"] {
            fs::write(directory.path().join(name), name).unwrap();
        }
        let tree = format!("{base}/");
        assert_eq!(expand(&format!("{base}/b"), "/x", false, false).unwrap(), ["file:///x"]);
        assert_eq!(
            expand(&tree, "/x/", false, false).unwrap(),
            ["file:///x/a1", "file:///x/a2", "file:///x/b"]
        );
        assert_eq!(expand(&tree, "/x/", true, false).unwrap(), ["file:///x/"]);
        assert_eq!(
            expand(&tree, "/x/", true, true).unwrap(),
            ["file:///x/a1", "file:///x/a2", "file:///x/b", "file:///x/sub/c"]
        );
        assert_eq!(
            expand(&format!("{base}/a*"), "/x/", false, false).unwrap(),
            ["file:///x/a1", "file:///x/a2"]
        );
        assert_eq!(expand(&format!("{base}/s*"), "/x/", true, false).unwrap(), ["file:///x/sub/"]);
        assert!(expand(&tree, "/x", true, false).is_err(), "the destination is no directory");
    }

    #[test]
    fn parts() {
        let location = Location::Remote(ropewalk_protocol::url::Url::parse("ftp://h/d[1]/f*").unwrap());
        assert!(has_glob(&location));
        let parent = parent(&location);
        assert!(!has_glob(&parent));
        assert!(parent.ends_with_slash());
        assert_eq!(child(&parent, b"x").path(), "/d[1]/x");
    }
}
