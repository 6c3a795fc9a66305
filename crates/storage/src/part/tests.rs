#![allow(clippy::unwrap_used)]

mod owners;

use super::*;
use crate::checksum::block_sum;
use crate::{MemoryStore, PosixOptions, PosixStore, Purpose, WriteOptions};

fn path(text: &str) -> VirtualPath {
    VirtualPath::parse(text.as_bytes()).unwrap()
}

/// Each test runs on both.
fn stores() -> Vec<(Arc<dyn Store>, Option<tempfile::TempDir>)> {
    let directory = tempfile::tempdir().unwrap();
    let posix: Arc<dyn Store> = Arc::new(PosixStore::new(directory.path(), PosixOptions::default()).unwrap());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new(1 << 20));
    vec![(posix, Some(directory)), (memory, None)]
}

fn options(journal: Journaling) -> PartOptions {
    PartOptions { mode: 0o640, resume: true, journal, sync: false, direct: DirectIo::Never, reserve: true }
}

fn key(size: u64) -> JournalKey {
    JournalKey { source: "ftp://a/b".into(), size: Some(size), modified: Some(1_000_000_000) }
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i / 3 + i * 7) as u8).collect()
}

fn write(part: &PartFile, data: &[u8], range: Range<usize>) {
    let (start, end) = (range.start as u64, range.end as u64);
    part.handle().write_at(&data[range.clone()], start).unwrap();
    part.record(start..end, Some(block_sum(Algorithm::Crc32c, &data[range]))).unwrap();
}

fn content(store: &dyn Store, path: &VirtualPath) -> Vec<u8> {
    let file = store.open_read(path).unwrap();
    let mut bytes = vec![0; file.metadata().unwrap().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn names(store: &dyn Store) -> Vec<String> {
    let mut names = Vec::new();
    store
        .list(&VirtualPath::root(), &mut |name, _| {
            names.push(name.to_string());
            Ok(())
        })
        .unwrap();
    names.sort();
    names
}

/// As a kill does: the lock goes, nothing is written.
fn kill(part: PartFile) {
    part.done.store(true, Ordering::Relaxed);
}

const EVERY: [Journaling; 4] =
    [Journaling::Sequential, Journaling::Above(0), Journaling::Above(50), Journaling::Above(1 << 20)];

#[test]
fn a_committed_file_has_its_name_and_leaves_nothing_else() {
    for (store, _keep) in stores() {
        for journal in EVERY {
            let data = data(100);
            let part = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            assert!(part.present().is_empty());
            write(&part, &data, 0..40);
            assert!(store.stat(&path("/f"), false).is_err());
            write(&part, &data, 40..100);
            assert_eq!(
                part.pieces().total(0..100),
                Some(format!("{:08x}", block_sum(Algorithm::Crc32c, &data)))
            );
            part.commit(100, Some((1_000_000_000, 5)), None).unwrap();
            drop(part);
            assert_eq!(names(&*store), ["f"], "{journal:?}");
            assert_eq!(content(&*store, &path("/f")), data);
            let metadata = store.stat(&path("/f"), false).unwrap();
            assert_eq!((metadata.mode, metadata.modified), (0o640, (1_000_000_000, 5)));
            store.remove_file(&path("/f")).unwrap();
        }
    }
}

#[test]
fn commit_replaces_sets_modes_and_cuts() {
    for (store, _keep) in stores() {
        for round in 0..2 {
            let data = data(100 - round);
            let part =
                PartFile::begin(&store, &path("/f"), key(90), options(Journaling::Sequential)).unwrap();
            write(&part, &data, 0..data.len());
            part.commit(90, None, Some(0o600)).unwrap();
            assert_eq!(content(&*store, &path("/f")), data[..90]);
            assert_eq!(store.stat(&path("/f"), false).unwrap().mode, 0o600);
        }
    }
}

#[test]
fn an_incomplete_file_does_not_get_its_name() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 10..20);
        let error = part.commit(100, None, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incomplete);
        assert!(error.to_string().contains("90 of 100 bytes are missing, 0-10,20-100"), "{error}");
        assert!(store.stat(&path("/f"), false).is_err());
    }
}

