//! Runs scenarios.
//!
//! [`run`] builds the hosts and links of a scenario, runs its commands, measures, and removes
//! everything. [`Lab`] does the same in steps, for interactive use ([`shell`]).
//!
//! Namespaces, interfaces, mounts and temporary files belong to the calling process and have no
//! names in the file system. They are removed, and the programs are killed, when the process ends
//! for any reason.

mod build;
mod change;
mod commands;
mod context;
mod files;
mod finish;
mod lab;
mod output;
mod process;
mod registry;
mod servers;
mod shell;
mod traffic;

pub use change::change;
pub use lab::Lab;
pub use registry::{HostInfo, LabInfo, labs};
pub use shell::shell;

use context::Context;

use crate::{
    results::{End, RunResult},
    scenario::Scenario,
};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, mpsc::Sender},
};

use parking_lot::Mutex;

/// Options of a run.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Name of the lab, under which [`shell`] finds it. If absent, the lab gets an unused name.
    pub name: Option<String>,
    /// The value of `{ropewalk}`. If absent, the running executable.
    pub program: Option<PathBuf>,
    /// A handle that ends the run early.
    pub stop: Stop,
    /// Receives the events of the run, possibly from several threads.
    pub events: Option<Listener>,
}

/// A callback for the events of a run.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// A handle that ends a run early. Clones refer to the same run.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<Stopping>>);

#[derive(Default)]
struct Stopping {
    stopped: bool,
    waiting: Vec<Sender<Message>>,
}

impl Stop {
    /// Asks the run to end: commands are killed, everything is removed, and the result is
    /// [`RunError::Stopped`].
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.stopped = true;
        for waiting in state.waiting.drain(..) {
            // A run that has ended no longer receives messages.
            let _ = waiting.send(Message::Stop);
        }
    }

    /// Whether [`Self::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.0.lock().stopped
    }

    /// Sends a message when [`Self::stop`] is called, or at once if it was called already.
    fn tell(&self, messages: &Sender<Message>) {
        let mut state = self.0.lock();
        if state.stopped {
            let _ = messages.send(Message::Stop);
        } else {
            state.waiting.push(messages.clone());
        }
    }
}

/// The events for which a running lab waits.
enum Message {
    Stop,
    Ended(Program, process::Ended),
}

/// A program of the scenario, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Command(usize),
    Server(usize),
    /// A command of `prepare`.
    Prepare,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Hosts and links are being created.
    Building {
        /// The lab's unique name.
        lab: String,
    },
    /// A command of `prepare` starts. The files of the scenario have been written before the first
    /// one.
    Preparing {
        /// The host.
        host: String,
        /// The command line.
        run: String,
    },
    /// A server is ready.
    Ready {
        /// Name of the server.
        server: String,
    },
    /// Time zero.
    Started,
    /// A command has started.
    CommandStarted {
        /// Name of the command.
        command: String,
        /// Seconds from time zero.
        at: f64,
    },
    /// A command has ended.
    CommandEnded {
        /// Name of the command.
        command: String,
        /// Duration in seconds.
        seconds: f64,
        /// How it ended.
        end: End,
    },
    /// The current state, twice per second.
    Progress {
        /// Seconds from time zero.
        at: f64,
        /// Running commands, without those in the background.
        running: Vec<String>,
        /// Number of established connections, without cross traffic.
        streams: u32,
        /// Payload rate received by all hosts since the last event, without cross traffic, in bits
        /// per second.
        rate: f64,
    },
    /// A reason to doubt the result.
    Warning(String),
    /// Everything is being removed.
    Stopping,
}

/// The reason why a run failed. Everything has been removed when the caller gets it.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Namespaces need root privileges.
    #[error(
        "the lab needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) for network namespaces and interfaces: run it with sudo. It \
         does not touch this machine's own interfaces or settings"
    )]
    NotRoot,
    /// The name is in use.
    #[error("a lab named {0} is running")]
    NameTaken(String),
    /// There is no lab with this name.
    #[error("no lab named {name} is running{}", if running.is_empty() { String::new() } else { format!("; there are {}", running.join(", ")) })]
    NoSuchLab {
        /// The requested name.
        name: String,
        /// The labs that are running.
        running: Vec<String>,
    },
    /// The name is taken, but its owner does not answer.
    #[error(
        "the lab {0} does not answer: it is being built still, or somebody who is not root holds its name"
    )]
    Silent(String),
    /// There is no host with this name.
    #[error("lab {lab} has no host {host}; it has {}", hosts.join(", "))]
    NoSuchHost {
        /// The lab.
        lab: String,
        /// The requested host.
        host: String,
        /// Its hosts.
        hosts: Vec<String>,
    },
    /// This change of a running lab is not possible.
    #[error("cannot change {field}: {message}")]
    Change {
        /// The field, or the link.
        field: String,
        /// The reason.
        message: String,
    },
    /// The machine rejected an operation that the scenario needs.
    #[error("cannot {what}: {error}")]
    Build {
        /// The operation.
        what: String,
        /// The reason.
        error: io::Error,
    },
    /// The machine does not support a feature of the scenario.
    #[error("host {host}: {message}")]
    Unsupported {
        /// The host.
        host: String,
        /// The missing feature, and how to solve the problem.
        message: String,
    },
    /// An emulator could not be started.
    #[error("link {between}: {error}")]
    Emulator {
        /// The hosts of the link.
        between: String,
        /// The reason.
        error: crate::emulator::EmulatorError,
    },
    /// A program could not be started.
    #[error("{name} on {host}: cannot run {program}: {error}")]
    Spawn {
        /// The command.
        name: String,
        /// Its host.
        host: String,
        /// The program.
        program: String,
        /// The reason.
        error: io::Error,
    },
    /// A server ended early, or was not ready in time.
    #[error("{name} on {host} {what}{}", tail(output))]
    Server {
        /// The server.
        name: String,
        /// Its host.
        host: String,
        /// The event that happened instead of the server becoming ready.
        what: String,
        /// The last lines of its output.
        output: String,
    },
    /// A command failed.
    #[error("{name} on {host} {what}{}", tail(output))]
    Command {
        /// The command.
        name: String,
        /// Its host.
        host: String,
        /// How it ended.
        what: String,
        /// The last lines of its output.
        output: String,
    },
    /// The scenario took longer than its timeout.
    #[error("the scenario took longer than its timeout, {timeout}; still running: {running}")]
    Timeout {
        /// The limit.
        timeout: crate::scenario::Time,
        /// Commands that had not ended.
        running: String,
    },
    /// [`Stop::stop`] was called.
    #[error("stopped")]
    Stopped,
}

fn tail(output: &str) -> String {
    if output.is_empty() { ", without output".into() } else { format!(". Its last output:\n{output}") }
}

/// Runs a scenario from its beginning to its end.
///
/// # Errors
/// [`RunError`]. When this function returns, with or without an error, no process, namespace,
/// interface, mount or file remains.
pub fn run(scenario: &Scenario, options: &RunOptions) -> Result<RunResult, RunError> {
    let mut lab = Lab::start(scenario, options)?;
    lab.run_commands()?;
    Ok(lab.finish())
}
