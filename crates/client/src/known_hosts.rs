//! The file of accepted servers, with host, port and fingerprint on each line.
//!
//! [`known_servers`] lists the servers, and [`forget_server`] removes one.
//!
//! A line is `host:port SHA256:AB:CD:…`, or `host:port authority` if a trusted authority has signed
//! the certificate. `#` starts a comment. Writers hold a lock beside the file and replace it as a
//! whole, so readers need no lock.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ropewalk_files::OnDisk;
use ropewalk_tls::Fingerprint;
use rustix::fs::{FlockOperation, flock};

use crate::model::xdg::state_directory;

const AUTHORITY: &str = "authority";
/// The maximum size of the file in bytes.
const LONGEST: u64 = 4 << 20;

/// The reason why a server is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// The user accepted this certificate.
    Fingerprint(Fingerprint),
    /// A trusted authority signed its certificate.
    Authority,
}

/// The file of accepted servers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KnownHostsError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("there is no directory for what is known of servers: neither XDG_STATE_HOME nor HOME is set")]
    NoPlace,
    #[error(
        "{path}, line {line}: expected {name} and a fingerprint (SHA256:…) or \"authority\"; correct or remove the line"
    )]
    Line { path: PathBuf, line: usize, name: String },
}

/// Lists the accepted servers, by `host:port` as `ropewalk` prints it, with the reason for each.
/// Malformed lines are an error.
///
/// `state` has the meaning of [`crate::Options::state_directory`].
///
/// # Errors
/// There is no state directory, the file cannot be read, or a line of it is malformed.
pub fn known_servers(state: Option<&Path>) -> Result<Vec<(String, Known)>, KnownHostsError> {
    KnownHosts::of(state).ok_or(KnownHostsError::NoPlace)?.list()
}

/// Forgets a server by `host:port`, or by `host` with any port. Returns the names that were
/// removed.
///
/// `state` has the meaning of [`crate::Options::state_directory`].
///
/// # Errors
/// There is no state directory, or the file cannot be locked, read or replaced.
pub fn forget_server(state: Option<&Path>, name: &str) -> Result<Vec<String>, KnownHostsError> {
    KnownHosts::of(state).ok_or(KnownHostsError::NoPlace)?.forget(name)
}

pub(crate) struct KnownHosts {
    path: PathBuf,
}

