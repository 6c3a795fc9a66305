//! Tests of part files, each with a POSIX store and a memory store.

#![allow(clippy::unwrap_used)]

mod disk;
mod kept;
mod late;
mod looks;
mod owners;

use super::*;
use crate::checksum::block_sum;
use crate::{DirectIo, MemoryStore, PosixOptions, PosixStore, Purpose, WriteOptions};

fn path(text: &str) -> VirtualPath {
    VirtualPath::parse(text.as_bytes()).unwrap()
}

/// Each test runs on both stores.
fn stores() -> Vec<(Arc<dyn Store>, Option<tempfile::TempDir>)> {
    let directory = tempfile::tempdir().unwrap();
    let posix: Arc<dyn Store> = Arc::new(PosixStore::new(directory.path(), PosixOptions::default()).unwrap());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new(1 << 20));
    vec![(posix, Some(directory)), (memory, None)]
}

fn options(journal: Journaling) -> UploadOptions {
    UploadOptions { mode: 0o640, resume: true, journal, sync: false, direct: DirectIo::Never, reserve: true }
}

fn key(size: u64) -> JournalKey {
    JournalKey { source: "ftp://a/b".into(), size: Some(size), modified: Some(1_000_000_000) }
}

fn data(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i / 3 + i * 7) as u8).collect()
}

fn write(part: &PartFile, data: &[u8], range: Range<usize>) {
    let (start, end) = (range.start as u64, range.end as u64);
    part.writer().write_at(&data[range.clone()], start).unwrap();
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

/// Simulates a killed process: the lock is released, but nothing is written.
fn kill(part: PartFile) {
    part.done.store(true, Ordering::Relaxed);
}

const EVERY: [Journaling; 4] =
    [Journaling::Sequential, Journaling::Above(0), Journaling::Above(50), Journaling::Above(1 << 20)];

#[test]
fn commit_renames_and_leaves_no_other_files() {
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
fn commit_replaces_sets_the_mode_and_truncates() {
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
fn commit_of_incomplete_file_fails() {
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
fn begin_after_abandon_resumes() {
    for (store, _keep) in stores() {
        for journal in EVERY {
            let data = data(100);
            let part = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            write(&part, &data, 0..30);
            drop(part);
            let left = PartFile::interrupted(&*store, &path("/f"), &mut |_| Ok(())).unwrap().unwrap();
            assert_eq!(left.present, RangeSet::from_range(0..30));

            let part = PartFile::begin(&store, &path("/f"), key(100), options(journal)).unwrap();
            assert_eq!(part.started_over(), None);
            assert_eq!(part.present(), RangeSet::from_range(0..30), "{journal:?}");
            write(&part, &data, 30..100);
            let sum = part.pieces().total(0..100);
            // Without a journal, the sum of the earlier bytes is unknown.
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
fn begin_after_kill_resumes_if_the_ranges_are_known() {
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

/// Bytes out of order, killed before there was a journal, then found by a sequential transfer.
#[test]
fn begin_after_kill_does_not_count_holes() {
    for (store, _keep) in stores() {
        let data = data(100);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        write(&part, &data, 50..100);
        kill(part);
        assert_eq!(PartFile::interrupted(&*store, &path("/f"), &mut |_| Ok(())).unwrap(), None);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        assert!(part.present().is_empty());
        // The other way round: started sequentially, resumed out of order.
        write(&part, &data, 0..20);
        kill(part);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(0..20));
        write(&part, &data, 50..100);
        kill(part);
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        assert_eq!(part.present(), [0..20, 50..100].into_iter().collect());
        // A writer that announced sequential writes but does not keep the order.
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
fn begin_with_another_source_restarts_and_reports_why() {
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
        // Unknown fields are ignored.
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..50);
        drop(part);
        let vague = JournalKey { size: None, modified: None, ..key(100) };
        let part = PartFile::begin(&store, &path("/f"), vague, options(Journaling::Above(0))).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(0..50));
    }
}

#[test]
fn begin_without_resume_removes_old_data() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..50);
        drop(part);
        let fresh = UploadOptions { resume: false, ..options(Journaling::Above(1000)) };
        let part = PartFile::begin(&store, &path("/f"), key(100), fresh).unwrap();
        assert!(part.present().is_empty());
        kill(part);
        assert_eq!(names(&*store), [".f.ropewalk-part"], "the old journal must not speak of the new part");
    }
}

#[test]
fn begin_ignores_a_journal_without_part_file() {
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
fn begin_with_a_name_too_long_fails() {
    let (store, _directory) = stores().swap_remove(0);
    let long = |length| path(&format!("/{}", "x".repeat(length)));
    let error = PartFile::begin(&store, &long(256), key(1), options(Journaling::Above(0))).err().unwrap();
    assert!(error.to_string().contains("too long"), "{error}");
    assert!(names(&*store).is_empty());
    PartFile::begin(&store, &long(255), key(1), options(Journaling::Above(0))).unwrap();
}

#[test]
fn begin_while_another_transfer_writes_is_busy() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        for resume in [true, false] {
            let again = UploadOptions { resume, ..options(Journaling::Above(0)) };
            let error = PartFile::begin(&store, &path("/f"), key(100), again).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Busy);
            assert!(error.to_string().contains("/f: in use (another transfer writes it)"), "{error}");
        }
        let error = PartFile::interrupted(&*store, &path("/f"), &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        drop(part);
        PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
    }
}

#[test]
fn concurrent_transfers_of_one_name_commit_whole_files() {
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
                            part.writer().write_at(&[id; 8], at).unwrap();
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
fn record_from_several_threads_counts_all_ranges() {
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
fn commit_of_a_part_name_leaves_it_for_the_caller() {
    for (store, _keep) in stores() {
        let name = part_name(&path("/f"));
        let part = PartFile::begin(&store, &name, key(100), options(Journaling::Above(0))).unwrap();
        let data = data(100);
        write(&part, &data, 0..60);
        drop(part);
        let left = PartFile::interrupted(&*store, &name, &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, RangeSet::from_range(0..60));
        assert_eq!(PartFile::interrupted(&*store, &path("/f"), &mut |_| Ok(())).unwrap(), Some(left));
        let part = PartFile::begin(&store, &name, key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data, 60..100);
        part.commit(100, None, None).unwrap();
        drop(part);
        assert_eq!(names(&*store), [".f.ropewalk-journal", ".f.ropewalk-part"]);
        let left = PartFile::interrupted(&*store, &name, &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, RangeSet::from_range(0..100));
    }
}

#[test]
fn commit_with_failed_rename_keeps_the_part_file() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..100);
        store.make_directory(&path("/f"), 0o755).unwrap();
        assert_eq!(part.commit(100, None, None).unwrap_err().kind(), ErrorKind::IsDirectory);
        drop(part);
        let left = PartFile::interrupted(&*store, &path("/f"), &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, RangeSet::from_range(0..100));
    }
}

#[test]
fn begin_refuses_a_symbolic_link_as_part_file() {
    for (store, _keep) in stores() {
        let create = WriteOptions { create: true, truncate: false, exclusive: true, mode: 0o600 };
        store.open_write(&path("/precious"), create).unwrap().write_at(b"gold", 0).unwrap();
        store.symlink("precious".into(), &part_name(&path("/f"))).unwrap();
        let error =
            PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        store.remove_file(&part_name(&path("/f"))).unwrap();
        // A dangling link is not taken for another transfer either, which would be worth waiting
        // for.
        store.symlink("nowhere".into(), &part_name(&path("/f"))).unwrap();
        for resume in [false, true] {
            let options = UploadOptions { resume, ..options(Journaling::Above(0)) };
            let error = PartFile::begin(&store, &path("/f"), key(100), options).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(".f.ropewalk-part is a symbolic link"), "{error}");
        }
        assert!(store.stat(&path("/nowhere"), false).unwrap_err().is_not_found());
        store.remove_file(&part_name(&path("/f"))).unwrap();
        store.symlink("precious".into(), &journal_name(&path("/f"))).unwrap();
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 0..50);
        drop(part);
        assert_eq!(content(&*store, &path("/precious")), b"gold");
    }
}

