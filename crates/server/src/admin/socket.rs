//! The socket of the server, and the thread that answers.

use std::fs::{self, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;

use super::answers::{Reload, answers};
use super::message::{Answer, Line, Request, SCHEMA};
use crate::config::{Problem, Severity};
use crate::error::{Error, Result};
use crate::scheduling::scheduler::Scheduler;

/// A client writes its request within this time, and reads the answers within this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request, in bytes.
const LONGEST: usize = 4096;
/// After a connection that could not be accepted, for instance for lack of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// A socket that listens. It is removed when this is dropped.
pub(crate) struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
    /// The file as it was made: another server may have replaced it.
    file: (u64, u64),
    /// The server's own user.
    owner: u32,
}

/// The thread that answers. Dropping it ends the thread and removes the socket.
pub(crate) struct Answering {
    /// Its end wakes the thread.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl AdminSocket {
    /// Listens at `path`. The socket of a server that has ended without removing it is replaced.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        Self::listen(path).map_err(|error| {
            let text = format!("{}: {error}", path.display());
            Error::Config(vec![Problem { severity: Severity::Error, setting: "admin.socket".into(), text }])
        })
    }

    fn listen(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(file) if !file.file_type().is_socket() => {
                return Err(io::Error::other("a file that is no socket is there"));
            }
            Ok(_) => match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                Err(error) => return Err(error),
                Ok(_) => return Err(io::Error::other("another server answers there")),
            },
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        // Other users who connect before this are refused.
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        let file = fs::symlink_metadata(path)?;
        let owner = rustix::process::geteuid().as_raw();
        Ok(Self { listener, path: path.to_owned(), file: (file.dev(), file.ino()), owner })
    }

    /// Answers from now on.
    pub(crate) fn start(self, scheduler: &Arc<Scheduler>, reload: Option<Reload>) -> Result<Answering> {
        let system = || Error::system("cannot start a thread");
        let (wake, woken) = UnixStream::pair().map_err(system())?;
        let scheduler = Arc::clone(scheduler);
        let run = move || self.run(&woken, &scheduler, reload);
        let thread = thread::Builder::new().name("admin".into()).spawn(run).map_err(system())?;
        Ok(Answering { wake: Some(wake), thread: Some(thread) })
    }

    fn run(self, woken: &UnixStream, scheduler: &Scheduler, mut reload: Option<Reload>) {
        loop {
            let mut events = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
            let polled = poll(&mut events, None);
            if !events[1].revents().is_empty() {
                return;
            }
            let failed = match (polled, self.listener.accept()) {
                (Err(errno), _) if errno != rustix::io::Errno::INTR => Some(io::Error::from(errno)),
                (_, Ok((stream, _))) => {
                    if let Err(error) = self.serve(&stream, scheduler, reload.as_mut()) {
                        tracing::debug!(%error, "a client of the admin socket has gone");
                    }
                    None
                }
                (_, Err(error)) => (error.kind() != io::ErrorKind::WouldBlock).then_some(error),
            };
            if let Some(error) = failed {
                tracing::warn!(%error, "the admin socket cannot accept a connection");
                thread::sleep(PAUSE);
            }
        }
    }

    fn serve(
        &self,
        stream: &UnixStream,
        scheduler: &Scheduler,
        reload: Option<&mut Reload>,
    ) -> io::Result<()> {
        let user = socket_peercred(stream)?.uid.as_raw();
        let answers = if user != 0 && user != self.owner {
            tracing::warn!(uid = user, "a user was refused at the admin socket");
            let owner = self.owner;
            let reason = format!(
                "the server obeys root and its own user (uid {owner}) here, not the user with uid {user}"
            );
            vec![Answer::Refused { reason }]
        } else {
            match read(stream)? {
                Ok(request) => answers(scheduler, reload, request),
                Err(reason) => vec![Answer::Refused { reason }],
            }
        };
        let mut text = Vec::new();
        for answer in answers {
            serde_json::to_writer(&mut text, &Line { schema: SCHEMA, answer })?;
            text.push(b'\n');
        }
        write(stream, &text)
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let own = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if own && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = ?self.path, %error, "the admin socket cannot be removed");
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.wake = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the admin socket has panicked");
        }
    }
}

/// Reads a request, or returns why it is none.
fn read(mut stream: &UnixStream) -> io::Result<std::result::Result<Request, String>> {
    let until = Instant::now() + PATIENCE;
    let mut text = Vec::new();
    let mut buffer = [0; 512];
    loop {
        if let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let request = serde_json::from_slice(&text[..end]);
            return Ok(request.map_err(|error| format!("not a request: {error}")));
        }
        if text.len() > LONGEST {
            return Ok(Err(format!("a request has at most {LONGEST} bytes")));
        }
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn write(mut stream: &UnixStream, mut text: &[u8]) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !text.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(text) {
            Ok(n) => text = &text[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn socket_of_dead_server_is_replaced_and_others_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin");
        let refused = |path: &Path| AdminSocket::bind(path).err().unwrap().to_string();
        let first = AdminSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(refused(&path).contains("another server answers"), "{}", refused(&path));
        drop(first);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        let second = AdminSocket::bind(&path).unwrap();
        // Another server has taken the path.
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(second);
        assert!(path.exists());
        drop(other);
        let file = directory.path().join("file");
        fs::write(&file, "text").unwrap();
        assert!(refused(&file).contains("no socket"), "{}", refused(&file));
        assert!(refused(Path::new("/nonexistent/admin")).contains("No such file"));
        assert!(file.exists());
    }

    #[test]
    fn request_is_bounded_and_judged() {
        let told = |bytes: &[u8]| {
            let (mut client, server) = UnixStream::pair().unwrap();
            client.write_all(bytes).unwrap();
            drop(client);
            read(&server)
        };
        assert_eq!(told(b"{\"command\":\"nodes\"}\nmore").unwrap(), Ok(Request::Nodes));
        assert!(told(b"nodes\n").unwrap().unwrap_err().contains("not a request"));
        assert!(told(&[b'x'; 2 * LONGEST]).unwrap().unwrap_err().contains("at most 4096 bytes"));
        assert_eq!(told(b"{}").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
