//! Chooses the congestion control of new connections if the site permits a choice.

use super::super::decision::CongestionControl;
use super::super::options::Fairness;

/// From this loss on, halving the window for each loss costs more than a congestion control that
/// models the path: over 50 ms with losses of 0.1 and 1 %, one CUBIC stream reached 15 and 3.5 of
/// 200 Mbit/s, BBR 171 and 173.
const LOSSY: f64 = 5e-4;
/// On paths shorter than this, in seconds, the window recovers from a loss immediately.
const SHORT: f64 = 0.005;

/// Returns the choice, or `None` for the host's default. In shallow queues BBR takes more than its
/// share from loss-based flows: a polite transfer never uses it.
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
    // Once chosen, BBR is kept until the loss is clearly gone, because low loss of BBR itself
    // proves nothing.
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
    fn choose_with_loss_on_long_path_returns_bbr() {
        let all = [Cubic, Bbr];
        assert_eq!(choose(&all, None, SHARE, Some(1e-3), 0.05), Some(Bbr));
        assert_eq!(choose(&all, None, SHARE, Some(1e-3), 0.001), Some(Cubic));
        assert_eq!(choose(&all, None, SHARE, Some(1e-5), 0.05), Some(Cubic));
        assert_eq!(choose(&all, Some(Bbr), SHARE, Some(1e-4), 0.05), Some(Bbr));
        assert_eq!(choose(&all, Some(Bbr), SHARE, Some(1e-6), 0.05), Some(Cubic));
        assert_eq!(choose(&all, Some(Bbr), SHARE, None, 0.05), Some(Bbr));
    }

    #[test]
    fn choose_returns_only_allowed_control() {
        assert_eq!(choose(&[], None, SHARE, Some(0.1), 0.05), None);
        assert_eq!(choose(&[Cubic], None, SHARE, Some(0.1), 0.05), Some(Cubic));
        assert_eq!(choose(&[Bbr], None, SHARE, Some(0.0), 0.05), None);
        assert_eq!(choose(&[Cubic, Bbr], None, Fairness::Polite, Some(0.1), 0.05), Some(Cubic));
    }
}
