//! Uploads that sessions have begun with SITE UPLOAD.
//!
//! The table belongs to the host: sessions of a user that begin an upload of one ID to one place
//! share it. An upload is open until it is committed, discarded, or taken over by another upload to
//! its place, and is suspended when its last session ends. A lock for each place makes sure that
//! two sessions that begin at once share the upload.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_protocol::upload::{UploadId, UploadParameters};
use ropewalk_storage::Upload;

use crate::host::claims::Claim;

/// The user and the place of the file.
type Key = (String, VirtualPath);

/// Locked while an upload is opened.
type Slot = Mutex<Weak<ActiveUpload>>;

#[derive(Default)]
pub(crate) struct Uploads(Mutex<HashMap<Key, Arc<Slot>>>);

/// The uploads of a session.
pub(crate) type SessionUploads = HashMap<UploadId, Arc<ActiveUpload>>;

/// An upload that sessions share.
pub(crate) struct ActiveUpload {
    pub(crate) id: UploadId,
    pub(crate) place: VirtualPath,
    /// Those of the first BEGIN.
    pub(crate) parameters: UploadParameters,
    /// Permission bits of the file that is replaced.
    pub(crate) replaced: Option<u32>,
    /// The upload has resumed an earlier one.
    pub(crate) resumed: bool,
    /// Another session has joined it.
    shared: AtomicBool,
    /// `None` once it has ended. Transfers have their own references.
    open: Mutex<Option<Arc<dyn Upload>>>,
    /// Its space on the disk.
    _claimed: Option<Claim>,
}

impl ActiveUpload {
    pub(crate) fn new(
        id: UploadId,
        place: VirtualPath,
        parameters: UploadParameters,
        replaced: Option<u32>,
        upload: Arc<dyn Upload>,
    ) -> Self {
        let resumed = !upload.present().is_empty();
        let (shared, open) = (AtomicBool::new(false), Mutex::new(Some(upload)));
        Self { id, place, parameters, replaced, resumed, shared, open, _claimed: None }
    }

    /// The upload keeps its claim on space, as long as its file is open.
    pub(crate) fn claiming(self, claimed: Option<Claim>) -> Self {
        Self { _claimed: claimed, ..self }
    }

    /// `None` if the upload has ended.
    pub(crate) fn upload(&self) -> Option<Arc<dyn Upload>> {
        self.open.lock().clone()
    }

    /// Whether other sessions may have sent data: an earlier one, or one that has joined.
    pub(crate) fn has_data_of_others(&self) -> bool {
        self.resumed || self.shared.load(Ordering::Relaxed)
    }

    /// Whether a transfer writes to it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.open.lock().as_ref().is_some_and(|upload| Arc::strong_count(upload) > 1)
    }

    /// Ends the upload for all sessions, unless a transfer writes to it. Returns `None` in that
    /// case, or if it has ended before.
    pub(crate) fn end(&self) -> Option<Arc<dyn Upload>> {
        let mut open = self.open.lock();
        open.take_if(|upload| Arc::strong_count(upload) == 1)
    }

    /// Takes back an upload that has not ended after all.
    pub(crate) fn reopen(&self, upload: Arc<dyn Upload>) {
        *self.open.lock() = Some(upload);
    }
}

impl Uploads {
    /// Returns the upload of this ID to the place, if a session of the user has it open. Otherwise
    /// an upload of another ID is suspended unless a transfer writes to it, and `open` opens this
    /// one.
    pub(crate) fn begin(
        &self,
        user: &str,
        place: &VirtualPath,
        id: &UploadId,
        open: impl FnOnce() -> Result<ActiveUpload, Failure>,
    ) -> Result<Arc<ActiveUpload>, Failure> {
        let slot = self.slot(user, place);
        let mut slot = slot.lock();
        if let Some(active) = slot.upgrade() {
            if active.id == *id && active.upload().is_some() {
                active.shared.store(true, Ordering::Relaxed);
                return Ok(active);
            }
            drop(active.end());
        }
        let active = Arc::new(open()?);
        *slot = Arc::downgrade(&active);
        Ok(active)
    }

    /// Suspends the upload to this place, unless a transfer writes to it: another command writes
    /// the file.
    pub(crate) fn release(&self, user: &str, place: &VirtualPath) {
        let slot = self.0.lock().get(&(user.to_owned(), place.clone())).cloned();
        if let Some(active) = slot.and_then(|slot| slot.lock().upgrade()) {
            drop(active.end());
        }
    }

    fn slot(&self, user: &str, place: &VirtualPath) -> Arc<Slot> {
        let mut slots = self.0.lock();
        // Slots that other threads hold are being opened.
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || slot.lock().strong_count() > 0);
        Arc::clone(slots.entry((user.to_owned(), place.clone())).or_default())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ropewalk_storage::{MemoryStore, Store as _, UploadSpec};

    use super::*;

    struct Place {
        store: MemoryStore,
        uploads: Uploads,
    }

    impl Place {
        fn new() -> Self {
            Self { store: MemoryStore::new(1 << 20), uploads: Uploads::default() }
        }

        fn path() -> VirtualPath {
            VirtualPath::parse(b"/f").unwrap()
        }

        fn begin(&self, user: &str, id: &str) -> Result<Arc<ActiveUpload>, Failure> {
            let id = UploadId::new(id.as_bytes()).unwrap();
            let open = || {
                let upload = self.store.begin_upload(&Self::path(), UploadSpec::default());
                let upload = upload.map_err(crate::failure::failure)?;
                Ok(ActiveUpload::new(id.clone(), Self::path(), UploadParameters::default(), None, upload))
            };
            self.uploads.begin(user, &Self::path(), &id, open)
        }
    }

    #[test]
    fn upload_of_one_id_is_shared_until_its_last_session_ends() {
        let place = Place::new();
        let first = place.begin("ann", "a").unwrap();
        assert!(!first.has_data_of_others());
        let second = place.begin("ann", "a").unwrap();
        assert!(Arc::ptr_eq(&first, &second) && first.has_data_of_others());
        // The store locks other users out.
        assert!(place.begin("bob", "a").is_err());
        drop((first, second));
        drop(place.begin("bob", "a").unwrap());
        assert!(place.uploads.0.lock().len() <= 2);
    }

    #[test]
    fn idle_upload_yields_to_another_id() {
        let place = Place::new();
        let first = place.begin("ann", "a").unwrap();
        let transfer = first.upload().unwrap();
        assert!(first.is_in_use() && place.begin("ann", "b").is_err());
        drop(transfer);
        let second = place.begin("ann", "b").unwrap();
        assert!(first.upload().is_none() && second.upload().is_some());
        place.uploads.release("ann", &Place::path());
        assert!(second.upload().is_none());
    }
}
