//! Detects changes of the rate with a cumulative sum test (Page 1954) over the reports of a chunk.
//!
//! Each report adds the logarithm of the likelihood ratio of a change, based on the measured noise.
//! A fall that is large compared with the noise is certain after two reports, a small one after
//! many.

/// Minimum shift (logarithm) to look for, also in standard deviations of a report.
const SHIFT: f64 = 0.25;
const SHIFT_DEVIATIONS: f64 = 1.2;
/// Required evidence (logarithm of the likelihood ratio).
const ENOUGH: f64 = 9.0;
/// Maximum evidence of one report. A single report is never sufficient, because it may be a stall.
const MOST: f64 = 0.6 * ENOUGH;
/// Minimum assumed noise of reports (standard deviation of the logarithm over a second).
const QUIETEST: f64 = 0.06;

/// A report: begin and end of its time, and the difference of its rate from the reference
/// (logarithm).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Report {
    pub(super) from: f64,
    pub(super) until: f64,
    pub(super) off: f64,
}

/// A change that is certain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shift {
    /// When the rate changed, in seconds of the chunk.
    pub(super) since: f64,
    /// Mean difference from the reference since then (logarithm).
    pub(super) off: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Side {
    evidence: f64,
    since: f64,
    off: f64,
    seconds: f64,
    reports: u32,
}

impl Side {
    /// Adds a report. `off`: difference to this side; `variance`: of the report.
    fn add(&mut self, report: Report, off: f64, least: f64, doubt: f64, variance: f64) {
        let seconds = report.until - report.from;
        let shift = least.max(SHIFT_DEVIATIONS * variance.sqrt());
        // The uncertainty of the reference is not evidence.
        let gain = (shift / variance * (off - 2.0 * doubt - 0.5 * shift)).clamp(-ENOUGH, MOST);
        if self.evidence + gain <= 0.0 {
            *self = Self::default();
            return;
        }
        if self.reports == 0 {
            self.since = report.from;
        }
        self.evidence += gain;
        self.reports += 1;
        self.off += off * seconds;
        self.seconds += seconds;
    }

    fn is_certain(&self, least: f64) -> bool {
        self.evidence >= ENOUGH && self.reports >= 2 && self.off > least * self.seconds
    }
}

/// Returns the change that the last of `reports` makes certain. `least`: the minimum shift
/// (logarithm); `doubt`: the standard deviation of the reference; `variance`: of the logarithm of a
/// rate over a second (white noise).
pub(super) fn shifted(
    reports: impl Iterator<Item = Report>,
    least: f64,
    doubt: f64,
    variance: f64,
) -> Option<Shift> {
    let (mut fall, mut rise) = (Side::default(), Side::default());
    let mut last = None;
    let variance = variance.max(QUIETEST * QUIETEST);
    for report in reports {
        let variance = variance / (report.until - report.from).max(0.1);
        fall.add(report, -report.off, least.max(SHIFT), doubt, variance);
        rise.add(report, report.off, least.max(SHIFT), doubt, variance);
        last = Some(report);
    }
    let last = last?;
    let (side, sign) = match (fall.is_certain(least), rise.is_certain(least)) {
        (true, _) => (fall, -1.0),
        (_, true) => (rise, 1.0),
        _ => return None,
    };
    // The first report may partly be from before the change.
    let off = if side.reports == 2 { last.off } else { sign * side.off / side.seconds };
    let since = if side.reports == 2 { last.from } else { side.since };
    Some(Shift { since, off })
}

#[cfg(test)]
mod tests {
    use ropewalk_models::sim::Rng;

    use super::*;

    const QUIET: f64 = 0.016;

    /// Number of reports until a change is certain.
    fn needed(offs: &[f64], variance: f64) -> Option<usize> {
        let report = |(n, &off): (usize, &f64)| Report { from: n as f64, until: n as f64 + 1.0, off };
        (1..=offs.len()).find(|&count| {
            let reports = offs[..count].iter().enumerate().map(report);
            shifted(reports, 0.16, 0.02, variance).is_some()
        })
    }

    #[test]
    fn shifted_by_larger_change_is_certain_sooner() {
        let after = |off: f64| needed(&[&[0.0; 3][..], &[off; 40][..]].concat(), QUIET).map(|at| at - 3);
        assert_eq!(after(-0.7), Some(2));
        assert_eq!(after(0.7), Some(2));
        assert!(after(-0.35).is_some_and(|reports| (2..=4).contains(&reports)));
        assert!(after(-0.2).is_some_and(|reports| (4..=20).contains(&reports)));
        assert_eq!(after(-0.1), None);
    }

    #[test]
    fn shifted_in_one_report_is_not_certain() {
        let mut offs = [0.0; 30];
        (offs[5], offs[15], offs[16]) = (-6.0, -1.0, 0.9);
        assert_eq!(needed(&offs, QUIET), None);
    }

    #[test]
    fn shifted_with_noise_has_few_false_or_late_alarms() {
        // Ten per cent over ten seconds.
        let (variance, mut alarms, mut late) = (0.1f64, 0, 0);
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let quiet: Vec<f64> = (0..120).map(|_| rng.lognormal(variance.sqrt()).ln()).collect();
            alarms += u32::from(needed(&quiet, variance).is_some());
            let fallen: Vec<f64> = quiet.iter().map(|off| off - 0.7).collect();
            late += u32::from(needed(&fallen, variance).is_none_or(|reports| reports > 8));
        }
        assert!(alarms <= 4 && late <= 20, "{alarms} {late}");
    }

    #[test]
    fn shifted_reports_time_of_change() {
        let report = |n: u32| Report {
            from: f64::from(n),
            until: f64::from(n) + 1.0,
            off: if n < 5 { 0.0 } else { -0.4 },
        };
        let shift = (6..12).find_map(|end| shifted((0..end).map(report), 0.16, 0.02, QUIET));
        assert!(
            shift.is_some_and(|shift| (5.0..=6.0).contains(&shift.since) && (shift.off + 0.4).abs() < 1e-9)
        );
    }
}
