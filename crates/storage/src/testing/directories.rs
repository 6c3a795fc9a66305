//! Checks of directories: listings, removal, walks, real paths and renames.

use std::sync::Arc;

use super::{fails, get, list, names, path, put, same};
use crate::{Error, ErrorKind, Kind, Step, Store, Visit, WalkOptions, walk};

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    makes_and_removes(&*make());
    lists(&*make());
    removes_trees(&*make());
    walks(&*make());
    real_paths(&*make());
    if make().capabilities().rename {
        renames(&*make());
    }
}

fn makes_and_removes(store: &dyn Store) {
    same(store.stat(&path("/"), true).unwrap().kind, Kind::Directory, "the kind of the root");
    same(store.stat(&path("/"), false).unwrap().kind, Kind::Directory, "the kind of the root");
    store.make_directory(&path("/d"), 0o755).unwrap();
    let metadata = store.stat(&path("/d"), false).unwrap();
    same((metadata.kind, metadata.mode & 0o700), (Kind::Directory, 0o700), "a new directory");
    fails(store.make_directory(&path("/d"), 0o755), ErrorKind::AlreadyExists, "/d");
    fails(store.make_directory(&path("/"), 0o755), ErrorKind::AlreadyExists, "/");
    fails(store.make_directory(&path("/none/d"), 0o755), ErrorKind::NotFound, "/none/d");
    put(store, "/d/f", b"x");
    fails(store.make_directory(&path("/d/f"), 0o755), ErrorKind::AlreadyExists, "/d/f");
    fails(store.make_directory(&path("/d/f/e"), 0o755), ErrorKind::NotDirectory, "/d/f/e");
    fails(store.remove_directory(&path("/d")), ErrorKind::NotEmpty, "/d");
    fails(store.remove_directory(&path("/d/f")), ErrorKind::NotDirectory, "/d/f");
    fails(store.remove_file(&path("/d")), ErrorKind::IsDirectory, "/d");
    fails(store.remove_file(&path("/none")), ErrorKind::NotFound, "/none");
    fails(store.remove_directory(&path("/none")), ErrorKind::NotFound, "/none");
    fails(store.remove_directory(&path("/")), ErrorKind::Busy, "/");
    store.remove_file(&path("/d/f")).unwrap();
    store.remove_directory(&path("/d")).unwrap();
    fails(store.stat(&path("/d"), false), ErrorKind::NotFound, "/d");
    store.sync_directory(&path("/")).unwrap();
    let (free, total) = (store.free_space(&path("/")).unwrap(), store.total_space(&path("/")).unwrap());
    assert_eq!(free.is_some(), total.is_some(), "a store that knows one of the two knows both");
    assert!(free <= total, "{free:?} of {total:?} bytes are free");
}

fn lists(store: &dyn Store) {
    assert!(list(store, "/").is_empty(), "a new store is empty");
    put(store, "/file", b"four");
    store.make_directory(&path("/sub"), 0o755).unwrap();
    put(store, "/sub/below", b"x");
    let found = list(store, "/");
    same(names(store, "/"), vec!["file".to_owned(), "sub".to_owned()], "the names of the root");
    for (name, metadata) in &found {
        let alone = store.stat(&path(format!("/{name}")), false).unwrap();
        same(metadata, &alone, "the attributes in a list and alone");
    }
    same(names(store, "/sub"), vec!["below".to_owned()], "the names of a directory");
    fails(store.list(&path("/file"), &mut |_, _| Ok(())), ErrorKind::NotDirectory, "/file");
    fails(store.list(&path("/none"), &mut |_, _| Ok(())), ErrorKind::NotFound, "/none");
    // The sink can stop the listing, and can use the store.
    let mut seen = 0;
    let stop = || Error::new(ErrorKind::Interrupted, "list", "/");
    let stopped = store.list(&path("/"), &mut |name, _| {
        store.stat(&path(format!("/{name}")), true)?;
        seen += 1;
        Err(stop())
    });
    same((stopped, seen), (Err(stop()), 1), "a list that was stopped");
    store.make_directory(&path("/many"), 0o755).unwrap();
    for i in 0..1000 {
        put(store, &format!("/many/a-name-of-some-length-{i}"), b"");
    }
    same(list(store, "/many").len(), 1000, "the entries of a large directory");
}

