//! The control socket: other processes observe and change paths while they run.
//!
//! It is a Unix stream socket, best with an abstract address, which leaves no file behind. The
//! socket closes the connection of a client that is neither root nor the user of the emulator's
//! process. Each line from the client is one [`Request`] in JSON. The answer to each is one line,
//! an object with either `"ok"` or `"error"`:
//!
//! ```text
//! {"do": "change", "change": {"forward": {"rate": "50Mbit/s"}}}
//! {"ok": {"mtu": 1500, "forward": {"rate": "50Mbit/s", ...}, "backward": {...}}}
//! {"do": "snapshot", "path": "A-B"}
//! {"do": "series", "from": 120}
//! ```

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::change::Change;
use super::handle::Control;

/// Longer lines are rejected.
const LONGEST_LINE: u64 = 64 * 1024;
/// Upper limit of connected clients.
const MOST_CLIENTS: usize = 64;

/// The requests of a client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// [`Control::apply`].
    Change {
        /// The path's name; it may be omitted if there is only one path.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        change: Box<Change>,
    },
    /// [`Control::snapshot`].
    Snapshot {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    /// [`Control::series`].
    Series {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
        #[serde(default)]
        from: usize,
    },
    /// The names of the paths.
    Paths,
}

/// The reason why a request has no result.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("control socket: {0}")]
    Socket(#[from] io::Error),
    #[error("the control socket answered with something else than an object with `ok` or `error`: {0}")]
    Answer(String),
    #[error("{0}")]
    Refused(String),
}

/// A callback that is called after each change.
type Told = Arc<dyn Fn(&str, &Change) + Send + Sync>;
type Paths = (BTreeMap<String, Control>, Told);
type Clients = Arc<Mutex<BTreeMap<u64, UnixStream>>>;

/// Serves a control socket until it is dropped.
pub struct ControlSocket {
    wake: Arc<OwnedFd>,
    clients: Clients,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Serves the clients that connect to `listener`. `paths` has the emulated paths by their
    /// names.
    ///
    /// # Errors
    /// The same as those of [`Self::start_telling`].
    pub fn start(listener: UnixListener, paths: BTreeMap<String, Control>) -> io::Result<Self> {
        Self::start_telling(listener, paths, Arc::new(|_, _| {}))
    }

    /// Like [`Self::start`], and calls `told` after each change, with the path's name.
    ///
    /// # Errors
    /// `listener` cannot be made non-blocking, or the system cannot create an eventfd or a thread.
    pub fn start_telling(
        listener: UnixListener,
        paths: BTreeMap<String, Control>,
        told: Told,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let wake = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let clients = Clients::default();
        let (their_wake, their_clients) = (wake.clone(), clients.clone());
        let thread = std::thread::Builder::new()
            .name("lab-control".to_owned())
            .spawn(move || accept(&listener, &their_wake, &their_clients, &Arc::new((paths, told))))?;
        Ok(Self { wake, clients, thread: Some(thread) })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        for stream in self.clients.lock().values() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

fn accept(listener: &UnixListener, wake: &OwnedFd, clients: &Clients, paths: &Arc<Paths>) {
    for number in 0.. {
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        let polled = rustix::event::poll(&mut fds, None);
        if polled.is_ok() && !fds[0].revents().is_empty() {
            return;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(_) => {
                // The process is most likely out of descriptors. The client waits in the listen
                // queue until there are some.
                let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = rustix::event::poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&pause));
                continue;
            }
        };
        if !welcome(&stream) {
            continue;
        }
        let Ok(copy) = stream.try_clone() else { continue };
        let mut table = clients.lock();
        if table.len() >= MOST_CLIENTS || stream.set_nonblocking(false).is_err() {
            continue;
        }
        table.insert(number, copy);
        drop(table);
        let (paths, their_clients) = (paths.clone(), clients.clone());
        let served = std::thread::Builder::new().name("lab-control".to_owned()).spawn(move || {
            // An error means that the client has closed the connection, so there is no one to
            // report it to.
            let _ = serve(stream, &paths);
            their_clients.lock().remove(&number);
        });
        if served.is_err() {
            clients.lock().remove(&number);
        }
    }
}

/// Checks the client's identity, since abstract addresses have no permissions.
fn welcome(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

fn serve(stream: UnixStream, paths: &Paths) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut line = Vec::new();
        if reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let whole = line.ends_with(b"\n") || (line.len() as u64) < LONGEST_LINE;
        let answer = if whole {
            serde_json::from_slice(&line)
                .map_err(|e| format!("expected one request a line, as JSON: {e}"))
                .and_then(|request| answer(request, paths))
        } else {
            Err(format!("expected a line of at most {LONGEST_LINE} bytes, found a longer one"))
        };
        let answer = match answer {
            Ok(value) => json!({ "ok": value }),
            Err(error) => json!({ "error": error }),
        };
        writeln!(writer, "{answer}")?;
        if !whole {
            return Ok(());
        }
    }
}

fn answer(request: Request, paths: &Paths) -> Result<Value, String> {
    let value = match request {
        Request::Paths => serde_json::to_value(paths.0.keys().collect::<Vec<_>>()),
        Request::Change { path, change } => {
            let (name, control) = find(paths, path)?;
            let new = control.apply(&change).map_err(|e| e.to_string())?;
            paths.1(name, &change);
            serde_json::to_value(new)
        }
        Request::Snapshot { path } => {
            serde_json::to_value(find(paths, path)?.1.snapshot().map_err(|e| e.to_string())?)
        }
        Request::Series { path, from } => {
            serde_json::to_value(find(paths, path)?.1.series(from).map_err(|e| e.to_string())?)
        }
    };
    value.map_err(|e| e.to_string())
}

fn find((paths, _): &Paths, name: Option<String>) -> Result<(&String, &Control), String> {
    let known = || paths.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    match name {
        Some(name) => {
            paths.get_key_value(&name).ok_or_else(|| format!("no path `{name}`: expected one of {}", known()))
        }
        None if paths.len() == 1 => paths.iter().next().ok_or_else(String::new),
        None => Err(format!("there are several paths: expected the name of one of {}", known())),
    }
}

/// Sends one request to a control socket and returns the result.
///
/// # Errors
/// The socket fails, the answer has an unknown form ([`AskError::Answer`]), or the server rejects
/// the request and says why ([`AskError::Refused`]).
pub fn ask(mut stream: UnixStream, request: &Request) -> Result<Value, AskError> {
    let mut line = serde_json::to_string(request).map_err(io::Error::from)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    let mut value: Value = serde_json::from_str(&answer).map_err(|_| AskError::Answer(answer.clone()))?;
    if let Some(error) = value.get("error").and_then(Value::as_str) {
        return Err(AskError::Refused(error.to_owned()));
    }
    value.get_mut("ok").map(Value::take).ok_or(AskError::Answer(answer))
}
