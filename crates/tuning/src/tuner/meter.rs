//! Evaluates samples: rates without start-up, noise, used windows, elasticities, knees. Each tuner
//! owns a [`Meter`]; it stores the reports of the current chunk and estimates of the path.

use super::decision::Reason;
use super::options::{Connections, Options};
use super::sample::{Chunk, Progress};

/// Assumed round-trip time until one is measured, in seconds.
const RTT: f64 = 0.1;
/// Reports are compared in spans of this many seconds.
const SPAN: f64 = 3.0;
/// Assumed variance of the logarithm of a ten-second rate until it is measured: 4 %.
const NOISE: f64 = 1.6e-3;
const TEN_SECONDS: f64 = 10.0;
/// A report at the end of a chunk below this fraction of the earlier rate is ignored, because some
/// streams are done already.
const DONE: f64 = 0.75;
/// Number of report pairs that the assumed noise is worth, and the maximum number that counts.
const FLICKER_PRIOR: u32 = 4;
const FLICKER_PAIRS: u32 = 60;
/// The last reports of a chunk may be of a changed path: they do not count as noise while the chunk
/// runs.
const LAST: usize = 3;
/// If a stream carries this many times the reported window, the reported value is wrong. A value
/// that differs by less than `SAME_WINDOW` (logarithm) is then rejected too.
const UNTRUE: f64 = 1.25;
const SAME_WINDOW: f64 = 0.1;
/// If the reports of a chunk add up to this many times its size, they are ignored.
const EXAGGERATED: f64 = 1.5;
/// From this loss on, slow start may have overrun a queue.
const OVERRUN: f64 = 2e-3;

/// d ln g / d ln n between two points: 1 if each stream adds its share, 0 on a plateau.
pub(super) fn elasticity(a: (u32, f64), b: (u32, f64)) -> f64 {
    let streams = (f64::from(b.0) / f64::from(a.0)).ln();
    let rates = (b.1.max(1.0) / a.1.max(1.0)).ln();
    if streams == 0.0 { 0.0 } else { (rates / streams).clamp(-10.0, 10.0) }
}

/// The number of streams at which `points` (sorted by streams) bend, and how it was found. The
/// result is `margin` times the intersection of the linear rise with the ceiling. Points may be
/// below these lines by the factor `tolerance`. If `alone`, the rate of a single stream, is known,
/// it is used as the rise, regardless of noise in the points.
pub(super) fn knee(points: &[(u32, f64)], alone: Option<f64>, margin: f64, tolerance: f64) -> (u32, Reason) {
    let each = |point: &(u32, f64)| point.1 / f64::from(point.0);
    let Some(top) = points.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { return (1, Reason::Holding) };
    let best = points.iter().map(each).fold(0.0, f64::max);
    let (g, n) = points
        .iter()
        .filter(|point| each(point) > 0.87 * best)
        .fold((0.0, 0.0), |(g, n), point| (g + point.1, n + f64::from(point.0)));
    let slope = alone.unwrap_or(g / n);
    let below = |point: &&(u32, f64)| point.0 < top.0;
    let line = |point: &(u32, f64)| top.1.min(slope * f64::from(point.0));
    if !points.iter().filter(below).all(|point| point.1 > tolerance * line(point)) {
        return self::top(points);
    }
    // The highest of several points is too high because of noise. Points clearly below the rise are
    // all measurements of the ceiling, so use their mean.
    let full = || points.iter().filter(|point| alone.is_some() && point.1 < 0.8 * slope * f64::from(point.0));
    let ceiling = match full().count() {
        0 => top.1,
        count => full().map(|point| point.1).sum::<f64>() / count as f64,
    };
    // If points with fewer streams carry more than all those beyond the knee, the ceiling is at
    // least as high.
    let below = points.iter().filter(|point| alone.is_some() && point.1 >= 0.8 * slope * f64::from(point.0));
    let ceiling = below.fold(ceiling, |ceiling, point| ceiling.max(point.1));
    let n = (margin * ceiling / slope).ceil() as u32;
    (n.max(1), Reason::Knee { each: slope, ceiling })
}

