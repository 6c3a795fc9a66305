//! Losses from queues that overflow: others share the path, or a queue on it is too short.
//!
//! Segments sent again (0.001 % is a sign, 0.1 % is proof: at 10^-5, the rule of Mathis et al. leaves a Reno flow
//! about 390 segments in flight, less than 50 Mbit/s over 100 ms) together with queues, while the congestion
//! window limits half of the time. Queues show in the median round trip, 10 to 40 % and at least 1 ms above the shortest;
//! short ones do not, but there losses come when the round trip is long: its place among all samples of the connection is
//! 0.55 to 0.65 or higher in the mean of the losses, and by 1.5 to 2.5 standard errors more than the 0.5 that it is by
//! chance. Or losses come in bunches, for a full queue drops several of a burst: there are 1.3 to 1.8 times fewer moments
//! with losses than independent ones would make, and by 1.5 to 2.5 standard errors. (At least 5 moments with losses, of a
//! tenth of a second. Damage that comes in bunches looks the same.) A path whose capacity is reached loses too, but that is no fault (path_capacity); so the
//! rate has to be below it, or, where it is unknown, to vary as path_capacity says.

use super::path_capacity::{FULL, uneven};
use crate::verdict::figures::ramp;
use crate::verdict::text::{percent, time};
use crate::verdict::{Cause, CauseKind, Evidence, Path, Rule};

pub(super) struct CongestionLoss;

/// How much losses weigh: by powers of ten.
pub(super) fn weight(path: &Path) -> Option<f64> {
    let loss = path.loss.filter(|&loss| loss > 0.0)?;
    Some(ramp(loss.log10(), -5.0, -3.0))
}

/// Whether the rate is below what the path carries; by its variation where that is unknown.
fn below_capacity(evidence: &Evidence) -> f64 {
    match evidence.capacity() {
        Some(capacity) => 1.0 - ramp(evidence.rate / capacity, FULL - 0.1, FULL),
        None => uneven(evidence).map_or(0.6, |(_, uneven)| uneven),
    }
}

/// How far losses go with queues.
pub(super) fn queued(evidence: &Evidence) -> Option<f64> {
    let (ratio, queueing) = (evidence.inflation()?, evidence.queueing()?);
    let standing = if queueing < 0.001 { 0.0 } else { ramp(ratio, 1.1, 1.4) };
    let with_queues = evidence.losses.filter(|losses| losses.moments >= 5.0).map_or(0.0, |losses| {
        // A place by chance is anything from 0 to 1.
        let error = (1.0 / 12.0 / losses.moments).sqrt();
        let late = ramp(losses.place, 0.55, 0.65) * ramp((losses.place - 0.5) / error, 1.5, 2.5);
        let fewer = (losses.by_chance - losses.moments) / losses.by_chance.sqrt().max(1.0);
        let bunched = ramp(losses.by_chance / losses.moments, 1.3, 1.8) * ramp(fewer, 1.5, 2.5);
        late.max(bunched)
    });
    Some(standing.max(with_queues))
}

impl Rule for CongestionLoss {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let path = evidence.path.as_ref()?;
        let confidence = 0.9
            * weight(path)?
            * queued(evidence)?
            * ramp(path.congestion_limited(), 0.3, 0.7)
            * below_capacity(evidence);
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::CongestionLoss,
            host: None,
            confidence,
            evidence: format!(
                "{} of segments were sent again while packets waited {} in queues; the congestion window limited {} of the time",
                percent(path.loss.unwrap_or(0.0)),
                time(evidence.queueing().unwrap_or(0.0)),
                percent(path.congestion_limited())
            ),
            advice: "others share the path: another time or route, a fair number of streams; qdisc fq at the sender \
                     smooths bursts that short queues drop"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::Losses;
    use crate::verdict::rules::samples::quiet;

    fn lossy() -> Evidence {
        let mut evidence = quiet();
        let path = evidence.path.as_mut().unwrap();
        (path.loss, path.rtt) = (Some(0.002), 0.09);
        evidence.variation = Some(0.3);
        evidence
    }

    #[test]
    fn losses_with_queues() {
        let cause = CongestionLoss.judge(&lossy()).unwrap();
        assert!(cause.confidence > 0.8 && cause.evidence.contains("0.2 %"), "{cause:?}");
    }

    #[test]
    fn losses_when_a_short_queue_is_full() {
        let mut evidence = lossy();
        evidence.path.as_mut().unwrap().rtt = 0.0605;
        assert_eq!(CongestionLoss.judge(&evidence), None);
        evidence.losses = Some(Losses { moments: 12.0, place: 0.76, by_chance: 12.0 });
        assert!(CongestionLoss.judge(&evidence).unwrap().confidence > 0.8);
        // What chance gives.
        evidence.losses = Some(Losses { moments: 8.0, place: 0.61, by_chance: 9.0 });
        assert_eq!(CongestionLoss.judge(&evidence), None);
        evidence.losses = Some(Losses { moments: 1000.0, place: 0.53, by_chance: 1050.0 });
        assert_eq!(CongestionLoss.judge(&evidence), None);
        evidence.losses = Some(Losses { moments: 10.0, place: 0.5, by_chance: 54.0 });
        assert!(CongestionLoss.judge(&evidence).unwrap().confidence > 0.8);
    }

    #[test]
    fn a_full_path_and_losses_without_queues_are_other_causes() {
        let mut evidence = lossy();
        evidence.baselines.path = Some(1.05e8);
        assert_eq!(CongestionLoss.judge(&evidence), None);
        let mut evidence = lossy();
        evidence.path.as_mut().unwrap().rtt = 0.0605;
        assert_eq!(CongestionLoss.judge(&evidence), None);
        assert_eq!(CongestionLoss.judge(&quiet()), None);
        assert_eq!(CongestionLoss.judge(&Evidence::default()), None);
    }
}
