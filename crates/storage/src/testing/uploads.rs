//! Checks of uploads.

use std::sync::Arc;

use super::{fails, get, names, path, pattern, same};
use crate::checksum::{Algorithm, block_sum, checksum_file};
use crate::{ErrorKind, JournalKey, Journaling, Result, Store, Upload, UploadOptions, UploadSpec};

const SIZE: usize = 30_000;

/// Uploads to this store.
pub(super) fn check(make: &dyn Fn() -> Arc<dyn Store>) {
    commits(&*make());
    refuses_incomplete(&*make());
    if !make().capabilities().keeps {
        return;
    }
    for journal in [Journaling::Sequential, Journaling::Above(0), Journaling::default()] {
        resumes(&*make(), journal);
    }
    starts_over(&*make());
    keeps_others_out(&*make());
    discards(&*make());
    replaces(&*make());
    takes_ranges_of_threads(&*make());
}

fn spec() -> UploadSpec {
    let key = JournalKey { source: "a".into(), size: Some(SIZE as u64), modified: Some(1) };
    UploadSpec { key, options: UploadOptions { mode: 0o640, ..UploadOptions::default() } }
}

fn begin(store: &dyn Store, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
    store.begin_upload(&path("/f"), spec)
}

fn write(upload: &dyn Upload, start: usize, end: usize) {
    let data = &pattern(SIZE)[start..end];
    upload.writer().write_at(data, start as u64).unwrap();
    upload.record(start as u64..end as u64, Some(block_sum(Algorithm::Crc32c, data))).unwrap();
}

fn commits(store: &dyn Store) {
    let upload = begin(store, spec()).unwrap();
    same(upload.started_over(), None, "the start of a new upload");
    write(&*upload, 20_000, SIZE);
    write(&*upload, 0, 20_000);
    same(upload.present().len(), SIZE as u64, "what was recorded");
    let whole = format!("{:08x}", block_sum(Algorithm::Crc32c, &pattern(SIZE)));
    same(upload.pieces().total(0..SIZE as u64), Some(whole.clone()), "the sum of what was recorded");
    upload.keep().unwrap();
    upload.checkpoint().unwrap();
    upload.confirm().unwrap();
    upload.sync().unwrap();
    if store.capabilities().keeps {
        same(store.stat(&path("/f"), false).is_err(), true, "an incomplete file has no name");
        let length = Some(SIZE as u64);
        let sum = checksum_file(&*upload.reader().unwrap(), Algorithm::Crc32c, 0, length, &mut |_| Ok(()));
        same(sum.unwrap(), whole, "what the reader reads");
    }
    upload.commit(SIZE as u64, Some((1_000_000_000, 0)), Some(0o604)).unwrap();
    drop(upload);
    if store.capabilities().keeps {
        same(get(store, "/f"), pattern(SIZE), "a complete file");
        same(names(store, "/"), vec!["f".to_owned()], "what is left beside it");
        let metadata = store.stat(&path("/f"), false).unwrap();
        same((metadata.modified.0, metadata.mode), (1_000_000_000, 0o604), "its attributes");
        same(store.interrupted_upload(&path("/f"), &mut |_| Ok(())).unwrap(), None, "what is left to resume");
    }
}

fn refuses_incomplete(store: &dyn Store) {
    let upload = begin(store, spec()).unwrap();
    write(&*upload, 10, 20);
    match upload.commit(SIZE as u64, None, None) {
        Ok(()) => panic!("an incomplete file got its name"),
        Err(error) => same(error.kind(), ErrorKind::Incomplete, "commit of an incomplete file"),
    }
    // The upload goes on.
    write(&*upload, 0, SIZE);
    upload.commit(SIZE as u64, None, None).unwrap();
}

