//! Tests of the memory store.

#![allow(clippy::unwrap_used)]

use super::*;

fn path(text: &str) -> VirtualPath {
    VirtualPath::parse(text.as_bytes()).unwrap()
}

const CREATE: WriteOptions = WriteOptions { create: true, truncate: true, exclusive: false, mode: 0o644 };

#[test]
fn memory_store_keeps_the_contract() {
    crate::testing::contract(&|| Arc::new(MemoryStore::new(64 << 20)));
}

#[test]
fn writes_beyond_the_capacity_fail() {
    let store = MemoryStore::new(100);
    let file = store.open_write(&path("/a"), CREATE).unwrap();
    file.write_at(&[1; 60], 0).unwrap();
    file.write_at(&[1; 60], 0).unwrap();
    assert_eq!(store.free_space(&path("/")).unwrap(), Some(40));
    for (length, offset) in [(50, 60), (1, 1 << 60), (1, u64::MAX - 1)] {
        let error = file.write_at(&vec![1; length], offset).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::NoSpace, Some(offset)));
    }
    assert_eq!(file.write_at(&[1; 2], u64::MAX).unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!(file.set_len(101).unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(store.stat(&path("/a"), true).unwrap().size, 60);
    let other = store.open_write(&path("/b"), CREATE).unwrap();
    other.write_at(&[2; 40], 0).unwrap();
    assert_eq!(other.write_at(&[2; 41], 0).unwrap_err().kind(), ErrorKind::NoSpace);
    // The space is released when the last handle of a removed file is dropped.
    store.remove_file(&path("/a")).unwrap();
    assert_eq!(store.free_space(&path("/")).unwrap(), Some(0));
    drop(file);
    assert_eq!(store.free_space(&path("/")).unwrap(), Some(60));
    other.set_len(0).unwrap();
    assert_eq!(store.free_space(&path("/")).unwrap(), Some(100));
}
