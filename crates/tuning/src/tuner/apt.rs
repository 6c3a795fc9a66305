//! GridFTP-APT: T. Ito, H. Ohsaki, M. Imase, "GridFTP-APT: Automatic Parallelism Tuning Mechanism
//! for Data Transfer Protocol GridFTP" (IEICE technical report; also CCGrid 2006).
//!
//! A file is sent in chunks; after each, goodput = size / time. First the number of connections
//! grows by a factor until goodput falls, which yields a bracket (l, m, r); then golden section
//! search narrows the bracket to (m-1, m, m+1). Choices that the report does not specify are marked
//! *open* below.

use super::decision::{Decision, Reason};
use super::options::Options;
use super::sample::{Chunk, Progress};
use super::{Tuner, first_bytes};

/// (3 - sqrt 5) / 2: the smaller part of a golden section.
pub const NU: f64 = 0.381_966_011_250_105_1;

/// Where to measure in the left part of a bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// l + (m - l) nu, as Eq. (3) is printed. It converges, but a failed step keeps 76 % of the
    /// bracket.
    Printed,
    /// m - (m - l) nu, the mirror image of the right part: a failed step keeps 62 %.
    Golden,
}

/// The lower end of the bracket if the second chunk is already slower than the first; the report
/// leaves this open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Below {
    /// One connection, unmeasured, with proportional goodput. One connection can then never be the
    /// result.
    #[default]
    One,
    /// Divide by the same factor until goodput falls.
    Mirror,
}

/// A bracket of the optimum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bracket {
    pub low: u32,
    pub middle: u32,
    pub high: u32,
}

impl Bracket {
    /// The next point as a real number; `None` if the bracket cannot shrink.
    pub fn next_real(self, rule: Rule) -> Option<f64> {
        let (left, right) = (self.middle.saturating_sub(self.low), self.high.saturating_sub(self.middle));
        if left <= 1 && right <= 1 {
            return None;
        }
        let (middle, nu_left, nu_right) =
            (f64::from(self.middle), f64::from(left) * NU, f64::from(right) * NU);
        Some(match rule {
            _ if left <= right => middle + nu_right,
            Rule::Printed => f64::from(self.low) + nu_left,
            Rule::Golden => middle - nu_left,
        })
    }

    /// The next number of connections (*open*: rounded to the nearest, as the worked example
    /// requires).
    pub fn next(self, rule: Rule) -> Option<u32> {
        self.next_real(rule).map(|next| next.round() as u32)
    }
}

/// Parameters of the search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub rule: Rule,
    pub below: Below,
    pub first: u32,
    /// Growth factor, greater than 1.
    pub alpha: f64,
    /// *Open*: if goodput still grows at this number, the bracket is (previous, most, most).
    pub most: u32,
    /// Target duration of a chunk. Multiplied by goodput it yields sizes, in the same units.
    pub delta: f64,
    /// Expected goodput of the first chunk.
    pub expected: f64,
    /// Minimum size of a chunk.
    pub least_size: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    n: u32,
    g: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Up {
        before: Option<Point>,
        last: Option<Point>,
    },
    /// Decreasing from the first point: `above` was slower than `last`.
    Down {
        above: Point,
        last: Point,
    },
    Golden {
        low: Point,
        middle: Point,
        high: Point,
    },
    Settled {
        bracket: Bracket,
    },
}

/// The search, without measurement: takes goodputs, and returns numbers of connections and sizes.
#[derive(Clone, Debug)]
pub struct Search {
    settings: Settings,
    phase: Phase,
    n: u32,
    size: f64,
}

impl Search {
    pub fn new(mut settings: Settings) -> Self {
        settings.most = settings.most.max(1);
        settings.first = settings.first.clamp(1, settings.most);
        let size = (settings.delta * settings.expected).max(settings.least_size);
        Self { settings, phase: Phase::Up { before: None, last: None }, n: settings.first, size }
    }

    /// Number of connections for the current chunk.
    pub fn n(&self) -> u32 {
        self.n
    }

    /// Size of the current chunk.
    pub fn size(&self) -> f64 {
        self.size
    }

    /// The last bracket, when it cannot shrink any more.
    pub fn settled(&self) -> Option<Bracket> {
        match self.phase {
            Phase::Settled { bracket } => Some(bracket),
            _ => None,
        }
    }

    fn reason(&self) -> Reason {
        match self.phase {
            Phase::Up { last: None, .. } => Reason::Start,
            Phase::Up { .. } | Phase::Down { .. } => Reason::Bracketing,
            Phase::Golden { low, middle, high } => {
                Reason::GoldenSection { low: low.n, middle: middle.n, high: high.n }
            }
            Phase::Settled { .. } => Reason::Settled,
        }
    }

