//! Goodput and loss of N connections in steady state.

use super::error::ParameterError;
use super::optimum::x_star;
use super::path::{Path, check_streams};
use super::window::{VALID_WINDOW, loss_of_window};

/// What holds the connections back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// The socket buffers: the link is not full.
    Window,
    /// Loss that is not congestion: the link is not full.
    Loss,
    /// The link is full.
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

/// Steady state of some number of connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Packets a millisecond that arrive, all connections together.
    pub goodput: f64,
    /// Share of packets that are lost.
    pub loss: f64,
    /// What holds them back.
    pub regime: Regime,
    /// BR/N, packets: the mean window of each connection when the link is full.
    pub share: f64,
    /// The window of a connection is at least three packets, up to which the timeout probability of Eq (3) is below one: that of
    /// a full link, [`share`](Self::share), and the one that background loss leaves where that is the limit. And a buffer that
    /// is the limit holds a packet. Else the numbers are extrapolated.
    pub valid: bool,
}

/// Eq (12): min(NW/R, B(1-p(BR/N))), loss 0 in the first branch and Eq (7) in the second. Background loss, which the
/// paper leaves out, limits the window of the first branch and thins what it delivers.
///
/// The plateau counts the link as *sending* B, so that it sinks with N; a real link delivers B: see [`physical`].
///
/// # Errors
/// When `streams` is 0 or above [`super::MAX_STREAMS`].
pub fn goodput(path: &Path, streams: u64) -> Result<Steady, ParameterError> {
    Ok(goodput_of(path, check_streams(streams)?))
}

/// The same for any positive number of streams, whole or not.
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

/// The variant that keeps the books of a real link: it *delivers* B, so that N w(p)(1-p)/R = B when it is full. The same
/// knee as [`goodput`], no decline beyond, and loss at many connections nearer to packet simulation. The better
/// prediction.
///
/// # Errors
/// When `streams` is 0 or above [`super::MAX_STREAMS`].
pub fn physical(path: &Path, streams: u64) -> Result<Steady, ParameterError> {
    let streams = check_streams(streams)?;
    let share = path.bandwidth_delay_product() / streams;
    let valid = share >= VALID_WINDOW;
    let (limited, background, regime) = limited(path, streams);
    if limited <= path.bandwidth() {
        let valid = valid && is_valid(path, regime);
        return Ok(Steady { goodput: limited, loss: background, regime, share, valid });
    }
    // w(1-p(w)) = BR/N is what x* solves.
    let loss = loss_of_window(x_star(share)).max(background);
    Ok(Steady { goodput: path.bandwidth(), loss, regime: Regime::Network, share, valid })
}

/// Whether what is the limit instead of the link leaves windows that the model was made for.
fn is_valid(path: &Path, regime: Regime) -> bool {
    match regime {
        Regime::Loss => path.loss_limited_window() >= VALID_WINDOW,
        Regime::Window => path.window() >= 1.0,
        Regime::Network => true,
    }
}

/// Goodput and loss while the link is not full, and why it is not.
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
    fn statements_of_the_paper() {
        let share = |rtt: f64| goodput(&path(rtt), 50).unwrap().goodput / 8.3;
        assert!((share(10.0) - 0.668).abs() < 5e-4);
        assert!((share(20.0) - 0.917).abs() < 5e-4);
        assert!((share(100.0) - 0.995).abs() < 5e-4);
        let faster = Path::new(16.6, 10.0, 65536.0 / 1500.0).unwrap();
        assert!((goodput(&faster, 50).unwrap().goodput / 16.6 - 0.917).abs() < 5e-4);
    }

    /// The paper decides by W < BR/N, its Eq (12) by the smaller branch; between them lies a sliver.
    #[test]
    fn the_smaller_branch_decides() {
        let (bandwidth, rtt, window) = (8.3, 100.0, 43.7);
        let streams = bandwidth * rtt * (1.0 - 0.5 * loss_of_window(window)) / window;
        let path = Path::new(bandwidth, rtt, window).unwrap();
        assert_eq!(goodput_of(&path, streams).regime, Regime::Network);
        assert!(window < bandwidth * rtt / streams);
    }

    #[test]
    fn beyond_every_window_nothing_arrives() {
        let steady = goodput(&path(10.0), 10_000).unwrap();
        assert_eq!((steady.goodput, steady.loss, steady.valid), (0.0, 1.0, false));
        let steady = physical(&path(10.0), 10_000).unwrap();
        assert!(steady.goodput == 8.3 && steady.loss < 1.0 && !steady.valid);
    }

    #[test]
    fn background_loss_limits_the_window() {
        let lossy = path(100.0).with_background_loss(0.01).unwrap();
        let steady = goodput(&lossy, 10).unwrap();
        assert_eq!((steady.regime, steady.loss), (Regime::Loss, 0.01));
        assert!((steady.goodput - 10.0 * 10.9599357944 / 100.0 * 0.99).abs() < 1e-9);
        assert_eq!(goodput(&lossy, 100).unwrap().regime, Regime::Network);
    }

    #[test]
    fn windows_that_the_model_was_not_made_for_are_flagged() {
        // A fifth lost leaves two packets.
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
    fn numbers_of_streams_have_limits() {
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
