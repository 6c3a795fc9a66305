//! Files that appear whole or not at all.

use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

/// How the names of files begin that are being written, or that a program has left which was killed meanwhile.
pub const BESIDE: &str = ".ropewalk-new-";

/// When a file has to be on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDisk {
    /// Before it has its name, and its name before the call ends.
    Now,
    /// When the system sees fit: after a crash of the machine it may be the old one, or empty.
    Later,
}

/// Puts `content` under `path`, with this mode whatever the umask is: into a new file beside it, which then takes its name.
/// Nobody with other rights can have opened it before; a symbolic link of that name is replaced.
///
/// # Errors
/// As of the system; the old file is still there.
pub fn replace(path: &Path, content: &[u8], mode: u32, on_disk: OnDisk) -> io::Result<()> {
    replace_with(path, mode, on_disk, |file| file.write_all(content))
}

/// The same with a file that `write` writes, and gives other owners or another mode.
///
/// # Errors
/// As of `write` and the system; the old file is still there.
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

/// The same, only where nothing has the name. `false`: somebody else was faster.
///
/// # Errors
/// As of the system.
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
        // One may be written to without being read.
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
    fn whole_or_not_at_all() {
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
