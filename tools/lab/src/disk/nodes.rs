//! The inode numbers by which the kernel names files, and the paths of these files. A number is
//! valid until the kernel has forgotten all its lookups, and follows its file when it is renamed. A
//! removed file keeps its number but has no path.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

/// The number of the root directory.
pub(super) const ROOT: u64 = 1;

/// All files that the kernel knows.
#[derive(Debug)]
pub(super) struct Nodes {
    nodes: HashMap<u64, Node>,
    places: HashMap<(u64, OsString), u64>,
    next: u64,
}

#[derive(Debug)]
struct Node {
    place: (u64, OsString),
    /// The number of lookups that the kernel has not forgotten yet.
    lookups: u64,
    /// Whether the file was opened since the store became slow.
    opened: bool,
}

impl Nodes {
    pub(super) fn new() -> Self {
        Self { nodes: HashMap::new(), places: HashMap::new(), next: ROOT + 1 }
    }

    /// The path of a file relative to the root directory; `None` if the file was removed.
    pub(super) fn path(&self, number: u64) -> Option<PathBuf> {
        let mut parts = Vec::new();
        let mut at = number;
        while at != ROOT {
            let (parent, name) = &self.nodes.get(&at)?.place;
            if self.places.get(&(*parent, name.clone())) != Some(&at) {
                return None;
            }
            parts.push(name);
            at = *parent;
        }
        let mut path = PathBuf::from(".");
        path.extend(parts.into_iter().rev());
        Some(path)
    }

    /// The path of a name in a directory.
    pub(super) fn child(&self, parent: u64, name: &OsStr) -> Option<PathBuf> {
        Some(self.path(parent)?.join(name))
    }

    /// Returns the number of an existing name and counts a lookup by the kernel.
    pub(super) fn found(&mut self, parent: u64, name: &OsStr) -> u64 {
        let place = (parent, name.to_owned());
        let number = *self.places.entry(place.clone()).or_insert(self.next);
        if number == self.next {
            self.next += 1;
        }
        self.nodes.entry(number).or_insert(Node { place, lookups: 0, opened: false }).lookups += 1;
        number
    }

    /// Marks a file as opened. Returns whether it was opened before.
    pub(super) fn opened(&mut self, number: u64) -> bool {
        self.nodes.get_mut(&number).is_some_and(|node| std::mem::replace(&mut node.opened, true))
    }

    /// Removes a name; open files remain usable.
    pub(super) fn removed(&mut self, parent: u64, name: &OsStr) {
        self.places.remove(&(parent, name.to_owned()));
    }

    /// Renames a file; a file that had the new name loses it.
    pub(super) fn renamed(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let (from, to) = ((from.0, from.1.to_owned()), (to.0, to.1.to_owned()));
        self.places.remove(&to);
        if let Some(number) = self.places.remove(&from) {
            self.places.insert(to.clone(), number);
            if let Some(node) = self.nodes.get_mut(&number) {
                node.place = to;
            }
        }
    }

    /// Exchanges the names of two files.
    pub(super) fn exchanged(&mut self, one: (u64, &OsStr), other: (u64, &OsStr)) {
        let (one, other) = ((one.0, one.1.to_owned()), (other.0, other.1.to_owned()));
        let numbers = (self.places.remove(&one), self.places.remove(&other));
        for (number, place) in [(numbers.0, other), (numbers.1, one)] {
            let Some(number) = number else { continue };
            self.places.insert(place.clone(), number);
            if let Some(node) = self.nodes.get_mut(&number) {
                node.place = place;
            }
        }
    }

    /// Subtracts `lookups` from the lookups of a number, and removes the number when none is left.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0
            && let Some(node) = self.nodes.remove(&number)
            && self.places.get(&node.place) == Some(&number)
        {
            self.places.remove(&node.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> &OsStr {
        OsStr::new(name)
    }

    #[test]
    fn nodes_when_a_directory_is_renamed_keep_their_numbers() {
        let mut nodes = Nodes::new();
        let dir = nodes.found(ROOT, name("dir"));
        let file = nodes.found(dir, name("file"));
        assert_eq!(nodes.path(file), Some("./dir/file".into()));
        nodes.renamed((ROOT, name("dir")), (ROOT, name("new")));
        assert_eq!(nodes.path(file), Some("./new/file".into()));
        let other = nodes.found(dir, name("other"));
        nodes.renamed((dir, name("file")), (dir, name("other")));
        assert_eq!((nodes.path(file), nodes.path(other)), (Some("./new/other".into()), None));
        assert_eq!(nodes.child(dir, name("x")), Some("./new/x".into()));
    }

    #[test]
    fn nodes_when_names_are_exchanged_swap_paths() {
        let mut nodes = Nodes::new();
        let (a, b) = (nodes.found(ROOT, name("a")), nodes.found(ROOT, name("b")));
        nodes.exchanged((ROOT, name("a")), (ROOT, name("b")));
        assert_eq!((nodes.path(a), nodes.path(b)), (Some("./b".into()), Some("./a".into())));
    }

    #[test]
    fn node_when_all_lookups_are_forgotten_is_removed() {
        let mut nodes = Nodes::new();
        let file = nodes.found(ROOT, name("a"));
        assert_eq!(nodes.found(ROOT, name("a")), file);
        nodes.forget(file, 1);
        assert_eq!(nodes.path(file), Some("./a".into()));
        nodes.forget(file, 1);
        assert_eq!(nodes.path(file), None);
        assert_ne!(nodes.found(ROOT, name("a")), file);
        let removed = nodes.found(ROOT, name("b"));
        nodes.removed(ROOT, name("b"));
        let again = nodes.found(ROOT, name("b"));
        assert_ne!(again, removed);
        nodes.forget(removed, 1);
        assert_eq!(nodes.path(again), Some("./b".into()));
    }
}
