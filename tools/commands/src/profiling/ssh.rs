//! A host that ssh reaches and that has this program: for foreign servers, and for servers that
//! take no profiles.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use parking_lot::Mutex;
use ropewalk_client::{Cancel, SshOptions};
use ropewalk_profiler::profile::{Exchange, HostProfile, RawFile, Role};
use ropewalk_protocol::profiling::is_raw_name;

use super::end::now;
use super::patience::{LOOK, Patience};

/// Time limit for the log-in and the start of collectors.
pub(super) const BEGINNING: Duration = Duration::from_secs(90);
/// Time limit for collectors to process their data.
pub(super) const ENDING: Duration = Duration::from_secs(330);
/// The same once the user wants to stop; results so far are reported.
pub(super) const GRACE: Duration = Duration::from_secs(30);
/// Longest output line.
const LINE: u64 = 4096;
/// Bytes of standard error that are kept.
const COMPLAINTS: usize = 2048;
/// Wait for the rest of it: a process in the background may hold it open forever.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Most tool files that are accepted.
pub(super) const MOST_RAW: usize = 16;

/// A message from the process.
enum Said {
    Line(String),
    Raw(RawFile),
    Profile(Vec<u8>),
    Broken(String),
}

/// A process that is controlled by its standard input. Dropping this stops it.
pub(crate) struct SshEnd {
    host: String,
    role: Role,
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<Said>,
    complaints: Complaints,
    /// Clock requests that are not answered yet: answers come in order.
    unanswered: usize,
    stop: Cancel,
}

impl SshEnd {
    /// `command` runs there, with its arguments, in the syntax of a shell.
    pub(crate) fn start(
        host: &str,
        command: &str,
        role: Role,
        ssh: &SshOptions,
        cancel: &Cancel,
    ) -> anyhow::Result<Self> {
        let (line, end) = Self::ask(host, command, role, ssh, cancel)?;
        match line.split_once(' ') {
            Some(("ropewalk-profile", rest)) if rest.starts_with("1 ") => Ok(end),
            _ => bail!("{host} printed {line:?}, expected the output of `ropewalk profile --collect`"),
        }
    }

    /// Starts the process. Returns it and its first output line; until then `cancel` stops it.
    pub(crate) fn ask(
        host: &str,
        command: &str,
        role: Role,
        ssh: &SshOptions,
        cancel: &Cancel,
    ) -> anyhow::Result<(String, Self)> {
        if host.is_empty() || host.starts_with('-') {
            bail!("{host:?} is not a host name");
        }
        let program = ssh.program.first().map_or(OsStr::new("ssh"), OsString::as_os_str);
        let mut process = unheeding(program)?;
        process.args(ssh.program.iter().skip(1));
        if Path::new(program).file_name() == Some(OsStr::new("ssh")) {
            // Its output belongs to us: the terminal is for questions only.
            process.args(["-T", "-o", if ssh.interactive { "BatchMode=no" } else { "BatchMode=yes" }, "--"]);
        }
        process.arg(host).arg(command);
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            process.spawn().with_context(|| format!("{} cannot be started", program.to_string_lossy()))?;
        let (Some(input), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            bail!("ssh has no standard input and output");
        };
        let (say, said) = mpsc::sync_channel(4);
        thread::Builder::new().name("ssh".into()).spawn(move || listen(output, &say))?;
        let complaints = Complaints::of(errors)?;
        let (host, stop) = (host.to_owned(), cancel.clone());
        let mut end = Self { host, role, child, input: Some(input), said, complaints, unanswered: 0, stop };
        let line = end.first_line(cancel)?;
        Ok((line, end))
    }

    pub(super) fn name(&self) -> &str {
        &self.host
    }

    pub(super) fn read_clock(&mut self, patience: &Patience) -> anyhow::Result<Exchange> {
        let late = self.unanswered;
        let asked = now();
        self.input.as_mut().context("it was told to stop")?.write_all(b"clock\n")?;
        self.unanswered += 1;
        // A late answer to an earlier request says nothing about the path.
        for _ in 0..late {
            self.clock(patience)?;
        }
        let line = self.clock(patience)?;
        let theirs = line.strip_prefix("clock ").and_then(|time| time.parse::<f64>().ok());
        let theirs = theirs.with_context(|| format!("it printed {line:?}, expected its time"))?;
        Ok(Exchange { asked, heard: theirs, answered: theirs, had: now() })
    }

