//! Removes shared memory that killed processes have left.
//!
//! With `UCX_POSIX_USE_PROC_LINK=n`, UCX shares memory by files in `/dev/shm`, whose names are
//! random numbers, and removes each when it needs it no longer. A killed process removes none. (By
//! default UCX removes the name at once, and nothing is left.) A process has the memory mapped for
//! as long as it uses it, and so has each peer. The kernel grants a write lease on a file only if
//! no other process has it open for writing or mapped, also if it is in another namespace
//! (fcntl(2), "Leases"): such a file is of no use any more.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Where UCX has the files, unless `UCX_POSIX_DIR` names another directory.
const DIRECTORY: &str = "/dev/shm";
const PREFIX: &str = "ucx_shm_posix_";
/// A younger file may be one that a process has made and not opened yet.
const AGE: Duration = Duration::from_secs(60);
/// Names the signal of a lease. Without it, a program that opens the file would send one that ends
/// this process.
const F_SETSIG: libc::c_int = 10;

/// Removes such files of this process's user. Those that cannot be removed stay.
pub(super) fn remove() {
    let count = remove_from(Path::new(DIRECTORY), SystemTime::now());
    if count > 0 {
        tracing::info!(count, "removed shared memory of UCX that killed processes have left");
    }
}

/// Returns the number of files that were removed.
fn remove_from(directory: &Path, now: SystemTime) -> usize {
    let Ok(entries) = directory.read_dir() else { return 0 };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let of_ucx = names.filter(|name| {
        name.strip_prefix(PREFIX).is_some_and(|number| u64::from_str_radix(number, 16).is_ok())
    });
    of_ucx.filter(|name| remove_unused(&directory.join(name), now).unwrap_or(false)).count()
}

fn remove_unused(path: &Path, now: SystemTime) -> io::Result<bool> {
    let metadata = path.symlink_metadata()?;
    let age = now.duration_since(metadata.modified()?).unwrap_or_default();
    let own = metadata.is_file() && metadata.uid() == rustix::process::geteuid().as_raw();
    if !own || age < AGE {
        return Ok(false);
    }
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
    let unused = file.metadata()?.ino() == metadata.ino() && is_unused(&file);
    if unused {
        // The lease holds off programs that open the file until it is closed.
        std::fs::remove_file(path)?;
    }
    Ok(unused)
}

/// Whether no other process has the file open for writing, or mapped. The lease ends with `file`.
fn is_unused(file: &File) -> bool {
    let fd = file.as_raw_fd();
    // SAFETY: the descriptor is open, and these commands have numbers as arguments. The signal is
    // one that programs ignore by default.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0 && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    const LENGTH: usize = 4096;

    /// A directory that is removed when it is dropped.
    struct Shared(PathBuf);

    impl Shared {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("ropewalk-ucx-leftovers-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str) -> File {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).open(self.0.join(name)).unwrap();
            file.set_len(LENGTH as u64).unwrap();
            file
        }

        fn names(&self) -> Vec<String> {
            let entries = self.0.read_dir().unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort_unstable();
            names
        }
    }

    impl Drop for Shared {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_old_files_that_no_process_uses_are_removed() {
        let shared = Shared::new();
        let later = SystemTime::now() + AGE;
        for name in ["ucx_shm_posix_1f", "ucx_shm_posix_", "ucx_shm_posix_x", "other_1f"] {
            shared.file(name);
        }
        symlink(shared.0.join("other_1f"), shared.0.join("ucx_shm_posix_2")).unwrap();
        let open = shared.file("ucx_shm_posix_3");
        let mapped = shared.file("ucx_shm_posix_4");
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: the kernel chooses the address, and the descriptor is open.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), LENGTH, protection, flags, mapped.as_raw_fd(), 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        drop(mapped);
        assert_eq!(remove_from(&shared.0, SystemTime::now()), 0, "they are too young");
        assert_eq!(remove_from(&shared.0, later), 1);
        let strange = ["other_1f", "ucx_shm_posix_", "ucx_shm_posix_2"];
        let used = ["ucx_shm_posix_3", "ucx_shm_posix_4"];
        assert_eq!(shared.names(), [&strange[..], &used, &["ucx_shm_posix_x"]].concat());
        // SAFETY: the mapping was made above, and nothing refers to it.
        assert_eq!(unsafe { libc::munmap(memory, LENGTH) }, 0);
        drop(open);
        assert_eq!(remove_from(&shared.0, later), 2);
    }
}
