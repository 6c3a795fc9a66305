//! Files of the kernel, read within limits.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// More than any of them has; a file system may be mounted where /proc is expected.
const MOST: u64 = 4 << 20;

/// The file system that is looked at: the host's, or a test's.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl Root {
    /// One that is laid out as `/` beneath `directory`.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// A path, `path` being relative to the root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }

    /// A file's text, as far as it is text.
    pub(crate) fn read(&self, path: &str) -> io::Result<String> {
        read(&self.path(path))
    }

    /// The same without the line's end; `None` where it cannot be read.
    pub(crate) fn word(&self, path: &str) -> Option<String> {
        self.read(path).ok().map(|text| text.trim().to_owned())
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, path: &str) -> Option<T> {
        self.word(path)?.parse().ok()
    }

    /// Names in a directory, in order; none where it cannot be read.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).take(10_000).collect();
        names.sort();
        names
    }
}

/// As [`Root::read`].
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
