//! Finds the processes that have a socket open, through proc(5).
//!
//! [`Owners`] caches the owner of each socket, and verifies it at each look. A search reads the
//! descriptors of all processes, so a socket without a known owner is searched for at increasing
//! intervals. A process may exit at any time; it then has no sockets.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::flow::Owner;

/// Largest number of looks between two searches for the owner of a socket.
const LONGEST_WAIT: u32 = 64;

/// Known owners, by the inode of the socket.
pub(crate) struct Owners {
    /// The directory of proc(5).
    root: PathBuf,
    /// If set, only this process is searched.
    only: Option<u32>,
    known: HashMap<u32, Owner>,
    /// Sockets without a known owner: the process may not be inspected, or the socket is just being
    /// passed between processes.
    hidden: HashMap<u32, Hidden>,
}

/// The time of the next search for a socket. The number of looks doubles each time, because all
/// processes have to be searched.
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
    /// Searches the calling process only.
    pub(crate) fn of_this_process() -> Self {
        Self { only: Some(std::process::id()), ..Self::default() }
    }

    /// Looks up the owners of `inodes`, and forgets all others.
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

    /// Forgets owners that have closed the socket, even if another process has it now, and updates
    /// the program name of the others.
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

    /// Returns `None` if no process has the socket open, or if it belongs to a process that may not
    /// be inspected.
    pub(crate) fn of(&self, inode: u32) -> Option<&Owner> {
        self.known.get(&inode)
    }

    /// Forgets the owner, so that it is searched for again.
    pub(crate) fn forget(&mut self, inode: u32) {
        self.known.remove(&inode);
        self.hidden.remove(&inode);
    }

    /// Searches one process for sockets. The process may exit at any time; then no sockets are
    /// found.
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
    /// Whether the socket is searched for at this look.
    fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    fn missed(&mut self) {
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        self.left = self.wait;
    }
}

/// Whether a process with this number, or with this program file, is running.
pub fn runs(process: &str) -> bool {
    let of = |entry: &fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        Some(process.parse() == Ok(pid) || !process.is_empty() && program_of(&entry.path()) == process)
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| of(&entry) == Some(true))
}

/// Returns the name of the program file; if it cannot be read, the name of the process.
fn program_of(directory: &Path) -> String {
    let file = fs::read_link(directory.join("exe")).ok();
    let name = file.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    // The suffix shows that the file was replaced while the program ran.
    let name = name.map(|name| name.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(name));
    let process = || fs::read_to_string(directory.join("comm")).map(|name| name.trim_end().to_owned());
    name.or_else(|| process().ok()).unwrap_or_default()
}

/// Parses `socket:[123]`.
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
    fn owner_found_later_is_learned() {
        let (root, mut owners) = processes();
        let inodes = HashSet::from([77]);
        owners.learn(&inodes);
        assert!(owners.of(77).is_none());
        // The process was between accept(2) and the entry in its descriptor table.
        symlink("socket:[77]", root.path().join("10/fd/5")).unwrap();
        owners.learn(&inodes);
        let found = Owner { pid: 10, descriptor: 5, program: "one".into() };
        assert_eq!(owners.of(77), Some(&found));
        assert!(owners.hidden.is_empty());
    }

    #[test]
    fn owner_not_found_is_searched_at_increasing_intervals() {
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
    fn owner_after_exec_has_new_program_name() {
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
        // A child process owns the socket, and then no process does.
        fs::remove_file(root.path().join("10/fd/5")).unwrap();
        start(root.path(), "11");
        symlink("socket:[77]", root.path().join("11/fd/4")).unwrap();
        assert_eq!(program(&mut owners), Some((11, "one".into())));
        fs::remove_file(root.path().join("11/fd/4")).unwrap();
        assert_eq!(program(&mut owners), None);
    }

    #[test]
    fn socket_inode_is_parsed_from_link() {
        assert_eq!(socket_inode(b"socket:[123]"), Some(123));
        assert_eq!(socket_inode(b"pipe:[123]"), None);
        assert_eq!(socket_inode(b"socket:[99999999999]"), None);
        assert_eq!(socket_inode(b"socket:[-1]"), None);
    }

    #[test]
    fn runs_finds_process_by_number_and_program() {
        let own = program_of(Path::new("/proc/self"));
        assert!(runs(&std::process::id().to_string()) && runs(&own), "{own}");
        assert!(!runs("4294967295") && !runs("no-such-program") && !runs(""));
    }

    #[test]
    fn owner_of_exited_process_is_none() {
        let mut owners = Owners::default();
        owners.search(1, Path::new("/proc/nonexistent"), &mut HashSet::from([1]));
        owners.learn(&HashSet::new());
        assert!(owners.of(1).is_none());
    }
}
