//! The guarantees of restart markers.

use super::*;
use crate::testing::{Deed, Hooked};

#[test]
fn keep_and_checkpoint_survive_a_kill() {
    let target = path("/f");
    for (store, _keep) in stores() {
        for size in [Some(100), None] {
            for safe in [PartFile::keep, PartFile::checkpoint] {
                let key = JournalKey { size, ..key(100) };
                let small = options(Journaling::default());
                let part = PartFile::begin(&store, &target, key.clone(), small).unwrap();
                safe(&part).unwrap();
                assert_eq!(
                    names(&*store),
                    [".f.ropewalk-part"],
                    "nothing is there that a journal could tell of"
                );
                write(&part, &data(100), 50..70);
                assert_eq!(names(&*store), [".f.ropewalk-part"]);
                safe(&part).unwrap();
                safe(&part).unwrap();
                // Later ranges are recorded as well.
                write(&part, &data(100), 0..10);
                kill(part);
                let part = PartFile::begin(&store, &target, key, small).unwrap();
                assert_eq!(part.present().to_string(), "0-10,50-70");
                assert_eq!(part.pieces().covered(), part.present());
                write(&part, &data(100), 10..50);
                write(&part, &data(100), 70..100);
                part.commit(100, None, None).unwrap();
                assert_eq!(content(&*store, &target), data(100));
                assert_eq!(names(&*store), ["f"]);
                store.remove_file(&target).unwrap();
            }
        }
    }
}

#[test]
fn keep_of_sequential_data_creates_no_journal() {
    for (store, _keep) in stores() {
        let target = path("/f");
        let part = PartFile::begin(&store, &target, key(100), options(Journaling::Sequential)).unwrap();
        write(&part, &data(100), 0..30);
        part.keep().unwrap();
        part.checkpoint().unwrap();
        assert_eq!(names(&*store), [".f.ropewalk-part"]);
        kill(part);
        assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), Some(30));
    }
}

/// A journal whose name is not on the disk is lost in a power failure.
#[test]
fn checkpoint_syncs_the_name_of_a_late_journal() {
    let (store, _directory) = stores().swap_remove(0);
    let (hooked, deeds) = Hooked::recorded(store);
    let hooked: Arc<dyn Store> = Arc::new(hooked);
    let syncs_of_names = || {
        let of_names = |deed: &Deed| matches!(deed, Deed::SyncDirectory | Deed::SyncSystem);
        deeds.lock().drain(..).filter(|(deed, _)| of_names(deed)).count()
    };
    for journal in [Journaling::Above(50), Journaling::Sequential] {
        let key = JournalKey { size: None, ..key(100) };
        let part = PartFile::begin(&hooked, &path("/f"), key, options(journal)).unwrap();
        part.checkpoint().unwrap();
        assert_eq!(syncs_of_names(), 1);
        part.checkpoint().unwrap();
        assert_eq!(syncs_of_names(), 0);
        // Out of order, and more than is allowed without a journal.
        write(&part, &data(100), 20..100);
        assert!(names(&*hooked).contains(&".f.ropewalk-journal".to_owned()));
        part.checkpoint().unwrap();
        assert_eq!(syncs_of_names(), 1);
        part.checkpoint().unwrap();
        assert_eq!(syncs_of_names(), 0);
        part.discard().unwrap();
    }
}

/// The size of a part file with a gap does not count, even if no journal could be created.
#[test]
fn part_file_with_a_gap_loses_the_sequential_mark() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        write(&part, &data(10), 0..10);
        store.make_directory(&journal_name(&path("/f")), 0o755).unwrap();
        part.writer().write_at(&data(10), 20).unwrap();
        assert!(part.record(20..30, None).is_err());
        drop(part);
        assert_eq!(store.stat(&part_name(&path("/f")), false).unwrap().mode & STICKY, 0);
    }
}

#[test]
fn begin_resumes_unwritten_zeros_at_the_end() {
    let cases =
        [true, false].into_iter().flat_map(|keep| stores().into_iter().map(move |store| (keep, store)));
    for (keep, (store, _directory)) in cases {
        let target = path("/f");
        let part = PartFile::begin(&store, &target, key(1000), options(Journaling::default())).unwrap();
        write(&part, &data(1000), 0..100);
        // A sparse file: nothing is written for these bytes.
        part.record(500..600, None).unwrap();
        if keep {
            part.keep().unwrap();
            kill(part);
        } else {
            part.suspend().unwrap();
            drop(part);
        }
        let left = PartFile::interrupted(&*store, &target, &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, [0..100, 500..600].into_iter().collect());
    }
}

#[test]
fn commit_does_not_rename_a_replaced_part_file() {
    let (inner, _directory) = stores().swap_remove(0);
    let target = path("/f");
    let other = Arc::clone(&inner);
    let name = part_name(&target);
    // While the first part file is synced, it is removed and another transfer creates a new one.
    let hooked: Arc<dyn Store> = Arc::new(Hooked::new(Arc::clone(&inner), move |deed, _| {
        if deed == Deed::Sync && other.stat(&name, false).is_ok_and(|there| there.size == 100) {
            other.remove_file(&name).unwrap();
            let write = WriteOptions { create: true, truncate: true, exclusive: true, mode: 0o600 };
            other.open_write(&name, write).unwrap().write_at(b"half", 0).unwrap();
        }
        Ok(())
    }));
    let synced = UploadOptions { sync: true, ..options(Journaling::default()) };
    let part = PartFile::begin(&hooked, &target, key(100), synced).unwrap();
    write(&part, &data(100), 0..100);
    assert_eq!(part.commit(100, None, None).unwrap_err().kind(), ErrorKind::Busy);
    assert!(inner.stat(&target, false).is_err_and(|error| error.is_not_found()));
    assert_eq!(inner.stat(&part_name(&target), false).unwrap().size, 4);
}
