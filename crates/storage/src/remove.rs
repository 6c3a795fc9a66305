//! Removal of trees by path.

use bstr::BString;
use ropewalk_protocol::path::VirtualPath;

use crate::{Error, ErrorKind, Kind, Result, Store};

/// Removes a tree by its paths, for stores in which no other process can swap a directory for a
/// link meanwhile.
pub(crate) fn by_path<S: Store + ?Sized>(
    store: &S,
    path: &VirtualPath,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    go_on()?;
    if store.stat(path, false)?.kind != Kind::Directory {
        return store.remove_file(path);
    }
    let mut directories: Vec<BString> = Vec::new();
    let child =
        |name: &[u8]| path.child(name).map_err(|_| Error::new(ErrorKind::Invalid, "remove", path.as_bytes()));
    store.list(path, &mut |name, metadata| {
        if metadata.kind == Kind::Directory {
            directories.push(name.into());
            return Ok(());
        }
        go_on()?;
        store.remove_file(&child(name)?)
    })?;
    for name in directories {
        by_path(store, &child(&name)?, go_on)?;
    }
    store.remove_directory(path)
}
