//! The handle of an emulator. [`Emulator`] owns the thread of [`super::driver`]: it starts the
//! thread, and stops it when it is dropped. Any number of [`Control`]s send commands to the thread
//! over a channel and wake it through an eventfd. A command to a thread that has ended fails with
//! [`ControlError::Ended`].

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

/// The parameters of an emulator.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The path at the start.
    pub path: Path,
    /// Later changes of the path, in any order.
    pub schedule: Vec<Change>,
    /// Seed of all random numbers. The same seed and the same arrivals cause the same losses.
    pub seed: u64,
    /// Step length of the time series.
    pub sample: Duration,
    /// Packets that are due within this time of each other are delivered together, at the time of
    /// the last one. This saves wake-ups at high rates. A packet with no others within this time is
    /// not delayed.
    pub coalesce: Duration,
    /// Wake up this long before a delivery and wait actively for its time: this is more precise and
    /// takes more CPU.
    pub spin: Duration,
    /// SCHED_FIFO priority (1 to 99), used if the system permits it; `None` for ordinary
    /// scheduling.
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

/// The reason why an emulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum EmulatorError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot start the emulator's thread: {0}")]
    Start(#[source] io::Error),
}

/// The reason why a running emulator did not execute a command.
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

/// A running emulator. Dropping it stops the thread; packets that are still on the path are lost
/// then.
pub struct Emulator {
    control: Control,
    thread: Option<JoinHandle<Report>>,
}

/// Sends commands to a running emulator, from any thread.
#[derive(Clone)]
pub struct Control {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl Emulator {
    /// Starts to carry packets between two interfaces. Packets read from `left` travel in the
    /// *forward* direction.
    ///
    /// # Errors
    /// The path or its schedule is not valid, or the system cannot create an eventfd or a thread.
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

    /// Returns a handle for other threads.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Stops the emulator and returns its report.
    pub fn stop(mut self) -> Report {
        match self.join() {
            Some(Ok(report)) => report,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => unreachable!("only stop and drop join, and both consume the emulator"),
        }
    }

    fn join(&mut self) -> Option<std::thread::Result<Report>> {
        // Sending fails if the thread has ended already.
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
        // This write would fail only if 2^64 - 2 wake-ups were pending.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, ControlError> {
        let (sender, receiver) = mpsc::channel();
        self.send(command(sender))?;
        receiver.recv().map_err(|_| ControlError::Ended)
    }

    /// Applies a change at once (or at `change.at`, if that is still to come) and returns the
    /// resulting path.
    ///
    /// # Errors
    /// The resulting path is not valid, an interface rejects the MTU, or the emulator has ended.
    pub fn apply(&self, change: &Change) -> Result<Path, ControlError> {
        self.ask(|reply| Command::Apply(Box::new(change.clone()), reply))?
    }

    /// Returns the current counters.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn snapshot(&self) -> Result<Snapshot, ControlError> {
        self.ask(Command::Snapshot)
    }

    /// Returns the steps of the time series from number `from` on. With the number of steps
    /// received so far as `from`, these are the new steps. Discarded steps ([`keep`](Self::keep))
    /// are left out.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn series(&self, from: usize) -> Result<Vec<Sample>, ControlError> {
        self.ask(|reply| Command::Series(from, reply))
    }

    /// From now on the emulator keeps only the latest steps of the time series: at least `most`,
    /// and less than twice as many. This bounds the memory of an emulator that runs for an unknown
    /// time.
    ///
    /// # Errors
    /// [`ControlError::Ended`].
    pub fn keep(&self, most: usize) -> Result<(), ControlError> {
        self.send(Command::Keep(most))
    }
}
