//! Syncs of file names.

use ropewalk_protocol::path::VirtualPath;

use crate::{ErrorKind, Result, Store, WriteHandle};

/// Waits until the name of `file` in `directory` is on stable storage. A directory in which names
/// can be created but that cannot be read cannot be synced itself. Then its whole file system is
/// synced.
///
/// # Errors
/// The errors of [`Store::sync_directory`], or of [`WriteHandle::sync_system`] if that is used
/// instead.
pub fn sync_name(store: &dyn Store, directory: &VirtualPath, file: &dyn WriteHandle) -> Result<()> {
    match store.sync_directory(directory) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => file.sync_system(),
        result => result,
    }
}
