//! Which congestion control new connections should use, where the site allows a choice.

use super::super::decision::CongestionControl;
use super::super::options::Fairness;

/// Loss from which on halving the window for each one costs more than a model of the path that does not: over
/// 50 ms with 0.1 and 1 % loss one CUBIC stream reached 15 and 3.5 of 200 Mbit/s, BBR 171 and 173.
const LOSSY: f64 = 5e-4;
/// On shorter paths loss is made up for at once.
const SHORT: f64 = 0.005;

/// The choice, `None` being the host's own. BBR takes more than its share from loss-based flows in shallow
/// queues: a polite transfer never uses it.
pub(super) fn choose(
    allowed: &[CongestionControl],
    now: Option<CongestionControl>,
    fairness: Fairness,
    loss: Option<f64>,
    rtt: f64,
) -> Option<CongestionControl> {
    use CongestionControl::{Bbr, Cubic, Reno};
    let has = |control| allowed.contains(&control).then_some(control);
    let loss_based = || has(Cubic).or(has(Reno));
    let bbr = has(Bbr).filter(|_| fairness != Fairness::Polite);
    // Once chosen it stays until the loss is clearly gone: its own packets are no proof.
    let limit = if now == Some(Bbr) { 0.1 * LOSSY } else { LOSSY };
    match loss {
        Some(loss) if loss >= limit && rtt >= SHORT => bbr.or_else(loss_based),
        None if now.is_some() => now,
        _ => loss_based(),
    }
}

#[cfg(test)]
mod tests {
    use super::CongestionControl::{Bbr, Cubic};
    use super::*;

    const SHARE: Fairness = Fairness::Share(0.95);

    #[test]
    fn loss_on_a_long_path_asks_for_bbr() {
        let all = [Cubic, Bbr];
        assert_eq!(choose(&all, None, SHARE, Some(1e-3), 0.05), Some(Bbr));
        assert_eq!(choose(&all, None, SHARE, Some(1e-3), 0.001), Some(Cubic));
        assert_eq!(choose(&all, None, SHARE, Some(1e-5), 0.05), Some(Cubic));
        assert_eq!(choose(&all, Some(Bbr), SHARE, Some(1e-4), 0.05), Some(Bbr));
        assert_eq!(choose(&all, Some(Bbr), SHARE, Some(1e-6), 0.05), Some(Cubic));
        assert_eq!(choose(&all, Some(Bbr), SHARE, None, 0.05), Some(Bbr));
    }

    #[test]
    fn only_what_is_allowed() {
        assert_eq!(choose(&[], None, SHARE, Some(0.1), 0.05), None);
        assert_eq!(choose(&[Cubic], None, SHARE, Some(0.1), 0.05), Some(Cubic));
        assert_eq!(choose(&[Bbr], None, SHARE, Some(0.0), 0.05), None);
        assert_eq!(choose(&[Cubic, Bbr], None, Fairness::Polite, Some(0.1), 0.05), Some(Cubic));
    }
}
