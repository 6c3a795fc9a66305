//! Resolves paths below a root component by component, if the kernel cannot do it (no `openat2`:
//! before Linux 5.6).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bstr::{BString, ByteSlice};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// A walk from the root. The passed directories stay open, so `..` is always one that was passed,
/// even if another process moves directories meanwhile.
struct Walk<'r> {
    root: BorrowedFd<'r>,
    passed: Vec<OwnedFd>,
    /// The components still to walk, the next one last.
    ahead: Vec<BString>,
    links: usize,
}

/// Opens `path`, relative to `root`, as `openat2` does with `RESOLVE_IN_ROOT`.
pub(super) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut walk = Walk { root, passed: Vec::new(), ahead: Vec::new(), links: 0 };
    walk.push(path);
    while let Some(name) = walk.ahead.pop() {
        if name == ".." {
            walk.passed.pop();
        } else if walk.ahead.is_empty() {
            if let Some(fd) = walk.last(&name, flags, mode)? {
                return Ok(fd);
            }
        } else {
            walk.step(&name)?;
        }
    }
    // The path ended with `..` or at the root, so the result is a directory that is already open.
    if flags.contains(OFlags::CREATE | OFlags::EXCL) {
        return Err(Errno::EXIST);
    }
    open_at(walk.here(), b".", flags - OFlags::CREATE, Mode::empty())
}

impl Walk<'_> {
    fn here(&self) -> BorrowedFd<'_> {
        self.passed.last().map_or(self.root, OwnedFd::as_fd)
    }

    fn push(&mut self, path: &[u8]) {
        let components = path.rsplit_str("/").filter(|c| !c.is_empty() && *c != b".");
        self.ahead.extend(components.map(BString::from));
    }

    /// Enters a directory, or replaces the component by the target of a symbolic link.
    fn step(&mut self, name: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open_at(self.here(), name, flags, Mode::empty()) {
            Ok(fd) => {
                self.passed.push(fd);
                Ok(())
            }
            Err(error @ (Errno::NOTDIR | Errno::LOOP)) => self.follow(name, error),
            Err(error) => Err(error),
        }
    }

    /// Opens the last component; returns `None` if it was a symbolic link, whose target must be
    /// walked then.
    fn last(&mut self, name: &[u8], flags: OFlags, mode: Mode) -> Result<Option<OwnedFd>, Errno> {
        let exact = flags.contains(OFlags::NOFOLLOW) || flags.contains(OFlags::EXCL);
        match open_at(self.here(), name, flags | OFlags::NOFOLLOW, mode) {
            // With O_PATH and O_NOFOLLOW the kernel opens a link itself.
            Ok(fd) if !exact && flags.contains(OFlags::PATH) && is_link(&fd)? => {
                self.follow(name, Errno::LOOP)?;
                Ok(None)
            }
            Ok(fd) => Ok(Some(fd)),
            Err(error @ (Errno::NOTDIR | Errno::LOOP)) if !exact => {
                self.follow(name, error)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// `otherwise` is the error if `name` is not a link.
    fn follow(&mut self, name: &[u8], otherwise: Errno) -> Result<(), Errno> {
        let target = match rustix::fs::readlinkat(self.here(), name, Vec::new()) {
            Ok(target) => target.into_bytes(),
            Err(Errno::INVAL) => return Err(otherwise),
            Err(error) => return Err(error),
        };
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(Errno::LOOP);
        }
        if target.starts_with(b"/") {
            self.passed.clear();
        }
        self.push(&target);
        Ok(())
    }
}

fn open_at(directory: BorrowedFd<'_>, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| rustix::fs::openat(directory, name, flags, mode))
}

fn is_link(fd: &OwnedFd) -> Result<bool, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) == FileType::Symlink)
}
