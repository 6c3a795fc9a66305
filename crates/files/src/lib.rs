//! Reads files whose paths are configured (certificates, keys, lists, maps, tokens), and writes
//! small files atomically.
//!
//! Opening a pipe without a writer, or a device, would block a log-in or the whole server, and a
//! file without an end would exhaust the memory. The functions for reading therefore never block,
//! accept only regular files (also through a symbolic link), and have a limit of length.

#![forbid(unsafe_code)]

mod whole;

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use zeroize::Zeroizing;

pub use whole::{BESIDE, OnDisk, create, replace, replace_with};

/// The reason in an [`io::Error`] of kind [`ErrorKind::InvalidInput`]: the path does not refer to a
/// regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is {found}; expected a regular file")]
pub struct NotRegular {
    pub found: &'static str,
}

impl NotRegular {
    /// Whether this is the reason for `error`.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// Opens a regular file for reading. Callers should query the metadata of the returned file,
/// because the path may refer to another file later.
///
/// # Errors
/// The errors of opening any file, and [`NotRegular`].
pub fn open(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::empty())
}

/// Like [`open`], but does not follow a symbolic link at the end of the path. This is for
/// directories in which every user can create files.
///
/// # Errors
/// The errors of [`open`]; for a link `ELOOP`.
pub fn open_no_link(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::NOFOLLOW)
}

fn open_as(path: &Path, flags: OFlags) -> io::Result<File> {
    // Without `NONBLOCK`, opening a pipe without a writer would block; without `NOCTTY`, a terminal
    // could become the controlling terminal.
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let found = match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => return Ok(File::from(file)),
        FileType::Directory => "a directory",
        FileType::Fifo => "a pipe",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "a special file",
    };
    Err(io::Error::new(ErrorKind::InvalidInput, NotRegular { found }))
}

/// Reads the whole content of an open file, at most `most` bytes. No other copy of the content
/// stays in memory.
///
/// # Errors
/// The file is longer than `most`, or it cannot be read.
pub fn content(file: &File, most: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let long =
        || io::Error::new(ErrorKind::FileTooLarge, format!("it is too long; expected at most {most} bytes"));
    let length = file.metadata()?.len();
    if length > most {
        return Err(long());
    }
    let room = usize::try_from(length).map_err(|_| long())?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room.saturating_add(1)));
    // The file may grow during the read.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(long());
    }
    Ok(bytes)
}

/// Opens a file and reads its [`content`].
///
/// # Errors
/// The errors of [`open`] and [`content`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    content(&open(path)?, most).map(|mut bytes| std::mem::take(&mut *bytes))
}

/// Opens a file and reads its content as text.
///
/// # Errors
/// The errors of [`read`]; or the content is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text(read(path, most)?)
}

/// Reads the [`content`] of an open file as text.
///
/// # Errors
/// The errors of [`content`]; or the content is not UTF-8.
pub fn content_text(file: &File, most: u64) -> io::Result<String> {
    text(std::mem::take(&mut *content(file, most)?))
}

/// Reads the text of a map from users to accounts. A map that every user can write is refused.
///
/// # Errors
/// The errors of [`read`]; or every user can change the file.
pub fn read_map(path: &Path, most: u64) -> io::Result<String> {
    let file = open(path)?;
    let mode = file.metadata()?.mode();
    if mode & 0o002 != 0 {
        let text = format!("anybody can change it (mode {:04o}); `chmod o-w` mends it", mode & 0o7777);
        return Err(io::Error::other(text));
    }
    // A name in a comment may be in any encoding.
    content(&file, most).map(|text| String::from_utf8_lossy(&text).into_owned())
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is no UTF-8 text"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn read_accepts_regular_files_and_links() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&file, "12345").unwrap();
        symlink("file", &link).unwrap();
        assert_eq!(read(&link, 5).unwrap(), b"12345");
        assert_eq!(read_text(&file, 100).unwrap(), "12345");
        assert_eq!(content_text(&open_no_link(&file).unwrap(), 5).unwrap(), "12345");
        assert!(open_no_link(&link).is_err());
        let long = read(&file, 4).unwrap_err();
        assert!(long.to_string().contains("expected at most 4 bytes"), "{long}");
        assert_eq!(open(&directory.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
        std::fs::write(&file, [0xff]).unwrap();
        assert_eq!(read_text(&file, 100).unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn read_map_of_world_writable_file_fails() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("map");
        std::fs::write(&file, b"a b # \xff\n").unwrap();
        assert_eq!(read_map(&file, 100).unwrap(), "a b # \u{fffd}\n");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o646)).unwrap();
        let refused = read_map(&file, 100).unwrap_err().to_string();
        assert!(refused.contains("mode 0646"), "{refused}");
    }

    /// None of these files blocks the caller.
    #[test]
    fn open_of_other_than_regular_file_fails() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, found) in [
            (pipe.as_path(), "a pipe"),
            (Path::new("/dev/zero"), "a device"),
            (directory.path(), "a directory"),
        ] {
            let error = read(path, 100).unwrap_err();
            assert!(NotRegular::is_in(&error), "{error}");
            assert_eq!(error.to_string(), format!("it is {found}; expected a regular file"));
        }
        assert!(open(&socket).is_err());
    }

    /// Files of the kernel that report no length are limited, too.
    #[test]
    fn read_of_file_without_length_is_limited() {
        assert!(read(Path::new("/proc/self/status"), 10).is_err());
        assert!(read_text(Path::new("/proc/self/status"), 1 << 20).unwrap().contains("Pid:"));
    }
}
