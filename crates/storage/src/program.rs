//! Programs in place of files: the output of a program is read, or its input is written.
//!
//! A [`Program`] says what is run. Opening it starts a process, which belongs to the handle: it has
//! a process group of its own, the user of the session, a clean environment, and no shell. The
//! group is killed if the handle is dropped before the process has ended. The pipes never block. A
//! thread for each process reads its messages (stderr) and keeps the last line. A process that
//! fails, or that stops reading before the end, fails the transfer: a part of the data never looks
//! whole.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bstr::{BString, ByteSlice};
use parking_lot::Mutex;
use ropewalk_protocol::range::RangeSet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::error::Context as _;
use crate::{
    Error, ErrorKind, Identity, Kind, Lock, Metadata, Positions, ReadHandle, Result, WriteHandle, posix,
    thread_starts,
};

/// The directories in which a program finds further programs, such as the compressors of `tar`.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// The longest message that is kept, in bytes.
const LONGEST_MESSAGE: usize = 300;
/// Bytes of messages that are read after the end of the process, which other processes may write.
const LAST_MESSAGES: usize = 64 << 10;
/// The time between two looks at a process that is about to end.
const LOOK: Duration = Duration::from_millis(50);
/// The time for the end of a process that reads no more.
const CLOSING: Duration = Duration::from_secs(2);

/// A program with its arguments, and the user that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The absolute path.
    pub path: PathBuf,
    /// The name of the program and its arguments.
    pub argv: Vec<OsString>,
    pub directory: PathBuf,
    /// `None` stands for the user of this process. Supplementary groups are dropped.
    pub identity: Option<Identity>,
}

impl Program {
    /// Starts the program in order to read its output.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn open_read(&self) -> Result<ProgramOutput> {
        let mut process = self.start(Stdio::null(), Stdio::piped())?;
        let output = process.child.get_mut().stdout.take().map(OwnedFd::from);
        let output = output.ok_or_else(|| process.failed("its output cannot be read"))?;
        process.without_waiting(&output)?;
        Ok(ProgramOutput { process, output })
    }

    /// Starts the program in order to write its input.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn open_write(&self) -> Result<ProgramInput> {
        let mut process = self.start(Stdio::piped(), Stdio::null())?;
        let input = process.child.get_mut().stdin.take().map(OwnedFd::from);
        let input = input.ok_or_else(|| process.failed("its input cannot be written"))?;
        process.without_waiting(&input)?;
        Ok(ProgramInput { process, input, next: Mutex::new(None) })
    }

    /// The name for messages.
    fn name(&self) -> BString {
        let name = self.argv.first().map_or(self.path.as_os_str(), OsString::as_os_str);
        name.as_encoded_bytes().into()
    }

    fn start(&self, input: Stdio, output: Stdio) -> Result<Process> {
        let mut command = Command::new(&self.path);
        if let Some((first, rest)) = self.argv.split_first() {
            command.arg0(first).args(rest);
        }
        command.env_clear().env("PATH", PATH).current_dir(&self.directory).process_group(0);
        command.stdin(input).stdout(output).stderr(Stdio::piped());
        if let Some(identity) = &self.identity {
            command.gid(identity.gid).uid(identity.uid);
        }
        let name = self.name();
        let system = |error: std::io::Error| Error::from_io(&error, "run", &name);
        // A thread that acts for a user would pass that user's rights on.
        let _own = posix::act_as_process().context("run", &name)?;
        let child = command.spawn().map_err(system)?;
        let mut process = Process::new(name.clone(), child)?;
        let messages = process.child.get_mut().stderr.take();
        let exit = process.exit.try_clone().map_err(system)?;
        let reader = std::thread::Builder::new().name("program".to_owned()).spawn(move || {
            thread_starts();
            messages.map(|messages| last_message(messages, &exit)).unwrap_or_default()
        });
        process.reader = Mutex::new(Some(reader.map_err(system)?));
        Ok(process)
    }
}

/// A process, from its start to its end.
struct Process {
    name: BString,
    child: Mutex<Child>,
    group: Option<Pid>,
    /// Readable when the process has ended.
    exit: OwnedFd,
    /// Returns the last message of the process.
    reader: Mutex<Option<JoinHandle<String>>>,
    /// How the process has ended. Its number means nothing afterwards.
    ended: Mutex<Option<std::result::Result<(), String>>>,
}

