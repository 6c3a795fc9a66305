//! Running scenarios.
//!
//! [`run`] builds a scenario's hosts and links, runs its commands, measures, and takes everything down. [`Lab`] does the same
//! in steps, for people who want to look around ([`Lab::shell`]).
//!
//! Everything belongs to the calling process and has no name in the file system: namespaces, interfaces, mounts and
//! temporary files go when it ends, however it ends, and the programs with them.

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

/// How a scenario is run.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Name of the lab, under which [`shell`] finds it. Made up if absent.
    pub name: Option<String>,
    /// What `{ropewalk}` stands for. The running program if absent.
    pub program: Option<PathBuf>,
    /// Ends the run early.
    pub stop: Stop,
    /// Is told what happens; may be called from several threads.
    pub events: Option<Listener>,
}

/// Is told what happens in a run.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Ends a run early; clones belong together.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<Stopping>>);

#[derive(Default)]
struct Stopping {
    stopped: bool,
    waiting: Vec<Sender<Message>>,
}

impl Stop {
    /// Asks the run to end: commands are killed, everything is taken down, the result is [`RunError::Stopped`].
    pub fn stop(&self) {
        let mut state = self.0.lock();
        state.stopped = true;
        for waiting in state.waiting.drain(..) {
            // A run that has ended does not listen.
            let _ = waiting.send(Message::Stop);
        }
    }

    /// Whether it was asked to.
    pub fn is_stopped(&self) -> bool {
        self.0.lock().stopped
    }

    /// Sends a message when it is asked to.
    fn tell(&self, messages: &Sender<Message>) {
        let mut state = self.0.lock();
        if state.stopped {
            let _ = messages.send(Message::Stop);
        } else {
            state.waiting.push(messages.clone());
        }
    }
}

/// What a running lab waits for.
enum Message {
    Stop,
    Ended(Program, process::Ended),
}

/// A program of the scenario, by its place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Command(usize),
    Server(usize),
    /// Of `prepare`.
    Prepare,
}

/// What happens in a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Hosts and links are being made.
    Building {
        /// The lab's unique name.
        lab: String,
    },
    /// A command of `prepare` starts; files are made before the first.
    Preparing {
        /// On which host.
        host: String,
        /// What is run.
        run: String,
    },
    /// A server is ready.
    Ready {
        /// Its name.
        server: String,
    },
    /// Time zero.
    Started,
    /// A command has started.
    CommandStarted {
        /// Its name.
        command: String,
        /// Seconds from time zero.
        at: f64,
    },
    /// A command has ended.
    CommandEnded {
        /// Its name.
        command: String,
        /// How long it ran, in seconds.
        seconds: f64,
        /// How it ended.
        end: End,
    },
    /// Twice a second.
    Progress {
        /// Seconds from time zero.
        at: f64,
        /// Commands that run now, those in the background left out.
        running: Vec<String>,
        /// Established connections, cross traffic left out.
        streams: u32,
        /// Payload that arrived at all hosts since the last event, cross traffic left out, in bits a second.
        rate: f64,
    },
    /// Something that makes the result doubtful.
    Warning(String),
    /// Everything is taken down.
    Stopping,
}

/// Why a run failed. Everything is taken down by then.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Namespaces need root.
    #[error(
        "the lab needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) for network namespaces and interfaces: run it with sudo. It \
         does not touch this machine's own interfaces or settings"
    )]
    NotRoot,
    /// The name is in use.
    #[error("a lab named {0} is running")]
    NameTaken(String),
    /// No lab of this name.
    #[error("no lab named {name} is running{}", if running.is_empty() { String::new() } else { format!("; there are {}", running.join(", ")) })]
    NoSuchLab {
        /// What was asked for.
        name: String,
        /// Those that run.
        running: Vec<String>,
    },
    /// The name is taken, but nobody says by what.
    #[error(
        "the lab {0} does not answer: it is being built still, or somebody who is not root holds its name"
    )]
    Silent(String),
    /// No host of this name.
    #[error("lab {lab} has no host {host}; it has {}", hosts.join(", "))]
    NoSuchHost {
        /// The lab.
        lab: String,
        /// What was asked for.
        host: String,
        /// Its hosts.
        hosts: Vec<String>,
    },
    /// A running lab cannot be changed like this.
    #[error("cannot change {field}: {message}")]
    Change {
        /// The field, or the link.
        field: String,
        /// Why.
        message: String,
    },
    /// The machine refused something that the scenario needs.
    #[error("cannot {what}: {error}")]
    Build {
        /// What was tried.
        what: String,
        /// Why it failed.
        error: io::Error,
    },
    /// The machine cannot do what the scenario asks for.
    #[error("host {host}: {message}")]
    Unsupported {
        /// The host.
        host: String,
        /// What is missing, and what can be done about it.
        message: String,
    },
    /// An emulator could not be started.
    #[error("link {between}: {error}")]
    Emulator {
        /// The link's ends.
        between: String,
        /// Why.
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
        /// Why.
        error: io::Error,
    },
    /// A server ended early, or was not ready in time.
    #[error("{name} on {host} {what}{}", tail(output))]
    Server {
        /// The server.
        name: String,
        /// Its host.
        host: String,
        /// What it did instead of becoming ready.
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
/// [`RunError`]; when it returns, with or without an error, no process, namespace, interface, mount or file is left.
pub fn run(scenario: &Scenario, options: &RunOptions) -> Result<RunResult, RunError> {
    let mut lab = Lab::start(scenario, options)?;
    lab.run_commands()?;
    Ok(lab.finish())
}
