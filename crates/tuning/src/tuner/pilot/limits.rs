//! What keeps the number of streams down although the path might carry more: windows too small, ends that are
//! the bottleneck, politeness, and what the peer grants.

use super::super::decision::{Bottleneck, Reason};
use super::super::meter::elasticity;
use super::super::options::{Fairness, Options};
use super::super::sample::{Chunk, Pressure};
use super::crowd::{Crowd, EACH};
use super::polite::{Calm, Congestion, SAME, queue};
use super::share::stated;
use crate::model::loss_of_window;

/// Share of time from which on a resource is the limit, and under which it no longer is.
const BUSY: f64 = 0.95;
const FREE: f64 = 0.75;
/// With fewer of the streams that were asked for, the peer grants no more; single ones may just be on their way.
const GRANTED: f64 = 0.75;
/// Streams have come after so many seconds, if they come.
const TO_COME: f64 = 6.0;
/// Share of time for which the peer's windows held streams back from which on it may be the peer that takes no more.
const WINDOW: f64 = 0.5;
/// Of windows that are small, more streams have as many bytes in flight each: with an elasticity under this they do not use them.
const UNUSED: f64 = 0.7;
/// What is left after yielding.
const YIELD: f64 = 0.7;
/// Share of a window from which on it counts as used up.
const USED: f64 = 0.85;
/// Of the loss that a crowded path would have at these windows, less than this share means that it is none.
const UNCROWDED: f64 = 0.1;
/// Loss under which the path counts as free of it.
const NO_LOSS: f64 = 1e-5;

#[derive(Clone, Debug)]
pub(super) struct Limits {
    most: u32,
    packet: f64,
    polite: bool,
    /// A share is stated: how many streams to have on a crowded path is not for the crowd to say.
    stated: bool,
    granted: u32,
    /// For so many seconds there have been too few.
    missing: f64,
    /// Streams that politeness allows, or the path's others where a share is stated.
    allowed: f64,
    calm: Calm,
    busy: Option<Bottleneck>,
    /// What must be the limit, since more streams gained nothing.
    concluded: Option<Bottleneck>,
    /// The last trial showed neither loss nor a queue.
    suspect: bool,
    /// The peer's windows hold streams back, and more streams had no more in flight: it takes no more.
    closed: bool,
    /// Streams of the last chunk, and bytes that they had in flight.
    in_flight: Option<(u32, f64)>,
    yielding: Option<Reason>,
    /// Round trips of the last chunk and of the one before, where there was a queue.
    queued: [Option<f64>; 2],
    crowd: Crowd,
}

