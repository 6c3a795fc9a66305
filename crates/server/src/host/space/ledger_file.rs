//! The file of the ledger. It is appended to, and replaced when most of its lines are out of date.
//! A lock keeps other servers from it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ropewalk_files::{OnDisk, replace};
use ropewalk_space::ledger::{self, Record};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

const MODE: u32 = 0o600;
/// A ledger of this size is not replaced, however old its lines are.
const SMALL: usize = 256 << 10;
/// A ledger is replaced if it has this many times the bytes that it needs.
const WASTE: usize = 4;
/// A longer file is none of the server's.
const LONGEST: u64 = 1 << 30;

pub(super) struct LedgerFile {
    path: PathBuf,
    file: File,
    length: usize,
    /// The length of the last replacement.
    live: usize,
    _lock: File,
}

impl LedgerFile {
    /// Opens or creates the ledger in a directory, and returns its records.
    ///
    /// # Errors
    /// Another server uses it, or the system fails.
    pub(super) fn open(directory: &Path) -> Result<(Self, Vec<Record>), String> {
        let in_directory = |error: io::Error| format!("{}: {error}", directory.display());
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(in_directory)?;
        let lock = directory.join("space.lock");
        let mut options = OpenOptions::new();
        let options = options.create(true).append(true).mode(MODE);
        let lock = options.open(&lock).map_err(in_directory)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(format!("{}: another server uses it", directory.display())),
            Err(error) => return Err(in_directory(error.into())),
        }
        let path = directory.join("space.ledger");
        let bytes = match ropewalk_files::read(&path, LONGEST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        let contents = ledger::read(&bytes);
        if contents.valid < bytes.len() {
            tracing::warn!(
                path = %path.display(), bytes = bytes.len() - contents.valid,
                "the end of the ledger of quotas is damaged; all files are counted"
            );
        }
        let write = || {
            let whole = if contents.valid == 0 { ledger::HEAD.as_bytes() } else { &bytes[..contents.valid] };
            // Lines after a damaged one would not be read.
            replace(&path, whole, MODE, OnDisk::Now)?;
            Ok((OpenOptions::new().append(true).open(&path)?, whole.len()))
        };
        let (file, length) = write().map_err(|error: io::Error| format!("{}: {error}", path.display()))?;
        Ok((Self { path, file, length, live: length, _lock: lock }, contents.records))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends records of what has changed. `all` returns all records, if the file is replaced.
    ///
    /// # Errors
    /// The system fails. A change that was not written is written with the next one.
    pub(super) fn append(&mut self, changed: &[Record], all: impl FnOnce() -> Vec<Record>) -> io::Result<()> {
        if changed.is_empty() {
            return Ok(());
        }
        let lines = lines(changed);
        self.file.write_all(lines.as_bytes())?;
        self.length += lines.len();
        if self.length > SMALL && self.length > WASTE * self.live {
            let whole = ledger::HEAD.to_owned() + &self::lines(&all());
            replace(&self.path, whole.as_bytes(), MODE, OnDisk::Now)?;
            self.file = OpenOptions::new().append(true).open(&self.path)?;
            (self.length, self.live) = (whole.len(), whole.len());
        }
        Ok(())
    }

    /// Waits until all of it is on the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn lines(records: &[Record]) -> String {
    records.iter().map(ledger::line).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_space::AccountKey;
    use ropewalk_space::ledger::AccountRecord;

    use super::*;

    fn account(bytes: u64) -> Record {
        let key = AccountKey { quota: "q".into(), holder: "ann".into() };
        Record::Account(AccountRecord { key, bytes, files: 1, soft_since: None })
    }

    #[test]
    fn ledger_with_damaged_end_is_continued_before_it() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("state");
        let (mut file, records) = LedgerFile::open(&directory).unwrap();
        assert!(records.is_empty());
        assert!(LedgerFile::open(&directory).err().unwrap().contains("another server"));
        file.append(&[account(1)], Vec::new).unwrap();
        let path = file.path().to_owned();
        drop(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(b"0badc0de {\"acc");
        std::fs::write(&path, bytes).unwrap();
        let (mut file, records) = LedgerFile::open(&directory).unwrap();
        assert_eq!(records.len(), 1);
        file.append(&[account(2)], Vec::new).unwrap();
        drop(file);
        assert_eq!(LedgerFile::open(&directory).unwrap().1.len(), 2);
    }

    #[test]
    fn ledger_of_old_lines_is_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let (mut file, _) = LedgerFile::open(scratch.path()).unwrap();
        let many: Vec<_> = (0..8000).map(account).collect();
        file.append(&many, || vec![account(7999)]).unwrap();
        file.append(&[account(5)], Vec::new).unwrap();
        drop(file);
        assert_eq!(LedgerFile::open(scratch.path()).unwrap().1.len(), 2);
    }
}