impl Process {
    fn new(name: BString, mut child: Child) -> Result<Self> {
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let exit = group.ok_or(Errno::SRCH).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()));
        match exit {
            Ok(exit) => Ok(Self {
                name,
                child: Mutex::new(child),
                group,
                exit,
                reader: Mutex::default(),
                ended: Mutex::default(),
            }),
            Err(errno) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(errno).context("run", &name)
            }
        }
    }

    fn failed(&self, why: impl Into<String>) -> Error {
        Error::new(ErrorKind::Program, "run", &self.name).with_detail(why)
    }

    fn without_waiting(&self, pipe: &OwnedFd) -> Result<()> {
        let flags = rustix::fs::fcntl_getfl(pipe).context("run", &self.name)?;
        rustix::fs::fcntl_setfl(pipe, flags | OFlags::NONBLOCK).context("run", &self.name)
    }

    /// Waits for the end of the process, for `time` at most. Returns false if it still runs.
    ///
    /// # Errors
    /// The process has failed.
    fn has_ended(&self, time: Duration) -> Result<bool> {
        let mut ended = self.ended.lock();
        if ended.is_none() {
            if !is_ready(&self.exit, PollFlags::IN, Some(time)) {
                return Ok(false);
            }
            let message = self.reader.lock().take().and_then(|reader| reader.join().ok()).unwrap_or_default();
            let status = self.child.lock().wait();
            let status = status.map_err(|error| Error::from_io(&error, "run", &self.name))?;
            *ended = Some(describe(status, &message));
        }
        match &*ended {
            Some(Err(why)) => Err(self.failed(why.clone())),
            _ => Ok(true),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.get_mut().is_some() {
            return;
        }
        // It was not waited for: the number still belongs to it.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.get_mut().wait();
        if let Some(reader) = self.reader.get_mut().take() {
            let _ = reader.join();
        }
    }
}

/// `Err` has the reason.
fn describe(status: ExitStatus, message: &str) -> std::result::Result<(), String> {
    if status.success() {
        return Ok(());
    }
    let mut why = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    };
    if !message.is_empty() {
        why += ": ";
        why += message;
    }
    Err(why)
}

/// Waits until a descriptor is ready, or the time is over.
fn is_ready(fd: &OwnedFd, events: PollFlags, time: Option<Duration>) -> bool {
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    let mut fds = [PollFd::new(fd, events)];
    retry_on_intr(|| poll(&mut fds, time.as_ref())).is_ok_and(|ready| ready > 0)
}

/// Reads the messages of a process until its end. Returns the last line that is not empty.
fn last_message(mut messages: ChildStderr, exit: &OwnedFd) -> String {
    let mut tail: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    let mut left = LAST_MESSAGES;
    loop {
        let mut fds = [PollFd::new(&messages, PollFlags::IN), PollFd::new(exit, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut fds, None)).is_err() {
            break;
        }
        let (readable, over) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if readable {
            match messages.read(&mut buffer) {
                Ok(n) if n > 0 => {
                    tail.extend_from_slice(&buffer[..n]);
                    // An unfinished line may follow one that is kept.
                    let excess = tail.len().saturating_sub(4 * LONGEST_MESSAGE);
                    tail.drain(..excess);
                    left = left.saturating_sub(if over { n } else { 0 });
                }
                // The process has closed them: nothing more comes.
                _ => break,
            }
        }
        if over && (!readable || left == 0) {
            break;
        }
    }
    printable(&tail)
}