#[test]
fn begin_after_truncation_drops_the_missing_ranges() {
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
fn write_without_space_fails() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1000));
    let part = PartFile::begin(&store, &path("/f"), key(10_000), options(Journaling::Above(0))).unwrap();
    let error = part.writer().write_at(&[1; 2000], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    part.discard().unwrap();
    assert!(names(&*store).is_empty());
}

/// The part file is removed and another transfer creates a new one: neither may damage the other.
#[test]
fn commit_and_discard_leave_a_replaced_part_file_alone() {
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
        // An abandoned transfer does not write a journal for the new one either.
        let first = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Above(1000))).unwrap();
        write(&first, &data(100), 50..100);
        store.rename(&part_name(&path("/f")), &path("/moved")).unwrap();
        assert_eq!(first.suspend().unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(names(&*store), ["moved"]);
        store.remove_file(&path("/moved")).unwrap();
    }
}

#[test]
fn begin_unordered_resumes_a_sequential_part_file() {
    for (store, _keep) in stores() {
        let target = path("/f");
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Sequential)).unwrap();
        write(&part, &data(100), 0..40);
        kill(part);
        assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), Some(40));
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Above(0))).unwrap();
        assert_eq!(part.present(), RangeSet::from_range(0..40));
        write(&part, &data(100), 60..100);
        kill(part);
        assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), None);
        // Without its journal, the size would include bytes that never came.
        store.rename(&journal_name(&target), &path("/journal")).unwrap();
        assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), None);
        assert_eq!(PartFile::interrupted(&*store, &target, &mut |_| Ok(())).unwrap(), None);
        store.rename(&path("/journal"), &journal_name(&target)).unwrap();
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Above(0))).unwrap();
        write(&part, &data(100), 40..60);
        part.commit(100, None, None).unwrap();
        assert_eq!(content(&*store, &target), data(100));
        assert_eq!(store.stat(&target, false).unwrap().mode, 0o640);
        store.remove_file(&target).unwrap();
        assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), None);
    }
}

#[test]
fn begin_unordered_unmarks_an_empty_sequential_part_file() {
    for (store, _keep) in stores() {
        let target = path("/f");
        kill(PartFile::begin(&store, &target, key(100), options(Journaling::Sequential)).unwrap());
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Above(1000))).unwrap();
        write(&part, &data(100), 60..100);
        kill(part);
        // There is no record that the first 60 bytes never came.
        assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), None);
        assert_eq!(PartFile::interrupted(&*store, &target, &mut |_| Ok(())).unwrap(), None);
    }
}