impl Limits {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            most: options.max_streams,
            packet: options.packet_bytes,
            polite: options.fairness == Fairness::Polite,
            stated: stated(options).is_some(),
            granted: options.max_streams,
            missing: 0.0,
            allowed: f64::from(options.max_streams),
            calm: Calm::default(),
            busy: None,
            concluded: None,
            suspect: false,
            closed: false,
            in_flight: None,
            yielding: None,
            queued: [None; 2],
            crowd: Crowd::default(),
        }
    }

    /// The most streams that may be used now.
    pub(super) fn most(&self) -> u32 {
        let windows = self.crowd.most().unwrap_or(f64::INFINITY);
        let most = f64::from(self.most.min(self.granted));
        most.min(self.allowed).min(windows).max(1.0) as u32
    }

    /// What is known to be the bottleneck instead of the network.
    pub(super) fn bottleneck(&self) -> Option<Bottleneck> {
        self.busy.or(self.concluded)
    }

    /// The peer's windows hold streams back, and not because they are small.
    pub(super) fn at_peer(&self) -> bool {
        self.closed
    }

    /// Why no more streams than [`most`](Self::most) are used.
    pub(super) fn reason(&self, rate: f64, rtt: f64) -> Reason {
        let most = self.most();
        if let Some(reason) = self.yielding {
            return reason;
        }
        let room = if self.stated { Some(self.allowed) } else { self.crowd.most() };
        if most < self.most && room.is_some_and(|room| room.max(1.0) as u32 == most) {
            return Reason::WindowTooSmall { packets: rate * rtt / self.packet / f64::from(most) };
        }
        if self.granted == most && most < self.most {
            return Reason::Granted { streams: most };
        }
        Reason::Capped { cap: most }
    }

    /// Takes what a chunk of `asked` streams showed. `noise`: the standard deviation of the logarithm of `rate`; `place`:
    /// they are those to stay with.
    pub(super) fn learn(&mut self, chunk: &Chunk, asked: u32, rate: f64, noise: f64, place: bool) {
        if f64::from(chunk.streams) < GRANTED * f64::from(asked) {
            self.missing += chunk.seconds;
            if self.missing >= TO_COME {
                // The peer grants no more; it may again later.
                self.granted = chunk.streams;
            }
        } else {
            self.missing = 0.0;
            if chunk.streams >= self.granted {
                self.granted = self.most.min(self.granted.saturating_mul(2));
            }
        }
        self.busy = busy(&chunk.pressure, self.busy);
        self.learn_windows(chunk, rate);
        let queued = chunk.rtt.zip(chunk.min_rtt).filter(|(rtt, least)| rtt - least > queue(*least));
        // What the peer lets through at a time queues, too.
        let queued = queued.filter(|_| !self.closed);
        self.queued = [queued.map(|queued| queued.0), self.queued[0]];
        let free = queued.is_none() && self.is_free(chunk, rate);
        if let Some(rtt) = chunk.rtt.filter(|_| place) {
            let window = rate * rtt / (f64::from(chunk.streams) * self.packet);
            if self.stated {
                // No more than others leave room for, whatever the share; not all at once, for a chunk may be a bad one.
                self.allowed = (EACH * window).max(0.5 * f64::from(chunk.streams));
            } else if self.closed || free {
                // What streams have in flight is the peer's to say, or their buffers', not others'.
                self.crowd.alone();
            } else {
                let full = self.full();
                self.crowd.learn(rate, noise, window, chunk.streams, full);
            }
        }
        if self.polite {
            self.yield_to_others(chunk);
        }
    }

    /// Whether streams of a path without a queue carry as little as they do although others leave them room: such windows
    /// would cost losses if others were the reason, or those that were negotiated are used up.
    fn is_free(&self, chunk: &Chunk, rate: f64) -> bool {
        let Some(least) = chunk.min_rtt.or(chunk.rtt) else { return false };
        let each = rate * least / f64::from(chunk.streams);
        let used = chunk.window.is_some_and(|window| each > USED * window);
        let lost = loss_of_window(each / self.packet);
        chunk.loss.filter(|_| chunk.min_rtt.is_some()).map_or(used, |loss| loss < UNCROWDED * lost)
    }

    fn learn_windows(&mut self, chunk: &Chunk, rate: f64) {
        let now = chunk.rtt.map(|rtt| (chunk.streams, rate * rtt));
        let before = std::mem::replace(&mut self.in_flight, now);
        let changed = before.zip(now).filter(|(before, now)| before.0 != now.0);
        let unused = changed.map_or(self.closed, |(before, now)| elasticity(before, now) < UNUSED);
        self.closed = unused && chunk.pressure.window.is_some_and(|share| share >= WINDOW);
    }

    /// Others have come to the path, as it seems.
    pub(super) fn share(&mut self) {
        if !self.stated && !self.closed {
            self.crowd.share(false);
        }
    }

    /// More streams gain, or the same carry less. With the same queue before and after, others had that, or have it now.
    pub(super) fn share_path(&mut self) {
        if !self.stated && !self.closed {
            self.crowd.share(self.full());
        }
    }

    /// Nobody else is there.
    pub(super) fn alone(&mut self) {
        self.crowd.alone();
    }

    /// As [`Crowd::costs`], where the crowd says how many streams to have. Politeness has its own ways.
    pub(super) fn costs(&mut self, streams: u32, level: f64, deviation: f64) -> Option<(u32, f64)> {
        if self.crowded() && !self.polite { self.crowd.costs(streams, level, deviation) } else { None }
    }

    /// For a while nobody is held to be there; `false` takes that back.
    pub(super) fn bar(&mut self, barred: bool) {
        if barred { self.crowd.bar() } else { self.crowd.unbar() }
    }

    /// That others are there is certain.
    pub(super) fn shared(&self) -> bool {
        self.crowd.certain()
    }

    /// The path was full in the last two chunks.
    pub(super) fn full(&self) -> bool {
        self.queued.iter().all(Option::is_some)
    }

    /// And its queue stayed as it was.
    pub(super) fn same_queue(&self) -> bool {
        let [now, before] = self.queued;
        now.zip(before).is_some_and(|(now, before)| (now / before).ln().abs() < SAME)
    }

    fn yield_to_others(&mut self, chunk: &Chunk) {
        if let Some(Congestion { queueing, loss }) = self.calm.congestion(chunk) {
            self.allowed = (YIELD * f64::from(chunk.streams)).max(1.0);
            self.yielding = Some(Reason::Yielding { queueing, loss });
        } else {
            self.allowed = (self.allowed + (0.1 * self.allowed).max(1.0)).min(f64::from(self.most));
            self.yielding = None;
        }
    }

    /// More streams gained nothing with windows unused: where the path shows neither loss nor a queue, something
    /// at an end must be the limit.
    pub(super) fn infer(&mut self, chunk: &Chunk) {
        let lossless = chunk.loss.is_some_and(|loss| loss < NO_LOSS);
        let queueless = chunk.rtt.zip(chunk.min_rtt).is_some_and(|(rtt, least)| rtt - least <= queue(least));
        self.suspect = lossless && queueless;
    }

    /// The plateau is certain now.
    pub(super) fn conclude(&mut self) {
        if self.busy.is_none() {
            let suspect = self.suspect.then_some(Bottleneck::Ends);
            self.concluded = self.closed.then_some(Bottleneck::Peer).or(suspect).or(self.concluded);
        }
    }

    /// Whether windows were too small and might be again.
    pub(super) fn crowded(&self) -> bool {
        self.crowd.most().is_some()
    }

    /// The path changed.
    pub(super) fn forget(&mut self) {
        self.suspect = false;
        // As long as its windows hold streams back it is the peer that gives or takes less.
        self.concluded = self.concluded.filter(|&by| by == Bottleneck::Peer && self.closed);
    }

    /// Whether `base` must be lowered, or may be raised again towards `wanted`; and why.
    pub(super) fn adjust(&self, base: u32, wanted: u32, rate: f64, rtt: f64) -> Option<(u32, Reason)> {
        let most = self.most();
        if base > most {
            return Some((most, self.reason(rate, rtt)));
        }
        if self.crowded() {
            let packets = rate * rtt / self.packet / f64::from(base);
            return (most > base).then_some((most, Reason::Crowded { packets }));
        }
        let raised = most.min(wanted);
        (self.polite && raised > base).then_some((raised, Reason::Growing { elasticity: 1.0 }))
    }
}

