//! Limits the number of streams although the path might carry more: small windows, end hosts that
//! are the bottleneck, politeness, and the peer's grant.

use super::super::decision::{Bottleneck, Reason};
use super::super::meter::elasticity;
use super::super::options::{Fairness, Options};
use super::super::sample::{Chunk, Pressure};
use super::crowd::{Crowd, EACH};
use super::polite::{Calm, Congestion, SAME, queue};
use super::share::stated;
use crate::model::loss_of_window;

/// Load of a resource from which on it is the limit, and below which it no longer is.
const BUSY: f64 = 0.95;
const FREE: f64 = 0.75;
/// If the chunk had less than this fraction of the requested streams, the peer grants no more.
/// Single missing streams may still be connecting.
const GRANTED: f64 = 0.75;
/// After this many seconds requested streams are connected, if ever.
const TO_COME: f64 = 6.0;
/// Fraction of the time during which the peer's windows stop streams; from this on the peer may be
/// unable to receive faster.
const WINDOW: f64 = 0.5;
/// With small windows, additional streams each have as many bytes in flight. Below this elasticity
/// they do not, so windows are not just small.
const UNUSED: f64 = 0.7;
/// Factor for the streams when yielding.
const YIELD: f64 = 0.7;
/// A window counts as used up from this fraction on.
const USED: f64 = 0.85;
/// A crowded path would cause a certain loss with these windows. If the loss is below this fraction
/// of it, the path is not crowded.
const UNCROWDED: f64 = 0.1;
/// Below this loss the path counts as free of loss.
const NO_LOSS: f64 = 1e-5;

#[derive(Clone, Debug)]
pub(super) struct Limits {
    most: u32,
    packet: f64,
    polite: bool,
    /// A share is stated: the stated share, not the crowd, determines the number of streams on a
    /// crowded path.
    stated: bool,
    granted: u32,
    /// Time in seconds for which streams have been missing.
    missing: f64,
    /// Maximum number of streams by politeness or, with a stated share, because of other flows.
    allowed: f64,
    calm: Calm,
    busy: Option<Bottleneck>,
    /// The limit by inference, because more streams gained nothing.
    concluded: Option<Bottleneck>,
    /// The last trial showed neither loss nor a queue.
    suspect: bool,
    /// The peer's windows stop streams, and more streams had no more in flight: the peer cannot
    /// receive faster.
    closed: bool,
    /// Streams of the last chunk, and their bytes in flight.
    in_flight: Option<(u32, f64)>,
    yielding: Option<Reason>,
    /// Round-trip times of the last two chunks, the latest first; `None` for a chunk without a
    /// queue.
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

    /// The maximum number of streams now.
    pub(super) fn most(&self) -> u32 {
        let windows = self.crowd.most().unwrap_or(f64::INFINITY);
        let most = f64::from(self.most.min(self.granted));
        most.min(self.allowed).min(windows).max(1.0) as u32
    }

    /// The known bottleneck, if it is not the network.
    pub(super) fn bottleneck(&self) -> Option<Bottleneck> {
        self.busy.or(self.concluded)
    }

    /// Whether the peer's windows stop streams for another reason than their size.
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

