//! Which programs have a socket open, from proc(5).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::flow::Owner;

/// The most looks between two searches for who has a socket open.
const LONGEST_WAIT: u32 = 64;

/// Owners that were found, by the socket's inode.
pub(crate) struct Owners {
    /// Where proc(5) is.
    root: PathBuf,
    /// Only this process is searched.
    only: Option<u32>,
    known: HashMap<u32, Owner>,
    /// Sockets whose owner was not found: of processes that may not be looked into, or just between two.
    hidden: HashMap<u32, Hidden>,
}

/// When a socket is searched for again: each time after twice as many looks, since all processes have to be searched.
struct Hidden {
    wait: u32,
    left: u32,
}

impl Default for Owners {
    fn default() -> Self {
        Self { root: "/proc".into(), only: None, known: HashMap::new(), hidden: HashMap::new() }
    }
}

impl Owners {
    /// Of the calling process only.
    pub(crate) fn of_this_process() -> Self {
        Self { only: Some(std::process::id()), ..Self::default() }
    }

    /// Makes sure that what can be known of `inodes` is, and forgets the others.
    pub(crate) fn learn(&mut self, inodes: &HashSet<u32>) {
        self.check(inodes);
        self.hidden.retain(|inode, _| inodes.contains(inode));
        let mut wanted = HashSet::new();
        for &inode in inodes.iter().filter(|inode| !self.known.contains_key(inode)) {
            if self.hidden.get_mut(&inode).is_none_or(Hidden::is_due) {
                wanted.insert(inode);
            }
        }
        if wanted.is_empty() {
            return;
        }
        for pid in self.processes() {
            let directory = self.root.join(pid.to_string());
            self.search(pid, &directory, &mut wanted);
            if wanted.is_empty() {
                return;
            }
        }
        for inode in wanted {
            self.hidden.entry(inode).and_modify(Hidden::missed).or_insert(Hidden { wait: 1, left: 1 });
        }
    }

    fn processes(&self) -> Vec<u32> {
        if let Some(only) = self.only {
            return vec![only];
        }
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        fs::read_dir(&self.root).into_iter().flatten().flatten().filter_map(number).collect()
    }

    /// Forgets owners that have closed the socket, perhaps after another got it, and sees what program they are now.
    fn check(&mut self, inodes: &HashSet<u32>) {
        let (root, mut programs) = (&self.root, HashMap::new());
        self.known.retain(|inode, owner| {
            let directory = root.join(owner.pid.to_string());
            let descriptor = directory.join("fd").join(owner.descriptor.to_string());
            let has_it = inodes.contains(inode)
                && fs::read_link(descriptor)
                    .is_ok_and(|target| socket_inode(target.as_os_str().as_bytes()) == Some(*inode));
            if has_it {
                let program = programs.entry(owner.pid).or_insert_with(|| program_of(&directory));
                owner.program.clone_from(program);
            }
            has_it
        });
    }

    /// `None`: nobody has it open, or it belongs to a process that this one may not look into.
    pub(crate) fn of(&self, inode: u32) -> Option<&Owner> {
        self.known.get(&inode)
    }

    /// It will be searched for again.
    pub(crate) fn forget(&mut self, inode: u32) {
        self.known.remove(&inode);
        self.hidden.remove(&inode);
    }

    /// Finds sockets of one process. It may end at any moment: then there is nothing to find.
    fn search(&mut self, pid: u32, directory: &Path, wanted: &mut HashSet<u32>) {
        let mut program = None;
        for entry in fs::read_dir(directory.join("fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let Some(inode) = socket_inode(target.as_os_str().as_bytes()) else { continue };
            if !wanted.remove(&inode) {
                continue;
            }
            let Some(descriptor) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let program = program.get_or_insert_with(|| program_of(directory)).clone();
            self.hidden.remove(&inode);
            self.known.insert(inode, Owner { pid, descriptor, program });
        }
    }
}

impl Hidden {
    /// Whether this is the look at which it is searched for again.
    fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    fn missed(&mut self) {
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.left = self.wait;
    }
}

/// Whether there is a process with this number, or of this program file.
pub fn runs(process: &str) -> bool {
    let of = |entry: &fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        Some(process.parse() == Ok(pid) || !process.is_empty() && program_of(&entry.path()) == process)
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| of(&entry) == Some(true))
}

