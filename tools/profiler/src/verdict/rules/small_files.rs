//! Round trips for each of many small files.
//!
//! The rule needs at least 10 files over a round trip of 2 ms or more (on shorter paths, opening
//! files and disks cost more than the path). Their mean size must be below what the path holds:
//! rate times round trip, with the highest known rate, and at least 1 MiB, which a connection sends
//! in its first few round trips.
//!
//! Each file took `seconds * files in flight / files`. The time that its bytes need at the path's
//! capacity is subtracted (if that is unknown, at the highest rate seen, or at 1 MiB per round
//! trip). The rest is the overhead: 30 % of the time is a sign, 80 % is proof, if it is at least
//! 0.8 round trips for each file. Meanwhile TCP has to be short of data (20 to 50 % of samples). A
//! send buffer that holds a whole file may be full of it although the sender has no more data, so
//! its limited time counts too.

use crate::verdict::figures::{largest, ramp};
use crate::verdict::text::{percent, size, time};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct SmallFiles;

impl Rule for SmallFiles {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let rtt = evidence.rtt.filter(|&rtt| rtt >= 0.002)?;
        if evidence.files < 10.0 || evidence.seconds <= 0.0 {
            return None;
        }
        let mean = evidence.bytes / evidence.files;
        let reach = largest([evidence.capacity(), evidence.peak, Some(evidence.rate)])?;
        if mean > (reach * rtt).max(1_048_576.0) {
            return None;
        }
        // Many files in parallel may fill the path; then TCP is never short of data.
        let starved = evidence.path.as_ref().map_or(1.0, |path| {
            let holds_it = path.send_buffer.is_some_and(|buffer| buffer >= mean);
            let waiting = if holds_it { path.buffer_limited } else { 0.0 };
            ramp(path.application_limited + waiting, 0.2, 0.5)
        });
        let reach = if evidence.capacity().is_some() { reach } else { reach.max(1_048_576.0 / rtt) };
        let each = evidence.seconds * evidence.files_in_flight / evidence.files;
        let moving = evidence.bytes / reach / evidence.seconds;
        let overhead = (1.0 - moving).max(0.0);
        let trips = each * overhead / rtt;
        if trips < 0.8 {
            return None;
        }
        let confidence = 0.93 * starved * ramp(overhead, 0.3, 0.8);
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::SmallFiles,
            host: None,
            confidence,
            evidence: format!(
                "{:.0} files of {} on average took {} each, {trips:.1} round trips of {}; moving their bytes was {} of the time",
                evidence.files,
                size(mean),
                time(each),
                time(rtt),
                percent(moving)
            ),
            advice: "pipeline commands, keep data connections, more files in flight (`--files-in-flight`), or pack the \
                     files together"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::{quiet, starved};

    fn many(files: f64, bytes: f64, seconds: f64) -> Evidence {
        Evidence { files, bytes, seconds, rate: bytes / seconds, rtt: Some(0.1), peak: None, ..starved() }
    }

    #[test]
    fn small_files_when_each_takes_round_trips_is_found() {
        let mut evidence = many(1000.0, 10_240_000.0, 200.0);
        evidence.baselines.path = Some(12.5e6);
        let cause = SmallFiles.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("2.0 round trips"), "{cause:?}");
    }

    #[test]
    fn small_files_when_buffer_holds_a_file_is_found() {
        let mut evidence = many(41.0, 1_511_424.0, 4.9);
        let path = evidence.path.as_mut().unwrap();
        (path.application_limited, path.buffer_limited) = (0.03, 0.94);
        path.send_buffer = Some(46_080.0);
        assert!(SmallFiles.judge(&evidence).unwrap().confidence > 0.6);
        evidence.path.as_mut().unwrap().send_buffer = Some(16_384.0);
        assert_eq!(SmallFiles.judge(&evidence), None);
    }

    #[test]
    fn small_files_when_pipelined_large_or_near_is_none() {
        let mut pipelined = many(1000.0, 10_240_000.0, 2.0);
        pipelined.baselines.path = Some(12.5e6);
        assert_eq!(SmallFiles.judge(&pipelined), None);
        let mut large = many(20.0, 20e9, 400.0);
        large.baselines.path = Some(1e9);
        assert_eq!(SmallFiles.judge(&large), None);
        let mut near = many(1000.0, 10_240_000.0, 200.0);
        near.rtt = Some(0.0002);
        assert_eq!(SmallFiles.judge(&near), None);
        assert_eq!(SmallFiles.judge(&quiet()), None);
    }
}
