//! The thread that records the lab at regular times. It samples the connections and disks of all
//! hosts, the CPU time of the programs and of the machine. Other threads read the current values
//! through [`Recorder::live`]. If the connections of a host cannot be listed, the series still get
//! a value for each time, and the result gets a warning.

use super::{
    cpu::{self, Cpu},
    diag::{Diagnostics, Seen},
};
use crate::results::{CommandSeries, ConnectionResult, ConnectionSeries, HostSeries, Series, TcpSample};
use ropewalk_netlink::List;
use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// Maximum number of connections that the results list. Transfers of many small files may have
/// more.
const LISTED: usize = 10_000;

/// Bytes that a limited disk has transferred, counted by the disk.
#[derive(Debug, Default)]
pub(crate) struct DiskMeter {
    pub(crate) read: AtomicU64,
    pub(crate) written: AtomicU64,
    /// Nanoseconds for which the disk was busy.
    pub(crate) busy: AtomicU64,
}

/// A program whose CPU time is recorded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) name: String,
    /// The process while it runs.
    pub(crate) pid: Option<u32>,
    /// The CPU time so far.
    pub(crate) cpu: Cpu,
    /// The part of `cpu` of processes that have ended without a parent waiting for them.
    lost: Cpu,
    /// The last value from the kernel.
    said: Cpu,
}

impl Watched {
    /// A program that is yet to be started (`pid` is `None`), that runs, or that has ended.
    pub(crate) fn new(name: &str, pid: Option<u32>, cpu: Cpu) -> Self {
        Self { name: name.to_owned(), pid, cpu, ..Self::default() }
    }

    fn look(&mut self) {
        if let Some(said) = self.pid.and_then(cpu::of_tree) {
            self.said(said);
        }
    }

    fn said(&mut self, said: Cpu) {
        // The sum over the living processes falls when a process ends for which no parent waits.
        self.lost = self.lost.plus(self.said.minus(said));
        self.said = said;
        self.cpu = said.plus(self.lost);
    }

    /// The program has ended; `said` is the CPU time of it and of the processes that it waited for.
    pub(crate) fn ended(&mut self, said: Cpu) {
        self.said(said);
        self.pid = None;
    }
}

/// The values that other threads can read while the recorder runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    /// For each host: number of established connections that are not cross traffic.
    pub(crate) streams: Vec<u32>,
    /// Payload bytes that all hosts have received.
    pub(crate) received: u64,
}

/// The sources of the recorded values.
pub(crate) struct Sources {
    pub(crate) hosts: Vec<HostSource>,
    pub(crate) interval: Duration,
    /// Number of connections that get a time series.
    pub(crate) connections: usize,
    /// Ports at which cross traffic arrives, with the name of the traffic.
    pub(crate) traffic: HashMap<u16, String>,
    pub(crate) watched: Vec<Watched>,
}

/// A host that is recorded.
pub(crate) struct HostSource {
    pub(crate) name: String,
    pub(crate) sockets: Diagnostics,
    pub(crate) disk: Option<Arc<DiskMeter>>,
}

/// The recorded values.
#[derive(Default)]
pub(crate) struct Recording {
    /// The time series, without those of the links.
    pub(crate) series: Series,
    pub(crate) connections: Vec<ConnectionResult>,
    /// The programs, with their final or current CPU time.
    pub(crate) programs: Vec<Watched>,
    /// Share of the machine's CPU time that was used.
    pub(crate) busy: f64,
    pub(crate) warnings: Vec<String>,
}

/// A running recorder. It owns the thread that samples all sources at each interval; dropping it
/// ends the thread.
pub(crate) struct Recorder {
    stop: Sender<()>,
    thread: Option<JoinHandle<Recording>>,
    live: Arc<Mutex<Live>>,
    watched: Arc<Mutex<Vec<Watched>>>,
}