impl KnownHosts {
    /// `None` if there is no state directory.
    pub(crate) fn of(given: Option<&Path>) -> Option<Self> {
        state_directory(given).map(|directory| Self { path: directory.join("known_hosts") })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The entry of `host:port`, with its line number.
    pub(crate) fn find(&self, name: &str) -> Result<Option<(usize, Known)>, KnownHostsError> {
        self.find_in(&self.read()?, name)
    }

    fn find_in(&self, text: &str, name: &str) -> Result<Option<(usize, Known)>, KnownHostsError> {
        let mut lines = text.lines().enumerate();
        match lines.find(|(_, line)| name_of(line) == Some(name)) {
            Some((n, line)) => Ok(Some((n + 1, self.parse(n + 1, name, line)?))),
            None => Ok(None),
        }
    }

    fn list(&self) -> Result<Vec<(String, Known)>, KnownHostsError> {
        let text = self.read()?;
        let named = text.lines().enumerate().filter_map(|(n, line)| Some((n + 1, name_of(line)?, line)));
        named.map(|(n, name, line)| Ok((name.to_owned(), self.parse(n, name, line)?))).collect()
    }

    fn parse(&self, number: usize, name: &str, line: &str) -> Result<Known, KnownHostsError> {
        let wrong = || KnownHostsError::Line { path: self.path.clone(), line: number, name: name.to_owned() };
        let mut words = line.split_whitespace().skip(1);
        match (words.next(), words.next().is_none_or(|word| word.starts_with('#'))) {
            (Some(AUTHORITY), true) => Ok(Known::Authority),
            (Some(word), true) => word.parse().map(Known::Fingerprint).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }

    /// Also removes malformed lines.
    fn forget(&self, wanted: &str) -> Result<Vec<String>, KnownHostsError> {
        let failed = |source| KnownHostsError::File { path: self.path.clone(), source };
        // If there is no file, neither it nor its lock is created.
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        let _lock = self.lock().map_err(failed)?;
        let text = self.read()?;
        let (mut kept, mut forgotten) = (String::new(), Vec::new());
        for line in text.lines() {
            match name_of(line).filter(|name| is_of(name, wanted)) {
                Some(name) => forgotten.push(name.to_owned()),
                None => kept.extend([line, "\n"]),
            }
        }
        if !forgotten.is_empty() {
            self.replace(kept.as_bytes()).map_err(failed)?;
        }
        Ok(forgotten)
    }

    /// Replaces the entry of `host:port` if it still is `was`. Otherwise another process has
    /// decided meanwhile; then nothing changes, and the result is `false`.
    pub(crate) fn remember(
        &self,
        name: &str,
        was: Option<Known>,
        known: Known,
    ) -> Result<bool, KnownHostsError> {
        let failed = |source| KnownHostsError::File { path: self.path.clone(), source };
        let _lock = self.lock().map_err(failed)?;
        let text = self.read()?;
        if self.find_in(&text, name)?.map(|(_, known)| known) != was {
            return Ok(false);
        }
        let others = text.lines().filter(|line| name_of(line) != Some(name));
        let mut text: String = others.flat_map(|line| [line, "\n"]).collect();
        match known {
            Known::Fingerprint(fingerprint) => text.push_str(&format!("{name} {fingerprint}\n")),
            Known::Authority => text.push_str(&format!("{name} {AUTHORITY}\n")),
        }
        self.replace(text.as_bytes()).map_err(failed)?;
        Ok(true)
    }

    fn read(&self) -> Result<String, KnownHostsError> {
        let failed = |source| KnownHostsError::File { path: self.path.clone(), source };
        match ropewalk_files::read_text(&self.path, LONGEST) {
            Ok(text) => Ok(text),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
            Err(e) => Err(failed(e)),
        }
    }

    /// Locks the file against other writers until the lock is dropped.
    fn lock(&self) -> io::Result<File> {
        if let Some(directory) = self.path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let path = self.path.with_file_name("known_hosts.lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Replaces the file; readers see the old content or the new one. A symbolic link is kept.
    fn replace(&self, content: &[u8]) -> io::Result<()> {
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        ropewalk_files::replace(&target, content, 0o600, OnDisk::Now)
    }
}

/// The server that a line names.
fn name_of(line: &str) -> Option<&str> {
    line.split_whitespace().next().filter(|name| !name.starts_with('#'))
}

/// Whether `host:port` matches the wanted name, with or without a port.
fn is_of(name: &str, wanted: &str) -> bool {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    name == wanted
        || host == wanted
        || host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) == Some(wanted)
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
        assert!(hosts.remember("a:21", None, Known::Fingerprint(one)).unwrap());
        assert!(hosts.remember("b:21", None, Known::Authority).unwrap());
        assert_eq!(hosts.find("a:21").unwrap(), Some((1, Known::Fingerprint(one))));
        assert_eq!(hosts.find("b:21").unwrap(), Some((2, Known::Authority)));
        assert_eq!(hosts.find("a:2").unwrap(), None);
        // A caller that has seen an outdated entry does not change it.
        assert!(!hosts.remember("a:21", None, Known::Fingerprint(other)).unwrap());
        assert!(!hosts.remember("a:21", Some(Known::Authority), Known::Fingerprint(other)).unwrap());
        assert_eq!(hosts.find("a:21").unwrap(), Some((1, Known::Fingerprint(one))));
        assert!(hosts.remember("a:21", Some(Known::Fingerprint(one)), Known::Fingerprint(other)).unwrap());
        assert_eq!(hosts.find("a:21").unwrap(), Some((2, Known::Fingerprint(other))));
        let names: Vec<_> = fs::read_dir(directory.path().join("state")).unwrap().collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn servers_are_listed_and_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let state = Some(directory.path());
        assert_eq!(known_servers(state).unwrap(), []);
        assert_eq!(forget_server(state, "a").unwrap(), Vec::<String>::new());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        let hosts = KnownHosts::of(state).unwrap();
        let one: Fingerprint = "01".repeat(32).parse().unwrap();
        fs::write(
            hosts.path(),
            format!("# mine\na:21 {one} # first\na:2811 authority\n[::1]:21 authority\nab:21 nonsense\n"),
        )
        .unwrap();
        assert!(known_servers(state).unwrap_err().to_string().contains("line 5"));
        // A malformed line can be forgotten.
        assert_eq!(forget_server(state, "ab:21").unwrap(), ["ab:21"]);
        let known = known_servers(state).unwrap();
        assert_eq!(known[0], ("a:21".to_owned(), Known::Fingerprint(one)));
        assert_eq!(known.len(), 3);
        assert_eq!(forget_server(state, "b").unwrap(), Vec::<String>::new());
        assert_eq!(forget_server(state, "a:21").unwrap(), ["a:21"]);
        assert_eq!(forget_server(state, "::1").unwrap(), ["[::1]:21"]);
        assert_eq!(forget_server(state, "a").unwrap(), ["a:2811"]);
        assert_eq!(fs::read_to_string(hosts.path()).unwrap(), "# mine\n");
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
