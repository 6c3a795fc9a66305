//! Opens files and directories under the control of a guard.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ropewalk_protocol::path::VirtualPath;
use rustix::fs::{Mode, OFlags};

use super::PosixStore;
use super::own;
use super::root::{Place, name_of};
use crate::error::Context;
use crate::{Error, ErrorKind, Purpose, Result};

impl PosixStore {
    /// Opens an existing entry.
    pub(super) fn opened(
        &self,
        path: &VirtualPath,
        flags: OFlags,
        action: &'static str,
        purpose: Purpose,
    ) -> Result<OwnedFd> {
        let fd = self.root.open_at(path, flags, Mode::empty()).context(action, path.as_bytes())?;
        // For kernel settings (/proc/sys), the kernel checks the process, not the impersonated user
        // of the thread.
        if purpose == Purpose::Write && self.options.no_magic_links && own::is_of_kernel(fd.as_fd()) {
            return Err(Error::new(ErrorKind::PermissionDenied, action, path.as_bytes())
                .with_detail("settings of the kernel are not written"));
        }
        self.refuse_own(fd.as_fd(), path, action)?;
        self.ask_of_open(fd.as_fd(), path, action, purpose)?;
        Ok(fd)
    }

    /// The place of an entry, which need not exist. The operation must use the place and not the
    /// path, which may lead elsewhere later.
    pub(super) fn place<'p>(
        &'p self,
        path: &'p VirtualPath,
        action: &'static str,
        purpose: Purpose,
    ) -> Result<Place<'p>> {
        let near = self.near.as_ref().and_then(|near| near.place(path));
        let place = match (near, &self.guard) {
            (Some(place), _) => Ok(place),
            (None, None) => self.root.place(path),
            (None, Some(_)) => self.root.opened_place(path),
        };
        let place = place.context(action, path.as_bytes())?;
        self.refuse_own(place.directory(), path, action)?;
        self.ask_of_entry(&place, path, action, purpose)?;
        Ok(place)
    }

    /// Refuses the data of the process itself in /proc.
    pub(super) fn refuse_own(
        &self,
        fd: BorrowedFd<'_>,
        path: &VirtualPath,
        action: &'static str,
    ) -> Result<()> {
        if self.options.no_magic_links && own::is_of_process(fd) {
            return Err(Error::new(ErrorKind::PermissionDenied, action, path.as_bytes())
                .with_detail("the server's own process is not shown"));
        }
        Ok(())
    }

    /// Whether the directory that contains `path` is kept open.
    pub(super) fn is_near(&self, path: &VirtualPath) -> bool {
        self.near.as_ref().is_some_and(|near| near.place(path).is_some())
    }

    /// A name of the target of `path`, for calls that do not take descriptors. It is valid while
    /// the returned descriptor is open.
    pub(super) fn followed(
        &self,
        path: &VirtualPath,
        action: &'static str,
    ) -> Result<(Option<OwnedFd>, Vec<u8>)> {
        if self.root.is_plain() && self.guard.is_none() {
            return Ok((None, path.as_bytes().to_vec()));
        }
        let fd = self.opened(path, OFlags::PATH, action, Purpose::Write)?;
        let name = name_of(fd.as_fd());
        Ok((Some(fd), name))
    }

    pub(super) fn ask_of_open(
        &self,
        fd: BorrowedFd<'_>,
        path: &VirtualPath,
        action: &'static str,
        purpose: Purpose,
    ) -> Result<()> {
        match &self.guard {
            None => Ok(()),
            Some(_) => self.ask(&self.root.path_of(fd, path)?, path, action, purpose),
        }
    }

    /// `path` is the path to the place, for errors.
    pub(super) fn ask_of_entry(
        &self,
        place: &Place<'_>,
        path: &VirtualPath,
        action: &'static str,
        purpose: Purpose,
    ) -> Result<()> {
        if self.guard.is_none() {
            return Ok(());
        }
        let directory = self.root.path_of(place.directory(), path)?;
        let real = match place.name() {
            b"." => directory,
            name => {
                directory.child(name).map_err(|_| Error::new(ErrorKind::Invalid, action, path.as_bytes()))?
            }
        };
        self.ask(&real, path, action, purpose)
    }

    fn ask(
        &self,
        real: &VirtualPath,
        path: &VirtualPath,
        action: &'static str,
        purpose: Purpose,
    ) -> Result<()> {
        if self.guard.as_ref().is_none_or(|guard| guard(real, purpose)) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotAllowed, action, path.as_bytes()))
    }
}
