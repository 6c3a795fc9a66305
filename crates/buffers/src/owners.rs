//! Which programs have a socket open, from proc(5).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::flow::Owner;

/// Owners that were found, by the socket's inode.
#[derive(Default)]
pub(crate) struct Owners {
    known: HashMap<u32, Owner>,
    /// Sockets of processes that may not be looked into: asked for only once.
    hidden: HashSet<u32>,
}

impl Owners {
    /// Makes sure that what can be known of `inodes` is, and forgets the others.
    pub(crate) fn learn(&mut self, inodes: &HashSet<u32>) {
        self.known.retain(|inode, _| inodes.contains(inode));
        self.hidden.retain(|inode| inodes.contains(inode));
        let unknown = |inode: &u32| !self.known.contains_key(inode) && !self.hidden.contains(inode);
        let mut wanted: HashSet<u32> = inodes.iter().copied().filter(unknown).collect();
        if wanted.is_empty() {
            return;
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            self.search(pid, &entry.path(), &mut wanted);
            if wanted.is_empty() {
                return;
            }
        }
        self.hidden.extend(wanted);
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
            self.known.insert(inode, Owner { pid, descriptor, program });
        }
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
    use super::*;

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
