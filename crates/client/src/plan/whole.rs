//! Plans whole trees by MLSR: one listing for the whole tree.

use super::*;
use crate::listing::Listing;
use crate::session::ops::names::{LEVELS, too_deep};

/// Number of entries that are handled at once.
const BATCH: usize = 512;

/// The state of a tree while its listing is read.
struct Whole<'t> {
    source: &'t Place,
    destination: &'t Place,
    gathered: &'t mut Gathered,
    /// Directories that the listing contained.
    known: HashSet<BString>,
    /// Directories that are not entered.
    left_out: HashSet<BString>,
    /// Symbolic links to follow.
    followed: Vec<BString>,
    /// Directories with subdirectories that the listing may have omitted.
    doubtful: Vec<BString>,
}

impl Plan<'_> {
    /// Plans a tree from one listing, in which symbolic links appear as links.
    ///
    /// Entries may come in any order. A server that confuses directories treats the first name of
    /// one as `.`. If a name sorts before `.` (such as `(1).txt` and `#old`), there are two errors.
    /// If that name is a file, the listing omits the directory itself. If it is a directory, its
    /// facts appear as those of its parent, and its contents are omitted.
    pub(super) fn whole_tree(
        &mut self,
        from: &mut Side,
        source: &Place,
        destination: &Place,
        gathered: &mut Gathered,
    ) -> Result<(), RemoteError> {
        let reopened = reopen(self.ctx);
        let doubted =
            matches!(from, Side::Remote(session) if session.quirks.tree_listing_confuses_directories);
        let mut tree = Whole {
            source,
            destination,
            gathered,
            known: HashSet::new(),
            left_out: HashSet::new(),
            followed: Vec::new(),
            doubtful: Vec::new(),
        };
        let mut roots = vec![BString::default()];
        while let Some(root) = roots.pop() {
            let path = beneath(&source.path(), &root);
            let listing = from.ask(Some(&reopened), &mut |side| match side {
                Side::Remote(session) => session.tree(&path).map(Some),
                Side::Local(_) => Ok(None),
            });
            let listing = match listing {
                Ok(None) => return Ok(()),
                Ok(Some(listing)) => listing,
                Err(e) if e.breaks_session() => return Err(e),
                // Perhaps a part of it can be listed.
                Err(_) => {
                    if self.one_by_one(from, &mut tree, &root)? == Step::Stop {
                        return Ok(());
                    }
                    continue;
                }
            };
            if doubted {
                tree.doubtful.push(root.clone());
            }
            if self.by_listing(from, &mut tree, &root, listing)? == Step::Stop {
                return Ok(());
            }
            for directory in std::mem::take(&mut tree.doubtful) {
                if is_left_out(&tree.left_out, &directory) {
                    continue;
                }
                match self.untold(from, &mut tree, &directory)? {
                    None => return Ok(()),
                    Some(directories) => roots.extend(directories),
                }
            }
        }
        for name in std::mem::take(&mut tree.followed) {
            if self.follow(from, &mut tree, name)? == Step::Stop {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Handles the entries in the listing of `root` (relative to `source`, like all names).
    fn by_listing(
        &mut self,
        from: &mut Side,
        tree: &mut Whole<'_>,
        root: &BString,
        mut listing: Listing,
    ) -> Result<Step, RemoteError> {
        let links = self.ctx.options().preserve.links;
        let mut failure = None;
        loop {
            let mut entries = Vec::new();
            while failure.is_none() && entries.len() < BATCH {
                match listing.next() {
                    Some(Ok(entry)) => entries.push(Entry { name: beneath(root, &entry.name), ..entry }),
                    Some(Err(e)) => failure = Some(e),
                    None => break,
                }
            }
            let last = entries.len() < BATCH;
            entries.retain(|entry| self.is_within_reach(tree, entry));
            self.made_sure(from, tree, &mut entries)?;
            for entry in entries {
                if self.above(from, tree, &entry)? == Step::Stop {
                    return Ok(Step::Stop);
                }
                if is_left_out(&tree.left_out, directory_of(entry.name.as_bstr())) {
                    continue;
                }
                if entry.kind == Kind::Symlink && !links {
                    tree.followed.push(entry.name);
                    continue;
                }
                let (name, directory) = (entry.name.clone(), entry.is_directory());
                // Our servers repeat a directory that they cannot list, with the reason.
                let unread = entry.error.is_some() && !tree.left_out.contains(&name);
                if directory && !tree.known.insert(name.clone()) && !unread {
                    continue;
                }
                match self.found_in(tree, entry)? {
                    Step::Over if directory => {
                        tree.left_out.insert(name);
                    }
                    Step::Into | Step::Over => {}
                    Step::Stop => return Ok(Step::Stop),
                }
            }
            if last {
                // An unparsable line is the last one.
                if let Some(e) = failure {
                    self.fail(tree.source.display(), tree.destination.display(), &e);
                }
                return Ok(Step::Into);
            }
        }
    }

    /// Queries the directories among `entries` that the listing may have confused.
    fn made_sure(
        &mut self,
        from: &mut Side,
        tree: &mut Whole<'_>,
        entries: &mut [Entry],
    ) -> Result<(), RemoteError> {
        if !matches!(from, Side::Remote(session) if session.quirks.tree_listing_confuses_directories) {
            return Ok(());
        }
        let wanted = |entry: &&mut Entry| {
            entry.is_directory() && !is_left_out(&tree.left_out, directory_of(entry.name.as_bstr()))
        };
        let directories: Vec<&mut Entry> = entries.iter_mut().filter(wanted).collect();
        let paths: Vec<BString> =
            directories.iter().map(|entry| beneath(&tree.source.path(), &entry.name)).collect();
        let statuses = from.ask(Some(&reopen(self.ctx)), &mut |side| match side {
            Side::Remote(session) => session.stat_many(&paths),
            Side::Local(_) => Ok(Vec::new()),
        })?;
        for (entry, status) in directories.into_iter().zip(statuses) {
            match status {
                Ok(status) if status.is_directory() => {
                    // Storage without inodes has one number for all; a directory has another inode
                    // than its parent.
                    let same = entry.identity.is_some_and(|(_, inode)| inode != 0)
                        && status.identity == entry.identity;
                    if !same {
                        tree.doubtful.push(entry.name.clone());
                    }
                    let (name, error) = (std::mem::take(&mut entry.name), entry.error.take());
                    *entry = Entry { name, error, target: None, ..status };
                }
                Err(e) if e.breaks_session() => return Err(e),
                // It has disappeared, or is not accessible; its listing will show this.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Whether an entry is at a permitted depth. The first directory below that is reported, once.
    fn is_within_reach(&mut self, tree: &mut Whole<'_>, entry: &Entry) -> bool {
        let Some(end) = entry.name.find_iter("/").nth(LEVELS - 1) else { return true };
        let top = BString::from(&entry.name[..end]);
        if tree.left_out.insert(top.clone()) {
            let path = beneath(&tree.source.path(), &top);
            let place = with_path(tree.source, path.clone()).display();
            let there = with_path(tree.destination, beneath(&tree.destination.path(), &top)).display();
            self.fail(place, there, &RemoteError::Unlisted { path, reason: too_deep() });
        }
        false
    }

    fn found_in(&mut self, tree: &mut Whole<'_>, entry: Entry) -> Result<Step, RemoteError> {
        self.found(tree.source, tree.destination, entry, tree.gathered, &mut Synced::default())
    }

    /// Handles the ancestors of an entry that the listing has not contained (yet).
    fn above(&mut self, from: &mut Side, tree: &mut Whole<'_>, entry: &Entry) -> Result<Step, RemoteError> {
        let mut missing = Vec::new();
        let mut above = directory_of(entry.name.as_bstr());
        while !above.is_empty() && !tree.known.contains(above) {
            missing.push(above.to_owned());
            above = directory_of(above);
        }
        if is_left_out(&tree.left_out, above) {
            return Ok(Step::Over);
        }
        for name in missing.into_iter().rev() {
            let path = beneath(&tree.source.path(), &name);
            let found = match from.ask(Some(&reopen(self.ctx)), &mut |side| side.stat(&path)) {
                Ok(Some(entry)) if entry.is_directory() => {
                    Entry { name: name.clone(), target: None, ..entry }
                }
                Err(e) if e.breaks_session() => return Err(e),
                _ => Entry::new(name.clone(), Kind::Directory),
            };
            tree.known.insert(name.clone());
            match self.found_in(tree, found)? {
                Step::Into => {}
                Step::Over => {
                    tree.left_out.insert(name);
                    return Ok(Step::Over);
                }
                Step::Stop => return Ok(Step::Stop),
            }
        }
        Ok(Step::Into)
    }

    /// The directories in `directory` that the listing of the tree omitted. `None`: stop.
    fn untold(
        &mut self,
        from: &mut Side,
        tree: &mut Whole<'_>,
        directory: &BString,
    ) -> Result<Option<Vec<BString>>, RemoteError> {
        let path = beneath(&tree.source.path(), directory);
        let mut hidden = Vec::new();
        let listed = from.ask(Some(&reopen(self.ctx)), &mut |side| {
            hidden.clear();
            side.list(&path, &mut |entry| {
                let name = beneath(directory, &entry.name);
                // Links to directories are listed as links.
                if entry.is_directory() && entry.target.is_none() && !tree.known.contains(&name) {
                    hidden.push(Entry { name, ..entry });
                }
                Ok(true)
            })
        });
        match listed {
            Err(e) if e.breaks_session() => return Err(e),
            Err(e) => {
                let at =
                    |place: &Place| place.join(directory).map_or_else(|_| place.display(), |at| at.display());
                self.fail(at(tree.source), at(tree.destination), &e);
            }
            Ok(()) => {}
        }
        let mut roots = Vec::new();
        for entry in hidden {
            let name = entry.name.clone();
            tree.known.insert(name.clone());
            match self.found_in(tree, entry)? {
                Step::Into => roots.push(name),
                Step::Over => {
                    tree.left_out.insert(name);
                }
                Step::Stop => return Ok(None),
            }
        }
        Ok(Some(roots))
    }

    /// Handles the target of a symbolic link, by the link's name.
    fn follow(&mut self, from: &mut Side, tree: &mut Whole<'_>, name: BString) -> Result<Step, RemoteError> {
        let path = join(&tree.source.path(), &name);
        let error = match from.ask(Some(&reopen(self.ctx)), &mut |side| side.stat(&path)) {
            Ok(Some(entry)) => {
                let directory = entry.is_directory();
                let entry = Entry { name: name.clone(), target: None, ..entry };
                let step = self.found_in(tree, entry)?;
                if directory && step == Step::Into {
                    return self.one_by_one(from, tree, &name);
                }
                return Ok(step);
            }
            Err(e) if e.breaks_session() => return Err(e),
            Ok(None) => {
                if self.filter.passes(name.as_bstr(), false) {
                    self.dangling(&tree.source.join(&name)?, &tree.destination.join(&name)?);
                }
                return Ok(Step::Over);
            }
            Err(e) => e,
        };
        if self.filter.passes(name.as_bstr(), false) {
            self.fail(tree.source.join(&name)?.display(), tree.destination.join(&name)?.display(), &error);
        }
        Ok(Step::Over)
    }

    /// Plans everything beneath `root` by a listing for each directory, which detects circular
    /// links.
    fn one_by_one(
        &mut self,
        from: &mut Side,
        tree: &mut Whole<'_>,
        root: &BString,
    ) -> Result<Step, RemoteError> {
        let links = self.ctx.options().preserve.links;
        let mut last = Step::Into;
        from.walk_on(&beneath(&tree.source.path(), root), links, &reopen(self.ctx), &mut |_, mut entry| {
            // The filters use the name in the whole tree.
            entry.name = beneath(root, &entry.name);
            last = self.found_in(tree, entry)?;
            Ok(last)
        })?;
        Ok(if last == Step::Stop { Step::Stop } else { Step::Into })
    }
}

/// `name` within `directory`; either may be empty.
fn beneath(directory: &BString, name: &BString) -> BString {
    match (directory.is_empty(), name.is_empty()) {
        (true, _) => name.clone(),
        (_, true) => directory.clone(),
        _ => join(directory, name),
    }
}

/// Whether it is, or is in, an excluded directory.
fn is_left_out(left_out: &HashSet<BString>, directory: impl AsRef<[u8]>) -> bool {
    let mut directory = directory.as_ref().as_bstr();
    while !directory.is_empty() && !left_out.contains(directory) {
        directory = directory_of(directory);
    }
    !directory.is_empty()
}
