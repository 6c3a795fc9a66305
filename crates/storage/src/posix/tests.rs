//! Tests of the POSIX store, most of them with both ways to resolve paths.

#![allow(clippy::unwrap_used)]

mod impersonation;
mod races;
mod replacing;
mod restricted;
mod special;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ropewalk_protocol::range::RangeSet;

use super::*;
use crate::Kind;

/// A store with a directory outside of it; both are removed at the end.
struct Place {
    store: PosixStore,
    inside: PathBuf,
    outside: PathBuf,
    _keep: tempfile::TempDir,
}

fn place(options: PosixOptions) -> Place {
    let keep = tempfile::tempdir().unwrap();
    let (inside, outside) = (keep.path().join("inside"), keep.path().join("outside"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&outside).unwrap();
    let store = PosixStore::new(&inside, options).unwrap();
    Place { store, inside, outside, _keep: keep }
}

/// One store whose paths the kernel resolves, and one that resolves them itself.
fn both() -> [Place; 2] {
    let manual = place(PosixOptions::default());
    manual.store.root.manual.store(true, Ordering::Relaxed);
    [place(PosixOptions::default()), manual]
}

fn path(text: &str) -> VirtualPath {
    VirtualPath::parse(text.as_bytes()).unwrap()
}

const CREATE: WriteOptions = WriteOptions { create: true, truncate: true, exclusive: false, mode: 0o666 };
const EXISTING: WriteOptions = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };

fn contract_of(manual: bool, near: bool) {
    let keep = parking_lot::Mutex::new(Vec::new());
    crate::testing::contract(&|| {
        let directory = tempfile::tempdir().unwrap();
        let store = PosixStore::new(directory.path(), PosixOptions::default()).unwrap();
        store.root.manual.store(manual, Ordering::Relaxed);
        keep.lock().push(directory);
        if near { store.near(&VirtualPath::root()).unwrap() } else { Arc::new(store) }
    });
}

#[test]
fn posix_store_keeps_the_contract() {
    contract_of(false, false);
}

#[test]
fn manual_resolution_keeps_the_contract() {
    contract_of(true, false);
}

#[test]
fn near_store_keeps_the_contract() {
    contract_of(false, true);
}

