//! `serve --ssh`: one session on standard input and output, and the script that sshftp:// clients
//! start.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use ropewalk_files::OnDisk;
use rustix::fs::{FileType, fstat};
use rustix::net::{AddressFamily, getsockname};

use crate::exit::usage;

/// Where the script is written. Clients look for the user's own script first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Whose {
    /// ~/.globus/sshftp
    User,
    /// /etc/grid-security/sshftp, for every user of this host
    Host,
}

/// Maximum time to send the last replies.
const LAST_REPLIES: Duration = Duration::from_secs(10);

/// The control connection on standard input and output.
pub(super) struct Standard {
    pub(super) control: UnixStream,
    /// Disconnected once everything has been written.
    written: Option<Receiver<()>>,
}

impl Standard {
    /// Uses standard input and output directly if they are one socket, as with sshd. Otherwise two
    /// threads copy.
    pub(super) fn open() -> io::Result<Self> {
        let (input, output) = (io::stdin(), io::stdout());
        let (input, output) = (input.as_fd(), output.as_fd());
        if is_one_socket(input, output) {
            return Ok(Self { control: input.try_clone_to_owned()?.into(), written: None });
        }
        let (control, far) = UnixStream::pair()?;
        let (input, output) =
            (File::from(input.try_clone_to_owned()?), File::from(output.try_clone_to_owned()?));
        let (writing, written) = mpsc::channel();
        let from = far.try_clone()?;
        thread::Builder::new().name("input".into()).spawn(move || copy_in(input, &far))?;
        thread::Builder::new().name("output".into()).spawn(move || copy_out(&from, output, writing))?;
        Ok(Self { control, written: Some(written) })
    }

    /// The control connection, and the handle that waits until the replies are sent.
    pub(super) fn split(self) -> (UnixStream, Written) {
        (self.control, Written(self.written))
    }
}

pub(super) struct Written(Option<Receiver<()>>);

impl Written {
    pub(super) fn wait(self) {
        if let Some(written) = self.0 {
            // The channel never carries a message; it only disconnects.
            let _ = written.recv_timeout(LAST_REPLIES);
        }
    }
}

fn is_one_socket(input: BorrowedFd<'_>, output: BorrowedFd<'_>) -> bool {
    let (Ok(one), Ok(other)) = (fstat(input), fstat(output)) else { return false };
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
        && FileType::from_raw_mode(one.st_mode) == FileType::Socket
        && getsockname(input).is_ok_and(|name| name.address_family() == AddressFamily::UNIX)
}

/// Copies input until the client disconnects.
fn copy_in(mut input: File, mut control: &UnixStream) {
    let mut buffer = [0; 4096];
    loop {
        match input.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(n) if n > 0 && control.write_all(&buffer[..n]).is_ok() => {}
            _ => break,
        }
    }
    let _ = control.shutdown(Shutdown::Write);
}

fn copy_out(mut control: &UnixStream, mut output: File, _writing: Sender<()>) {
    let mut buffer = [0; 16 << 10];
    loop {
        match control.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(n) if n > 0 && output.write_all(&buffer[..n]).is_ok() => {}
            _ => break,
        }
    }
    // Replies can no longer be delivered, so no further command is executed.
    let _ = control.shutdown(Shutdown::Both);
}

/// Writes the script and returns its path.
pub(super) fn install(whose: Whose, config: Option<&Path>, force: bool) -> anyhow::Result<PathBuf> {
    let path = match whose {
        Whose::Host => PathBuf::from("/etc/grid-security/sshftp"),
        Whose::User => {
            let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
            home.context("there is no HOME")?.join(".globus/sshftp")
        }
    };
    let program = std::env::current_exe().context("cannot find this program")?;
    let config = config.map(Path::canonicalize).transpose().context("the configuration file")?;
    write_script(&path, &script(&program, config.as_deref())?, force)?;
    Ok(path)
}

fn script(program: &Path, config: Option<&Path>) -> anyhow::Result<String> {
    let quoted = |path: &Path| {
        let text = path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))?;
        anyhow::Ok(format!("'{}'", text.replace('\'', r"'\''")))
    };
    let config = config.map(|path| quoted(path).map(|path| format!(" --config {path}"))).transpose()?;
    Ok(format!(
        "#!/bin/sh\n\
         # What clients of sshftp:// start on this host, each as the user who has logged in with ssh.\n\
         # Behind a firewall, add the ports that it lets through: --data-ports 50000-50100\n\
         exec {} serve --ssh{}\n",
        quoted(program)?,
        config.unwrap_or_default()
    ))
}

/// Writes the script atomically.
fn write_script(path: &Path, text: &str, force: bool) -> anyhow::Result<()> {
    let directory = path.parent().context("no directory")?;
    let wrong = || format!("cannot write {}", path.display());
    fs::create_dir_all(directory).with_context(wrong)?;
    if !force && fs::symlink_metadata(path).is_ok() && fs::read_to_string(path).ok().as_deref() != Some(text)
    {
        return Err(usage(format!("{} exists; --force replaces it", path.display())));
    }
    ropewalk_files::replace(path, text.as_bytes(), 0o755, OnDisk::Later).with_context(wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn install_writes_the_script() {
        let text = script(Path::new("/opt/it's/ropewalk"), Some(Path::new("/etc/a b.toml"))).unwrap();
        assert!(
            text.ends_with("exec '/opt/it'\\''s/ropewalk' serve --ssh --config '/etc/a b.toml'\n"),
            "{text}"
        );
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(".globus/sshftp");
        write_script(&path, &text, false).unwrap();
        write_script(&path, &text, false).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(write_script(&path, "other", false).unwrap_err().to_string().contains("--force"));
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        write_script(&path, "other", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "other");
    }

    #[test]
    fn control_connection_uses_a_socket_or_two_pipes() {
        let (one, other) = UnixStream::pair().unwrap();
        assert!(is_one_socket(one.as_fd(), one.try_clone().unwrap().as_fd()));
        assert!(!is_one_socket(one.as_fd(), other.as_fd()));
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_one_socket(reader.as_fd(), writer.as_fd()));
        assert!(!is_one_socket(reader.as_fd(), reader.as_fd()));
    }

    #[test]
    fn control_connection_ends_in_both_directions() {
        let (control, far) = UnixStream::pair().unwrap();
        let from = far.try_clone().unwrap();
        let (input, mut client_writes) = io::pipe().unwrap();
        let (mut client_reads, output) = io::pipe().unwrap();
        let file = |fd: OwnedFd| File::from(fd);
        let (input, output) = (file(input.into()), file(output.into()));
        let (writing, written) = mpsc::channel();
        let threads = [
            thread::spawn(move || copy_in(input, &far)),
            thread::spawn(move || copy_out(&from, output, writing)),
        ];
        client_writes.write_all(b"NOOP\r\n").unwrap();
        drop(client_writes);
        let mut heard = String::new();
        (&control).read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "NOOP\r\n");
        (&control).write_all(b"221 Goodbye.\r\n").unwrap();
        drop(control);
        Written(Some(written)).wait();
        let mut said = String::new();
        client_reads.read_to_string(&mut said).unwrap();
        assert_eq!(said, "221 Goodbye.\r\n");
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
