//! The evidence: a profile reduced to the figures that the rules use.
//!
//! The figures of the path come from the samples of the sender's connections that carried data
//! ([`moving`]). For a transfer that failed, only the time in which data moved is evaluated
//! ([`Span`]).

use std::collections::BTreeMap;

use super::failures::Failed;
use super::figures::{largest, mean, median, ramp, smallest, variation};
use super::losses::Losses;
use super::pace::Pace;
use super::span::Span;
use crate::profile::{
    Baselines, Connection, ConnectionSample, Doing, Facts, HostProfile, Outcome, Processor, Profile,
    ProfilerShares, Program, Stages, SystemSample, Workload, WorkloadKind,
};

/// The figures of a profile. Values that were not measured are absent, and rules that need them
/// find nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    pub kind: WorkloadKind,
    pub bytes: f64,
    /// Seconds of the transfer. For a transfer that failed, the seconds in which data moved; all
    /// figures except the counts of bytes and files refer to this time.
    pub seconds: f64,
    /// Payload, bytes per second.
    pub rate: f64,
    /// How the transfer failed; absent if it did not.
    pub failed: Option<Failed>,
    /// The highest rate over an interval.
    pub peak: Option<f64>,
    /// Standard deviation over mean of the rate, without the beginning.
    pub variation: Option<f64>,
    /// In half of all half-seconds, the rate is no farther from its median than this, as a share of
    /// the median. Computed from TCP's counters, without the beginning. A link that is never idle
    /// and carries nothing else delivers the same amount in each half-second.
    pub unrest: Option<f64>,
    /// When and how losses occurred.
    pub losses: Option<Losses>,
    /// Share of the time in which payload moved. Before and after that, files are opened, or read
    /// again for checksums.
    pub moving: Option<f64>,
    pub files: f64,
    /// Number of connections in total.
    pub streams: f64,
    pub files_in_flight: f64,
    /// Requested size of socket buffers.
    pub socket_buffer: Option<f64>,
    /// Round trip of the idle path, in seconds.
    pub rtt: Option<f64>,
    /// The path as seen by TCP at the sending end.
    pub path: Option<Path>,
    pub source: Option<End>,
    pub destination: Option<End>,
    pub baselines: Baselines,
}

/// Figures of all connections of the sender together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Path {
    /// Share of the connections' time in which the peer's window limited sending.
    pub window_limited: f64,
    /// Share of the connections' time in which the send buffer limited sending. The kernel counts
    /// this time only while the congestion window is not used up, and misses most of it if other
    /// limits have raised that window. Therefore samples also count in which TCP had sent
    /// everything and the buffer was full.
    pub buffer_limited: f64,
    /// Share of the samples in which the program had too little to send although the buffer had
    /// room; or share of the time in which nothing was in flight, if that is larger.
    pub application_limited: f64,
    /// Mean share of the congestion window that was in flight, if it could be computed.
    pub filled: Option<f64>,
    /// Medians of the smoothed round trip, and the shortest round trip.
    pub rtt: f64,
    pub min_rtt: Option<f64>,
    /// Segments retransmitted, as a share of all segments with data.
    pub loss: Option<f64>,
    /// Medians per connection: congestion window and the peer's window in bytes, segment size.
    pub congestion_window: f64,
    pub send_window: Option<f64>,
    pub largest_send_window: Option<f64>,
    pub mss: f64,
    /// Median of the send buffers, as the kernel counts.
    pub send_buffer: Option<f64>,
    /// Names of the congestion controls.
    pub congestion: Vec<String>,
    /// Number of samples that these figures come from, if known.
    pub samples: Option<f64>,
}

