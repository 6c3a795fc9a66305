use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bstr::ByteSlice;
use clap::Args;
use ropewalk_client::Entry;

use crate::client::{Client, Place, Sessions, parse_targets};
use crate::exit::{Exit, usage};
use crate::settings::ConnectionFlags;

#[derive(Debug, Args)]
pub struct Rm {
    /// Files and directories: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// Remove directories with everything beneath them
    #[arg(short, long)]
    recursive: bool,
    /// Ignore targets that do not exist
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Rm {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let exit = client.each(&targets, |target| {
            let result = self.remove(target.place()?, &mut sessions);
            match result {
                Err(error) if self.force && Exit::of_error(&error) == Exit::NotFound => Ok(()),
                other => other,
            }
        })?;
        sessions.quit();
        Ok(exit)
    }

    fn remove(&self, place: Place<'_>, sessions: &mut Sessions<'_>) -> anyhow::Result<()> {
        let path = match place {
            Place::Local(path) => path.as_os_str().as_bytes(),
            Place::Remote(url) => url.path.as_bytes(),
        };
        if is_whole(path) {
            return Err(usage(
                "expected something to remove: not the root, nor a path that ends in `.` or `..`",
            ));
        }
        match place {
            Place::Local(path) => {
                // Remove the link itself, never its target: a trailing slash would follow it.
                let path = without_slashes(path);
                if !fs::symlink_metadata(path)?.is_dir() {
                    fs::remove_file(path)?;
                } else if self.recursive {
                    fs::remove_dir_all(path)?;
                } else {
                    return Err(usage("it is a directory; use -r"));
                }
            }
            Place::Remote(url) => {
                let removed = sessions.with(url, |remote, path| {
                    // A link to a directory is removed as a link.
                    let directory = |entry: Entry| entry.is_directory() && entry.target.is_none();
                    if !self.recursive && remote.stat(path).is_ok_and(directory) {
                        return Ok(false);
                    }
                    remote.remove(path, self.recursive).map(|()| true)
                })?;
                if !removed {
                    return Err(usage("it is a directory; use -r"));
                }
            }
        }
        Ok(())
    }
}

/// Whether a path looks like the result of an empty shell variable: the root, or a directory by `.`
/// or `..`.
fn is_whole(path: &[u8]) -> bool {
    let path = path.trim_end_with(|c| c == '/');
    matches!(path.rsplit_str("/").next(), None | Some(b"" | b"." | b".."))
}

fn without_slashes(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    match bytes.trim_end_with(|c| c == '/') {
        [] => path,
        trimmed => Path::new(OsStr::from_bytes(trimmed)),
    }
}

#[cfg(test)]
mod tests {
    use super::is_whole;

    #[test]
    fn rm_refuses_the_root_and_dot_directories() {
        for path in ["/", "//", "", ".", "..", "./", "/..", "a/.", "a/../", "/home/.//"] {
            assert!(is_whole(path.as_bytes()), "{path}");
        }
        for path in ["a", "/a", "a/", "...", "/a/.b", "..a/", "./a"] {
            assert!(!is_whole(path.as_bytes()), "{path}");
        }
    }
}
