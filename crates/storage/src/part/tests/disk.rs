//! Reserved space on a disk, and syncs.

use super::*;

const MIB: u64 = 1 << 20;

/// A store on a disk (`/tmp` may be in memory), and options with which it reserves space.
fn disk(journal: Journaling) -> (Arc<dyn Store>, tempfile::TempDir, UploadOptions) {
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let store = PosixStore::new(directory.path(), PosixOptions::default()).unwrap();
    (Arc::new(store), directory, UploadOptions { direct: DirectIo::Always, ..options(journal) })
}

#[test]
fn interrupted_does_not_count_reserved_space() {
    let target = path("/f");
    for before in [0, 30] {
        let (store, _keep, options) = disk(Journaling::default());
        let in_order = UploadOptions { journal: Journaling::Sequential, ..options };
        let part = PartFile::begin(&store, &target, key(8 * MIB), in_order).unwrap();
        write(&part, &data(30), 0..before);
        kill(part);
        kill(PartFile::begin(&store, &target, key(8 * MIB), options).unwrap());
        let left = PartFile::interrupted(&*store, &target, &mut |_| Ok(())).unwrap();
        let present = left.map(|left| left.present).unwrap_or_default();
        assert_eq!(present, RangeSet::from_range(0..before as u64));
        assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), None);
    }
    // A writer that cannot create a journal reserves nothing, because the size says what is
    // present.
    let (store, _keep, options) = disk(Journaling::default());
    let in_order = UploadOptions { journal: Journaling::Sequential, ..options };
    let part = PartFile::begin(&store, &target, key(8 * MIB), in_order).unwrap();
    write(&part, &data(30), 0..30);
    kill(part);
    let journal = journal_name(&target);
    let guarded = store.guarded(Arc::new(move |path, purpose| *path != journal || purpose != Purpose::Write));
    assert!(PartFile::begin(&guarded.unwrap(), &target, key(8 * MIB), options).is_err());
    assert_eq!(PartFile::sequential_prefix(&*store, &target).unwrap(), Some(30));
}

