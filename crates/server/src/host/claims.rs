//! The space that uploads under way still need on their file systems.
//!
//! An upload with an announced size claims what it needs before it begins, so that of two uploads
//! that do not fit together the second is refused. Bytes that are written have left the free space
//! of the file system, so a [`Claim`] shrinks by the blocks that its file has got; these are read
//! when another upload asks. The host owns the table. Each file system has a lock of its own, since
//! one of them may not answer.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ropewalk_storage::{Upload, WriteHandle};

/// The directory and the name of a file, which stay the same if the file is removed and created
/// again. Uploads of ranges of one file claim its space once.
pub(crate) type Place = (u64, Vec<u8>);

/// The claims by device.
#[derive(Default)]
pub(crate) struct Claims(Mutex<HashMap<u64, Arc<Device>>>);

type Device = Mutex<Vec<Arc<Claimant>>>;

/// The bytes that an open file has on the disk; `None` once it is closed.
type OnDisk = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// The space that an upload wants to claim.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) place: Place,
    /// The bytes that are missing.
    pub(crate) needed: u64,
    /// The bytes on the disk that an earlier upload has left, which is resumed or replaced.
    pub(crate) there: u64,
}

struct Claimant {
    wanted: Wanted,
    /// The open file, and the bytes that it had on the disk at the beginning.
    file: OnceLock<(OnDisk, u64)>,
}

/// The space of an upload, which is claimed until this is dropped or the file is closed.
pub(crate) struct Claim {
    device: Arc<Device>,
    upload: Arc<Claimant>,
}

impl Claims {
    /// Claims space on a device. `admit` gets the bytes that other uploads claim, and decides
    /// whether these fit, too.
    ///
    /// # Errors
    /// That of `admit`.
    pub(crate) fn claim<E>(
        &self,
        device: u64,
        wanted: Wanted,
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Claim, E> {
        let device = self.device(device);
        let mut uploads = device.lock();
        admit(sum(&uploads, Some(&wanted.place)))?;
        let upload = Arc::new(Claimant { wanted, file: OnceLock::new() });
        uploads.push(Arc::clone(&upload));
        drop(uploads);
        Ok(Claim { device, upload })
    }

    /// The bytes that uploads claim on a device.
    pub(crate) fn claimed(&self, device: u64) -> u64 {
        let device = self.device(device);
        let uploads = device.lock();
        sum(&uploads, None)
    }

    fn device(&self, device: u64) -> Arc<Device> {
        let mut all = self.0.lock();
        // Those that are not in use by others cannot change now.
        all.retain(|_, device| Arc::strong_count(device) > 1);
        Arc::clone(all.entry(device).or_default())
    }
}

impl Claim {
    /// The upload has its file, which no client sees before the end.
    pub(crate) fn began(&self, upload: &Arc<dyn Upload>) {
        let upload = Arc::downgrade(upload);
        let on_disk: OnDisk = Box::new(move || Some(on_disk(&*upload.upgrade()?.writer())));
        let _ = self.upload.file.set((on_disk, self.upload.wanted.there));
    }

    /// The upload writes to a file under its own name, which may have existed before.
    pub(crate) fn began_in_place(&self, file: &Arc<dyn WriteHandle>) {
        let (there, file) = (on_disk(&**file), Arc::downgrade(file));
        let on_disk: OnDisk = Box::new(move || Some(on_disk(&*file.upgrade()?)));
        let _ = self.upload.file.set((on_disk, there));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.device.lock().retain(|upload| !Arc::ptr_eq(upload, &self.upload));
    }
}

impl Claimant {
    /// The bytes that are still to be written.
    fn left(&self) -> u64 {
        let Some((on_disk, there)) = self.file.get() else { return self.wanted.needed };
        // A file that is closed grows no more.
        on_disk().map_or(0, |now| self.wanted.needed.saturating_sub(now.saturating_sub(*there)))
    }
}

fn on_disk(file: &dyn WriteHandle) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.blocks.saturating_mul(512))
}

