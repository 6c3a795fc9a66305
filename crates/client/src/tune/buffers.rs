//! Socket buffers of data connections at our end, derived from the path (ABUF, GFD.20): no data is
//! sent to try sizes. A Ropewalk server does the same at its end on request.

use std::time::Duration;

use ropewalk_transport::{Ceilings, Tuning};
pub(super) use ropewalk_tuning::buffers::Path;
use ropewalk_tuning::buffers::{Advice, Kernel, Side, advise};

use super::Ends;
use super::memory::Learnt;

/// The largest buffer that is requested, in bytes; hosts have limits of their own.
pub(crate) const MOST: u64 = 1 << 30;

/// The treatment of a buffer at our end, with its reason.
pub(crate) struct Buffer {
    side: Side,
    advice: Advice,
}

impl Buffer {
    /// For connections between these ends; `None` if both are servers, or the kernel does not
    /// report its limits.
    pub(super) fn of(ends: &Ends, path: Path) -> Option<Self> {
        Self::within(Ceilings::read().ok()?, ends, path)
    }

    fn within(ceilings: Ceilings, ends: &Ends, path: Path) -> Option<Self> {
        let (side, limits) = match (&ends.source, &ends.destination) {
            (None, _) => (Side::Send, ceilings.send),
            (_, None) => (Side::Receive, ceilings.receive),
            _ => return None,
        };
        let (autotune_max, setsockopt_max) = (limits.autotune, limits.setsockopt);
        // No ceiling of a session is below it.
        let kernel = Kernel { side, autotune_max, setsockopt_min: 0, setsockopt_max };
        Some(Self { side, advice: advise(path, kernel, MOST) })
    }

    /// Sets a size that autotuning would not reach.
    pub(crate) fn apply(&self, tuning: &mut Tuning) {
        let bytes = self.advice.bytes().and_then(|bytes| usize::try_from(bytes).ok());
        match self.side {
            Side::Send => tuning.send_buffer = bytes,
            Side::Receive => tuning.receive_buffer = bytes,
        }
    }

    /// The reason as text.
    pub(super) fn why(&self) -> String {
        self.advice.to_string()
    }

    /// Whether autotuning is insufficient.
    pub(super) fn matters(&self) -> bool {
        !matches!(self.advice, Advice::Leave { .. })
    }
}

/// Older information about a path is ignored, in seconds.
const OLD: f64 = 30.0 * 86_400.0;
/// Round trips whose logarithms differ by more than this belong to different paths.
const SAME_PATH: f64 = 0.25;
/// Largest plausible rate of one connection, in bytes per second: 400 Gbit/s.
const MOST_RATE: f64 = 5e10;
/// After `SHOWN` spans the rate of a run is near that of its path. One connection does not carry
/// more than `MORE` times that.
const SHOWN: usize = 3;
const MORE: f64 = 2.0;
/// The share of an older maximum that remains in the next run.
const FORGETTING: f64 = 0.9;

/// The rate of one connection in an earlier transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Known {
    min_rtt: Option<f64>,
    /// The highest rate of one connection, in bytes per second, and the number of streams at that
    /// time.
    fastest: f64,
    of: u32,
    /// The capacity of the path according to the user.
    capacity: Option<f64>,
}

impl Known {
    pub(super) fn new(learnt: Option<Learnt>, capacity: Option<f64>) -> Self {
        let Some(learnt) = learnt.filter(|learnt| learnt.prior.age <= OLD) else { return Self::default() };
        let Learnt { prior, fastest, fastest_of } = learnt;
        let each = prior.rate / f64::from(prior.streams.max(1));
        let (fastest, of) = if fastest >= each { (fastest, fastest_of) } else { (each, prior.streams) };
        // An implausible rate is ignored.
        let fastest = if fastest <= MOST_RATE { fastest } else { 0.0 };
        Self { min_rtt: prior.min_rtt, fastest, of, capacity }
    }

    /// The rate to expect on a path with this round trip, after spans of this run with these
    /// numbers of streams and rates.
    fn rate(&self, rtt: f64, shown: &[Reached]) -> f64 {
        if self.min_rtt.is_some_and(|known| (known / rtt).ln().abs() > SAME_PATH) {
            return 0.0;
        }
        let most = shown.iter().map(|reached| reached.1).fold(0.0, f64::max);
        let most = if shown.len() >= SHOWN { MORE * most } else { f64::INFINITY };
        self.fastest.min(most).min(self.capacity.unwrap_or(f64::INFINITY))
    }

    /// The path of one connection, according to earlier transfers and this run. Its round trip is
    /// this run's.
    pub(super) fn path(&self, rtt: f64, shown: &[Reached]) -> Path {
        path(Some(rtt), self.rate(rtt, shown).max(fastest(shown).0))
    }

    /// The highest rate of one connection for the next run, and the number of streams at that time.
    /// Among many streams each has a low rate. So the rate among fewer streams decays slowly,
    /// unless this run has stayed at as few.
    pub(super) fn learnt(&self, rtt: f64, shown: &[Reached]) -> (f64, u32) {
        let before = (FORGETTING * self.rate(rtt, shown), self.of);
        let now = fastest(shown);
        let as_few = shown.iter().any(|reached| reached.2 == Purpose::Stay && reached.0 <= self.of);
        if as_few || now.0 >= before.0 { now } else { before }
    }
}

/// The result of a span: streams, bytes per second, and the purpose of the streams.
pub(super) type Reached = (u32, f64, Purpose);

/// The purpose of the streams of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Stay,
    Climb,
    Trial,
}

/// The highest rate of one connection in these spans, and the number of streams.
fn fastest(shown: &[Reached]) -> (f64, u32) {
    let each = |&(streams, rate, _): &Reached| (rate / f64::from(streams.max(1)), streams);
    shown.iter().map(each).fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a })
}