impl Recorder {
    /// Starts recording; times count from `zero`.
    pub(crate) fn start(sources: Sources, zero: Instant) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let hosts = sources.hosts.len();
        let live = Live { streams: vec![0; hosts], received: 0 };
        let live = Arc::new(Mutex::new(live));
        let watched = Arc::new(Mutex::new(sources.watched.clone()));
        let mut sampler = Sampler::new(sources, zero, live.clone(), watched.clone());
        let run = move || {
            let mut next = zero + sampler.interval;
            loop {
                let left = next.saturating_duration_since(Instant::now());
                let ended = stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout);
                sampler.sample();
                if ended {
                    return sampler.finish();
                }
                // Missed samples are skipped.
                while next <= Instant::now() {
                    next += sampler.interval;
                }
            }
        };
        let thread = thread::Builder::new().name("lab-recorder".into()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread), live, watched })
    }

    /// The current values.
    pub(crate) fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock()
    }

    /// The programs whose CPU time is recorded.
    pub(crate) fn watched(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.watched.lock()
    }

    /// Takes a last sample and ends the thread.
    pub(crate) fn finish(mut self) -> Recording {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Recording> {
        // The thread may have ended already.
        let _ = self.stop.send(());
        self.thread.take()?.join().ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

struct Sampler {
    sources: Vec<HostSource>,
    interval: Duration,
    limit: usize,
    traffic: HashMap<u16, String>,
    zero: Instant,
    live: Arc<Mutex<Live>>,
    watched: Arc<Mutex<Vec<Watched>>>,
    /// The existing connections, by host and cookie.
    known: HashMap<(usize, u64), Known>,
    /// Counters of each host.
    totals: Vec<Totals>,
    cpu: Vec<f64>,
    machine: [(u64, u64); 2],
    last: f64,
    missed: bool,
    /// Number of connections that exceed the list.
    unlisted: u64,
    failed: Option<String>,
    recording: Recording,
}

/// The recorded state of a connection.
struct Known {
    /// Index in `Recording::connections`, if the connection is listed.
    place: Option<usize>,
    traffic: bool,
    last: TcpSample,
}

#[derive(Clone, Copy, Default)]
struct Totals {
    received: u64,
    acked: u64,
    retransmitted: u64,
    traffic: u64,
    read: u64,
    written: u64,
}

impl Sampler {
    fn new(
        sources: Sources,
        zero: Instant,
        live: Arc<Mutex<Live>>,
        watched: Arc<Mutex<Vec<Watched>>>,
    ) -> Self {
        let mut recording = Recording::default();
        let series = &mut recording.series;
        let named = |host: &HostSource| HostSeries { host: host.name.clone(), ..HostSeries::default() };
        series.hosts = sources.hosts.iter().map(named).collect();
        let command = |watched: &Watched| CommandSeries { name: watched.name.clone(), cpu: Vec::new() };
        series.commands = sources.watched.iter().map(command).collect();
        let machine = cpu::of_machine().unwrap_or_default();
        let mut totals = vec![Totals::default(); sources.hosts.len()];
        for (totals, host) in totals.iter_mut().zip(&sources.hosts) {
            // Files were written before time zero.
            (totals.read, totals.written) = host.disk.as_ref().map_or((0, 0), |disk| disk.moved());
        }
        Self {
            interval: sources.interval,
            limit: sources.connections,
            traffic: sources.traffic,
            zero,
            live,
            watched,
            known: HashMap::new(),
            totals,
            cpu: sources.watched.iter().map(|watched| watched.cpu.total()).collect(),
            machine: [machine; 2],
            last: 0.0,
            missed: false,
            unlisted: 0,
            failed: None,
            recording,
            sources: sources.hosts,
        }
    }

    fn sample(&mut self) {
        let now = self.zero.elapsed().as_secs_f64();
        let step = now - self.last;
        if step <= 0.0 {
            return;
        }
        self.last = now;
        self.recording.series.times.push(now);
        let mut live = Live::default();
        let mut sources = std::mem::take(&mut self.sources);
        for (index, source) in sources.iter_mut().enumerate() {
            let before = self.totals[index];
            let streams = self.host(index, source, now).unwrap_or_else(|error| {
                self.failed
                    .get_or_insert(format!("host {}: cannot look at its connections: {error}", source.name));
                0
            });
            self.step(index, source, before, (streams, step));
            live.streams.push(streams);
            live.received += self.totals[index].received;
        }
        self.sources = sources;
        *self.live.lock() = live;
        self.programs(step);
    }

    /// Adds the bytes of a host's connections to its totals, and returns the number of its
    /// connections.
    fn host(&mut self, index: usize, source: &mut HostSource, now: f64) -> io::Result<u32> {
        let mut gone = Vec::new();
        let mut there = Vec::new();
        source.sockets.connections(|seen| there.push(seen))?;
        // This call must follow the listing above: otherwise a connection that ends between both
        // calls would be in neither list.
        if source.sockets.gone(|seen| gone.push(seen))? == List::Interrupted {
            self.missed = true;
        }
        there.retain(|seen| !gone.iter().any(|gone| gone.cookie == seen.cookie));
        let streams =
            there.iter().filter(|seen| self.traffic_of(seen).is_none() && !is_inner(seen)).count() as u32;
        // A socket that ends without a peer was a listening socket.
        for seen in there.iter().chain(&gone).filter(|seen| !is_inner(seen) && seen.remote.port() != 0) {
            self.connection(index, &source.name, seen, now);
        }
        for seen in &gone {
            self.known.remove(&(index, seen.cookie));
        }
        Ok(streams)
    }

    /// Adds one value to each series of a host, even if its connections could not be listed,
    /// because all series need a value for each of their times.
    fn step(&mut self, index: usize, source: &HostSource, before: Totals, (streams, step): (u32, f64)) {
        let totals = &mut self.totals[index];
        (totals.read, totals.written) = source.disk.as_ref().map_or((0, 0), |disk| disk.moved());
        let after = *totals;
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 * 8.0 / step;
        let series = &mut self.recording.series.hosts[index];
        series.streams.push(streams);
        series.received.push(rate(before.received, after.received));
        series.acked.push(rate(before.acked, after.acked));
        series.retransmitted.push(after.retransmitted);
        series.traffic_received.push(rate(before.traffic, after.traffic));
        if source.disk.is_some() {
            series.disk_read.push(rate(before.read, after.read));
            series.disk_written.push(rate(before.written, after.written));
        }
    }

    fn traffic_of(&self, seen: &Seen) -> Option<&String> {
        self.traffic.get(&seen.local.port()).or_else(|| self.traffic.get(&seen.remote.port()))
    }

    fn connection(&mut self, host: usize, name: &str, seen: &Seen, now: f64) {
        let key = (host, seen.cookie);
        if !self.known.contains_key(&key) {
            let new = self.list(name, seen, now);
            self.known.insert(key, new);
        }
        let Some(known) = self.known.get_mut(&key) else { return };
        let before = known.last;
        known.last = merged(before, seen.sample);
        let (after, totals) = (known.last, &mut self.totals[host]);
        let received = after.received.saturating_sub(before.received);
        if known.traffic {
            totals.traffic += received;
        } else {
            totals.received += received;
            totals.acked += after.acked.saturating_sub(before.acked);
            totals.retransmitted += u64::from(after.retransmitted.saturating_sub(before.retransmitted));
        }
        let Some(place) = known.place else { return };
        let connection = &mut self.recording.connections[place];
        (connection.seen[1], connection.last) = (now, after);
        if !seen.congestion.is_empty() {
            connection.congestion.clone_from(&seen.congestion);
        }
        if let Some(series) = self.recording.series.connections.get_mut(place) {
            series.times.push(now);
            series.samples.push(after);
        }
    }

    /// Adds a connection that is seen for the first time.
    fn list(&mut self, host: &str, seen: &Seen, now: f64) -> Known {
        let traffic = self.traffic_of(seen).cloned();
        let mut known = Known { place: None, traffic: traffic.is_some(), last: TcpSample::default() };
        let place = self.recording.connections.len();
        if place >= LISTED {
            self.unlisted += 1;
            return known;
        }
        known.place = Some(place);
        self.recording.connections.push(ConnectionResult {
            host: host.to_owned(),
            local: seen.local.to_string(),
            remote: seen.remote.to_string(),
            traffic,
            seen: [now, now],
            congestion: seen.congestion.clone(),
            last: TcpSample::default(),
        });
        if place < self.limit {
            let series = ConnectionSeries { connection: place, ..ConnectionSeries::default() };
            self.recording.series.connections.push(series);
        }
        known
    }

    fn programs(&mut self, step: f64) {
        let mut watched = self.watched.lock();
        for (index, program) in watched.iter_mut().enumerate() {
            program.look();
            let total = program.cpu.total();
            let used = (total - self.cpu[index]).max(0.0) / step;
            self.cpu[index] = total;
            self.recording.series.commands[index].cpu.push(used);
        }
        drop(watched);
        let now = cpu::of_machine().unwrap_or_default();
        self.recording.series.machine_busy.push(share(self.machine[1], now));
        self.machine[1] = now;
    }

    fn finish(mut self) -> Recording {
        self.recording.busy = share(self.machine[0], self.machine[1]);
        if self.missed {
            let message = "some connections ended unseen, there were too many at once: counters are too low";
            self.recording.warnings.push(message.into());
        }
        if self.unlisted > 0 {
            let message =
                format!("{} connections are counted but not listed: the list has {LISTED}", self.unlisted);
            self.recording.warnings.push(message);
        }
        self.recording.warnings.extend(self.failed);
        self.recording.programs.clone_from(&self.watched.lock());
        self.recording
    }
}

impl DiskMeter {
    fn moved(&self) -> (u64, u64) {
        (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed))
    }
}

/// Whether the connection is between programs of the same host, and so not on any link.
fn is_inner(seen: &Seen) -> bool {
    seen.remote.ip().is_loopback() || seen.remote.ip() == seen.local.ip()
}

/// The last useful state of a connection: depending on the kernel version, a closed one has lost
/// its window and its round trip time.
fn merged(before: TcpSample, now: TcpSample) -> TcpSample {
    if now.acked == 0 && now.received == 0 && now.sent == 0 {
        // The connection was reset, and the kernel has cleared its counters.
        return before;
    }
    let mut merged = now;
    if now.rtt == 0.0 {
        (merged.rtt, merged.rtt_var) = (before.rtt, before.rtt_var);
    }
    if now.rtt_min == 0.0 {
        merged.rtt_min = before.rtt_min;
    }
    if now.cwnd == 0 {
        merged.cwnd = before.cwnd;
    }
    merged
}

fn share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let all = after.1.saturating_sub(before.1);
    if all == 0 { 0.0 } else { after.0.saturating_sub(before.0) as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_children_without_wait_is_kept() {
        let cpu = |user: f64| Cpu { user, system: 0.0 };
        let mut program = Watched::new("server", Some(1), Cpu::default());
        for (said, total) in [(1.0, 1.0), (5.0, 5.0), (2.0, 5.0), (3.0, 6.0)] {
            program.said(cpu(said));
            assert_eq!(program.cpu, cpu(total));
        }
        program.ended(cpu(4.0));
        assert_eq!((program.cpu, program.pid), (cpu(7.0), None));
    }

    #[test]
    fn connection_when_reset_keeps_its_counters() {
        let before = TcpSample { acked: 5, rtt: 0.1, cwnd: 7, ..TcpSample::default() };
        assert_eq!(merged(before, TcpSample::default()), before);
        let now = TcpSample { acked: 9, ..TcpSample::default() };
        assert_eq!(merged(before, now), TcpSample { acked: 9, ..before });
    }
}
