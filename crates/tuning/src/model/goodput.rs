//! Goodput and loss of N connections in steady state.

use super::error::ParameterError;
use super::optimum::x_star;
use super::path::{Path, check_streams};
use super::window::{VALID_WINDOW, loss_of_window};

/// The limit of the goodput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// The socket buffers; the link is not full.
    Window,
    /// Loss that is not caused by congestion; the link is not full.
    Loss,
    /// The link, which is full.
    Network,
}

impl Regime {
    /// `window`, `loss` or `network`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Window => "window",
            Self::Loss => "loss",
            Self::Network => "network",
        }
    }
}

/// Steady state of a number of connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Total goodput, packets per millisecond.
    pub goodput: f64,
    /// Fraction of packets that are lost.
    pub loss: f64,
    /// The limit of the goodput.
    pub regime: Regime,
    /// BR/N, packets: the mean window of each connection if the link is full.
    pub share: f64,
    /// Whether the model is valid; otherwise the numbers are extrapolated. The window of a
    /// connection must be at least three packets, because below that the timeout probability of Eq
    /// (3) would exceed one. This applies to the window at a full link, [`share`](Self::share), and
    /// to the window that background loss permits if that is the limit. If the buffer is the limit,
    /// it must hold at least one packet.
    pub valid: bool,
}

/// Eq (12): min(NW/R, B(1-p(BR/N))), with loss 0 in the first branch and that of Eq (7) in the
/// second. Background loss, which is not in the paper, limits the window of the first branch and
/// reduces its goodput.
///
/// On the plateau the link *sends* B, so that the goodput decreases with N. A real link delivers B:
/// see [`physical`].
///
/// # Errors
/// `streams` is 0 or above [`super::MAX_STREAMS`].
pub fn goodput(path: &Path, streams: u64) -> Result<Steady, ParameterError> {
    Ok(goodput_of(path, check_streams(streams)?))
}

/// As [`goodput`], for any positive number of streams, whole or not.
pub(crate) fn goodput_of(path: &Path, streams: f64) -> Steady {
    let share = path.bandwidth_delay_product() / streams;
    let loss = loss_of_window(share);
    let (limited, background, regime) = limited(path, streams);
    let full = path.bandwidth() * (1.0 - loss);
    let valid = share >= VALID_WINDOW;
    if limited <= full {
        let valid = valid && is_valid(path, regime);
        Steady { goodput: limited, loss: background, regime, share, valid }
    } else {
        Steady { goodput: full, loss, regime: Regime::Network, share, valid }
    }
}

/// A variant that models a real link, which *delivers* B, so that N w(p)(1-p)/R = B if it is full.
/// It has the same knee as [`goodput`] and no decline beyond it, and with many connections its loss
/// is closer to packet simulation. It predicts better.
///
/// # Errors
/// `streams` is 0 or above [`super::MAX_STREAMS`].
pub fn physical(path: &Path, streams: u64) -> Result<Steady, ParameterError> {
    let streams = check_streams(streams)?;
    let share = path.bandwidth_delay_product() / streams;
    let valid = share >= VALID_WINDOW;
    let (limited, background, regime) = limited(path, streams);
    if limited <= path.bandwidth() {
        let valid = valid && is_valid(path, regime);
        return Ok(Steady { goodput: limited, loss: background, regime, share, valid });
    }
    // x* is the solution of w(1-p(w)) = BR/N.
    let loss = loss_of_window(x_star(share)).max(background);
    Ok(Steady { goodput: path.bandwidth(), loss, regime: Regime::Network, share, valid })
}

/// Whether the limit, if it is not the link, leaves windows for which the model is valid.
fn is_valid(path: &Path, regime: Regime) -> bool {
    match regime {
        Regime::Loss => path.loss_limited_window() >= VALID_WINDOW,
        Regime::Window => path.window() >= 1.0,
        Regime::Network => true,
    }
}

