//! Keys of an issuer in a file.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::KeysError;
use crate::jwk::{KeySet, LONGEST_SET};

/// A JWK set on disk. It is read again after it has changed. If it is invalid then, all tokens are
/// refused: a removed key must not remain valid because of a typing error.
pub(crate) struct Pinned {
    path: PathBuf,
    current: Mutex<(Stamp, Arc<KeySet>)>,
}

/// Attributes of a file that differ after the file was changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

impl Pinned {
    pub(crate) fn load(path: &Path) -> Result<Self, KeysError> {
        let loaded = load(path).map_err(|reason| KeysError::File { path: path.to_owned(), reason })?;
        Ok(Self { path: path.to_owned(), current: Mutex::new(loaded) })
    }

    pub(crate) fn get(&self) -> Result<Arc<KeySet>, KeysError> {
        let wrong = |reason: String| KeysError::File { path: self.path.clone(), reason };
        let now = std::fs::metadata(&self.path).map_err(|e| wrong(e.to_string()))?;
        let mut current = self.current.lock();
        if current.0 != Stamp::of(&now) {
            *current = load(&self.path).map_err(wrong)?;
            tracing::info!(path = %self.path.display(), "keys of an issuer read again");
        }
        Ok(Arc::clone(&current.1))
    }
}

fn load(path: &Path) -> Result<(Stamp, Arc<KeySet>), String> {
    let file = ropewalk_files::open(path).map_err(|e| e.to_string())?;
    let metadata = file.metadata().map_err(|e| e.to_string())?;
    // A user who can write the file can make tokens for any user.
    let us = rustix::process::geteuid().as_raw();
    if metadata.mode() & 0o022 != 0 || (metadata.uid() != us && metadata.uid() != 0) {
        return Err(
            "others may change it: it must belong to root or this user, with mode 0644 or less".into()
        );
    }
    let text = ropewalk_files::content(&file, LONGEST_SET as u64).map_err(|e| e.to_string())?;
    Ok((Stamp::of(&metadata), Arc::new(KeySet::parse(&text)?)))
}
