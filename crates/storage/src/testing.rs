//! The test suite for all stores ([`contract`]), and a store that reports its operations
//! ([`Hooked`]).

#![allow(clippy::unwrap_used)]

mod checksums;
mod concurrency;
mod directories;
mod files;
mod hooked;
mod links;
mod names;
mod uploads;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use bstr::BString;
use ropewalk_protocol::path::VirtualPath;

pub use self::hooked::{Deed, Deeds, Hooked};
use crate::{ErrorKind, Metadata, Result, Store, WriteHandle, WriteOptions};

/// Checks all guarantees of the interface, as far as the store's capabilities go.
///
/// `make` returns a new, empty store each time, with room for at least 64 MiB. Panics at the first
/// violation.
pub fn contract(make: &dyn Fn() -> Arc<dyn Store>) {
    files::check(make);
    directories::check(make);
    names::check(make);
    concurrency::check(make);
    uploads::check(make);
    checksums::check(make);
    let able = make().capabilities();
    if able.symlinks {
        links::check(make);
    }
}

const CREATE: WriteOptions = WriteOptions { create: true, truncate: true, exclusive: false, mode: 0o644 };
const EXISTING: WriteOptions = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
const EXCLUSIVE: WriteOptions = WriteOptions { create: true, truncate: false, exclusive: true, mode: 0o644 };

fn path(bytes: impl AsRef<[u8]>) -> VirtualPath {
    VirtualPath::parse(bytes.as_ref()).unwrap()
}

/// Bytes without repeated sequences.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

fn put(store: &dyn Store, at: &str, bytes: &[u8]) -> Arc<dyn WriteHandle> {
    let file = store.open_write(&path(at), CREATE).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

fn get(store: &dyn Store, at: &str) -> Vec<u8> {
    let file = store.open_read(&path(at)).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().size).unwrap() + 1];
    let mut filled = 0;
    loop {
        match file.read_at(&mut bytes[filled..], filled as u64).unwrap() {
            0 => break,
            n => filled += n,
        }
    }
    bytes.truncate(filled);
    bytes
}

fn list(store: &dyn Store, at: &str) -> BTreeMap<BString, Metadata> {
    let mut found = BTreeMap::new();
    store
        .list(&path(at), &mut |name, metadata| {
            assert!(found.insert(name.into(), metadata).is_none(), "{name} is listed twice");
            Ok(())
        })
        .unwrap();
    found
}

fn names(store: &dyn Store, at: &str) -> Vec<String> {
    list(store, at).keys().map(ToString::to_string).collect()
}

/// Checks that the operation failed with this kind of error and names the path.
#[track_caller]
fn fails<T>(result: Result<T>, kind: ErrorKind, at: &str) {
    match result {
        Ok(_) => panic!("{at}: expected {kind:?}, but it worked"),
        Err(error) => {
            assert_eq!(error.kind(), kind, "{at}: {error}");
            assert!(error.errno().is_some(), "{error} has no number");
            assert_eq!(error.path(), at.as_bytes(), "{error}");
        }
    }
}

#[track_caller]
fn same<T: PartialEq + Debug>(found: T, expected: T, what: &str) {
    assert_eq!(found, expected, "{what}");
}
