//! Checks of part files.

use std::sync::Arc;

use super::{get, names, path, pattern, same};
use crate::checksum::{Algorithm, block_sum};
use crate::{JournalKey, Journaling, PartFile, PartOptions, Store};

/// Part files on this store.
pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    for journal in [Journaling::Sequential, Journaling::Above(0), Journaling::default()] {
        let store = make();
        let data = pattern(30_000);
        let options = PartOptions { journal, ..PartOptions::default() };
        let begin = || PartFile::begin(&store, &path("/f"), JournalKey::default(), options).unwrap();
        let write = |part: &PartFile, start: usize, end: usize| {
            part.handle().write_at(&data[start..end], start as u64).unwrap();
            part.record(start as u64..end as u64, Some(block_sum(Algorithm::Crc32c, &data[start..end])))
                .unwrap();
        };
        let part = begin();
        write(&part, 0, 10_000);
        part.checkpoint().unwrap();
        drop(part);
        let part = begin();
        same(part.present().len(), 10_000, "what an interrupted transfer left");
        write(&part, 10_000, 30_000);
        part.commit(30_000, Some((1_000_000_000, 0)), Some(0o640)).unwrap();
        same(get(&*store, "/f"), data.clone(), "a file in two parts");
        same(names(&*store, "/"), vec!["f".to_owned()], "what is left beside it");
        let metadata = store.stat(&path("/f"), false).unwrap();
        same((metadata.modified.0, metadata.mode), (1_000_000_000, 0o640), "its attributes");
    }
}