/// The last line of messages, without control characters.
fn printable(messages: &[u8]) -> String {
    let line = messages.lines().map(ByteSlice::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let line = line.to_str_lossy();
    let text = line.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut room = LONGEST_MESSAGE;
    text.take_while(|c| {
        let fits = room >= c.len_utf8();
        room = room.saturating_sub(c.len_utf8());
        fits
    })
    .collect()
}

/// Attributes of a pipe.
fn pipe_metadata() -> Metadata {
    Metadata {
        kind: Kind::Fifo,
        size: 0,
        modified: (0, 0),
        changed: (0, 0),
        mode: 0o600,
        uid: 0,
        gid: 0,
        device: 0,
        inode: 0,
        links: 1,
        blocks: 0,
        target: None,
        readable: true,
        writable: true,
        searchable: false,
    }
}

/// The output of a program, from its start to its end. Offsets mean nothing.
pub struct ProgramOutput {
    process: Process,
    output: OwnedFd,
}

impl Lock for ProgramOutput {}

impl ReadHandle for ProgramOutput {
    fn metadata(&self) -> Result<Metadata> {
        Ok(pipe_metadata())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        loop {
            if let Some(n) = self.read_now(buffer, offset)? {
                return Ok(n);
            }
            is_ready(&self.output, PollFlags::IN, None);
        }
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.output.as_fd())
    }

    /// The end comes when the program has succeeded; until then there is nothing to read yet.
    fn read_now(&self, buffer: &mut [u8], _offset: u64) -> Result<Option<usize>> {
        match retry_on_intr(|| rustix::io::read(&self.output, &mut *buffer)) {
            Err(Errno::AGAIN) => Ok(None),
            Ok(0) if !buffer.is_empty() => Ok(self.process.has_ended(LOOK)?.then_some(0)),
            read => read.map(Some).context("read", &self.process.name),
        }
    }

    fn data_ranges(&self, start: u64, end: u64) -> Result<RangeSet> {
        Ok(RangeSet::from_range(start..end))
    }
}

/// The input of a program, in order.
pub struct ProgramInput {
    process: Process,
    input: OwnedFd,
    /// The offset of the next byte; `None` before the first one.
    next: Mutex<Option<u64>>,
}

impl ProgramInput {
    /// All data was written: closes the input, and waits until the program has ended. `proceed` is
    /// called several times a second, and its error ends the wait.
    ///
    /// # Errors
    /// The program has failed, or has not ended within `limit`; or the error of `proceed`.
    pub fn finish(
        this: Arc<Self>,
        limit: Option<Duration>,
        proceed: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let Some(Self { process, input, .. }) = Arc::into_inner(this) else {
            return Err(Error::new(ErrorKind::Busy, "run", "the program"));
        };
        drop(input);
        let begun = Instant::now();
        while !process.has_ended(LOOK)? {
            proceed()?;
            if let Some(limit) = limit.filter(|limit| begun.elapsed() >= *limit) {
                let seconds = limit.as_secs_f32();
                return Err(process.failed(format!("it has not ended {seconds} s after the end of the data")));
            }
        }
        Ok(())
    }

    /// The program reads no more, although there is data.
    fn stopped_reading(&self) -> Error {
        match self.process.has_ended(CLOSING) {
            Err(error) => error,
            Ok(_) => self.process.failed("it stopped reading before the end of the data"),
        }
    }
}

impl Lock for ProgramInput {}

impl WriteHandle for ProgramInput {
    fn metadata(&self) -> Result<Metadata> {
        Ok(pipe_metadata())
    }

