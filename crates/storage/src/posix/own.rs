//! Detects the entries of the process itself in /proc.
//!
//! The kernel lets every thread of a process read all about the process there (memory maps, names
//! of open files), also a thread that impersonates a user who must not see any of it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::root::name_of;

/// The inode of the top directory of each /proc.
const TOP: u64 = 1;

/// Whether the descriptor is a file or directory of /proc.
pub(super) fn is_of_kernel(fd: BorrowedFd<'_>) -> bool {
    // The cheap check comes first, because querying a network file system for each file takes time.
    rustix::fs::fstat(fd).is_ok_and(|stat| looks_empty(&stat)) && is_proc(fd)
}

/// Whether it looks like an entry of /proc; only directories of descriptors have a size there.
fn looks_empty(stat: &Stat) -> bool {
    stat.st_blocks == 0 && (stat.st_size == 0 || FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Whether the descriptor belongs to this process or one of its threads, by any name and in any
/// /proc. Also true if that cannot be determined.
pub(super) fn is_of_process(fd: BorrowedFd<'_>) -> bool {
    is_of_kernel(fd) && find(fd).unwrap_or(true)
}

fn is_proc(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|system| system.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

fn find(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let path = rustix::fs::readlink(name_of(fd), Vec::new())?.into_bytes();
    let path = Path::new(OsStr::from_bytes(&path));
    let names = path.ancestors().zip(path.ancestors().skip(1));
    for (whole, above) in names.collect::<Vec<_>>().into_iter().rev() {
        let Some(Component::Normal(name)) = whole.components().next_back() else { continue };
        let above = rustix::fs::openat(CWD, above, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if is_proc(above.as_fd()) {
            return if is_top(above.as_fd())? { is_own(&above, name) } else { Ok(true) };
        }
    }
    // The top directory itself, which shows nothing of processes except their numbers.
    is_top(fd).map(|top| !top)
}

fn is_top(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(rustix::fs::fstat(directory)?.st_ino == TOP)
}

/// Whether an entry of the top directory is a thread of this process. An entry that does not exist
/// any more may have been one.
fn is_own(proc: &OwnedFd, name: &OsStr) -> Result<bool, Errno> {
    if !name.as_bytes().iter().all(u8::is_ascii_digit) {
        return Ok(false);
    }
    let exists = |path: &Path| match rustix::fs::statat(proc, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::SRCH) => Ok(false),
        Err(errno) => Err(errno),
    };
    Ok(!exists(Path::new(name))? || exists(&Path::new("self/task").join(name))?)
}
