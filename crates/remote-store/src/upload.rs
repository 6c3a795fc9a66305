//! Uploads to a far server.
//!
//! A [`RemoteUpload`] holds its path until it ends, so that the store has only one upload for each
//! path. Data that is recorded but that the far server did not receive is lost when the transfer
//! fails; [`Upload::present`] then has the ranges that the far server reports. A dropped upload is
//! suspended.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_client::Window as Part;
use ropewalk_client::far::{Far, FarUploadSpec, ToCommit};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::upload::UploadId;
use ropewalk_storage::checksum::{Algorithm, Pieces, checksum_file};
use ropewalk_storage::{
    Error, ErrorKind, Kind, Lock, Metadata, ReadHandle, Result, Upload, UploadSpec, WriteHandle,
};

use crate::checksum::far_checksum;
use crate::memory::Memory;
use crate::metadata::synthetic;
use crate::pump::{Pump, Target};
use crate::read::RemoteFile;
use crate::window::Window;

/// An upload that is suspended passes on what it holds for so long. The rest is sent again when the
/// upload is resumed.
const SUSPENSION: Duration = Duration::from_secs(5);

/// The paths to which a store uploads at present.
pub(crate) type Writers = Arc<Mutex<HashSet<VirtualPath>>>;

/// Excludes other uploads of the store from a path.
struct Claim {
    writers: Writers,
    path: VirtualPath,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.writers.lock().remove(&self.path);
    }
}

/// The parts of a store that its uploads need.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) far: Arc<Far>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) writers: Writers,
}

pub(crate) struct RemoteUpload {
    place: Place,
    path: VirtualPath,
    spec: UploadSpec,
    started_over: Option<String>,
    pump: Arc<Pump>,
    recorded: Arc<Mutex<Recorded>>,
    ended: Mutex<bool>,
    _claim: Claim,
}

struct Recorded {
    present: RangeSet,
    pieces: Pieces,
    /// The length that was set.
    length: u64,
}

impl RemoteUpload {
    pub(crate) fn begin(place: Place, path: &VirtualPath, spec: UploadSpec) -> Result<Self> {
        if !place.writers.lock().insert(path.clone()) {
            return Err(Error::new(ErrorKind::Busy, "open", path.as_bytes())
                .with_detail("another upload writes the file"));
        }
        let claim = Claim { writers: place.writers.clone(), path: path.clone() };
        let (target, started_over, present, any_order) = open(&place, path, &spec, spec.options.resume)?;
        let window = Window::new(place.memory.share());
        let pump = Arc::new(Pump::new(path, target, any_order, Some(present.prefix()), window));
        pump.recover_stored(&present);
        let recorded = Recorded { present, pieces: Pieces::new(Algorithm::Crc32c), length: 0 };
        let (recorded, path) = (Arc::new(Mutex::new(recorded)), path.clone());
        Ok(Self { place, path, spec, started_over, pump, recorded, ended: Mutex::new(false), _claim: claim })
    }

    /// Recovers after a failure: the ranges that the server has are the new state.
    fn recover(&self) {
        if !self.pump.has_failed() {
            return;
        }
        match open(&self.place, &self.path, &self.spec, true) {
            Ok((target, _, present, _)) => {
                let mut recorded = self.recorded.lock();
                let all = recorded.present.clone();
                for lost in all.iter().flat_map(|range| present.complement(range).iter().collect::<Vec<_>>())
                {
                    recorded.pieces.forget(lost);
                }
                recorded.present = present.clone();
                self.pump.recover(target, &present);
            }
            Err(error) => tracing::debug!(%error, "an upload cannot be resumed yet"),
        }
    }

    fn end(&self) -> bool {
        !std::mem::replace(&mut *self.ended.lock(), true)
    }

    fn far<T>(
        &self,
        operation: impl FnOnce(&ropewalk_client::far::FarUpload) -> Result<T, ropewalk_client::Error>,
        action: &'static str,
    ) -> Result<T> {
        match &*self.pump.target() {
            Target::Upload(upload) => {
                operation(upload).map_err(|error| error.into_storage(action, self.path.as_bytes()))
            }
            Target::File(..) => Err(Error::new(ErrorKind::Invalid, action, self.path.as_bytes())),
        }
    }
}

type Opened = (Target, Option<String>, RangeSet, bool);

fn open(place: &Place, path: &VirtualPath, spec: &UploadSpec, resume: bool) -> Result<Opened> {
    let key = &spec.key;
    let version = format!("{} {:?} {:?}", key.source, key.size, key.modified);
    // Servers keep the ID of SITE UPLOAD as the source of the data. It stands for the version of
    // the source; other stores put the time of the source into the key.
    let id = UploadId::new(key.source.as_bytes()).filter(|_| key.modified.is_none());
    let far = FarUploadSpec { path, id, version: &version, size: key.size, resume };
    let upload = place.far.begin_upload(&far).map_err(|error| error.into_storage("open", path.as_bytes()))?;
    let started_over = upload.started_over().map(str::to_owned);
    let (present, any_order) = (upload.present().clone(), upload.takes_any_order());
    Ok((Target::Upload(Box::new(upload)), started_over, present, any_order))
}

