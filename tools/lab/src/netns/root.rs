//! A lab's view of the file system: that of the machine, with one more directory, which is in
//! memory. The view is a new root of the lab's mount namespace, with bind mounts of all entries of
//! the machine's root. Mounts in the lab are not visible outside.

use super::LAB_DIR;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags,
        fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
    },
};
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

/// Replaces the root of the calling thread's mount namespace by a file system in memory, which has
/// bind mounts of all entries of the old root and an empty directory [`LAB_DIR`]. The namespace
/// must be new and used by this thread only. Nothing of this is visible outside.
pub(super) fn build() -> io::Result<()> {
    // Later mounts and unmounts of the machine are propagated to the lab, but not the other way
    // round.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let configuration = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(configuration.as_fd(), "mode", "0755")?;
    fsconfig_create(configuration.as_fd())?;
    let root = fsmount(configuration.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    // The new root is mounted over the old one, which this thread still sees until it changes its
    // root.
    move_mount(root.as_fd(), "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        bind(&root, &entry)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", entry.path().display())))?;
    }
    rustix::fs::mkdirat(&root, LAB_DIR.trim_start_matches('/'), Mode::from_raw_mode(0o755))?;
    rustix::process::fchdir(&root)?;
    rustix::process::chroot(".")?;
    Ok(())
}

fn bind(root: &OwnedFd, entry: &fs::DirEntry) -> io::Result<()> {
    let (kind, name, path) = (entry.file_type()?, entry.file_name(), entry.path());
    if kind.is_symlink() {
        rustix::fs::symlinkat(&fs::read_link(path)?, root, &name)?;
        return Ok(());
    }
    if kind.is_dir() {
        rustix::fs::mkdirat(root, &name, Mode::from_raw_mode(0o755))?;
    } else {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::WRONLY;
        rustix::fs::openat(root, &name, flags, Mode::from_raw_mode(0o644))?;
    }
    let tree = copy(&path)?;
    move_mount(tree.as_fd(), "", root.as_fd(), &name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

/// Returns a copy of the mounts at a path, which is not mounted yet.
pub(super) fn copy(path: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, path, flags | OpenTreeFlags::AT_RECURSIVE) {
        // A mount below the path may forbid copying; then only the top mount is copied.
        Err(Errno::INVAL) => Ok(open_tree(CWD, path, flags)?),
        result => Ok(result?),
    }
}

pub(super) fn exists(path: &str) -> bool {
    rustix::fs::statat(CWD, path, AtFlags::empty()).is_ok()
}
