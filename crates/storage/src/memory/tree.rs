//! The tree of names of the memory store. Paths are resolved as on Linux, with symbolic links and
//! their limit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bstr::{BString, ByteSlice};
use parking_lot::{Mutex, MutexGuard};
use ropewalk_protocol::path::VirtualPath;

use super::file::{Attributes, File};
use crate::{ErrorKind, Kind, Metadata};

const ROOT: u64 = 1;
/// The limit of Linux.
const MOST_LINKS: usize = 40;
const LONGEST_NAME: usize = 255;

pub(super) enum Body {
    Directory(BTreeMap<BString, u64>),
    File(Arc<File>),
    Link(BString),
}

pub(super) struct Node {
    pub(super) body: Body,
    /// The attributes of a directory or link. A file has its own, which handles share.
    attributes: Mutex<Attributes>,
}

impl Node {
    pub(super) fn attributes(&self) -> MutexGuard<'_, Attributes> {
        match &self.body {
            Body::File(file) => file.attributes(),
            _ => self.attributes.lock(),
        }
    }

    pub(super) fn metadata(&self) -> Metadata {
        match &self.body {
            Body::File(file) => file.metadata(),
            Body::Directory(_) => self.attributes().metadata(Kind::Directory, 0),
            Body::Link(target) => Metadata {
                target: Some(target.clone()),
                ..self.attributes().metadata(Kind::Symlink, target.len() as u64)
            },
        }
    }
}

/// The result of a path lookup: a directory, a name in it, and the entry of that name.
pub(super) struct Spot {
    /// The directories from the root to the one that contains the name.
    passed: Vec<(BString, u64)>,
    name: BString,
    pub(super) node: Option<u64>,
}

impl Spot {
    fn parent(&self) -> u64 {
        self.passed.last().map_or(ROOT, |&(_, id)| id)
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let mut path = Vec::new();
        for name in self.passed.iter().map(|(name, _)| name).chain([&self.name]) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path
    }
}

