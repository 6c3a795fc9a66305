//! The store with quotas, on a real file system.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{PosixOptions, PosixStore, WriteHandle, WriteOptions};

use super::*;
use crate::host::clock::clock;

const CREATE: WriteOptions = WriteOptions { create: true, truncate: true, exclusive: false, mode: 0o644 };

fn path(text: &str) -> VirtualPath {
    VirtualPath::parse(text.as_bytes()).unwrap()
}

struct Site {
    directory: tempfile::TempDir,
    space: Arc<Space>,
}

impl Site {
    /// `limits` are lines of a quota for the directory `root`.
    fn new(limits: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        let space = Self::open(directory.path(), limits);
        Self { directory, space }
    }

    /// Part files that no upload writes are old at once.
    fn expiring(limits: &str) -> Self {
        let Self { directory, space } = Self::new(limits);
        drop(space);
        let space = Self::open_with(directory.path(), "expire_parts_after = 1e-9", limits);
        Self { directory, space }
    }

    fn open(directory: &Path, limits: &str) -> Arc<Space> {
        Self::open_with(directory, "", limits)
    }

    fn open_with(directory: &Path, settings: &str, limits: &str) -> Arc<Space> {
        let text = format!(
            "[space]\nstate_directory = {:?}\n{settings}\n[[quota]]\nname = \"q\"\ntree = {:?}\n{limits}\n",
            directory.join("state"),
            directory.join("root")
        );
        Space::open(&Config::parse(&text).unwrap()).unwrap().unwrap()
    }

    fn root(&self) -> std::path::PathBuf {
        self.directory.path().join("root")
    }

    fn store(&self, user: &str) -> Arc<dyn Store> {
        let store = Arc::new(PosixStore::new(&self.root(), PosixOptions::default()).unwrap());
        self.space.over(store, &self.root(), user, true, &Drawing::default())
    }

    /// Holder, bytes and files of each account.
    fn accounts(&self) -> Vec<(String, u64, u64)> {
        let book = self.space.book();
        let mut all: Vec<_> =
            book.states().map(|state| (state.key.holder.clone(), state.bytes, state.files)).collect();
        all.sort_unstable();
        all
    }

    fn count(&self) -> Vec<(String, u64, u64)> {
        let (_stop, stopped) = std::sync::mpsc::channel();
        counting::count(&self.space, &stopped);
        self.accounts()
    }
}

fn put(store: &dyn Store, name: &str, bytes: usize) -> ropewalk_storage::Result<Arc<dyn WriteHandle>> {
    let file = store.open_write(&path(name), CREATE)?;
    file.write_at(&vec![1; bytes], 0)?;
    Ok(file)
}

#[test]
fn store_with_quota_keeps_contract_and_accounts() {
    let sites = Mutex::new(Vec::new());
    ropewalk_storage::testing::contract(&|| {
        let site = Site::new("bytes = \"1T\"");
        let store = site.store("ann");
        sites.lock().push(site);
        store
    });
    for site in sites.into_inner() {
        let kept = site.accounts();
        assert_eq!(kept, site.count(), "{:?}", site.root());
    }
}

#[test]
fn files_count_for_users_that_are_written_down() {
    let site = Site::new("per_user = true\nbytes = 1000");
    let (ann, bob) = (site.store("ann"), site.store("bob"));
    put(&*ann, "/a", 600).unwrap();
    put(&*bob, "/b", 900).unwrap();
    let refused = put(&*ann, "/c", 500).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(
        refused.detail(),
        Some("Quota q of ann: 400 of 1000 bytes are free, and 500 more are needed.")
    );
    ann.remove_file(&path("/c")).unwrap();
    // The file remains that of its owner.
    bob.rename(&path("/a"), &path("/d")).unwrap();
    let accounts = [("ann".to_owned(), 600, 1), ("bob".to_owned(), 900, 1)];
    assert_eq!(site.accounts(), accounts);
    assert_eq!(site.count(), accounts);
    bob.remove_file(&path("/d")).unwrap();
    assert_eq!(site.accounts()[0], ("ann".to_owned(), 0, 0));
}

#[test]
fn accounts_survive_restart_and_are_corrected() {
    let Site { directory, space } = Site::new("bytes = 1000");
    let site = Site { directory, space };
    put(&*site.store("ann"), "/a", 600).unwrap();
    site.space.save();
    let Site { directory, space } = site;
    drop(space);
    fs::write(directory.path().join("root/outside"), [0; 50]).unwrap();
    let space = Site::open(directory.path(), "bytes = 1000");
    let site = Site { directory, space };
    assert_eq!(site.accounts(), [(String::new(), 600, 1)]);
    assert_eq!(site.count(), [(String::new(), 650, 2)]);
}

#[test]
fn tree_that_is_removed_frees_its_space() {
    let site = Site::new("bytes = 1000");
    let store = site.store("ann");
    store.make_directory(&path("/d"), 0o755).unwrap();
    store.make_directory(&path("/d/e"), 0o755).unwrap();
    for name in ["/d/a", "/d/e/b", "/c"] {
        put(&*store, name, 100).unwrap();
    }
    store.rename(&path("/d"), &path("/f")).unwrap();
    store.truncate(&path("/c"), 10).unwrap();
    assert_eq!(site.accounts(), [(String::new(), 210, 3)]);
    assert!(store.truncate(&path("/c"), 900).is_err());
    store.remove_tree(&path("/f")).unwrap();
    assert_eq!(site.accounts(), [(String::new(), 10, 1)]);
    assert_eq!(site.count(), [(String::new(), 10, 1)]);
}