/// The figures of one end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct End {
    pub name: String,
    /// Means over the transfer: the busiest processor, and all processors together.
    pub busiest: Option<Processor>,
    pub all: Option<Processor>,
    pub processors: f64,
    /// The disk that moved most in the direction of the transfer: name, mean utilisation, bytes per
    /// second.
    pub disk: Option<(String, f64, f64)>,
    pub stages: Option<Stages>,
    pub profiler: Option<ProfilerShares>,
    pub programs: Vec<Program>,
    /// Activity of the programs, as seen from outside.
    pub doing: Option<Doing>,
    /// The size up to which the kernel grows buffers, in bytes as it counts.
    pub send_ceiling: Option<f64>,
    pub receive_ceiling: Option<f64>,
    /// Rate in bytes per second of the interfaces that the data took, according to their counters.
    /// Without counters, the rate of the interface with the default route, or of the only
    /// interface.
    pub interface: Option<f64>,
    /// Medians over its connections: receive buffer, and unread bytes in it.
    pub receive_buffer: Option<f64>,
    pub unread: Option<f64>,
    /// Segments that arrived out of order, as a share of all segments with data.
    pub out_of_order: Option<f64>,
    /// Number of samples that the figures of processors and disks come from, if known.
    pub samples: Option<f64>,
}

impl Evidence {
    /// Computes the figures of a profile.
    pub fn of(profile: &Profile) -> Self {
        if profile.workload.outcome == Outcome::Done {
            return Self::of_span(profile, None);
        }
        let span = Span::of(profile);
        let failed = Failed::of(profile, span);
        match span {
            Some(span) => Self { failed, ..Self::of_span(&span.cut(profile), Some(span)) },
            None => Self { failed, ..Self::of_span(profile, None) },
        }
    }

    fn of_span(profile: &Profile, span: Option<Span>) -> Self {
        let seconds = span.map_or(profile.workload.seconds, |span| span.seconds());
        let rate = if span.is_some() && seconds > 0.0 {
            profile.workload.bytes as f64 / seconds
        } else {
            profile.workload.rate()
        };
        let Workload { kind, bytes, files, streams, files_in_flight, socket_buffer, .. } = profile.workload;
        let sending = profile.source().map(|host| moving(&host.connections, true)).unwrap_or_default();
        let receiving =
            profile.destination().map(|host| moving(&host.connections, false)).unwrap_or_default();
        let pace = match Pace::of(&sending, true) {
            pace if pace.is_empty() => Pace::of(&receiving, false),
            pace => pace,
        };
        // The first third is the beginning, in which the rate grows anyway.
        let mut rates: Vec<f64> =
            profile.workload.rates.iter().map(|sample| sample.bytes_per_second).collect();
        if rates.is_empty() {
            rates = pace.rates();
        }
        let settled = rates.get(rates.len() / 3..).unwrap_or_default();
        let end = |host: &HostProfile, sends| End::of(host, profile, sends);
        let path = Path::of(&sending);
        Self {
            kind,
            bytes: bytes as f64,
            seconds,
            rate,
            failed: None,
            peak: largest(rates.iter().copied().map(Some)),
            variation: variation(settled),
            unrest: pace.unrest(),
            losses: Losses::of(&sending),
            moving: pace.share(seconds),
            files: files as f64,
            streams: (f64::from(streams) * f64::from(files_in_flight.max(1))).max(1.0),
            files_in_flight: f64::from(files_in_flight.max(1)),
            socket_buffer: socket_buffer.map(|bytes| bytes as f64),
            rtt: smallest([profile.baselines.rtt, shortest(sending.iter().chain(&receiving))])
                .or_else(|| path.as_ref().map(|path| path.rtt))
                .filter(|&rtt| rtt > 0.0),
            path,
            source: profile.source().map(|host| end(host, true)),
            destination: profile.destination().map(|host| end(host, false)),
            baselines: profile.baselines.clone(),
        }
    }

    /// The capacity of the path, in bytes per second: as measured, or at most what the slower
    /// interface can carry (94 % of it is payload with a usual MTU).
    pub fn capacity(&self) -> Option<f64> {
        let interface = |end: &Option<End>| end.as_ref().and_then(|end| end.interface);
        let interfaces = smallest([interface(&self.source), interface(&self.destination)]);
        self.path_baseline().or(interfaces.map(|rate| rate * 0.94).filter(|&rate| self.fits(rate)))
    }