fn resumes(store: &dyn Store, journal: Journaling) {
    let sequential = journal == Journaling::Sequential;
    let spec = || UploadSpec { options: UploadOptions { journal, ..spec().options }, ..spec() };
    let upload = begin(store, spec()).unwrap();
    write(&*upload, 0, 10_000);
    upload.suspend().unwrap();
    drop(upload);
    let left = store.interrupted_upload(&path("/f"), &mut |_| Ok(())).unwrap().unwrap();
    same(left.present.to_string(), "0-10000".to_owned(), "what an interrupted upload left");
    let prefix = sequential.then_some(10_000);
    same(store.uploaded_prefix(&path("/f")).unwrap(), prefix, "what an upload in order left");
    let upload = begin(store, spec()).unwrap();
    same(upload.started_over(), None, "the start of a resumed upload");
    same(upload.present().to_string(), "0-10000".to_owned(), "what a resumed upload has");
    write(&*upload, 10_000, 20_000);
    // One that is dropped is suspended as well.
    drop(upload);
    let upload = begin(store, spec()).unwrap();
    same(upload.present().to_string(), "0-20000".to_owned(), "what a dropped upload left");
    write(&*upload, 20_000, SIZE);
    upload.commit(SIZE as u64, None, None).unwrap();
    same(get(store, "/f"), pattern(SIZE), "a file of three uploads");
    same(names(store, "/"), vec!["f".to_owned()], "what is left beside it");
}

fn starts_over(store: &dyn Store) {
    let options = UploadOptions { journal: Journaling::Above(0), ..spec().options };
    for other in [
        JournalKey { source: "b".into(), ..spec().key },
        JournalKey { size: Some(1), ..spec().key },
        JournalKey { modified: Some(2), ..spec().key },
    ] {
        let upload = begin(store, UploadSpec { options, ..spec() }).unwrap();
        write(&*upload, 0, 10_000);
        drop(upload);
        let upload = begin(store, UploadSpec { key: other, options }).unwrap();
        same(upload.present().len(), 0, "what another source's upload has");
        same(upload.started_over().is_some(), true, "whether the reason is stated");
        upload.discard().unwrap();
    }
    let upload = begin(store, UploadSpec { options, ..spec() }).unwrap();
    write(&*upload, 0, 10_000);
    drop(upload);
    let options = UploadOptions { resume: false, ..options };
    let upload = begin(store, UploadSpec { options, ..spec() }).unwrap();
    same(upload.present().len(), 0, "what an upload has that does not resume");
}

fn keeps_others_out(store: &dyn Store) {
    let upload = begin(store, spec()).unwrap();
    fails(begin(store, spec()).map(drop), ErrorKind::Busy, "/f");
    let other = store.begin_upload(&path("/g"), spec()).unwrap();
    write(&*upload, 0, SIZE);
    upload.commit(SIZE as u64, None, None).unwrap();
    drop(upload);
    begin(store, spec()).unwrap().discard().unwrap();
    other.discard().unwrap();
    same(names(store, "/"), vec!["f".to_owned()], "what discarded uploads left");
}

fn discards(store: &dyn Store) {
    let upload = begin(store, spec()).unwrap();
    write(&*upload, 0, 10_000);
    upload.checkpoint().unwrap();
    upload.discard().unwrap();
    drop(upload);
    same(names(store, "/"), Vec::<String>::new(), "what a discarded upload left");
    same(store.interrupted_upload(&path("/f"), &mut |_| Ok(())).unwrap(), None, "what there is to resume");
}

fn replaces(store: &dyn Store) {
    super::put(store, "/f", b"old");
    let upload = begin(store, spec()).unwrap();
    write(&*upload, 0, SIZE);
    same(get(store, "/f"), b"old".to_vec(), "the old file until the commit");
    upload.commit(20_000, None, None).unwrap();
    same(get(store, "/f"), pattern(SIZE)[..20_000].to_vec(), "the new file, cut to its length");
}

fn takes_ranges_of_threads(store: &dyn Store) {
    let upload = begin(store, spec()).unwrap();
    std::thread::scope(|scope| {
        for start in (0..SIZE).step_by(SIZE / 6) {
            let upload = &*upload;
            scope.spawn(move || write(upload, start, start + SIZE / 6));
        }
    });
    upload.commit(SIZE as u64, None, None).unwrap();
    same(get(store, "/f"), pattern(SIZE), "a file of several threads");
}