/// The vertex of the parabola through the best of `points` (sorted by streams) and its neighbours.
fn top(points: &[(u32, f64)]) -> (u32, Reason) {
    let Some(top) = points.iter().max_by(|a, b| a.1.total_cmp(&b.1)) else { return (1, Reason::Holding) };
    let at = points.iter().position(|point| point == top).unwrap_or(0);
    let low = at.saturating_sub(1).min(points.len().saturating_sub(3));
    let three = &points[low..(low + 3).min(points.len())];
    let (first, last) = (three[0].0, three[three.len() - 1].0);
    (vertex(three).unwrap_or(top.0).clamp(first, last), Reason::Vertex { low: first, high: last })
}

/// The vertex of the parabola through the logarithms of three points, if it is a maximum.
fn vertex(points: &[(u32, f64)]) -> Option<u32> {
    let [a, b, c] = points else { return None };
    let (x, y) =
        ([a, b, c].map(|point| f64::from(point.0).ln()), [a, b, c].map(|point| point.1.max(1.0).ln()));
    let (left, right) = ((y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1]));
    let curvature = (right - left) / (x[2] - x[0]);
    if curvature >= 0.0 {
        return None;
    }
    let at = 0.5 * (x[0] + x[1]) - left / (2.0 * curvature);
    Some(at.exp().clamp(1.0, 1e6).round() as u32)
}

/// A sum over reports, each with duration and rate.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: f64,
    seconds: f64,
}

impl Sum {
    fn of(reports: &[(f64, f64)]) -> Self {
        reports.iter().fold(Self::default(), |sum, &(seconds, rate)| Self {
            bytes: sum.bytes + seconds * rate,
            seconds: sum.seconds + seconds,
        })
    }

    fn rate(self) -> f64 {
        if self.seconds > 0.0 { self.bytes / self.seconds } else { 0.0 }
    }
}

/// A mean of estimates, weighted by the inverse of their variance and discounted by age.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Estimate {
    weight: f64,
    sum: f64,
    count: u32,
}

impl Estimate {
    pub(super) fn add(&mut self, value: f64, variance: f64, discount: f64) {
        let weight = 1.0 / variance.max(1e-6);
        self.weight = discount * self.weight + weight;
        self.sum = discount * self.sum + weight * value;
        self.count += 1;
    }

    pub(super) fn mean(&self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }

    pub(super) fn error(&self) -> f64 {
        if self.weight > 0.0 { self.weight.sqrt().recip() } else { f64::INFINITY }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }
}

/// Measured properties of the path, and the reports of the current chunk.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    packet: f64,
    fresh: bool,
    rtt: Option<f64>,
    min_rtt: Option<f64>,
    window: Option<f64>,
    /// A reported window that proved to be wrong; and whether the last chunk contradicted the
    /// reported one.
    untrue: Option<f64>,
    doubtful: bool,
    /// Whether the reports of the last chunk added up to more than its size.
    exaggerated: bool,
    /// Loss of the last chunk.
    loss: Option<f64>,
    /// Reports of the current chunk: time, and rate since the previous report.
    marks: Vec<(f64, f64)>,
    streams: u32,
    /// Whether the same number of streams continues on the same connections, so that there is no
    /// start-up.
    goes_on: bool,
    /// Second of the current chunk at which the path changed.
    changed: Option<f64>,
    /// The latest chunks: streams and rate.
    recent: Vec<(u32, f64)>,
    from_marks: Option<f64>,
    /// The value of `from_marks` before the last chunk.
    from_marks_before: Option<f64>,
    from_residuals: Option<f64>,
    /// From reports of finished chunks.
    flicker: Flicker,
}

/// Noise between successive reports.
#[derive(Clone, Copy, Debug)]
struct Flicker {
    /// Variance of the logarithm of the rate over a second.
    variance: f64,
    /// Number of pairs that it is based on.
    pairs: u32,
}

impl Flicker {
    /// Takes two successive reports: begin, end, rate.
    fn add(&mut self, a: (f64, f64, f64), b: (f64, f64, f64)) {
        if a.2 <= 0.0 || b.2 <= 0.0 {
            return;
        }
        let seconds = 0.5 * (b.1 - a.0);
        let difference = (b.2 / a.2).ln();
        // Limit the variance: a change of the level is not noise.
        let variance = (0.5 * difference * difference * seconds).min(8.0 * self.variance);
        self.pairs = (self.pairs + 1).min(FLICKER_PAIRS);
        self.variance += (variance - self.variance) / f64::from(FLICKER_PRIOR + self.pairs);
    }
}

