//! Writes output files atomically, and never over the files that the command reads.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Writes `bytes` to a file. An existing file stays as it is until all of them are written. If the
/// path is not a regular file (a pipe, a device), the bytes are written directly.
///
/// # Errors
/// As of the system; the old file is still there.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, None)
}

/// The same, readable only by the owner, because the file has passwords.
///
/// # Errors
/// The same as those of [`write()`].
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, Some(0o600))
}

/// `asked`: the mode, regardless of the previous one.
fn put(path: &Path, bytes: &[u8], asked: Option<u32>) -> io::Result<()> {
    let old = match fs::metadata(path) {
        Ok(old) if !old.is_file() => return fs::write(path, bytes),
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // A symbolic link stays a link.
    let target = if old.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
    let directory = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    // New files get the mode that the umask leaves.
    let given = asked.or_else(|| Some(old.as_ref()?.mode() & 0o777));
    let mode = given.unwrap_or(0o666);
    let made = tempfile::Builder::new()
        .prefix(".ropewalk-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(directory.unwrap_or(Path::new(".")));
    let mut file = match made {
        Ok(file) => file,
        // The file is writable, but its directory is not.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && old.is_some() => {
            if let Some(mode) = asked {
                fs::set_permissions(path, Permissions::from_mode(mode))?;
            }
            return fs::write(path, bytes);
        }
        Err(error) => return Err(error),
    };
    file.write_all(bytes)?;
    if given.is_some() {
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
    }
    file.persist(&target).map(drop).map_err(|error| error.error)
}

/// Whether two paths lead to the same file, now or once it is created.
pub fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(_), Err(_)) => matches!((place(one), place(other)), (Some(one), Some(other)) if one == other),
        _ => false,
    }
}

/// The path at which a file would be created.
fn place(path: &Path) -> Option<PathBuf> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some(fs::canonicalize(directory.unwrap_or(Path::new("."))).ok()?.join(path.file_name()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn write_keeps_links_and_modes() {
        let scratch = tempfile::tempdir().unwrap();
        let (file, link) = (scratch.path().join("file"), scratch.path().join("link"));
        fs::write(&file, b"a longer old text").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
        write(Path::new("/dev/null"), b"new").unwrap();
        assert!(write(&scratch.path().join("none/file"), b"new").is_err());
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2);
    }

    #[test]
    fn failed_write_keeps_the_old_file() {
        let error = write(Path::new("/dev/full"), b"new").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn same_file_is_recognised_by_other_names() {
        let scratch = tempfile::tempdir().unwrap();
        let file = |name: &str| scratch.path().join(name);
        fs::write(file("a"), b"").unwrap();
        fs::write(file("b"), b"").unwrap();
        fs::hard_link(file("a"), file("c")).unwrap();
        assert!(is_same(&file("a"), &file("./a")) && is_same(&file("a"), &file("c")));
        assert!(!is_same(&file("a"), &file("b")) && !is_same(&file("a"), &file("none")));
        assert!(is_same(&file("none"), &file("./none")) && !is_same(&file("none"), &file("other")));
        assert!(!is_same(Path::new("/dev/null"), Path::new("/dev/null")), "nothing is lost there");
    }
}