/// The bytes that the uploads claim, but for those of a place.
fn sum(uploads: &[Arc<Claimant>], but: Option<&Place>) -> u64 {
    let mut files = HashMap::<&Place, u64>::new();
    for upload in uploads.iter().filter(|upload| Some(&upload.wanted.place) != but) {
        let claimed = files.entry(&upload.wanted.place).or_default();
        *claimed = upload.left().max(*claimed);
    }
    files.into_values().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_protocol::path::VirtualPath;
    use ropewalk_storage::{MemoryStore, Store as _, UploadSpec, WriteOptions};

    use super::*;

    fn wanted(name: &str, needed: u64) -> Wanted {
        Wanted { place: (1, name.into()), needed, there: 1024 }
    }

    /// Claims space on device 7, which has 1000 bytes.
    fn claim(claims: &Claims, name: &str, needed: u64) -> Result<Claim, u64> {
        let admit = |others: u64| if others + needed <= 1000 { Ok(()) } else { Err(others) };
        claims.claim(7, wanted(name, needed), admit)
    }

    #[test]
    fn claims_of_uploads_add_up_until_they_end() {
        let claims = Claims::default();
        let first = claim(&claims, "a", 600).unwrap();
        assert_eq!(claim(&claims, "b", 500).err(), Some(600));
        let second = claim(&claims, "b", 400).unwrap();
        assert_eq!((claims.claimed(7), claims.claimed(8)), (1000, 0));
        drop(first);
        assert_eq!(claims.claimed(7), 400);
        drop(second);
        assert_eq!(claims.claimed(7), 0);
        assert!(claims.0.lock().len() <= 1);
    }

    #[test]
    fn ranges_of_one_file_claim_its_space_once() {
        let claims = Claims::default();
        let _ranges = [600, 500, 400].map(|needed| claim(&claims, "a", needed).unwrap());
        assert_eq!(claims.claimed(7), 600);
        assert_eq!(claim(&claims, "b", 401).err(), Some(600));
    }

    #[test]
    fn claim_shrinks_by_what_is_written_and_ends_with_the_file() {
        let claims = Claims::default();
        let store = MemoryStore::new(1 << 20);
        let path = VirtualPath::parse(b"/a").unwrap();
        let upload = store.begin_upload(&path, UploadSpec::default()).unwrap();
        let claim = claims.claim(7, wanted("a", 10_000), |_| Ok::<_, ()>(())).unwrap();
        assert_eq!(claims.claimed(7), 10_000);
        claim.began(&upload);
        let file = upload.writer();
        file.write_at(&[1; 1024], 0).unwrap();
        assert_eq!(claims.claimed(7), 10_000);
        file.write_at(&[1; 4096], 1024).unwrap();
        assert_eq!(claims.claimed(7), 10_000 - 4096);
        file.write_at(&[1; 10_000], 5120).unwrap();
        assert_eq!(claims.claimed(7), 0);
        file.set_len(1024).unwrap();
        assert_eq!(claims.claimed(7), 10_000);
        drop((file, upload));
        assert_eq!(claims.claimed(7), 0);
    }

    #[test]
    fn file_that_is_written_in_place_has_its_own_bytes_already() {
        let claims = Claims::default();
        let store = MemoryStore::new(1 << 20);
        let path = VirtualPath::parse(b"/a").unwrap();
        let options = WriteOptions { create: true, truncate: false, exclusive: true, mode: 0o644 };
        let file = store.open_write(&path, options).unwrap();
        file.write_at(&[1; 5120], 0).unwrap();
        let claim = claims.claim(7, wanted("a", 1024), |_| Ok::<_, ()>(())).unwrap();
        claim.began_in_place(&file);
        assert_eq!(claims.claimed(7), 1024);
        file.write_at(&[1; 512], 5120).unwrap();
        assert_eq!(claims.claimed(7), 512);
        drop(file);
        assert_eq!(claims.claimed(7), 0);
    }
}
