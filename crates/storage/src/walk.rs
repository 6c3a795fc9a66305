//! Walks through directory trees. The number of directories that are open at the same time is
//! limited, and links are followed without cycles. A directory that cannot be read is reported, and
//! the walk continues.

use std::rc::Rc;

use bstr::BStr;
use ropewalk_protocol::path::VirtualPath;

use crate::{Error, ErrorKind, Kind, Metadata, Result, Store};

/// The maximum number of directories that are open at a time; deeper ones wait until these are
/// closed.
const OPEN_LEVELS: usize = 64;

/// Options of [`walk`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkOptions {
    /// Treat symbolic links as their targets. A dangling link is visited as a link. A link to a
    /// directory that contains it is visited but not entered.
    pub follow_links: bool,
    /// The maximum depth; 1 for the entries of the directory itself only.
    pub max_depth: Option<usize>,
}

/// An event of [`walk`].
#[derive(Debug)]
pub enum Visit<'a> {
    /// An entry; a directory comes before its entries.
    Entry { path: &'a VirtualPath, metadata: &'a Metadata },
    /// A directory below the first one that could not be read. The walk continues without it.
    Failed { path: &'a VirtualPath, error: Error },
}

/// The next step for a visited directory; without meaning for other entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Into,
    Over,
}

/// The callback of a walk. Its error stops the walk.
pub type WalkSink<'a> = dyn FnMut(Visit<'_>) -> Result<Step> + 'a;

/// Visits everything below a directory, but not the directory itself, in no particular order.
///
/// Only the path from the top to the current directory is kept in memory. Fails if `path` cannot be
/// listed or `sink` fails.
///
/// # Errors
/// The errors of [`Store::list`] for `path` itself, or the error of `sink`.
pub fn walk(
    store: &dyn Store,
    path: &VirtualPath,
    options: WalkOptions,
    sink: &mut WalkSink<'_>,
) -> Result<()> {
    let metadata = store.stat(path, true)?;
    let top = Rc::new(Level { identity: identity(&metadata), above: None, depth: 0 });
    let mut walker = Walker { store, options, sink, later: Vec::new(), open: 0, ended: false };
    walker.directory(path, &top)?;
    while let Some((path, level)) = walker.later.pop() {
        walker.below(&path, &level)?;
    }
    Ok(())
}

/// A directory on the path from the top.
struct Level {
    identity: (u64, u64),
    above: Option<Rc<Self>>,
    depth: usize,
}

impl Level {
    fn contains(&self, identity: (u64, u64)) -> bool {
        let mut level = Some(self);
        while let Some(here) = level {
            if here.identity == identity {
                return true;
            }
            level = here.above.as_deref();
        }
        false
    }
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.device, metadata.inode)
}

struct Walker<'a, 'sink> {
    store: &'a dyn Store,
    options: WalkOptions,
    sink: &'a mut WalkSink<'sink>,
    later: Vec<(VirtualPath, Rc<Level>)>,
    open: usize,
    /// Whether the current error comes from the sink.
    ended: bool,
}

impl Walker<'_, '_> {
    fn directory(&mut self, path: &VirtualPath, level: &Rc<Level>) -> Result<()> {
        let store = self.store;
        self.open += 1;
        let result = store.list(path, &mut |name, metadata| self.entry(path, level, name, metadata));
        self.open -= 1;
        result
    }

    /// Visits a directory that is not the first one: its errors do not stop the walk.
    fn below(&mut self, path: &VirtualPath, level: &Rc<Level>) -> Result<()> {
        match self.directory(path, level) {
            Err(error) if !self.ended => self.tell(Visit::Failed { path, error }).map(drop),
            result => result,
        }
    }

    fn tell(&mut self, visit: Visit<'_>) -> Result<Step> {
        (self.sink)(visit).inspect_err(|_| self.ended = true)
    }

