//! Which ranges of an unfinished file are in the store, kept beside it so that a crash does not lose them.
//!
//! The file is a header and records of [`format::RECORD`] bytes. Each writer appends its record by itself, after its
//! block is written; a record is whole or it does not count. While the kernel that took the bytes still runs, what was
//! written is there to be read, whether it reached the disk or not; after a crash of the machine blocks are
//! compared with their sums, and blocks without a sum count only where a record says that the file was synced.

mod boot;
mod format;
mod load;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use self::boot::BootId;
use self::format::{Header, RECORD, Record};
pub(crate) use self::load::{Loaded, load};
use crate::checksum::Pieces;
use crate::{ErrorKind, Result, Store, WriteHandle, WriteOptions};

/// So many ranges with gaps between them are kept account of; whoever sends a file decides how many there are.
pub(crate) const MOST_RANGES: usize = 1 << 20;
/// What is said of more.
pub(crate) const SCATTERED: &str = "it has too many gaps";

/// What the unfinished file is a copy of. Ranges of another source, or of another version of it, are of no use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalKey {
    /// Names the source (a URL, for instance); empty where it is not known, as for an upload.
    pub source: String,
    /// Bytes of the whole file.
    pub size: Option<u64>,
    /// Seconds since 1970.
    pub modified: Option<i64>,
}

impl JournalKey {
    /// Why ranges under `old` are not ranges of `self`. What one of them does not know makes no difference.
    fn differs_from(&self, old: &Self) -> Option<String> {
        if self.source != old.source {
            return Some(format!("it is of {:?}, not of {:?}", old.source, self.source));
        }
        match (self.size, old.size) {
            (Some(new), Some(old)) if new != old => return Some(format!("the size was {old} and is {new}")),
            _ => {}
        }
        match (self.modified, old.modified) {
            (Some(new), Some(old)) if new != old => {
                Some(format!("the source was modified ({old}, now {new})"))
            }
            _ => None,
        }
    }
}

/// An open journal. Any number of threads append to it at a time.
pub struct Journal {
    handle: Arc<dyn WriteHandle>,
    /// Bytes of the header.
    start: u64,
    seed: u32,
    /// The next free place for a record.
    next: AtomicU64,
}

impl Journal {
    /// Makes a journal that says that `present` is there, with the sums of `pieces`. Replaces an older one.
    ///
    /// # Errors
    /// The older one cannot be removed, or the new one cannot be made or written.
    pub fn create(
        store: &dyn Store,
        path: &VirtualPath,
        key: &JournalKey,
        present: &RangeSet,
        pieces: &Pieces,
    ) -> Result<Self> {
        let options = WriteOptions { create: true, truncate: false, exclusive: true, mode: 0o600 };
        let handle = match store.open_write(path, options) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                store.remove_file(path)?;
                store.open_write(path, options)?
            }
            result => result?,
        };
        let header = Header { seed: format::new_seed(), boot: BootId::current(), key: key.clone() };
        let mut bytes = header.encode();
        let journal = Self { handle, start: bytes.len() as u64, seed: header.seed, next: AtomicU64::new(0) };
        let records = records_of(present, pieces);
        journal.next.store(records.len() as u64, Ordering::Relaxed);
        records.iter().for_each(|record| bytes.extend_from_slice(&record.encode(header.seed)));
        journal.handle.write_at(&bytes, 0)?;
        Ok(journal)
    }

    /// Notes that a range is written. With `crc32c` it can be checked after a crash of the machine.
    ///
    /// # Errors
    /// The record cannot be written: no space is left, say.
    pub fn append(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        self.append_records(&[Record::Data { range, sum: crc32c }])
    }

    /// How many records there are; all of them are about bytes that the store has taken.
    pub fn len(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that the bytes of the first `records` records are on stable storage.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn append_synced(&self, records: u64) -> Result<()> {
        self.append_records(&[Record::Synced { records }])
    }

    /// Puts all records on stable storage.
    ///
    /// # Errors
    /// As of [`WriteHandle::sync`].
    pub fn sync(&self) -> Result<()> {
        self.handle.sync()
    }

    /// Begins anew, after a crash of the machine, with what was found to be there.
    fn append_verified(&self, present: &RangeSet, pieces: &Pieces) -> Result<()> {
        let mut records = vec![Record::Boot { id: BootId::current() }];
        records.extend(records_of(present, pieces));
        self.append_records(&records)
    }

    fn append_records(&self, records: &[Record]) -> Result<()> {
        let place = self.next.fetch_add(records.len() as u64, Ordering::AcqRel);
        let offset = self.start + place * RECORD as u64;
        match records {
            [record] => self.handle.write_at(&record.encode(self.seed), offset),
            _ => {
                let bytes: Vec<u8> = records.iter().flat_map(|record| record.encode(self.seed)).collect();
                self.handle.write_at(&bytes, offset)
            }
        }
    }
}

fn records_of(present: &RangeSet, pieces: &Pieces) -> Vec<Record> {
    let mut without_sum = present.clone();
    without_sum.subtract(&pieces.covered());
    let with_sum = pieces.iter().map(|(range, sum)| Record::Data { range, sum: Some(sum) });
    with_sum.chain(without_sum.iter().map(|range| Record::Data { range, sum: None })).collect()
}
