//! Checks of files: reads, writes, attributes, holes and locks.

use std::sync::Arc;

use ropewalk_protocol::range::RangeSet;

use super::{CREATE, EXCLUSIVE, EXISTING, fails, get, path, pattern, put, same};
use crate::{DiskFile, ErrorKind, Kind, Positions, Store, WriteOptions};

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    reads(&*make());
    writes_in_any_order(&*make());
    opens(&*make());
    lengths(&*make());
    attributes(&*make());
    holes(&*make());
    if make().capabilities().outlives_name {
        unlinked_files_live_on(&*make());
    }
    locks(&*make());
}

fn reads(store: &dyn Store) {
    let data = pattern(100_000);
    put(store, "/f", &data);
    let file = store.open_read(&path("/f")).unwrap();
    let mut buffer = vec![0; 1000];
    for at in [0usize, 1, 4095, 65_536, 99_500] {
        let got = file.read_at(&mut buffer, at as u64).unwrap();
        same(&buffer[..got], &data[at..at + got], "what is read at an offset");
        assert!(got > 0, "nothing was read at {at}");
    }
    same(file.read_at(&mut buffer, 100_000).unwrap(), 0, "a read at the end");
    same(file.read_at(&mut buffer, 1 << 40).unwrap(), 0, "a read beyond the end");
    same(file.read_at(&mut [], 5).unwrap(), 0, "a read into nothing");
    same(file.metadata().unwrap().size, 100_000, "the size of an open file");
    if let Some(descriptor) = file.descriptor() {
        let got = rustix::io::pread(descriptor, &mut buffer, 7).unwrap();
        same(&buffer[..got], &data[7..7 + got], "what is read through the descriptor");
    }
    fails(store.open_read(&path("/none")), ErrorKind::NotFound, "/none");
    fails(store.open_read(&path("/")), ErrorKind::IsDirectory, "/");
    fails(store.open_read(&path("/f/below")), ErrorKind::NotDirectory, "/f/below");
}

fn writes_in_any_order(store: &dyn Store) {
    let data = pattern(50_000);
    let file = store.open_write(&path("/f"), CREATE).unwrap();
    if store.capabilities().random_write {
        for start in [40_000, 10_000, 0, 30_000, 20_000] {
            file.write_at(&data[start..start + 10_000], start as u64).unwrap();
        }
        same(get(store, "/f"), data.clone(), "blocks written out of order");
        file.write_at(b"over", 12_345).unwrap();
        let mut expected = data;
        expected[12_345..12_349].copy_from_slice(b"over");
        same(get(store, "/f"), expected.clone(), "bytes written over others");
        if let Some(descriptor) = file.disk().and_then(DiskFile::descriptor) {
            rustix::io::pwrite(descriptor, b"through", 0).unwrap();
            expected[..7].copy_from_slice(b"through");
            same(get(store, "/f"), expected, "bytes written through the descriptor");
        }
    } else {
        file.write_at(&data[..10_000], 0).unwrap();
        file.write_at(&data[10_000..], 10_000).unwrap();
        same(get(store, "/f"), data, "blocks written in order");
    }
    file.write_at(b"", 0).unwrap();
    file.sync().unwrap();
    assert_eq!(file.positions(), Positions::Any, "a file has positions");
    assert!(!file.discards(), "a file keeps what is written");
}

fn opens(store: &dyn Store) {
    fails(store.open_write(&path("/f"), EXISTING), ErrorKind::NotFound, "/f");
    put(store, "/f", b"first");
    fails(store.open_write(&path("/f"), EXCLUSIVE), ErrorKind::AlreadyExists, "/f");
    same(get(store, "/f"), b"first".to_vec(), "a file after an open that failed");
    let keep = WriteOptions { truncate: false, ..CREATE };
    store.open_write(&path("/f"), keep).unwrap().write_at(b"F", 0).unwrap();
    same(get(store, "/f"), b"First".to_vec(), "a file opened without truncating");
    store.open_write(&path("/f"), WriteOptions { truncate: true, ..EXISTING }).unwrap();
    same(get(store, "/f"), Vec::new(), "a file opened with truncating");
    store.open_write(&path("/g"), EXCLUSIVE).unwrap().write_at(b"g", 0).unwrap();
    same(get(store, "/g"), b"g".to_vec(), "a file made exclusively");
    fails(store.open_write(&path("/none/f"), CREATE), ErrorKind::NotFound, "/none/f");
    fails(store.open_write(&path("/f/g"), CREATE), ErrorKind::NotDirectory, "/f/g");
    store.make_directory(&path("/d"), 0o755).unwrap();
    fails(store.open_write(&path("/d"), EXISTING), ErrorKind::IsDirectory, "/d");
    fails(store.open_write(&path("/d"), CREATE), ErrorKind::IsDirectory, "/d");
}

