//! Files that somebody names by path: certificates, keys, lists, maps, tokens; and small ones that are written as a whole.
//!
//! All of the former are read here, in one way. A pipe without a writer, or a device, would keep a log-in or a whole server waiting
//! when it is opened; one that never ends would take all memory. So nothing is waited for, only regular files are read (a
//! symbolic link to one is one), and there is a bound for each.

#![forbid(unsafe_code)]

mod whole;

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat};
use zeroize::Zeroizing;

pub use whole::{BESIDE, OnDisk, create, replace, replace_with};

/// Inside of an [`io::Error`] of kind [`ErrorKind::InvalidInput`]: what was named is something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is {found}; expected a regular file")]
pub struct NotRegular {
    pub found: &'static str,
}

impl NotRegular {
    /// Whether this is why.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// Opens a regular file for reading. Its metadata are best asked of what this gives: the name may mean another one by then.
///
/// # Errors
/// As for any file, and [`NotRegular`].
pub fn open(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::empty())
}

/// The same for directories that anybody may write into: a symbolic link is not followed.
///
/// # Errors
/// As for [`open`]; for a link that of `ELOOP`.
pub fn open_no_link(path: &Path) -> io::Result<File> {
    open_as(path, OFlags::NOFOLLOW)
}

fn open_as(path: &Path, flags: OFlags) -> io::Result<File> {
    // A pipe without a writer would keep us waiting, and a terminal might become ours.
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

/// The whole content of a file that was opened, `most` bytes at most. No part of it stays in other memory.
///
/// # Errors
/// It is longer, or cannot be read.
pub fn content(file: &File, most: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let long =
        || io::Error::new(ErrorKind::FileTooLarge, format!("it is too long; expected at most {most} bytes"));
    let length = file.metadata()?.len();
    if length > most {
        return Err(long());
    }
    let room = usize::try_from(length).map_err(|_| long())?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room.saturating_add(1)));
    // It may grow meanwhile.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(long());
    }
    Ok(bytes)
}

/// [`open`], and its [`content`].
///
/// # Errors
/// As theirs.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    content(&open(path)?, most).map(|mut bytes| std::mem::take(&mut *bytes))
}

/// The same as text.
///
/// # Errors
/// As [`read`]; it is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    text(read(path, most)?)
}

/// The [`content`] of a file that was opened, as text.
///
/// # Errors
/// As [`content`]; it is no UTF-8.
pub fn content_text(file: &File, most: u64) -> io::Result<String> {
    text(std::mem::take(&mut *content(file, most)?))
}

/// The text of a map of people to accounts: one that anybody can write says nothing.
///
/// # Errors
/// As [`read`]; anybody can change it.
pub fn read_map(path: &Path, most: u64) -> io::Result<String> {
    let file = open(path)?;
    let mode = file.metadata()?.mode();
    if mode & 0o002 != 0 {
        let text = format!("anybody can change it (mode {:04o}); `chmod o-w` mends it", mode & 0o7777);
        return Err(io::Error::other(text));
    }
    // A name in a comment may be written in any way.
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
    fn regular_files_and_links_to_them() {
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
    fn maps_that_anybody_can_write() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("map");
        std::fs::write(&file, b"a b # \xff\n").unwrap();
        assert_eq!(read_map(&file, 100).unwrap(), "a b # \u{fffd}\n");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o646)).unwrap();
        let refused = read_map(&file, 100).unwrap_err().to_string();
        assert!(refused.contains("mode 0646"), "{refused}");
    }

    /// None of them is waited for.
    #[test]
    fn what_is_no_file_is_refused() {
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

    /// What the kernel gives without telling its length is bounded all the same.
    #[test]
    fn files_without_a_length() {
        assert!(read(Path::new("/proc/self/status"), 10).is_err());
        assert!(read_text(Path::new("/proc/self/status"), 1 << 20).unwrap().contains("Pid:"));
    }
}
