//! The process itself, as /proc shows it.
//!
//! The kernel lets every thread of a process see all of it there (memory maps, names of open files), also a thread that acts for a
//! user who may see none of it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::root::name_of;

/// The inode of the uppermost directory of each /proc.
const TOP: u64 = 1;

/// A file or directory of /proc.
pub(super) fn is_of_kernel(fd: BorrowedFd<'_>) -> bool {
    // To ask a file system across a network about itself for each file takes its time.
    rustix::fs::fstat(fd).is_ok_and(|stat| looks_empty(&stat)) && is_proc(fd)
}

/// As all of them do; only directories of descriptors have a size.
fn looks_empty(stat: &Stat) -> bool {
    stat.st_blocks == 0 && (stat.st_size == 0 || FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

/// Something of this process or of one of its threads, by whatever name and in whatever /proc; also if that cannot be found out.
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
    // The uppermost directory itself, which shows nothing of processes but their numbers.
    is_top(fd).map(|top| !top)
}

fn is_top(directory: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(rustix::fs::fstat(directory)?.st_ino == TOP)
}

/// Whether an entry of the uppermost directory is a thread of this process; one that is there no longer may have been.
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
