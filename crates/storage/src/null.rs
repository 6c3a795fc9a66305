//! A store without content, for measurements: reads return zeros, and writes are discarded.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use bstr::BStr;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

use crate::checksum::Pieces;
use crate::upload::Ranges;
use crate::{
    Capabilities, DiskFile, Error, ErrorKind, Kind, ListSink, Lock, Metadata, ReadHandle, Result, Store,
    Upload, UploadSpec, WriteHandle, WriteOptions,
};

/// Every path except `/` is a file of zeros; written bytes are discarded.
pub struct NullStore {
    size: u64,
    /// A file that is one hole, for `sendfile`. The kernel sends its shared page of zeros, so the
    /// file takes no memory.
    zeros: OnceLock<Option<Arc<OwnedFd>>>,
    null: OnceLock<Option<Arc<OwnedFd>>>,
}

impl NullStore {
    /// Makes a store whose files have `size` zeros each.
    pub fn new(size: u64) -> Self {
        Self { size, zeros: OnceLock::new(), null: OnceLock::new() }
    }

    fn metadata(&self, kind: Kind) -> Metadata {
        metadata(kind, if kind == Kind::File { self.size } else { 0 })
    }
}

impl Store for NullStore {
    fn name(&self) -> &'static str {
        "null"
    }

    /// There is no `rename` because written files do not exist afterwards.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            keeps: false,
            rename: false,
            symlinks: false,
            random_write: true,
            outlives_name: true,
            any_name: true,
        }
    }

    fn stat(&self, path: &VirtualPath, _follow: bool) -> Result<Metadata> {
        Ok(self.metadata(if path.is_root() { Kind::Directory } else { Kind::File }))
    }

    fn list(&self, _path: &VirtualPath, _sink: &mut ListSink<'_>) -> Result<()> {
        Ok(())
    }

    fn open_read(&self, _path: &VirtualPath) -> Result<Arc<dyn ReadHandle>> {
        let descriptor = self.zeros.get_or_init(|| zeros(self.size).ok().map(Arc::new)).clone();
        Ok(Arc::new(Zeros { size: self.size, descriptor }))
    }

    fn open_write(&self, _path: &VirtualPath, _options: WriteOptions) -> Result<Arc<dyn WriteHandle>> {
        Ok(Arc::new(Nothing { descriptor: self.null.get_or_init(|| null().ok().map(Arc::new)).clone() }))
    }

    fn begin_upload(&self, path: &VirtualPath, spec: UploadSpec) -> Result<Arc<dyn Upload>> {
        let create = WriteOptions { create: true, truncate: true, exclusive: false, mode: spec.options.mode };
        let writer = self.open_write(path, create)?;
        Ok(Arc::new(NullUpload { path: path.clone(), writer, ranges: Ranges::default() }))
    }

    fn make_directory(&self, _path: &VirtualPath, _mode: u32) -> Result<()> {
        Ok(())
    }

    fn remove_directory(&self, _path: &VirtualPath) -> Result<()> {
        Ok(())
    }

    fn remove_file(&self, _path: &VirtualPath) -> Result<()> {
        Ok(())
    }

    fn rename(&self, _from: &VirtualPath, _to: &VirtualPath) -> Result<()> {
        Ok(())
    }

    fn symlink(&self, _target: &BStr, _link: &VirtualPath) -> Result<()> {
        Ok(())
    }

    fn set_modified(&self, _path: &VirtualPath, _seconds: i64, _nanoseconds: u32) -> Result<()> {
        Ok(())
    }

    fn set_mode(&self, _path: &VirtualPath, _mode: u32) -> Result<()> {
        Ok(())
    }

    fn set_group(&self, _path: &VirtualPath, _gid: u32) -> Result<()> {
        Ok(())
    }

    fn truncate(&self, _path: &VirtualPath, _length: u64) -> Result<()> {
        Ok(())
    }

    fn real_path(&self, path: &VirtualPath) -> Result<VirtualPath> {
        Ok(path.clone())
    }
}

fn metadata(kind: Kind, size: u64) -> Metadata {
    let mode = if kind == Kind::Directory { 0o777 } else { 0o666 };
    Metadata {
        kind,
        size,
        modified: (0, 0),
        changed: (0, 0),
        mode,
        uid: 0,
        gid: 0,
        device: 0,
        inode: 0,
        links: 1,
        blocks: 0,
        target: None,
        readable: true,
        writable: true,
        searchable: kind == Kind::Directory,
    }
}

