use std::ops::Range;
use std::sync::atomic::AtomicU64;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use super::boot::BootId;
use super::format::{Header, LONGEST_HEADER, RECORD, Record, crc32c_append};
use super::{Journal, JournalKey, MOST_RANGES, SCATTERED};
use crate::checksum::{Algorithm, Pieces};
use crate::{Kind, Metadata, ReadHandle, Result, Store, WriteOptions};

/// What a journal says, once it has been found to be true.
pub(crate) struct Loaded {
    pub(crate) key: JournalKey,
    pub(crate) present: RangeSet,
    pub(crate) pieces: Pieces,
    pub(crate) journal: Journal,
}

/// Reads the journal at `path` of the unfinished file `part`; `Err` within `Ok` says why it is of no use.
///
/// With a `key`, the journal must be of that source. After a crash of the machine the blocks are read and checked, and
/// the journal is brought up to date, for which `alone` keeps out everybody else. `own` says whether a file may be what we
/// left ourselves; `progress` is told how many bytes of the file were read, now and then also where none are, and can stop it
/// by an error.
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
    // Of what is open: the names may lead to something else by now.
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
        // Until then somebody else may have brought it up to date.
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

/// Whoever sends a file decides how many records there are. So many are gone through in a moment.
const RECORDS_AT_ONCE: u64 = 8192;

/// Whether it is time to ask if this is to go on.
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

/// What has to be known of a journal before its records mean anything.
struct Survey {
    /// Under which the records that count were written.
    boot: BootId,
    /// The first record that counts.
    first: u64,
    /// Records before this one are about bytes on stable storage.
    synced: u64,
    /// How many records there are, with damaged ones.
    records: u64,
    damaged: Option<u64>,
}

impl Reader<'_> {
    /// Gives every record from `first`, `None` for damaged ones, and says how many there are. A place that was
    /// taken but not written before the end is left out, and so is a last record that is cut off.
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

/// Goes through the records in order; later ones overrule earlier ones.
struct Replay<'a> {
    survey: &'a Survey,
    file: &'a dyn ReadHandle,
    size: u64,
    present: RangeSet,
    pieces: Pieces,
    /// There are more ranges than are kept account of.
    scattered: bool,
    /// Bytes read so far.
    checked: u64,
    buffer: Vec<u8>,
    progress: &'a mut dyn FnMut(u64) -> Result<()>,
}

impl Replay<'_> {
    /// The kernel has had these bytes since they were written.
    fn trust(&mut self, range: Range<u64>, sum: Option<u32>) -> Result<()> {
        // Zeros at the end that were not written because the file is sparse, or a file that was cut off since.
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

    /// The machine went down since.
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

    /// `None` where the file ends before.
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
