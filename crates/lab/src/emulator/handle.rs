//! Starting, watching, changing and stopping an emulator.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::EventfdFlags;
use rustix::fd::OwnedFd;

use super::change::{Change, check_schedule};
use super::config::{ConfigError, Path};
use super::driver::Driver;
use super::stats::{Report, Sample, Snapshot};
use super::tun::{Tun, TunError};

/// How an emulator runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The path at the start.
    pub path: Path,
    /// What becomes different later, in any order.
    pub schedule: Vec<Change>,
    /// Seed of everything random. The same seed and the same arrivals give the same losses.
    pub seed: u64,
    /// Step of the time series.
    pub sample: Duration,
    /// Packets due within this time of each other are delivered together, at the last one's time: saves wake-ups
    /// at high rates. A packet that travels alone is never held.
    pub coalesce: Duration,
    /// Wake up this long before a delivery and wait for its moment actively: more precise, takes CPU.
    pub spin: Duration,
    /// SCHED_FIFO priority (1 to 99), where the system grants it; `None` for ordinary scheduling.
    pub realtime: Option<u8>,
    /// Name of the emulator's thread, as `top` shows it.
    pub name: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            path: Path::default(),
            schedule: Vec::new(),
            seed: 1,
            sample: Duration::from_millis(100),
            coalesce: Duration::from_micros(100),
            spin: Duration::ZERO,
            realtime: Some(10),
            name: "emulator".to_owned(),
        }
    }
}

/// Why an emulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot start the emulator's thread: {0}")]
    Start(#[source] io::Error),
}

/// Why a running emulator did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Tun(#[from] TunError),
    #[error("the emulator has ended")]
    Ended,
}

pub(super) enum Command {
    Apply(Box<Change>, Sender<Result<Path, ControlError>>),
    Snapshot(Sender<Snapshot>),
    Series(usize, Sender<Vec<Sample>>),
    Keep(usize),
    Stop,
}

/// A running emulator. Dropping it stops it; packets on their way are then lost.
pub struct Emulator {
    control: Control,
    thread: Option<JoinHandle<Report>>,
}

/// Speaks with a running emulator, from any thread.
#[derive(Clone)]
pub struct Control {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl Emulator {
    /// Starts to carry packets between two interfaces: those read from `left` go *forward*.
    ///
    /// # Errors
    /// The path or its schedule is not valid, or the system gives no eventfd or thread.
    pub fn start(options: Options, left: Tun, right: Tun) -> Result<Self, EmulatorError> {
        options.path.validate()?;
        check_schedule(&options.path, &options.schedule)?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| EmulatorError::Start(e.into()))?;
        let wake = Arc::new(wake);
        let (commands, receiver): (_, Receiver<Command>) = mpsc::channel();
        let driver = Driver::new(&options, left, right, receiver, wake.clone());
        let thread = std::thread::Builder::new()
            .name(options.name.clone())
            .spawn(move || driver.run())
            .map_err(EmulatorError::Start)?;
        Ok(Self { control: Control { commands, wake }, thread: Some(thread) })
    }

    /// A handle for other threads.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Ends it and tells what happened.
    pub fn stop(mut self) -> Report {
        match self.join() {
            Some(Ok(report)) => report,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => unreachable!("only stop and drop join, and both consume the emulator"),
        }
    }

    fn join(&mut self) -> Option<std::thread::Result<Report>> {
        // A failed send means that the thread has ended already.
        let _ = self.control.send(Command::Stop);
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.join();
    }
}

impl Control {
    fn send(&self, command: Command) -> Result<(), ControlError> {
        self.commands.send(command).map_err(|_| ControlError::Ended)?;
        // Full only when 2^64 - 2 wake-ups are pending.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, ControlError> {
        let (sender, receiver) = mpsc::channel();
        self.send(command(sender))?;
        receiver.recv().map_err(|_| ControlError::Ended)
    }

    /// Makes a change at once (or at `change.at`, where that is still to come) and gives the path as it is then.
    ///
    /// # Errors
    /// The path would not be valid, an interface does not take the MTU, or the emulator has ended.
    pub fn apply(&self, change: &Change) -> Result<Path, ControlError> {
        self.ask(|reply| Command::Apply(Box::new(change.clone()), reply))?
    }

    /// The counters now.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn snapshot(&self) -> Result<Snapshot, ControlError> {
        self.ask(Command::Snapshot)
    }

    /// The steps of the time series from number `from` on: what came since the last call, when `from` is the number
    /// of steps seen so far. Those that are forgotten ([`keep`](Self::keep)) are left out.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn series(&self, from: usize) -> Result<Vec<Sample>, ControlError> {
        self.ask(|reply| Command::Series(from, reply))
    }

    /// From now on only the latest steps of the time series are kept, at least `most` of them and less than twice as many:
    /// for one that runs until somebody ends it.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn keep(&self, most: usize) -> Result<(), ControlError> {
        self.send(Command::Keep(most))
    }
}
