//! Writes files atomically: a file appears with its whole content, or not at all.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// Prefix of the names of temporary files. A program that was killed while writing may leave such a
/// file behind.
pub const BESIDE: &str = ".ropewalk-new-";

/// The time at which a file has to be on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDisk {
    /// The content is on disk before the file gets its name, and the name before the call returns.
    Now,
    /// The system decides. After a crash of the machine the file may be the old one, or empty.
    Later,
}

/// Writes `content` to `path`, with this mode regardless of the umask. The content is written to a
/// new file in the same directory, which then gets the name. No user without access through `mode`
/// can open the file before that. A symbolic link at `path` is replaced.
///
/// # Errors
/// The errors of the system; the old file is then unchanged.
pub fn replace(path: &Path, content: &[u8], mode: u32, on_disk: OnDisk) -> io::Result<()> {
    replace_with(path, mode, on_disk, |file| file.write_all(content))
}

/// Like [`replace`], but `write` writes the content, and may change the owner and the mode.
///
/// # Errors
/// The errors of `write` and of the system; the old file is then unchanged.
pub fn replace_with(
    path: &Path,
    mode: u32,
    on_disk: OnDisk,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let file = beside(path, mode, on_disk, write)?;
    file.persist(path).map_err(|e| e.error)?;
    settle(path, on_disk)
}

/// Like [`replace`], but only if the name does not exist. Returns `false` if it exists.
///
/// # Errors
/// The errors of the system.
pub fn create(path: &Path, content: &[u8], mode: u32, on_disk: OnDisk) -> io::Result<bool> {
    let file = beside(path, mode, on_disk, |file| file.write_all(content))?;
    match file.persist_noclobber(path) {
        Ok(_) => settle(path, on_disk).map(|()| true),
        Err(e) if e.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e.error),
    }
}

fn beside(
    path: &Path,
    mode: u32,
    on_disk: OnDisk,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<NamedTempFile> {
    let permissions = || Permissions::from_mode(mode);
    let mut file =
        tempfile::Builder::new().prefix(BESIDE).permissions(permissions()).tempfile_in(directory(path)?)?;
    file.as_file().set_permissions(permissions())?;
    write(file.as_file_mut())?;
    if on_disk == OnDisk::Now {
        file.as_file().sync_all()?;
    }
    Ok(file)
}

fn settle(path: &Path, on_disk: OnDisk) -> io::Result<()> {
    if on_disk == OnDisk::Later {
        return Ok(());
    }
    match File::open(directory(path)?) {
        Ok(directory) => directory.sync_all(),
        // A directory may be writable but not readable; then it cannot be opened for the
        // synchronisation.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(()),
        Err(e) => Err(e),
    }
}

fn directory(path: &Path) -> io::Result<&Path> {
    path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(parent.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn replace_and_create_write_whole_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let read = || fs::read_to_string(&path).unwrap();
        assert!(create(&path, b"one", 0o600, OnDisk::Now).unwrap());
        assert!(!create(&path, b"two", 0o600, OnDisk::Later).unwrap());
        assert_eq!(read(), "one");
        replace(&path, b"three", 0o622, OnDisk::Now).unwrap();
        assert_eq!((read().as_str(), fs::metadata(&path).unwrap().mode() & 0o777), ("three", 0o622));
        let half = |file: &mut File| file.write_all(b"ha").and(Err(io::Error::other("no more")));
        assert!(replace_with(&path, 0o600, OnDisk::Later, half).is_err());
        assert_eq!(read(), "three");
        assert!(replace(&directory.path().join("none/file"), b"", 0o600, OnDisk::Later).is_err());
        assert!(replace(Path::new("/"), b"", 0o600, OnDisk::Later).is_err());
        symlink("file", directory.path().join("link")).unwrap();
        replace(&directory.path().join("link"), b"four", 0o600, OnDisk::Later).unwrap();
        assert_eq!(read(), "three");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing is left over");
    }
}