fn removes_trees(store: &dyn Store) {
    store.make_directory(&path("/t"), 0o755).unwrap();
    for i in 0..5 {
        store.make_directory(&path(format!("/t/{i}")), 0o755).unwrap();
        for j in 0..5 {
            put(store, &format!("/t/{i}/{j}"), b"x");
            put(store, &format!("/t/f{i}{j}"), b"x");
        }
    }
    let mut deep = "/t/deep".to_owned();
    for _ in 0..200 {
        store.make_directory(&path(&deep), 0o755).unwrap();
        deep.push_str("/d");
    }
    put(store, "/keep", b"x");
    let mut asked = 0;
    let stopped = store.remove_tree_while(&path("/t"), &mut || {
        asked += 1;
        if asked < 3 { Ok(()) } else { Err(Error::new(ErrorKind::Interrupted, "remove", b"/t")) }
    });
    if asked > 1 {
        same(stopped.unwrap_err().kind(), ErrorKind::Interrupted, "a removal that was stopped");
        same(names(store, "/").len(), 2, "what is left of a removal that was stopped");
    }
    store.remove_tree(&path("/t")).or_else(|e| if asked == 1 { Ok(()) } else { Err(e) }).unwrap();
    same(names(store, "/"), vec!["keep".to_owned()], "what is left");
    store.remove_tree(&path("/keep")).unwrap();
    fails(store.remove_tree(&path("/keep")), ErrorKind::NotFound, "/keep");
    fails(store.remove_tree(&path("/")), ErrorKind::Busy, "/");
}

fn walks(store: &dyn Store) {
    let mut expected = Vec::new();
    for directory in ["/a", "/a/b", "/c"] {
        store.make_directory(&path(directory), 0o755).unwrap();
        put(store, &format!("{directory}/f"), b"x");
        expected.extend([directory.to_owned(), format!("{directory}/f")]);
    }
    expected.sort();
    let mut found: Vec<String> = Vec::new();
    walk(store, &path("/"), WalkOptions::default(), &mut |visit| {
        let Visit::Entry { path, .. } = visit else { panic!("{visit:?}") };
        if let Some(parent) = path.parent().filter(|parent| !parent.is_root()) {
            assert!(found.contains(&parent.to_string()), "{path} comes before its directory");
        }
        found.push(path.to_string());
        Ok(Step::Into)
    })
    .unwrap();
    found.sort();
    same(found, expected, "what a walk visits");
}

fn real_paths(store: &dyn Store) {
    store.make_directory(&path("/d"), 0o755).unwrap();
    put(store, "/d/f", b"x");
    for each in ["/", "/d", "/d/f"] {
        same(store.real_path(&path(each)).unwrap(), path(each), "the real path of what is no link");
    }
    fails(store.real_path(&path("/d/none")), ErrorKind::NotFound, "/d/none");
    fails(store.real_path(&path("/d/f/below")), ErrorKind::NotDirectory, "/d/f/below");
}

fn renames(store: &dyn Store) {
    put(store, "/a", b"a");
    put(store, "/b", b"b");
    store.rename(&path("/a"), &path("/b")).unwrap();
    same(get(store, "/b"), b"a".to_vec(), "a file renamed over another");
    same(names(store, "/"), vec!["b".to_owned()], "what is left after it");
    store.rename(&path("/b"), &path("/b")).unwrap();
    store.make_directory(&path("/d"), 0o755).unwrap();
    store.make_directory(&path("/d/e"), 0o755).unwrap();
    store.rename(&path("/b"), &path("/d/e/c")).unwrap();
    same(get(store, "/d/e/c"), b"a".to_vec(), "a file renamed into a directory");
    store.rename(&path("/d"), &path("/x")).unwrap();
    same(get(store, "/x/e/c"), b"a".to_vec(), "a file in a renamed directory");
    fails(store.rename(&path("/none"), &path("/y")), ErrorKind::NotFound, "/none");
    fails(store.rename(&path("/x"), &path("/x/e/x")), ErrorKind::Invalid, "/x");
    put(store, "/f", b"f");
    fails(store.rename(&path("/f"), &path("/x")), ErrorKind::IsDirectory, "/f");
    fails(store.rename(&path("/x"), &path("/f")), ErrorKind::NotDirectory, "/x");
    store.make_directory(&path("/empty"), 0o755).unwrap();
    fails(store.rename(&path("/empty"), &path("/x")), ErrorKind::NotEmpty, "/empty");
    store.rename(&path("/x"), &path("/empty")).unwrap();
    same(get(store, "/empty/e/c"), b"a".to_vec(), "a directory renamed over an empty one");
    fails(store.rename(&path("/"), &path("/r")), ErrorKind::Busy, "/");
}