#[test]
fn an_abandoned_transfer_is_gone_on_with() {
    for (store, _keep) in stores() {
        for journal in EVERY {
            let data = data(100);
            let part = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            write(&part, &data, 0..30);
            drop(part);
            let left = PartFile::interrupted(&store, &path("/f"), &mut |_| Ok(())).unwrap().unwrap();
            assert_eq!(left.present, RangeSet::from_range(0..30));

            let part = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            assert_eq!(part.started_over(), None);
            assert_eq!(part.present(), RangeSet::from_range(0..30), "{journal:?}");
            write(&part, &data, 30..100);
            let sum = part.pieces().total(0..100);
            // Without a journal the sum of what was there before is not known.
            assert_eq!(sum.is_some(), journal != Journaling::Sequential);
            part.commit(100, None, None).unwrap();
            assert_eq!(content(&*store, &path("/f")), data);
            assert_eq!(names(&*store), ["f"]);
            assert_eq!(store.stat(&path("/f"), false).unwrap().mode, 0o640);
            store.remove_file(&path("/f")).unwrap();
        }
    }
}

#[test]
fn a_killed_transfer_is_gone_on_with_where_it_is_known_what_is_there() {
    for (store, _keep) in stores() {
        for (journal, expected) in [
            (Journaling::Sequential, RangeSet::from_range(0..60)),
            (Journaling::Above(0), RangeSet::from_range(0..60)),
            (Journaling::Above(99), RangeSet::from_range(0..60)),
            // The whole file is too small for a journal.
            (Journaling::Above(100), RangeSet::new()),
        ] {
            let part = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            let data = data(100);
            write(&part, &data, 0..30);
            write(&part, &data, 30..60);
            kill(part);
            let part = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            assert_eq!(part.present(), expected, "{journal:?}");
            assert_eq!(part.started_over().is_some(), expected.is_empty());
            part.discard().unwrap();
            assert!(names(&*store).is_empty());
        }
    }
}

/// Bytes out of order, killed before there was a journal, then found by a transfer from front to back.
#[test]
fn holes_are_never_taken_for_bytes() {
    for (store, _keep) in stores() {
        let data = data(100);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        write(&part, &data, 50..100);
        kill(part);
        assert_eq!(PartFile::interrupted(&store, &path("/f"), &mut |_| Ok(())).unwrap(), None);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        assert!(part.present().is_empty());
        // The other way round: it began from front to back, and others go on out of order.
        write(&part, &data, 0..20);
        kill(part);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(0..20));
        write(&part, &data, 50..100);
        kill(part);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        assert_eq!(part.present(), [0..20, 50..100].into_iter().collect());
        // A writer that said it would keep the order and does not.
        part.discard().unwrap();
        drop(part);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        write(&part, &data, 50..100);
        kill(part);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(50..100));
    }
}

#[test]
fn another_source_starts_over_and_says_why() {
    for (store, _keep) in stores() {
        for (other, why) in [
            (JournalKey { source: "ftp://c/d".into(), ..key(100) }, "ftp://c/d"),
            (key(101), "the size was 100 and is 101"),
            (JournalKey { modified: Some(1), ..key(100) }, "modified"),
        ] {
            let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
            write(&part, &data(100), 0..50);
            drop(part);
            let part = PartFile::begin(&store, &path("/f"), other, options(Journaling::Above(0))).unwrap();
            assert!(part.present().is_empty());
            assert!(part.started_over().unwrap().contains(why), "{:?}", part.started_over());
            part.discard().unwrap();
        }
        // What is not known makes no difference.
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..50);
        drop(part);
        let vague = JournalKey { size: None, modified: None, ..key(100) };
        let part = PartFile::begin(&store, &path("/f"), vague, options(Journaling::Above(0))).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(0..50));
    }
}

#[test]
fn without_resume_what_is_there_goes() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..50);
        drop(part);
        let fresh = PartOptions { resume: false, ..options(Journaling::Above(1000)) };
        let part = PartFile::begin(&store, &path("/f"), key(100), fresh).unwrap();
        assert!(part.present().is_empty());
        kill(part);
        assert_eq!(names(&*store), [".f.ropewalk-part"], "the old journal must not speak of the new part");
    }
}