/// Seconds, and bytes per second.
fn path(rtt: Option<f64>, rate: f64) -> Path {
    let rtt = rtt.and_then(|rtt| Duration::try_from_secs_f64(rtt).ok()).filter(|rtt| !rtt.is_zero());
    // The cast saturates, and turns a value that is not a number into 0.
    Path { rtt, rate: Some(rate as u64).filter(|rate| *rate > 0) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_transport::BufferLimits;
    use ropewalk_tuning::tuner::Prior;

    use super::*;

    fn ends(source: Option<&str>, destination: Option<&str>) -> Ends {
        Ends { source: source.map(str::to_owned), destination: destination.map(str::to_owned) }
    }

    #[test]
    fn our_end_alone_is_set_where_autotuning_does_not_get_there() {
        let send = BufferLimits { autotune: 4 << 20, setsockopt: 64 << 20 };
        let receive = BufferLimits { autotune: 6 << 20, setsockopt: 212_992 };
        let of = |ends: Ends, path| Buffer::within(Ceilings { send, receive }, &ends, path);
        let (small, large) = (path(Some(0.1), 1e6), path(Some(0.1), 1e8));
        assert!(of(ends(Some("a"), Some("b")), large).is_none());
        let options = |buffer: &Buffer| {
            let mut options = Tuning::default();
            buffer.apply(&mut options);
            (options.send_buffer, options.receive_buffer)
        };
        for (source, destination) in [(None, Some("a")), (Some("a"), None)] {
            for path in [Path::default(), small] {
                let buffer = of(ends(source, destination), path).unwrap();
                assert!(!buffer.matters() && options(&buffer) == (None, None), "{}", buffer.why());
            }
        }
        // 10 MB are in flight.
        let sends = of(ends(None, Some("a")), large).unwrap();
        assert!(sends.matters() && options(&sends) == (Some(20_000_000), None), "{}", sends.why());
        // A buffer set by hand would be smaller than what autotuning reaches.
        let receives = of(ends(Some("a"), None), large).unwrap();
        assert!(receives.matters() && options(&receives) == (None, None));
        assert!(receives.why().contains("net.ipv4.tcp_rmem"), "{}", receives.why());
    }

    fn learnt(prior: Prior, fastest: f64, fastest_of: u32) -> Option<Learnt> {
        Some(Learnt { prior, fastest, fastest_of })
    }

    const PRIOR: Prior = Prior { streams: 4, rate: 4e6, min_rtt: Some(0.05), age: 0.0 };

    #[test]
    fn one_connection_has_its_part() {
        let of = |known: Option<Learnt>| Known::new(known, None).path(0.05, &[]);
        let rtt = Some(Duration::from_millis(50));
        assert_eq!(of(learnt(PRIOR, 0.0, 0)), Path { rtt, rate: Some(1_000_000) });
        assert_eq!(of(learnt(PRIOR, 3e6, 1)).rate, Some(3_000_000));
        assert_eq!(of(learnt(Prior { age: OLD + 1.0, ..PRIOR }, 3e6, 1)), Path { rtt, rate: None });
        assert_eq!(of(None), Path { rtt, rate: None });
        for (rtt, rate) in [(f64::NAN, f64::NAN), (-1.0, -5.0), (f64::INFINITY, 0.0), (0.0, 0.0)] {
            assert_eq!(path(Some(rtt), rate), Path::default());
        }
    }

    #[test]
    fn what_is_known_counts_for_the_same_path_only_and_with_the_round_trip_of_now() {
        let near = Known::new(learnt(Prior { min_rtt: Some(1e-4), ..PRIOR }, 1e8, 1), None);
        assert_eq!(near.path(0.06, &[]).rate, None);
        assert_eq!(near.learnt(0.06, &[(8, 8e6, Purpose::Stay)]), (1e6, 8));
        let same = Known::new(learnt(PRIOR, 1e8, 1), None);
        for rtt in [0.045, 0.06] {
            let rtt_now = Duration::try_from_secs_f64(rtt).ok();
            assert_eq!(same.path(rtt, &[]), Path { rtt: rtt_now, rate: Some(100_000_000) });
        }
    }

    #[test]
    fn what_is_known_is_bounded_by_what_the_path_shows() {
        // Recorded as 80 Tbit/s.
        assert_eq!(Known::new(learnt(PRIOR, 1e13, 1), None).path(0.05, &[]).rate, None);
        assert_eq!(Known::new(learnt(PRIOR, 1e10, 1), Some(12.5e6)).path(0.05, &[]).rate, Some(12_500_000));
        let known = Known::new(learnt(PRIOR, 1e10, 2), None);
        let climb = [(4, 4e6, Purpose::Climb), (12, 12e6, Purpose::Climb), (36, 12e6, Purpose::Climb)];
        assert_eq!(known.path(0.05, &climb[..2]).rate, Some(10_000_000_000));
        assert_eq!(known.path(0.05, &climb).rate, Some(24_000_000));
        assert_eq!(known.learnt(0.05, &climb), (FORGETTING * 24e6, 2));
    }

    #[test]
    fn what_as_few_streams_carried_now_takes_the_place_of_what_was_known() {
        let known = Known::new(learnt(PRIOR, 5e6, 4), None);
        // More streams have a lower rate each.
        assert_eq!(
            known.learnt(0.05, &[(4, 4e6, Purpose::Climb), (12, 12e6, Purpose::Stay)]),
            (FORGETTING * 5e6, 4)
        );
        assert_eq!(known.learnt(0.05, &[(4, 4e6, Purpose::Stay)]), (1e6, 4));
        assert_eq!(known.learnt(0.05, &[(12, 120e6, Purpose::Stay)]), (10e6, 12));
    }
}
