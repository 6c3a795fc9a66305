//! Disks of this host.

use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, bail};
use ropewalk_profiler::baseline::fio::{self, Work};
use ropewalk_profiler::baseline::{Limits, read_disk, write_disk};
use rustix::fs::OFlags;

/// Reads a file; returns bytes per second.
pub(super) fn read(path: &Path) -> anyhow::Result<f64> {
    // Opened without blocking: a pipe may have no writer.
    let waits = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(waits).open(path);
    let file = file.with_context(|| format!("{}", path.display()))?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        bail!(
            "{} is not a file by which its disk can be measured: name one of at least 1 MiB",
            path.display()
        );
    }
    match fio::disk(Work::Read, path, Limits { file: metadata.len(), ..Limits::default() })? {
        Some(rate) => Ok(rate),
        None => Ok(read_disk(file.as_fd(), Limits::default())?.bytes_per_second),
    }
}

/// Bytes per second into a nameless file beside `path`, which disappears with this process.
pub(super) fn write(path: &Path) -> anyhow::Result<f64> {
    let path = std::path::absolute(path)?;
    let directory = if path.is_dir() { &path } else { path.parent().context("it has no directory")? };
    let file = tempfile::tempfile_in(directory).with_context(|| format!("{}", directory.display()))?;
    let mut limits = Limits::default();
    let space = rustix::fs::fstatvfs(&file).map(|space| space.f_bavail.saturating_mul(space.f_frsize));
    // Other programs must not run out of space meanwhile.
    limits.file = limits.file.min(space.unwrap_or(u64::MAX) / 10);
    let name = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    match fio::disk(Work::Write, Path::new(&name), limits)? {
        Some(rate) => Ok(rate),
        None => Ok(write_disk(file.as_fd(), limits)?.bytes_per_second),
    }
}

/// The nearest existing ancestor of a path.
pub(super) fn directory_of(path: &Path) -> &Path {
    path.ancestors().find(|path| fs::metadata(path).is_ok()).unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn write_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new");
        assert!(write(&path).unwrap() > 1e4);
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "something was left behind");
        assert!(read(&path).unwrap_err().to_string().contains("new"));
        assert_eq!(directory_of(&path.join("a/b")), directory.path());
    }

    #[test]
    fn read_of_a_special_file_fails() {
        use rustix::fs::{FileType, Mode};
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        for path in [pipe.as_path(), directory.path(), Path::new("/dev/zero")] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains("is not a file by which its disk can be measured"), "{error}");
        }
    }
}
