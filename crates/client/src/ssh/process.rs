//! A running ssh: its messages, and its end. The process is always reaped.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_protocol::text::is_harmful;
use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

use crate::model::options::TerminalHold;

/// Time for a session to end by itself after the end of its input: the server's last messages and
/// its exit code arrive in it.
const GRACE: Duration = Duration::from_millis(500);
/// Time for ssh to end after SIGTERM, before it is killed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time for a program that has closed its output to end, and for its messages to be read.
const REASON: Duration = Duration::from_secs(2);
/// Standard error that other processes keep open is not awaited (for instance a master connection
/// of the user).
const COMPLAINT: Duration = Duration::from_millis(200);
/// Number of lines that are kept, and bytes of each.
const KEPT: usize = 16;
const LINE: u64 = 2048;

pub(crate) struct Process {
    child: Mutex<Child>,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected when all of the standard error has been read.
    read: Mutex<Receiver<()>>,
    /// A session was established: its end is orderly.
    established: AtomicBool,
    /// It may ask at the terminal.
    asks: Mutex<Option<TerminalHold>>,
    /// The directory of its socket, through which others share its log-in; removed after its end.
    _directory: Option<TempDir>,
}

impl Process {
    /// Starts `command`, whose standard input and output are set, and logs each line of its
    /// standard error under the name `peer`.
    pub(crate) fn start(
        command: &mut Command,
        peer: &str,
        directory: Option<TempDir>,
        asks: Option<TerminalHold>,
    ) -> io::Result<Self> {
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let (reading, read) = mpsc::channel();
        let reader = child.stderr.take().map(|stderr| {
            let (said, peer) = (Arc::clone(&said), peer.to_owned());
            thread::Builder::new().name("ssh".into()).spawn(move || gather(stderr, &said, &peer, reading))
        });
        let process = Self {
            child: Mutex::new(child),
            said,
            read: Mutex::new(read),
            established: false.into(),
            asks: Mutex::new(asks),
            _directory: directory,
        };
        // Without a reader thread the program may block on a full pipe, so it is not started.
        reader.transpose()?;
        Ok(process)
    }

    /// The server has sent something.
    pub(crate) fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
        self.asks_no_more();
    }

    fn asks_no_more(&self) {
        drop(self.asks.lock().take());
    }

    /// Its exit code, or 128 and the signal as in shells; `None` while it runs.
    pub(crate) fn code(&self) -> Option<i32> {
        let status = self.child.lock().try_wait().ok()??;
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }

    /// Why it has ended: its messages, or its exit code. `None` if it ended normally, or still
    /// runs.
    pub(crate) fn last_words(&self) -> Option<String> {
        let mut child = self.child.lock();
        let status = wait(&mut child, REASON);
        drop(child);
        if status.is_some() {
            self.asks_no_more();
        }
        let _ = self.read.lock().recv_timeout(COMPLAINT);
        let said = self.said.lock();
        let status = status?;
        if status.success() {
            return None;
        }
        Some(if said.is_empty() { in_words(status) } else { Vec::from(said.clone()).join("; ") })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let grace = if *self.established.get_mut() { GRACE } else { Duration::ZERO };
        if wait(child, grace).is_some() {
            return;
        }
        // SIGTERM lets it stop the programs through which it connects.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
        if wait(child, PATIENCE).is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Its exit status, if it ends within `limit`.
pub(super) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Some(status) = child.try_wait().ok()? {
        return Some(status);
    }
    // Old kernels have no pidfd; then it is stopped at once.
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
    let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timespec(limit)));
    child.try_wait().ok()?
}

/// Reads lines until the end.
fn gather(stderr: ChildStderr, said: &Mutex<VecDeque<String>>, peer: &str, _reading: Sender<()>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while let Ok(1..) = (&mut stderr).take(LINE).read_until(b'\n', &mut line) {
        let text = printable(&line);
        line.clear();
        if text.is_empty() {
            continue;
        }
        tracing::warn!("{peer}: {text}");
        let mut said = said.lock();
        if said.len() == KEPT {
            said.pop_front();
        }
        said.push_back(text);
    }
}

/// Replaces control characters, because the text may come from the server.
fn printable(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().chars().map(|c| if is_harmful(c) { ' ' } else { c }).collect()
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(255), _) => "it could not connect, or the connection broke; it printed no reason".to_owned(),
        (Some(code), _) => format!("the program on the server ended with code {code}"),
        (None, signal) => format!("it was ended by signal {}", signal.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
        Process::start(&mut command, "test", None, None).unwrap()
    }

    fn is_there(pid: Pid) -> bool {
        rustix::process::test_kill_process(pid).is_ok()
    }

    #[test]
    fn complaints_are_told() {
        let process = shell("printf 'Permission\\033[1m denied\\r\\nand more' >&2; exit 255");
        assert_eq!(process.last_words().unwrap(), "Permission [1m denied; and more");
        assert_eq!(shell("exit 3").last_words().unwrap(), "the program on the server ended with code 3");
        assert!(shell("kill -9 $$").last_words().unwrap().contains("signal 9"));
        assert_eq!(shell("echo what is said before a good end >&2").last_words(), None);
    }

    #[test]
    fn much_of_it_is_cut() {
        let process = shell("yes x | head -c 100000 >&2; head -c 10000 /dev/zero | tr '\\0' y >&2; exit 1");
        assert!(process.last_words().unwrap().len() <= KEPT * (LINE as usize + 2));
    }

    #[test]
    fn none_is_left() {
        // Both a process that ignores SIGTERM and one that ends by itself.
        for script in ["trap '' TERM; exec sleep 100", "exec sleep 100", "exit"] {
            let process = shell(script);
            let pid = Pid::from_child(&process.child.lock());
            let began = Instant::now();
            drop(process);
            assert!(!is_there(pid), "{script}");
            assert!(began.elapsed() < Duration::from_secs(10));
        }
    }
}