#[test]
fn reservation_belongs_to_its_user_and_survives_restart() {
    let site = Site::new("bytes = 100");
    let owner = site.space.owner_of_new("ann", 0);
    let root = site.root().canonicalize().unwrap();
    let request = |bytes, seconds| Request {
        user: "ann",
        directory: &root,
        device: 1,
        owner: &owner,
        bytes,
        seconds,
        free: None,
        announced: 0,
        most: 3,
    };
    let first = site.space.reserve(&request(60, 50)).unwrap();
    let over = site.space.reserve(&request(10, 40)).unwrap();
    site.space.book().extend(&over.token, now()).unwrap();
    let released = site.space.reserve(&request(30, 40)).unwrap();
    assert_eq!(site.space.reserved(1, Some(&first.token)), 30);
    assert!(site.space.reservation(&first.token, "bob").is_none());
    assert!(site.space.reservation(&over.token, "ann").is_none());
    assert!(!site.space.release(&first.token, "bob") && site.space.release(&released.token, "ann"));
    assert!(site.space.reservations_of("bob").is_empty());
    assert_eq!(site.accounts(), [(String::new(), 60, 0)]);
    let Site { directory, space } = site;
    drop(space);
    let space = Site::open(directory.path(), "bytes = 100");
    let site = Site { directory, space };
    let own = site.space.reservations_of("ann");
    assert_eq!(own.iter().map(|one| (&one.token, one.left)).collect::<Vec<_>>(), [(&first.token, 60)]);
    assert_eq!(site.count(), [(String::new(), 60, 0)]);
}

#[test]
fn reservation_ends_no_earlier_than_asked() {
    let site = Site::new("bytes = 100");
    let owner = site.space.owner_of_new("ann", 0);
    let root = site.root().canonicalize().unwrap();
    // The clock shows whole seconds with bad luck only.
    for _ in 0..5 {
        let asked = clock();
        let reservation = site.space.reserve(&Request {
            user: "ann",
            directory: &root,
            device: 1,
            owner: &owner,
            bytes: 1,
            seconds: 50,
            free: None,
            announced: 0,
            most: 9,
        });
        let made = reservation.unwrap();
        let lasts = Duration::from_secs(made.end).checked_sub(asked).unwrap();
        assert!(lasts >= Duration::from_secs(50), "{lasts:?}");
        let asked = clock();
        let extended = site.space.extend(&made.token, "ann", 9).unwrap().unwrap();
        let lasts = Duration::from_secs(extended.end).checked_sub(asked).unwrap();
        assert!(lasts >= Duration::from_secs(9), "{lasts:?}");
    }
}

#[test]
fn old_part_files_make_room_in_their_account_alone() {
    let site = Site::expiring("per_user = true\nbytes = 1000\nfiles = 2");
    let (ann, bob) = (site.store("ann"), site.store("bob"));
    drop(put(&*ann, "/.a.ropewalk-part", 600).unwrap());
    drop(put(&*bob, "/.b.ropewalk-part", 900).unwrap());
    // More than there can be: nothing is removed.
    assert!(put(&*ann, "/c", 1001).is_err());
    ann.remove_file(&path("/c")).unwrap();
    assert_eq!(site.accounts(), [("ann".to_owned(), 600, 1), ("bob".to_owned(), 900, 1)]);
    put(&*ann, "/c", 500).unwrap();
    assert_eq!(site.accounts(), [("ann".to_owned(), 500, 1), ("bob".to_owned(), 900, 1)]);
    // One file too many.
    drop(put(&*ann, "/.d.ropewalk-part", 10).unwrap());
    assert_eq!(site.accounts()[0], ("ann".to_owned(), 510, 2));
    let file = put(&*ann, "/e", 20).unwrap();
    assert_eq!(site.accounts(), [("ann".to_owned(), 520, 2), ("bob".to_owned(), 900, 1)]);
    drop(file);
    assert_eq!(site.count(), site.accounts());
    assert!(!site.root().join(".d.ropewalk-part").exists() && site.root().join(".b.ropewalk-part").exists());
}

#[test]
fn part_file_in_use_or_beneath_a_reservation_stays() {
    let site = Site::expiring("per_user = true\nbytes = 1000");
    let ann = site.store("ann");
    let held = put(&*ann, "/.a.ropewalk-part", 600).unwrap();
    assert!(held.lock().unwrap());
    assert!(put(&*ann, "/b", 500).is_err());
    drop(held);
    let root = site.root().canonicalize().unwrap();
    let reserve = |bytes| {
        let owner = site.space.owner_of_new("ann", 0);
        let (user, directory, owner) = ("ann", &*root, &owner);
        let request = Request {
            user,
            directory,
            device: 1,
            owner,
            bytes,
            seconds: 60,
            free: None,
            announced: 0,
            most: 3,
        };
        site.space.reserve(&request)
    };
    let reservation = reserve(100).unwrap();
    assert!(put(&*ann, "/b", 500).is_err());
    assert!(site.root().join(".a.ropewalk-part").exists());
    assert!(site.space.release(&reservation.token, "ann"));
    put(&*ann, "/b", 500).unwrap();
    assert!(!site.root().join(".a.ropewalk-part").exists());
    // A reservation gets room, too.
    drop(put(&*ann, "/.c.ropewalk-part", 300).unwrap());
    assert_eq!(reserve(500).unwrap().left, 500);
    assert_eq!(site.accounts(), [("ann".to_owned(), 1000, 1)]);
}
