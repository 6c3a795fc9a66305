//! State shared by the sessions with one server: its address, and one log-in for all of them (ssh's
//! ControlMaster).

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_protocol::url::Url;
use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use tempfile::TempDir;

use super::address::{self, Configured};
use super::command::{Sharing, Words};
use super::process::Process;
use super::{Tunnel, start};
use crate::{Cancel, Options, RemoteError};

/// Sessions over one log-in, including the holder's own: sshd's default limit (MaxSessions).
const SESSIONS: usize = 10;
/// ssh appends a few letters to the name of its socket while it makes it; the limit is 107.
const LONGEST_PATH: usize = 85;

#[derive(Default)]
pub(crate) struct Shared {
    /// There will be more than one session.
    several: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    holder: Option<Arc<Holder>>,
}

#[derive(Clone, Copy)]
struct Known {
    addresses: (SocketAddr, SocketAddr),
    /// Sessions go through a holder.
    shares: bool,
}

/// A log-in that stays open as long as this exists: a session of ssh that ends with its input, so
/// that it also ends when this program is killed.
pub(super) struct Holder {
    stream: UnixStream,
    process: Process,
    socket: PathBuf,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    /// For several sessions, at the same time or one after the other.
    pub(crate) fn for_several() -> Self {
        Self { several: true, ..Self::default() }
    }

    /// Starts ssh for a session with the server, which is called `name` in messages. Also returns
    /// the server's address and ours on the way to it, unspecified if unknown.
    pub(crate) fn open(
        &self,
        url: &Url,
        name: &str,
        options: &Options,
        cancel: &Cancel,
    ) -> Result<(Tunnel, (SocketAddr, SocketAddr)), RemoteError> {
        let words = Words::new(url, options).map_err(RemoteError::Usage)?;
        let failed = |error: std::io::Error| RemoteError::Ssh {
            peer: name.to_owned(),
            reason: format!("it cannot be started: {error}"),
        };
        // Other sessions wait here for the log-in of the first.
        let mut state = self.state.lock();
        if cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        let known = *state.known.get_or_insert_with(|| {
            let told = if words.is_openssh() {
                Configured::ask(&mut words.configuration())
            } else {
                Configured::default()
            };
            let shares = self.several && options.ssh.share && words.is_openssh() && !told.shares;
            let host = told.host.as_deref().unwrap_or(&url.host);
            Known { addresses: address::addresses(host, told.detour), shares }
        });
        if known.shares
            && state
                .holder
                .as_ref()
                .is_none_or(|holder| Arc::strong_count(holder) >= SESSIONS || holder.is_gone())
        {
            let holder = socket_directory().map(|place| Holder::log_in(&words, place, name, options, cancel));
            state.holder = match holder {
                Some(Err(RemoteError::Ssh { reason, .. })) if is_of_sharing(&reason) => {
                    tracing::debug!(peer = name, reason, "every session logs in by itself");
                    None
                }
                Some(holder) => holder?.map(Arc::new),
                None => None,
            };
            if state.holder.is_none() {
                state.known = Some(Known { shares: false, ..known });
            }
        }
        let holder = state.holder.clone();
        drop(state);
        let sharing = holder.as_ref().map_or(Sharing::None, |holder| Sharing::With(&holder.socket));
        let asks = if holder.is_none() { words.may_ask() } else { None };
        let (stream, process) = start(words.session(sharing), name, None, asks).map_err(failed)?;
        Ok((Tunnel { stream, process, _holder: holder }, known.addresses))
    }
}

impl Holder {
    /// `None` if the log-in succeeds but the host does not run our command.
    fn log_in(
        words: &Words<'_>,
        directory: TempDir,
        name: &str,
        options: &Options,
        cancel: &Cancel,
    ) -> Result<Option<Self>, RemoteError> {
        let peer = || name.to_owned();
        let failed = |reason: String| RemoteError::Ssh { peer: peer(), reason };
        let socket = directory.path().join("s");
        let command = words.holder(Sharing::Master(&socket));
        let begun = start(command, name, Some(directory), words.may_ask());
        let (stream, process) = begun.map_err(|error| failed(format!("it cannot be started: {error}")))?;
        let holder = Self { stream, process, socket };
        // The user may be asked meanwhile.
        let limit = options.timeouts.reply.max(options.timeouts.connect);
        let heard = holder.says_something(limit, cancel);
        if cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        if !heard.map_err(|source| RemoteError::Control { peer: peer(), source })? {
            return Err(RemoteError::Silent { peer: peer(), command: "the connection".to_owned(), limit });
        }
        let heard = std::io::Read::read(&mut &holder.stream, &mut [0; 256]);
        if matches!(heard, Ok(1..)) {
            holder.process.establish();
            return Ok(Some(holder));
        }
        // Only ssh itself ends with 255.
        match holder.process.last_words() {
            Some(_) if cancel.is_cancelled() => Err(RemoteError::Cancelled),
            Some(reason) if holder.process.code() == Some(255) => Err(failed(reason)),
            _ => Ok(None),
        }
    }

