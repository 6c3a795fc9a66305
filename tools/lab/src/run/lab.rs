//! A lab, step by step: it is built and started, runs its commands or waits, and is removed.
//! [`Lab`] owns all threads, programs, interfaces and namespaces. They are shut down in a fixed
//! order, so that no program or disk waits for another part that is gone already.

use super::{
    Context, Event, Message, RunError, RunOptions, build, change,
    process::{Ended, Process},
    registry::{self, Name, Registration},
    traffic::Traffic,
};
use crate::{
    disk::DiskServer,
    emulator::{ControlSocket, Counters, Emulator},
    netns::{Applied, Base, HostSpace},
    record::Recorder,
    scenario::Scenario,
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread::JoinHandle,
    time::{Instant, SystemTime},
};

use parking_lot::Mutex;

/// Steps of a link's series that are kept in a lab of unknown duration: one hour with ten steps per
/// second.
const KEPT: usize = 36_000;

/// A running lab: hosts and links exist, servers are ready, cross traffic flows. Dropping it
/// removes everything.
pub struct Lab {
    pub(super) context: Context,
    pub(super) options: RunOptions,
    pub(super) messages: (Sender<Message>, Receiver<Message>),
    // The following fields are shut down in this order (Lab::down).
    pub(super) taken: Option<Name>,
    pub(super) registration: Option<Registration>,
    pub(super) control: Option<ControlSocket>,
    pub(super) recorder: Option<Recorder>,
    pub(super) changes: Option<(Sender<()>, JoinHandle<()>)>,
    pub(super) traffic: Vec<Traffic>,
    pub(super) base: Base,
    pub(super) servers: Vec<Program>,
    pub(super) commands: Vec<Option<Program>>,
    pub(super) links: Vec<Link>,
    pub(super) hosts: Vec<HostSpace>,
    pub(super) disks: BTreeMap<String, DiskServer>,
    pub(super) applied: BTreeMap<String, Applied>,
    pub(super) zero: Instant,
    pub(super) started: SystemTime,
    /// Problems that did not end the run.
    pub(super) warnings: Arc<Mutex<Vec<String>>>,
}

/// A program of the scenario that was started.
pub(super) struct Program {
    pub(super) arguments: Vec<String>,
    pub(super) process: Process,
    pub(super) ended: Option<Ended>,
    /// Whether the lab killed it because of its timeout.
    pub(super) timed_out: bool,
    /// Whether the lab stopped it because of the scenario's `stop`.
    pub(super) stopped: bool,
}

/// An emulated link.
pub(super) struct Link {
    pub(super) emulator: Emulator,
    pub(super) started: Instant,
    /// The emulator's counters at time zero, for both directions.
    pub(super) before: [Counters; 2],
}

impl Lab {
    /// Builds a scenario's hosts and links, runs the preparation, and starts servers and cross
    /// traffic. When this function returns, it is time zero.
    ///
    /// # Errors
    /// [`RunError`]. Everything has been removed then.
    pub fn start(scenario: &Scenario, options: &RunOptions) -> Result<Self, RunError> {
        let mut lab = build::build(scenario, options)?;
        lab.prepare()?;
        lab.start_servers()?;
        lab.begin()?;
        let info = registry::info(&lab.context, &lab.hosts)?;
        if let Some(name) = lab.taken.take() {
            let failed = |error| RunError::Build { what: "answer for the lab".into(), error };
            let (registration, control) = name.answer(&info).map_err(failed)?;
            lab.registration = Some(registration);
            lab.control = Some(change::allow(&lab, control).map_err(failed)?);
        }
        lab.event(Event::Started);
        Ok(lab)
    }

    /// The unique name of the lab.
    pub fn name(&self) -> &str {
        &self.context.lab
    }

    /// The names of the hosts.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().map(HostSpace::name)
    }

    /// Waits until [`super::Stop::stop`] is called, while servers and cross traffic run. As the
    /// duration is unknown, hosts are no longer recorded, and only the latest steps of the links'
    /// series are kept.
    ///
    /// # Errors
    /// [`RunError::Server`] if a server fails.
    pub fn wait(&mut self) -> Result<(), RunError> {
        self.recorder = None;
        for link in &self.links {
            // An emulator that has ended needs no limit.
            let _ = link.emulator.control().keep(KEPT);
        }
        match self.run_until_stopped() {
            Err(RunError::Stopped) => Ok(()),
            result => result,
        }
    }

    pub(super) fn event(&self, event: Event) {
        if let Some(events) = &self.options.events {
            events(&event);
        }
    }

    pub(super) fn warn(&self, warning: String) {
        self.event(Event::Warning(warning.clone()));
        self.warnings.lock().push(warning);
    }

    pub(super) fn host(&self, name: &str) -> Result<&HostSpace, RunError> {
        self.hosts.iter().find(|host| host.name() == name).ok_or_else(|| RunError::NoSuchHost {
            lab: self.context.lab.clone(),
            host: name.to_owned(),
            hosts: self.hosts.iter().map(|host| host.name().to_owned()).collect(),
        })
    }

    /// Ends all programs and threads. The recorded data is kept.
    pub(super) fn down(&mut self) {
        self.registration = None;
        self.control = None;
        if let Some((stop, thread)) = self.changes.take() {
            drop(stop);
            // The panic message of this thread has been printed already.
            let _ = thread.join();
        }
        self.traffic.iter_mut().for_each(Traffic::stop);
        // A process that waits for a disk could not be killed.
        self.disks.values().for_each(DiskServer::release);
        if let Err(error) = self.base.kill() {
            self.warn(format!("cannot wait for the lab's processes: {error}"));
        }
        for program in self.servers.iter_mut().chain(self.commands.iter_mut().flatten()) {
            program.process.join();
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.recorder = None;
        self.down();
        self.links.clear();
        // The hosts are the last owners of the disks' mounts.
        self.hosts.clear();
        self.base.close();
        std::mem::take(&mut self.disks).into_values().for_each(DiskServer::join);
    }
}

pub(super) fn channel() -> (Sender<Message>, Receiver<Message>) {
    mpsc::channel()
}
