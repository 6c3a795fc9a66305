//! Temporary directories.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;

/// Bytes of memory that stay free for programs.
const SPARE: u64 = 3 << 30;

/// A directory that any user may enter and that is removed with everything in it.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Creates it in the directory for temporary files.
    pub fn new() -> Result<Self> {
        Self::within(&std::env::temp_dir())
    }

    /// Creates it in memory if `/dev/shm` has `needed` bytes free, otherwise in the directory for
    /// temporary files.
    pub fn in_memory(needed: u64) -> Result<Self> {
        let shm = Path::new("/dev/shm");
        if free_bytes(shm).is_ok_and(|free| free >= needed) && available_memory() >= needed + SPARE {
            Self::within(shm)
        } else {
            Self::new()
        }
    }

    fn within(parent: &Path) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix("ropewalk-test-")
            .tempdir_in(parent)
            .with_context(|| format!("making a directory in {}", parent.display()))?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes the directory `name` and returns its path.
    pub fn directory(&self, name: impl AsRef<Path>) -> Result<PathBuf> {
        let path = self.join(name);
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(path)
    }
}

/// Returns the bytes that an unprivileged user can still write on the file system of `path`.
pub fn free_bytes(path: &Path) -> Result<u64> {
    let info = rustix::fs::statvfs(path).with_context(|| format!("statvfs of {}", path.display()))?;
    Ok(info.f_bavail.saturating_mul(info.f_frsize))
}

fn available_memory() -> u64 {
    fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .map_or(0, |kib| kib << 10)
}
