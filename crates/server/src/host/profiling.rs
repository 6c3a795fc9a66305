//! Measuring this host for SITE PROFILE: who may have it, and what transfers of his tell meanwhile.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_engine::{Progress, Stage};
use ropewalk_profiler::collect::{Chosen, Collection, Options, Sockets};
use ropewalk_profiler::profile::{HostProfile, RawFile, StageTime, Stages};
use ropewalk_security::canonical;

use crate::config;

/// So long may collectors take to begin.
const BEGINNING: Duration = Duration::from_secs(60);
/// So long may they take to end: `perf` and `sadf` go through what they have written.
const ENDING: Duration = Duration::from_secs(300);

/// What the sessions of a server share.
#[derive(Default)]
pub(crate) struct Profiling {
    /// Transfers under way, with their users; kept only where profiling is allowed at all.
    live: Mutex<HashMap<u64, (String, Arc<Progress>)>>,
    recorders: Mutex<Vec<Arc<Recorder>>>,
    next: AtomicU64,
    taken: Arc<AtomicU32>,
    /// Not among the former: a profile is begun as soon as the client has tested the path, and has not to wait for its end.
    iperfs: Arc<AtomicU32>,
}

/// A transfer that is listed until this is dropped.
pub(crate) struct Recorded {
    profiling: Arc<Profiling>,
    number: u64,
}

/// What a user's transfers tell while his profile is taken.
struct Recorder {
    profiling: Arc<Profiling>,
    user: String,
    /// What each transfer under way had before, by its number.
    before: Mutex<HashMap<u64, Times>>,
    ended: Mutex<Times>,
}

/// Times of a transfer's streams in seconds, in the order of [`STAGES`]; how long there were streams comes last.
#[derive(Clone, Copy, Default)]
struct Times([f64; 6]);

const STAGES: [Stage; 5] =
    [Stage::Source, Stage::Checksum, Stage::Encryption, Stage::Network, Stage::Destination];

impl Times {
    fn of(progress: &Progress) -> Self {
        let mut times = [0.0; 6];
        for (time, stage) in times.iter_mut().zip(STAGES) {
            *time = progress.time(stage).as_secs_f64();
        }
        times[5] = progress.stream_time().as_secs_f64();
        Self(times)
    }

    fn add(&mut self, now: Self, before: Self) {
        for ((sum, now), before) in self.0.iter_mut().zip(now.0).zip(before.0) {
            *sum += (now - before).max(0.0);
        }
    }

    fn stages(self) -> Stages {
        let [source, checksum, encryption, socket, destination, stream_seconds] = self.0;
        let busy = |busy| StageTime { busy, waited: 0.0 };
        Stages {
            stream_seconds,
            source: busy(source),
            checksum: busy(checksum),
            encryption: busy(encryption),
            socket: StageTime { busy: 0.0, waited: socket },
            destination: busy(destination),
        }
    }
}

impl Profiling {
    /// A transfer of `user` begins.
    pub(crate) fn transfer(self: &Arc<Self>, user: &str, progress: &Arc<Progress>) -> Recorded {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.live.lock().insert(number, (user.to_owned(), Arc::clone(progress)));
        Recorded { profiling: Arc::clone(self), number }
    }

    /// One of so many profiles; `None` where there are as many already.
    pub(crate) fn slot(&self, most: u32) -> Option<Slot> {
        Slot::of(&self.taken, most)
    }

    /// Likewise of iperf3.
    pub(crate) fn iperf_slot(&self, most: u32) -> Option<Slot> {
        Slot::of(&self.iperfs, most)
    }

    fn of_user(&self, user: &str) -> Vec<(u64, Arc<Progress>)> {
        let live = self.live.lock();
        let own = live.iter().filter(|(_, (name, _))| name == user);
        own.map(|(number, (_, progress))| (*number, Arc::clone(progress))).collect()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let Some((user, progress)) = self.profiling.live.lock().remove(&self.number) else { return };
        for recorder in self.profiling.recorders.lock().iter().filter(|recorder| recorder.user == user) {
            recorder.transfer_ended(self.number, &progress);
        }
    }
}

impl Recorder {
    fn start(profiling: &Arc<Profiling>, user: &str) -> Arc<Self> {
        // Listed before it looks: a transfer that ends meanwhile is not lost.
        let recorder = Arc::new(Self {
            profiling: Arc::clone(profiling),
            user: user.to_owned(),
            before: Mutex::default(),
            ended: Mutex::default(),
        });
        let mut before = recorder.before.lock();
        profiling.recorders.lock().push(Arc::clone(&recorder));
        for (number, progress) in profiling.of_user(user) {
            before.insert(number, Times::of(&progress));
        }
        drop(before);
        recorder
    }

    fn transfer_ended(&self, number: u64, progress: &Progress) {
        let before = self.before.lock().remove(&number).unwrap_or_default();
        self.ended.lock().add(Times::of(progress), before);
    }

    /// Until now.
    fn stages(&self) -> Stages {
        let before = self.before.lock();
        let mut times = *self.ended.lock();
        for (number, progress) in self.profiling.of_user(&self.user) {
            times.add(Times::of(&progress), before.get(&number).copied().unwrap_or_default());
        }
        times.stages()
    }

    /// The other ends of the user's data connections.
    fn peers(&self) -> HashSet<SocketAddr> {
        let transfers = self.profiling.of_user(&self.user);
        let peers = transfers.iter().flat_map(|(_, progress)| progress.peers());
        peers.map(|peer| SocketAddr::new(canonical(peer.ip()), peer.port())).collect()
    }

    fn stop(&self) {
        self.profiling.recorders.lock().retain(|other| !std::ptr::eq(&**other, self));
    }
}

