//! Starts other programs and makes sure that they end.
//!
//! Each program runs in a process group that a small shell leads ([`Leader`]). The program is
//! always ended and waited for, together with all processes that it started. The shell ends the
//! group even if Ropewalk is killed: its standard input then reaches its end.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use super::Unavailable;
use super::stale::{self, Held};

/// A program in a process group of its own. A shell leads the group; it outlives Ropewalk, but not
/// for long.
pub(crate) struct Guarded {
    name: String,
    leader: Leader,
    child: Child,
    errors: File,
    status: Option<ExitStatus>,
    /// Set once the program was asked to end: whether it had already ended by itself.
    early: Option<bool>,
}

/// The result of a program that has ended.
pub(crate) struct Output {
    pub(crate) status: ExitStatus,
    pub(crate) text: String,
    /// The end of what the program wrote to standard error.
    pub(crate) errors: String,
}

/// Number of bytes of standard error that are kept.
const ERRORS: u64 = 2000;

/// When standard input ends, because the process at its other end is gone, this script ends the
/// whole process group, itself included, and removes the directory `$1`. It retries the removal,
/// because a process that is just about to end may have created another file there.
const LEAD: &str = r#"trap '' HUP INT QUIT TERM
read -r _
kill -TERM 0
tries=0
until [ -z "$1" ] || rm -rf -- "$1" || [ $tries -ge 100 ]; do tries=$((tries + 1)); sleep 0.1; done
kill -KILL 0"#;

/// The shell that leads a process group until its standard input ends. That happens when Ropewalk
/// ends, for any reason.
struct Leader(Child);

impl Leader {
    fn start(directory: Option<&Path>) -> io::Result<Self> {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", LEAD, "ropewalk-watch"]).args(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        command.spawn().map(Self)
    }

    fn signal(&self, signal: Signal) {
        // The shell has not been waited for, so no other process can have this number.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Kills the shell with its whole group.
    fn end(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.0.wait();
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end();
    }
}

/// Number of attempts to remove a directory, and the pause between them.
const REMOVALS: u32 = 20;
const BETWEEN: std::time::Duration = std::time::Duration::from_millis(10);

/// A temporary directory for the output of programs. It is removed even if Ropewalk is killed.
pub(super) struct Place {
    path: PathBuf,
    leader: Leader,
    _held: Held,
}

impl Place {
    /// Creates a directory whose name begins with `prefix`. The shell that removes it knows the
    /// name before the directory exists, so the directory does not stay behind, at whatever moment
    /// Ropewalk is killed.
    pub(super) fn new(prefix: &str) -> Result<Self, Unavailable> {
        use std::os::unix::fs::DirBuilderExt;
        // Removes the directories of earlier runs that were killed together with their shells.
        stale::remove(&std::env::temp_dir(), prefix);
        let made = tempfile::Builder::new().prefix(prefix).rand_bytes(12).make(|path| {
            let leader = Leader::start(Some(path))?;
            std::fs::DirBuilder::new().mode(0o700).create(path)?;
            let held = Held::of(path).inspect_err(|_| drop(std::fs::remove_dir(path)))?;
            Ok((leader, held))
        });
        let made = made.map_err(|error| Unavailable::of("a temporary directory", &error))?;
        let ((leader, held), path) = made.into_parts();
        // A `TempPath` removes files when it is dropped, but not directories.
        let path = path.keep().map_err(|error| Unavailable::of("a temporary directory", &error.error))?;
        Ok(Self { path, leader, _held: held })
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A child that was killed may still be creating a file in the directory.
        for _ in 0..REMOVALS {
            match std::fs::remove_dir_all(&self.path) {
                Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {
                    std::thread::sleep(BETWEEN);
                }
                // A destructor has no caller to report an error to.
                _ => break,
            }
        }
        // The shell ends last, so that it removes the directory if we are killed before this line.
        self.leader.end();
    }
}

impl Guarded {
    /// Starts the program without input and in the C locale.
    pub(crate) fn start(mut command: Command, output: Stdio) -> Result<Self, Unavailable> {
        use std::os::unix::process::CommandExt;
        let name = command.get_program().to_string_lossy().into_owned();
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Unavailable::Missing(format!("{name} is not installed")),
            _ => Unavailable::of(&name, &error),
        };
        let errors = tempfile::tempfile().map_err(fail)?;
        let copy = errors.try_clone().map_err(fail)?;
        let leader = Leader::start(None).map_err(|error| Unavailable::of("/bin/sh", &error))?;
        let child = command
            .env("LC_ALL", "C")
            .env_remove("S_TIME_FORMAT")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(copy)
            .process_group(i32::try_from(leader.0.id()).unwrap_or(0))
            .spawn()
            .map_err(fail)?;
        Ok(Self { name, leader, child, errors, status: None, early: None })
    }

