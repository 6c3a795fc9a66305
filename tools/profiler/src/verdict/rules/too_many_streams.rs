//! There are more streams than the path or the hosts can use.
//!
//! A sweep shows this directly: fewer streams reached a rate higher by 5 to 20 %, and by more than
//! twice the combined standard errors. If the kernel's load grew as the rate fell, the evidence
//! mentions it.
//!
//! Without a sweep, the sign is at least 8 streams that have so little in flight that a loss cannot
//! be repaired by duplicate acknowledgements (RFC 5681 requires three) but waits for a timeout,
//! with 0.5 to 2 % of segments retransmitted. So little means 2 to 6 segments each, by the smaller
//! of the median window and the share of each stream in rate times round trip.

use crate::profile::SweepPoint;
use crate::verdict::figures::ramp;
use crate::verdict::text::{link, percent};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct TooManyStreams;

impl Rule for TooManyStreams {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let (confidence, text) = by_sweep(evidence).or_else(|| by_windows(evidence))?;
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::TooManyStreams,
            host: None,
            confidence,
            evidence: text,
            advice: "use fewer streams, or leave their number to the tuner (`--streams auto`)".into(),
        })
    }
}

fn by_sweep(evidence: &Evidence) -> Option<(f64, String)> {
    let sweep = &evidence.baselines.streams;
    // The points of a sweep count streams per file, with as many files in flight as in the
    // transfer.
    let files = evidence.files_in_flight.max(1.0);
    let streams = (evidence.streams / files).max(1.0);
    // The rate of the transfer itself, unless its number of streams is in the sweep.
    let here =
        sweep.iter().find(|point| f64::from(point.streams) == streams).copied().unwrap_or(SweepPoint {
            streams: streams as u32,
            bytes_per_second: evidence.rate,
            ..SweepPoint::default()
        });
    let fewer = sweep.iter().filter(|point| point.streams < here.streams);
    let best = fewer.max_by(|a, b| a.bytes_per_second.total_cmp(&b.bytes_per_second))?;
    let gain = best.bytes_per_second - here.bytes_per_second;
    if here.bytes_per_second <= 0.0 || gain <= 2.0 * best.error.hypot(here.error) {
        return None;
    }
    let mut text = format!(
        "{} streams{} reached {}, {} only {}",
        best.streams,
        if files > 1.0 { " a file" } else { "" },
        link(best.bytes_per_second),
        here.streams,
        link(here.bytes_per_second)
    );
    if here.kernel_load > best.kernel_load {
        text += &format!(
            "; the kernel's load went from {} to {}",
            percent(best.kernel_load),
            percent(here.kernel_load)
        );
    }
    Some((0.95 * ramp(gain / here.bytes_per_second, 0.05, 0.2), text))
}

fn by_windows(evidence: &Evidence) -> Option<(f64, String)> {
    let path = evidence.path.as_ref().filter(|path| path.mss > 0.0)?;
    let share = evidence.rate * path.rtt / evidence.streams;
    let window = path.congestion_window.min(share) / path.mss;
    if evidence.streams < 8.0 {
        return None;
    }
    let confidence = 0.95 * (1.0 - ramp(window, 2.0, 6.0)) * ramp(path.loss?, 0.005, 0.02);
    Some((
        confidence,
        format!(
            "each of {:.0} streams had {window:.1} segments on their way, and {} of segments were sent again",
            evidence.streams,
            percent(path.loss?)
        ),
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    fn sweep(points: &[(u32, f64)], error: f64) -> Evidence {
        let mut evidence = quiet();
        evidence.streams = 16.0;
        evidence.baselines.streams = points
            .iter()
            .map(|&(streams, rate)| SweepPoint {
                streams,
                bytes_per_second: rate * 1e6,
                error: error * 1e6,
                kernel_load: f64::from(streams) / 20.0,
            })
            .collect();
        evidence
    }

    #[test]
    fn too_many_streams_when_sweep_falls_is_found() {
        // The shape of the published sweep, whose best number was 4 streams.
        let points = [(1, 45.8), (2, 55.0), (4, 59.1), (8, 52.0), (16, 48.0)];
        let cause = TooManyStreams.judge(&sweep(&points, 1.0)).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("4 streams"), "{cause:?}");
        assert!(cause.evidence.contains("20 % to 80 %"), "{cause:?}");
        assert_eq!(TooManyStreams.judge(&sweep(&points, 10.0)), None);
        assert_eq!(TooManyStreams.judge(&sweep(&[(1, 10.0), (4, 40.0), (16, 90.0)], 1.0)), None);
    }

    #[test]
    fn too_many_streams_when_files_are_parallel_counts_streams_per_file() {
        // 4 streams for each of 4 files: more streams would have been better, fewer were not.
        let mut more = sweep(&[(1, 10.0), (2, 20.0), (4, 40.0), (8, 90.0)], 1.0);
        (more.files_in_flight, more.rate) = (4.0, 40e6);
        assert_eq!(TooManyStreams.judge(&more), None);
        let mut fewer = sweep(&[(1, 45.8), (2, 59.1), (4, 48.0), (8, 40.0)], 1.0);
        fewer.files_in_flight = 4.0;
        let cause = TooManyStreams.judge(&fewer).unwrap();
        assert!(cause.evidence.starts_with("2 streams a file reached"), "{cause:?}");
        assert!(cause.evidence.contains(", 4 only "), "{cause:?}");
    }

    #[test]
    fn too_many_streams_when_windows_are_small_is_found() {
        let mut evidence = quiet();
        evidence.streams = 64.0;
        let path = evidence.path.as_mut().unwrap();
        (path.congestion_window, path.loss) = (3000.0, Some(0.04));
        assert!(TooManyStreams.judge(&evidence).unwrap().confidence > 0.7);
        evidence.streams = 4.0;
        assert_eq!(TooManyStreams.judge(&evidence), None);
        assert_eq!(TooManyStreams.judge(&quiet()), None);
    }
}