#[test]
fn a_journal_that_lost_its_part_does_not_speak_of_the_next() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..100);
        drop(part);
        store.remove_file(&part_name(&path("/f"))).unwrap();
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        kill(part);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        assert!(part.present().is_empty());
    }
}

#[test]
fn two_transfers_do_not_write_the_same_part() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        for resume in [true, false] {
            let again = PartOptions { resume, ..options(Journaling::Above(0)) };
            let error = PartFile::begin(&store, &path("/f"), key(100), again).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(error.to_string().contains("/f: in use (another transfer writes it)"), "{error}");
        }
        let error = PartFile::interrupted(&store, &path("/f"), &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        drop(part);
        PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
    }
}

#[test]
fn many_transfers_of_one_name_give_one_whole_file() {
    for (store, _keep) in stores() {
        std::thread::scope(|scope| {
            for id in 0..8u8 {
                let store = &store;
                scope.spawn(move || {
                    let mut done = 0;
                    while done < 20 {
                        let vague = JournalKey { source: format!("{id}"), size: None, modified: None };
                        let part =
                            match PartFile::begin(store, &path("/f"), vague, options(Journaling::Above(8))) {
                                Ok(part) => part,
                                Err(error) => {
                                    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                                    std::thread::yield_now();
                                    continue;
                                }
                            };
                        for at in [16, 0, 8] {
                            part.handle().write_at(&[id; 8], at).unwrap();
                            part.record(at..at + 8, None).unwrap();
                        }
                        part.commit(24, None, None).unwrap();
                        done += 1;
                    }
                });
            }
        });
        let content = content(&*store, &path("/f"));
        assert_eq!(content.len(), 24);
        assert!(content.iter().all(|byte| *byte == content[0]), "{content:?}");
        assert_eq!(names(&*store), ["f"]);
    }
}

#[test]
fn streams_record_at_the_same_time() {
    for (store, _keep) in stores() {
        let data = data(64 << 10);
        let part =
            PartFile::begin(&store, &path("/f"), key(64 << 10), options(Journaling::Above(10_000))).unwrap();
        std::thread::scope(|scope| {
            for stream in 0..8 {
                let (part, data) = (&part, &data);
                scope.spawn(move || {
                    // A quarter of the last stream's blocks is left out.
                    let blocks = if stream == 7 { 48 } else { 64 };
                    for block in 0..blocks {
                        let start = (block * 8 + stream) * 128;
                        write(part, data, start..start + 128);
                    }
                });
            }
        });
        let (present, pieces) = (part.present(), part.pieces());
        kill(part);
        let part =
            PartFile::begin(&store, &path("/f"), key(64 << 10), options(Journaling::default())).unwrap();
        assert_eq!(part.present(), present);
        assert_eq!(part.pieces(), pieces);
        for block in 48..64 {
            let start = (block * 8 + 7) * 128;
            write(&part, &data, start..start + 128);
        }
        part.checkpoint().unwrap();
        assert_eq!(
            part.pieces().total(0..64 << 10),
            Some(format!("{:08x}", block_sum(Algorithm::Crc32c, &data)))
        );
        part.commit(64 << 10, None, None).unwrap();
        assert_eq!(content(&*store, &path("/f")), data);
    }
}

#[test]
fn a_part_named_as_such_is_left_for_somebody_to_rename() {
    for (store, _keep) in stores() {
        let name = part_name(&path("/f"));
        let part = PartFile::begin(&store, &name, key(100), options(Journaling::Above(0))).unwrap();
        let data = data(100);
        write(&part, &data, 0..60);
        drop(part);
        let left = PartFile::interrupted(&store, &name, &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, RangeSet::from_range(0..60));
        assert_eq!(PartFile::interrupted(&store, &path("/f"), &mut |_| Ok(())).unwrap(), Some(left));
        let part = PartFile::begin(&store, &name, key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data, 60..100);
        part.commit(100, None, None).unwrap();
        drop(part);
        assert_eq!(names(&*store), [".f.ropewalk-journal", ".f.ropewalk-part"]);
        let left = PartFile::interrupted(&store, &name, &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, RangeSet::from_range(0..100));
    }
}