    /// Takes the goodput of the current chunk; [`n`](Self::n) and [`size`](Self::size) then
    /// describe the next one.
    pub fn measured(&mut self, goodput: f64) {
        let now = Point { n: self.n, g: goodput };
        match self.phase {
            Phase::Up { before, last } => self.up(before, last, now),
            Phase::Down { above, last } => self.down(above, last, now),
            Phase::Golden { low, middle, high } => {
                let left = now.n < middle.n;
                let (low, middle, high) = match (now.g > middle.g, left) {
                    (false, false) => (low, middle, now),
                    (false, true) => (now, middle, high),
                    (true, false) => (middle, now, high),
                    (true, true) => (low, now, middle),
                };
                self.golden(low, middle, high);
            }
            Phase::Settled { .. } => self.send(now.n, now.g),
        }
    }

    fn send(&mut self, n: u32, goodput: f64) {
        self.n = n;
        self.size = (self.settings.delta * goodput).max(self.settings.least_size);
    }

    fn up(&mut self, before: Option<Point>, last: Option<Point>, now: Point) {
        let Settings { alpha, most, below, .. } = self.settings;
        if let Some(last) = last.filter(|last| now.g < last.g) {
            let unmeasured = |n: u32| Point { n, g: last.g * f64::from(n) / f64::from(last.n) };
            return match (before, below) {
                (Some(before), _) => self.golden(before, last, now),
                (None, Below::Mirror) if last.n > 1 => {
                    self.phase = Phase::Down { above: now, last };
                    self.send(self.lower(last.n), last.g);
                }
                (None, _) => self.golden(unmeasured(1), last, now),
            };
        }
        if now.n >= most {
            return self.golden(last.unwrap_or(Point { n: 1, g: now.g / f64::from(now.n) }), now, now);
        }
        // Expect the same growth of the next step as of the last one.
        let growth = last.map_or(alpha, |last| now.g / last.g.max(f64::MIN_POSITIVE));
        self.phase = Phase::Up { before: last, last: Some(now) };
        let next = (f64::from(now.n) * alpha).round().max(f64::from(now.n) + 1.0);
        self.send((next as u32).min(most), now.g * growth);
    }

    fn down(&mut self, above: Point, last: Point, now: Point) {
        if now.g > last.g && now.n > 1 {
            self.phase = Phase::Down { above: last, last: now };
            self.send(self.lower(now.n), now.g);
        } else if now.g > last.g {
            self.golden(now, now, last);
        } else {
            self.golden(now, last, above);
        }
    }

    fn lower(&self, n: u32) -> u32 {
        ((f64::from(n) / self.settings.alpha).round() as u32).clamp(1, n.saturating_sub(1).max(1))
    }

    fn golden(&mut self, low: Point, middle: Point, high: Point) {
        let bracket = Bracket { low: low.n, middle: middle.n, high: high.n };
        let Some(n) = bracket.next(self.settings.rule) else {
            self.phase = Phase::Settled { bracket };
            // Use the goodput of the middle, not of the last chunk: they are equal only by chance.
            return self.send(middle.n, middle.g);
        };
        self.phase = Phase::Golden { low, middle, high };
        let (from, to) = if n < middle.n { (low, middle) } else { (middle, high) };
        let xi = (f64::from(n) - f64::from(from.n)) / (f64::from(to.n) - f64::from(from.n));
        self.send(n, (1.0 - xi) * from.g + xi * to.g);
    }
}

/// All chunks of a search on a known goodput curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Connections and size of each chunk.
    pub chunks: Vec<(u32, f64)>,
    pub bracket: Bracket,
    pub settled: u32,
}

/// Runs a search on `goodput(n)` until it settles. Returns `None` if it has not settled after
/// `most` + 1000 chunks, which can only happen if goodput is NaN: each step of the growth adds at
/// least one stream.
pub fn trace(settings: Settings, goodput: impl Fn(u32) -> f64) -> Option<Trace> {
    let mut search = Search::new(settings);
    let mut chunks = Vec::new();
    while chunks.len() < 1000 + settings.most as usize {
        chunks.push((search.n(), search.size()));
        search.measured(goodput(search.n()));
        if let Some(bracket) = search.settled() {
            return Some(Trace { chunks, bracket, settled: search.n() });
        }
    }
    None
}

/// The tuner: [`Search`] with measured chunks.
#[derive(Debug)]
pub(super) struct Apt {
    search: Search,
    /// Length of chunks after the search has settled, as a multiple of the target duration.
    patience: f64,
}

