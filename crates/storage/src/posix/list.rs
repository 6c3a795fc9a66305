//! Listings of directories of the local file system.

use std::os::fd::{BorrowedFd, OwnedFd};

use bstr::{BStr, BString};
use ropewalk_protocol::path::VirtualPath;
use rustix::fs::{AtFlags, FileType, RawDir};
use rustix::io::Errno;

use super::Identity;
use super::metadata::{Stats, kind};
use crate::error::Context;
use crate::{Kind, ListSink, Metadata, Result};

/// Room for the result of one call to the kernel: some hundred entries.
const BUFFER: usize = 32 << 10;

/// Passes every entry of an open directory for which `shown` returns true to `sink`. Memory does
/// not grow with the directory.
pub(super) fn entries(
    directory: &OwnedFd,
    path: &VirtualPath,
    identity: &Identity,
    shown: &dyn Fn(&[u8]) -> bool,
    sink: &mut ListSink<'_>,
) -> Result<()> {
    let mut buffer = Vec::with_capacity(BUFFER);
    let mut raw = RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(entry) = raw.next() {
        let entry = match entry {
            Ok(entry) => entry,
            // The directory itself was removed meanwhile: there are no more entries.
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno).context("list", path.as_bytes()),
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." || !shown(name) {
            continue;
        }
        // A listing does not trigger automounts.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let metadata = match rustix::fs::statat(directory, entry.file_name(), flags) {
            Ok(stats) => {
                let mut metadata = Stats(stats).metadata(identity);
                fill_target(&mut metadata, rustix::fd::AsFd::as_fd(directory), name);
                metadata
            }
            // Removed since the directory was read.
            Err(Errno::NOENT) => continue,
            // An entry that cannot be accessed (a dead mount, no search permission) must not hide
            // the others.
            Err(_) => unknown(entry.file_type(), entry.ino()),
        };
        sink(BStr::new(name), metadata)?;
    }
    Ok(())
}

/// Reads the target of a symbolic link.
pub(super) fn fill_target(metadata: &mut Metadata, directory: BorrowedFd<'_>, name: &[u8]) {
    if metadata.kind == Kind::Symlink {
        let target = rustix::fs::readlinkat(directory, name, Vec::new());
        metadata.target = target.ok().map(|target| BString::from(target.into_bytes()));
    }
}

fn unknown(file_type: FileType, inode: u64) -> Metadata {
    Metadata {
        kind: kind(file_type).unwrap_or(Kind::File),
        size: 0,
        modified: (0, 0),
        changed: (0, 0),
        mode: 0,
        uid: u32::MAX,
        gid: u32::MAX,
        device: 0,
        inode,
        links: 1,
        blocks: 0,
        target: None,
        readable: false,
        writable: false,
        searchable: false,
    }
}
