//! Part files that several sessions fill at the same time: a client may send the ranges of one file over several
//! control connections (ESTO), and one journal has to know of them all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{PartFile, Result, Store, WriteOptions};

/// A file, by device and inode.
type Identity = (u64, u64);

#[derive(Default)]
pub(crate) struct SharedParts(Mutex<HashMap<Identity, Weak<PartFile>>>);

impl SharedParts {
    /// The part file at `place`, which others may have open already; `begin` opens it where nobody has.
    pub(crate) fn open(
        &self,
        store: &Arc<dyn Store>,
        place: &VirtualPath,
        begin: impl FnOnce() -> Result<PartFile>,
    ) -> Result<Arc<PartFile>> {
        // Held while it is opened: the second of two that come at once has to find it.
        let mut parts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|_, part| part.strong_count() > 0);
        // Opened here, since who comes second may have other rights than who came first.
        let write = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
        match store.open_write(place, write) {
            Ok(handle) => {
                let found = handle.metadata()?;
                if let Some(part) = parts.get(&(found.device, found.inode)).and_then(Weak::upgrade) {
                    return Ok(part);
                }
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        let part = Arc::new(begin()?);
        let opened = part.handle().metadata()?;
        parts.insert((opened.device, opened.inode), Arc::downgrade(&part));
        Ok(part)
    }
}