fn zeros(size: u64) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::memfd_create("zeros", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, size)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals)?;
    Ok(fd)
}

fn null() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

/// An upload of which only the ranges are kept.
struct NullUpload {
    path: VirtualPath,
    writer: Arc<dyn WriteHandle>,
    ranges: Ranges,
}

impl Upload for NullUpload {
    fn present(&self) -> RangeSet {
        self.ranges.present()
    }

    fn pieces(&self) -> Pieces {
        self.ranges.pieces()
    }

    fn writer(&self) -> Arc<dyn WriteHandle> {
        Arc::clone(&self.writer)
    }

    fn reader(&self) -> Result<Arc<dyn ReadHandle>> {
        Err(Error::new(ErrorKind::Unsupported, "open", self.path.as_bytes())
            .with_detail("nothing that was written is kept"))
    }

    fn record(&self, range: Range<u64>, crc32c: Option<u32>) -> Result<()> {
        self.ranges.record(range, crc32c);
        Ok(())
    }

    fn commit(&self, length: u64, _modified: Option<(i64, u32)>, _mode: Option<u32>) -> Result<()> {
        self.ranges.check_complete(length, &self.path)
    }

    fn suspend(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self) -> Result<()> {
        Ok(())
    }
}

struct Zeros {
    size: u64,
    descriptor: Option<Arc<OwnedFd>>,
}

impl Lock for Zeros {}

impl ReadHandle for Zeros {
    fn metadata(&self) -> Result<Metadata> {
        Ok(metadata(Kind::File, self.size))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = left.min(buffer.len());
        buffer[..length].fill(0);
        Ok(length)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(|fd| fd.as_fd())
    }

    /// The zeros count as data, so that they are transferred.
    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        Ok(RangeSet::from_range(start..end.min(self.size)))
    }
}

struct Nothing {
    descriptor: Option<Arc<OwnedFd>>,
}

impl Lock for Nothing {}

impl WriteHandle for Nothing {
    fn metadata(&self) -> Result<Metadata> {
        Ok(metadata(Kind::File, 0))
    }

    fn write_at(&self, _data: &[u8], _offset: u64) -> Result<()> {
        Ok(())
    }

    fn discards(&self) -> bool {
        true
    }

    fn disk(&self) -> Option<&dyn DiskFile> {
        Some(self)
    }

    fn set_len(&self, _length: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// Its descriptor is that of /dev/null.
impl DiskFile for Nothing {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(|fd| fd.as_fd())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn read_returns_zeros_up_to_the_size() {
        let store = NullStore::new(1 << 40);
        let path = VirtualPath::parse(b"/any/thing").unwrap();
        assert_eq!(store.stat(&path, true).unwrap().size, 1 << 40);
        let file = store.open_read(&path).unwrap();
        let mut buffer = [7; 100];
        assert_eq!(file.read_at(&mut buffer, (1 << 40) - 10).unwrap(), 10);
        assert_eq!(buffer[..10], [0; 10]);
        assert_eq!(file.read_at(&mut buffer, 1 << 40).unwrap(), 0);
        assert_eq!(file.data_ranges(5, u64::MAX).unwrap(), RangeSet::from_range(5..1 << 40));
    }

    #[test]
    fn descriptor_of_zeros_works_with_sendfile() {
        let store = NullStore::new(3 << 20);
        let file = store.open_read(&VirtualPath::parse(b"/z").unwrap()).unwrap();
        let descriptor = file.descriptor().unwrap();
        let sink = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let mut offset = (3 << 20) - 1000;
        assert_eq!(rustix::fs::sendfile(&sink, descriptor, Some(&mut offset), 1 << 20).unwrap(), 1000);
        let stat = rustix::fs::fstat(descriptor).unwrap();
        assert_eq!(stat.st_blocks, 0, "sending zeros must not take memory");
        assert!(rustix::io::pwrite(descriptor, b"x", 0).is_err());
    }

    #[test]
    fn write_discards_all_bytes() {
        let store = NullStore::new(0);
        let options = WriteOptions { create: true, truncate: true, exclusive: false, mode: 0o666 };
        let file = store.open_write(&VirtualPath::parse(b"/x").unwrap(), options).unwrap();
        file.write_at(b"gone", 1 << 50).unwrap();
        file.set_len(4).unwrap();
        assert!(file.disk().unwrap().descriptor().is_some());
    }
}
