//! sshftp://: the control connection is the standard input and output of a server that ssh starts on its host, as GCT's
//! client does it. Who may log in and whose files are reached is ssh's matter.

mod address;
mod command;
mod process;
mod shared;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;

use bstr::BString;
use process::Process;
use ropewalk_protocol::url::Url;
use shared::Holder;
pub(crate) use shared::Shared;
use tempfile::TempDir;

use crate::options::TerminalHold;
use crate::{FailureKind, Options};

/// Why there is no session where ssh itself has no complaint.
pub(crate) const NO_GREETING: &str = "what runs on the server ended without a greeting: it is no FTP server";

/// How sshftp:// connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SshOptions {
    /// The program with its arguments; none: `ssh`. Its file name `ssh` says that it is OpenSSH.
    pub program: Vec<OsString>,
    /// What the user's shell on the server's host runs; `None`: what `GLOBUS_REMOTE_SSHFTP` says, or the script `sshftp` of the
    /// user or the host, or `ropewalk serve --ssh`.
    pub remote_command: Option<String>,
    /// It may ask the person at the terminal for passwords, and whether an unknown host is the right one.
    pub interactive: bool,
    /// Control connections to one server share a log-in (ControlMaster); otherwise each logs in by itself.
    pub share: bool,
}

impl Default for SshOptions {
    fn default() -> Self {
        Self { program: Vec::new(), remote_command: None, interactive: false, share: true }
    }
}

/// A connection through ssh. Its process has ended when this is dropped.
pub(crate) struct Tunnel {
    stream: UnixStream,
    process: Process,
    /// Whose log-in this one shares; dropped after its own process.
    _holder: Option<Arc<Holder>>,
}

impl Tunnel {
    /// Nothing more will be written.
    pub(crate) fn end(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer);
        if matches!(read, Ok(1..)) {
            self.process.establish();
        }
        read
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    /// Why it has ended.
    pub(crate) fn last_words(&self) -> Option<String> {
        self.process.last_words()
    }
}

/// Starts ssh. Ours is the other end of its standard input and output. `asks`: dropped when it asks nothing any more.
///
/// Takes the command, which has the other end open as long as it is there: the end of ssh would not be seen.
fn start(
    mut command: Command,
    name: &str,
    directory: Option<TempDir>,
    asks: Option<TerminalHold>,
) -> io::Result<(UnixStream, Process)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    command.stdin(OwnedFd::from(theirs.try_clone()?)).stdout(OwnedFd::from(theirs));
    Ok((ours, Process::start(&mut command, name, directory, asks)?))
}

impl AsFd for Tunnel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The name for USER: ssh has said already who this is. As GCT's client has it.
pub(crate) fn ftp_user(url: &Url, options: &Options) -> BString {
    let named = url.user.clone().or_else(|| options.user.as_deref().map(BString::from));
    let ours = || ["LOGNAME", "USER"].iter().find_map(std::env::var_os).filter(|name| !name.is_empty());
    named.or_else(|| ours().map(|name| name.as_bytes().into())).unwrap_or_else(|| "anonymous".into())
}

/// What kind of failure ssh's words tell of.
pub(crate) fn kind(reason: &str) -> FailureKind {
    let refusals = ["Permission denied", "Host key verification failed", "Too many authentication failures"];
    if refusals.iter().any(|words| reason.contains(words)) {
        FailureKind::Authentication
    } else {
        FailureKind::Unreachable
    }
}

/// Whether another try may end better.
pub(crate) fn is_transient(reason: &str) -> bool {
    let lasting = [
        "Could not resolve hostname",
        "Bad configuration",
        "Bad owner",
        "cannot be started",
        "is not set up",
        NO_GREETING,
        "Permission denied",
        // A shell that has not found or cannot run what it was told to.
        "ended with code 126",
        "ended with code 127",
        "not found",
        "No such file",
    ];
    kind(reason) == FailureKind::Unreachable && !lasting.iter().any(|words| reason.contains(words))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_of_ssh() {
        for (words, is, again) in [
            ("ada@h: Permission denied (publickey).", FailureKind::Authentication, false),
            ("Host key verification failed.", FailureKind::Authentication, false),
            ("ssh: connect to host h port 22: Connection refused", FailureKind::Unreachable, true),
            ("ssh: Could not resolve hostname h: Name or service not known", FailureKind::Unreachable, false),
            ("Connection closed by 192.0.2.1 port 22", FailureKind::Unreachable, true),
            ("sh: 1: ropewalk: not found", FailureKind::Unreachable, false),
        ] {
            assert_eq!((kind(words), is_transient(words)), (is, again), "{words}");
        }
    }
}