    /// The measured baseline of the path, if it shows the path's capacity. It does not if losses
    /// slowed down the single connection of the measurement, or if the transfer itself was faster.
    pub fn path_baseline(&self) -> Option<f64> {
        self.baselines.path_whole().filter(|&rate| self.fits(rate))
    }

    /// Whether this rate may be the path's capacity: the transfer did not exceed it by more than 10
    /// %, the difference between measurements.
    fn fits(&self, rate: f64) -> bool {
        rate > 0.0 && self.rate <= rate * 1.1
    }

    /// How far a window or buffer with this much room for data is larger than the amount that a
    /// connection had in flight at the highest rate: 0 up to four times, 1 from ten times on. A
    /// window or buffer as large as this is not the limit, even when it is full: the data in it
    /// waits for a program that takes it more slowly.
    pub fn roomy(&self, bytes: f64) -> f64 {
        let rate = largest([self.peak, Some(self.rate)]).unwrap_or(0.0);
        let rtt = self.path.as_ref().map(|path| path.rtt).or(self.rtt);
        let flight = rtt.map(|rtt| rate * rtt / self.streams.max(1.0)).filter(|&flight| flight > 0.0);
        flight.map_or(0.0, |flight| ramp(bytes / flight, 4.0, 10.0))
    }

    /// How far too little is in flight although the peer's window and the buffer have room, 0 to 1:
    /// the sender's program hands over a little at a time, so that there is always some data but
    /// never much (70 to 40 % of the congestion window in the mean). Windows and buffers that are
    /// roomy do not count as other limits.
    pub fn handed_little(&self) -> f64 {
        let Some(path) = &self.path else { return 0.0 };
        let small = |bytes: Option<f64>| 1.0 - bytes.map_or(0.0, |bytes| self.roomy(bytes));
        // Half of a buffer is for data.
        let others = path.window_limited * small(path.send_window)
            + path.buffer_limited * small(path.send_buffer.map(|bytes| bytes / 2.0));
        path.filled.map_or(0.0, |filled| (1.0 - ramp(filled, 0.4, 0.7)) * (1.0 - ramp(others, 0.1, 0.4)))
    }

    /// The round trip of the idle path, if it is at least 0.1 ms. In a shorter round trip, hosts
    /// and clocks take longer than the network, so that the rate which a window allows would mean
    /// nothing.
    pub fn way(&self) -> Option<f64> {
        self.rtt.filter(|&rtt| rtt >= 1e-4)
    }

    /// Median round trip over that of the idle path: 1 without queues.
    pub fn inflation(&self) -> Option<f64> {
        Some(self.path.as_ref()?.rtt / self.rtt?)
    }

    /// How far data stands in a queue, 0 to 1: the round trip is more than twice that of the idle
    /// path. Then more than half of the data in flight waits in the queue, and more data in flight
    /// would only wait longer.
    pub fn standing(&self) -> f64 {
        ramp(self.inflation().unwrap_or(1.0), 2.0, 2.5)
    }

    /// Mean waiting time in queues, in seconds.
    pub fn queueing(&self) -> Option<f64> {
        Some((self.path.as_ref()?.rtt - self.rtt?).max(0.0))
    }

    /// Both ends, the source first.
    pub fn ends(&self) -> impl Iterator<Item = &End> {
        self.source.iter().chain(&self.destination)
    }
}

impl Path {
    /// Share of the time in which neither the program, nor a window, nor a buffer limited sending:
    /// the congestion window did.
    pub fn congestion_limited(&self) -> f64 {
        (1.0 - self.application_limited - self.window_limited - self.buffer_limited).max(0.0)
    }

