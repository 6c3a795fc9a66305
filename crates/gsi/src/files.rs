//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes `content` under `path` with this mode: to a new file beside it, which then takes its name. Nobody with other
/// rights can have opened it before, and no link is followed.
pub(crate) fn write(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    for attempt in 0..16u32 {
        let mut beside = OsString::from(".");
        beside.push(name);
        beside.push(format!(".{}.{attempt}", std::process::id()));
        let beside = path.with_file_name(beside);
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(e),
        };
        let written = file
            .set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))
            .and_then(|()| file.write_all(content))
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&beside, path));
        if written.is_err() {
            // What is left over holds a part of the content.
            let _ = std::fs::remove_file(&beside);
        }
        return written;
    }
    Err(ErrorKind::AlreadyExists.into())
}
