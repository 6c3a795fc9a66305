//! Programs on hosts. Each runs in the namespaces of its host and in a process group of its own,
//! without standard input. A thread waits for its end and reports it with the exit code and the CPU
//! time.

use super::output::Output;
use crate::{
    netns::Spaces,
    record::cpu::{self, Cpu},
    results::End,
};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::{
    collections::BTreeMap,
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Child, Command, ExitStatus, Stdio},
    thread::{self, JoinHandle},
    time::Instant,
};

/// Variables that are removed from the environment. Most would make programs use their own files
/// outside the lab, from earlier runs. No host of the lab can reach a proxy.
const REMOVED: [&str; 14] = [
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
    "RUST_BACKTRACE",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "ftp_proxy",
    "FTP_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "HTTP_PROXY",
];

/// The parameters of a program to start.
pub(super) struct Launch<'a> {
    pub(super) arguments: &'a [String],
    pub(super) environment: &'a BTreeMap<String, String>,
    pub(super) directory: &'a str,
    /// Number of bytes of output to keep.
    pub(super) keep: usize,
    /// A text to look for in the lines of its output.
    pub(super) wanted: Option<&'a str>,
}

/// A running program, in a process group of its own.
pub(super) struct Process {
    pub(super) started: Instant,
    pub(super) output: Output,
    pub(super) pid: u32,
    waiter: Option<JoinHandle<()>>,
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) at: Instant,
    pub(super) end: End,
    pub(super) cpu: Cpu,
}

/// Returns the command for a host, with its environment, without starting it.
pub(super) fn prepare(
    arguments: &[String],
    environment: &BTreeMap<String, String>,
    directory: &str,
) -> Command {
    let (program, rest) =
        arguments.split_first().map_or(("/bin/sh", &[][..]), |(first, rest)| (first.as_str(), rest));
    let mut command = Command::new(program);
    command.args(rest).envs(environment).current_dir(directory);
    REMOVED.iter().filter(|name| !environment.contains_key(**name)).for_each(|name| {
        command.env_remove(name);
    });
    command
}

impl Process {
    /// Starts a program on a host. `on_end` is called once, on another thread.
    pub(super) fn start(
        spaces: &Spaces,
        launch: &Launch<'_>,
        on_end: impl FnOnce(Ended) + Send + 'static,
    ) -> io::Result<Self> {
        let mut command = prepare(launch.arguments, launch.environment, launch.directory);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let (mut child, started) = spaces.inside(|| Ok((command.spawn()?, Instant::now())))?;
        let output = Output::default();
        if let Some(wanted) = launch.wanted {
            output.want(wanted);
        }
        if let Some(stdout) = child.stdout.take() {
            output.read(0, stdout, launch.keep);
        }
        if let Some(stderr) = child.stderr.take() {
            output.read(1, stderr, launch.keep);
        }
        let (pid, own) = (child.id(), output.clone());
        let waiter = thread::Builder::new().name("lab-wait".into()).spawn(move || {
            let ended = wait(child);
            own.end();
            on_end(ended);
        })?;
        Ok(Self { started, output, pid, waiter: Some(waiter) })
    }

    /// Sends a signal to the program's process group.
    pub(super) fn signal(&self, signal: Signal) {
        if self.output.ended() {
            // The kernel may have reused the process id.
            return;
        }
        if let Some(group) = Pid::from_raw(self.pid as i32) {
            // The program may have ended just now.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits until `on_end` has returned.
    pub(super) fn join(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            // The panic message of this thread has been printed already.
            let _ = waiter.join();
        }
    }
}

fn wait(mut child: Child) -> Ended {
    let pid = child.id();
    let before = Pid::from_raw(pid as i32)
        .and_then(|pid| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).ok());
    let at = Instant::now();
    // The process has ended but was not waited for, so its CPU time is still in /proc.
    let cpu = before.and_then(|_| cpu::of_process(pid)).unwrap_or_default();
    let end = child.wait().map_or(End::Stopped, end_of);
    Ended { at, end, cpu }
}

fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, Some(signal)) => End::Signal(signal),
        (None, None) => End::Stopped,
    }
}
