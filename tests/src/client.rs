//! Describes a copy once and runs it with any of the GridFTP clients under test.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::peers;
use crate::process::{self, Outcome, Program};
use crate::server::percent_encode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Ropewalk,
    /// GCT's globus-url-copy.
    Guc,
    /// Ropewalk's `globus-url-copy` command, which accepts the options of GCT's client.
    Compatible,
}

/// Data channels of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The client's own choice.
    #[default]
    Auto,
    Stream,
    /// MODE E with this number of streams.
    Extended(u32),
}

/// A copy and its options, independent of the client that runs it.
#[derive(Clone, Debug)]
pub struct Copy {
    pub source: OsString,
    pub destination: OsString,
    pub mode: Mode,
    /// Offset and length of the range to copy.
    pub window: Option<(u64, u64)>,
    pub recursive: bool,
    pub pipelined: bool,
    /// Number of concurrent control connections; `None`: the client's own choice.
    pub concurrency: Option<u32>,
    pub sync: bool,
    pub verify: bool,
    pub ipv6: bool,
    /// Retry after a connection failure.
    pub restart: bool,
    pub ascii: bool,
    pub delayed_passive: bool,
    /// Further arguments for the client.
    pub arguments: Vec<OsString>,
    pub limit: Duration,
}

impl Copy {
    pub fn new(source: impl Into<OsString>, destination: impl Into<OsString>) -> Self {
        Self {
            source: source.into(),
            destination: destination.into(),
            mode: Mode::Auto,
            window: None,
            recursive: false,
            pipelined: false,
            concurrency: None,
            sync: false,
            verify: false,
            ipv6: false,
            restart: false,
            ascii: false,
            delayed_passive: false,
            arguments: Vec::new(),
            limit: Duration::from_secs(60),
        }
    }

    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    pub fn window(mut self, offset: u64, length: u64) -> Self {
        self.window = Some((offset, length));
        self
    }

    pub fn recursive(mut self) -> Self {
        self.recursive = true;
        self
    }

    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }
}

impl Client {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ropewalk => "ropewalk",
            Self::Guc => "globus-url-copy",
            Self::Compatible => "ropewalk globus-url-copy",
        }
    }

    /// Returns a local path in the notation that this client expects.
    pub fn local(self, path: &Path, is_directory: bool) -> OsString {
        let slash = if is_directory { "/" } else { "" };
        match self {
            Self::Ropewalk => {
                let mut text = path.as_os_str().to_owned();
                text.push(slash);
                text
            }
            Self::Guc | Self::Compatible => {
                format!("file://{}{slash}", percent_encode(path.as_os_str().as_bytes())).into()
            }
        }
    }

    /// Builds the command line for `copy`.
    pub fn command(self, copy: &Copy) -> Result<Command> {
        match self {
            Self::Ropewalk => ropewalk(copy),
            Self::Guc => {
                let binary = peers::find("globus-url-copy").context("globus-url-copy is not installed")?;
                Ok(guc(process::command(binary), copy))
            }
            Self::Compatible => {
                let mut command = peers::ropewalk_command()?;
                command.arg("globus-url-copy");
                Ok(guc(command, copy))
            }
        }
    }

    /// Runs `copy` to completion.
    pub fn run(self, copy: &Copy) -> Result<Outcome> {
        process::run(&mut self.command(copy)?, copy.limit)
    }

    /// Lists the directory at `url`.
    pub fn list(self, url: &str) -> Result<Outcome> {
        let mut command = match self {
            Self::Ropewalk => {
                let mut command = peers::ropewalk_command()?;
                command.arg("ls");
                command
            }
            Self::Guc | Self::Compatible => {
                let mut command = self.command(&Copy::new("", ""))?;
                let words: Vec<OsString> = command.get_args().map(OsStr::to_owned).collect();
                let program = command.get_program().to_owned();
                // Drop the source and the destination at the end.
                command = Command::new(program);
                command.args(&words[..words.len() - 2]).arg("-list");
                command
            }
        };
        process::run(command.arg(url), Duration::from_secs(30))
    }

    /// Starts `copy` without waiting, for a test that disturbs the running client.
    pub fn start(self, copy: &Copy) -> Result<Program> {
        Program::start(&mut self.command(copy)?)
    }
}

