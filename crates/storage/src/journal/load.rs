//! Reads a journal and decides which ranges count. Under the boot that wrote the records, all
//! ranges count. After a restart of the machine, blocks are compared with their sums, and the
//! journal gets a new section with the verified ranges. A damaged or foreign journal is not used,
//! and the reason is returned.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use super::boot::BootId;
use super::format::{Header, LONGEST_HEADER, RECORD, Record, crc32c_append};
use super::{Journal, JournalKey, MOST_RANGES, SCATTERED};
use crate::checksum::{Algorithm, Pieces};
use crate::{Kind, Metadata, ReadHandle, Result, Store, WriteOptions};

/// The verified content of a journal.
pub(crate) struct Loaded {
    pub(crate) key: JournalKey,
    pub(crate) present: RangeSet,
    pub(crate) pieces: Pieces,
    pub(crate) journal: Journal,
}

/// Reads the journal at `path` of the unfinished file `part`. An `Err` within `Ok` says why it
/// cannot be used.
///
/// If there is a `key`, the journal must be of that source. After a crash of the machine, the
/// blocks are read and checked and the journal is updated. Before that, `alone` is called to get
/// exclusive access. `own` says whether a file may have been written by this user. `progress` is
/// called regularly with the number of bytes read from the file, also while only records are read;
/// its error stops the work.
pub(crate) fn load(
    store: &dyn Store,
    path: &VirtualPath,
    part: &VirtualPath,
    key: Option<&JournalKey>,
    own: &dyn Fn(&Metadata) -> bool,
    alone: &dyn Fn() -> Result<()>,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Result<Loaded, String>> {
    let bytes = match store.stat(path, false) {
        Ok(metadata) if metadata.kind == Kind::File => store.open_read(path),
        Ok(_) => return Ok(Err("its journal is no regular file".to_owned())),
        Err(error) => Err(error),
    };
    let bytes = match bytes {
        Err(error) if error.is_not_found() => return Ok(Err("it has no journal".to_owned())),
        bytes => bytes?,
    };
    // The check uses the open file, because the name may refer to another file by now.
    let opened = bytes.metadata()?;
    if !own(&opened) {
        return Ok(Err("its journal belongs to another user".to_owned()));
    }
    match store.stat(path, false) {
        Ok(named) if is_same(&named, &opened) => {}
        _ => return Ok(Err(REPLACED.to_owned())),
    }
    let (header, start) = match read_header(&*bytes)? {
        Ok(found) => found,
        Err(why) => return Ok(Err(format!("its journal is of no use: {why}"))),
    };
    if let Some(difference) = key.and_then(|key| key.differs_from(&header.key)) {
        return Ok(Err(difference));
    }
    let reader = Reader { bytes: &*bytes, start: start as u64, seed: header.seed };
    let mut survey = reader.survey(header.boot, progress)?;
    if !survey.boot.is_current() {
        alone()?;
        // Another process may have updated the journal before this one got exclusive access.
        survey = reader.survey(header.boot, progress)?;
    }
    if survey.boot.is_current()
        && let Some(place) = survey.damaged
    {
        return Ok(Err(format!("record {place} of its journal is damaged")));
    }
    let file = store.open_read(part)?;
    if !own(&file.metadata()?) {
        return Ok(Err("it belongs to another user".to_owned()));
    }
    let mut replay = Replay {
        survey: &survey,
        size: file.metadata()?.size,
        file: &*file,
        present: RangeSet::new(),
        pieces: Pieces::new(Algorithm::Crc32c),
        checked: 0,
        scattered: false,
        buffer: if survey.boot.is_current() { Vec::new() } else { vec![0; 1 << 20] },
        progress,
    };
    reader.each(survey.first, &mut |place, record| {
        if pauses(place) {
            (replay.progress)(replay.checked)?;
        }
        match record {
            _ if replay.scattered => Ok(()),
            Some(Record::Data { range, sum }) if survey.boot.is_current() => replay.trust(range, sum),
            Some(Record::Data { range, sum }) => replay.check(place, range, sum),
            _ => Ok(()),
        }?;
        replay.scattered |= replay.present.count() > MOST_RANGES;
        Ok(())
    })?;
    let Replay { present, pieces, scattered, .. } = replay;
    if scattered {
        return Ok(Err(SCATTERED.to_owned()));
    }
    let options = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
    let handle = store.open_write(path, options)?;
    if !is_same(&handle.metadata()?, &opened) {
        return Ok(Err(REPLACED.to_owned()));
    }
    let next = AtomicU64::new(survey.records);
    let journal = Journal { handle, start: start as u64, seed: header.seed, next };
    if !survey.boot.is_current() {
        journal.append_verified(&present, &pieces)?;
    }
    Ok(Ok(Loaded { key: header.key, present, pieces, journal }))
}

const REPLACED: &str = "its journal was replaced while it was read";

/// The sender determines how many records there are. This many are processed in a moment.
const RECORDS_AT_ONCE: u64 = 8192;

/// Whether it is time to call `progress`.
fn pauses(place: u64) -> bool {
    (place + 1).is_multiple_of(RECORDS_AT_ONCE)
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.kind, one.device, one.inode) == (Kind::File, other.device, other.inode)
}