#[test]
fn near_store_stays_in_a_moved_directory() {
    for place in both() {
        let (inside, outside) = (&place.inside, &place.outside);
        fs::create_dir(inside.join("d")).unwrap();
        let store = place.store.near(&path("/d")).unwrap();
        let exclusive = WriteOptions { exclusive: true, ..CREATE };
        store.open_write(&path("/d/f"), exclusive).unwrap();
        // The directory is moved, and its name now refers to a directory that was not opened.
        fs::rename(inside.join("d"), inside.join("moved")).unwrap();
        symlink(outside, inside.join("d")).unwrap();
        store.open_write(&path("/d/g"), exclusive).unwrap();
        store.rename(&path("/d/f"), &path("/d/h")).unwrap();
        store.stat(&path("/d/h"), false).unwrap();
        store.remove_file(&path("/d/g")).unwrap();
        assert!(inside.join("moved/h").exists());
        assert_eq!(fs::read_dir(inside.join("moved")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
        // Names that only begin alike, and entries further down, are resolved as usual.
        fs::create_dir_all(inside.join("dd/sub")).unwrap();
        store.open_write(&path("/dd/f"), exclusive).unwrap();
        store.open_write(&path("/dd/sub/f"), exclusive).unwrap();
        assert!(inside.join("dd/f").exists() && inside.join("dd/sub/f").exists());
    }
}

#[test]
fn links_out_of_the_root_are_not_followed() {
    for place in both() {
        fs::write(place.outside.join("secret"), "secret").unwrap();
        symlink(&place.outside, place.inside.join("absolute")).unwrap();
        symlink("../outside", place.inside.join("relative")).unwrap();
        for name in ["/absolute/secret", "/relative/secret", "/absolute", "/relative"] {
            let (store, at) = (&place.store, path(name));
            let results = [
                store.open_read(&at).map(drop),
                store.open_write(&at, EXISTING).map(drop),
                store.stat(&at, true).map(drop),
                store.truncate(&at, 0),
                store.set_mode(&at, 0o777),
                store.set_modified(&at, 0, 0),
                store.set_group(&at, 0),
                store.list(&at, &mut |_, _| Ok(())),
                store.real_path(&at).map(drop),
                store.make_directory(&path(&format!("{name}/new")), 0o755),
                store.open_write(&path(&format!("{name}/new")), CREATE).map(drop),
                store.rename(&path(&format!("{name}/secret")), &path("/stolen")),
                store.remove_file(&path(&format!("{name}/secret"))),
                store.remove_tree(&path(&format!("{name}/secret"))),
            ];
            for (i, result) in results.into_iter().enumerate() {
                assert!(result.is_err(), "operation {i} on {name}");
            }
        }
        assert_eq!(fs::read_to_string(place.outside.join("secret")).unwrap(), "secret");
        assert_eq!(fs::read_dir(&place.outside).unwrap().count(), 1);
    }
}

#[test]
fn store_works_after_its_root_was_moved() {
    for place in both() {
        fs::write(place.inside.join("f"), "f").unwrap();
        let moved = place.inside.with_file_name("moved");
        fs::rename(&place.inside, &moved).unwrap();
        assert_eq!(place.store.real_path(&path("/f")).unwrap(), path("/f"));
        place.store.open_write(&path("/g"), CREATE).unwrap();
        assert!(moved.join("g").exists());
    }
}

#[test]
fn real_path_of_a_name_ending_in_deleted_is_kept() {
    let place = place(PosixOptions::default());
    fs::write(place.inside.join("f (deleted)"), "f").unwrap();
    assert_eq!(place.store.real_path(&path("/f (deleted)")).unwrap(), path("/f (deleted)"));
}

#[test]
fn new_without_a_root_directory_fails() {
    let keep = tempfile::tempdir().unwrap();
    let missing = PosixStore::new(&keep.path().join("none"), PosixOptions::default()).err().unwrap();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    fs::write(keep.path().join("f"), "f").unwrap();
    let file = PosixStore::new(&keep.path().join("f"), PosixOptions::default()).err().unwrap();
    assert_eq!(file.kind(), ErrorKind::NotDirectory);
}

#[test]
fn store_with_the_whole_file_system_as_root_works() {
    let keep = tempfile::tempdir().unwrap();
    let store = PosixStore::new(Path::new("/"), PosixOptions::default()).unwrap();
    let base = path(keep.path().to_str().unwrap());
    let file = base.child(b"f").unwrap();
    store.open_write(&file, CREATE).unwrap().write_at(b"abc", 0).unwrap();
    store.set_mode(&file, 0o600).unwrap();
    store.set_modified(&file, 7, 0).unwrap();
    let renamed = base.child(b"g").unwrap();
    store.rename(&file, &renamed).unwrap();
    let metadata = store.stat(&renamed, true).unwrap();
    assert_eq!((metadata.size, metadata.mode, metadata.modified), (3, 0o600, (7, 0)));
    store.symlink("g".into(), &base.child(b"l").unwrap()).unwrap();
    assert_eq!(store.real_path(&base.child(b"l").unwrap()).unwrap(), renamed);
    let mut names = 0;
    store
        .list(&base, &mut |_, _| {
            names += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(names, 2);
    assert_eq!(store.stat(&path("/"), false).unwrap().kind, Kind::Directory);
    assert_eq!(store.make_directory(&path("/"), 0o755).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(store.remove_tree(&path("/")).unwrap_err().kind(), ErrorKind::Busy);
    store.remove_tree(&base.child(b"l").unwrap()).unwrap();
    assert_eq!(store.stat(&renamed, false).unwrap().size, 3);
}

#[test]
fn fixed_modes_override_requested_ones() {
    let options =
        PosixOptions { file_mode: Some(0o606), directory_mode: Some(0o707), ..PosixOptions::default() };
    let place = place(options);
    place.store.open_write(&path("/f"), CREATE).unwrap();
    place.store.make_directory(&path("/d"), 0o700).unwrap();
    let mode = |name| fs::metadata(place.inside.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d")), (0o606, 0o707));
}

#[test]
fn metadata_reports_the_rights_of_the_identity() {
    let nobody = Identity { uid: 4_000_000, gid: 4_000_000, groups: Vec::new() };
    let place = place(PosixOptions { identity: Some(nobody), ..PosixOptions::default() });
    fs::write(place.inside.join("f"), "f").unwrap();
    fs::set_permissions(place.inside.join("f"), fs::Permissions::from_mode(0o604)).unwrap();
    let metadata = place.store.stat(&path("/f"), true).unwrap();
    assert_eq!((metadata.readable, metadata.writable, metadata.searchable), (true, false, false));
}

#[test]
fn data_ranges_reports_holes() {
    let place = place(PosixOptions::default());
    let file = place.store.open_write(&path("/f"), CREATE).unwrap();
    file.write_at(&[1; 4096], 1 << 20).unwrap();
    file.write_at(&[1; 4096], 4 << 20).unwrap();
    file.set_len(8 << 20).unwrap();
    let metadata = file.metadata().unwrap();
    assert!(metadata.blocks * 512 < metadata.size, "{metadata:?}");
    let open = place.store.open_read(&path("/f")).unwrap();
    let data = open.data_ranges(0, u64::MAX).unwrap();
    let written: RangeSet = [1 << 20..(1 << 20) + 4096, 4 << 20..(4 << 20) + 4096].into_iter().collect();
    let mut missing = written.clone();
    missing.subtract(&data);
    assert!(missing.is_empty(), "{data}");
    assert!(data.len() < 4 << 20, "{data}");
    assert_eq!(open.data_ranges((1 << 20) + 5, (1 << 20) + 10).unwrap().to_string(), "1048581-1048586");
}

#[test]
fn free_space_is_reported() {
    let place = place(PosixOptions::default());
    assert!(place.store.free_space(&path("/")).unwrap().unwrap() > 0);
}
