//! Kinds of file systems, identified by the numbers of linux/magic.h and of the file systems
//! themselves.

use std::os::fd::BorrowedFd;

/// ext2, ext3 and ext4.
pub(super) const EXT4: u64 = 0xef53;
pub(super) const XFS: u64 = 0x5846_5342;

/// File systems on local disks, whose files can be closed without errors.
const LOCAL: [u64; 15] = [
    EXT4,
    XFS,
    0x9123_683e, // Btrfs
    0x2fc1_2fc1, // ZFS
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs, whose upper directory is local
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x3434,      // NILFS
    0x4d44,      // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // NTFS
];

/// The number of a file's file system, and how many bytes are free there for unprivileged users;
/// `None` if it cannot be determined.
pub(super) fn system_of(file: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstatfs(file).ok()?;
    // The types of the fields depend on the architecture.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast)]
    Some((stat.f_type as u64 & 0xffff_ffff, (stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64)))
}

pub(super) fn is_local(system: u64) -> bool {
    LOCAL.contains(&system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_local_is_false_for_network_file_systems() {
        for (magic, local) in [(EXT4, true), (0x6969, false), (0xff53_4d42, false), (0x6573_5546, false)] {
            assert_eq!(is_local(magic), local, "{magic:x}");
        }
    }
}
