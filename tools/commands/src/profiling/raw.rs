//! Files of the measuring tools, kept beside the profile.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use ropewalk_profiler::profile::{Profile, Role};
use ropewalk_protocol::profiling::is_raw_name;
use rustix::fs::{Access, access};

use crate::exit::usage;

/// Checks the outputs before anything is moved in vain.
///
/// # Errors
/// The results could not be written into this directory, or the profile to this file.
pub(crate) fn can_write(directory: Option<&Path>, profile: Option<&Path>) -> anyhow::Result<()> {
    if let Some(directory) = directory {
        make(directory)?;
    }
    let Some(path) = profile else { return Ok(()) };
    if path.is_dir() {
        return Err(usage(format!("--output {}: that is a directory, expected a file", path.display())));
    }
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    // An existing file may be writable in a directory that is not.
    let place = if path.exists() { path } else { directory.unwrap_or(Path::new(".")) };
    access(place, Access::WRITE_OK).map_err(|error| {
        let context = format!("the profile cannot be written to {}", path.display());
        anyhow::Error::new(io::Error::from(error)).context(context)
    })
}

/// Makes the directory if it is missing.
fn make(directory: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("--raw {}", directory.display()))
}

/// Writes the files as `ROLE.NAME`, or `KIND.ROLE.NAME`, to this directory, which is made if it is
/// missing.
pub(crate) fn write(directory: &Path, kind: Option<&str>, profile: &Profile) -> anyhow::Result<()> {
    let context = || format!("{}", directory.display());
    make(directory)?;
    for host in &profile.hosts {
        let role = match host.role {
            Role::Source => "source",
            Role::Destination => "destination",
            Role::Both => "both",
        };
        // The names may come from another host.
        for file in host.raw.iter().filter(|file| is_raw_name(file.name.as_bytes())) {
            let parts = kind.into_iter().chain([role, file.name.as_str()]);
            let name = parts.collect::<Vec<_>>().join(".");
            fs::write(directory.join(&name), &file.bytes).with_context(|| format!("{}/{name}", context()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_profiler::profile::{HostProfile, RawFile};

    use super::*;

    #[test]
    fn unwritable_outputs_are_refused_in_advance() {
        let directory = tempfile::tempdir().unwrap();
        let (file, missing) = (directory.path().join("file"), directory.path().join("no/file"));
        can_write(Some(&directory.path().join("raw")), Some(&file)).unwrap();
        assert!(directory.path().join("raw").is_dir() && !file.exists());
        can_write(None, Some(Path::new("x.json"))).unwrap();
        let error = can_write(None, Some(&missing)).unwrap_err().to_string();
        assert!(error.contains("cannot be written to") && error.contains("no/file"), "{error}");
        assert!(can_write(None, Some(directory.path())).unwrap_err().to_string().contains("is a directory"));
        fs::write(&file, "").unwrap();
        can_write(None, Some(&file)).unwrap();
        assert!(can_write(Some(&file), None).unwrap_err().to_string().starts_with("--raw"));
    }

    #[test]
    fn names_outside_of_the_directory_are_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("raw");
        let file = |name: &str| RawFile { name: name.to_owned(), bytes: b"x".to_vec() };
        let raw = vec![file("sar"), file("../escaped"), file("/etc/x"), file("")];
        let profile =
            Profile { hosts: vec![HostProfile { raw, ..HostProfile::default() }], ..Profile::default() };
        write(&below, Some("mem-mem"), &profile).unwrap();
        write(&below, None, &profile).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(&below).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["mem-mem.source.sar", "source.sar"]);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
