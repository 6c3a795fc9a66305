//! Places that a guard refuses are not accessed, even if other processes change the tree meanwhile.

use parking_lot::Mutex;

use super::races::{ENOUGH, disturbed, exchange};
use super::*;

/// A store in which nothing in `/secret` may be accessed.
fn guarded(store: &PosixStore) -> Arc<dyn Store> {
    store.guarded(Arc::new(|at, _| !at.as_bytes().starts_with(b"/secret"))).unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn operations_on_refused_places_fail() {
    for place in both() {
        let inside = &place.inside;
        fs::create_dir_all(inside.join("secret/d")).unwrap();
        fs::create_dir_all(inside.join("open")).unwrap();
        fs::write(inside.join("secret/f"), "secret").unwrap();
        fs::write(inside.join("open/f"), "open").unwrap();
        symlink("../secret", inside.join("open/way")).unwrap();
        symlink("../secret/f", inside.join("open/link")).unwrap();
        let store = guarded(&place.store);
        let (way, file, new) = (path("/open/way"), path("/open/way/f"), path("/open/way/new"));
        let results = [
            store.stat(&file, true).map(drop),
            store.stat(&file, false).map(drop),
            store.stat(&path("/open/link"), true).map(drop),
            store.list(&way, &mut |_, _| Ok(())),
            store.open_read(&file).map(drop),
            store.open_read(&path("/open/link")).map(drop),
            store.open_write(&file, EXISTING).map(drop),
            store.open_write(&file, CREATE).map(drop),
            store.open_write(&path("/open/link"), CREATE).map(drop),
            store.open_write(&new, CREATE).map(drop),
            store.open_write(&new, WriteOptions { exclusive: true, ..CREATE }).map(drop),
            store.make_directory(&new, 0o755),
            store.remove_directory(&path("/open/way/d")),
            store.remove_file(&file),
            store.rename(&file, &path("/open/stolen")),
            store.rename(&path("/open/f"), &new),
            store.rename(&path("/secret/f"), &path("/secret/g")),
            store.symlink("x".into(), &new),
            store.set_modified(&file, 0, 0),
            store.set_mode(&file, 0o777),
            store.set_group(&file, 0),
            store.truncate(&file, 0),
            store.remove_tree(&path("/open/way/d")),
        ];
        for (i, result) in results.into_iter().enumerate() {
            assert_eq!(result.map_err(|e| e.kind()), Err(ErrorKind::NotAllowed), "operation {i}");
        }
        assert_eq!(names(&inside.join("secret")), ["d", "f"]);
        assert_eq!(fs::read_to_string(inside.join("secret/f")).unwrap(), "secret");
        // Refused places are not listed either; links themselves are ordinary entries.
        let mut seen = Vec::new();
        let mut note = |name: &BStr, _: crate::Metadata| {
            seen.push(name.to_string());
            Ok(())
        };
        store.list(&path("/"), &mut note).unwrap();
        store.list(&path("/open"), &mut note).unwrap();
        seen.sort();
        assert_eq!(seen, ["f", "link", "open", "way"]);
        assert_eq!(store.stat(&path("/open/link"), false).unwrap().kind, Kind::Symlink);
        store.remove_file(&path("/open/link")).unwrap();
        store.rename(&path("/open/f"), &path("/open/g")).unwrap();
        store.open_write(&path("/open/g"), CREATE).unwrap().write_at(b"new", 0).unwrap();
        assert_eq!(fs::read_to_string(inside.join("open/g")).unwrap(), "new");
    }
}

#[test]
fn guard_gets_the_purpose_of_each_operation() {
    let place = place(PosixOptions::default());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let note = Arc::clone(&asked);
    let store = place
        .store
        .guarded(Arc::new(move |at, purpose| {
            note.lock().push((at.to_string(), purpose));
            true
        }))
        .unwrap();
    fs::create_dir(place.inside.join("d")).unwrap();
    symlink("d", place.inside.join("l")).unwrap();
    let asked = || std::mem::take(&mut *asked.lock());
    let at = |text: &str, purpose| (text.to_owned(), purpose);
    store.open_write(&path("/l/f"), WriteOptions { exclusive: true, ..CREATE }).unwrap();
    assert_eq!(asked(), [at("/d/f", Purpose::Write)]);
    store.open_read(&path("/l/f")).unwrap();
    assert_eq!(asked(), [at("/d/f", Purpose::Read)]);
    store.rename(&path("/l/f"), &path("/l/g")).unwrap();
    assert_eq!(asked(), [at("/d/f", Purpose::Move), at("/d/g", Purpose::WriteTree)]);
    store.stat(&path("/l"), true).unwrap();
    store.stat(&path("/l"), false).unwrap();
    store.stat(&path("/"), false).unwrap();
    assert_eq!(asked(), [at("/d", Purpose::See), at("/l", Purpose::See), at("/", Purpose::See)]);
    store.remove_tree(&path("/l/g")).unwrap();
    assert_eq!(asked(), [at("/d/g", Purpose::WriteTree)]);
}

#[test]
fn guard_works_with_the_whole_file_system_as_root() {
    let keep = tempfile::tempdir().unwrap();
    fs::write(keep.path().join("f"), "f").unwrap();
    symlink("f", keep.path().join("l")).unwrap();
    let store = PosixStore::new(Path::new("/"), PosixOptions::default()).unwrap();
    let base = path(keep.path().canonicalize().unwrap().to_str().unwrap());
    let refused = base.child(b"f").unwrap();
    let store = store.guarded(Arc::new(move |at, _| *at != refused)).unwrap();
    for name in ["f", "l"] {
        let at = base.child(name.as_bytes()).unwrap();
        assert_eq!(store.set_mode(&at, 0o600).unwrap_err().kind(), ErrorKind::NotAllowed);
        assert_eq!(store.open_read(&at).err().unwrap().kind(), ErrorKind::NotAllowed);
        assert_eq!(store.stat(&at, true).unwrap_err().kind(), ErrorKind::NotAllowed);
    }
    store.rename(&base.child(b"l").unwrap(), &base.child(b"m").unwrap()).unwrap();
}

#[test]
fn guard_detects_a_directory_swapped_for_a_link() {
    for place in both() {
        let inside = &place.inside;
        for name in ["secret", "open/d"] {
            fs::create_dir_all(inside.join(name)).unwrap();
            fs::write(inside.join(name).join("f"), name).unwrap();
        }
        symlink("../secret", inside.join("open/swap")).unwrap();
        let store = guarded(&place.store);
        let mut seen = [0usize; 2];
        disturbed(
            || exchange(&inside.join("open/d"), &inside.join("open/swap")),
            || {
                for round in 0.. {
                    if seen.iter().all(|seen| *seen >= ENOUGH) {
                        break;
                    }
                    let mut buffer = [0; 6];
                    match store.open_read(&path("/open/d/f")) {
                        Ok(file) => {
                            assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 6);
                            assert_eq!(&buffer, b"open/d");
                            seen[0] += 1;
                        }
                        Err(_) => seen[1] += 1,
                    }
                    let new = path(&format!("/open/d/new{}", round % 4));
                    let moved = path("/open/d/moved");
                    let _ = store.open_write(&new, CREATE);
                    let _ = store.rename(&new, &moved);
                    let _ = store.remove_file(&moved);
                    let _ = store.make_directory(&path("/open/d/made"), 0o700);
                    let _ = store.remove_tree(&path("/open/d/made"));
                    let _ = store.set_mode(&path("/open/d/f"), 0o606);
                    let _ = store.set_modified(&path("/open/d/f"), 1, 0);
                    let _ = store.list(&path("/open/d"), &mut |name, _| {
                        assert_ne!(name, "only-here");
                        Ok(())
                    });
                    if round == 0 {
                        fs::write(inside.join("secret/only-here"), "x").unwrap();
                    }
                }
            },
        );
        assert_eq!(names(&inside.join("secret")), ["f", "only-here"]);
        assert_eq!(fs::read_to_string(inside.join("secret/f")).unwrap(), "secret");
        let kept = fs::metadata(inside.join("secret/f")).unwrap();
        assert_ne!(kept.permissions().mode() & 0o777, 0o606);
    }
}

#[test]
fn guard_gets_the_current_path_of_a_near_directory() {
    for place in both() {
        let inside = &place.inside;
        fs::create_dir(inside.join("open")).unwrap();
        fs::write(inside.join("open/f"), "x").unwrap();
        let store = guarded(&place.store).near(&path("/open")).unwrap();
        store.stat(&path("/open/f"), false).unwrap();
        fs::rename(inside.join("open"), inside.join("secret")).unwrap();
        let exclusive = WriteOptions { exclusive: true, ..CREATE };
        let refused = [
            store.stat(&path("/open/f"), false).map(drop),
            store.open_write(&path("/open/g"), exclusive).map(drop),
            store.rename(&path("/open/f"), &path("/open/h")),
            store.remove_file(&path("/open/f")),
        ];
        for result in refused {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::NotAllowed);
        }
        assert_eq!(names(&inside.join("secret")), ["f"]);
    }
}
