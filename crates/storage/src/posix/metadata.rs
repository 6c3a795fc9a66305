//! Converts the kernel's file attributes.

use rustix::fs::{FileType, Stat};

use super::Identity;
use crate::{Kind, Metadata};

pub(super) struct Stats(pub(super) Stat);

impl Stats {
    pub(super) fn kind(&self) -> Kind {
        kind(FileType::from_raw_mode(self.0.st_mode)).unwrap_or(Kind::File)
    }

    // The types of the fields depend on the architecture.
    #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
    pub(super) fn metadata(&self, identity: &Identity) -> Metadata {
        let stat = &self.0;
        let kind = self.kind();
        let mode = stat.st_mode & 0o7777;
        let (readable, writable, searchable) =
            identity.rights(mode, stat.st_uid, stat.st_gid, kind == Kind::Directory);
        Metadata {
            kind,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
            mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            links: stat.st_nlink as u64,
            blocks: stat.st_blocks as u64,
            target: None,
            readable,
            writable,
            searchable,
        }
    }
}

pub(super) fn kind(file_type: FileType) -> Option<Kind> {
    Some(match file_type {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::CharacterDevice,
        FileType::BlockDevice => Kind::BlockDevice,
        FileType::Unknown => return None,
    })
}