    pub(super) fn finish(mut self) -> anyhow::Result<HostProfile> {
        // The end of its input tells it to stop.
        drop(self.input.take());
        let mut raw = Vec::new();
        loop {
            match self.hear(&Patience::new(ENDING, &self.stop, GRACE)) {
                // Late answers.
                Ok(Said::Line(line)) if self.unanswered > 0 && line.starts_with("clock ") => {
                    self.unanswered -= 1;
                }
                Ok(Said::Raw(_)) if raw.len() >= MOST_RAW => bail!("it has more than {MOST_RAW} raw files"),
                Ok(Said::Raw(file)) => raw.push(file),
                Ok(Said::Profile(bytes)) => {
                    return Ok(HostProfile { role: self.role, raw, ..HostProfile::from_json(&bytes)? });
                }
                Ok(Said::Line(line)) => bail!("it printed {line:?}, expected its profile"),
                Ok(Said::Broken(why)) => return Err(self.ended(&why)),
                Err(error) => return Err(error),
            }
        }
    }

    fn first_line(&mut self, cancel: &Cancel) -> anyhow::Result<String> {
        let deadline = Instant::now() + BEGINNING;
        loop {
            if cancel.is_cancelled() {
                bail!("interrupted");
            }
            match self.said.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
                said => return self.line_of(said, BEGINNING),
            }
        }
    }

    fn clock(&mut self, patience: &Patience) -> anyhow::Result<String> {
        let said = self.hear(patience)?;
        let line = self.line_of(Ok(said), BEGINNING)?;
        self.unanswered -= 1;
        Ok(line)
    }

    fn hear(&self, patience: &Patience) -> anyhow::Result<Said> {
        let mut tried = patience.begin();
        loop {
            match self.said.recv_timeout(tried.step()) {
                Ok(said) => return Ok(said),
                Err(RecvTimeoutError::Timeout) if !tried.is_over() => {}
                Err(_) => bail!(patience.words()),
            }
        }
    }

    fn line_of(&mut self, said: Result<Said, RecvTimeoutError>, limit: Duration) -> anyhow::Result<String> {
        match said {
            Ok(Said::Line(line)) => Ok(line),
            Ok(Said::Profile(_) | Said::Raw(_)) => bail!("it has ended by itself"),
            Ok(Said::Broken(why)) => Err(self.ended(&why)),
            Err(_) => bail!("it printed nothing within {} seconds", limit.as_secs()),
        }
    }

    /// Returns the reason of its end, in its own words if it printed any.
    fn ended(&mut self, why: &str) -> anyhow::Error {
        drop(self.input.take());
        // It may still run although its output has ended.
        let code = match self.child.try_wait() {
            Ok(Some(status)) => status.code(),
            _ => {
                let _ = self.child.kill();
                self.child.wait().ok().and_then(|status| status.code())
            }
        };
        let words = self.complaints.words();
        let words = words.trim();
        let missing = code == Some(127) || words.contains("command not found");
        match (missing, words.lines().last()) {
            (true, words) => anyhow!(
                "there is no ropewalk on {} ({}): install it there, or name it with --collect-command",
                self.host,
                words.unwrap_or("code 127")
            ),
            (false, Some(words)) => anyhow!("{words}"),
            (false, None) => anyhow!("{why}"),
        }
    }
}

