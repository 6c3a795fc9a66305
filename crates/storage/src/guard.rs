//! Who may use which part of a store.

use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;

/// What is done with a place in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To look at its attributes, or at its entries where it is a directory.
    See,
    /// To read its bytes.
    Read,
    /// To make, change or remove it.
    Write,
    /// To remove it with all that is beneath, or to put something in its place.
    WriteTree,
    /// To give it another name, with all that is beneath. The new name is asked about next, as [`Self::WriteTree`].
    Move,
}

/// Says whether a place may be used so. The path has no symbolic links in it but perhaps the last component, where that
/// is what is used.
pub type Guard = Arc<dyn Fn(&VirtualPath, Purpose) -> bool + Send + Sync>;
