use ropewalk_protocol::path::VirtualPath;

use crate::{ErrorKind, Result, Store, WriteHandle};

/// The name that `file` has in `directory` is on stable storage. A directory in which names may be made, but that may not be
/// read, cannot be synced by itself: then all of its file system is.
///
/// # Errors
/// As of [`Store::sync_directory`], or of [`WriteHandle::sync_system`] where that takes its place.
pub fn sync_name(store: &dyn Store, directory: &VirtualPath, file: &dyn WriteHandle) -> Result<()> {
    match store.sync_directory(directory) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => file.sync_system(),
        result => result,
    }
}