impl Drop for SshEnd {
    fn drop(&mut self) {
        drop(self.input.take());
        // It has ended, or its end is not waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command for `program` that ignores Ctrl-C at the terminal. The signal goes to all processes
/// there, and the other host's results are still expected. A process group of its own would have
/// the same effect, but then ssh could not ask there.
fn unheeding(program: &OsStr) -> anyhow::Result<Command> {
    let found = |path: &Path| path.is_file();
    let search = || std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
    let there = if Path::new(program).components().count() > 1 {
        found(Path::new(program))
    } else {
        search().iter().any(|directory| found(&directory.join(program)))
    };
    if !there {
        bail!("{} cannot be started: there is no such program", program.to_string_lossy());
    }
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"trap '' INT; exec "$@""#, "ropewalk-ssh"]).arg(program);
    Ok(command)
}

fn listen(output: ChildStdout, say: &SyncSender<Said>) {
    let mut output = BufReader::new(output);
    loop {
        let said = heard(&mut output);
        let last = !matches!(said, Said::Line(_) | Said::Raw(_));
        if say.send(said).is_err() || last {
            return;
        }
    }
}

fn heard(output: &mut impl BufRead) -> Said {
    let mut line = Vec::new();
    match output.take(LINE).read_until(b'\n', &mut line) {
        Ok(1..) if line.ends_with(b"\n") => {}
        Ok(n) if n as u64 == LINE => {
            return Said::Broken(format!("it printed more than {LINE} bytes in a line"));
        }
        Ok(_) => return Said::Broken("it ended".to_owned()),
        Err(error) => return Said::Broken(error.to_string()),
    }
    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
    if let Some(rest) = line.strip_prefix("raw ") {
        return raw(rest, output);
    }
    let Some(length) = line.strip_prefix("profile ") else { return Said::Line(line) };
    let Some(length) = length.parse().ok().filter(|length| *length <= HostProfile::LARGEST as u64) else {
        return Said::Broken(format!("its profile is to have {length} bytes, which are not read"));
    };
    let mut bytes = Vec::new();
    match output.take(length).read_to_end(&mut bytes) {
        Ok(n) if n as u64 == length => Said::Profile(bytes),
        Ok(n) => Said::Broken(format!("its profile ended after {n} of {length} bytes")),
        Err(error) => Said::Broken(error.to_string()),
    }
}

/// A tool's file: `NAME LENGTH`, then its bytes.
fn raw(line: &str, output: &mut impl BufRead) -> Said {
    let Some((name, length)) = line.split_once(' ').filter(|(name, _)| is_raw_name(name.as_bytes())) else {
        return Said::Broken(format!("it printed {line:?}, expected the name and length of a raw file"));
    };
    let Some(length) = length.parse().ok().filter(|length| *length <= RawFile::LARGEST as u64) else {
        return Said::Broken(format!("its file {name} is to have {length} bytes, which are not read"));
    };
    let mut bytes = Vec::new();
    match output.take(length).read_to_end(&mut bytes) {
        Ok(n) if n as u64 == length => Said::Raw(RawFile { name: name.to_owned(), bytes }),
        Ok(n) => Said::Broken(format!("its file {name} ended after {n} of {length} bytes")),
        Err(error) => Said::Broken(error.to_string()),
    }
}

/// The beginning of its standard error. The rest is read and dropped, so that the process never
/// blocks.
struct Complaints {
    text: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

impl Complaints {
    fn of(mut errors: ChildStderr) -> std::io::Result<Self> {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let (end, ended) = mpsc::channel();
        let kept = Arc::clone(&text);
        thread::Builder::new().name("ssh".into()).spawn(move || {
            // Dropping it signals the end.
            let _end: mpsc::Sender<()> = end;
            let mut buffer = [0; 1024];
            while let Ok(n @ 1..) = errors.read(&mut buffer) {
                let mut text = kept.lock();
                let room = COMPLAINTS - text.len();
                text.extend_from_slice(&buffer[..n.min(room)]);
            }
        })?;
        Ok(Self { text, ended })
    }

    fn words(&self) -> String {
        let _ = self.ended.recv_timeout(LAST_WORDS);
        let text = self.text.lock();
        String::from_utf8_lossy(&text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn output_of_the_collector_is_limited() {
        let mut said = &b"clock 12.5\nraw sar 2\nxyprofile 3\nabcdef"[..];
        assert!(matches!(heard(&mut said), Said::Line(line) if line == "clock 12.5"));
        assert!(matches!(heard(&mut said), Said::Raw(file) if file.name == "sar" && file.bytes == b"xy"));
        assert!(matches!(heard(&mut said), Said::Profile(bytes) if bytes == b"abc"));
        for bad in [
            &b"profile 99999999999\n"[..],
            b"profile x\n",
            b"profile 5\nabc",
            b"",
            b"half a line",
            b"raw ../x 1\nx",
            b"raw x 99999999999\n",
            b"raw x 5\nabc",
        ] {
            assert!(matches!(heard(&mut &*bad), Said::Broken(_)), "{}", String::from_utf8_lossy(bad));
        }
        let long = vec![b'x'; 10_000];
        assert!(matches!(heard(&mut &*long), Said::Broken(_)));
    }

    fn shell() -> SshOptions {
        // Replaces ssh: $1 is the host, $2 the command.
        SshOptions {
            program: ["sh", "-c", "exec sh -c \"$2\"", "ssh"].map(Into::into).to_vec(),
            ..SshOptions::default()
        }
    }

    fn start(command: &str) -> anyhow::Result<SshEnd> {
        SshEnd::start("host", command, Role::Source, &shell(), &Cancel::new())
    }

    #[test]
    fn host_without_the_program_is_reported() {
        let error = start("no-such-program-here --collect").err().unwrap().to_string();
        assert!(
            error.contains("there is no ropewalk on host") && error.contains("--collect-command"),
            "{error}"
        );
        let error = start("echo hello").err().unwrap().to_string();
        assert!(error.contains("\"hello\""), "{error}");
        let error = start("echo 'Permission denied' >&2; exit 255").err().unwrap().to_string();
        assert_eq!(error, "Permission denied");
        let never = Cancel::new();
        assert!(SshEnd::start("-oProxyCommand=x", "true", Role::Source, &shell(), &never).is_err());
        let none = SshOptions { program: vec!["no-such-ssh".into()], ..SshOptions::default() };
        let error = SshEnd::start("host", "true", Role::Source, &none, &never).err().unwrap().to_string();
        assert!(error.contains("no-such-ssh cannot be started"), "{error}");
    }

    #[test]
    fn pending_log_in_ends_at_ctrl_c() {
        let cancel = Cancel::new();
        cancel.cancel();
        let error = SshEnd::start("host", "exec sleep 100", Role::Source, &shell(), &cancel);
        assert_eq!(error.err().unwrap().to_string(), "interrupted");
    }

    /// Like Ctrl-C at a terminal, which goes to all processes there.
    #[test]
    fn collector_ignores_ctrl_c() {
        let script = "kill -INT $$; echo ropewalk-profile 1 5.0; cat > /dev/null";
        start(script).unwrap();
    }

    fn patience() -> Patience {
        Patience::new(BEGINNING, &Cancel::new(), Duration::ZERO)
    }

    #[test]
    fn late_clock_answer_is_discarded() {
        let profile = r#"{"schema":1,"role":"source","started":5.0}"#;
        let end = |script: &str| {
            let begin = "echo ropewalk-profile 1 5.0";
            start(&format!(
                "{begin}; {script}; cat > /dev/null; echo profile {}; echo '{profile}'",
                profile.len()
            ))
            .unwrap()
        };
        let hasty = Patience::new(Duration::from_millis(1), &Cancel::new(), Duration::ZERO);
        // It answers the first request only after the second.
        let mut late = end("read one; read two; echo clock 1.5; echo clock 2.5");
        assert!(late.read_clock(&hasty).is_err());
        assert_eq!(late.read_clock(&patience()).unwrap().heard, 2.5);
        late.finish().unwrap();
        // Or only after the request to stop.
        let mut later = end("cat > /dev/null; echo clock 1.5");
        assert!(later.read_clock(&hasty).is_err());
        later.finish().unwrap();
    }

    #[test]
    fn silent_collector_is_abandoned_after_ctrl_c() {
        let cancel = Cancel::new();
        let script = "echo ropewalk-profile 1 5.0; exec sleep 1000";
        let end = SshEnd::start("host", script, Role::Source, &shell(), &cancel).unwrap();
        cancel.cancel();
        let error = end.hear(&Patience::new(ENDING, &cancel, Duration::ZERO)).err().unwrap().to_string();
        assert!(error.contains("did not answer"), "{error}");
    }

    #[test]
    fn profile_of_the_collector_is_checked() {
        let says = |profile: &str| {
            let script = format!(
                "echo ropewalk-profile 1 5.0; read line; echo clock 7.5; cat > /dev/null; printf 'profile {}\\n%s' '{profile}'",
                profile.len()
            );
            let mut end = start(&script).unwrap();
            let reading = end.read_clock(&patience()).unwrap();
            assert_eq!((reading.heard, reading.answered), (7.5, 7.5));
            end.finish()
        };
        assert_eq!(says(r#"{"schema":1,"role":"destination","started":5.0}"#).unwrap().role, Role::Source);
        assert!(says(r#"{"schema":1,"role":"source","started":-5.0}"#).is_err());
        assert!(says("nonsense").is_err());
    }
}
