//! Checks of checksums that a store computes itself, or has computed elsewhere.

use std::sync::Arc;

use super::{fails, path, pattern, put, same};
use crate::checksum::{Algorithm, checksum_file};
use crate::{Error, ErrorKind, Result, Store};

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    let store = &*make();
    let length = 300_000;
    put(store, "/f", &pattern(length)).sync().unwrap();
    let here = |offset, length| {
        let file = store.open_read(&path("/f")).unwrap();
        checksum_file(&*file, Algorithm::Crc32c, offset, length, &mut |_| Ok(())).unwrap()
    };
    let there = |offset, length, progress: &mut dyn FnMut(u64) -> Result<()>| {
        store.checksum(&path("/f"), Algorithm::Crc32c, offset, length, progress)
    };
    for (offset, part) in [(0, None), (1000, Some(2000)), (length as u64 - 7, None)] {
        let mut reported = Vec::new();
        let report = &mut |bytes| {
            reported.push(bytes);
            Ok(())
        };
        // Other stores leave checksums to their users.
        let Some(sum) = there(offset, part, report) else { return };
        same(sum.unwrap(), here(offset, part), "the checksum of a range");
        same(reported.first(), Some(&0), "the progress before the work");
        assert!(reported.iter().all(|bytes| *bytes <= length as u64), "{reported:?}");
    }
    let stop = &mut |_| Err(Error::new(ErrorKind::Interrupted, "checksum", b"/f"));
    let stopped = there(0, None, stop).unwrap().unwrap_err();
    same(stopped.kind(), ErrorKind::Interrupted, "the error of the progress");
    same(there(0, None, &mut |_| Ok(())).unwrap().unwrap(), here(0, None), "the checksum after an end");
    let none = store.checksum(&path("/none"), Algorithm::Crc32c, 0, None, &mut |_| Ok(())).unwrap();
    fails(none, ErrorKind::NotFound, "/none");
}
