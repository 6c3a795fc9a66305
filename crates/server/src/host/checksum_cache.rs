//! Checksums of whole files that were computed while their data passed.
//!
//! The cache belongs to the host and is used by the threads of all sessions. A sum is only returned
//! for a file whose size and times have not changed, and only to sessions that work as the same
//! user.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::Metadata;

/// Sums of smaller files, in bytes, are computed as fast as they are looked up.
const WORTH_KEEPING: u64 = 64 << 10;
/// The most files in the cache.
const MOST: usize = 4096;

#[derive(Default)]
pub(crate) struct ChecksumCache(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: HashMap<Identity, Sum>,
    /// Oldest first.
    order: VecDeque<Identity>,
}

type Identity = (u64, u64);

struct Sum {
    /// The user who worked with the file when the sum was computed. Other users do not have to
    /// trust it.
    who: Option<u32>,
    path: VirtualPath,
    size: u64,
    modified: (i64, u32),
    /// The time of the last change of the inode. Programs that restore files set the modification
    /// time to its old value, but cannot set this one.
    changed: (i64, u32),
    algorithm: ChecksumAlgorithm,
    value: String,
}

impl ChecksumCache {
    /// Whether the sum of a file of `size` bytes is worth remembering.
    pub(crate) fn is_worth_keeping(size: u64) -> bool {
        size >= WORTH_KEEPING
    }

    /// Remembers `value` as the sum of all of the file, which is in the state of `metadata`. `who`
    /// is the user that the session works as, if that is not the server's user.
    pub(crate) fn remember(
        &self,
        who: Option<u32>,
        path: &VirtualPath,
        metadata: &Metadata,
        algorithm: ChecksumAlgorithm,
        value: &str,
    ) {
        let mut known = self.0.lock();
        let sum = Sum {
            who,
            path: path.clone(),
            size: metadata.size,
            modified: metadata.modified,
            changed: metadata.changed,
            algorithm,
            value: value.to_owned(),
        };
        if known.files.insert(identity(metadata), sum).is_none() {
            known.order.push_back(identity(metadata));
        }
        while known.order.len() > MOST {
            if let Some(oldest) = known.order.pop_front() {
                known.files.remove(&oldest);
            }
        }
    }

    /// Returns the sum if the file has not changed.
    pub(crate) fn recall(
        &self,
        who: Option<u32>,
        path: &VirtualPath,
        metadata: &Metadata,
        algorithm: ChecksumAlgorithm,
    ) -> Option<String> {
        let known = self.0.lock();
        let sum = known.files.get(&identity(metadata))?;
        let same = sum.who == who
            && sum.algorithm == algorithm
            && sum.size == metadata.size
            && sum.modified == metadata.modified
            && sum.changed == metadata.changed
            && sum.path == *path;
        same.then(|| sum.value.clone())
    }

    /// Forgets the sum of a file that is about to be written in place, which its times may not
    /// show.
    pub(crate) fn forget(&self, metadata: &Metadata) {
        let mut known = self.0.lock();
        if known.files.remove(&identity(metadata)).is_some() {
            // Otherwise the file would be in the order twice once its sum is known again.
            known.order.retain(|other| *other != identity(metadata));
        }
    }
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.device, metadata.inode)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_storage::Kind;

    use super::*;

    fn file(inode: u64, size: u64) -> Metadata {
        Metadata {
            kind: Kind::File,
            size,
            modified: (1, 2),
            changed: (3, 4),
            mode: 0o644,
            uid: 0,
            gid: 0,
            device: 1,
            inode,
            links: 1,
            blocks: 0,
            target: None,
            readable: true,
            writable: true,
            searchable: false,
        }
    }

    #[test]
    fn cache_after_change_of_file_forgets_sum() {
        let cache = ChecksumCache::default();
        let path = VirtualPath::parse(b"/a").unwrap();
        let algorithm = ChecksumAlgorithm::Crc32c;
        cache.remember(None, &path, &file(1, 10), algorithm, "abcd");
        assert_eq!(cache.recall(None, &path, &file(1, 10), algorithm).as_deref(), Some("abcd"));
        assert_eq!(cache.recall(None, &path, &file(1, 11), algorithm), None);
        assert_eq!(cache.recall(None, &path, &file(2, 10), algorithm), None);
        assert_eq!(cache.recall(None, &path, &file(1, 10), ChecksumAlgorithm::Md5), None);
        assert_eq!(cache.recall(Some(7), &path, &file(1, 10), algorithm), None);
        assert_eq!(cache.recall(None, &VirtualPath::root(), &file(1, 10), algorithm), None);
        let touched = Metadata { changed: (3, 5), ..file(1, 10) };
        assert_eq!(cache.recall(None, &path, &touched, algorithm), None);
        cache.forget(&file(1, 10));
        assert_eq!(cache.recall(None, &path, &file(1, 10), algorithm), None);
        cache.remember(None, &path, &file(1, 10), algorithm, "abcd");
        assert_eq!(cache.0.lock().order.len(), 1);
    }

    #[test]
    fn cache_when_full_forgets_oldest() {
        let cache = ChecksumCache::default();
        let path = VirtualPath::parse(b"/a").unwrap();
        for inode in 0..=MOST as u64 {
            cache.remember(None, &path, &file(inode, 1), ChecksumAlgorithm::Crc32c, "x");
        }
        assert_eq!(cache.recall(None, &path, &file(0, 1), ChecksumAlgorithm::Crc32c), None);
        assert!(cache.recall(None, &path, &file(1, 1), ChecksumAlgorithm::Crc32c).is_some());
    }
}
