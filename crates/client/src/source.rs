//! Local sources of copies.
//!
//! A file can be read at any offset, by several threads and repeatedly. A stream (standard input, a
//! pipe, a device) is read once and in order, by one thread. A change of a file between its opening
//! and the end of its transfer is detected by its size and modification time ([`Version`]), and is
//! an error unless the file only grows.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bstr::BString;
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::{Algorithm, Hasher, checksum_file};
use ropewalk_storage::{Kind, Lock, Metadata, ReadHandle, Result, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

use crate::place::Place;
use crate::task::Task;
use crate::verify::same;
use crate::{Cancel, RemoteError, Window};

/// An open source.
pub(crate) enum Source {
    Ranged(Arc<dyn ReadHandle>, Version),
    /// Standard input, a pipe or a device: it can be read only in order, and its length is not
    /// known.
    Stream(Stream),
}

/// The origin of a [`Source::Stream`], which is opened when its transfer starts.
#[derive(Clone, Debug)]
pub(crate) enum Stream {
    Standard,
    Path(BString),
}

impl Stream {
    /// Opens the wanted window. `spent` is set as soon as another try would find less data.
    pub(crate) fn open(&self, window: Option<Window>, spent: Arc<AtomicBool>) -> io::Result<Pouring> {
        let file = match self {
            // Bypasses the buffer of `io::stdin`, because poll does not report data that is in it.
            Self::Standard => File::from(rustix::io::dup(io::stdin())?),
            // Opening a named pipe without a writer would block.
            Self::Path(path) => {
                let flags = OFlags::NONBLOCK.bits() as i32;
                let file = File::options().read(true).custom_flags(flags).open(OsStr::from_bytes(path))?;
                // Between two tries the writer of a pipe would find no reader, and end.
                spent.store(file.metadata()?.file_type().is_fifo(), Ordering::Relaxed);
                file
            }
        };
        let Window { offset, length } = window.unwrap_or(Window { offset: 0, length: None });
        Ok(Pouring { file, skip: offset, left: length.unwrap_or(u64::MAX), spent })
    }
}

/// Reads the available data without blocking. If there is none, reading fails with
/// [`io::ErrorKind::WouldBlock`].
pub(crate) struct Pouring {
    file: File,
    /// The number of bytes before the window.
    skip: u64,
    left: u64,
    spent: Arc<AtomicBool>,
}

impl Pouring {
    /// A descriptor for a caller that polls other descriptors, too.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// Waits until there is data, the stream has ended, or the run is cancelled.
    pub(crate) fn wait(&self, cancel: &Cancel) -> std::result::Result<(), RemoteError> {
        while !cancel.is_cancelled() {
            let mut fds = vec![PollFd::new(&self.file, PollFlags::IN)];
            fds.extend(cancel.descriptor().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            match poll(&mut fds, cancel.longest_wait().as_ref()) {
                Ok(_) if fds[0].revents().is_empty() => {}
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(RemoteError::Output(error.into())),
            }
        }
        Err(RemoteError::Cancelled)
    }

    fn is_ready(&self) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
        // A closed pipe is ready, too: it reports its end.
        Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
    }
}

impl Read for Pouring {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left > 0 {
            if !self.is_ready()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let most =
                usize::try_from(if self.skip > 0 { self.skip } else { self.left }).unwrap_or(usize::MAX);
            let most = most.min(buffer.len());
            let n = self.file.read(&mut buffer[..most])?;
            if n > 0 {
                self.spent.store(true, Ordering::Relaxed);
            } else if self.skip > 0 {
                let what = format!("it ends {} bytes before what is wanted of it", self.skip);
                return Err(io::Error::other(what));
            }
            if n == 0 || self.skip == 0 {
                self.left -= n as u64;
                return Ok(n);
            }
            self.skip -= n as u64;
        }
        Ok(0)
    }
}