    fn entry(
        &mut self,
        directory: &VirtualPath,
        level: &Rc<Level>,
        name: &BStr,
        mut metadata: Metadata,
    ) -> Result<()> {
        let path = directory.child(name).map_err(|_| {
            Error::new(ErrorKind::Invalid, "walk", directory.as_bytes()).with_detail(name.to_string())
        })?;
        if self.options.follow_links
            && metadata.kind == Kind::Symlink
            && let Ok(followed) = self.store.stat(&path, true)
        {
            metadata = followed;
        }
        let step = self.tell(Visit::Entry { path: &path, metadata: &metadata })?;
        let depth = level.depth + 1;
        if metadata.kind != Kind::Directory
            || step == Step::Over
            || self.options.max_depth.is_some_and(|most| depth >= most)
            || (self.options.follow_links && level.contains(identity(&metadata)))
        {
            return Ok(());
        }
        let below = Rc::new(Level { identity: identity(&metadata), above: Some(level.clone()), depth });
        if self.open >= OPEN_LEVELS {
            self.later.push((path, below));
            return Ok(());
        }
        self.below(&path, &below)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{MemoryStore, WriteOptions};

    fn path(text: &str) -> VirtualPath {
        VirtualPath::parse(text.as_bytes()).unwrap()
    }

    fn store() -> MemoryStore {
        let store = MemoryStore::new(1000);
        store.make_directory(&path("/a"), 0o755).unwrap();
        store.make_directory(&path("/a/b"), 0o755).unwrap();
        let options = WriteOptions { create: true, truncate: false, exclusive: true, mode: 0o644 };
        store.open_write(&path("/a/b/file"), options).unwrap();
        store.symlink("..".into(), &path("/a/b/up")).unwrap();
        store.symlink("nowhere".into(), &path("/a/dangling")).unwrap();
        store.symlink("/a/b".into(), &path("/link")).unwrap();
        store
    }

    fn found(store: &dyn Store, options: WalkOptions) -> Vec<(String, Kind)> {
        let mut found = Vec::new();
        walk(store, &VirtualPath::root(), options, &mut |visit| {
            let Visit::Entry { path, metadata } = visit else { panic!("{visit:?}") };
            found.push((path.to_string(), metadata.kind));
            Ok(Step::Into)
        })
        .unwrap();
        found.sort();
        found
    }

    fn names(found: &[(String, Kind)]) -> Vec<&str> {
        found.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn walk_visits_everything_once() {
        let found = found(&store(), WalkOptions::default());
        assert_eq!(names(&found), ["/a", "/a/b", "/a/b/file", "/a/b/up", "/a/dangling", "/link"]);
    }

    #[test]
    fn walk_follows_links_without_cycles() {
        let found = found(&store(), WalkOptions { follow_links: true, max_depth: None });
        assert!(names(&found).contains(&"/link/file"));
        assert!(names(&found).contains(&"/a/b/up"));
        assert!(!names(&found).contains(&"/a/b/up/b"));
        assert_eq!(found[names(&found).iter().position(|n| *n == "/a/dangling").unwrap()].1, Kind::Symlink);
    }

    #[test]
    fn walk_stops_at_the_maximum_depth() {
        let found = found(&store(), WalkOptions { follow_links: false, max_depth: Some(2) });
        assert_eq!(names(&found), ["/a", "/a/b", "/a/dangling", "/link"]);
    }

    #[test]
    fn walk_skips_directories_and_stops_on_error() {
        let mut seen = 0;
        walk(&store(), &path("/a"), WalkOptions::default(), &mut |_| {
            seen += 1;
            Ok(Step::Over)
        })
        .unwrap();
        assert_eq!(seen, 2);
        let stop = || Error::new(ErrorKind::Interrupted, "walk", "/");
        let ended = walk(&store(), &path("/"), WalkOptions::default(), &mut |visit| match visit {
            Visit::Entry { path, .. } if path.to_string() == "/a/b/file" => Err(stop()),
            _ => Ok(Step::Into),
        });
        assert_eq!(ended, Err(stop()));
        assert!(walk(&store(), &path("/none"), WalkOptions::default(), &mut |_| Ok(Step::Into)).is_err());
    }

    #[test]
    fn walk_of_deep_trees_is_complete() {
        let store = MemoryStore::new(0);
        let mut deep = VirtualPath::root();
        for _ in 0..150 {
            deep = deep.child(b"d").unwrap();
            store.make_directory(&deep, 0o755).unwrap();
        }
        assert_eq!(found(&store, WalkOptions::default()).len(), 150);
    }
}