    /// Takes the measurements of a chunk that requested `asked` streams. `noise`: the standard
    /// deviation of the logarithm of `rate`; `place`: whether this is the number of streams to
    /// keep.
    pub(super) fn learn(&mut self, chunk: &Chunk, asked: u32, rate: f64, noise: f64, place: bool) {
        if f64::from(chunk.streams) < GRANTED * f64::from(asked) {
            self.missing += chunk.seconds;
            if self.missing >= TO_COME {
                // The peer grants no more now; it may do so later.
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
        // Bursts through the peer's windows queue too, so this is not a queue of the path.
        let queued = queued.filter(|_| !self.closed);
        self.queued = [queued.map(|queued| queued.0), self.queued[0]];
        let free = queued.is_none() && self.is_free(chunk, rate);
        if let Some(rtt) = chunk.rtt.filter(|_| place) {
            let window = rate * rtt / (f64::from(chunk.streams) * self.packet);
            if self.stated {
                // Use no more streams than other flows leave room for, whatever the share. Reduce
                // them in steps, because a single chunk may be a bad measurement.
                self.allowed = (EACH * window).max(0.5 * f64::from(chunk.streams));
            } else if self.closed || free {
                // The peer or the socket buffers determine the bytes in flight, not other flows.
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

    /// Whether the low rate of streams without a queue has another reason than other flows: if
    /// other flows were the reason, windows of this size would cause losses, or the negotiated
    /// windows would not be used up.
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

    /// Other flows have apparently started.
    pub(super) fn share(&mut self) {
        if !self.stated && !self.closed {
            self.crowd.share(false);
        }
    }

    /// More streams gain, or the same number carries less. If the queue is the same as before,
    /// other flows lose or gain the difference.
    pub(super) fn share_path(&mut self) {
        if !self.stated && !self.closed {
            self.crowd.share(self.full());
        }
    }

    /// There are no other flows.
    pub(super) fn alone(&mut self) {
        self.crowd.alone();
    }

    /// As [`Crowd::costs`], if the crowd determines the number of streams. Politeness has other
    /// rules.
    pub(super) fn costs(&mut self, streams: u32, level: f64, deviation: f64) -> Option<(u32, f64)> {
        if self.crowded() && !self.polite { self.crowd.costs(streams, level, deviation) } else { None }
    }

    /// Assumes no other flows for a while; `false` ends this.
    pub(super) fn bar(&mut self, barred: bool) {
        if barred { self.crowd.bar() } else { self.crowd.unbar() }
    }

    /// Whether other flows are certain.
    pub(super) fn shared(&self) -> bool {
        self.crowd.certain()
    }

    /// Whether the path was full in the last two chunks.
    pub(super) fn full(&self) -> bool {
        self.queued.iter().all(Option::is_some)
    }

    /// Whether the path was full and the queue is unchanged.
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

    /// More streams gained nothing although windows are not full: if the path shows neither loss
    /// nor a queue, one of the ends must be the limit.
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

    /// Whether the path is crowded, so that windows limit the number of streams.
    pub(super) fn crowded(&self) -> bool {
        self.crowd.most().is_some()
    }

    /// The path changed.
    pub(super) fn forget(&mut self) {
        self.suspect = false;
        // While its windows stop streams, the peer is the reason of a changed rate.
        self.concluded = self.concluded.filter(|&by| by == Bottleneck::Peer && self.closed);
    }

    /// Returns the new number and the reason if `base` must be lowered, or may be raised again
    /// towards `wanted`.
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

/// The busiest resource, if it is busy enough. The previous one is kept until it is clearly free.
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
    fn limits_with_small_windows_reduce_streams() {
        let mut limits = Limits::new(&Options::default());
        limits.learn(&chunk(100, 0.05, 0.05), 100, 1e7, 0.0, true);
        // 10 MB/s over 50 ms are 333 packets: 3.3 per stream, so that 40 streams are right. A
        // quarter of the distance is taken at a time.
        assert_eq!(limits.most(), 85);
        assert!(matches!(limits.reason(1e7, 0.05), Reason::WindowTooSmall { .. }));
        assert!(matches!(limits.adjust(60, 60, 1e7, 0.05), Some((85, Reason::Crowded { .. }))));
        limits.learn(&chunk(85, 0.05, 0.05), 85, 1.1e7, 0.0, true);
        assert!((70..85).contains(&limits.most()));
        limits.learn(&chunk(20, 0.05, 0.0), 20, 1e7, 0.0, true);
        assert_eq!(limits.most(), 128);
    }

    #[test]
    fn limits_with_small_windows_without_crowd_reduce_nothing() {
        let learned = |chunk: Chunk| {
            let mut limits = Limits::new(&Options::default());
            limits.learn(&chunk, 100, 1e7, 0.0, true);
            limits.most()
        };
        // A crowded path would lose far more at 3.3 packets per stream.
        assert_eq!(learned(chunk(100, 0.05, 1e-3)), 128);
        assert_eq!(learned(chunk(100, 0.06, 1e-3)), 87);
        // The loss is unknown, but the whole window is used.
        let unknown = |window| Chunk { loss: None, window, ..chunk(100, 0.05, 0.0) };
        assert_eq!(learned(unknown(Some(5000.0))), 128);
        assert_eq!((learned(unknown(Some(10_000.0))), learned(unknown(None))), (85, 85));
        // Nothing is known about a queue.
        assert_eq!(learned(Chunk { min_rtt: None, ..chunk(100, 0.05, 0.0) }), 85);
    }

    #[test]
    fn limits_of_polite_transfer_yield_and_return() {
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
    fn busy_disk_is_named_until_it_is_free() {
        let with = |disk| Pressure { disk: Some(disk), cpu: Some(0.5), ..Pressure::default() };
        assert_eq!(busy(&with(0.97), None), Some(Bottleneck::Disk));
        assert_eq!(busy(&with(0.8), Some(Bottleneck::Disk)), Some(Bottleneck::Disk));
        assert_eq!(busy(&with(0.8), None), None);
        assert_eq!(busy(&with(0.5), Some(Bottleneck::Disk)), None);
    }

    #[test]
    fn limits_when_peer_grants_fewer_reduce_streams() {
        let mut limits = Limits::new(&Options::default());
        // Some streams are still connecting.
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
