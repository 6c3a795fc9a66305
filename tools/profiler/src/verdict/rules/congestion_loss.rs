//! Losses in overflowing queues: other traffic shares the path, or a queue on it is too short.
//!
//! The signs are retransmitted segments together with queues, while the congestion window limits
//! half of the time. A loss of 0.001 % is a sign, 0.1 % is proof: at 10^-5, the rule of Mathis et
//! al. leaves a Reno flow about 390 segments in flight, less than 50 Mbit/s over 100 ms.
//!
//! Queues show in one of three ways:
//! - The median round trip is 10 to 40 % and at least 1 ms above the shortest.
//! - Short queues do not show in the median, but then losses occur when the round trip is long: its
//!   rank among all samples of the connection is 0.55 to 0.65 or higher in the mean of the losses,
//!   and exceeds the 0.5 of chance by 1.5 to 2.5 standard errors.
//! - Losses come in bunches, because a full queue drops several segments of a burst: there are 1.3
//!   to 1.8 times fewer moments with losses than independent losses would make, and fewer by 1.5 to
//!   2.5 standard errors. (Damage that comes in bunches looks the same.)
//!
//! The last two need at least 5 moments of a tenth of a second with losses. A path whose capacity
//! is reached loses data too, but that is no fault (`path_capacity`). So the rate has to be below
//! the capacity or, if that is unknown, to vary as `path_capacity` defines it.

use super::path_capacity::{FULL, uneven};
use crate::verdict::figures::ramp;
use crate::verdict::text::{percent, time};
use crate::verdict::{Cause, CauseKind, Evidence, Path, Rule};

pub(super) struct CongestionLoss;

/// Weight of the losses, by powers of ten.
pub(super) fn weight(path: &Path) -> Option<f64> {
    let loss = path.loss.filter(|&loss| loss > 0.0)?;
    Some(ramp(loss.log10(), -5.0, -3.0))
}

/// How far the rate is below the path's capacity; if that is unknown, how far the rate varies.
fn below_capacity(evidence: &Evidence) -> f64 {
    match evidence.capacity() {
        Some(capacity) => 1.0 - ramp(evidence.rate / capacity, FULL - 0.1, FULL),
        None => uneven(evidence).map_or(0.6, |(_, uneven)| uneven),
    }
}

/// How far losses occur together with queues.
pub(super) fn queued(evidence: &Evidence) -> Option<f64> {
    let (ratio, queueing) = (evidence.inflation()?, evidence.queueing()?);
    let standing = if queueing < 0.001 { 0.0 } else { ramp(ratio, 1.1, 1.4) };
    let with_queues = evidence.losses.filter(|losses| losses.moments >= 5.0).map_or(0.0, |losses| {
        // By chance, a rank is uniformly distributed from 0 to 1.
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
    fn congestion_loss_when_queues_stand_is_found() {
        let cause = CongestionLoss.judge(&lossy()).unwrap();
        assert!(cause.confidence > 0.8 && cause.evidence.contains("0.2 %"), "{cause:?}");
    }

    #[test]
    fn congestion_loss_when_a_short_queue_is_full_is_found() {
        let mut evidence = lossy();
        evidence.path.as_mut().unwrap().rtt = 0.0605;
        assert_eq!(CongestionLoss.judge(&evidence), None);
        evidence.losses = Some(Losses { moments: 12.0, place: 0.76, by_chance: 12.0 });
        assert!(CongestionLoss.judge(&evidence).unwrap().confidence > 0.8);
        // Values that chance alone produces.
        evidence.losses = Some(Losses { moments: 8.0, place: 0.61, by_chance: 9.0 });
        assert_eq!(CongestionLoss.judge(&evidence), None);
        evidence.losses = Some(Losses { moments: 1000.0, place: 0.53, by_chance: 1050.0 });
        assert_eq!(CongestionLoss.judge(&evidence), None);
        evidence.losses = Some(Losses { moments: 10.0, place: 0.5, by_chance: 54.0 });
        assert!(CongestionLoss.judge(&evidence).unwrap().confidence > 0.8);
    }

    #[test]
    fn congestion_loss_when_path_is_full_or_queues_are_empty_is_none() {
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
