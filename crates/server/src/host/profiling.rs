//! Profiles of this host for SITE PROFILE, and the transfers that they cover.
//!
//! The host owns the list of transfers and the counts. A profile is measured on a thread of its
//! own, which ends after the requested time, at [`Running::finish`], or when the session drops it.

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
use ropewalk_security::canonical;

use crate::config;
use crate::measurements::{Measured, Measurements, RawFile, Request, StreamTimes};

/// The longest time that collectors may take to start.
const BEGINNING: Duration = Duration::from_secs(60);
/// The longest time that collectors may take to end: `perf` and `sadf` evaluate what they have
/// written.
const ENDING: Duration = Duration::from_secs(300);

/// The transfers and the counts that the sessions of a server share.
#[derive(Default)]
pub(crate) struct Profiling {
    /// Running transfers with their users; only filled if profiling is enabled.
    live: Mutex<HashMap<u64, (String, Arc<Progress>)>>,
    recorders: Mutex<Vec<Arc<Recorder>>>,
    next: AtomicU64,
    taken: Arc<AtomicU32>,
    /// Counted separately: the client starts a profile as soon as it has tested the path, before
    /// iperf3 has ended.
    iperfs: Arc<AtomicU32>,
}

/// A transfer that is listed until this is dropped.
pub(crate) struct Recorded {
    profiling: Arc<Profiling>,
    number: u64,
}

/// Collects the times of a user's transfers while a profile is taken.
struct Recorder {
    profiling: Arc<Profiling>,
    user: String,
    /// The times of each running transfer at the start of the profile, by its number.
    before: Mutex<HashMap<u64, Times>>,
    ended: Mutex<Times>,
}

/// Times of the streams of a transfer in seconds, in the order of [`STAGES`]. The duration of the
/// streams comes last.
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

    fn stream_times(self) -> StreamTimes {
        let [source, checksum, encryption, network, destination, total] = self.0;
        StreamTimes { total, source, checksum, encryption, network, destination }
    }
}

impl Profiling {
    /// Lists a transfer of `user`.
    pub(crate) fn transfer(self: &Arc<Self>, user: &str, progress: &Arc<Progress>) -> Recorded {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.live.lock().insert(number, (user.to_owned(), Arc::clone(progress)));
        Recorded { profiling: Arc::clone(self), number }
    }

    /// The permit for one profile, of which there may be `most`; `None` if they are taken.
    pub(crate) fn slot(&self, most: u32) -> Option<Slot> {
        Slot::of(&self.taken, most)
    }

    /// The permit for one iperf3.
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
        // The recorder is listed before it looks at the transfers, so that one that ends meanwhile
        // is not lost.
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

    /// The times from the start of the profile until now.
    fn stream_times(&self) -> StreamTimes {
        let before = self.before.lock();
        let mut times = *self.ended.lock();
        for (number, progress) in self.profiling.of_user(&self.user) {
            times.add(Times::of(&progress), before.get(&number).copied().unwrap_or_default());
        }
        times.stream_times()
    }

    /// The remote ends of the user's data connections.
    fn peers(&self) -> HashSet<SocketAddr> {
        let transfers = self.profiling.of_user(&self.user);
        let peers = transfers.iter().flat_map(|(_, progress)| progress.peers());
        peers.map(|peer| SocketAddr::new(canonical(peer.ip()), peer.port())).collect()
    }

    fn stop(&self) {
        self.profiling.recorders.lock().retain(|other| !std::ptr::eq(&**other, self));
    }
}

/// The permit for one profile, or for one iperf3.
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

/// The reason why no profile is taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("{0} profiles are taken already, or were not fetched: try again later.")]
    TooMany(u32),
    #[error("No thread for a profile: {0}")]
    Thread(std::io::Error),
    #[error("What measures did not begin within {} seconds.", BEGINNING.as_secs())]
    TooSlow,
}

/// The profile of a session.
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

/// A profile that is being measured. Dropping it ends the measurement.
pub(crate) struct Running {
    stop: Sender<()>,
    found: Receiver<Result<Measured, String>>,
    slot: Slot,
}

/// Starts to measure for `user`, for at most `seconds`.
pub(crate) fn start(
    measurements: &Arc<dyn Measurements>,
    profiling: &Arc<Profiling>,
    config: &config::Profiling,
    user: &str,
    root: Option<&Path>,
    seconds: u32,
    raw: bool,
) -> Result<Running, StartError> {
    let slot = profiling.slot(config.at_once).ok_or(StartError::TooMany(config.at_once))?;
    let recorder = Recorder::start(profiling, user);
    let peers = {
        let recorder = Arc::clone(&recorder);
        Arc::new(move || recorder.peers())
    };
    let longest = Duration::from_secs(seconds.into());
    let request = Request {
        // With time to spare: a tool that ends before it is stopped has failed.
        longest: longest + ENDING,
        perf: config.perf,
        raw,
        peers,
        paths: root.map(Path::to_owned).into_iter().collect(),
    };
    let measurements = Arc::clone(measurements);
    let (stop, stopped) = mpsc::channel();
    let (tell, found) = mpsc::sync_channel(1);
    let (begin, begun) = mpsc::sync_channel(1);
    let recorder = Stopping(recorder);
    let run = move || {
        // Collectors, and the programs that they start, do not act for the user of the session.
        ropewalk_storage::thread_starts();
        let measurement = measurements.start(request);
        // The session may have stopped waiting.
        let _ = begin.send(());
        match stopped.recv_timeout(longest) {
            // The session is gone.
            Err(RecvTimeoutError::Disconnected) => {}
            Ok(()) | Err(RecvTimeoutError::Timeout) => {
                let _ = tell.send(measurement.finish(recorder.0.stream_times()));
            }
        }
    };
    thread::Builder::new().name("profile".into()).spawn(run).map_err(StartError::Thread)?;
    begun.recv_timeout(BEGINNING).map_err(|_| StartError::TooSlow)?;
    Ok(Running { stop, found, slot })
}

/// Removes the recorder from the list, however the measurement ends.
struct Stopping(Arc<Recorder>);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl Running {
    /// Ends the measurement and returns the profile; `None` if collectors do not end or have
    /// failed.
    pub(crate) fn finish(self) -> Option<Profile> {
        // The measurement may have ended by itself.
        let _ = self.stop.send(());
        let Measured { profile, raw } = self.found.recv_timeout(ENDING).ok()?.ok()?;
        Some(Profile::Taken { bytes: profile, raw, slot: self.slot })
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
    fn recorder_sees_transfers_of_its_user_only() {
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
    fn recorder_subtracts_times_before_profile() {
        let mut times = Times::default();
        times.add(Times([5.0, 1.0, 0.0, 0.0, 2.0, 9.0]), Times([4.0, 1.0, 0.0, 0.5, 0.0, 3.0]));
        let times = times.stream_times();
        assert_eq!((times.source, times.checksum, times.network), (1.0, 0.0, 0.0));
        assert_eq!((times.destination, times.total), (2.0, 6.0));
    }

    #[test]
    fn profile_permits_are_limited() {
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
