//! An ssh that runs: what it says, and its end. It is waited for in any case.

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

/// What a session gets to end by itself once its input has ended: the server's last words and its exit code travel here.
const GRACE: Duration = Duration::from_millis(500);
/// What ssh gets to end after SIGTERM, before it is killed.
const PATIENCE: Duration = Duration::from_secs(1);
/// A program that has closed its output has so long to end, and to have its complaint read.
const REASON: Duration = Duration::from_secs(2);
/// What others hold of its standard error is not waited for (a master connection of the user's own, for instance).
const COMPLAINT: Duration = Duration::from_millis(200);
/// Lines of complaint that are kept, and bytes of each.
const KEPT: usize = 16;
const LINE: u64 = 2048;

pub(crate) struct Process {
    child: Mutex<Child>,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected when all of the standard error has been read.
    read: Mutex<Receiver<()>>,
    /// A session came about: its end is orderly.
    established: AtomicBool,
    /// It may ask at the terminal.
    asks: Mutex<Option<TerminalHold>>,
    /// Where its socket is, for others to share its log-in; removed after it has ended.
    _directory: Option<TempDir>,
}

impl Process {
    /// Starts `command`, whose standard input and output are set, and tells every line of its standard error as `peer`'s.
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
        // Without a thread the program may stand still, full of complaints: then there is none.
        reader.transpose()?;
        Ok(process)
    }

    /// The server has said something.
    pub(crate) fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
        self.asks_no_more();
    }

    fn asks_no_more(&self) {
        drop(self.asks.lock().take());
    }

    /// Its exit code, or 128 and the signal as shells have it; `None` where it runs.
    pub(crate) fn code(&self) -> Option<i32> {
        let status = self.child.lock().try_wait().ok()??;
        status.code().or_else(|| status.signal().map(|signal| 128 + signal))
    }

    /// Why it has ended: what it said, or its exit code. `None` where it ended as it should, or has not.
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
        // It takes the programs with it through which it connects.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
        if wait(child, PATIENCE).is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Its exit status, where it has ended before `limit`.
pub(super) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Some(status) = child.try_wait().ok()? {
        return Some(status);
    }
    // Old kernels have none, and then it ends at once.
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
    let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&timespec(limit)));
    child.try_wait().ok()?
}

/// Reads lines until there are no more.
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

/// As it may be shown on a terminal: the text is the server's, too.
fn printable(line: &[u8]) -> String {
    String::from_utf8_lossy(line).trim().chars().map(|c| if is_harmful(c) { ' ' } else { c }).collect()
}

fn in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(255), _) => "it could not connect, or the connection broke, and it says no more".to_owned(),
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
        // Neither one that does not care for SIGTERM, nor one that ends by itself.
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