    fn write_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            match self.write_now(data, offset)? {
                Some(n) => (data, offset) = (&data[n..], offset + n as u64),
                None => {
                    is_ready(&self.input, PollFlags::OUT, None);
                }
            }
        }
        Ok(())
    }

    fn positions(&self) -> Positions {
        Positions::Sequential
    }

    fn wait_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.input.as_fd())
    }

    fn write_now(&self, data: &[u8], offset: u64) -> Result<Option<usize>> {
        let mut next = self.next.lock();
        if next.is_some_and(|next| next != offset) {
            let error = Error::new(ErrorKind::Unsupported, "write", &self.process.name).at(offset);
            return Err(error.with_detail("a program takes bytes in order only, and these came out of turn"));
        }
        match retry_on_intr(|| rustix::io::write(&self.input, data)) {
            Ok(n) => {
                *next = Some(offset + n as u64);
                Ok(Some(n))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::PIPE) => Err(self.stopped_reading()),
            Err(errno) => Err(errno).context("write", &self.process.name),
        }
    }

    fn set_len(&self, _length: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A shell script: only tests run the shell.
    fn script(text: &str) -> Program {
        let argv = ["sh", "-c", text].map(OsString::from).to_vec();
        Program { path: "/bin/sh".into(), argv, directory: "/".into(), identity: None }
    }

    fn read_all(program: &Program) -> Result<Vec<u8>> {
        let output = program.open_read()?;
        let (mut all, mut buffer) = (Vec::new(), [0; 1000]);
        loop {
            match output.read_at(&mut buffer, all.len() as u64)? {
                0 => return Ok(all),
                n => all.extend_from_slice(&buffer[..n]),
            }
        }
    }

    fn write_all(program: &Program, data: &[u8]) -> Result<()> {
        let input = Arc::new(program.open_write()?);
        input.write_at(data, 0)?;
        ProgramInput::finish(input, Some(Duration::from_secs(20)), &mut || Ok(()))
    }

    #[test]
    fn output_of_program_is_read_to_its_end() {
        assert_eq!(read_all(&script("echo one; echo two >&2; echo three")).unwrap(), b"one\nthree\n");
    }

    #[test]
    fn program_that_fails_returns_its_last_message_in_place_of_the_end() {
        let error =
            read_all(&script("echo data; echo first >&2; printf 'bad \\033 thing\\n\\n' >&2; exit 7"));
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "run sh: the program has failed (exit code 7: bad   thing)");
        let text = read_all(&script("kill -9 $$")).unwrap_err().to_string();
        assert!(text.contains("ended by signal 9"), "{text}");
    }

    #[test]
    fn environment_and_group_of_program_are_its_own() {
        let own = rustix::process::getpgrp().as_raw_nonzero();
        let found = read_all(&script("env; ps -o pgid= -p $$ || echo 1")).unwrap();
        let text = found.to_str_lossy().into_owned();
        let known = ["PATH=/usr/local/bin:/usr/bin:/bin", "PWD=/", "_="];
        let variables: Vec<_> = text.lines().filter(|line| line.contains('=')).collect();
        assert!(variables.iter().all(|line| known.iter().any(|it| line.starts_with(it))), "{text}");
        assert_ne!(text.lines().last().unwrap().trim(), own.to_string());
    }

    #[test]
    fn input_of_program_is_closed_before_its_end_is_awaited() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("f");
        let data = vec![7; 300_000];
        write_all(&script(&format!("cat > {}", path.display())), &data).unwrap();
        assert!(std::fs::read(path).unwrap() == data);
    }

    #[test]
    fn program_that_does_not_read_all_fails_the_write() {
        let data = vec![7; 3 << 20];
        let text = write_all(&script("head -c 10 > /dev/null"), &data).unwrap_err().to_string();
        assert!(text.contains("stopped reading"), "{text}");
        let text = write_all(&script("echo no >&2; exit 3"), &data).unwrap_err().to_string();
        assert!(text.contains("exit code 3: no"), "{text}");
        let text = write_all(&script("cat > /dev/null; exit 4"), &data).unwrap_err().to_string();
        assert!(text.contains("exit code 4"), "{text}");
    }

    #[test]
    fn dropped_handle_kills_the_group_of_the_program() {
        let output = script("sleep 600 & echo $!; wait").open_read().unwrap();
        let mut buffer = [0; 20];
        let n = output.read_at(&mut buffer, 0).unwrap();
        let child: u32 = buffer[..n].to_str().unwrap().trim().parse().unwrap();
        drop(output);
        // The system reaps it in its own time.
        let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let until = Instant::now() + Duration::from_secs(20);
        while !state().is_empty() && !state().contains(") Z") {
            assert!(Instant::now() < until, "{}", state());
            std::thread::yield_now();
        }
    }

    #[test]
    fn missing_program_is_an_error_of_the_start() {
        let program = Program { path: "/nonexistent/program".into(), ..script("") };
        assert_eq!(program.open_read().err().unwrap().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn long_message_is_cut() {
        let text = printable("x\n".repeat(9).as_bytes());
        assert_eq!(text, "x");
        assert_eq!(printable("ä".repeat(400).as_bytes()).len(), LONGEST_MESSAGE);
    }
}