/// The attributes by which a change of a file is detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    size: u64,
    /// Seconds since 1970, and nanoseconds.
    modified: (i64, u32),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self { size: metadata.size, modified: metadata.modified }
    }

    /// The fraction of the modification time, in nanoseconds.
    pub(crate) fn nanoseconds(self) -> u32 {
        self.modified.1
    }
}

impl Source {
    /// Opens the source, and sets the attributes of the task that were not known yet.
    pub(crate) fn open(task: &mut Task, store: &dyn Store) -> std::result::Result<Self, RemoteError> {
        match &task.source {
            Place::Local(path) => {
                let local = |e| RemoteError::local(path.as_bytes(), e);
                let metadata = store.stat(path, true).map_err(local)?;
                match metadata.kind {
                    Kind::File => {}
                    Kind::Directory => return Err(RemoteError::Usage(format!("{path}: is a directory"))),
                    Kind::Socket => return Err(RemoteError::Usage(format!("{path}: is a socket"))),
                    _ => {
                        // Size and time of a device or a pipe do not describe the data that is read
                        // from it.
                        (task.size, task.modified) = (None, None);
                        return Ok(Self::Stream(Stream::Path(path.as_bytes().into())));
                    }
                }
                let handle = store.open_read(path).map_err(local)?;
                let metadata = handle.metadata().map_err(local)?;
                if metadata.size == 0 && handle.read_at(&mut [0], 0).map_err(local)? > 0 {
                    // The content is generated while it is read, as in /proc.
                    (task.size, task.modified) = (None, None);
                    return Ok(Self::Stream(Stream::Path(path.as_bytes().into())));
                }
                task.size = Some(metadata.size);
                task.modified = Some(metadata.modified.0);
                task.mode = Some(metadata.mode);
                Ok(Self::Ranged(handle, Version::of(&metadata)))
            }
            Place::Measure(size) => {
                task.size = Some(*size);
                Ok(Self::Ranged(Arc::new(Zeros(*size)), Version::default()))
            }
            Place::Standard => Ok(Self::Stream(Stream::Standard)),
            Place::Remote(..) => {
                Err(RemoteError::Usage(format!("{}: not a local file", task.source.display())))
            }
        }
    }
}

/// Computes the checksum of the data that is read.
pub(crate) struct Summing<R> {
    pub reader: R,
    pub hasher: Option<Hasher>,
}

impl<R: Read> Read for Summing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.reader.read(buffer)?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..n]);
        }
        Ok(n)
    }
}

/// `zero:SIZE`
pub(crate) struct Zeros(pub u64);

impl Lock for Zeros {}

