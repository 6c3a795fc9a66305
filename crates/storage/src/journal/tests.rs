//! Tests of journals in a memory store.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::checksum::{Algorithm, block_sum};
use crate::{Error, MemoryStore};

const OTHER_BOOT: BootId = BootId([9; 16]);

fn path(text: &str) -> VirtualPath {
    VirtualPath::parse(text.as_bytes()).unwrap()
}

fn data() -> Vec<u8> {
    (0..1000).map(|i| (i / 3 + i * 7) as u8).collect()
}

fn put(store: &MemoryStore, path: &VirtualPath, bytes: &[u8]) {
    let options = WriteOptions { create: true, truncate: true, exclusive: false, mode: 0o600 };
    store.open_write(path, options).unwrap().write_at(bytes, 0).unwrap();
}

fn get(store: &MemoryStore, path: &VirtualPath) -> Vec<u8> {
    let mut bytes = vec![0; store.stat(path, true).unwrap().size as usize];
    store.open_read(path).unwrap().read_at(&mut bytes, 0).unwrap();
    bytes
}

fn key() -> JournalKey {
    JournalKey { source: "s".into(), size: Some(1000), modified: None }
}

fn summed(range: Range<u64>) -> Record {
    let sum = block_sum(Algorithm::Crc32c, &data()[range.start as usize..range.end as usize]);
    Record::Data { range, sum: Some(sum) }
}

fn plain(range: Range<u64>) -> Record {
    Record::Data { range, sum: None }
}

/// A part file with all the data, and a journal with these records.
fn store(boot: BootId, records: &[Record]) -> MemoryStore {
    let store = MemoryStore::new(1 << 20);
    put(&store, &path("/part"), &data());
    let header = Header { seed: 5, boot, key: key() };
    let records = records.iter().flat_map(|record| record.encode(5));
    put(&store, &path("/journal"), &header.encode().into_iter().chain(records).collect::<Vec<u8>>());
    store
}

fn load_it(store: &MemoryStore) -> Result<Loaded, String> {
    load(store, &path("/journal"), &path("/part"), Some(&key()), &|_| true, &|| Ok(()), &mut |_| Ok(()))
        .unwrap()
}

fn present(store: &MemoryStore) -> String {
    load_it(store).map_or_else(|why| why, |loaded| loaded.present.to_string())
}

#[test]
fn append_is_read_back_by_load() {
    let store = store(BootId::current(), &[]);
    let loaded = load_it(&store).unwrap();
    assert!(loaded.present.is_empty());
    loaded.journal.append(0..100, Some(block_sum(Algorithm::Crc32c, &data()[..100]))).unwrap();
    loaded.journal.append(200..300, None).unwrap();
    loaded.journal.append_synced(2).unwrap();
    assert_eq!(loaded.journal.len(), 3);
    let again = load_it(&store).unwrap();
    assert_eq!(again.present.to_string(), "0-100,200-300");
    assert_eq!(again.pieces.covered().to_string(), "0-100");
    assert_eq!(again.key, key());
}

#[test]
fn load_under_the_same_boot_trusts_all_records() {
    let store = store(BootId::current(), &[summed(0..100), plain(500..600), summed(100..200)]);
    let loaded = load_it(&store).unwrap();
    assert_eq!(loaded.present.to_string(), "0-200,500-600");
    assert_eq!(loaded.pieces.covered().to_string(), "0-200");
}

#[test]
fn load_after_a_crash_verifies_the_sums() {
    let store = store(OTHER_BOOT, &[summed(0..100), summed(100..200), plain(200..300), summed(300..400)]);
    // A block that did not reach the disk.
    let options = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
    store.open_write(&path("/part"), options).unwrap().write_at(&[0; 50], 120).unwrap();
    let mut read = 0;
    let loaded = load(&store, &path("/journal"), &path("/part"), None, &|_| true, &|| Ok(()), &mut |n| {
        read = n;
        Ok(())
    });
    let loaded = loaded.unwrap().ok().unwrap();
    assert_eq!(loaded.present.to_string(), "0-100,300-400");
    assert_eq!(loaded.pieces.covered(), loaded.present);
    assert_eq!(read, 300);
    // The journal has been updated: it now counts without checks, and can be appended to.
    loaded.journal.append(100..200, None).unwrap();
    let again = load_it(&store).unwrap();
    assert_eq!(again.present.to_string(), "0-200,300-400");
    assert_eq!(again.pieces.covered().to_string(), "0-100,300-400");
}

#[test]
fn load_after_a_crash_keeps_synced_blocks_without_sum() {
    let records = [plain(0..100), plain(100..200), Record::Synced { records: 1 }, plain(200..300)];
    assert_eq!(present(&store(OTHER_BOOT, &records)), "0-100");
    let overwritten = [plain(0..300), Record::Synced { records: 1 }, plain(100..200)];
    assert_eq!(present(&store(OTHER_BOOT, &overwritten)), "0-100,200-300");
    let boot_between =
        [plain(0..100), Record::Synced { records: 1 }, Record::Boot { id: OTHER_BOOT }, summed(5..10)];
    assert_eq!(present(&store(BootId::current(), &boot_between)), "5-10");
}