fn read_header(bytes: &dyn ReadHandle) -> Result<Result<(Header, usize), &'static str>> {
    let mut buffer = vec![0; LONGEST_HEADER];
    let got = read_full(bytes, &mut buffer, 0)?;
    Ok(Header::parse(&buffer[..got]))
}

fn read_full(bytes: &dyn ReadHandle, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match bytes.read_at(&mut buffer[filled..], offset + filled as u64)? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

struct Reader<'a> {
    bytes: &'a dyn ReadHandle,
    start: u64,
    seed: u32,
}

/// The facts about a journal that are needed to interpret its records.
struct Survey {
    /// The boot under which the valid records were written.
    boot: BootId,
    /// The first valid record.
    first: u64,
    /// The bytes of records before this one are on stable storage.
    synced: u64,
    /// The number of records, including damaged ones.
    records: u64,
    damaged: Option<u64>,
}

impl Reader<'_> {
    /// Calls `visit` for every record from `first`, with `None` for damaged ones, and returns the
    /// number of records. Records that were allocated but not written are skipped, and so is a
    /// truncated last record.
    fn each(&self, first: u64, visit: &mut dyn FnMut(u64, Option<Record>) -> Result<()>) -> Result<u64> {
        let mut buffer = vec![0; 8192 * RECORD];
        let mut place = first;
        loop {
            let got = read_full(self.bytes, &mut buffer, self.start + place * RECORD as u64)?;
            let (records, _) = buffer[..got].as_chunks::<RECORD>();
            for record in records {
                if *record != [0; RECORD] {
                    visit(place, Record::parse(record, self.seed))?;
                }
                place += 1;
            }
            if got < buffer.len() {
                return Ok(place);
            }
        }
    }

    fn survey(&self, boot: BootId, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<Survey> {
        let mut survey = Survey { boot, first: 0, synced: 0, records: 0, damaged: None };
        survey.records = self.each(0, &mut |place, record| {
            if pauses(place) {
                progress(0)?;
            }
            match record {
                Some(Record::Boot { id }) => {
                    survey = Survey { boot: id, first: place + 1, damaged: None, ..survey };
                }
                Some(Record::Synced { records }) => survey.synced = survey.synced.max(records),
                Some(Record::Data { .. }) => {}
                None => survey.damaged = Some(place),
            }
            Ok(())
        })?;
        Ok(survey)
    }
}

/// Processes the records in order; later ones override earlier ones.
struct Replay<'a> {
    survey: &'a Survey,
    file: &'a dyn ReadHandle,
    size: u64,
    present: RangeSet,
    pieces: Pieces,
    /// There are more ranges than can be tracked.
    scattered: bool,
    /// The number of bytes read so far.
    checked: u64,
    buffer: Vec<u8>,
    progress: &'a mut dyn FnMut(u64) -> Result<()>,
}

impl Replay<'_> {
    /// Processes a record of the current boot: the kernel still has the bytes.
    fn trust(&mut self, range: Range<u64>, sum: Option<u32>) -> Result<()> {
        // The range may be zeros at the end that were not written because the file is sparse, or
        // the file may have been truncated since.
        if range.end > self.size {
            self.drop_range(range);
            return Ok(());
        }
        self.present.insert(range.clone());
        match sum {
            Some(sum) => self.pieces.insert(range, sum),
            None => self.pieces.forget(range),
        }
        Ok(())
    }

    /// Processes a record of an earlier boot.
    fn check(&mut self, place: u64, range: Range<u64>, sum: Option<u32>) -> Result<()> {
        let Some(sum) = sum else {
            if place < self.survey.synced && range.end <= self.size {
                self.pieces.forget(range.clone());
                self.present.insert(range);
            } else {
                self.drop_range(range);
            }
            return Ok(());
        };
        if self.sum_of(&range)? == Some(sum) {
            self.present.insert(range.clone());
            self.pieces.insert(range, sum);
        } else {
            self.drop_range(range);
        }
        Ok(())
    }

    /// Returns `None` if the file ends before the range does.
    fn sum_of(&mut self, range: &Range<u64>) -> Result<Option<u32>> {
        let (mut sum, mut at) = (0, range.start);
        while at < range.end {
            let want = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(self.buffer.len());
            let got = self.file.read_at(&mut self.buffer[..want], at)?;
            if got == 0 {
                return Ok(None);
            }
            sum = crc32c_append(sum, &self.buffer[..got]);
            at += got as u64;
            self.checked += got as u64;
            (self.progress)(self.checked)?;
        }
        Ok(Some(sum))
    }

    fn drop_range(&mut self, range: Range<u64>) {
        self.pieces.forget(range.clone());
        self.present.remove(range);
    }
}
