use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;
use rustix::fs::Gid;
use rustix::io::Errno;

use super::acting::{self, Acting};
use crate::Result;
use crate::error::Context;

/// How a [`super::PosixStore`] works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PosixOptions {
    /// The permission bits of every new file, whatever was asked for and whatever the umask says.
    pub file_mode: Option<u32>,
    /// The same for new directories.
    pub directory_mode: Option<u32>,
    /// Whose rights [`crate::Metadata`] tells; `None`: those of the process.
    pub identity: Option<Identity>,
    /// The kernel goes by `identity` too: whatever is done with a path, and with an open file where the kernel asks who
    /// does it, is done with the user, the group and the supplementary groups of `identity`, and without the
    /// capabilities by which root has its way with the files of others. Needs CAP_SETUID and CAP_SETGID
    /// ([`Identity::can_act`]). `false`: it is done as the process.
    pub act: bool,
    /// Links that the kernel makes up and that lead to open files and the like (`/proc/self/fd/N`, and so `/dev/stdin`;
    /// `RESOLVE_NO_MAGICLINKS` in openat2(2)) lead nowhere. To a server's sessions they would be the files of other sessions:
    /// the kernel asks for the process there, not for the user. A root other than `/` never follows them. Nor are files of
    /// /proc written, or those read that tell of the process itself.
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

    /// Has the calling thread act for the user.
    pub(super) fn act(&self) -> std::result::Result<Acting, Errno> {
        acting::act(self.acts.then_some(&self.rights))
    }

    /// As [`Self::act`]; the error speaks of what was to be done.
    pub(super) fn act_on(&self, action: &'static str, path: &VirtualPath) -> Result<Acting> {
        self.act().context(action, path.as_bytes()).map_err(|error| {
            error.with_detail(format!("this process cannot act for the user {}", self.rights.uid))
        })
    }

    /// The user that the kernel goes by, where that is not the process's.
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

/// Who works with the files.
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

    /// Whether this process can work with files as another user ([`PosixOptions::act`]).
    pub fn can_act() -> bool {
        acting::is_possible()
    }

    /// What the bits of a mode grant: read, write, execute or search.
    ///
    /// It takes no system call, which matters in long listings; access control lists, read-only mounts and the like
    /// are not seen.
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

/// `None` for the number that means "leave as it is" to the kernel.
pub(super) fn group(gid: u32) -> Option<Gid> {
    (gid != u32::MAX).then(|| Gid::from_raw(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_go_by_the_first_class_that_fits() {
        let user = Identity { uid: 7, gid: 70, groups: vec![71] };
        assert_eq!(user.rights(0o077, 7, 70, false), (false, false, false));
        assert_eq!(user.rights(0o640, 7, 0, false), (true, true, false));
        assert_eq!(user.rights(0o750, 1, 71, true), (true, false, true));
        assert_eq!(user.rights(0o704, 1, 70, false), (false, false, false));
        assert_eq!(user.rights(0o704, 1, 1, false), (true, false, false));
    }

    #[test]
    fn the_superuser_may_all_but_run_what_is_no_program() {
        let root = Identity { uid: 0, gid: 0, groups: Vec::new() };
        assert_eq!(root.rights(0, 7, 7, false), (true, true, false));
        assert_eq!(root.rights(0, 7, 7, true), (true, true, true));
    }
}
