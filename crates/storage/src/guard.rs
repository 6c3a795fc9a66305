//! Access rules for the places of a store. A [`Guard`] is called with the resolved path before each
//! operation, see [`crate::Store::guarded`].

use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;

/// The kind of access to a place in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Reading its attributes, or the entries of a directory.
    See,
    /// Reading its bytes.
    Read,
    /// Creating, changing or removing it.
    Write,
    /// Removing it with everything below it, or replacing it.
    WriteTree,
    /// Renaming it with everything below it. The guard is called next for the new name, with
    /// [`Self::WriteTree`].
    Move,
}

/// Decides whether a place may be accessed. The path has no symbolic links, except perhaps as its
/// last component, if the access is to the link itself.
pub type Guard = Arc<dyn Fn(&VirtualPath, Purpose) -> bool + Send + Sync>;