    fn of(connections: &[&Connection]) -> Option<Self> {
        // Differences need at least two samples.
        let spans: Vec<(&ConnectionSample, &ConnectionSample)> = connections
            .iter()
            .filter_map(|connection| Some((connection.samples.first()?, connection.samples.last()?)))
            .filter(|(first, last)| last.time > first.time)
            .collect();
        let elapsed: f64 = spans.iter().map(|(first, last)| last.time - first.time).sum();
        let samples = || connections.iter().flat_map(|connection| &connection.samples);
        let count = samples().count() as f64;
        if elapsed <= 0.0 {
            return None;
        }
        let limited = |of: fn(&ConnectionSample) -> Option<f64>| {
            let grown = |(first, last): &(&ConnectionSample, &ConnectionSample)| {
                (of(last).unwrap_or(0.0) - of(first).unwrap_or(0.0)).max(0.0)
            };
            (spans.iter().map(grown).sum::<f64>() / elapsed).min(1.0)
        };
        let share_of = |of: &dyn Fn(&ConnectionSample) -> bool| {
            samples().filter(|sample| of(sample)).count() as f64 / count
        };
        // A program that does not even try to send is not counted as limited, but nothing is in
        // flight then.
        let counts = spans.iter().all(|(_, last)| last.busy.is_some());
        let idle = if counts { 1.0 - limited(|sample| sample.busy) } else { 0.0 };
        // The counters start with the connection, so segments before the first sample count too.
        let sent: f64 = spans.iter().filter_map(|(_, last)| last.segments_sent).map(|sent| sent as f64).sum();
        let again: f64 = spans.iter().map(|(_, last)| f64::from(last.retransmitted)).sum();
        let mut congestion: Vec<String> =
            connections.iter().map(|connection| connection.congestion.clone()).collect();
        congestion.sort();
        congestion.dedup();
        let windows = || samples().filter_map(|sample| sample.send_window).map(|bytes| bytes as f64);
        let acknowledged = |(first, last): &(&ConnectionSample, &ConnectionSample)| {
            Some(last.acknowledged?.saturating_sub(first.acknowledged?) as f64)
        };
        let moved = spans.iter().map(acknowledged).sum::<Option<f64>>();
        let rtt = median(samples().map(|sample| sample.rtt).filter(|&rtt| rtt > 0.0))?;
        let congestion_window =
            median(samples().map(|sample| f64::from(sample.cwnd) * f64::from(sample.mss)))?;
        Some(Self {
            window_limited: limited(|sample| sample.window_limited),
            buffer_limited: limited(|sample| sample.buffer_limited).max(share_of(&|sample| full(sample))),
            application_limited: share_of(&|sample| sample.application_limited && !full(sample)).max(idle),
            filled: moved.map(|moved| moved / elapsed * rtt / congestion_window.max(1.0)),
            rtt,
            min_rtt: smallest(samples().map(|sample| sample.min_rtt)),
            loss: (sent > 0.0).then(|| (again / sent).min(1.0)),
            congestion_window,
            send_window: median(windows()),
            largest_send_window: largest(windows().map(Some)),
            mss: median(samples().map(|sample| f64::from(sample.mss)))?,
            send_buffer: median(samples().filter_map(|sample| sample.send_buffer).map(|bytes| bytes as f64)),
            congestion,
            samples: Some(count),
        })
    }
}