pub(super) struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self { nodes: HashMap::new(), next: ROOT };
        tree.create(Body::Directory(BTreeMap::new()), 0o755);
        tree
    }

    fn create(&mut self, body: Body, mode: u32) -> u64 {
        let id = self.next;
        self.next += 1;
        let attributes = Attributes::new(mode, id);
        if let Body::File(file) = &body {
            *file.attributes() = attributes.clone();
        }
        self.nodes.insert(id, Node { body, attributes: Mutex::new(attributes) });
        id
    }

    pub(super) fn node(&self, id: u64) -> &Node {
        &self.nodes[&id]
    }

    fn entries(&self, id: u64) -> Result<&BTreeMap<BString, u64>, ErrorKind> {
        match &self.node(id).body {
            Body::Directory(entries) => Ok(entries),
            _ => Err(ErrorKind::NotDirectory),
        }
    }

    fn set_entry(&mut self, directory: u64, name: &BString, id: Option<u64>) {
        let Some(node) = self.nodes.get_mut(&directory) else { return };
        node.attributes().modify();
        if let Body::Directory(entries) = &mut node.body {
            match id {
                Some(id) => entries.insert(name.clone(), id),
                None => entries.remove(name),
            };
        }
    }

    /// Looks up a path. `follow` says whether a symbolic link at its end is followed.
    pub(super) fn locate(&self, path: &VirtualPath, follow: bool) -> Result<Spot, ErrorKind> {
        let mut passed: Vec<(BString, u64)> = Vec::new();
        let mut ahead: Vec<BString> = Vec::new();
        push(&mut ahead, path.as_bytes());
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            if name == ".." {
                passed.pop();
                continue;
            }
            if name.len() > LONGEST_NAME {
                return Err(ErrorKind::NameTooLong);
            }
            let here = passed.last().map_or(ROOT, |&(_, id)| id);
            let Some(&id) = self.entries(here)?.get(&name) else {
                if !ahead.is_empty() {
                    return Err(ErrorKind::NotFound);
                }
                return Ok(Spot { passed, name, node: None });
            };
            match &self.node(id).body {
                Body::Link(target) if follow || !ahead.is_empty() => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(ErrorKind::TooManyLinks);
                    }
                    if target.starts_with(b"/") {
                        passed.clear();
                    }
                    push(&mut ahead, target);
                }
                _ if ahead.is_empty() => return Ok(Spot { passed, name, node: Some(id) }),
                _ => passed.push((name, id)),
            }
        }
        // The path ends at a directory that was passed already, or at the root.
        let (name, id) = passed.pop().unwrap_or_else(|| (BString::default(), ROOT));
        Ok(Spot { passed, name, node: Some(id) })
    }

    pub(super) fn existing(&self, path: &VirtualPath, follow: bool) -> Result<u64, ErrorKind> {
        self.locate(path, follow)?.node.ok_or(ErrorKind::NotFound)
    }

    pub(super) fn add(&mut self, spot: &Spot, body: Body, mode: u32) -> Result<(), ErrorKind> {
        self.entries(spot.parent())?;
        let id = self.create(body, mode);
        self.set_entry(spot.parent(), &spot.name, Some(id));
        Ok(())
    }

    /// Gives a file this name. Replaces what has it, unless that is a directory.
    pub(super) fn place(&mut self, path: &VirtualPath, file: Arc<File>, mode: u32) -> Result<(), ErrorKind> {
        let spot = self.locate(path, false)?;
        if let Some(replaced) = spot.node {
            if matches!(self.node(replaced).body, Body::Directory(_)) {
                return Err(ErrorKind::IsDirectory);
            }
            self.forget(replaced);
        }
        self.add(&spot, Body::File(file), mode)
    }

    pub(super) fn remove(&mut self, path: &VirtualPath, directory: bool) -> Result<(), ErrorKind> {
        let spot = self.locate(path, false)?;
        let id = spot.node.ok_or(ErrorKind::NotFound)?;
        match &self.node(id).body {
            _ if id == ROOT => return Err(ErrorKind::Busy),
            Body::Directory(_) if !directory => return Err(ErrorKind::IsDirectory),
            Body::Directory(entries) if !entries.is_empty() => return Err(ErrorKind::NotEmpty),
            Body::File(_) | Body::Link(_) if directory => return Err(ErrorKind::NotDirectory),
            _ => {}
        }
        self.set_entry(spot.parent(), &spot.name, None);
        self.forget(id);
        Ok(())
    }

    pub(super) fn remove_tree(&mut self, path: &VirtualPath) -> Result<(), ErrorKind> {
        let spot = self.locate(path, false)?;
        let top = spot.node.ok_or(ErrorKind::NotFound)?;
        if top == ROOT {
            return Err(ErrorKind::Busy);
        }
        self.set_entry(spot.parent(), &spot.name, None);
        let mut removed = vec![top];
        while let Some(id) = removed.pop() {
            if let Body::Directory(entries) = &self.node(id).body {
                removed.extend(entries.values());
            }
            self.forget(id);
        }
        Ok(())
    }

    fn forget(&mut self, id: u64) {
        if let Some(node) = self.nodes.remove(&id) {
            node.attributes().links = 0;
        }
    }

    pub(super) fn rename(&mut self, from: &VirtualPath, to: &VirtualPath) -> Result<(), ErrorKind> {
        let old = self.locate(from, false)?;
        let id = old.node.ok_or(ErrorKind::NotFound)?;
        let new = self.locate(to, false)?;
        if id == ROOT || new.node == Some(ROOT) {
            return Err(ErrorKind::Busy);
        }
        if new.node == Some(id) {
            return Ok(());
        }
        if new.passed.iter().any(|&(_, passed)| passed == id) {
            return Err(ErrorKind::Invalid);
        }
        self.entries(new.parent())?;
        let moves_directory = matches!(self.node(id).body, Body::Directory(_));
        if let Some(replaced) = new.node {
            match &self.node(replaced).body {
                Body::Directory(_) if !moves_directory => return Err(ErrorKind::IsDirectory),
                Body::Directory(entries) if !entries.is_empty() => return Err(ErrorKind::NotEmpty),
                Body::File(_) | Body::Link(_) if moves_directory => return Err(ErrorKind::NotDirectory),
                _ => {}
            }
            self.forget(replaced);
        }
        self.set_entry(old.parent(), &old.name, None);
        self.set_entry(new.parent(), &new.name, Some(id));
        Ok(())
    }
}

/// Pushes the components of a path onto the stack `ahead`, the first one last.
fn push(ahead: &mut Vec<BString>, path: &[u8]) {
    let components = path.rsplit_str("/").filter(|c| !c.is_empty() && *c != b".");
    ahead.extend(components.map(BString::from));
}
