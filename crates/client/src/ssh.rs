//! sshftp://: the control connection is the standard input and output of a server that ssh starts
//! on its host, as with GCT's client. ssh authenticates the user, and its account determines the
//! files.

mod address;
mod command;
mod process;
mod shared;

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

use crate::Options;
use crate::model::options::TerminalHold;

/// A connection through ssh. Its process has ended when this has been dropped.
pub(crate) struct Tunnel {
    stream: UnixStream,
    process: Process,
    /// The holder of a shared log-in; dropped after this connection's own process.
    _holder: Option<Arc<Holder>>,
}

impl Tunnel {
    /// Closes our side for writing.
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

/// Starts ssh. Our socket is the other end of its standard input and output. `asks`: dropped when
/// it asks no more questions.
///
/// Takes the command by value, because the command keeps the other end open: otherwise the end of
/// ssh could not be detected.
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

/// The name for USER, as in GCT's client: ssh has already authenticated the user.
pub(crate) fn ftp_user(url: &Url, options: &Options) -> BString {
    let named = url.user.clone().or_else(|| options.login.user.as_deref().map(BString::from));
    let ours = || ["LOGNAME", "USER"].iter().find_map(std::env::var_os).filter(|name| !name.is_empty());
    named.or_else(|| ours().map(|name| name.as_bytes().into())).unwrap_or_else(|| "anonymous".into())
}
