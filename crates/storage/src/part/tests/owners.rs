//! Unfinished files in directories in which other users create names.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::*;

struct Place {
    store: Arc<dyn Store>,
    target: VirtualPath,
    directory: tempfile::TempDir,
}

impl Place {
    /// A place with half of a file and its journal.
    fn new(mode: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> =
            Arc::new(PosixStore::new(directory.path(), PosixOptions::default()).unwrap());
        let target = path("/f");
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 50..100);
        kill(part);
        fs::set_permissions(directory.path(), Permissions::from_mode(mode)).unwrap();
        Self { store, target, directory }
    }

    fn part(&self) -> PathBuf {
        self.at(&part_name(&self.target))
    }

    fn journal(&self) -> PathBuf {
        self.at(&journal_name(&self.target))
    }

    fn at(&self, name: &VirtualPath) -> PathBuf {
        self.directory.path().join(name.to_string().trim_start_matches('/'))
    }

    /// Checks that the data is not resumed, and that the new data is written to a file of this user
    /// only.
    fn begins_anew(&self, why: &str) {
        let left = PartFile::interrupted(&*self.store, &self.target, &mut |_| Ok(())).unwrap();
        assert_eq!(left, None, "{why}");
        let again = PartFile::begin(&self.store, &self.target, key(100), options(Journaling::Above(0)));
        let again = again.unwrap();
        assert!(again.present().is_empty(), "{why}");
        assert!(again.started_over().is_some_and(|told| told.contains(why)), "{:?}", again.started_over());
        write(&again, &data(100), 0..100);
        again.commit(100, None, None).unwrap();
        assert_eq!(content(&*self.store, &self.target), data(100));
    }

    fn goes_on(&self) {
        let again = PartFile::begin(&self.store, &self.target, key(100), options(Journaling::Above(0)));
        assert_eq!(again.unwrap().present(), RangeSet::from_range(50..100));
    }
}

#[test]
fn begin_restarts_if_a_file_has_another_link() {
    for mode in [0o777, 0o1777, 0o770] {
        let place = Place::new(mode);
        fs::hard_link(place.part(), place.directory.path().join("other")).unwrap();
        place.begins_anew("another user");
        assert_eq!(
            fs::metadata(place.directory.path().join("other")).unwrap().len(),
            100,
            "it was written to"
        );
        let place = Place::new(mode);
        fs::hard_link(place.journal(), place.directory.path().join("other")).unwrap();
        place.begins_anew("its journal belongs to another user");
    }
    Place::new(0o777).goes_on();
    let closed = Place::new(0o755);
    fs::hard_link(closed.part(), closed.directory.path().join("other")).unwrap();
    closed.goes_on();
}

/// Only root can create files of another user.
#[test]
fn begin_restarts_if_a_file_belongs_to_another_user() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let give = |path: &Path| std::os::unix::fs::chown(path, Some(31_001), None).unwrap();
    let place = Place::new(0o777);
    give(&place.part());
    place.begins_anew("it belongs to another user");
    let place = Place::new(0o777);
    give(&place.journal());
    place.begins_anew("its journal belongs to another user");
    // If no other user can create names, files may have another owner, as on file systems that map
    // users.
    let closed = Place::new(0o755);
    give(&closed.part());
    give(&closed.journal());
    closed.goes_on();
}

#[test]
fn begin_does_not_follow_a_symbolic_link_to_the_journal() {
    let place = Place::new(0o777);
    let elsewhere = tempfile::tempdir().unwrap();
    let victim = elsewhere.path().join("journal");
    fs::rename(place.journal(), &victim).unwrap();
    let before = fs::read(&victim).unwrap();
    std::os::unix::fs::symlink(&victim, place.journal()).unwrap();
    place.begins_anew("its journal is no regular file");
    assert_eq!(fs::read(&victim).unwrap(), before);
}

/// A drop box: users can create names in it, but cannot list it.
#[test]
fn sync_in_a_directory_without_read_permission_succeeds() {
    use crate::Identity;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let inside = directory.path().join("drop");
    fs::create_dir(&inside).unwrap();
    fs::set_permissions(&inside, Permissions::from_mode(0o333)).unwrap();
    let act = Identity::can_act();
    let identity = act.then(|| Identity { uid: 4001, gid: 4001, groups: Vec::new() });
    let options = PosixOptions { identity, act, ..PosixOptions::default() };
    let store: Arc<dyn Store> = Arc::new(PosixStore::new(directory.path(), options).unwrap());
    let denied = store.sync_directory(&path("/drop")).unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    let options = UploadOptions { sync: true, ..super::options(Journaling::Above(0)) };
    let part = PartFile::begin(&store, &path("/drop/f"), key(100), options).unwrap();
    write(&part, &data(100), 0..100);
    part.checkpoint().unwrap();
    part.commit(100, None, None).unwrap();
    assert_eq!(fs::read(inside.join("f")).unwrap(), data(100));
    fs::set_permissions(&inside, Permissions::from_mode(0o755)).unwrap();
}
