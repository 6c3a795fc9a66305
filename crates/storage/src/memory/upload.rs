//! Uploads of the memory store: files without a name.
//!
//! The store keeps a table of the uploads in progress and of those that were interrupted, by path.
//! An upload in progress locks out others to the same path until it ends.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use super::fail;
use super::file::{File, Handle};
use super::tree::Tree;
use crate::checksum::Pieces;
use crate::upload::Ranges;
use crate::{
    Error, ErrorKind, Interrupted, JournalKey, Journaling, ReadHandle, Result, Upload, UploadSpec,
    WriteHandle,
};

/// The uploads that have not been committed or discarded.
#[derive(Default)]
pub(super) struct Uploads(Mutex<HashMap<Vec<u8>, Entry>>);

enum Entry {
    InProgress,
    Interrupted(Left),
}

/// The rest of an interrupted upload.
struct Left {
    file: Arc<File>,
    key: JournalKey,
    present: RangeSet,
    pieces: Pieces,
    sequential: bool,
}

impl Uploads {
    pub(super) fn interrupted(&self, name: &[u8], path: &VirtualPath) -> Result<Option<Interrupted>> {
        match self.0.lock().get(name) {
            None => Ok(None),
            Some(Entry::InProgress) => Err(busy(path)),
            Some(Entry::Interrupted(left)) => {
                let metadata = left.file.metadata();
                Ok(Some(Interrupted {
                    present: left.present.clone(),
                    key: Some(left.key.clone()),
                    modified: metadata.modified,
                    changed: metadata.changed,
                }))
            }
        }
    }

    pub(super) fn prefix(&self, name: &[u8], path: &VirtualPath) -> Result<Option<u64>> {
        match self.0.lock().get(name) {
            Some(Entry::InProgress) => Err(busy(path)),
            Some(Entry::Interrupted(left)) if left.sequential => Ok(Some(left.present.prefix())),
            _ => Ok(None),
        }
    }

    /// The bytes that an interrupted upload takes.
    pub(super) fn space(&self, name: &[u8]) -> u64 {
        match self.0.lock().get(name) {
            Some(Entry::Interrupted(left)) => left.file.metadata().size,
            _ => 0,
        }
    }
}

pub(super) struct MemoryUpload {
    tree: Arc<RwLock<Tree>>,
    uploads: Arc<Uploads>,
    name: Vec<u8>,
    path: VirtualPath,
    spec: UploadSpec,
    file: Arc<File>,
    ranges: Ranges,
    started_over: Option<String>,
    ended: AtomicBool,
}

impl MemoryUpload {
    pub(super) fn begin(
        tree: &Arc<RwLock<Tree>>,
        uploads: &Arc<Uploads>,
        name: Vec<u8>,
        path: &VirtualPath,
        spec: UploadSpec,
        new: impl FnOnce() -> Arc<File>,
    ) -> Result<Self> {
        let mut all = uploads.0.lock();
        let (mut file, mut ranges, mut started_over) = (None, Ranges::default(), None);
        match all.insert(name.clone(), Entry::InProgress) {
            Some(Entry::InProgress) => return Err(busy(path)),
            Some(Entry::Interrupted(left)) if spec.options.resume => {
                started_over = spec.key.differs_from(&left.key);
                if started_over.is_none() {
                    file = Some(left.file);
                    ranges = Ranges::new(left.present, left.pieces);
                }
            }
            _ => {}
        }
        Ok(Self {
            tree: Arc::clone(tree),
            uploads: Arc::clone(uploads),
            name,
            path: path.clone(),
            file: file.unwrap_or_else(new),
            spec,
            ranges,
            started_over,
            ended: AtomicBool::new(false),
        })
    }

    fn handle(&self) -> Arc<Handle> {
        Arc::new(Handle::new(self.file.clone(), self.path.clone()))
    }

    /// Ends the upload, once. `left` is what a later upload can resume.
    fn end(&self, left: Option<Left>) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut all = self.uploads.0.lock();
        match left {
            Some(left) => all.insert(self.name.clone(), Entry::Interrupted(left)),
            None => all.remove(&self.name),
        };
    }
}

impl Upload for MemoryUpload {
    fn present(&self) -> RangeSet {
        self.ranges.present()
    }

    fn pieces(&self) -> Pieces {
        self.ranges.pieces()
    }

    fn is_blank(&self) -> bool {
        self.ranges.present().is_empty()
    }

    fn started_over(&self) -> Option<&str> {
        self.started_over.as_deref()
    }

    fn writer(&self) -> Arc<dyn WriteHandle> {
        self.handle()
    }

    fn reader(&self) -> Result<Arc<dyn ReadHandle>> {
        Ok(self.handle())
    }

    fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        self.ranges.record(range, crc32c);
        Ok(())
    }

    fn commit(&self, length: u64, modified: Option<(i64, u32)>, mode: Option<u32>) -> Result<()> {
        self.ranges.check_complete(length, &self.path)?;
        self.file.set_len(length).map_err(fail("truncate", &self.path))?;
        let mode = mode.unwrap_or(self.spec.options.mode);
        let placed = self.tree.write().place(&self.path, self.file.clone(), mode);
        placed.map_err(fail("rename", &self.path))?;
        if let Some((seconds, nanoseconds)) = modified {
            self.file.attributes().set_modified(seconds, nanoseconds);
        }
        self.end(None);
        Ok(())
    }

    fn suspend(&self) -> Result<()> {
        let present = self.ranges.present();
        let left = (!present.is_empty()).then(|| Left {
            file: self.file.clone(),
            key: self.spec.key.clone(),
            present,
            pieces: self.ranges.pieces(),
            sequential: self.spec.options.journal == Journaling::Sequential,
        });
        self.end(left);
        Ok(())
    }

    fn discard(&self) -> Result<()> {
        self.end(None);
        Ok(())
    }
}

impl Drop for MemoryUpload {
    fn drop(&mut self) {
        // Suspending in memory cannot fail.
        let _ = self.suspend();
    }
}

fn busy(path: &VirtualPath) -> Error {
    Error::new(ErrorKind::Busy, "open", path.as_bytes()).with_detail("another transfer writes it")
}