/// Goodput and loss while the link is not full, and the limit.
fn limited(path: &Path, streams: f64) -> (f64, f64, Regime) {
    let by_loss = path.loss_limited_window();
    let (window, regime) =
        if by_loss < path.window() { (by_loss, Regime::Loss) } else { (path.window(), Regime::Window) };
    let background = path.background_loss();
    (streams * window / path.rtt_ms() * (1.0 - background), background, regime)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn path(rtt_ms: f64) -> Path {
        Path::new(8.3, rtt_ms, 65536.0 / 1500.0).unwrap()
    }

    #[test]
    fn goodput_matches_statements_of_the_paper() {
        let share = |rtt: f64| goodput(&path(rtt), 50).unwrap().goodput / 8.3;
        assert!((share(10.0) - 0.668).abs() < 5e-4);
        assert!((share(20.0) - 0.917).abs() < 5e-4);
        assert!((share(100.0) - 0.995).abs() < 5e-4);
        let faster = Path::new(16.6, 10.0, 65536.0 / 1500.0).unwrap();
        assert!((goodput(&faster, 50).unwrap().goodput / 16.6 - 0.917).abs() < 5e-4);
    }

    /// The paper uses the condition W < BR/N, but its Eq (12) uses the smaller branch; there is a
    /// narrow range in which they differ.
    #[test]
    fn goodput_between_conditions_uses_smaller_branch() {
        let (bandwidth, rtt, window) = (8.3, 100.0, 43.7);
        let streams = bandwidth * rtt * (1.0 - 0.5 * loss_of_window(window)) / window;
        let path = Path::new(bandwidth, rtt, window).unwrap();
        assert_eq!(goodput_of(&path, streams).regime, Regime::Network);
        assert!(window < bandwidth * rtt / streams);
    }

    #[test]
    fn goodput_with_tiny_share_is_zero() {
        let steady = goodput(&path(10.0), 10_000).unwrap();
        assert_eq!((steady.goodput, steady.loss, steady.valid), (0.0, 1.0, false));
        let steady = physical(&path(10.0), 10_000).unwrap();
        assert!(steady.goodput == 8.3 && steady.loss < 1.0 && !steady.valid);
    }

    #[test]
    fn goodput_with_background_loss_is_limited_by_it() {
        let lossy = path(100.0).with_background_loss(0.01).unwrap();
        let steady = goodput(&lossy, 10).unwrap();
        assert_eq!((steady.regime, steady.loss), (Regime::Loss, 0.01));
        assert!((steady.goodput - 10.0 * 10.9599357944 / 100.0 * 0.99).abs() < 1e-9);
        assert_eq!(goodput(&lossy, 100).unwrap().regime, Regime::Network);
    }

    #[test]
    fn goodput_with_small_window_is_not_valid() {
        // With a loss of one fifth, the window is two packets.
        for (loss, valid) in [(0.01, true), (0.2, false), (0.9, false)] {
            let lossy = Path::new(83.0, 100.0, 1000.0).unwrap().with_background_loss(loss).unwrap();
            assert_eq!(
                (goodput(&lossy, 2).unwrap().valid, physical(&lossy, 2).unwrap().valid),
                (valid, valid)
            );
        }
        for (window, valid) in [(2.0, true), (0.5, false)] {
            let tiny = Path::new(83.0, 100.0, window).unwrap();
            assert_eq!(goodput(&tiny, 2).unwrap().valid, valid, "{window}");
        }
    }

    #[test]
    fn goodput_of_unusable_stream_count_fails() {
        for streams in [0, super::super::MAX_STREAMS + 1, u64::MAX] {
            let error = goodput(&path(10.0), streams).unwrap_err().to_string();
            assert!(
                error.starts_with("number of streams is ") && error.ends_with("expected 1 to 1e7"),
                "{error}"
            );
            assert!(physical(&path(10.0), streams).is_err());
        }
    }
}