    /// Waits for output, or its end.
    fn says_something(&self, limit: Duration, cancel: &Cancel) -> std::io::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let rest = deadline.saturating_duration_since(Instant::now());
            let mut fds = vec![PollFd::new(&self.stream, PollFlags::IN)];
            if let Some(cancelled) = cancel.descriptor() {
                fds.push(PollFd::from_borrowed_fd(cancelled, PollFlags::IN));
            }
            match poll(&mut fds, Some(&timespec(rest))) {
                Ok(0) => return Ok(false),
                Ok(_) if cancel.is_cancelled() => return Err(Cancel::error()),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the connection has broken.
    fn is_gone(&self) -> bool {
        self.process.code().is_some()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The end of its input.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

/// A directory for ssh's socket that no other user can enter. `None` if there is none: then each
/// connection logs in by itself.
fn socket_directory() -> Option<TempDir> {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    socket_directory_in([named, Some(std::env::temp_dir()), Some("/tmp".into())])
}

fn socket_directory_in<const N: usize>(places: [Option<PathBuf>; N]) -> Option<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("ropewalk-ssh-").permissions(Permissions::from_mode(0o700));
    let made = places.into_iter().flatten().filter(|place| place.is_absolute() && is_plain(place));
    let fits = |path: &Path| path.as_os_str().len() <= LONGEST_PATH;
    made.filter_map(|place| builder.tempdir_in(place).ok()).find(|made| fits(made.path()))
}

/// Whether ssh takes the path literally: `%h`, `${HOME}`, quotes, backslashes and white space have
/// a meaning in its options.
fn is_plain(path: &Path) -> bool {
    path.as_os_str().as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+,:@".contains(byte))
}

/// Whether ssh's message is about the socket, and not about the log-in.
fn is_of_sharing(reason: &str) -> bool {
    ["unix_listener", "muxserver", "ControlPath", "ControlSocket", "percent_expand"]
        .iter()
        .any(|word| reason.contains(word))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sockets_are_private() {
        let directory = socket_directory().unwrap();
        let mode = std::fs::metadata(directory.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn sockets_are_where_ssh_takes_a_path_as_it_is() {
        let all = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let place = all.path().join(name);
            std::fs::create_dir(&place).unwrap();
            Some(place)
        };
        let good = place("run-1000.x").unwrap();
        for name in ["100%h", "a b", "$HOME", "${X}", "a\"b", "a'b", r"a\b", "a\tb"] {
            let bad = place(name);
            assert!(socket_directory_in([bad.clone(), None]).is_none(), "{name}");
            let found = socket_directory_in([bad, Some(good.clone())]).unwrap();
            assert!(found.path().starts_with(&good), "{name}");
        }
    }

    #[test]
    fn what_is_wrong_with_the_socket_alone_keeps_nobody_from_logging_in() {
        assert!(is_of_sharing("unix_listener: cannot bind to path /x: Permission denied"));
        assert!(is_of_sharing("vdollar_percent_expand: unknown key %q"));
        assert!(!is_of_sharing("ada@h: Permission denied (publickey)."));
    }

    fn held(script: &str, cancel: &Cancel) -> (Result<Option<Holder>, RemoteError>, bool) {
        let mut options = Options::default();
        options.ssh.program = ["sh", "-c", script].map(Into::into).to_vec();
        (options.timeouts.reply, options.timeouts.connect) = (Duration::ZERO, Duration::from_millis(300));
        let url = Url::parse("sshftp://h/").unwrap();
        let words = Words::new(&url, &options).unwrap();
        let directory = socket_directory().unwrap();
        let path = directory.path().to_owned();
        let holder = Holder::log_in(&words, directory, "h", &options, cancel);
        let there = path.exists();
        (holder, there)
    }

    #[test]
    fn a_log_in_is_held_or_not() {
        let never = Cancel::new();
        let (holder, there) = held("echo ready; exec cat", &never);
        let (holder, path) = (holder.unwrap().unwrap(), there);
        assert!(path && !holder.is_gone());
        let directory = holder.socket.parent().unwrap().to_owned();
        drop(holder);
        assert!(!directory.exists());

        assert!(matches!(held("exit 3", &never), (Ok(None), false)), "an account for something else");
        let (denied, there) = held("echo Permission denied >&2; exit 255", &never);
        assert!(
            matches!(denied, Err(RemoteError::Ssh { reason, .. }) if reason == "Permission denied") && !there
        );
        assert!(matches!(held("exec sleep 100", &never), (Err(RemoteError::Silent { .. }), false)));
        let cancelled = Cancel::new();
        cancelled.cancel();
        assert!(matches!(held("exec sleep 100", &cancelled), (Err(RemoteError::Cancelled), false)));
    }
}