#[test]
fn abandon_releases_space_of_missing_ranges() {
    let (store, _keep, options) = disk(Journaling::default());
    let target = path("/f");
    let data = data(MIB as usize);
    let part = PartFile::begin(&store, &target, key(8 * MIB), options).unwrap();
    let reserved = part.writer().disk().unwrap().chunk().is_some();
    let blocks = || store.stat(&part_name(&target), false).unwrap().blocks * 512;
    assert!(!reserved || blocks() >= 8 * MIB);
    part.writer().write_at(&data, MIB).unwrap();
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

/// A sender must not be able to fill a disk with a few bytes and a large announced size.
#[test]
fn reserved_space_follows_the_received_bytes() {
    let (store, _keep, options) = disk(Journaling::default());
    let target = path("/f");
    let size = 2 << 30;
    let part = PartFile::begin(&store, &target, key(size), options).unwrap();
    if !part.writer().disk().unwrap().is_reserved() {
        return;
    }
    let kept = || {
        let metadata = store.stat(&part_name(&target), false).unwrap();
        assert_eq!(metadata.size, size);
        metadata.blocks * 512
    };
    part.writer().write_at(b"hello", 0).unwrap();
    assert!(kept() <= 17 * MIB, "{} bytes are kept", kept());
    let data = data(MIB as usize);
    for at in 0..40 {
        part.writer().write_at(&data, at * MIB).unwrap();
    }
    part.writer().write_at(&data, 1 << 30).unwrap();
    let most = 2 * 41 * MIB + 64 * MIB;
    assert!((40 * MIB..=most).contains(&kept()), "{} bytes are kept", kept());
    part.discard().unwrap();
}

#[test]
fn settle_and_holes_release_space_reserved_ahead() {
    let (store, _keep, options) = disk(Journaling::default());
    let options = UploadOptions { direct: DirectIo::Never, ..options };
    let target = path("/f");
    let kept = |path: &VirtualPath| {
        let metadata = store.stat(path, false).unwrap();
        (metadata.size, metadata.blocks * 512)
    };
    for reserve in [false, true] {
        let part =
            PartFile::begin(&store, &target, key(16 * MIB), UploadOptions { reserve, ..options }).unwrap();
        write(&part, &data(MIB as usize), 0..MIB as usize);
        assert!(!part.writer().disk().unwrap().is_reserved());
        let (size, blocks) = kept(&part_name(&target));
        assert_eq!(size, MIB);
        assert!(reserve || blocks <= 2 * MIB, "{blocks}");
        drop(part);
        let (size, blocks) = kept(&part_name(&target));
        assert!(size == MIB && blocks <= 2 * MIB, "{size} {blocks}");
    }
    // Two holes are reported one after the other, before and after bytes are written behind them.
    let part = PartFile::begin(&store, &target, key(16 * MIB), options).unwrap();
    assert_eq!(part.present(), RangeSet::from_range(0..MIB));
    part.writer().disk().unwrap().leave_zero(MIB, 5 * MIB);
    part.writer().write_at(&data(MIB as usize), 6 * MIB).unwrap();
    part.writer().disk().unwrap().leave_zero(7 * MIB, 9 * MIB);
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

/// With reserved space, the kernel does not write the file by itself.
#[test]
fn commit_that_replaces_a_file_starts_a_sync() {
    use crate::testing::{Deed, Hooked};
    let (store, _keep, options) = disk(Journaling::default());
    let (hooked, deeds) = Hooked::recorded(Arc::clone(&store));
    let hooked: Arc<dyn Store> = Arc::new(hooked);
    let target = path("/f");
    for (options, size, replaces) in [
        (UploadOptions { direct: DirectIo::Never, ..options }, MIB, false),
        (UploadOptions { direct: DirectIo::Never, ..options }, MIB, true),
        (UploadOptions { direct: DirectIo::Never, ..options }, MIB - 1, false),
        (UploadOptions { direct: DirectIo::Never, reserve: false, ..options }, MIB, false),
    ] {
        // Under its own name, and as a part file that the caller renames.
        for name in [target.clone(), part_name(&target)] {
            let part = PartFile::begin(&hooked, &name, key(size), options).unwrap();
            let reserves = part.writer().disk().unwrap().reserves_ahead();
            assert!(!reserves || options.reserve && size >= MIB);
            write(&part, &data(size as usize), 0..size as usize);
            part.commit(size, None, None).unwrap();
            let begun = deeds.lock().drain(..).any(|(deed, _)| deed == Deed::BeginSync);
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

/// A killed process may have written more than it had recorded.
#[test]
fn begin_after_kill_clears_unrecorded_bytes() {
    const HALF: u64 = MIB / 2;
    for (store, keep) in stores() {
        let target = path("/f");
        let options = options(Journaling::Above(0));
        let part = PartFile::begin(&store, &target, key(4 * MIB), options).unwrap();
        assert!(part.is_blank());
        write(&part, &data(5 << 10), 0..4096);
        part.writer().write_at(&[7; 100_000], 300_000).unwrap();
        part.record(HALF..HALF + 4096, None).unwrap();
        part.writer().write_at(&[7; 100_000], HALF - 1).unwrap();
        kill(part);
        let part = PartFile::begin(&store, &target, key(4 * MIB), options).unwrap();
        assert_eq!(part.present().to_string(), "0-4096,524288-528384");
        // The memory store has no holes.
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

/// The rest is written without direct writes, into a file that already has its full size.
#[test]
fn commit_after_reservation_by_earlier_transfer_syncs() {
    use crate::testing::{Deed, Hooked};
    let (store, _keep, direct) = disk(Journaling::default());
    let target = path("/f");
    let part = PartFile::begin(&store, &target, key(8 * MIB), direct).unwrap();
    let reserved = part.writer().disk().unwrap().is_reserved();
    part.writer().write_at(&data(MIB as usize), 0).unwrap();
    part.record(0..MIB, None).unwrap();
    kill(part);
    let (hooked, deeds) = Hooked::recorded(Arc::clone(&store));
    let hooked: Arc<dyn Store> = Arc::new(hooked);
    let cached = UploadOptions { direct: DirectIo::Never, ..direct };
    let part = PartFile::begin(&hooked, &target, key(8 * MIB), cached).unwrap();
    part.writer().write_at(&data(7 * MIB as usize), MIB).unwrap();
    part.record(MIB..8 * MIB, None).unwrap();
    assert!(!part.writer().disk().unwrap().is_reserved());
    part.commit(8 * MIB, None, None).unwrap();
    let synced = deeds.lock().contains(&(Deed::Sync, part_name(&target)));
    assert_eq!(synced, reserved);
}

/// The kernel reports pages that it could not write only once; the next sync succeeds.
#[test]
fn failed_sync_removes_the_part_file() {
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
                let options = UploadOptions { sync: true, ..options(journal) };
                let part = PartFile::begin(&hooked, &path("/f"), key(100), options).unwrap();
                write(&part, &data(100), 0..100);
                let result = if at_end { part.commit(100, None, None) } else { part.checkpoint() };
                assert_eq!(result.unwrap_err().kind(), ErrorKind::Io);
                assert!(part.checkpoint().is_err(), "nobody is told that something of it is kept");
                let _ = part.suspend();
                drop(part);
                assert!(failed.load(Ordering::Relaxed));
                let left = PartFile::interrupted(&*hooked, &path("/f"), &mut |_| Ok(())).unwrap();
                assert_eq!(left, None, "{journal:?}");
                assert!(names(&*store).is_empty());
            }
        }
    }
}
