//! Runs programs for tests, each in its own process group, and kills them when the test ends.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

/// Returns a command whose process is killed when the thread that starts it ends, so that not even
/// a killed test leaves it behind.
///
/// The kernel ties the signal to the *thread*: start a server from a thread that outlives its use.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// A running program. Dropping it kills its whole process group.
#[derive(Debug)]
pub struct Program {
    child: Child,
    group: Pid,
    log: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
    lines: Mutex<mpsc::Receiver<String>>,
}

impl Program {
    /// Starts `command` and collects its output. [`Self::wait_for_line`] waits for lines of
    /// standard output.
    pub fn start(command: &mut Command) -> Result<Self> {
        let described = format!("{command:?}");
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {described}"))?;
        let group = Pid::from_child(&child);
        let log = Arc::new(Mutex::new(Vec::new()));
        let (sender, lines) = mpsc::channel();
        let mut readers = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            readers.push(gather(stdout, log.clone(), Some(sender)));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.push(gather(stderr, log.clone(), None));
        }
        Ok(Self { child, group, log, readers, lines: Mutex::new(lines) })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the output so far, with standard output and standard error interleaved.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.log.lock()).into_owned()
    }

    /// Waits until `wanted` returns true for the log. Output is read asynchronously, so it appears
    /// in the log with a delay.
    pub fn wait_for_log(&self, limit: Duration, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let end = Instant::now() + limit;
        loop {
            let log = self.log();
            if wanted(&log) {
                return Ok(());
            }
            ensure!(Instant::now() < end, "the log does not say what was waited for: {log}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the first result of `wanted` that is not `None` for a line of standard output.
    pub fn wait_for_line<T>(&self, limit: Duration, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
        let end = Instant::now() + limit;
        let lines = self.lines.lock();
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            match lines.recv_timeout(rest) {
                Ok(line) => {
                    if let Some(found) = wanted(&line) {
                        return Ok(found);
                    }
                }
                Err(error) => {
                    if error == mpsc::RecvTimeoutError::Disconnected {
                        self.hear_out();
                    }
                    bail!("the program did not say what was waited for; it wrote: {}", self.log())
                }
            }
        }
    }

    /// One output has ended: waits until the rest of the other one is read as well.
    fn hear_out(&self) {
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end && !self.readers.iter().all(JoinHandle::is_finished) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the program has a listening socket and returns its address.
    pub fn wait_for_port(&mut self, limit: Duration) -> Result<SocketAddr> {
        let end = Instant::now() + limit;
        loop {
            if let Some(address) = listening_address(self.pid()) {
                return Ok(address);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("the program ended with {status} before it listened: {}", self.log());
            }
            ensure!(Instant::now() < end, "the program did not listen within {limit:?}: {}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process(self.group, signal);
    }

    /// Simulates a crash: sends SIGKILL to the whole group.
    pub fn kill(&mut self) {
        let _ = rustix::process::kill_process_group(self.group, Signal::KILL);
        let _ = self.child.wait();
    }

    /// Waits for the program to end. Kills it and fails if that takes longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        if !ends_within(&self.child, limit)? {
            self.kill();
            bail!("did not end within {limit:?}; it wrote: {}", tail(&self.log()));
        }
        Ok(self.child.wait()?)
    }

    /// Kills the program and returns its complete output.
    pub fn finish(mut self) -> String {
        self.kill();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        self.log()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

fn gather(
    from: impl Read + Send + 'static,
    log: Arc<Mutex<Vec<u8>>>,
    lines: Option<mpsc::Sender<String>>,
) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while matches!(from.read_until(b'\n', &mut line), Ok(1..)) {
            log.lock().extend_from_slice(&line);
            if let Some(lines) = &lines {
                let _ = lines.send(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            line.clear();
        }
    })
}

fn ends_within(child: &Child, limit: Duration) -> Result<bool> {
    let pidfd = rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    let end = Instant::now() + limit;
    loop {
        let rest = Timespec::try_from(end.saturating_duration_since(Instant::now()))?;
        match rustix::event::poll(&mut fds, Some(&rest)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The result of a program that ran to completion.
#[derive(Debug)]
pub struct Outcome {
    pub command: String,
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub took: Duration,
}

impl Outcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Fails with the output of the program unless its exit code was 0.
    pub fn succeeded(self) -> Result<Self> {
        ensure!(
            self.status.success(),
            "{} ended with {}: {}{}",
            self.command,
            self.status,
            tail(&self.errors()),
            tail(&self.text())
        );
        Ok(self)
    }

    /// Fails unless the program exited with a code other than 0; death by a signal is a failure
    /// too.
    pub fn failed(self) -> Result<Self> {
        ensure!(!self.status.success(), "{} should have failed: {}", self.command, tail(&self.text()));
        ensure!(self.status.code().is_some(), "{} crashed: {}", self.command, self.status);
        Ok(self)
    }
}

/// Runs `command` to completion; kills it and fails if that takes longer than `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Outcome> {
    let described = format!("{command:?}").replace("\"setpriv\" \"--pdeathsig\" \"KILL\" \"--\" ", "");
    let begin = Instant::now();
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {described}"))?;
    let group = Pid::from_child(&child);
    let readers = [child.stdout.take().map(read_all), child.stderr.take().map(read_all)];
    let in_time = ends_within(&child, limit);
    if !matches!(in_time, Ok(true)) {
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let status = child.wait()?;
    let took = begin.elapsed();
    // Surviving grandchildren would keep the pipes open.
    let _ = rustix::process::kill_process_group(group, Signal::KILL);
    let [stdout, stderr] = readers.map(|reader| reader.and_then(|r| r.join().ok()).unwrap_or_default());
    if !in_time? {
        bail!(
            "{described} did not end within {limit:?}; it wrote: {}",
            tail(&String::from_utf8_lossy(&stderr))
        );
    }
    Ok(Outcome { command: described, status, stdout, stderr, took })
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        all
    })
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(2000);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    text[start..].trim()
}

/// Returns a field of `/proc/PID/status` in bytes, such as `VmRSS` or `VmHWM`.
pub fn memory_of(pid: u32, field: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .with_context(|| format!("/proc/{pid}/status has no {field}"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib << 10)
}

/// Returns the address of a listening TCP socket of process `pid`.
fn listening_address(pid: u32) -> Option<SocketAddr> {
    let mut inodes = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if let Some(inode) = target.to_str().and_then(|t| t.strip_prefix("socket:[")?.strip_suffix(']')) {
            inodes.push(inode.to_owned());
        }
    }
    let tables = [format!("/proc/{pid}/net/tcp"), format!("/proc/{pid}/net/tcp6")];
    for table in tables {
        for line in fs::read_to_string(table).ok()?.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, state, .., _] = fields[..] else { continue };
            let listens =
                state == "0A" && fields.get(9).is_some_and(|inode| inodes.iter().any(|i| i == inode));
            if listens {
                return parse_proc_address(local);
            }
        }
    }
    None
}

fn parse_proc_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words: Vec<u32> = (0..address.len() / 8)
        .map(|at| u32::from_str_radix(&address[at * 8..at * 8 + 8], 16))
        .collect::<Result<_, _>>()
        .ok()?;
    let ip = match words[..] {
        [v4] => IpAddr::V4(Ipv4Addr::from(v4.to_ne_bytes())),
        [a, b, c, d] => {
            let mut bytes = [0; 16];
            for (chunk, word) in bytes.chunks_mut(4).zip([a, b, c, d]) {
                chunk.copy_from_slice(&word.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}
