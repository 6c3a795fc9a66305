//! Creates and compares directory trees, and detects which files a second run writes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::files;

/// The entries of a tree by path relative to its root.
type Entries = BTreeMap<PathBuf, Entry>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    is_directory: bool,
    size: u64,
    /// Inode and time of modification, which change whenever the file is replaced or written.
    stamp: (u64, i64, i64),
}

/// Creates a small tree of several levels with an empty file and, if `empty_directory`, an empty
/// directory.
pub fn make(root: &Path, empty_directory: bool) -> Result<()> {
    for (seed, (name, size)) in [
        ("top", 1000),
        ("empty", 0),
        ("a/one", 1),
        ("a/block", 262_144),
        ("a/b/c/deep", 70_001),
        ("a/b/more", 3_000_000),
        ("z/last", 17),
    ]
    .into_iter()
    .enumerate()
    {
        files::write_random(&root.join(name), size, seed as u64 + 100)?;
    }
    if empty_directory {
        fs::create_dir(root.join("hollow"))?;
    }
    Ok(())
}

/// Creates `count` files of `size` bytes in directories of 100 files.
pub fn make_many(root: &Path, count: usize, size: u64) -> Result<()> {
    for number in 0..count {
        let directory = root.join(format!("d{:03}", number / 100));
        if number % 100 == 0 {
            fs::create_dir_all(&directory)?;
        }
        files::write_random(&directory.join(format!("f{number:05}")), size, number as u64)?;
    }
    Ok(())
}

/// Returns legal Linux file names that programs often handle incorrectly.
pub fn odd_names() -> Vec<OsString> {
    [
        "sp ace",
        " lead",
        "trail ",
        "qu'o\"te",
        "per%25cent",
        "100%",
        "semi;colon",
        "#hash?q",
        "back\\slash",
        "a&b",
    ]
    .iter()
    .chain(&["+plus", "~tilde", "co:lon", "st*r", "[brackets]", "-dash", "eq=ual", "tab\there", "{braces}"])
    .map(OsString::from)
    .collect()
}

/// Returns names with bytes above 0x7f; the last two are not UTF-8.
pub fn foreign_names() -> Vec<OsString> {
    let bytes: [&[u8]; 4] = ["na\u{ef}ve".as_bytes(), "\u{7e69}".as_bytes(), b"latin-\xe9", b"n\xff\xfe"];
    bytes.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect()
}

/// Returns a name of 255 bytes, the longest that Linux allows.
pub fn long_name() -> OsString {
    OsString::from_vec(vec![b'n'; 255])
}

/// Creates `names` as files in `directory`, each with different content.
pub fn make_named(directory: &Path, names: &[OsString]) -> Result<()> {
    for (seed, name) in names.iter().enumerate() {
        files::write_random(&directory.join(name), 100 + seed as u64, seed as u64 + 500)?;
    }
    Ok(())
}

fn entries(root: &Path) -> Result<Entries> {
    let mut found = Entries::new();
    let mut open = vec![PathBuf::new()];
    while let Some(directory) = open.pop() {
        let path = root.join(&directory);
        for entry in fs::read_dir(&path).with_context(|| format!("listing {}", path.display()))? {
            let entry = entry?;
            let name = directory.join(entry.file_name());
            let about = fs::metadata(entry.path())?;
            if about.is_dir() {
                open.push(name.clone());
            }
            let stamp = (about.ino(), about.mtime(), about.mtime_nsec());
            let size = if about.is_dir() { 0 } else { about.len() };
            found.insert(name, Entry { is_directory: about.is_dir(), size, stamp });
        }
    }
    Ok(found)
}

/// Fails with the difference unless both trees have the same names and the same bytes.
pub fn ensure_same(left: &Path, right: &Path) -> Result<()> {
    let (one, two) = (entries(left)?, entries(right)?);
    for (name, entry) in &one {
        let other = two.get(name).with_context(|| format!("{name:?} is not in {}", right.display()))?;
        ensure!(entry.is_directory == other.is_directory, "{name:?} is a directory on one side only");
        if !entry.is_directory {
            files::ensure_same(&left.join(name), &right.join(name))?;
        }
    }
    for name in two.keys() {
        ensure!(one.contains_key(name), "{name:?} is in {} and should not be", right.display());
    }
    Ok(())
}

/// The state of a tree, for detecting which files are written later.
#[derive(Debug)]
pub struct Snapshot(Entries);

impl Snapshot {
    pub fn take(root: &Path) -> Result<Self> {
        Ok(Self(entries(root)?))
    }

    /// Returns the files that were created or written since the snapshot.
    pub fn written_since(&self, root: &Path) -> Result<Vec<PathBuf>> {
        let now = entries(root)?;
        Ok(now
            .into_iter()
            .filter(|(name, entry)| !entry.is_directory && self.0.get(name) != Some(entry))
            .map(|(name, _)| name)
            .collect())
    }
}