impl Meter {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            packet: options.packet_bytes,
            fresh: options.connections == Connections::Fresh,
            rtt: options.rtt,
            min_rtt: options.rtt,
            window: options.window,
            untrue: None,
            doubtful: false,
            exaggerated: false,
            loss: options.loss,
            marks: Vec::new(),
            streams: options.first_streams,
            goes_on: false,
            changed: None,
            recent: Vec::new(),
            from_marks: None,
            from_marks_before: None,
            from_residuals: None,
            flicker: Flicker { variance: NOISE * TEN_SECONDS, pairs: 0 },
        }
    }

    /// Starts a chunk.
    pub(super) fn begin(&mut self, streams: u32) {
        self.marks.clear();
        self.goes_on = !self.fresh && self.recent.last().is_some_and(|recent| recent.0 == streams);
        self.streams = streams;
        self.changed = None;
    }

    /// The path changed at this second of the current chunk: earlier reports do not count.
    pub(super) fn change(&mut self, at: f64) {
        self.changed = Some(at);
    }

    /// The time at which the path changed in the current chunk.
    pub(super) fn changed(&self) -> Option<f64> {
        self.changed
    }

    /// Reports of the current chunk after its start-up: begin, end, rate.
    pub(super) fn reports(&self) -> impl Iterator<Item = (f64, f64, f64)> {
        let skip = if self.goes_on { 0.0 } else { self.warm_up() };
        let mut before = 0.0;
        let reports =
            self.marks.iter().map(move |&(at, rate)| (std::mem::replace(&mut before, at), at, rate));
        reports.filter(move |report| report.0 >= skip && report.1 > report.0)
    }

    /// All reports of the current chunk: end, rate.
    pub(super) fn marks(&self) -> &[(f64, f64)] {
        &self.marks
    }

    /// Takes round-trip time, window and loss from a finished chunk.
    pub(super) fn learn(&mut self, chunk: &Chunk) {
        self.rtt = chunk.rtt.or(chunk.min_rtt).or(self.rtt);
        self.min_rtt = chunk.min_rtt.or(chunk.rtt).or(self.min_rtt);
        self.window = chunk.window.or(self.window);
        // Use the rate without the correction for start-up, which may be too large. A single
        // contradiction proves nothing, because the round-trip time may have changed meanwhile.
        let each = chunk.rate() * self.base_rtt() / f64::from(chunk.streams);
        let doubtful = self.window.filter(|&window| each > UNTRUE * window);
        self.untrue = doubtful.filter(|_| self.doubtful).or(self.untrue);
        self.doubtful = doubtful.is_some();
        self.loss = chunk.loss;
        let reported =
            self.marks.iter().fold((0.0, 0.0), |(from, sum), &(at, rate)| (at, sum + rate * (at - from)));
        self.exaggerated = reported.1 > EXAGGERATED * chunk.bytes as f64 + self.packet;
        if self.exaggerated {
            self.marks.clear();
        }
        self.learn_noise();
    }

    /// The path changed in the last chunk: differences between its rates are not noise.
    pub(super) fn forget_noise(&mut self) {
        self.from_marks = self.from_marks_before;
    }

    /// Adds the noise of the reports before `end` to what was known.
    fn flickering(&self, end: f64) -> Flicker {
        let mut flicker = self.flicker;
        let mut reports = self.reports().filter(|report| report.1 <= end);
        if let Some(mut before) = reports.next() {
            for report in reports {
                flicker.add(before, report);
                before = report;
            }
        }
        flicker
    }

    /// Variance of the logarithm of a rate over a second, from the reports.
    pub(super) fn flicker(&self) -> f64 {
        let end = self.marks.len().checked_sub(LAST + 1).map_or(0.0, |last| self.marks[last].0);
        self.flickering(end).variance.max(TEN_SECONDS * self.variance())
    }

    fn learn_noise(&mut self) {
        self.flicker = self.flickering(self.changed.unwrap_or(f64::INFINITY));
        self.from_marks_before = self.from_marks;
        let spans = self.spans();
        for pair in spans.windows(2) {
            if let [(_, a), (_, b)] = *pair
                && a > 0.0
                && b > 0.0
            {
                let difference = (b / a).ln();
                // Half the square is the variance over a span; white noise averages out over ten
                // seconds.
                let variance = 0.5 * difference * difference * SPAN / TEN_SECONDS;
                let old = self.from_marks.unwrap_or(NOISE);
                // Limit the variance: a change of the level is not noise.
                self.from_marks = Some(old + 0.1 * (variance.min(8.0 * old) - old));
            }
        }
    }

    /// Rates over spans, without the start of the chunk: end of each span, and its rate.
    fn spans(&self) -> Vec<(f64, f64)> {
        let skip = self.warm_up();
        let mut spans = Vec::new();
        let (mut begun, mut bytes, mut before) = (None, 0.0, 0.0);
        for &(at, rate) in &self.marks {
            let from = std::mem::replace(&mut before, at);
            if from < skip {
                continue;
            }
            let start: f64 = *begun.get_or_insert(from);
            bytes += rate * (at - from);
            if at - start >= SPAN - 1e-6 {
                spans.push((at, bytes / (at - start)));
                (begun, bytes) = (None, 0.0);
            }
        }
        spans
    }

    fn warm_up(&self) -> f64 {
        4.5f64.max(40.0 * self.rtt())
    }

    pub(super) fn mark(&mut self, progress: &Progress) {
        if self.exaggerated {
            return;
        }
        // Restart if the clock went back, or if there are absurdly many reports.
        if self.marks.last().is_some_and(|last| progress.elapsed <= last.0) || self.marks.len() >= 100_000 {
            self.marks.clear();
        }
        self.marks.push((progress.elapsed, progress.rate));
    }

    /// Takes the deviation of a base chunk's rate from the reference (logarithm), over `seconds`.
    pub(super) fn residual(&mut self, off: f64, seconds: f64) {
        let variance = off * off * seconds / TEN_SECONDS;
        let old = self.from_residuals.unwrap_or(NOISE);
        self.from_residuals = Some(old + 0.2 * (variance.min(8.0 * old) - old));
    }

    /// Variance of the logarithm of a ten-second rate.
    pub(super) fn variance(&self) -> f64 {
        match (self.from_marks, self.from_residuals) {
            (None, None) => NOISE,
            (marks, residuals) => marks.unwrap_or(0.0).max(residuals.unwrap_or(0.0)).max(1e-6),
        }
    }

    pub(super) fn deviation(&self) -> f64 {
        self.variance().sqrt()
    }

    /// The round-trip time without a queue. With a queue, windows look full on any full path.
    pub(super) fn base_rtt(&self) -> f64 {
        self.min_rtt.or(self.rtt).unwrap_or(RTT)
    }

    /// The loss of the last chunk if its connections were new; `None` if it was negligible.
    pub(super) fn overrun(&self) -> Option<f64> {
        self.loss.filter(|&loss| self.fresh && loss > OVERRUN)
    }

    pub(super) fn window(&self) -> Option<f64> {
        let same = |a: f64, b: f64| (a / b).ln().abs() < SAME_WINDOW;
        self.window.filter(|&window| self.untrue.is_none_or(|untrue| !same(window, untrue)))
    }

    pub(super) fn rtt(&self) -> f64 {
        self.rtt.unwrap_or(RTT)
    }

    /// The used part of the window. It is computed with the minimum round-trip time, since a queue
    /// fills windows too.
    pub(super) fn utilisation(&self, streams: u32, rate: f64) -> Option<f64> {
        Some(rate * self.min_rtt? / (f64::from(streams) * self.window()?))
    }

    /// Duration of handshake and slow start of streams that carry `rate` together, in seconds.
    pub(super) fn start_up(&self, streams: u32, rate: f64) -> f64 {
        let packets = rate * self.rtt() / self.packet / f64::from(streams);
        self.rtt() * (2.0 + (0.5 * packets).max(1.0).log2())
    }

    /// The cost of a change to `streams`, in seconds: nothing if connections are kept.
    pub(super) fn restart(&self, streams: u32, rate: f64) -> f64 {
        if self.fresh || self.recent.is_empty() { self.start_up(streams, rate) } else { 0.0 }
    }

    /// The rate of a chunk without its start-up, and the remaining duration.
    pub(super) fn corrected(&self, chunk: &Chunk) -> (f64, f64) {
        if !self.fresh {
            let (rate, seconds) = match self.recent.last() {
                Some(&last) => self.corrected_kept(chunk, last),
                None => self.corrected_fresh(chunk),
            };
            return (
                self.highest(chunk).map_or(rate, |highest| rate.min(highest.max(chunk.rate()))),
                seconds,
            );
        }
        self.corrected_fresh(chunk)
    }

    fn corrected_fresh(&self, chunk: &Chunk) -> (f64, f64) {
        let mut rate = chunk.rate();
        let mut seconds = chunk.seconds;
        for _ in 0..2 {
            seconds = (chunk.seconds - self.start_up(chunk.streams, rate)).max(0.3 * chunk.seconds);
            rate = chunk.bytes as f64 / seconds;
        }
        (rate, seconds)
    }

    /// If connections are kept, only the new ones had to start; meanwhile the others continued as
    /// before.
    fn corrected_kept(&self, chunk: &Chunk, (streams, before): (u32, f64)) -> (f64, f64) {
        if streams >= chunk.streams {
            return (chunk.rate(), chunk.seconds);
        }
        let join = (self.start_up(chunk.streams, chunk.rate()) - self.rtt()).min(0.7 * chunk.seconds);
        let seconds = chunk.seconds - join;
        (((chunk.bytes as f64 - before * join) / seconds).max(0.5 * chunk.rate()), seconds)
    }

    /// The highest rate reported for a chunk after its streams had started, including the data
    /// after the last report. The corrected rate may be more than the path can carry, because data
    /// is also transferred during the start-up.
    fn highest(&self, chunk: &Chunk) -> Option<f64> {
        let begun = self.start_up(chunk.streams, chunk.rate()).min(0.7 * chunk.seconds);
        let (mut highest, mut from, mut bytes) = (None::<f64>, 0.0, 0.0);
        let rest = (chunk.seconds, f64::NAN);
        for &(at, rate) in self.marks.iter().filter(|mark| mark.0 < chunk.seconds).chain([&rest]) {
            let seconds = at - from;
            let rate = if rate.is_nan() { (chunk.bytes as f64 - bytes).max(0.0) / seconds } else { rate };
            if from >= begun && seconds >= 0.3 {
                highest = Some(highest.map_or(rate, |highest| highest.max(rate)));
            }
            (from, bytes) = (at, bytes + rate * seconds);
        }
        highest
    }

    /// Mean rate of the reports after the start of the chunk, and their duration.
    pub(super) fn steady(&self, chunk: &Chunk) -> Option<(f64, f64)> {
        self.steady_after(self.changed.unwrap_or_else(|| self.warm_up().min(0.45 * chunk.seconds)))
    }

    /// As [`Self::steady`], for the second half of the chunk only.
    pub(super) fn late(&self, chunk: &Chunk) -> Option<(f64, f64)> {
        self.steady_after(self.changed.unwrap_or_default().max(0.5 * chunk.seconds))
    }

    fn steady_after(&self, skip: f64) -> Option<(f64, f64)> {
        let mut steady: Vec<(f64, f64)> = Vec::new();
        let mut before = 0.0;
        for &(at, rate) in &self.marks {
            let from = std::mem::replace(&mut before, at);
            if from + 1e-6 >= skip {
                steady.push((at - from, rate));
            }
        }
        let mut sum = Sum::of(&steady);
        // If each stream has its own part of the chunk, some streams finish before the others;
        // leave out these last reports.
        while self.fresh
            && let [rest @ .., (_, last)] = steady.as_slice()
            && *last < DONE * Sum::of(rest).rate()
        {
            steady.pop();
            sum = Sum::of(&steady);
        }
        (sum.seconds >= 1.0 && sum.bytes > 0.0).then(|| (sum.rate(), sum.seconds))
    }

    /// Whether the last three reports are all below `reference` (logarithm) by more than `least`
    /// and by more than `times` the noise. Returns the time since which this is so, and the factor.
    pub(super) fn fallen(&self, reference: f64, least: f64, times: f64) -> Option<(f64, f64)> {
        let (&(from, _), last) = self.marks.get(self.marks.len().checked_sub(4)?..)?.split_first()?;
        let seconds = (last.last()?.0 - from) / 3.0;
        let bound = least.max(times * (self.variance() * TEN_SECONDS / seconds.max(0.5)).sqrt());
        let highest =
            last.iter().map(|(_, rate)| rate.max(1.0).ln() - reference).fold(f64::NEG_INFINITY, f64::max);
        let mean = last.iter().map(|(_, rate)| rate).sum::<f64>() / 3.0;
        (highest < -bound).then(|| (from, (mean.max(1.0).ln() - reference).exp()))
    }

    /// The rate of the last chunk.
    pub(super) fn last(&self) -> Option<f64> {
        self.recent.last().map(|recent| recent.1)
    }

    pub(super) fn record(&mut self, streams: u32, rate: f64) {
        if self.recent.len() >= 4 {
            self.recent.remove(0);
        }
        self.recent.push((streams, rate));
    }

    /// The expected rate of `streams`, for the size of a chunk, if additional streams gain with
    /// elasticity `gain`.
    pub(super) fn expected(&self, streams: u32, gain: f64) -> Option<f64> {
        let &(n, rate) = self.recent.last()?;
        let ratio = f64::from(streams) / f64::from(n);
        if ratio >= 1.0 {
            return Some(rate * ratio.powf(gain));
        }
        // Fewer streams each carry at most what any stream has carried, and together at most the
        // current rate.
        let each = self.recent.iter().map(|&(n, rate)| rate / f64::from(n)).fold(0.0, f64::max);
        Some(rate.min(each * f64::from(streams)))
    }

    /// Limits a hoped-for rate to what has been measured; files are divided by that.
    pub(super) fn carried(&self, hoped: f64) -> f64 {
        self.recent.last().map_or(hoped, |&(_, rate)| hoped.min(rate))
    }

    /// The factor by which the last spans of reports differ from `reference` (logarithm): three,
    /// six or twelve successive spans (up to `longest`) whose mean differs by more than `least`
    /// (less for more spans) and by more than `times` the noise.
    pub(super) fn shifted(&self, reference: f64, least: f64, times: f64, longest: usize) -> Option<f64> {
        let spans = self.spans();
        let sd = (self.variance() * TEN_SECONDS / SPAN).sqrt();
        for (count, least) in [(3, least), (6, 0.7 * least), (12, 0.5 * least)] {
            if count > longest {
                break;
            }
            let last = spans.get(spans.len().checked_sub(count)?..)?;
            let off = || last.iter().map(|(_, rate)| rate.max(1.0).ln() - reference);
            let mean = off().sum::<f64>() / count as f64;
            let bound = least.max(times * sd / (count as f64).sqrt());
            if mean.abs() > bound
                && (count > 3 || off().all(|off| off * mean > 0.0 && off.abs() > 0.5 * bound))
            {
                return Some(mean.exp());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: f64 = 0.09;
    const LINK: f64 = 12.5e6;

    fn meter(marks: &[(f64, f64)]) -> Meter {
        let options = Options { connections: Connections::Kept, ..Options::default() };
        let mut meter = Meter::new(&options);
        meter.learn(&Chunk { rtt: Some(RTT), ..Chunk::new(8, 1, 1.0) });
        meter.begin(8);
        for &(elapsed, rate) in marks {
            meter.mark(&Progress { elapsed, rate });
        }
        meter
    }

    /// Slow start transfers data too. If it is counted as lost time, 82 Mbit/s on a link of 100
    /// Mbit/s become a rate of 122 Mbit/s.
    #[test]
    fn corrected_rate_is_at_most_the_highest_report() {
        let marks = [(1.0, 0.66 * LINK), (2.0, LINK)];
        let chunk = Chunk::new(8, (0.82 * 2.2 * LINK) as u64, 2.2);
        let (rate, _) = meter(&marks).corrected(&chunk);
        assert!(rate <= 1.01 * LINK && rate > 0.95 * LINK, "{rate}");
        // Streams joined, while the existing ones already carried more.
        let mut joined = meter(&marks);
        joined.record(4, 0.2 * LINK);
        let (rate, _) = joined.corrected(&chunk);
        assert!(rate <= 1.01 * LINK && rate > 0.95 * LINK, "{rate}");
        // Without reports after the start there is no better information.
        let (rate, _) = meter(&[]).corrected(&chunk);
        assert!(rate > LINK, "{rate}");
    }

    #[test]
    fn fallen_needs_three_agreeing_reports() {
        let level = LINK.ln();
        let fallen = |rates: [f64; 5]| {
            let marks: Vec<_> = (1..).map(f64::from).zip(rates.map(|rate| rate * LINK)).collect();
            meter(&marks).fallen(level, 0.35, 3.2)
        };
        assert_eq!(fallen([1.0, 1.0, 0.5, 1.0, 0.5]), None);
        assert_eq!(fallen([1.0, 1.0, 0.9, 0.8, 0.8]), None);
        assert!(
            fallen([1.0, 1.0, 0.5, 0.5, 0.5])
                .is_some_and(|(since, factor)| since == 2.0 && (factor - 0.5).abs() < 0.01)
        );
        assert_eq!(meter(&[(1.0, 1.0)]).fallen(level, 0.35, 3.2), None);
    }
}