impl End {
    fn of(host: &HostProfile, profile: &Profile, sends: bool) -> Self {
        let during = |time: f64, length: f64| {
            let end = host.aligned(time, profile.started);
            end > 0.0 && end - length < profile.workload.seconds
        };
        let system: Vec<_> =
            host.system.iter().filter(|sample| during(sample.time, sample.seconds)).collect();
        let mut processors: BTreeMap<&str, Vec<&Processor>> = BTreeMap::new();
        let mut disks: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for sample in &system {
            for processor in &sample.processors {
                processors.entry(&processor.name).or_default().push(processor);
            }
            for disk in &sample.disks {
                let rate = if sends { disk.read } else { disk.written };
                disks.entry(&disk.name).or_default().push((disk.utilisation, rate));
            }
        }
        let all = processors.remove("all").map(|samples| mean_of("all", &samples));
        let busiest = processors
            .iter()
            .map(|(name, samples)| mean_of(name, samples))
            .max_by(|a, b| a.busy().total_cmp(&b.busy()));
        let disk = disks
            .iter()
            .filter_map(|(name, samples)| {
                let utilisation = mean(samples.iter().map(|sample| sample.0))?;
                Some(((*name).to_owned(), utilisation.min(1.0), mean(samples.iter().map(|sample| sample.1))?))
            })
            .max_by(|a, b| a.2.total_cmp(&b.2));
        let connections = moving(&host.connections, sends);
        let samples = || connections.iter().flat_map(|connection| &connection.samples);
        let last = || connections.iter().filter_map(|connection| connection.samples.last());
        let arrived: f64 = last()
            .filter(|sample| sample.mss > 0)
            .filter_map(|sample| Some(sample.received? as f64 / f64::from(sample.mss)))
            .sum();
        let disorder = last().filter_map(|sample| sample.out_of_order).map(|segments| segments as f64);
        Self {
            name: host.facts.name.clone(),
            busiest,
            all,
            processors: f64::from(host.facts.processors.max(1)),
            disk,
            stages: host.stages,
            profiler: host.profiler.clone(),
            programs: host.programs.iter().map(|program| within(program, &host.facts)).collect(),
            // A few moments do not show anything.
            doing: host.doing.filter(|doing| doing.samples >= 10),
            send_ceiling: host.facts.send_ceiling().map(|bytes| bytes as f64),
            receive_ceiling: host.facts.receive_ceiling().map(|bytes| bytes as f64),
            interface: interface(host, &system, sends, profile.workload.rate()),
            receive_buffer: median(
                samples().filter_map(|sample| sample.receive_buffer).map(|bytes| bytes as f64),
            ),
            unread: median(samples().filter_map(|sample| sample.unread).map(|bytes| bytes as f64)),
            out_of_order: (arrived > 0.0).then(|| disorder.sum::<f64>() / arrived),
            samples: Some(system.len() as f64),
        }
    }

    /// Share of the streams' time that a stage took.
    pub fn stage(&self, of: impl Fn(&Stages) -> f64) -> Option<f64> {
        let stages = self.stages.as_ref().filter(|stages| stages.stream_seconds > 0.0)?;
        Some((of(stages) / stages.stream_seconds).min(1.0))
    }
}

/// Whether TCP has nothing left to send although the program may not hand over more: the kernel
/// wakes the program only when a third of the buffer is free.
fn full(sample: &ConnectionSample) -> bool {
    let fill = sample.queued.zip(sample.send_buffer).map(|(queued, buffer)| queued as f64 / buffer as f64);
    sample.application_limited && fill.is_some_and(|fill| fill >= 0.6)
}

/// The shortest round trip that any of these connections saw. Other connections may be to hosts
/// nearby, or to the host itself.
fn shortest<'a>(connections: impl Iterator<Item = &'a &'a Connection>) -> Option<f64> {
    let samples = connections.flat_map(|connection| &connection.samples);
    smallest(samples.map(|sample| sample.min_rtt)).filter(|&rtt| rtt > 0.0)
}

/// The connections that carried the data in this direction. Control connections would dilute shares
/// and medians, and a host that sends to itself has both ends of each connection.
pub(crate) fn moving(connections: &[Connection], sends: bool) -> Vec<&Connection> {
    let moved = |connection: &Connection| {
        let (first, last) = (connection.samples.first()?, connection.samples.last()?);
        let grown = |of: fn(&ConnectionSample) -> Option<u64>| Some(of(last)?.saturating_sub(of(first)?));
        let out = grown(|sample| sample.acknowledged)?;
        let into = grown(|sample| sample.received)?;
        Some(if sends { (out, into) } else { (into, out) })
    };
    let all: Vec<Option<(u64, u64)>> = connections.iter().map(moved).collect();
    let most = all.iter().flatten().map(|moved| moved.0).max().unwrap_or(0);
    let others = all.iter().flatten().map(|moved| moved.1).max().unwrap_or(0);
    // All data went the other way: a host that only receives sends nothing but commands and
    // answers.
    if most < others / 1000 {
        return Vec::new();
    }
    if most == 0 {
        return connections.iter().collect();
    }
    let carries = |moved: &Option<(u64, u64)>| {
        moved.is_some_and(|(wanted, other)| wanted > other && wanted >= most / 100)
    };
    connections
        .iter()
        .zip(&all)
        .filter(|(_, moved)| carries(moved))
        .map(|(connection, _)| connection)
        .collect()
}

