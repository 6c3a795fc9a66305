//! A file on disk for data that has no room in memory: it lets a fast hop go on before a slow one.
//!
//! The windows of all open files share one file without a name, so that nothing stays behind when
//! the process ends. Space in it is given to the first gap that is large enough, and the file is
//! emptied when all space is free again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_protocol::range::RangeSet;

/// See the description of the module.
#[derive(Debug)]
pub struct Spool {
    file: File,
    /// The largest size of the file in bytes.
    limit: u64,
    used: Mutex<RangeSet>,
}

/// Bytes in the spool. Their space is free once this is dropped.
#[derive(Debug)]
pub(crate) struct Spooled {
    spool: Arc<Spool>,
    start: u64,
    length: usize,
}

impl Spool {
    /// A spool of at most `limit` bytes in a directory, to which no other program has access.
    ///
    /// # Errors
    /// No file can be made in the directory.
    pub fn new(directory: &Path, limit: u64) -> io::Result<Arc<Self>> {
        let file = tempfile::tempfile_in(directory)?;
        Ok(Arc::new(Self { file, limit, used: Mutex::default() }))
    }

    /// Writes bytes to the spool. `None` if it is full or the disk does not take them.
    pub(crate) fn store(self: &Arc<Self>, data: &[u8]) -> Option<Arc<Spooled>> {
        let length = data.len() as u64;
        let spooled = {
            let mut used = self.used.lock();
            let gap = used.complement(0..self.limit).iter().find(|gap| gap.end - gap.start >= length)?;
            used.insert(gap.start..gap.start + length);
            Arc::new(Spooled { spool: self.clone(), start: gap.start, length: data.len() })
        };
        match self.file.write_all_at(data, spooled.start) {
            Ok(()) => Some(spooled),
            Err(error) => {
                tracing::debug!(%error, "the spool takes no data; it stays in memory");
                None
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.used.lock().len()
    }
}

impl Spooled {
    /// Reads the bytes from the `from`th on.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn read(&self, buffer: &mut [u8], from: usize) -> io::Result<()> {
        debug_assert!(from + buffer.len() <= self.length);
        self.spool.file.read_exact_at(buffer, self.start + from as u64)
    }
}

impl Drop for Spooled {
    fn drop(&mut self) {
        let mut used = self.spool.used.lock();
        used.remove(self.start..self.start + self.length as u64);
        if used.is_empty()
            && let Err(error) = self.spool.file.set_len(0)
        {
            tracing::warn!(%error, "the spool cannot be emptied");
        }
    }
}
