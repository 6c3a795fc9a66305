//! The attributes of entries, as far as a far server reports them.

use ropewalk_client::Entry;
use ropewalk_storage::{Kind, Metadata};

/// The ID of an owner or group that the server does not report as a number (the user `nobody`).
const UNKNOWN: u32 = 65_534;

/// The attributes of an entry that exists only in this process, or of which nothing else is known.
pub(crate) fn synthetic(kind: Kind, size: u64, mode: u32) -> Metadata {
    Metadata {
        kind,
        size,
        modified: (0, 0),
        changed: (0, 0),
        mode,
        uid: UNKNOWN,
        gid: UNKNOWN,
        device: 0,
        inode: 0,
        links: 1,
        blocks: size.div_ceil(512),
        target: None,
        // The far server checks permissions.
        readable: true,
        writable: true,
        searchable: true,
    }
}

pub(crate) fn metadata(entry: &Entry) -> Metadata {
    let usual = if entry.is_directory() { 0o755 } else { 0o644 };
    let size = if entry.is_directory() { 0 } else { entry.size.unwrap_or(0) };
    let modified = (entry.modified.unwrap_or(0), 0);
    let (device, inode) = entry.identity.unwrap_or_default();
    let number = |name: &Option<String>| name.as_ref().and_then(|name| name.parse().ok()).unwrap_or(UNKNOWN);
    Metadata {
        modified,
        changed: modified,
        uid: number(&entry.owner),
        gid: number(&entry.group),
        device,
        inode,
        target: entry.target.clone().filter(|_| entry.kind == Kind::Symlink),
        ..synthetic(entry.kind, size, entry.mode.unwrap_or(usual))
    }
}
