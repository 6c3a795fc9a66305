//! Renames that must not replace anything.

use std::sync::atomic::AtomicUsize;

use super::*;

#[test]
fn rename_without_replacing_keeps_existing_entries() {
    for place in both() {
        let store = place.store.without_replacing().unwrap();
        let there = |name: &str| fs::read_to_string(place.inside.join(name)).ok();
        fs::create_dir(place.inside.join("d")).unwrap();
        fs::write(place.inside.join("new"), "new").unwrap();
        for name in ["old", "d/old"] {
            fs::write(place.inside.join(name), "old").unwrap();
            let error = store.rename(&path("/new"), &path(&format!("/{name}"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
            assert_eq!((there("new").as_deref(), there(name).as_deref()), (Some("new"), Some("old")));
        }
        // The name of a dangling link exists, too.
        symlink("nowhere", place.inside.join("link")).unwrap();
        let error = store.rename(&path("/new"), &path("/link")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        store.rename(&path("/new"), &path("/d/free")).unwrap();
        assert_eq!(there("d/free").as_deref(), Some("new"));
        // The order of guard and `without_replacing` does not matter.
        let always: Guard = Arc::new(|_, _| true);
        let guarded = store.guarded(Arc::clone(&always)).unwrap();
        let other = place.store.guarded(always).unwrap().without_replacing().unwrap();
        for store in [guarded, other] {
            let error = store.rename(&path("/d/free"), &path("/old")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
        }
        place.store.rename(&path("/d/free"), &path("/old")).unwrap();
        assert_eq!(there("old").as_deref(), Some("new"));
    }
}

/// Of several renames to the same name, one succeeds.
#[test]
fn concurrent_renames_without_replacing_have_one_winner() {
    let place = place(PosixOptions::default());
    let store = place.store.without_replacing().unwrap();
    for round in 0..20 {
        let got = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (store, got, name) = (&store, &got, format!("{round}-{n}"));
                fs::write(place.inside.join(&name), &name).unwrap();
                scope.spawn(move || {
                    let result = store.rename(&path(&format!("/{name}")), &path(&format!("/{round}")));
                    match result {
                        Ok(()) => {
                            got.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}"),
                    }
                });
            }
        });
        assert_eq!(got.into_inner(), 1);
    }
}

#[test]
fn rename_file_refuses_directories() {
    let at = place(PosixOptions::default());
    let write = |name: &str| fs::write(at.inside.join(name), name).unwrap();
    let read = |name: &str| fs::read_to_string(at.inside.join(name)).unwrap();
    write("f");
    write("other");
    symlink("nowhere", at.inside.join("link")).unwrap();
    fs::create_dir(at.inside.join("d")).unwrap();
    let rename = |from: &str, to: &str| at.store.rename_file(&path(from), &path(to));
    rename("/f", "/d/g").unwrap();
    assert_eq!(read("d/g"), "f");
    rename("/d/g", "/other").unwrap();
    assert_eq!(read("other"), "f");
    rename("/link", "/d/link").unwrap();
    assert!(at.inside.join("d/link").is_symlink());
    for (from, to) in [("/d", "/e"), ("/other", "/d"), ("/none", "/e")] {
        assert!(rename(from, to).is_err(), "{from} {to}");
    }
    // Renaming between two names of one file loses neither, and renaming a file to itself keeps it.
    rename("/other", "/other").unwrap();
    fs::hard_link(at.inside.join("other"), at.inside.join("again")).unwrap();
    rename("/again", "/again").unwrap();
    rename("/again", "/other").unwrap();
    assert_eq!(read("other"), "f");
    let keeps = at.store.without_replacing().unwrap();
    write("f");
    assert!(keeps.rename_file(&path("/f"), &path("/other")).is_err());
    let mut names: Vec<_> =
        fs::read_dir(&at.inside).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["d", "f", "other"]);
}
