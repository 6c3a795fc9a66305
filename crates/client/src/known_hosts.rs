//! Servers that were accepted: a line with host, port and fingerprint each.
//!
//! `host:port SHA256:AB:CD:…`, or `host:port authority` where a trusted authority has vouched. `#` begins a comment.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ropewalk_tls::Fingerprint;
use rustix::fs::{FlockOperation, flock};

use crate::state::state_directory;

const AUTHORITY: &str = "authority";
/// Bytes of the file, at most.
const LONGEST: u64 = 4 << 20;

/// What is known of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Fingerprint(Fingerprint),
    /// A trusted authority has vouched for it.
    Authority,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum KnownHostsError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error(
        "{path}, line {line}: expected {name} and a fingerprint (SHA256:…) or \"authority\"; correct or remove the line"
    )]
    Line { path: PathBuf, line: usize, name: String },
}

pub(crate) struct KnownHosts {
    path: PathBuf,
}

impl KnownHosts {
    /// `None`: there is no place to remember anything.
    pub(crate) fn of(given: Option<&Path>) -> Option<Self> {
        state_directory(given).map(|directory| Self { path: directory.join("known_hosts") })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What is known of `host:port`, and in which line.
    pub(crate) fn find(&self, name: &str) -> Result<Option<(usize, Known)>, KnownHostsError> {
        let text = self.read()?;
        for (n, line) in text.lines().enumerate() {
            let mut words = line.split_whitespace();
            if words.next() != Some(name) {
                continue;
            }
            let wrong =
                || KnownHostsError::Line { path: self.path.clone(), line: n + 1, name: name.to_owned() };
            let known = match (words.next(), words.next().is_none_or(|word| word.starts_with('#'))) {
                (Some(AUTHORITY), true) => Known::Authority,
                (Some(word), true) => Known::Fingerprint(word.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            };
            return Ok(Some((n + 1, known)));
        }
        Ok(None)
    }

    /// Replaces what was known of `host:port`.
    pub(crate) fn remember(&self, name: &str, known: Known) -> Result<(), KnownHostsError> {
        let failed = |source| KnownHostsError::File { path: self.path.clone(), source };
        let _lock = self.lock().map_err(failed)?;
        let mut text: String = self
            .read()?
            .lines()
            .filter(|line| line.split_whitespace().next() != Some(name))
            .fold(String::new(), |mut text, line| {
                text.push_str(line);
                text.push('\n');
                text
            });
        match known {
            Known::Fingerprint(fingerprint) => text.push_str(&format!("{name} {fingerprint}\n")),
            Known::Authority => text.push_str(&format!("{name} {AUTHORITY}\n")),
        }
        self.replace(text.as_bytes()).map_err(failed)
    }

    fn read(&self) -> Result<String, KnownHostsError> {
        let failed = |source| KnownHostsError::File { path: self.path.clone(), source };
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() > LONGEST => {
                Err(failed(io::Error::other("it is longer than 4 MiB")))
            }
            Ok(_) => fs::read_to_string(&self.path).map_err(failed),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
            Err(e) => Err(failed(e)),
        }
    }

    /// Nobody else writes while this is held.
    fn lock(&self) -> io::Result<File> {
        if let Some(directory) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let path = self.path.with_file_name("known_hosts.lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Readers see the old file or the new one. A symbolic link stays one.
    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let beside = target.with_file_name("known_hosts.new");
        // What a crash has left there is in nobody's use: we have the lock.
        match fs::remove_file(&beside) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&beside, &target)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn servers_are_remembered_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::of(Some(&directory.path().join("state"))).unwrap();
        let (one, other): (Fingerprint, Fingerprint) =
            ("01".repeat(32).parse().unwrap(), "02".repeat(32).parse().unwrap());
        assert_eq!(hosts.find("a:21").unwrap(), None);
        hosts.remember("a:21", Known::Fingerprint(one)).unwrap();
        hosts.remember("b:21", Known::Authority).unwrap();
        assert_eq!(hosts.find("a:21").unwrap(), Some((1, Known::Fingerprint(one))));
        assert_eq!(hosts.find("b:21").unwrap(), Some((2, Known::Authority)));
        assert_eq!(hosts.find("a:2").unwrap(), None);
        hosts.remember("a:21", Known::Fingerprint(other)).unwrap();
        assert_eq!(hosts.find("a:21").unwrap(), Some((2, Known::Fingerprint(other))));
        let names: Vec<_> = fs::read_dir(directory.path().join("state")).unwrap().collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn a_line_that_is_wrong_is_no_line_that_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::of(Some(directory.path())).unwrap();
        let write = |text: &str| fs::write(hosts.path(), text).unwrap();
        write("# comment\n\na:21 authority # by hand\n");
        assert_eq!(hosts.find("a:21").unwrap(), Some((3, Known::Authority)));
        for wrong in ["a:21", "a:21 SHA256:00", "a:21 authority more", "a:21 #"] {
            write(wrong);
            assert!(hosts.find("a:21").unwrap_err().to_string().contains("line 1"), "{wrong}");
            assert_eq!(hosts.find("b:21").unwrap(), None);
        }
    }
}