#[test]
fn a_store_that_cannot_rename_is_written_in_place() {
    let store: Arc<dyn Store> = Arc::new(crate::NullStore::new(10));
    let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
    assert!(part.present().is_empty());
    write(&part, &data(100), 0..100);
    part.commit(100, None, None).unwrap();
    assert_eq!(PartFile::interrupted(&store, &path("/f"), &mut |_| Ok(())).unwrap(), None);
}

#[test]
fn a_failed_rename_keeps_what_is_there() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..100);
        store.make_directory(&path("/f"), 0o755).unwrap();
        assert_eq!(part.commit(100, None, None).unwrap_err().kind(), ErrorKind::IsDirectory);
        drop(part);
        let left = PartFile::interrupted(&store, &path("/f"), &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, RangeSet::from_range(0..100));
    }
}

#[test]
fn a_link_in_the_place_of_a_part_is_not_written_through() {
    for (store, _keep) in stores() {
        let create = WriteOptions { create: true, truncate: false, exclusive: true, mode: 0o600 };
        store.open_write(&path("/precious"), create).unwrap().write_at(b"gold", 0).unwrap();
        store.symlink("precious".into(), &part_name(&path("/f"))).unwrap();
        let error =
            PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        store.remove_file(&part_name(&path("/f"))).unwrap();
        store.symlink("precious".into(), &journal_name(&path("/f"))).unwrap();
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..50);
        drop(part);
        assert_eq!(content(&*store, &path("/precious")), b"gold");
    }
}

#[test]
fn bytes_cut_off_the_part_are_not_there_any_more() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..30);
        write(&part, &data(100), 30..100);
        drop(part);
        store.truncate(&part_name(&path("/f")), 80).unwrap();
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(0..30));
        assert_eq!(part.pieces().covered(), part.present());
    }
}

#[test]
fn no_space_is_told() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1000));
    let part = PartFile::begin(&store, &path("/f"), key(10_000), options(Journaling::Above(0))).unwrap();
    let error = part.handle().write_at(&[1; 2000], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    part.discard().unwrap();
    assert!(names(&*store).is_empty());
}

/// Somebody removes the part, another transfer begins one: neither may spoil the other.
#[test]
fn a_part_that_was_replaced_is_left_alone() {
    for (store, _keep) in stores() {
        for journal in [Journaling::Sequential, Journaling::Above(0)] {
            let first = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            write(&first, &data(100), 0..100);
            store.remove_file(&part_name(&path("/f"))).unwrap();
            let second = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            write(&second, &data(100), 0..10);
            let there = names(&*store);
            let error = first.commit(100, None, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            assert!(store.stat(&path("/f"), false).is_err(), "half a file got its name");
            first.discard().unwrap();
            drop(first);
            assert_eq!(names(&*store), there, "{journal:?}");
            write(&second, &data(100), 10..100);
            second.commit(100, None, None).unwrap();
            assert_eq!(content(&*store, &path("/f")), data(100));
            store.remove_file(&path("/f")).unwrap();
        }
        // Nor does one that is given up write a journal for it.
        let first = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        write(&first, &data(100), 50..100);
        store.rename(&part_name(&path("/f")), &path("/moved")).unwrap();
        assert_eq!(first.abandon().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(names(&*store), ["moved"]);
        store.remove_file(&path("/moved")).unwrap();
    }
}

#[test]
fn one_begun_in_order_may_be_finished_in_any() {
    for (store, _keep) in stores() {
        let target = path("/f");
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Sequential)).unwrap();
        write(&part, &data(100), 0..40);
        kill(part);
        assert_eq!(PartFile::sequential_prefix(&store, &target).unwrap(), Some(40));
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Above(0))).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(0..40));
        write(&part, &data(100), 60..100);
        kill(part);
        assert_eq!(PartFile::sequential_prefix(&store, &target).unwrap(), None);
        // Without its journal the size would tell of bytes that never came.
        store.rename(&journal_name(&target), &path("/journal")).unwrap();
        assert_eq!(PartFile::sequential_prefix(&store, &target).unwrap(), None);
        assert_eq!(PartFile::interrupted(&store, &target, &mut |_| Ok(())).unwrap(), None);
        store.rename(&path("/journal"), &journal_name(&target)).unwrap();
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 40..60);
        part.commit(100, None, None).unwrap();
        assert_eq!(content(&*store, &target), data(100));
        assert_eq!(store.stat(&target, false).unwrap().mode, 0o640);
        store.remove_file(&target).unwrap();
        assert_eq!(PartFile::sequential_prefix(&store, &target).unwrap(), None);
    }
}

