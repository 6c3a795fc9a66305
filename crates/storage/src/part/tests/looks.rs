//! Transfers, and processes that only inspect a part file.

use super::*;
use crate::testing::{Deed, Hooked};

const EXISTING: WriteOptions = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };

/// A handle as an inspecting process has it.
fn shared(store: &dyn Store) -> Arc<dyn WriteHandle> {
    let handle = store.open_write(&part_name(&path("/f")), EXISTING).unwrap();
    assert!(handle.lock_shared().unwrap());
    handle
}

/// A store in which the part file is inspected from the first attempt to lock it until the third.
/// Also returns the count of attempts.
fn watched(store: &Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Mutex<u32>>) {
    let tries = Arc::new(Mutex::new(0));
    let (count, inner) = (Arc::clone(&tries), Arc::clone(store));
    let looks = Mutex::new(None);
    let hooked = Hooked::new(Arc::clone(store), move |deed, _| {
        if deed == Deed::Lock {
            let mut count = count.lock();
            *count += 1;
            match *count {
                1 => *looks.lock() = Some(shared(&*inner)),
                3 => drop(looks.lock().take()),
                _ => {}
            }
        }
        Ok(())
    });
    (Arc::new(hooked), tries)
}

#[test]
fn begin_waits_for_processes_that_inspect_the_part_file() {
    for (store, _keep) in stores() {
        for (left, resume) in [(false, false), (true, true), (true, false)] {
            let options = UploadOptions { resume, ..options(Journaling::Sequential) };
            if left {
                let part = PartFile::begin(&store, &path("/f"), key(100), options).unwrap();
                write(&part, &data(100), 0..10);
                kill(part);
            }
            let (watched, tries) = watched(&store);
            let part = PartFile::begin(&watched, &path("/f"), key(100), options).unwrap();
            assert!(*tries.lock() >= 3);
            assert_eq!(part.present().len(), if resume { 10 } else { 0 });
            part.discard().unwrap();
        }
    }
}

#[test]
fn inspections_do_not_block_each_other() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        write(&part, &data(100), 0..10);
        kill(part);
        let _looks = shared(&*store);
        assert_eq!(PartFile::sequential_prefix(&*store, &path("/f")).unwrap(), Some(10));
        let left = PartFile::interrupted(&*store, &path("/f"), &mut |_| Ok(())).unwrap().unwrap();
        assert_eq!(left.present, RangeSet::from_range(0..10));
    }
}

/// Another transfer holds its lock for long, so it is not waited for.
#[test]
fn begin_does_not_wait_for_another_transfer() {
    for (store, _keep) in stores() {
        let part = PartFile::begin(&store, &path("/f"), key(100), options(Journaling::Sequential)).unwrap();
        let (hooked, deeds) = Hooked::recorded(Arc::clone(&store));
        let hooked: Arc<dyn Store> = Arc::new(hooked);
        let again = PartFile::begin(&hooked, &path("/f"), key(100), options(Journaling::Sequential));
        assert_eq!(again.err().unwrap().kind(), ErrorKind::Busy);
        assert_eq!(deeds.lock().iter().filter(|(deed, _)| *deed == Deed::Lock).count(), 1);
        let looked = PartFile::sequential_prefix(&*store, &path("/f"));
        assert_eq!(looked.err().unwrap().kind(), ErrorKind::Busy);
        drop(part);
    }
}
