//! Reads files of the kernel within limits.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Largest size that is read. None of these files is as large, but another file system may be
/// mounted where /proc is expected.
const MOST: u64 = 4 << 20;

/// The root of the file system that is read: the host's, or a test's.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl Root {
    /// A root whose contents lie beneath `directory` as they would beneath `/`.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// The full path of `path`, which is relative to the root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// The text of a file. Invalid UTF-8 is replaced.
    pub(crate) fn read(&self, path: &str) -> io::Result<String> {
        read(&self.path(path))
    }

    /// The text of a file without surrounding white space; `None` if the file cannot be read.
    pub(crate) fn word(&self, path: &str) -> Option<String> {
        self.read(path).ok().map(|text| text.trim().to_owned())
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.word(path)?.parse().ok()
    }

    /// The sorted names in a directory; empty if it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).take(10_000).collect();
        names.sort();
        names
    }
}

/// Reads a file as [`Root::read`] does.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