fn ropewalk(copy: &Copy) -> Result<Command> {
    let mut command = peers::ropewalk_command()?;
    command.args(["cp", "--json"]);
    match copy.mode {
        Mode::Auto => &mut command,
        Mode::Stream => command.args(["--mode", "stream"]),
        Mode::Extended(streams) => command.args(["--mode", "extended", "-p", &streams.to_string()]),
    };
    if let Some((offset, length)) = copy.window {
        command.args(["--offset", &offset.to_string(), "--length", &length.to_string()]);
    }
    let switches = [(copy.recursive, "-r"), (copy.sync, "--sync"), (copy.ascii, "--ascii")];
    command.args(switches.iter().filter(|(on, _)| *on).map(|(_, switch)| switch));
    if copy.delayed_passive {
        command.arg("--delayed-passive");
    }
    if copy.pipelined {
        command.args(["--pipeline", "16"]);
    }
    if let Some(count) = copy.concurrency {
        command.args(["--files", &count.to_string()]);
    }
    if copy.restart {
        command.arg("--retry-pause=200ms");
    }
    command.args(&copy.arguments).arg(&copy.source).arg(&copy.destination);
    Ok(command)
}

fn guc(mut command: Command, copy: &Copy) -> Command {
    // Without this variable, globus-url-copy announces the address of the machine's host name.
    if copy.ipv6 {
        command.arg("-ipv6");
    } else {
        command.env("GLOBUS_HOSTNAME", "127.0.0.1");
    }
    if let Mode::Extended(streams) = copy.mode {
        command.args(["-p", &streams.to_string()]);
    }
    if let Some((offset, length)) = copy.window {
        command.args(["-off", &offset.to_string(), "-len", &length.to_string()]);
    }
    if copy.recursive {
        command.args(["-r", "-cd"]);
    }
    if copy.pipelined {
        command.arg("-pp");
    }
    if let Some(count) = copy.concurrency {
        command.args(["-cc", &count.to_string()]);
    }
    if copy.sync {
        command.args(["-sync", "-sync-level", "1"]);
    }
    if copy.verify {
        command.arg("-verify-checksum");
    }
    if copy.restart {
        command.args(["-rst", "-rst-interval", "1", "-rst-retries", "10"]);
    }
    if copy.ascii {
        command.arg("-a");
    }
    if copy.delayed_passive {
        command.arg("-dp");
    }
    command.args(&copy.arguments).arg(&copy.source).arg(&copy.destination);
    command
}

/// The `finished` event at the end of the output of `ropewalk cp --json`.
#[derive(Clone, Debug)]
pub struct Summary(Value);

impl Summary {
    /// Parses the standard output of a finished run.
    pub fn of(outcome: &Outcome) -> Result<Self> {
        Self::parse(&outcome.text())
    }

    pub fn parse(stdout: &str) -> Result<Self> {
        let mut found = None;
        for line in stdout.lines().filter(|line| !line.trim().is_empty()) {
            let event: Value =
                serde_json::from_str(line).with_context(|| format!("not a JSON event: {line}"))?;
            if event["event"] == "finished" {
                ensure!(found.is_none(), "two `finished` events");
                found = Some(event);
            }
        }
        Ok(Self(found.context("no `finished` event")?))
    }

    /// Returns an integer field of the summary.
    pub fn number(&self, name: &str) -> Result<u64> {
        self.0[name].as_u64().with_context(|| format!("the summary has no number `{name}`: {}", self.0))
    }

    pub fn value(&self) -> &Value {
        &self.0
    }
}
