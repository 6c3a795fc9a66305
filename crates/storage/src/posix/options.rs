//! Options of the local file system, and the user that a store impersonates.

use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;
use rustix::fs::Gid;
use rustix::io::Errno;

use super::impersonation::{self, Impersonation};
use crate::Result;
use crate::error::Context;

/// Options of a [`super::PosixStore`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PosixOptions {
    /// The permission bits of every new file, instead of the requested ones and regardless of the
    /// umask.
    pub file_mode: Option<u32>,
    /// The same for new directories.
    pub directory_mode: Option<u32>,
    /// The user whose access rights [`crate::Metadata`] reports; `None` for those of the process.
    pub identity: Option<Identity>,
    /// Whether the store impersonates `identity`. If so, all operations on paths, and those
    /// operations on open files for which the kernel checks the user, run with the user, the group
    /// and the supplementary groups of `identity`, and without the capabilities that give root
    /// access to other users' files. This needs CAP_SETUID and CAP_SETGID ([`Identity::can_act`]).
    /// Otherwise they run as the process.
    pub act: bool,
    /// Do not follow the kernel's magic links, which lead to open files and the like
    /// (`/proc/self/fd/N`, and so `/dev/stdin`; `RESOLVE_NO_MAGICLINKS` in openat2(2)). In a server
    /// they would give access to the files of other sessions, because the kernel checks the process
    /// there, not the user. A root other than `/` never follows them. Files of /proc are also not
    /// written, and those about the process itself are not read.
    pub no_magic_links: bool,
}

/// The user of a store.
#[derive(Clone)]
pub(super) struct User {
    rights: Arc<Identity>,
    acts: bool,
}

impl User {
    pub(super) fn of(options: &PosixOptions) -> Self {
        let acts = options.act && options.identity.is_some();
        Self { rights: Arc::new(options.identity.clone().unwrap_or_else(Identity::of_process)), acts }
    }

    /// Lets the calling thread impersonate the user.
    pub(super) fn act(&self) -> std::result::Result<Impersonation, Errno> {
        impersonation::act(self.acts.then_some(&self.rights))
    }

    /// Like [`Self::act`]; the error names the operation.
    pub(super) fn act_on(&self, action: &'static str, path: &VirtualPath) -> Result<Impersonation> {
        self.act().context(action, path.as_bytes()).map_err(|error| {
            error.with_detail(format!("this process cannot act for the user {}", self.rights.uid))
        })
    }

    /// The user that is impersonated, if it is not that of the process.
    pub(super) fn acting_uid(&self) -> Option<u32> {
        self.acts.then_some(self.rights.uid)
    }
}

impl std::ops::Deref for User {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.rights
    }
}

/// The user and groups for file access.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

impl Identity {
    /// The effective user and groups of this process.
    pub fn of_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        }
    }

    /// Whether this process can impersonate users ([`PosixOptions::act`]).
    pub fn can_act() -> bool {
        impersonation::is_possible()
    }

    /// The rights that the bits of a mode grant: read, write, and execute or search.
    ///
    /// This takes no system call, which matters in long listings. Access control lists, read-only
    /// mounts and the like are not considered.
    pub(super) fn rights(&self, mode: u32, uid: u32, gid: u32, directory: bool) -> (bool, bool, bool) {
        if self.uid == 0 {
            return (true, true, directory || mode & 0o111 != 0);
        }
        let class = if uid == self.uid {
            mode >> 6
        } else if gid == self.gid || self.groups.contains(&gid) {
            mode >> 3
        } else {
            mode
        };
        (class & 4 != 0, class & 2 != 0, class & 1 != 0)
    }
}

/// Returns `None` for the number that means "do not change" to the kernel.
pub(super) fn group(gid: u32) -> Option<Gid> {
    (gid != u32::MAX).then(|| Gid::from_raw(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_use_the_first_matching_class() {
        let user = Identity { uid: 7, gid: 70, groups: vec![71] };
        assert_eq!(user.rights(0o077, 7, 70, false), (false, false, false));
        assert_eq!(user.rights(0o640, 7, 0, false), (true, true, false));
        assert_eq!(user.rights(0o750, 1, 71, true), (true, false, true));
        assert_eq!(user.rights(0o704, 1, 70, false), (false, false, false));
        assert_eq!(user.rights(0o704, 1, 1, false), (true, false, false));
    }

    #[test]
    fn rights_of_root_exclude_execution_of_other_files() {
        let root = Identity { uid: 0, gid: 0, groups: Vec::new() };
        assert_eq!(root.rights(0, 7, 7, false), (true, true, false));
        assert_eq!(root.rights(0, 7, 7, true), (true, true, true));
    }
}
