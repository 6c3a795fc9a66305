//! Network namespaces and the namespaces that belong to them, without names in the file system.
//!
//! A lab has one mount and one PID namespace. The first process of the PID namespace is a child
//! process that ends with this process. Each host of the lab has a network, a host name and a view
//! of the mounts of its own. Only descriptors of this process hold the namespaces. So when this
//! process ends for any reason, the kernel kills the lab's programs and removes its interfaces,
//! mounts and temporary files.

mod base;
mod host;
mod link;
mod root;
mod sysctl;

pub(crate) use base::{Base, LAB_DIR};
pub(crate) use host::{HostSpace, Spaces};
pub(crate) use link::{Ends, configure};
pub(crate) use sysctl::{Applied, SysctlError, apply, number};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::{io, os::fd::AsFd, thread};

/// Moves the calling thread into new namespaces.
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: descriptors stay shared, because FILES is never among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(io::Error::from)
}

/// Moves the calling thread into a namespace.
fn enter(namespace: impl AsFd, kind: LinkNameSpaceType) -> io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(kind)).map_err(io::Error::from)
}

/// Runs `work` on a thread of its own. The thread may enter namespaces and is not used for anything
/// else afterwards.
pub(crate) fn aside<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("lab-namespace".into()).spawn_scoped(scope, work)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
