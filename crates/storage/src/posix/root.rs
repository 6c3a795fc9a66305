//! Opens paths below the root. The kernel resolves them with `openat2`; without that call, the
//! module `manual` does. If the root is `/` itself, paths are used directly.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use bstr::ByteSlice;
use ropewalk_protocol::path::VirtualPath;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::manual;
use crate::error::Context;
use crate::{Error, ErrorKind, Result};

/// How often the kernel retries a resolution that another process disturbed (EAGAIN).
const ATTEMPTS: usize = 32;

pub(super) struct Root {
    directory: OwnedFd,
    /// Whether the root is `/` and all links are followed: paths are then used directly.
    plain: bool,
    /// The kernel has no `openat2`, or a filter forbids it.
    pub(super) manual: AtomicBool,
}

/// The place of an entry: its directory, and its name there.
pub(super) struct Place<'p> {
    directory: Directory<'p>,
    name: &'p [u8],
}

/// A directory that is kept open.
pub(super) struct Near {
    path: VirtualPath,
    directory: OwnedFd,
}

impl Near {
    pub(super) fn is(&self, path: &VirtualPath) -> bool {
        self.path == *path
    }

    /// Opens the directory itself, for operations that do not accept an O_PATH descriptor.
    pub(super) fn open_again(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.directory, ".", flags | OFlags::CLOEXEC, Mode::empty())
    }

    /// The place of an entry of this directory; `None` for any other path.
    pub(super) fn place<'p>(&'p self, path: &'p VirtualPath) -> Option<Place<'p>> {
        let name = path.file_name()?.as_bytes();
        let parent = &path.as_bytes()[..path.as_bytes().len() - name.len()];
        let here = self.path.as_bytes();
        let is_entry =
            if self.path.is_root() { parent == b"/" } else { parent.strip_suffix(b"/") == Some(here) };
        is_entry.then(|| Place { directory: Directory::Borrowed(self.directory.as_fd()), name })
    }
}

enum Directory<'p> {
    Opened(OwnedFd),
    Borrowed(BorrowedFd<'p>),
}

impl Place<'_> {
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        match &self.directory {
            Directory::Opened(fd) => fd.as_fd(),
            Directory::Borrowed(fd) => *fd,
        }
    }

    pub(super) fn name(&self) -> &[u8] {
        self.name
    }

    /// The place of another entry in the same directory.
    pub(super) fn sibling<'a>(&'a self, path: &'a VirtualPath) -> Place<'a> {
        // If paths are used directly, the name is the whole path.
        let whole = self.name.starts_with(b"/");
        let name =
            if whole { path.as_bytes() } else { path.file_name().map_or(&b"."[..], |name| name.as_bytes()) };
        Place { directory: Directory::Borrowed(self.directory()), name }
    }
}

impl Root {
    /// Opens the root. With `as_it_is`, paths below the root `/` are resolved by the kernel alone.
    pub(super) fn open(path: &Path, as_it_is: bool) -> Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).context("open root", bytes)?;
        let stat = rustix::fs::fstat(&directory).context("open root", bytes)?;
        let system = rustix::fs::stat("/").context("open root", "/")?;
        let plain = as_it_is && (stat.st_dev, stat.st_ino) == (system.st_dev, system.st_ino);
        Ok(Self { directory, plain, manual: AtomicBool::new(false) })
    }

    /// Opens a path below the root; the descriptor is closed on exec.
    pub(super) fn open_at(&self, path: &VirtualPath, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        // `openat2` refuses a mode if no file is created.
        let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
        if self.plain {
            return retry_on_intr(|| rustix::fs::openat(CWD, path.as_bytes(), flags, mode));
        }
        let inner = if path.is_root() { b"." } else { &path.as_bytes()[1..] };
        if self.manual.load(Ordering::Relaxed) {
            return manual::open(self.directory.as_fd(), inner, flags, mode);
        }
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..ATTEMPTS {
            match rustix::fs::openat2(&self.directory, inner, flags, mode, resolve) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                // Container filters that do not know the call return EPERM.
                Err(Errno::NOSYS | Errno::PERM) if !self.has_openat2() => break,
                result => return result,
            }
        }
        manual::open(self.directory.as_fd(), inner, flags, mode)
    }

    /// Tests for `openat2`, and remembers if it is missing.
    fn has_openat2(&self) -> bool {
        let probe = rustix::fs::openat2(
            &self.directory,
            ".",
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT,
        );
        let missing = matches!(probe, Err(Errno::NOSYS | Errno::PERM));
        if missing {
            self.manual.store(true, Ordering::Relaxed);
        }
        !missing
    }

    pub(super) fn open_near(&self, path: &VirtualPath) -> Result<Near, Errno> {
        let directory = self.open_at(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Near { path: path.clone(), directory })
    }

    /// The directory that contains `path`, and its name there.
    pub(super) fn place<'p>(&'p self, path: &'p VirtualPath) -> Result<Place<'p>, Errno> {
        if self.plain {
            return Ok(Place { directory: Directory::Borrowed(CWD), name: path.as_bytes() });
        }
        self.opened_place(path)
    }

    /// Like [`Self::place`], but always with an open directory. The root is `.` in itself.
    pub(super) fn opened_place<'p>(&'p self, path: &'p VirtualPath) -> Result<Place<'p>, Errno> {
        let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
            return Ok(Place { directory: Directory::Borrowed(self.directory.as_fd()), name: b"." });
        };
        let directory = if parent.is_root() {
            Directory::Borrowed(self.directory.as_fd())
        } else {
            Directory::Opened(self.open_at(&parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?)
        };
        Ok(Place { directory, name: name.as_bytes() })
    }

    pub(super) fn stat(&self, path: &VirtualPath) -> Result<Stat, Errno> {
        if self.plain {
            return rustix::fs::stat(path.as_bytes());
        }
        rustix::fs::fstat(self.open_at(path, OFlags::PATH, Mode::empty())?)
    }

    /// Whether paths are used directly.
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(super) fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        let fd = self.open_at(path, OFlags::PATH, Mode::empty()).context("resolve", path.as_bytes())?;
        self.path_of(fd.as_fd(), path)
    }

    /// The current path of an open file or directory in the store. `path` is the one it was opened
    /// by, for errors.
    pub(super) fn path_of(&self, fd: BorrowedFd<'_>, path: &VirtualPath) -> Result<VirtualPath> {
        let resolve = || -> Result<(Vec<u8>, Vec<u8>), Errno> {
            let real = rustix::fs::readlink(name_of(fd), Vec::new())?.into_bytes();
            // A removed file has no path any more.
            if real.ends_with(b" (deleted)") && rustix::fs::fstat(fd)?.st_nlink == 0 {
                return Err(Errno::NOENT);
            }
            // The root may have been moved too, so its current path is read.
            let root = rustix::fs::readlink(name_of(self.directory.as_fd()), Vec::new())?.into_bytes();
            Ok((real, root))
        };
        let (real, root) = resolve().context("resolve", path.as_bytes())?;
        let outside = || Error::new(ErrorKind::Outside, "resolve", path.as_bytes());
        let root = if root == b"/" { &b""[..] } else { &root };
        let inner = real
            .strip_prefix(root)
            .filter(|inner| inner.is_empty() || inner[0] == b'/')
            .ok_or_else(outside)?;
        VirtualPath::parse(if inner.is_empty() { b"/" } else { inner }).map_err(|_| outside())
    }
}

/// A name of an open file, for calls that do not take descriptors. It is valid while the file is
/// open.
pub(super) fn name_of(fd: BorrowedFd<'_>) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}
