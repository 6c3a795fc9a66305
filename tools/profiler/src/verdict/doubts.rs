//! Decides whether there is enough data to name the causes of a rate.
//!
//! Connections are sampled ten times a second and hosts once, and rates grow at the beginning of a
//! transfer anyway. Causes seen in a second or less are reported with reduced confidence; from two
//! seconds on they count in full. Figures of TCP from fewer than 5 samples, and figures of
//! processors and disks from fewer than 3, are left out.

use super::figures::ramp;
use super::text::time;
use super::{Evidence, Path};

/// Seconds up to which nothing is sure, and from which everything counts in full.
const SHORT: f64 = 1.0;
const LONG: f64 = 2.0;
/// Factor on the confidence up to `SHORT`. It turns "very likely" into "faint".
const FAINT: f64 = 0.4;
const TCP: f64 = 5.0;
const SYSTEM: f64 = 3.0;

/// Factor on the confidence, which depends on how long data moved.
pub(super) fn length(evidence: &Evidence) -> f64 {
    FAINT + (1.0 - FAINT) * ramp(evidence.seconds, SHORT, LONG)
}

/// Whether the transfer moved no data, so that nothing can have limited it. Many empty files do not
/// count: they may still have taken their time.
pub(super) fn nothing_moved(evidence: &Evidence) -> bool {
    let failed = evidence.failed.as_ref();
    failed.is_some_and(|failed| failed.moved_until.is_none())
        || evidence.bytes <= 0.0 && evidence.seconds > 0.0 && evidence.files < 10.0
}

/// Removes figures with too few samples. Returns the rest, and the reasons in words.
pub(super) fn sound(evidence: &Evidence) -> (Evidence, Vec<String>) {
    let mut sound = evidence.clone();
    let mut doubts = Vec::new();
    let few = |samples: Option<f64>, least: f64| samples.is_some_and(|samples| samples < least);
    let short = evidence.seconds < LONG;
    if short {
        let moved = if evidence.failed.is_some() { "data moved for " } else { "" };
        doubts.push(format!("too short to tell: {moved}{}", time(evidence.seconds)));
    }
    let seen = |samples: Option<f64>| samples.unwrap_or(0.0);
    if let Some(path) = sound.path.take_if(|path: &mut Path| few(path.samples, TCP))
        && !short
    {
        doubts.push(format!("connections were seen only {:.0} times", seen(path.samples)));
    }
    for end in sound.source.iter_mut().chain(&mut sound.destination) {
        if !few(end.samples, SYSTEM) {
            continue;
        }
        (end.busiest, end.all, end.disk) = (None, None, None);
        if !short && seen(end.samples) > 0.0 {
            let seen = seen(end.samples);
            doubts.push(format!("the processors and disks of {} were seen only {seen:.0} times", end.name));
        }
    }
    (sound, doubts)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::FailureKind;
    use crate::verdict::failures;
    use crate::verdict::rules::samples::quiet;
    use crate::verdict::{CauseKind, Verdict};

    /// A transfer of this length that a small window limits.
    fn small_window(seconds: f64) -> Verdict {
        let mut evidence = quiet();
        (evidence.seconds, evidence.bytes) = (seconds, 1e8 * seconds);
        let path = evidence.path.as_mut().unwrap();
        (path.window_limited, path.send_window) = (0.9, Some(65_536.0));
        Verdict::from_evidence(&evidence)
    }

    #[test]
    fn verdict_when_transfer_is_short_is_faint() {
        let verdict = small_window(10.0);
        assert!(verdict.causes[0].confidence > 0.9 && verdict.doubts.is_empty(), "{verdict:?}");
        let verdict = small_window(0.2);
        assert_eq!(verdict.causes[0].kind, CauseKind::ReceiverWindow);
        assert!(verdict.causes[0].confidence < 0.4, "{verdict:?}");
        assert_eq!(verdict.doubts, ["too short to tell: 200.0 ms"]);
        let between = small_window(1.5).causes[0].confidence;
        assert!((0.4..0.9).contains(&between), "{between}");
    }

    #[test]
    fn verdict_when_samples_are_few_leaves_figures_out() {
        let mut evidence = quiet();
        let path = evidence.path.as_mut().unwrap();
        (path.window_limited, path.send_window, path.samples) = (1.0, Some(65_536.0), Some(2.0));
        let end = evidence.source.as_mut().unwrap();
        end.samples = Some(1.0);
        end.busiest.as_mut().unwrap().softirq = 0.7;
        let verdict = Verdict::from_evidence(&evidence);
        assert_eq!(verdict.causes, []);
        assert_eq!(
            verdict.doubts,
            ["connections were seen only 2 times", "the processors and disks of left were seen only 1 times"]
        );
    }

    #[test]
    fn verdict_when_nothing_moved_has_no_causes() {
        let mut evidence = failures::sample(FailureKind::Unreachable);
        evidence.source.as_mut().unwrap().busiest.as_mut().unwrap().softirq = 0.7;
        assert!(!Verdict::from_evidence(&evidence).causes.is_empty());
        (evidence.bytes, evidence.failed.as_mut().unwrap().moved_until) = (0.0, None);
        let verdict = Verdict::from_evidence(&evidence);
        assert_eq!((verdict.causes.len(), verdict.failure.unwrap().kind), (0, FailureKind::Unreachable));
        let mut evidence = quiet();
        evidence.bytes = 0.0;
        assert!(nothing_moved(&evidence));
        evidence.files = 1000.0;
        assert!(!nothing_moved(&evidence));
    }
}