    /// Waits up to `time` for the program to end by itself. Returns whether it has ended.
    pub(crate) fn wait(&mut self, time: Duration) -> io::Result<bool> {
        if self.status.is_some() {
            return Ok(true);
        }
        let Some(pid) = self.pid() else { return Ok(true) };
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit)) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends `signal` to the group once, without waiting, to ask the program to end. Returns
    /// whether the program had ended by itself before it was asked.
    pub(crate) fn ask(&mut self, signal: Signal) -> io::Result<bool> {
        if let Some(early) = self.early {
            return Ok(early);
        }
        let early = self.wait(Duration::ZERO)?;
        if !early {
            self.signal(signal);
        }
        self.early = Some(early);
        Ok(early)
    }

    /// Sends `signal` unless the program was asked to end before, and kills what is left of the
    /// group after `grace`.
    pub(crate) fn stop(&mut self, signal: Signal, grace: Duration) -> io::Result<ExitStatus> {
        self.ask(signal)?;
        self.wait(grace)?;
        self.reap()
    }

    /// The end of what the program wrote to standard error.
    pub(crate) fn errors(&mut self) -> String {
        let length = self.errors.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = Vec::new();
        let from = io::SeekFrom::Start(length.saturating_sub(ERRORS));
        if self.errors.seek(from).is_ok() {
            // An error while reading is ignored: the text is only used in messages.
            let _ = (&self.errors).take(ERRORS).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }

    /// Describes a failure of the program, with its last message.
    pub(crate) fn failure(&mut self, how: &str) -> Unavailable {
        let said = self.errors();
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        let denied = ["ermission", "not permitted", "paranoid", "privilege"];
        let refusal = said.lines().find(|line| denied.iter().any(|word| line.contains(word)));
        let text = |line: &str| format!("{} {how}: {line}", self.name);
        match refusal {
            // perf prints a page of advice; this sentence is the essential part of it.
            Some(_) if said.contains("perf_event_paranoid") => Unavailable::Denied(text(
                "the whole host may be looked at with kernel.perf_event_paranoid of 0 or less, or CAP_PERFMON",
            )),
            Some(line) => Unavailable::Denied(text(line.trim())),
            None => Unavailable::Failed(text(last)),
        }
    }

    fn pid(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.child.id()).ok()?)
    }

    fn signal(&self, signal: Signal) {
        if self.status.is_none() {
            self.leader.signal(signal);
        }
    }

    fn reap(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.status {
            return Ok(status);
        }
        // Kills the program, or the processes that it left behind.
        self.signal(Signal::KILL);
        let status = self.child.wait()?;
        self.leader.end();
        self.status = Some(status);
        Ok(status)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // A destructor has no caller to report an error to.
        let _ = self.reap();
    }
}

/// Runs a program to its end. It is an error if the program writes more than `most` bytes or runs
/// longer than `time`.
pub(crate) fn run(command: Command, time: Duration, most: u64) -> Result<Output, Unavailable> {
    run_unless(command, time, most, &|| false)
}

/// Interval at which `unwanted` is called.
const LOOK: Duration = Duration::from_millis(100);