#[test]
fn one_begun_in_order_without_a_byte_may_be_written_in_any() {
    for (store, _keep) in stores() {
        let target = path("/f");
        kill(PartFile::begin(&store, &target, key(100), options(Journaling::Sequential)).unwrap());
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Above(1000))).unwrap();
        write(&part, &data(100), 60..100);
        kill(part);
        // Nothing says that the first 60 never came.
        assert_eq!(PartFile::sequential_prefix(&store, &target).unwrap(), None);
        assert_eq!(PartFile::interrupted(&store, &target, &mut |_| Ok(())).unwrap(), None);
    }
}

const MIB: u64 = 1 << 20;

/// A store on a disk (`/tmp` may be in memory), and options with which it reserves space.
fn disk(journal: Journaling) -> (Arc<dyn Store>, tempfile::TempDir, PartOptions) {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = PosixStore::new(directory.path(), PosixOptions::default()).unwrap();
    (Arc::new(store), directory, PartOptions { direct: DirectIo::Always, ..options(journal) })
}

#[test]
fn space_that_was_reserved_makes_nothing_look_whole() {
    let target = path("/f");
    for before in [0, 30] {
        let (store, _keep, options) = disk(Journaling::default());
        let in_order = PartOptions { journal: Journaling::Sequential, ..options };
        let part = PartFile::begin(&store, &target, key(8 * MIB), in_order).unwrap();
        write(&part, &data(30), 0..before);
        kill(part);
        kill(PartFile::begin(&store, &target, key(8 * MIB), options).unwrap());
        let left = PartFile::interrupted(&store, &target, &mut |_| Ok(())).unwrap();
        let present = left.map(|left| left.present).unwrap_or_default();
        assert_eq!(present, RangeSet::from_range(0..before as u64));
        assert_eq!(PartFile::sequential_prefix(&store, &target).unwrap(), None);
    }
    // Who may not make a journal reserves nothing: the size says what is there.
    let (store, _keep, options) = disk(Journaling::default());
    let in_order = PartOptions { journal: Journaling::Sequential, ..options };
    let part = PartFile::begin(&store, &target, key(8 * MIB), in_order).unwrap();
    write(&part, &data(30), 0..30);
    kill(part);
    let journal = journal_name(&target);
    let guarded = store.guarded(Arc::new(move |path, purpose| *path != journal || purpose != Purpose::Write));
    assert!(PartFile::begin(&guarded.unwrap(), &target, key(8 * MIB), options).is_err());
    assert_eq!(PartFile::sequential_prefix(&store, &target).unwrap(), Some(30));
}

#[test]
fn what_is_given_up_keeps_no_space_for_what_did_not_come() {
    let (store, _keep, options) = disk(Journaling::default());
    let target = path("/f");
    let data = data(MIB as usize);
    let part = PartFile::begin(&store, &target, key(8 * MIB), options).unwrap();
    let reserved = part.handle().chunk().is_some();
    let blocks = || store.stat(&part_name(&target), false).unwrap().blocks * 512;
    assert!(!reserved || blocks() >= 8 * MIB);
    part.handle().write_at(&data, MIB).unwrap();
    part.record(MIB..2 * MIB, Some(block_sum(Algorithm::Crc32c, &data))).unwrap();
    drop(part);
    assert!(blocks() <= 2 * MIB, "{} bytes are kept", blocks());
    let part = PartFile::begin(&store, &target, key(8 * MIB), options).unwrap();
    assert_eq!(part.present(), RangeSet::from_range(MIB..2 * MIB));
    assert!(!reserved || blocks() >= 8 * MIB);
    part.record(0..MIB, None).unwrap();
    part.record(2 * MIB..8 * MIB, None).unwrap();
    part.commit(8 * MIB, None, None).unwrap();
    let whole = content(&*store, &target);
    assert!(whole[MIB as usize..2 * MIB as usize] == data && whole.len() as u64 == 8 * MIB);
    assert!(whole[..MIB as usize].iter().chain(&whole[2 * MIB as usize..]).all(|byte| *byte == 0));
}

