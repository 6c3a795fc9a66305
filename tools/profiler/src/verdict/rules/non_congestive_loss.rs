//! Losses although queues are empty: a dirty fibre, a bad connector, a policer, a firewall, a
//! wireless hop.
//!
//! The signs are retransmitted segments (by the scale of `congestion_loss`) with hardly any queue
//! (a round trip less than 10 to 25 % above the shortest), and not only when the round trip is long
//! (`congestion_loss`), while the congestion window limits half of the time and the rate is below
//! the capacity, if that is known.
//!
//! The rate should be what such losses allow: within a factor of 3 of the larger of Reno's
//! sqrt(3/2)·MSS/(RTT·sqrt(p)) (Mathis et al. 1997) and CUBIC's average window (RFC 9438 with C =
//! 0.4 and beta = 0.7: 1.054·(RTT/p)^(3/4) segments). Beyond a factor of 3 in either direction the
//! confidence is halved; so it is for BBR, which does not slow down for losses.

use super::congestion_loss::{queued, weight};
use super::path_capacity::FULL;
use crate::verdict::figures::ramp;
use crate::verdict::text::{link, percent, time};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct NonCongestiveLoss;

impl Rule for NonCongestiveLoss {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        let path = evidence.path.as_ref()?;
        let (loss, rtt) = (path.loss.filter(|&loss| loss > 0.0)?, evidence.rtt?);
        let below = evidence
            .capacity()
            .map_or(0.9, |capacity| 1.0 - ramp(evidence.rate / capacity, FULL - 0.1, FULL));
        let allowed = allowed(path.mss, rtt, loss) * evidence.streams;
        let explains = (1.0 / 3.0..=3.0).contains(&(evidence.rate / allowed));
        let bbr = path.congestion.iter().any(|name| name.starts_with("bbr"));
        let confidence = 0.95
            * weight(path)?
            * (1.0 - ramp(evidence.inflation()?, 1.1, 1.25))
            * (1.0 - queued(evidence)?)
            * ramp(path.congestion_limited(), 0.3, 0.7)
            * below
            * if explains && !bbr { 1.0 } else { 0.5 };
        (confidence > 0.0).then(|| Cause {
            kind: CauseKind::NonCongestiveLoss,
            host: None,
            confidence,
            evidence: format!(
                "{} of segments were sent again though packets waited only {} in queues; such losses allow about {} at {}",
                percent(loss),
                time(evidence.queueing().unwrap_or(0.0)),
                link(allowed),
                time(rtt)
            ),
            advice: "find the bad hop (error counters of interfaces, optical levels, policers); until then more streams, or \
                     BBR, which does not take each loss for congestion"
                .into(),
        })
    }
}

/// Bytes per second that one connection gets with this loss.
fn allowed(mss: f64, rtt: f64, loss: f64) -> f64 {
    let reno = (1.5 / loss).sqrt();
    let cubic = 1.054 * (rtt / loss).powf(0.75);
    reno.max(cubic) * mss / rtt
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verdict::rules::samples::quiet;

    fn lossy() -> Evidence {
        let mut evidence = quiet();
        evidence.path.as_mut().unwrap().loss = Some(0.001);
        evidence.rate = 1e6;
        evidence
    }

    #[test]
    fn non_congestive_loss_when_queues_are_empty_is_found() {
        let cause = NonCongestiveLoss.judge(&lossy()).unwrap();
        assert!(cause.confidence > 0.8 && cause.evidence.contains("0.1 %"), "{cause:?}");
    }

    #[test]
    fn allowed_matches_known_windows() {
        // RTT 0.1 s, p = 10^-5: 1.054 * (10^4)^(3/4) for CUBIC; Reno's sqrt(1.5 * 10^5) = 387 is
        // less.
        let window = allowed(1.0, 0.1, 1e-5) * 0.1;
        assert!((window / 1054.0 - 1.0).abs() < 0.01, "{window}");
        // At 1 % and 10 ms Reno's sqrt(150) = 12.2 is more than CUBIC's 1.05.
        let window = allowed(1.0, 0.01, 0.01) * 0.01;
        assert!((window / 12.25 - 1.0).abs() < 0.01, "{window}");
    }

    #[test]
    fn non_congestive_loss_when_other_causes_fit_is_none_or_weak() {
        let mut queues = lossy();
        queues.path.as_mut().unwrap().rtt = 0.09;
        assert_eq!(NonCongestiveLoss.judge(&queues), None);
        let mut full = lossy();
        full.baselines.path = Some(1.05e6);
        assert_eq!(NonCongestiveLoss.judge(&full), None);
        // The same losses slowed down the measurement of the baseline.
        (full.baselines.path_streams, full.baselines.path_retransmitted) = (Some(1), Some(40));
        assert!(NonCongestiveLoss.judge(&full).is_some());
        full.baselines = crate::profile::Baselines { path: Some(5e5), ..Default::default() };
        assert!(NonCongestiveLoss.judge(&full).is_some());
        let mut bbr = lossy();
        bbr.path.as_mut().unwrap().congestion = vec!["bbr".into()];
        assert!(NonCongestiveLoss.judge(&bbr).unwrap().confidence < 0.5);
        assert_eq!(NonCongestiveLoss.judge(&quiet()), None);
        assert_eq!(NonCongestiveLoss.judge(&Evidence::default()), None);
    }
}