/// The busiest resource, if it is busy enough; one that was stays until it is clearly free.
fn busy(pressure: &Pressure, before: Option<Bottleneck>) -> Option<Bottleneck> {
    let of = [
        (Bottleneck::Disk, pressure.disk),
        (Bottleneck::Cpu, pressure.cpu),
        (Bottleneck::Peer, pressure.peer),
        (Bottleneck::Limit, pressure.limit),
    ];
    let busiest =
        of.into_iter().filter_map(|(which, share)| Some((which, share?))).max_by(|a, b| a.1.total_cmp(&b.1));
    match busiest {
        Some((which, share)) if share >= BUSY => Some(which),
        Some((which, share)) if share >= FREE && before == Some(which) => before,
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(streams: u32, rtt: f64, loss: f64) -> Chunk {
        Chunk {
            rtt: Some(rtt),
            min_rtt: Some(0.05),
            loss: Some(loss),
            ..Chunk::new(streams, 100_000_000, 10.0)
        }
    }

    #[test]
    fn small_windows_bound_streams() {
        let mut limits = Limits::new(&Options::default());
        limits.learn(&chunk(100, 0.05, 0.05), 100, 1e7, 0.0, true);
        // 10 MB/s over 50 ms are 333 packets: 3.3 a stream, and 40 streams to have. A quarter of the way at a time.
        assert_eq!(limits.most(), 85);
        assert!(matches!(limits.reason(1e7, 0.05), Reason::WindowTooSmall { .. }));
        assert!(matches!(limits.adjust(60, 60, 1e7, 0.05), Some((85, Reason::Crowded { .. }))));
        limits.learn(&chunk(85, 0.05, 0.05), 85, 1.1e7, 0.0, true);
        assert!((70..85).contains(&limits.most()));
        limits.learn(&chunk(20, 0.05, 0.0), 20, 1e7, 0.0, true);
        assert_eq!(limits.most(), 128);
    }

    #[test]
    fn windows_that_are_small_without_a_crowd_bound_nothing() {
        let learned = |chunk: Chunk| {
            let mut limits = Limits::new(&Options::default());
            limits.learn(&chunk, 100, 1e7, 0.0, true);
            limits.most()
        };
        // A crowd would lose far more at 3.3 packets a stream.
        assert_eq!(learned(chunk(100, 0.05, 1e-3)), 128);
        assert_eq!(learned(chunk(100, 0.06, 1e-3)), 87);
        // Loss is not known, but all of the window is used.
        let unknown = |window| Chunk { loss: None, window, ..chunk(100, 0.05, 0.0) };
        assert_eq!(learned(unknown(Some(5000.0))), 128);
        assert_eq!((learned(unknown(Some(10_000.0))), learned(unknown(None))), (85, 85));
        // Nothing is known of a queue.
        assert_eq!(learned(Chunk { min_rtt: None, ..chunk(100, 0.05, 0.0) }), 85);
    }

    #[test]
    fn politeness_yields_and_returns() {
        let options = Options { fairness: Fairness::Polite, ..Options::default() };
        let mut limits = Limits::new(&options);
        limits.learn(&chunk(20, 0.05, 0.0), 20, 1e7, 0.0, true);
        assert_eq!(limits.most(), 128);
        limits.learn(&chunk(20, 0.08, 0.0), 20, 1e7, 0.0, true);
        assert_eq!(limits.most(), 14);
        limits.learn(&chunk(14, 0.05, 0.01), 14, 1e7, 0.0, true);
        assert_eq!(limits.most(), 9);
        assert!(matches!(limits.reason(1e7, 0.05), Reason::Yielding { .. }));
        limits.learn(&chunk(9, 0.05, 0.0), 9, 1e7, 0.0, true);
        assert_eq!(limits.most(), 10);
    }

    #[test]
    fn a_busy_disk_is_named_until_it_is_free() {
        let with = |disk| Pressure { disk: Some(disk), cpu: Some(0.5), ..Pressure::default() };
        assert_eq!(busy(&with(0.97), None), Some(Bottleneck::Disk));
        assert_eq!(busy(&with(0.8), Some(Bottleneck::Disk)), Some(Bottleneck::Disk));
        assert_eq!(busy(&with(0.8), None), None);
        assert_eq!(busy(&with(0.5), Some(Bottleneck::Disk)), None);
    }

    #[test]
    fn the_peer_grants_fewer() {
        let mut limits = Limits::new(&Options::default());
        // Some are only on their way.
        let short = Chunk { seconds: 3.0, ..chunk(7, 0.05, 0.0) };
        limits.learn(&short, 16, 1e7, 0.0, true);
        limits.learn(&chunk(16, 0.05, 0.0), 16, 1e7, 0.0, true);
        limits.learn(&short, 16, 1e7, 0.0, true);
        assert_eq!(limits.most(), 128);
        limits.learn(&chunk(5, 0.05, 0.0), 16, 1e7, 0.0, true);
        assert_eq!(limits.most(), 5);
        assert_eq!(limits.reason(1e7, 0.05), Reason::Granted { streams: 5 });
        limits.learn(&chunk(5, 0.05, 0.0), 5, 1e7, 0.0, true);
        assert_eq!(limits.most(), 10);
    }
}
