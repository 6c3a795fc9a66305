//! Room in accounts and on disks that are too small, by the removal of old part files.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_space::{AccountKey, Book, Kind, Refusal};
use ropewalk_storage::Metadata;

use super::rules::Owner;
use super::{Space, now, on_host};
use crate::host::expiry::{Candidates, Expiry, FileId, Missing, own_store};

/// A file may count in several accounts that are too small, and other uploads may take the room.
const ATTEMPTS: u32 = 4;

impl Space {
    /// Changes the accounts, and again after old part files have made room for what was refused.
    ///
    /// # Errors
    /// The last refusal.
    pub(super) fn with_room<T>(
        self: &Arc<Self>,
        change: impl Fn(&mut Book) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        for _ in 0..ATTEMPTS {
            let changed = change(&mut self.book());
            match changed {
                Err(refusal) if self.make_room(&refusal) => {}
                changed => return changed,
            }
        }
        change(&mut self.book())
    }

    /// Removes old part files that count in the account that has refused. Returns whether there is
    /// room now. The caller must not hold the lock of the names in a directory.
    pub(super) fn make_room(self: &Arc<Self>, refusal: &Refusal) -> bool {
        let key = AccountKey { quota: refusal.quota.clone(), holder: refusal.holder.clone() };
        let Some(base) = self.rules.directory_of(&key) else { return false };
        let Ok(store) = own_store(&base) else { return false };
        let store = self.over_own(store, &base);
        let used = |book: &Book| {
            let account = book.states().find(|state| state.key == key)?;
            Some(match refusal.kind {
                Kind::Bytes => account.bytes,
                Kind::Files => account.files,
            })
        };
        let Some(used) = used(&self.book()) else { return false };
        let missing = used.saturating_add(refusal.needed).saturating_sub(refusal.limit);
        let missing = match refusal.kind {
            Kind::Bytes => Missing { bytes: missing, files: 0 },
            Kind::Files => Missing { bytes: 0, files: missing },
        };
        let may = |path: &VirtualPath, metadata: &Metadata| {
            let (directory, owner) = self.owner_at(&base, path, metadata);
            let mut accounts = self.rules.accounts(&directory, &owner).into_iter();
            accounts.any(|(account, _)| account == key) && !self.is_reserved(&directory, &owner)
        };
        let size = |metadata: &Metadata| metadata.size;
        let candidates = Candidates { store, base: &base, device: None, size, may: &may };
        self.expiry.make_room(missing, &candidates, SystemTime::now())
    }

    /// The directory of a file on this host, and the owner of the file.
    fn owner_at(&self, base: &Path, path: &VirtualPath, metadata: &Metadata) -> (PathBuf, Owner) {
        let directory = on_host(base, &path.parent().unwrap_or_else(VirtualPath::root));
        let owner = self.rules.owner(&directory, path.file_name().unwrap_or_default(), metadata);
        (directory, owner)
    }

    /// Whether the owner of a file has a reservation for its directory that has not ended.
    fn is_reserved(&self, directory: &Path, owner: &Owner) -> bool {
        let now = now();
        let concerns = |user: &str| owner.user.is_empty() || owner.user == user;
        self.book().reservations().any(|reservation| {
            now < reservation.end
                && directory.starts_with(&reservation.directory)
                && concerns(&reservation.user)
        })
    }
}

/// Removes old part files on the file system of `directory`, beneath `root`, until `bytes` more are
/// free. Returns `false`, and removes none, if that is not possible. `but` is a part file that
/// stays, since it is about to be resumed.
pub(crate) fn make_room_on_disk(
    expiry: &Expiry,
    space: Option<&Arc<Space>>,
    bytes: u64,
    (root, directory): (&Path, &Path),
    but: Option<FileId>,
) -> bool {
    let Ok((base, device)) = top_of_file_system(root, directory) else { return false };
    let Ok(store) = own_store(&base) else { return false };
    let store = match space {
        Some(space) => space.over_own(store, &base),
        None => store,
    };
    let may = |path: &VirtualPath, metadata: &Metadata| {
        let is_reserved = |space: &Arc<Space>| {
            let (directory, owner) = space.owner_at(&base, path, metadata);
            space.is_reserved(&directory, &owner)
        };
        Some((metadata.device, metadata.inode)) != but && !space.is_some_and(is_reserved)
    };
    let size = |metadata: &Metadata| metadata.blocks.saturating_mul(512);
    let candidates = Candidates { store, base: &base, device: Some(device), size, may: &may };
    expiry.make_room(Missing { bytes, files: 0 }, &candidates, SystemTime::now())
}

/// The highest directory above `directory` that is on its file system and beneath `root`, and the
/// device.
fn top_of_file_system(root: &Path, directory: &Path) -> io::Result<(PathBuf, u64)> {
    let (root, directory) = (root.canonicalize()?, directory.canonicalize()?);
    let device = directory.metadata()?.dev();
    let within = directory.ancestors().take_while(|above| above.starts_with(&root));
    let same = within.take_while(|above| above.metadata().is_ok_and(|there| there.dev() == device));
    let top = same.last().unwrap_or(&directory).to_owned();
    Ok((top, device))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn room_on_a_disk_comes_from_beneath_the_root_and_spares_the_upload_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir_all(path("a/b")).unwrap();
        let (above, below) = (path("a/.x.ropewalk-part"), path("a/b/.y.ropewalk-part"));
        for file in [&above, &below] {
            fs::write(file, [1; 1000]).unwrap();
        }
        let own = fs::metadata(&above).unwrap();
        let expiry = Expiry::new(Duration::from_nanos(1));
        let make_room =
            |root: &str, but| make_room_on_disk(&expiry, None, 1, (&path(root), &path("a/b")), but);
        assert!(make_room("a/b", None));
        assert!(above.exists() && !below.exists());
        assert!(!make_room("a/b", None) && !make_room("nowhere", None));
        assert!(!make_room("", Some((own.dev(), own.ino()))));
        assert!(make_room("", None) && !above.exists());
    }
}