/// Only the process with exclusive access to the file may write its journal.
#[test]
fn load_requires_exclusive_access_to_update() {
    let busy = || Error::new(ErrorKind::Busy, "open", "/part");
    for (boot, asks) in [(BootId::current(), false), (OTHER_BOOT, true)] {
        let store = store(boot, &[summed(0..100)]);
        let before = get(&store, &path("/journal"));
        let load = |alone: &dyn Fn() -> Result<()>| {
            load(&store, &path("/journal"), &path("/part"), None, &|_| true, alone, &mut |_| Ok(()))
        };
        assert_eq!(load(&|| Err(busy())).err(), asks.then(busy));
        assert_eq!(get(&store, &path("/journal")), before);
        // The process that had access before may have updated it.
        let loaded = load(&|| {
            assert!(asks);
            let other = load(&|| Ok(())).unwrap().ok().unwrap();
            other.journal.append(500..600, None)
        });
        let expected = if asks { "0-100,500-600" } else { "0-100" };
        assert_eq!(loaded.unwrap().ok().unwrap().present.to_string(), expected);
    }
}

#[test]
fn load_stops_on_an_error_of_progress() {
    let stop = || Error::new(ErrorKind::Interrupted, "check", "/part");
    let store = store(OTHER_BOOT, &[summed(0..100)]);
    let result =
        load(&store, &path("/journal"), &path("/part"), None, &|_| true, &|| Ok(()), &mut |_| Err(stop()));
    assert_eq!(result.err(), Some(stop()));
}

/// Also if only the many records have to be read.
#[test]
fn load_of_many_records_calls_progress() {
    const MANY: u64 = 20_000;
    let stop = || Error::new(ErrorKind::Interrupted, "check", "/part");
    let records: Vec<Record> = (0..MANY).rev().map(|at| plain(at % 1000..at % 1000 + 1)).collect();
    let store = store(BootId::current(), &records);
    let load = |progress: &mut dyn FnMut(u64) -> Result<()>| {
        load(&store, &path("/journal"), &path("/part"), None, &|_| true, &|| Ok(()), progress)
    };
    let mut asked = 0;
    let loaded = load(&mut |read| {
        asked += 1;
        assert_eq!(read, 0);
        Ok(())
    });
    assert_eq!(loaded.unwrap().ok().unwrap().present.to_string(), "0-1000");
    // Each record is read twice.
    assert_eq!(asked, 4);
    for end in 0..asked {
        let mut left = end;
        let result = load(&mut |_| {
            left -= 1;
            if left < 0 { Err(stop()) } else { Ok(()) }
        });
        assert_eq!(result.err(), Some(stop()));
    }
}

#[test]
fn load_detects_damaged_records() {
    let records = [summed(0..100), summed(100..200)];
    let header = get(&store(OTHER_BOOT, &[]), &path("/journal")).len();
    for (boot, expected) in
        [(BootId::current(), "record 0 of its journal is damaged"), (OTHER_BOOT, "100-200")]
    {
        let store = store(boot, &records);
        let mut bytes = get(&store, &path("/journal"));
        bytes[header + 9] ^= 4;
        put(&store, &path("/journal"), &bytes);
        assert_eq!(present(&store), expected);
        // A truncated last record was never complete, and its place is reused.
        bytes[header + 9] ^= 4;
        bytes.truncate(header + RECORD + 11);
        put(&store, &path("/journal"), &bytes);
        let loaded = load_it(&store).unwrap();
        assert_eq!(loaded.present.to_string(), "0-100");
        loaded.journal.append(100..200, None).unwrap();
        assert_eq!(present(&store), "0-200");
    }
}

#[test]
fn load_skips_unwritten_records() {
    let store = store(BootId::current(), &[summed(0..100), summed(100..200)]);
    let mut bytes = get(&store, &path("/journal"));
    let first = bytes.len() - 2 * RECORD;
    bytes[first..first + RECORD].fill(0);
    put(&store, &path("/journal"), &bytes);
    assert_eq!(present(&store), "100-200");
}

#[test]
fn load_of_invalid_journal_reports_the_reason() {
    let store = store(BootId::current(), &[]);
    for (bytes, why) in [
        (&b""[..], "it is no journal"),
        (b"ROPEJNL1", "cut off"),
        (b"something else entirely, but long enough to be a header of 64 bytes", "it is no journal"),
    ] {
        put(&store, &path("/journal"), bytes);
        assert!(present(&store).contains(why), "{}", present(&store));
    }
    store.remove_file(&path("/journal")).unwrap();
    assert_eq!(present(&store), "it has no journal");
    store.make_directory(&path("/journal"), 0o755).unwrap();
    assert!(present(&store).contains("no regular file"));
}

#[test]
fn load_with_a_long_source_succeeds() {
    let store = store(BootId::current(), &[]);
    let long = JournalKey { source: "x".repeat(30_000), ..key() };
    Journal::create(
        &store,
        &path("/journal"),
        &long,
        &RangeSet::from_range(0..10),
        &Pieces::new(Algorithm::Crc32c),
    )
    .unwrap();
    let loaded =
        load(&store, &path("/journal"), &path("/part"), Some(&long), &|_| true, &|| Ok(()), &mut |_| Ok(()))
            .unwrap();
    assert_eq!(loaded.ok().unwrap().present.to_string(), "0-10");
}

proptest! {
    /// No content of a journal causes a panic or a range beyond the file.
    #[test]
    fn load_of_any_records_does_not_panic(
        junk in prop::collection::vec(any::<u8>(), 0..200),
        ranges in prop::collection::vec((any::<u64>(), any::<u64>(), any::<Option<u32>>()), 0..10),
        other: bool,
    ) {
        let boot = if other { OTHER_BOOT } else { BootId::current() };
        let records: Vec<Record> = ranges
            .into_iter()
            .map(|(a, b, sum)| Record::Data { range: a.min(b)..a.max(b), sum })
            .collect();
        let store = store(boot, &records);
        let mut bytes = get(&store, &path("/journal"));
        bytes.extend_from_slice(&junk);
        put(&store, &path("/journal"), &bytes);
        if let Ok(loaded) = load_it(&store) {
            prop_assert!(loaded.present.end() <= 1000);
        }
    }
}