#[test]
fn space_ahead_is_kept_for_what_comes_only() {
    let (store, _keep, options) = disk(Journaling::default());
    let options = PartOptions { direct: DirectIo::Never, ..options };
    let target = path("/f");
    let kept = |path: &VirtualPath| {
        let metadata = store.stat(path, false).unwrap();
        (metadata.size, metadata.blocks * 512)
    };
    for reserve in [false, true] {
        let part =
            PartFile::begin(&store, &target, key(16 * MIB), PartOptions { reserve, ..options }).unwrap();
        write(&part, &data(MIB as usize), 0..MIB as usize);
        assert!(!part.handle().is_reserved());
        let (size, blocks) = kept(&part_name(&target));
        assert_eq!(size, MIB);
        assert!(reserve || blocks <= 2 * MIB, "{blocks}");
        drop(part);
        let (size, blocks) = kept(&part_name(&target));
        assert!(size == MIB && blocks <= 2 * MIB, "{size} {blocks}");
    }
    // Two holes are told one after the other, before and after there is something behind them.
    let part = PartFile::begin(&store, &target, key(16 * MIB), options).unwrap();
    assert_eq!(part.present(), RangeSet::from_range(0..MIB));
    part.handle().leave_zero(MIB, 5 * MIB);
    part.handle().write_at(&data(MIB as usize), 6 * MIB).unwrap();
    part.handle().leave_zero(7 * MIB, 9 * MIB);
    part.record(MIB..16 * MIB, None).unwrap();
    part.commit(16 * MIB, None, None).unwrap();
    drop(part);
    let (size, blocks) = kept(&target);
    assert!(size == 16 * MIB && (2 * MIB..3 * MIB).contains(&blocks), "{size} {blocks}");
    let mut whole = data(MIB as usize);
    whole.resize(6 << 20, 0);
    whole.extend(data(MIB as usize));
    whole.resize(16 << 20, 0);
    assert!(content(&*store, &target) == whole);
}

/// Only then the kernel does not write it by itself.
#[test]
fn what_replaces_a_file_is_on_its_way_to_the_disk() {
    use crate::testing::{Deed, Hooked};
    let (store, _keep, options) = disk(Journaling::default());
    let (hooked, deeds) = Hooked::recorded(Arc::clone(&store));
    let hooked: Arc<dyn Store> = Arc::new(hooked);
    let target = path("/f");
    for (options, size, replaces) in [
        (PartOptions { direct: DirectIo::Never, ..options }, MIB, false),
        (PartOptions { direct: DirectIo::Never, ..options }, MIB, true),
        (PartOptions { direct: DirectIo::Never, ..options }, MIB - 1, false),
        (PartOptions { direct: DirectIo::Never, reserve: false, ..options }, MIB, false),
    ] {
        // Under its own name, and as a part that somebody else renames.
        for name in [target.clone(), part_name(&target)] {
            let part = PartFile::begin(&hooked, &name, key(size), options).unwrap();
            let reserves = part.handle().reserves_ahead();
            assert!(!reserves || options.reserve && size >= MIB);
            write(&part, &data(size as usize), 0..size as usize);
            part.commit(size, None, None).unwrap();
            let begun = deeds.lock().unwrap().drain(..).any(|(deed, _)| deed == Deed::BeginSync);
            assert_eq!(begun, reserves && (replaces || name != target), "{size} {replaces} {name}");
            assert_eq!(content(&*store, &name).len() as u64, size);
        }
        store.remove_file(&part_name(&target)).unwrap();
        if !replaces && size == MIB && options.reserve {
            continue;
        }
        store.remove_file(&target).unwrap();
    }
}

