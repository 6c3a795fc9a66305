//! Creates the files that exist before any program runs. They are in memory, in the lab's view of
//! the file system, and must be below the directory of their host. Their random content depends
//! only on the scenario's seed.

use super::{Context, RunError};
use crate::{
    netns::Base,
    scenario::{File, FileKind},
};
use rustix::fs::{CWD, FileType, Mode};
use std::{
    fs::{self, OpenOptions, Permissions},
    io::{self, BufWriter, Write},
    os::unix::fs::PermissionsExt,
    path::{Component, Path},
};

/// Writes the scenario's files, in the lab's view of the file system.
pub(super) fn write(base: &Base, context: &Context) -> Result<(), RunError> {
    for (index, file) in context.scenario.files.iter().enumerate() {
        let path = context.fill(&file.path, &file.host)?;
        if !is_inside(&path, &file.host) {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "this is not below {dir} or {disk}");
            return Err(RunError::Build { what: format!("write {path} for {}", file.host), error });
        }
        let text = file.text.as_ref().map(|text| context.fill(text, &file.host)).transpose()?;
        let mut random = fastrand::Rng::with_seed(context.scenario.seed.wrapping_add(index as u64) << 8);
        base.with_files(|| write_one(file, Path::new(&path), text.as_deref(), &mut random))
            .map_err(|error| RunError::Build { what: format!("write {path} for {}", file.host), error })?;
    }
    Ok(())
}

/// Whether a path, with variables filled in, belongs to the host. The rest of the file system
/// belongs to this machine.
fn is_inside(path: &str, host: &str) -> bool {
    let path = Path::new(path);
    path.starts_with(Context::dir(host)) && !path.components().any(|part| part == Component::ParentDir)
}

fn write_one(file: &File, path: &Path, text: Option<&str>, random: &mut fastrand::Rng) -> io::Result<()> {
    let mode = file.mode.as_ref().and_then(|mode| u32::from_str_radix(mode, 8).ok()).unwrap_or(0o644);
    let size = file.size.map_or(0, |size| size.0);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut write = |path: &Path| match (file.kind, text) {
        (Some(FileKind::Null), _) => null(path),
        (Some(FileKind::Hole), _) => {
            let to = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
            to.set_len(size)?;
            to.set_permissions(Permissions::from_mode(mode))
        }
        (None, Some(text)) => put(path, mode, |to| to.write_all(text.as_bytes())),
        (None, None) => put(path, mode, |to| fill(to, size, random)),
    };
    if let Some(parent) = path.parent().filter(|_| file.kind.is_none()) {
        check_room(parent, size.saturating_mul(file.count.unwrap_or(1).into()))?;
    }
    let Some(count) = file.count else { return write(path) };
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o777))?;
    (0..count).try_for_each(|number| write(&path.join(number.to_string())))
}

/// Creates a device like `/dev/null`, to which every user in the lab may write.
fn null(path: &Path) -> io::Result<()> {
    rustix::fs::mknodat(
        CWD,
        path,
        FileType::CharacterDevice,
        Mode::from_raw_mode(0o666),
        rustix::fs::makedev(1, 3),
    )?;
    // mknod(2) applied the umask of the process.
    fs::set_permissions(path, Permissions::from_mode(0o666))
}

/// Checks the free space first. Files are in memory, and the memory of this machine should not be
/// filled before writing fails.
fn check_room(directory: &Path, size: u64) -> io::Result<()> {
    let room = rustix::fs::statvfs(directory)?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    // Some file systems do not report their size.
    if room.f_blocks == 0 || size <= free {
        return Ok(());
    }
    let message = format!("it needs {size} bytes, and there are {free} in memory for the lab's files");
    Err(io::Error::new(io::ErrorKind::StorageFull, message))
}

fn put(path: &Path, mode: u32, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut buffered = BufWriter::with_capacity(1 << 20, file);
    write(&mut buffered)?;
    buffered
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .set_permissions(Permissions::from_mode(mode))
}

/// Writes random bytes, which no program can compress.
fn fill(to: &mut dyn Write, size: u64, random: &mut fastrand::Rng) -> io::Result<()> {
    let mut block = vec![0; 64 << 10];
    let mut left = size;
    while left > 0 {
        random.fill(&mut block);
        let length = left.min(block.len() as u64) as usize;
        to.write_all(&block[..length])?;
        left -= length as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_inside;

    #[test]
    fn is_inside_with_paths_out_of_the_host_is_false() {
        assert!(is_inside("/ropewalk-lab/left/disk/a..b/c", "left"));
        for outside in ["/ropewalk-lab/left/disk/../../../etc/x", "/ropewalk-lab/leftover", "/etc/x", "x"] {
            assert!(!is_inside(outside, "left"), "{outside}");
        }
    }
}
