//! Credentials of users from a MyProxy server (GFD-E.054), by its client program `myproxy-logon`.
//!
//! The FTP client's user name and password are those at the MyProxy server, which thus decides who
//! may log in. The program reads the password from its standard input and leaves a proxy in a
//! directory that is made for it alone. The gateway reads the proxy and removes the directory at
//! once: from then on the proxy is in memory, until the session ends.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ropewalk_client::Options;
use ropewalk_protocol::command::Password;
use ropewalk_remote_store::Delegated;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Deserialize;

/// The port of MyProxy servers.
const PORT: u16 = 7512;
/// The part of the program's messages that the log gets, in bytes.
const MESSAGES: u64 = 64 << 10;
const SHOWN: usize = 400;
/// The proxy in its directory.
const PROXY: &str = "proxy";
/// The variables of the process that the program gets: they say where programs and trusted
/// authorities are. A credential of the process is not among them.
const KEPT: [&str; 6] =
    ["PATH", "X509_CERT_DIR", "GLOBUS_LOCATION", "LD_LIBRARY_PATH", "MYPROXY_SERVER_DN", "TZ"];

/// The MyProxy server that proves users and has their credentials.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MyProxy {
    /// `host` or `host:port`.
    pub server: String,
    /// The client program. Default: `myproxy-logon`, of the directories in `PATH`.
    #[serde(default = "program")]
    pub program: PathBuf,
    /// Seconds after which a log-in fails. Default: 30.
    #[serde(default = "timeout")]
    pub timeout: u64,
    /// Hours for which a proxy is valid, which is the longest time of a session. Default: 12.
    #[serde(default = "hours")]
    pub hours: u32,
}

fn program() -> PathBuf {
    "myproxy-logon".into()
}

fn timeout() -> u64 {
    30
}

fn hours() -> u32 {
    12
}

impl MyProxy {
    pub fn new(server: String) -> Self {
        Self { server, program: program(), timeout: timeout(), hours: hours() }
    }

    /// Finds the program.
    ///
    /// # Errors
    /// The setting that is wrong, and why.
    pub(crate) fn prepare(&self) -> Result<Logon, (&'static str, String)> {
        let (host, port) = address(&self.server).ok_or_else(|| {
            let text = format!("{:?} is no server: expected HOST or HOST:PORT", self.server);
            ("myproxy.server", text)
        })?;
        if !(1..=600).contains(&self.timeout) {
            return Err(("myproxy.timeout", "expected 1 to 600 seconds".to_owned()));
        }
        if !(1..=10_000).contains(&self.hours) {
            return Err(("myproxy.hours", "expected 1 to 10000".to_owned()));
        }
        let program = find(&self.program).ok_or_else(|| {
            let name = self.program.display();
            let text = format!(
                "{name} is no program here: install MyProxy's client (Debian: myproxy), or name its myproxy-logon"
            );
            ("myproxy.program", text)
        })?;
        Ok(Logon { program, host, port, timeout: Duration::from_secs(self.timeout), hours: self.hours })
    }
}

/// Host and port of `host`, `host:port` or `[address]:port`.
fn address(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':')?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    let valid = !host.is_empty() && !host.starts_with('-') && host.chars().all(letter);
    let port = port.map_or(Some(PORT), |port| port.parse().ok().filter(|port| *port != 0))?;
    valid.then(|| (host.to_owned(), port))
}

/// The file of a program: by its path, or by its name in the directories of `PATH`.
fn find(program: &Path) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    if program.components().count() > 1 {
        return std::path::absolute(program).ok().filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(is_program)
}

/// Logs users on at the server.
#[derive(Debug)]
pub(crate) struct Logon {
    program: PathBuf,
    host: String,
    port: u16,
    timeout: Duration,
    hours: u32,
}

impl Logon {
    /// The credential of a user. `options` name the trusted authorities.
    ///
    /// # Errors
    /// The text for the client. It does not tell wrong passwords from unknown users; the log does.
    pub(crate) fn log_on(
        &self,
        options: &Options,
        user: &str,
        password: &Password,
    ) -> Result<Delegated, String> {
        let refused = |reason: String| -> String {
            tracing::warn!(user, server = self.host, reason, "log-in at MyProxy failed");
            "The log-in at the MyProxy server failed: the user or the password is wrong, or the server \
             cannot be used."
                .to_owned()
        };
        // The program reads one line.
        if password.expose().iter().any(|byte| matches!(byte, b'\n' | b'\r' | 0))
            || password.expose().is_empty()
        {
            return Err(refused("the password is empty or has a control character".to_owned()));
        }
        // No other user can enter it.
        let place = tempfile::Builder::new().prefix("ropewalk-myproxy-").tempdir();
        let place = place.map_err(|error| refused(format!("no private directory: {error}")))?;
        let done = self.run(options, user, password, place.path());
        let found = done.and_then(|()| Delegated::read(options, &place.path().join(PROXY)));
        let path = place.path().to_owned();
        if let Err(error) = place.close() {
            tracing::error!(directory = %path.display(), %error, "a directory with a proxy stays");
        }
        found.map_err(refused)
    }