/// Does the same as [`run`], but also ends the program, with an error, as soon as `unwanted`
/// returns true.
pub(crate) fn run_unless(
    command: Command,
    time: Duration,
    most: u64,
    unwanted: &dyn Fn() -> bool,
) -> Result<Output, Unavailable> {
    let output = tempfile::tempfile().map_err(|error| Unavailable::of("a temporary file", &error))?;
    let copy = output.try_clone().map_err(|error| Unavailable::of("a temporary file", &error))?;
    let mut child = Guarded::start(command, Stdio::from(copy))?;
    let name = child.name.clone();
    let io = |error: io::Error| Unavailable::of(&name, &error);
    let end = Instant::now() + time;
    while !child.wait(LOOK.min(end.saturating_duration_since(Instant::now()))).map_err(io)? {
        if unwanted() {
            return Err(Unavailable::Failed(format!("{name} was interrupted")));
        }
        if Instant::now() >= end {
            return Err(Unavailable::Failed(format!("{name} did not end within {} s", time.as_secs())));
        }
    }
    let status = child.reap().map_err(io)?;
    let length = output.metadata().map_err(io)?.len();
    if length > most {
        return Err(Unavailable::Failed(format!("{name} wrote {length} bytes, expected at most {most}")));
    }
    let mut bytes = Vec::new();
    (&output).rewind().map_err(io)?;
    (&output).take(most).read_to_end(&mut bytes).map_err(io)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let errors = child.errors();
    Ok(Output { status, text, errors })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn run_when_program_ends_returns_output_and_errors() {
        let output = run(shell("echo one; echo two >&2; exit 3"), LONG, 100).unwrap();
        assert_eq!((output.text.as_str(), output.errors.as_str()), ("one\n", "two"));
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn run_when_limit_is_exceeded_fails() {
        assert!(
            matches!(run(shell("echo 12345678"), LONG, 4), Err(Unavailable::Failed(text)) if text.contains("9 bytes"))
        );
        let late = run(shell("exec sleep infinity"), Duration::from_millis(20), 4);
        assert!(matches!(late, Err(Unavailable::Failed(text)) if text.contains("did not end")));
        let missing = run(Command::new("ropewalk-no-such-program"), LONG, 4);
        assert!(matches!(missing, Err(Unavailable::Missing(_))));
    }

    #[test]
    fn run_unless_when_unwanted_ends_program() {
        let forever = Duration::from_secs(24 * 3600);
        let stopped = run_unless(shell("exec sleep infinity"), forever, 4, &|| true);
        assert!(matches!(stopped, Err(Unavailable::Failed(text)) if text.contains("interrupted")));
    }

    #[test]
    fn stop_when_signal_is_ignored_kills_group() {
        // The shell waits for a child of its own, and both ignore SIGINT.
        let mut child =
            Guarded::start(shell("trap '' INT; sleep 100 & echo $!; wait"), Stdio::piped()).unwrap();
        let mut first = String::new();
        let mut out = io::BufReader::new(child.child.stdout.take().unwrap());
        io::BufRead::read_line(&mut out, &mut first).unwrap();
        let status = child.stop(Signal::INT, Duration::from_millis(20)).unwrap();
        assert!(!status.success());
        // The grandchild holds the other end of the pipe, so the pipe ends when the grandchild has
        // ended.
        io::Read::read_to_string(&mut out, &mut first).unwrap();
    }

    #[test]
    fn ask_when_program_had_ended_returns_true() {
        let mut asked = Guarded::start(shell("exec sleep 100"), Stdio::null()).unwrap();
        assert!(!asked.ask(Signal::TERM).unwrap());
        assert!(asked.wait(LONG).unwrap());
        // The program has ended by now, but only after it was asked.
        assert!(!asked.ask(Signal::TERM).unwrap());
        let mut early = Guarded::start(shell("exit 1"), Stdio::null()).unwrap();
        assert!(early.wait(LONG).unwrap());
        assert!(early.ask(Signal::TERM).unwrap());
    }

    #[test]
    fn guarded_when_dropped_ends_program() {
        let mut child = Guarded::start(shell("exec sleep 100"), Stdio::piped()).unwrap();
        let mut out = child.child.stdout.take().unwrap();
        drop(child);
        assert_eq!(out.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn place_when_dropped_or_killed_removes_directory() {
        let place = Place::new("ropewalk-place-").unwrap();
        let path = place.path.clone();
        std::fs::write(place.file("file"), b"x").unwrap();
        drop(place);
        assert!(!path.exists());
        // The same happens when we are killed: the other end of the shell's standard input is
        // closed.
        let mut place = Place::new("ropewalk-place-").unwrap();
        std::fs::write(place.file("file"), b"x").unwrap();
        drop(place.leader.0.stdin.take());
        place.leader.0.wait().unwrap();
        assert!(!place.path.exists());
    }

    #[test]
    fn failure_when_permission_is_missing_is_denied() {
        let mut denied =
            Guarded::start(shell("echo Operation not permitted >&2; exit 1"), Stdio::null()).unwrap();
        assert!(denied.wait(LONG).unwrap());
        assert!(
            matches!(denied.failure("ended"), Unavailable::Denied(text) if text.contains("not permitted"))
        );
        let mut failed = Guarded::start(shell("exit 1"), Stdio::null()).unwrap();
        assert!(failed.wait(LONG).unwrap());
        assert!(matches!(failed.failure("ended"), Unavailable::Failed(_)));
    }
}