/// Whoever was killed may have written more than was recorded.
#[test]
fn what_nobody_knows_of_is_cleared() {
    const HALF: u64 = MIB / 2;
    for (store, keep) in stores() {
        let target = path("/f");
        let options = options(Journaling::Above(0));
        let part = PartFile::begin(&store, &target, key(4 * MIB), options).unwrap();
        assert!(part.is_blank());
        write(&part, &data(5 << 10), 0..4096);
        part.handle().write_at(&[7; 100_000], 300_000).unwrap();
        part.record(HALF..HALF + 4096, None).unwrap();
        part.handle().write_at(&[7; 100_000], HALF - 1).unwrap();
        kill(part);
        let part = PartFile::begin(&store, &target, key(4 * MIB), options).unwrap();
        assert_eq!(part.present().to_string(), "0-4096,524288-528384");
        // Memory knows no holes.
        assert_eq!(part.is_blank(), keep.is_some());
        if part.is_blank() {
            part.record(0..4 * MIB, None).unwrap();
            part.commit(4 * MIB, None, None).unwrap();
            let content = content(&*store, &target);
            assert!(content[..4096] == data(4096) && content[HALF as usize..][..4096] == [7; 4096]);
            let rest = content[4096..HALF as usize].iter().chain(&content[HALF as usize + 4096..]);
            assert!(rest.copied().all(|byte| byte == 0));
        }
    }
}

/// The rest comes another way, into a file that has its size already.
#[test]
fn space_that_an_earlier_transfer_reserved_is_synced() {
    use crate::testing::{Deed, Hooked};
    let (store, _keep, direct) = disk(Journaling::default());
    let target = path("/f");
    let part = PartFile::begin(&store, &target, key(8 * MIB), direct).unwrap();
    let reserved = part.handle().is_reserved();
    part.handle().write_at(&data(MIB as usize), 0).unwrap();
    part.record(0..MIB, None).unwrap();
    kill(part);
    let (hooked, deeds) = Hooked::recorded(Arc::clone(&store));
    let hooked: Arc<dyn Store> = Arc::new(hooked);
    let cached = PartOptions { direct: DirectIo::Never, ..direct };
    let part = PartFile::begin(&hooked, &target, key(8 * MIB), cached).unwrap();
    part.handle().write_at(&data(7 * MIB as usize), MIB).unwrap();
    part.record(MIB..8 * MIB, None).unwrap();
    assert!(!part.handle().is_reserved());
    part.commit(8 * MIB, None, None).unwrap();
    let synced = deeds.lock().unwrap().contains(&(Deed::Sync, part_name(&target)));
    assert_eq!(synced, reserved);
}

/// The kernel tells of pages that it could not write once; the next sync says nothing of them.
#[test]
fn what_could_not_be_synced_is_not_gone_on_with() {
    use std::sync::atomic::AtomicBool;

    use crate::testing::{Deed, Hooked};
    for (store, _keep) in stores() {
        for at_end in [true, false] {
            for journal in EVERY {
                let failed = Arc::new(AtomicBool::new(false));
                let once = Arc::clone(&failed);
                let hooked: Arc<dyn Store> = Arc::new(Hooked::new(Arc::clone(&store), move |deed, path| {
                    let fails = deed == Deed::Sync && !once.swap(true, Ordering::Relaxed);
                    if fails { Err(Hooked::failure(path)) } else { Ok(()) }
                }));
                let options = PartOptions { sync: true, ..options(journal) };
                let part = PartFile::begin(&hooked, &path("/f"), key(100), options).unwrap();
                write(&part, &data(100), 0..100);
                let result = if at_end { part.commit(100, None, None) } else { part.checkpoint() };
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
                let _ = part.abandon();
                drop(part);
                assert!(failed.load(Ordering::Relaxed));
                let left = PartFile::interrupted(&hooked, &path("/f"), &mut |_| Ok(())).unwrap();
                assert_eq!(left, None, "{journal:?}");
                assert!(names(&*store).is_empty());
            }
        }
    }
}