    fn run(&self, options: &Options, user: &str, password: &Password, place: &Path) -> Result<(), String> {
        let failed = |error: io::Error| format!("{}: {error}", self.program.display());
        let messages = place.join("messages");
        let output = File::create(&messages).map_err(failed)?;
        let mut command = Command::new(&self.program);
        command.env_clear();
        for name in KEPT {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        if let Some(authorities) = &options.trust.authorities {
            command.env("X509_CERT_DIR", authorities);
        }
        // There is no credential with which it could prove to be another one than the user.
        command.env("HOME", place).env("X509_USER_PROXY", place.join("none"));
        command.arg("--stdin_pass").args(["--pshost", &self.host, "--psport", &self.port.to_string()]);
        command.args(["--username", user, "--proxy_lifetime", &self.hours.to_string(), "--out"]);
        command.arg(place.join(PROXY)).current_dir(place).process_group(0);
        command.stdin(Stdio::piped()).stdout(output.try_clone().map_err(failed)?).stderr(output);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut input) = child.stdin.take() {
            // A program that does not read it fails, and says why.
            let _ = input.write_all(password.expose()).and_then(|()| input.write_all(b"\n"));
        }
        let status = wait(&mut child, self.timeout).map_err(failed)?;
        let said = || {
            let text = ropewalk_files::read(&messages, MESSAGES).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).replace(|c: char| c.is_control(), " ");
            text.trim().chars().take(SHOWN).collect::<String>()
        };
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{status}: {}", said())),
            None => Err(format!("no answer within {} s: {}", self.timeout.as_secs(), said())),
        }
    }
}

/// Returns `None` if the program does not end in time. It is killed then, with its children.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    let pid = Pid::from_child(child);
    let ended = pidfd_open(pid, PidfdFlags::empty()).and_then(|exit| {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
            match poll(&mut [PollFd::new(&exit, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                result => return result.map(|ready| ready > 0),
            }
        }
    });
    if !matches!(ended, Ok(true)) {
        // It fails only if all of them have ended.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    let status = child.wait()?;
    Ok(ended?.then_some(status))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::Permissions;

    use super::*;

    /// A program that runs this script, with `$out` for the file of the proxy.
    fn logon(directory: &Path, script: &str) -> Logon {
        let program = directory.join("logon");
        let text = format!("#!/bin/sh\nfor out; do :; done\n{script}\n");
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let settings = MyProxy { program, timeout: 20, ..MyProxy::new("myproxy.example".to_owned()) };
        settings.prepare().unwrap()
    }

    fn run(logon: &Logon, place: &Path) -> Result<(), String> {
        logon.run(&Options::default(), "ada", &Password::new("secret"), place)
    }

    #[test]
    fn server_is_a_host_with_or_without_a_port() {
        for (text, expected) in [
            ("h", Some(("h", 7512))),
            ("h.example:7", Some(("h.example", 7))),
            ("[::1]", Some(("::1", 7512))),
            ("[::1]:99", Some(("::1", 99))),
            ("", None),
            (":1", None),
            ("-h", None),
            ("h:0", None),
            ("h:x", None),
            ("h i", None),
            ("[::1]x", None),
        ] {
            let found = address(text);
            assert_eq!(found, expected.map(|(host, port)| (host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn program_that_is_missing_is_named() {
        let settings = |program: &str| MyProxy { program: program.into(), ..MyProxy::new("h".to_owned()) };
        for missing in ["no-such-myproxy", "/nonexistent/logon", "/etc/passwd"] {
            let (setting, text) = settings(missing).prepare().unwrap_err();
            assert!(setting == "myproxy.program" && text.contains(missing), "{setting}: {text}");
        }
        assert!(settings("sh").prepare().is_ok());
    }

    #[test]
    fn program_gets_the_password_and_no_credential_of_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let logon = logon(directory.path(), "{ cat; env; echo \"$@\"; } > \"$out\"");
        run(&logon, directory.path()).unwrap();
        let text = std::fs::read_to_string(directory.path().join(PROXY)).unwrap();
        assert!(text.starts_with("secret\n") && text.contains("--username ada "), "{text}");
        assert!(text.contains("--pshost myproxy.example --psport 7512"), "{text}");
        let names = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name);
        for name in names.filter(|name| name.starts_with("X509_USER")) {
            assert_eq!(name, "X509_USER_PROXY");
        }
        assert!(text.contains(&format!("X509_USER_PROXY={}/none", directory.path().display())), "{text}");
    }

    #[test]
    fn program_that_fails_or_hangs_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let refused = logon(directory.path(), "echo invalid pass phrase >&2; exit 1");
        let text = run(&refused, directory.path()).unwrap_err();
        assert!(text.contains("invalid pass phrase"), "{text}");
        // A process that it has started ends with it.
        let hangs = logon(directory.path(), "sleep 1000 & echo $! > \"$out\"; wait");
        let hangs = Logon { timeout: Duration::from_millis(300), ..hangs };
        let text = run(&hangs, directory.path()).unwrap_err();
        assert!(text.contains("no answer"), "{text}");
    }
}