impl Apt {
    pub(super) fn new(rule: Rule, patience: f64, options: &Options) -> Self {
        let search = Search::new(Settings {
            rule,
            below: Below::One,
            first: options.first_streams,
            alpha: 2.0,
            most: options.max_streams,
            delta: options.chunk_seconds,
            expected: first_bytes(options, options.first_streams, 1.0),
            least_size: options.packet_bytes,
        });
        Self { search, patience }
    }

    fn decide(&self) -> Decision {
        let stretch = if self.search.settled().is_some() { self.patience } else { 1.0 };
        Decision::streams(self.search.n(), stretch * self.search.size(), self.search.reason())
    }
}

impl Tuner for Apt {
    fn first(&mut self) -> Decision {
        self.decide()
    }

    fn chunk(&mut self, chunk: &Chunk) -> Decision {
        self.search.measured(chunk.rate());
        self.decide()
    }

    fn progress(&mut self, _: &Progress) -> Option<Reason> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn settings(rule: Rule, first: u32) -> Settings {
        Settings {
            rule,
            below: Below::One,
            first,
            alpha: 2.0,
            most: 1024,
            delta: 1.0,
            expected: 1.0,
            least_size: 1.0,
        }
    }

    fn tent(peak: f64) -> impl Fn(u32) -> f64 {
        move |n| if f64::from(n) <= peak { f64::from(n) / peak } else { (peak / f64::from(n)).powf(0.3) }
    }

    #[test]
    fn trace_of_worked_example_matches_the_report() {
        let goodput = |n: u32| [0.0, 1.0, 2.0, 3.0, 5.0, 5.5, 7.0, 6.0, 4.0][n as usize];
        for rule in [Rule::Printed, Rule::Golden] {
            let trace = trace(settings(rule, 1), goodput).unwrap();
            assert_eq!(trace.chunks.iter().map(|chunk| chunk.0).collect::<Vec<_>>(), [1, 2, 4, 8, 6, 7, 5]);
            assert_eq!(
                trace.chunks.iter().map(|chunk| chunk.1).collect::<Vec<_>>(),
                [1.0, 2.0, 4.0, 12.5, 4.5, 5.5, 6.0]
            );
            assert_eq!(trace.bracket, Bracket { low: 5, middle: 6, high: 7 });
            assert_eq!(trace.settled, 6);
        }
    }

    #[test]
    fn bracket_next_divides_the_larger_part() {
        let bracket = |low, middle, high| Bracket { low, middle, high };
        assert_eq!(bracket(4, 6, 8).next(Rule::Printed), Some(7));
        assert_eq!(bracket(4, 6, 7).next(Rule::Golden), Some(5));
        assert_eq!(bracket(8, 16, 22).next(Rule::Printed), Some(11));
        assert_eq!(bracket(8, 16, 22).next(Rule::Golden), Some(13));
        assert_eq!(bracket(1, 2, 3).next(Rule::Golden), None);
        assert_eq!(bracket(64, 128, 128).next(Rule::Golden), Some(104));
    }

    #[test]
    fn trace_finds_every_peak() {
        for peak in 2..=200 {
            for rule in [Rule::Printed, Rule::Golden] {
                let trace = trace(settings(rule, 4), tent(f64::from(peak))).unwrap();
                assert_eq!(trace.settled, peak, "{rule:?}");
            }
        }
    }

    #[test]
    fn trace_with_peak_at_one_needs_mirror() {
        let below_one = trace(settings(Rule::Golden, 4), tent(1.0)).unwrap();
        assert_eq!(below_one.settled, 2);
        let mirrored = Settings { below: Below::Mirror, ..settings(Rule::Golden, 4) };
        for peak in 1..=100 {
            assert_eq!(trace(mirrored, tent(f64::from(peak))).unwrap().settled, peak);
        }
    }

    #[test]
    fn trace_of_growing_curve_stops_at_most() {
        let capped = Settings { most: 50, ..settings(Rule::Printed, 4) };
        let trace = trace(capped, f64::from).unwrap();
        assert_eq!(trace.settled, 50);
        assert!(trace.chunks.iter().all(|chunk| chunk.0 <= 50));
    }

    #[test]
    fn trace_of_invalid_goodput_ends() {
        for value in [f64::NAN, 0.0, f64::INFINITY, -1.0] {
            let ended = trace(settings(Rule::Golden, 4), |_| value);
            assert!(ended.is_none_or(|trace| trace.settled <= 1024));
        }
    }
}
