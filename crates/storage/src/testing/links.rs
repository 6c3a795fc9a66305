//! Checks of symbolic links.

use std::sync::Arc;

use bstr::BString;

use super::{CREATE, EXCLUSIVE, EXISTING, fails, get, names, path, put, same};
use crate::{ErrorKind, Kind, Store, WriteOptions};

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    follows(&*make());
    stays_inside(&*make());
    leads_nowhere(&*make());
    removes_links_not_what_they_lead_to(&*make());
}

fn link(store: &dyn Store, target: &str, at: &str) {
    store.symlink(target.into(), &path(at)).unwrap();
}

fn follows(store: &dyn Store) {
    store.make_directory(&path("/d"), 0o755).unwrap();
    put(store, "/d/f", b"content");
    link(store, "d/f", "/l");
    link(store, "../d", "/d/self");
    let itself = store.stat(&path("/l"), false).unwrap();
    same((itself.kind, itself.target), (Kind::Symlink, Some(BString::from("d/f"))), "a link itself");
    let followed = store.stat(&path("/l"), true).unwrap();
    same((followed.kind, followed.size, followed.target), (Kind::File, 7, None), "what a link leads to");
    let listed = super::list(store, "/");
    same(listed[&BString::from("l")].target.clone(), Some("d/f".into()), "the target of a link in a list");
    same(get(store, "/l"), b"content".to_vec(), "a file read through a link");
    same(get(store, "/d/self/self/f"), b"content".to_vec(), "a file read through links of directories");
    same(store.real_path(&path("/d/self/self/f")).unwrap(), path("/d/f"), "the real path");
    same(store.real_path(&path("/l")).unwrap(), path("/d/f"), "the real path of a link at the end");
    store.open_write(&path("/l"), EXISTING).unwrap().write_at(b"C", 0).unwrap();
    same(get(store, "/d/f"), b"Content".to_vec(), "a file written through a link");
    store.set_mode(&path("/l"), 0o604).unwrap();
    store.set_modified(&path("/l"), 77, 0).unwrap();
    store.truncate(&path("/l"), 3).unwrap();
    store.set_modified(&path("/l"), 77, 0).unwrap();
    let metadata = store.stat(&path("/d/f"), false).unwrap();
    same((metadata.mode, metadata.modified.0, metadata.size), (0o604, 77, 3), "what was set through a link");
    fails(store.symlink("x".into(), &path("/l")), ErrorKind::AlreadyExists, "/l");
    same(names(store, "/d/self"), vec!["f".to_owned(), "self".to_owned()], "the names behind a link");
}

fn stays_inside(store: &dyn Store) {
    put(store, "/top", b"top");
    store.make_directory(&path("/d"), 0o755).unwrap();
    // Absolute links are relative to the store's root; `..` ends there.
    link(store, "/top", "/d/absolute");
    link(store, "../../../../top", "/d/up");
    link(store, "/../../d", "/round");
    for each in ["/d/absolute", "/d/up", "/round/up"] {
        same(get(store, each), b"top".to_vec(), each);
        same(store.real_path(&path(each)).unwrap(), path("/top"), each);
    }
    link(store, "/", "/d/root");
    link(store, "..", "/d/parent");
    for each in ["/d/root", "/d/parent", "/d/root/d/root/d/parent"] {
        same(store.stat(&path(each), true).unwrap().kind, Kind::Directory, each);
        same(store.real_path(&path(each)).unwrap(), path("/"), each);
        assert!(names(store, each).contains(&"top".to_owned()), "{each} is the root");
    }
    // Files that exist on the machine and not in the store.
    link(store, "/etc/passwd", "/d/passwd");
    link(store, "../../../../../../../../etc/passwd", "/d/passwd-up");
    link(store, "/proc/self/cwd", "/d/cwd");
    for each in ["/d/passwd", "/d/passwd-up", "/d/cwd"] {
        fails(store.open_read(&path(each)), ErrorKind::NotFound, each);
        fails(store.open_write(&path(each), EXISTING), ErrorKind::NotFound, each);
        fails(store.stat(&path(each), true), ErrorKind::NotFound, each);
        fails(store.real_path(&path(each)), ErrorKind::NotFound, each);
        fails(store.truncate(&path(each), 0), ErrorKind::NotFound, each);
        fails(store.set_mode(&path(each), 0o777), ErrorKind::NotFound, each);
        fails(store.list(&path(each), &mut |_, _| Ok(())), ErrorKind::NotFound, each);
    }
}

fn leads_nowhere(store: &dyn Store) {
    link(store, "none", "/dangling");
    link(store, "loop-b", "/loop-a");
    link(store, "loop-a", "/loop-b");
    same(store.stat(&path("/dangling"), false).unwrap().kind, Kind::Symlink, "a link that leads nowhere");
    fails(store.stat(&path("/dangling"), true), ErrorKind::NotFound, "/dangling");
    fails(store.stat(&path("/loop-a"), true), ErrorKind::TooManyLinks, "/loop-a");
    fails(store.stat(&path("/loop-a/x"), false), ErrorKind::TooManyLinks, "/loop-a/x");
    // No file is created at the target of a link, because the caller has checked another path.
    for options in [CREATE, EXCLUSIVE, WriteOptions { truncate: false, ..CREATE }] {
        fails(store.open_write(&path("/dangling"), options), ErrorKind::AlreadyExists, "/dangling");
    }
    fails(store.make_directory(&path("/dangling"), 0o755), ErrorKind::AlreadyExists, "/dangling");
    same(store.stat(&path("/none"), false).is_err(), true, "nothing was made");
    put(store, "/f", b"f");
    store.rename(&path("/f"), &path("/dangling")).unwrap();
    same(store.stat(&path("/dangling"), false).unwrap().kind, Kind::File, "a file renamed over a link");
}

fn removes_links_not_what_they_lead_to(store: &dyn Store) {
    store.make_directory(&path("/keep"), 0o755).unwrap();
    put(store, "/keep/f", b"f");
    store.make_directory(&path("/t"), 0o755).unwrap();
    link(store, "../keep", "/t/directory");
    link(store, "../keep/f", "/t/file");
    link(store, "keep", "/l");
    fails(store.remove_directory(&path("/l")), ErrorKind::NotDirectory, "/l");
    store.remove_tree(&path("/t")).unwrap();
    store.remove_tree(&path("/l")).unwrap();
    same(get(store, "/keep/f"), b"f".to_vec(), "what links led to");
    link(store, "keep", "/l");
    store.remove_file(&path("/l")).unwrap();
    same(names(store, "/"), vec!["keep".to_owned()], "what is left");
}
