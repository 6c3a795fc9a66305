//! The journal of an unfinished file. It says which ranges of the file are in the store, and is
//! kept beside the file so that a crash does not lose them.
//!
//! The file consists of a header and records of [`format::RECORD`] bytes. Each writer appends its
//! record after its block was written, without coordination with other writers; an incomplete
//! record does not count. While the kernel that took the bytes is still running, written bytes can
//! be read whether or not they have reached the disk. After a crash of the machine, blocks are
//! compared with their sums; blocks without a sum count only if a record says that the file was
//! synced.

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

/// The maximum number of ranges with gaps between them that are tracked. The sender determines how
/// many there are.
pub(crate) const MOST_RANGES: usize = 1 << 20;
/// The error text if there are more.
pub(crate) const SCATTERED: &str = "it has too many gaps";

/// The source of an unfinished file. Ranges of another source, or of another version of it, cannot
/// be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalKey {
    /// Identifies the source (for example a URL); empty if it is unknown, as for an upload.
    pub source: String,
    /// Size of the whole file in bytes.
    pub size: Option<u64>,
    /// Modification time, in seconds since 1970.
    pub modified: Option<i64>,
}

impl JournalKey {
    /// Why ranges of `old` cannot be ranges of `self`. Fields that are unknown in one of them are
    /// ignored.
    pub(crate) fn differs_from(&self, old: &Self) -> Option<String> {
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

/// An open journal. Any number of threads can append to it concurrently.
pub struct Journal {
    handle: Arc<dyn WriteHandle>,
    /// Length of the header in bytes.
    start: u64,
    seed: u32,
    /// The next free index for a record.
    next: AtomicU64,
}

impl Journal {
    /// Creates a journal with the ranges `present` and the sums of `pieces`. Replaces an existing
    /// journal.
    ///
    /// # Errors
    /// The existing journal cannot be removed, or the new one cannot be created or written.
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

    /// Records that a range was written. With `crc32c` the range can be checked after a crash of
    /// the machine.
    ///
    /// # Errors
    /// The record cannot be written, for example because no space is left.
    pub fn append(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        self.append_records(&[Record::Data { range, sum: crc32c }])
    }

    /// The number of records. All of them concern bytes that the store has taken.
    pub fn len(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Records that the bytes of the first `records` records are on stable storage.
    ///
    /// # Errors
    /// The same errors as [`Self::append`].
    pub fn append_synced(&self, records: u64) -> Result<()> {
        self.append_records(&[Record::Synced { records }])
    }

    /// Writes all records to stable storage.
    ///
    /// # Errors
    /// The same errors as [`WriteHandle::sync`].
    pub fn sync(&self) -> Result<()> {
        self.handle.sync()
    }

    /// Starts a new section after a crash of the machine, with the ranges that were verified.
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