fn lengths(store: &dyn Store) {
    let file = put(store, "/f", b"0123456789");
    file.set_len(4).unwrap();
    same(get(store, "/f"), b"0123".to_vec(), "a file cut off");
    file.set_len(6).unwrap();
    same(get(store, "/f"), b"0123\0\0".to_vec(), "a file made longer");
    store.truncate(&path("/f"), 1).unwrap();
    same(get(store, "/f"), b"0".to_vec(), "a file truncated by name");
    fails(store.truncate(&path("/none"), 0), ErrorKind::NotFound, "/none");
    store.make_directory(&path("/d"), 0o755).unwrap();
    fails(store.truncate(&path("/d"), 0), ErrorKind::IsDirectory, "/d");
}

fn attributes(store: &dyn Store) {
    let file = put(store, "/f", b"abc");
    file.set_modified(1_234_567_890, 500_000_000).unwrap();
    file.set_mode(0o751).unwrap();
    let by_name = store.stat(&path("/f"), true).unwrap();
    same(by_name.kind, Kind::File, "the kind of a file");
    same(by_name.size, 3, "the size of a file");
    same(by_name.modified.0, 1_234_567_890, "the time that was set");
    same(by_name.mode, 0o751, "the mode that was set");
    let by_handle = file.metadata().unwrap();
    same((by_handle.device, by_handle.inode), (by_name.device, by_name.inode), "what identifies a file");
    store.set_modified(&path("/f"), 5, 0).unwrap();
    store.set_mode(&path("/f"), 0o600).unwrap();
    store.set_group(&path("/f"), by_name.gid).unwrap();
    let metadata = store.stat(&path("/f"), false).unwrap();
    same((metadata.modified.0, metadata.mode, metadata.gid), (5, 0o600, by_name.gid), "what was set by name");
    // A time before 1970.
    store.set_modified(&path("/f"), -100, 0).unwrap();
    same(store.stat(&path("/f"), true).unwrap().modified.0, -100, "a time before 1970");
    for result in [
        store.set_modified(&path("/none"), 5, 0),
        store.set_mode(&path("/none"), 0o600),
        store.set_group(&path("/none"), 0),
        store.stat(&path("/none"), true).map(drop),
        store.stat(&path("/none"), false).map(drop),
    ] {
        fails(result, ErrorKind::NotFound, "/none");
    }
    fails(store.stat(&path("/f/below"), false), ErrorKind::NotDirectory, "/f/below");
}

fn holes(store: &dyn Store) {
    let able = store.capabilities();
    if !able.random_write {
        return;
    }
    let file = put(store, "/f", b"begin");
    file.write_at(b"end", 8 << 20).unwrap();
    let size = (8 << 20) + 3;
    let bytes = get(store, "/f");
    same(bytes.len(), size, "the size of a file with a hole");
    assert!(bytes[5..8 << 20].iter().all(|byte| *byte == 0), "a hole reads as zeros");
    let open = store.open_read(&path("/f")).unwrap();
    let data = open.data_ranges(0, size as u64).unwrap();
    assert!(data.contains(0..5) && data.contains(8 << 20..size as u64), "data is told as such: {data}");
    same(data.end(), size as u64, "where the data ends");
    let part = open.data_ranges(2, 4).unwrap();
    same(part, RangeSet::from_range(2..4), "the data of a part");
    let beyond = open.data_ranges(1 << 40, 1 << 41).unwrap();
    assert!(beyond.is_empty(), "there is no data beyond the end: {beyond}");
}

fn unlinked_files_live_on(store: &dyn Store) {
    let file = put(store, "/f", b"first");
    let reader = store.open_read(&path("/f")).unwrap();
    store.remove_file(&path("/f")).unwrap();
    put(store, "/f", b"other");
    file.write_at(b"F", 0).unwrap();
    let mut buffer = [0; 5];
    same(reader.read_at(&mut buffer, 0).unwrap(), 5, "a read of a removed file");
    same(&buffer, b"First", "a removed file that is still open");
    same(get(store, "/f"), b"other".to_vec(), "the new file of that name");
    same(file.metadata().unwrap().links, 0, "the links of a removed file");
}

fn locks(store: &dyn Store) {
    let file = put(store, "/f", b"");
    let other = store.open_write(&path("/f"), EXISTING).unwrap();
    assert!(file.lock().unwrap(), "the first gets the lock");
    assert!(file.lock().unwrap(), "and keeps it");
    if other.lock().unwrap() {
        return; // A store without locks.
    }
    assert!(!other.lock_shared().unwrap(), "nobody shares it");
    drop(file);
    assert!(other.lock().unwrap(), "the lock goes with its handle");
    let third = store.open_write(&path("/f"), EXISTING).unwrap();
    other.unlock();
    assert!(third.lock().unwrap(), "a lock that was given back is free");
    // A store may have only exclusive locks.
    if third.lock_shared().unwrap() && other.lock_shared().unwrap() {
        assert!(!third.lock().unwrap(), "nobody has alone what is shared");
        assert!(other.lock().unwrap(), "who could not have it alone has lost his share");
        assert!(!third.lock_shared().unwrap(), "nobody shares what one has alone");
        assert!(other.lock_shared().unwrap() && third.lock_shared().unwrap(), "it can be shared again");
        drop(other);
        assert!(third.lock().unwrap(), "the last one has it alone");
    }
}
