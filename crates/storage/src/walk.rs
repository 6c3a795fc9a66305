use std::rc::Rc;

use bstr::BStr;
use ropewalk_protocol::path::VirtualPath;

use crate::{Error, ErrorKind, Kind, Metadata, Result, Store};

/// So many directories are open at a time at most; what lies deeper waits until they are closed.
const OPEN_LEVELS: usize = 64;

/// How [`walk`] goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkOptions {
    /// Symbolic links count as what they lead to. One that leads nowhere is given as itself; one that leads to a
    /// directory that we are in is given but not entered.
    pub follow_links: bool,
    /// 1: only the entries of the directory itself.
    pub max_depth: Option<usize>,
}

/// What [`walk`] found.
#[derive(Debug)]
pub enum Visit<'a> {
    /// An entry; a directory comes before what is in it.
    Entry { path: &'a VirtualPath, metadata: &'a Metadata },
    /// A directory beneath the first that could not be read. The walk goes on without it.
    Failed { path: &'a VirtualPath, error: Error },
}

/// What to do with a directory that was visited; of no meaning for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Into,
    Over,
}

/// What a walk tells of each thing it finds. An error ends the walk.
pub type WalkSink<'a> = dyn FnMut(Visit<'_>) -> Result<Step> + 'a;

/// Visits everything beneath a directory, without the directory itself, in no order.
///
/// Nothing is kept but the way from the top to where it is. Fails where `path` cannot be listed or where `sink` does.
///
/// # Errors
/// As of [`Store::list`] for `path` itself, or the error of `sink`.
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

/// A directory on the way from the top.
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
    /// The error that is on its way up is the sink's.
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

    /// A directory that is not the first: its errors do not end the walk.
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
    fn visits_everything_once() {
        let found = found(&store(), WalkOptions::default());
        assert_eq!(names(&found), ["/a", "/a/b", "/a/b/file", "/a/b/up", "/a/dangling", "/link"]);
    }

    #[test]
    fn follows_links_but_not_in_circles() {
        let found = found(&store(), WalkOptions { follow_links: true, max_depth: None });
        assert!(names(&found).contains(&"/link/file"));
        assert!(names(&found).contains(&"/a/b/up"));
        assert!(!names(&found).contains(&"/a/b/up/b"));
        assert_eq!(found[names(&found).iter().position(|n| *n == "/a/dangling").unwrap()].1, Kind::Symlink);
    }

    #[test]
    fn stops_at_the_depth_asked_for() {
        let found = found(&store(), WalkOptions { follow_links: false, max_depth: Some(2) });
        assert_eq!(names(&found), ["/a", "/a/b", "/a/dangling", "/link"]);
    }

    #[test]
    fn passes_over_directories_and_ends_on_demand() {
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
    fn deep_trees_are_walked_whole() {
        let store = MemoryStore::new(0);
        let mut deep = VirtualPath::root();
        for _ in 0..150 {
            deep = deep.child(b"d").unwrap();
            store.make_directory(&deep, 0o755).unwrap();
        }
        assert_eq!(found(&store, WalkOptions::default()).len(), 150);
    }
}
