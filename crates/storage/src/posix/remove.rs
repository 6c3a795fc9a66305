//! Removal of trees that other processes cannot redirect to other directories.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};

use ropewalk_protocol::path::VirtualPath;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::{Errno, retry_on_intr};

use crate::error::Context;
use crate::{Error, Result};

/// A directory on the way down.
struct Level {
    /// Its name in the level above.
    name: CString,
    /// Device and inode, to recognise it on the way up.
    identity: (u64, u64),
}

enum Stopped {
    Refused(CString, Errno),
    /// Stopped by the caller.
    Told(Error),
}

enum Found {
    Nothing,
    Directory(CString),
}

/// Removes `name` in `parent` with everything below it. `path` is for errors.
///
/// Directories are entered by descriptor without following links, and left by `..`, which must be
/// the directory from which they were entered. One descriptor is open at a time, so the depth does
/// not matter.
pub(super) fn tree(
    parent: BorrowedFd<'_>,
    name: &[u8],
    path: &VirtualPath,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let fail = |errno: Errno| Error::from_errno(errno.raw_os_error(), "remove", path.as_bytes());
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) => return Ok(()),
        // POSIX has EPERM for a directory, Linux EISDIR.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(errno) => return Err(fail(errno)),
    }
    let top = enter(parent, name).map_err(fail)?;
    empty(top, path, go_on)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).context("remove", path.as_bytes())
}

fn empty(top: OwnedFd, path: &VirtualPath, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let mut levels: Vec<Level> = Vec::new();
    let mut here = top;
    let mut identity = identity_of(&here).context("remove", path.as_bytes())?;
    let mut buffer = Vec::with_capacity(32 << 10);
    loop {
        let failed = |name: &CString, levels: &[Level], errno: Errno| {
            let mut full = path.as_bytes().to_vec();
            for part in levels.iter().map(|level| &level.name).chain([name]) {
                full.push(b'/');
                full.extend_from_slice(part.to_bytes());
            }
            Error::from_errno(errno.raw_os_error(), "remove", full)
        };
        let removed = remove_files(&here, &mut buffer, go_on).map_err(|stopped| match stopped {
            Stopped::Refused(name, errno) => failed(&name, &levels, errno),
            Stopped::Told(error) => error,
        })?;
        match removed {
            Found::Directory(name) => {
                let below = enter(rustix::fd::AsFd::as_fd(&here), name.to_bytes())
                    .map_err(|errno| failed(&name, &levels, errno))?;
                levels.push(Level { name, identity });
                here = below;
                identity = identity_of(&here).context("remove", path.as_bytes())?;
            }
            Found::Nothing => {
                let Some(level) = levels.pop() else { return Ok(()) };
                let up = (|| {
                    let above = enter(rustix::fd::AsFd::as_fd(&here), b"..")?;
                    // Another process has moved the current directory, so the directory above it
                    // now must not be changed.
                    if identity_of(&above)? != level.identity {
                        return Err(Errno::BUSY);
                    }
                    rustix::fs::unlinkat(&above, &level.name, AtFlags::REMOVEDIR)?;
                    Ok(above)
                })();
                here = up.map_err(|errno| failed(&level.name, &levels, errno))?;
                identity = level.identity;
            }
        }
    }
}

/// Removes entries that are not directories, up to the first directory.
fn remove_files(
    directory: &OwnedFd,
    buffer: &mut Vec<u8>,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Found, Stopped> {
    // The listing begins at the start, because the descriptor is new.
    let mut raw = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            Err(errno) => return Err(Stopped::Refused(CString::default(), errno)),
        };
        go_on().map_err(Stopped::Told)?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            return Ok(Found::Directory(name.to_owned()));
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => return Ok(Found::Directory(name.to_owned())),
            // On a file system that does not report types, EPERM can also mean a directory.
            Err(Errno::PERM) if entry.file_type() == FileType::Unknown => {
                return Ok(Found::Directory(name.to_owned()));
            }
            Err(errno) => return Err(Stopped::Refused(name.to_owned(), errno)),
        }
    }
    Ok(Found::Nothing)
}

fn enter(directory: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, Mode::empty()))
}

#[allow(clippy::unnecessary_cast)]
fn identity_of(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}