impl ReadHandle for Zeros {
    fn metadata(&self) -> Result<Metadata> {
        Ok(metadata(self.0))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let n = usize::try_from(self.0.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        buffer[..n].fill(0);
        Ok(n)
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        // The zeros are to be sent, since the transfer of data is measured.
        Ok(RangeSet::from_range(start..end.min(self.0)))
    }
}

/// A small file, which was read as a whole.
pub(crate) struct Bytes(pub Vec<u8>);

impl Lock for Bytes {}

impl ReadHandle for Bytes {
    fn metadata(&self) -> Result<Metadata> {
        Ok(metadata(self.0.len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let n = rest.len().min(buffer.len());
        buffer[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        Ok(RangeSet::from_range(start..end.min(self.0.len() as u64)))
    }
}

fn metadata(size: u64) -> Metadata {
    Metadata {
        kind: Kind::File,
        size,
        modified: (0, 0),
        changed: (0, 0),
        mode: 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        inode: 0,
        links: 1,
        blocks: size.div_ceil(512),
        target: None,
        readable: true,
        writable: false,
        searchable: false,
    }
}

/// Reads a file of `size` bytes. It is an error if it has another size.
pub(crate) fn read_whole(
    handle: &dyn ReadHandle,
    task: &Task,
    size: u64,
) -> std::result::Result<Vec<u8>, RemoteError> {
    let path = task.source.path();
    // One more byte shows whether the file has grown.
    let mut data = vec![0; usize::try_from(size).unwrap_or(usize::MAX).saturating_add(1)];
    let mut at = 0;
    while at < data.len() {
        match handle.read_at(&mut data[at..], at as u64).map_err(|e| RemoteError::local(path.clone(), e))? {
            0 => break,
            n => at += n,
        }
    }
    if at as u64 != size && !(task.grows && at as u64 > size) {
        return Err(RemoteError::SourceChanged { path });
    }
    data.truncate(usize::try_from(size).unwrap_or(at));
    Ok(data)
}

/// Checks that the source is unchanged since it was opened.
pub(crate) fn unchanged(
    handle: &dyn ReadHandle,
    version: Version,
    task: &Task,
) -> std::result::Result<(), RemoteError> {
    if !matches!(task.source, Place::Local(_)) {
        return Ok(());
    }
    let now = handle.metadata().map_err(|e| RemoteError::local(task.source.path(), e))?;
    if Version::of(&now) == version {
        Ok(())
    } else {
        Err(RemoteError::SourceChanged { path: task.source.path() })
    }
}

/// Like [`unchanged`], except that a growing file only has to keep the data that was read of
/// `range`, whose checksum is `sum`.
pub(crate) fn still_there(
    handle: &dyn ReadHandle,
    version: Version,
    task: &Task,
    range: std::ops::Range<u64>,
    sum: Option<(Algorithm, &str)>,
) -> std::result::Result<(), RemoteError> {
    match (unchanged(handle, version, task), sum) {
        (Err(changed @ RemoteError::SourceChanged { .. }), Some((algorithm, sum))) if task.grows => {
            let length = Some(range.end - range.start);
            let now = checksum_file(handle, algorithm, range.start, length, &mut |_| Ok(()))
                .map_err(|e| RemoteError::local(task.source.path(), e))?;
            if same(&now, sum) { Ok(()) } else { Err(changed) }
        }
        (result, _) => result,
    }
}

/// The range of the file to send: the window, or everything.
pub(crate) fn wanted(window: Option<Window>, size: u64) -> std::ops::Range<u64> {
    let start = window.map_or(0, |w| w.offset).min(size);
    let end = window.and_then(|w| w.length).map_or(size, |length| start.saturating_add(length).min(size));
    start..end
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_protocol::path::VirtualPath;

    use super::*;

    fn task() -> Task {
        let place = Place::Local(VirtualPath::parse(b"/x").unwrap());
        Task::new(0, place.clone(), place)
    }

    #[test]
    fn handles_end_where_they_should() {
        let mut buffer = [1; 8];
        assert_eq!(Zeros(10).read_at(&mut buffer, 5).unwrap(), 5);
        assert_eq!(buffer, [0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(Bytes(b"abc".to_vec()).read_at(&mut buffer, 2).unwrap(), 1);
        assert_eq!(Bytes(b"abc".to_vec()).read_at(&mut buffer, 3).unwrap(), 0);
    }

    #[test]
    fn a_file_that_grew_or_shrank_is_noticed() {
        assert_eq!(read_whole(&Bytes(b"abc".to_vec()), &task(), 3).unwrap(), b"abc");
        for size in [2, 4] {
            let error = read_whole(&Bytes(b"abc".to_vec()), &task(), size).unwrap_err();
            assert!(matches!(error, RemoteError::SourceChanged { .. }));
        }
    }

    #[test]
    fn windows_end_with_the_file() {
        assert_eq!(wanted(None, 10), 0..10);
        assert_eq!(wanted(Some(Window { offset: 4, length: Some(3) }), 10), 4..7);
        assert_eq!(wanted(Some(Window { offset: 4, length: Some(30) }), 10), 4..10);
        assert_eq!(wanted(Some(Window { offset: 40, length: None }), 10), 10..10);
    }
}