/// Name of the program file; that of the process where the file is not told.
fn program_of(directory: &Path) -> String {
    let file = fs::read_link(directory.join("exe")).ok();
    let name = file.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    // The file was replaced while the program ran.
    let name = name.map(|name| name.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(name));
    let process = || fs::read_to_string(directory.join("comm")).map(|name| name.trim_end().to_owned());
    name.or_else(|| process().ok()).unwrap_or_default()
}

/// `socket:[123]`
fn socket_inode(link: &[u8]) -> Option<u32> {
    let number = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory like that of proc(5), with a process of number 10.
    fn processes() -> (tempfile::TempDir, Owners) {
        let root = tempfile::tempdir().unwrap();
        let owners = Owners { root: root.path().to_owned(), ..Owners::default() };
        start(root.path(), "10");
        (root, owners)
    }

    fn start(root: &Path, pid: &str) {
        fs::create_dir_all(root.join(pid).join("fd")).unwrap();
        symlink("/usr/bin/one", root.join(pid).join("exe")).unwrap();
    }

    #[test]
    fn who_was_not_found_at_first_is_found_later() {
        let (root, mut owners) = processes();
        let inodes = HashSet::from([77]);
        owners.learn(&inodes);
        assert!(owners.of(77).is_none());
        // It was between accept(2) and its place in the table of descriptors.
        symlink("socket:[77]", root.path().join("10/fd/5")).unwrap();
        owners.learn(&inodes);
        let found = Owner { pid: 10, descriptor: 5, program: "one".into() };
        assert_eq!(owners.of(77), Some(&found));
        assert!(owners.hidden.is_empty());
    }

    #[test]
    fn who_is_not_found_is_searched_for_less_and_less() {
        let (_root, mut owners) = processes();
        let inodes = HashSet::from([77]);
        let mut searches = Vec::new();
        for look in 0..200 {
            let before = owners.hidden.get(&77).map(|hidden| hidden.left);
            owners.learn(&inodes);
            if before.is_none_or(|left| left == 1) {
                searches.push(look);
            }
        }
        assert_eq!(searches, [0, 1, 3, 7, 15, 31, 63, 127, 191]);
        owners.learn(&HashSet::new());
        assert!(owners.hidden.is_empty());
    }

    #[test]
    fn a_program_that_takes_the_place_of_another_is_known_by_its_name() {
        let (root, mut owners) = processes();
        symlink("socket:[77]", root.path().join("10/fd/5")).unwrap();
        let inodes = HashSet::from([77]);
        let program = |owners: &mut Owners| {
            owners.learn(&inodes);
            owners.of(77).map(|owner| (owner.pid, owner.program.clone()))
        };
        assert_eq!(program(&mut owners), Some((10, "one".into())));
        let file = root.path().join("10/exe");
        fs::remove_file(&file).unwrap();
        symlink("/usr/bin/ropewalk", &file).unwrap();
        assert_eq!(program(&mut owners), Some((10, "ropewalk".into())));
        // It is a child's, and then nobody's.
        fs::remove_file(root.path().join("10/fd/5")).unwrap();
        start(root.path(), "11");
        symlink("socket:[77]", root.path().join("11/fd/4")).unwrap();
        assert_eq!(program(&mut owners), Some((11, "one".into())));
        fs::remove_file(root.path().join("11/fd/4")).unwrap();
        assert_eq!(program(&mut owners), None);
    }

    #[test]
    fn links() {
        assert_eq!(socket_inode(b"socket:[123]"), Some(123));
        assert_eq!(socket_inode(b"pipe:[123]"), None);
        assert_eq!(socket_inode(b"socket:[99999999999]"), None);
        assert_eq!(socket_inode(b"socket:[-1]"), None);
    }

    #[test]
    fn processes_are_known_by_number_and_program() {
        let own = program_of(Path::new("/proc/self"));
        assert!(runs(&std::process::id().to_string()) && runs(&own), "{own}");
        assert!(!runs("4294967295") && !runs("no-such-program") && !runs(""));
    }

    #[test]
    fn a_process_that_is_gone_owns_nothing() {
        let mut owners = Owners::default();
        owners.search(1, Path::new("/proc/nonexistent"), &mut HashSet::from([1]));
        owners.learn(&HashSet::new());
        assert!(owners.of(1).is_none());
    }
}