impl Upload for RemoteUpload {
    fn present(&self) -> RangeSet {
        self.recover();
        self.recorded.lock().present.clone()
    }

    fn pieces(&self) -> Pieces {
        self.recorded.lock().pieces.clone()
    }

    fn stored(&self) -> Option<RangeSet> {
        Some(self.pump.stored())
    }

    fn started_over(&self) -> Option<&str> {
        self.started_over.as_deref()
    }

    fn writer(&self) -> Arc<dyn WriteHandle> {
        Arc::new(Writer {
            pump: self.pump.clone(),
            recorded: self.recorded.clone(),
            path: self.path.clone(),
            mode: self.spec.options.mode,
        })
    }

    fn reader(&self) -> Result<Arc<dyn ReadHandle>> {
        self.pump.flush()?;
        let part = self.far(|upload| Ok(upload.part()), "open")?;
        let invalid = |_| Error::new(ErrorKind::Invalid, "open", self.path.as_bytes());
        let part = VirtualPath::parse(&part).map_err(invalid)?;
        let size = self.recorded.lock().present.end();
        let window = Window::new(self.place.memory.share());
        let metadata = synthetic(Kind::File, size, self.spec.options.mode);
        Ok(Arc::new(RemoteFile::new(self.place.far.clone(), part, metadata, window)))
    }

    /// The far server computes it where the bytes are, which also verifies the last hop. One that
    /// cannot sends them back.
    fn checksum(
        &self,
        algorithm: Algorithm,
        length: u64,
        progress: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<String> {
        self.pump.flush()?;
        let part = self.far(|upload| Ok(upload.part()), "checksum")?;
        let whole = Part { offset: 0, length: Some(length) };
        match far_checksum(&self.place.far, &part, algorithm, whole, progress)? {
            Ok(sum) => Ok(sum),
            Err(error) => {
                tracing::debug!(path = %self.path, %error, "the bytes of an upload are read for their checksum");
                checksum_file(&*self.reader()?, algorithm, 0, Some(length), progress)
            }
        }
    }

    fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        if range.start < range.end {
            let mut recorded = self.recorded.lock();
            recorded.present.insert(range.clone());
            match crc32c {
                Some(sum) => recorded.pieces.insert(range, sum),
                None => recorded.pieces.forget(range),
            }
        }
        Ok(())
    }

    fn settle(&self, limit: Duration) -> Result<bool> {
        self.pump.settle(limit)
    }

    fn checkpoint(&self) -> Result<()> {
        self.pump.flush()
    }

    fn confirm(&self) -> Result<()> {
        self.pump.flush()
    }

    fn sync(&self) -> Result<()> {
        self.pump.flush()
    }

    fn commit(&self, length: u64, modified: Option<(i64, u32)>, mode: Option<u32>) -> Result<()> {
        self.pump.flush()?;
        let (present, crc32c) = {
            let recorded = self.recorded.lock();
            (recorded.present.clone(), recorded.pieces.total(0..length))
        };
        let missing = present.complement(0..length);
        if !missing.is_empty() {
            let detail = format!("{} of {length} bytes are missing", missing.len());
            return Err(Error::new(ErrorKind::Incomplete, "finish", self.path.as_bytes()).with_detail(detail));
        }
        let stored = self.pump.stored();
        let commit = ToCommit {
            length,
            sent: stored.end(),
            modified: modified.map(|(seconds, _)| seconds),
            mode,
            crc32c: crc32c.as_deref(),
            holes: !stored.contains(0..length),
        };
        self.far(|upload| upload.commit(&commit), "finish")?;
        self.end();
        Ok(())
    }

    fn suspend(&self) -> Result<()> {
        if !self.end() {
            return Ok(());
        }
        if self.recorded.lock().present.is_empty() {
            self.pump.abandon();
            return self.far(ropewalk_client::far::FarUpload::discard, "remove");
        }
        if !self.pump.settle(SUSPENSION)? {
            self.pump.abandon();
        }
        self.far(ropewalk_client::far::FarUpload::suspend, "close")
    }

    fn discard(&self) -> Result<()> {
        if !self.end() {
            return Ok(());
        }
        self.pump.abandon();
        self.far(ropewalk_client::far::FarUpload::discard, "remove")
    }
}

impl Drop for RemoteUpload {
    fn drop(&mut self) {
        if let Err(error) = self.suspend() {
            tracing::debug!(path = %self.path, %error, "an upload was not suspended");
        }
    }
}

struct Writer {
    pump: Arc<Pump>,
    recorded: Arc<Mutex<Recorded>>,
    path: VirtualPath,
    mode: u32,
}

impl Lock for Writer {}

impl WriteHandle for Writer {
    fn metadata(&self) -> Result<Metadata> {
        let recorded = self.recorded.lock();
        Ok(synthetic(Kind::File, recorded.present.end().max(recorded.length), self.mode))
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.pump.write(data, offset)
    }

    fn set_len(&self, length: u64) -> Result<()> {
        self.recorded.lock().length = length;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.pump.flush()
    }

    fn set_modified(&self, _seconds: i64, _nanoseconds: u32) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "utime", self.path.as_bytes()))
    }

    fn set_mode(&self, _mode: u32) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "chmod", self.path.as_bytes()))
    }
}
