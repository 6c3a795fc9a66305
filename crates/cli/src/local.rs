//! Implements the small commands for paths of this machine.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use ropewalk_client::{Amount, Entry, Error};
use ropewalk_storage::Kind;
use ropewalk_storage::checksum::{Algorithm, Hasher};

/// Returns information about a path, without following a symbolic link.
pub(crate) fn stat(path: &Path) -> io::Result<Entry> {
    let metadata = fs::symlink_metadata(path)?;
    let kind = kind(&metadata);
    let target = if kind == Kind::Symlink {
        Some(fs::read_link(path)?.into_os_string().into_vec().into())
    } else {
        None
    };
    Ok(Entry {
        size: Some(metadata.size()),
        modified: Some(metadata.mtime()),
        nanoseconds: u32::try_from(metadata.mtime_nsec()).unwrap_or_default(),
        mode: Some(metadata.mode() & 0o7777),
        owner: Some(metadata.uid().to_string()),
        group: Some(metadata.gid().to_string()),
        target,
        ..Entry::new(path.file_name().unwrap_or(path.as_os_str()).as_bytes(), kind)
    })
}

fn kind(metadata: &Metadata) -> Kind {
    let kind = metadata.file_type();
    if kind.is_file() {
        Kind::File
    } else if kind.is_dir() {
        Kind::Directory
    } else if kind.is_symlink() {
        Kind::Symlink
    } else if kind.is_fifo() {
        Kind::Fifo
    } else if kind.is_socket() {
        Kind::Socket
    } else if kind.is_block_device() {
        Kind::BlockDevice
    } else {
        Kind::CharacterDevice
    }
}

fn open(path: &Path, window: Amount) -> io::Result<io::Take<File>> {
    let mut file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let (offset, length) = window.map_or((0, None), |window| (window.offset, window.length));
    if offset > 0 {
        file.seek(SeekFrom::Start(offset))?;
    }
    Ok(file.take(length.unwrap_or(u64::MAX)))
}

/// Writes a file, or a range of it, to `writer`. Returns the number of bytes.
pub(crate) fn read_to(path: &Path, writer: &mut impl Write, window: Amount) -> anyhow::Result<u64> {
    io::copy(&mut open(path, window)?, writer).map_err(|error| match error.kind() {
        // The error concerns the output: reading the file does not fill anything.
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Error::output(error).into(),
        _ => error.into(),
    })
}

/// The checksum of a file or of a range of it, in hexadecimal.
///
/// # Errors
/// The file cannot be read, or is shorter than the range.
pub(crate) fn checksum(path: &Path, algorithm: Algorithm, window: Amount) -> anyhow::Result<String> {
    let mut file = open(path, window)?;
    let mut hasher = Hasher::new(algorithm);
    let mut buffer = vec![0; 1 << 20];
    let mut read = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => {
                // The system reports a size of 0 for some files (/proc).
                let offset = window.map_or(0, |window| window.offset);
                let end = if read == 0 { file.get_ref().metadata()?.len() } else { offset + read };
                within(end, window)?;
                return Ok(hasher.finish());
            }
            Ok(count) => {
                hasher.update(&buffer[..count]);
                read += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Checks that a file of `size` bytes contains the requested range.
///
/// # Errors
/// The file is shorter.
pub(crate) fn within(size: u64, window: Amount) -> Result<(), Error> {
    let Some(window) = window else { return Ok(()) };
    let missing = match window.length {
        _ if window.offset > size => format!("there is nothing at byte {}", window.offset),
        Some(length) if window.offset.saturating_add(length) > size => {
            format!("there are no {length} bytes from {} on", window.offset)
        }
        _ => return Ok(()),
    };
    Err(Error::usage(format!("it has {size} bytes: {missing}")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::Window;

    use super::*;

    #[test]
    fn copy_of_a_range_writes_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, "0123456789").unwrap();
        let read = |offset, length| {
            let mut out = Vec::new();
            read_to(&path, &mut out, Some(Window { offset, length })).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(read(0, None), "0123456789");
        assert_eq!(read(3, Some(4)), "3456");
        assert_eq!(read(8, Some(100)), "89");
        assert_eq!(read(100, None), "");
        assert_eq!(
            read_to(directory.path(), &mut Vec::new(), None)
                .unwrap_err()
                .downcast::<io::Error>()
                .unwrap()
                .kind(),
            io::ErrorKind::IsADirectory
        );
    }

    #[test]
    fn checksum_of_a_range_beyond_the_end_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        fs::write(&path, "0123456789").unwrap();
        let sum = |offset, length| checksum(&path, Algorithm::Md5, Some(Window { offset, length }));
        for (offset, length) in [(0, Some(10)), (3, None), (10, None), (10, Some(0)), (4, Some(6))] {
            assert!(sum(offset, length).is_ok(), "{offset} {length:?}");
        }
        for (offset, length) in [(11, None), (0, Some(11)), (4, Some(7)), (10, Some(1)), (1, Some(u64::MAX))]
        {
            let told = sum(offset, length).unwrap_err().to_string();
            assert!(told.starts_with("it has 10 bytes: "), "{told}");
        }
    }

    #[test]
    fn stat_of_a_link_describes_the_link() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        let entry = stat(&link).unwrap();
        assert_eq!((entry.kind, entry.target), (Kind::Symlink, Some("nowhere".into())));
    }
}