fn mean_of(name: &str, samples: &[&Processor]) -> Processor {
    let part = |of: fn(&Processor) -> f64| mean(samples.iter().map(|sample| of(sample))).unwrap_or(0.0);
    Processor {
        name: name.to_owned(),
        user: part(|sample| sample.user),
        system: part(|sample| sample.system),
        iowait: part(|sample| sample.iowait),
        irq: part(|sample| sample.irq),
        softirq: part(|sample| sample.softirq),
        steal: part(|sample| sample.steal),
        idle: part(|sample| sample.idle),
    }
}

/// Older profiles also count processors that might be added to the machine later.
fn within(program: &Program, facts: &Facts) -> Program {
    let most = if facts.processors > 0 { facts.processors } else { u32::MAX };
    Program { processors: program.processors.map(|processors| processors.min(most)), ..program.clone() }
}

/// Rate of the interfaces that the data took, in bytes per second. `rate` is the transfer's; an
/// interface must have counted at least a third of it. Several interfaces belong to a bond, or are
/// different routes: those that carried at least a fifth of the busiest one are summed.
fn interface(host: &HostProfile, system: &[&SystemSample], sends: bool, rate: f64) -> Option<f64> {
    let interfaces = &host.facts.interfaces;
    // Virtual interfaces report an invented speed.
    let known = || {
        let known = interfaces.iter().filter(|interface| interface.driver.is_some());
        known.filter_map(|interface| Some((interface, interface.speed? as f64 / 8.0)))
    };
    let counted = |name: &str| {
        let used = system.iter().flat_map(|sample| &sample.interfaces).filter(|used| used.name == name);
        mean(used.map(|used| if sends { used.sent_bytes } else { used.received_bytes }))
    };
    if system.iter().any(|sample| !sample.interfaces.is_empty()) {
        let carried: Vec<(f64, f64)> = known()
            .filter_map(|(interface, speed)| Some((counted(&interface.name)?, speed)))
            .filter(|(carried, _)| *carried >= rate / 3.0)
            .collect();
        let most = largest(carried.iter().map(|&(carried, _)| Some(carried)))?;
        return Some(
            carried.iter().filter(|(carried, _)| *carried >= most / 5.0).map(|(_, speed)| speed).sum(),
        );
    }
    let mut known: Vec<_> = known().map(|(interface, speed)| (interface.default_route, speed)).collect();
    known.sort_by_key(|&(default, _)| !default);
    match known.as_slice() {
        [(true, speed), ..] | [(_, speed)] => Some(*speed),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Interface, InterfaceUse, Role};

    fn connection(name: &str, acknowledged: u64, received: u64) -> Connection {
        let sample = |time: f64, part: u64| ConnectionSample {
            time,
            acknowledged: Some(acknowledged * part),
            received: Some(received * part),
            ..ConnectionSample::default()
        };
        Connection {
            local: name.into(),
            samples: vec![sample(0.0, 0), sample(1.0, 1)],
            ..Connection::default()
        }
    }

    #[test]
    fn evidence_takes_the_round_trip_of_data_connections() {
        let with = |connection: Connection, rtt: f64| {
            let near = |sample: &ConnectionSample| ConnectionSample { rtt, min_rtt: Some(rtt), ..*sample };
            Connection { samples: connection.samples.iter().map(near).collect(), ..connection }
        };
        let host = |role, far: Connection| HostProfile {
            role,
            connections: vec![with(far, 0.08), with(connection("with itself", 5000, 900), 0.00002)],
            ..HostProfile::default()
        };
        let profile = Profile {
            hosts: vec![
                host(Role::Source, connection("out", 1 << 30, 0)),
                host(Role::Destination, connection("in", 0, 1 << 30)),
            ],
            ..Profile::default()
        };
        assert_eq!(Evidence::of(&profile).rtt, Some(0.08));
    }

    #[test]
    fn interface_is_the_one_that_counted_the_data() {
        let card = |name: &str, default_route, speed| Interface {
            name: name.into(),
            default_route,
            speed: Some(speed),
            driver: Some("igb".into()),
            ..Interface::default()
        };
        let used =
            |name: &str, sent_bytes| InterfaceUse { name: name.into(), sent_bytes, ..Default::default() };
        let interfaces = vec![card("eno1", true, 1e9 as u64), card("ens1", false, 100e9 as u64)];
        let mut host =
            HostProfile { facts: Facts { interfaces, ..Facts::default() }, ..HostProfile::default() };
        let of = |host: &HostProfile, counted: &[(&str, f64)]| {
            let interfaces = counted.iter().map(|&(name, bytes)| used(name, bytes)).collect();
            let sample = SystemSample { interfaces, ..SystemSample::default() };
            interface(host, &[&sample], true, 1e9)
        };
        assert_eq!(of(&host, &[("eno1", 2e3), ("ens1", 1.03e9)]), Some(12.5e9));
        // The data took neither interface: it went over loopback, or over an interface of unknown
        // speed.
        assert_eq!(of(&host, &[("eno1", 2e3), ("ens1", 0.0), ("lo", 1e9)]), None);
        // There are no counters.
        assert_eq!(interface(&host, &[], true, 1e9), Some(1.25e8));
        // Two interfaces of a bond. With more interfaces, each would carry less than a third of the
        // rate.
        host.facts.interfaces[0].speed = Some(100e9 as u64);
        assert_eq!(of(&host, &[("eno1", 0.5e9), ("ens1", 0.5e9)]), Some(25e9));
    }

    #[test]
    fn within_limits_processors_to_those_of_the_host() {
        let program = Program { processors: Some(128), ..Program::default() };
        let of = |processors| within(&program, &Facts { processors, ..Facts::default() }).processors;
        assert_eq!((of(4), of(256), of(0)), (Some(4), Some(128), Some(128)));
    }

    #[test]
    fn capacity_is_never_below_the_rate() {
        let mut evidence = Evidence { rate: 1e8, ..Evidence::default() };
        evidence.baselines.path = Some(2e7);
        assert_eq!(evidence.capacity(), None);
        evidence.source = Some(End { interface: Some(1.25e6), ..End::default() });
        assert_eq!(evidence.capacity(), None);
        evidence.source = Some(End { interface: Some(1.25e9), ..End::default() });
        assert_eq!(evidence.capacity(), Some(1.25e9 * 0.94));
        evidence.baselines.path = Some(9.5e7);
        assert_eq!(evidence.capacity(), Some(9.5e7));
        (evidence.baselines.path_streams, evidence.baselines.path_retransmitted) = (Some(1), Some(17));
        assert_eq!(evidence.capacity(), Some(1.25e9 * 0.94));
        evidence.baselines.path_streams = Some(8);
        assert_eq!(evidence.capacity(), Some(9.5e7));
    }

    #[test]
    fn moving_leaves_out_control_connections_and_other_ends() {
        let all = [
            connection("control", 200, 900),
            connection("data 1", 1 << 30, 0),
            connection("other end", 0, 1 << 30),
            connection("data 2", 1 << 28, 100),
        ];
        let names = |sends| moving(&all, sends).iter().map(|found| found.local.as_str()).collect::<Vec<_>>();
        assert_eq!((names(true), names(false)), (vec!["data 1", "data 2"], vec!["other end"]));
        // A host that only receives does not send.
        let comes = [connection("control", 200, 900), connection("data", 300, 1 << 30)];
        assert_eq!((moving(&comes, true).len(), moving(&comes, false).len()), (0, 1));
        // Without counters, all connections may have carried data.
        assert_eq!(moving(&[Connection::default()], true).len(), 1);
    }
}
