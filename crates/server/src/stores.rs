//! The storage of accounts: one store for each root directory, shared by the sessions that use it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ropewalk_storage::{PosixOptions, PosixStore, Store};

/// Makes the store of a root directory.
pub type StoreFactory = Arc<dyn Fn(&Path) -> ropewalk_storage::Result<Arc<dyn Store>> + Send + Sync>;

pub(crate) struct Stores {
    factory: StoreFactory,
    open: Mutex<HashMap<PathBuf, Weak<dyn Store>>>,
}

impl Stores {
    pub(crate) fn new(factory: StoreFactory) -> Self {
        Self { factory, open: Mutex::default() }
    }

    /// Directories of this host.
    pub(crate) fn posix() -> Self {
        Self::new(Arc::new(|root| Ok(Arc::new(PosixStore::new(root, PosixOptions::default())?))))
    }

    pub(crate) fn open(&self, root: &Path) -> ropewalk_storage::Result<Arc<dyn Store>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = open.get(root).and_then(Weak::upgrade) {
            return Ok(store);
        }
        let store = (self.factory)(root)?;
        open.retain(|_, store| store.strong_count() > 0);
        open.insert(root.to_owned(), Arc::downgrade(&store));
        Ok(store)
    }
}