/// The right to one profile, or to one iperf3.
pub(crate) struct Slot(Arc<AtomicU32>);

impl Slot {
    fn of(taken: &Arc<AtomicU32>, most: u32) -> Option<Self> {
        let more = |taken: u32| (taken < most).then_some(taken + 1);
        let one = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        one.is_ok().then(|| Self(Arc::clone(taken)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why no profile is taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{0} profiles are taken already, or were not fetched: try again later.")]
    TooMany(u32),
    #[error("No thread for a profile: {0}")]
    Thread(std::io::Error),
    #[error("What measures did not begin within {} seconds.", BEGINNING.as_secs())]
    TooSlow,
}

/// A session's profile.
pub(crate) enum Profile {
    Running(Running),
    /// As JSON.
    Taken {
        bytes: Vec<u8>,
        /// Files of tools.
        raw: Vec<RawFile>,
        slot: Slot,
    },
}

/// The host as JSON, and files of tools.
type Found = (Result<Vec<u8>, serde_json::Error>, Vec<RawFile>);

/// Dropping it ends the measuring.
pub(crate) struct Running {
    stop: Sender<()>,
    found: Receiver<Found>,
    slot: Slot,
}

/// Begins to measure for `user`, for `seconds` at most.
pub(crate) fn start(
    profiling: &Arc<Profiling>,
    config: &config::Profiling,
    user: &str,
    root: Option<&Path>,
    seconds: u32,
    raw: bool,
) -> Result<Running, StartError> {
    let slot = profiling.slot(config.at_once).ok_or(StartError::TooMany(config.at_once))?;
    let recorder = Recorder::start(profiling, user);
    let choose = {
        let recorder = Arc::clone(&recorder);
        Chosen::new(move || recorder.peers())
    };
    let longest = Duration::from_secs(seconds.into());
    let options = Options {
        // With time to spare: what ends before it is told to has failed.
        longest: longest + ENDING,
        perf: config.perf,
        raw,
        sockets: Sockets { chosen: Some(choose), ..Sockets::default() },
        programs: vec![std::process::id()],
        paths: root.map(Path::to_owned).into_iter().collect(),
        ..Options::default()
    };
    let (stop, stopped) = mpsc::channel();
    let (tell, found) = mpsc::sync_channel(1);
    let (begin, begun) = mpsc::sync_channel(1);
    let recorder = Stopping(recorder);
    let run = move || {
        // Whom the session acts for is no matter of collectors, and of the programs that they start.
        ropewalk_storage::thread_starts();
        let collection = Collection::start(&options);
        // Nobody may wait any more.
        let _ = begin.send(());
        match stopped.recv_timeout(longest) {
            // The session has gone.
            Err(RecvTimeoutError::Disconnected) => {}
            Ok(()) | Err(RecvTimeoutError::Timeout) => {
                let stages = recorder.0.stages();
                let mut host = HostProfile { stages: Some(stages), ..collection.finish() };
                let raw = std::mem::take(&mut host.raw);
                let _ = tell.send((host.to_json(HostProfile::LARGEST), raw));
            }
        }
    };
    thread::Builder::new().name("profile".into()).spawn(run).map_err(StartError::Thread)?;
    begun.recv_timeout(BEGINNING).map_err(|_| StartError::TooSlow)?;
    Ok(Running { stop, found, slot })
}

/// Takes the recorder off the list, however the measuring ends.
struct Stopping(Arc<Recorder>);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Running {
    /// Ends; what was found. `None` where collectors do not end, or broke.
    pub(crate) fn finish(self) -> Option<Profile> {
        // It may have ended by itself.
        let _ = self.stop.send(());
        let (bytes, raw) = self.found.recv_timeout(ENDING).ok()?;
        Some(Profile::Taken { bytes: bytes.ok()?, raw, slot: self.slot })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn listed(profiling: &Arc<Profiling>, user: &str) -> Recorded {
        profiling.transfer(user, &Arc::new(Progress::new()))
    }

    #[test]
    fn transfers_are_those_of_the_user() {
        let profiling = Arc::<Profiling>::default();
        let early = listed(&profiling, "ada");
        let recorder = Recorder::start(&profiling, "ada");
        let (other, late) = (listed(&profiling, "bob"), listed(&profiling, "ada"));
        assert_eq!(profiling.of_user("ada").len(), 2);
        assert_eq!(recorder.before.lock().len(), 1);
        drop((early, late));
        assert_eq!((profiling.of_user("ada").len(), profiling.of_user("bob").len()), (0, 1));
        assert!(recorder.before.lock().is_empty() && recorder.peers().is_empty());
        drop(other);
        drop(Stopping(recorder));
        assert!(profiling.recorders.lock().is_empty() && profiling.live.lock().is_empty());
    }

    #[test]
    fn what_was_before_does_not_count() {
        let mut times = Times::default();
        times.add(Times([5.0, 1.0, 0.0, 0.0, 2.0, 9.0]), Times([4.0, 1.0, 0.0, 0.5, 0.0, 3.0]));
        let stages = times.stages();
        assert_eq!((stages.source.busy, stages.checksum.busy, stages.socket.waited), (1.0, 0.0, 0.0));
        assert_eq!((stages.destination.busy, stages.stream_seconds), (2.0, 6.0));
    }

    #[test]
    fn so_many_and_no_more() {
        let profiling = Arc::<Profiling>::default();
        let first = profiling.slot(1).unwrap();
        assert!(profiling.slot(1).is_none());
        let test = profiling.iperf_slot(1).unwrap();
        assert!(profiling.iperf_slot(1).is_none());
        drop(test);
        assert!(profiling.iperf_slot(1).is_some());
        drop(first);
        assert!(profiling.slot(1).is_some() && profiling.slot(0).is_none());
    }
}
