//! The best number of connections, and the best window.

use super::error::{ParameterError, within};
use super::goodput::{Steady, goodput_of};
use super::path::{MAX_STREAMS, Path, check_streams};
use super::window::{delivered, loss_of_window};

/// From this window on, x* is at least 3 and solves the cubic.
const CUBIC_WINDOW: f64 = 2.7;

/// The window x* = BR/N* of each connection at the best number of connections, if windows are at
/// most `window` packets: the solution of x(1-p(x)) = W above W. For W >= 2.7 it is the largest
/// root of 2x³ + (6-2W)x² - (9+6W)x + 6W = 0; below, the model is extrapolated.
///
/// `window` must be positive and finite.
pub fn x_star(window: f64) -> f64 {
    if window < CUBIC_WINDOW {
        return x_star_below(window);
    }
    // One of the other roots is negative, the other between 0 and W.
    let (b, c, d) = (3.0 - window, -(9.0 + 6.0 * window) / 2.0, 3.0 * window);
    let p = c - b * b / 3.0;
    let q = 2.0 * b * b * b / 27.0 - b * c / 3.0 + d;
    let cosine = (3.0 * q / (2.0 * p) * (-3.0 / p).sqrt()).clamp(-1.0, 1.0);
    let mut x = 2.0 * (-p / 3.0).sqrt() * (cosine.acos() / 3.0).cos() - b / 3.0;
    // Near 1 the arc cosine has only half the digits, so refine the root with Newton's method. To
    // the right of the root the cubic is convex.
    for _ in 0..3 {
        let value = ((x + b) * x + c) * x + d;
        let slope = (3.0 * x + 2.0 * b) * x + c;
        x -= value / slope;
    }
    x.max(window)
}

/// Bisection for windows with which the model is extrapolated: x(1-p(x)) grows from 0 at 3/4 to 2.7
/// at 3.
fn x_star_below(window: f64) -> f64 {
    let (mut low, mut high) = (0.75, 3.0);
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if delivered(middle) < window {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

/// The first terms of x* for large windows: W + 3/2W - 9/2W² + 63/4W³, within 2.5e-4 from 10.9
/// packets on.
pub fn x_star_series(window: f64) -> f64 {
    window + 1.5 / window - 4.5 / (window * window) + 15.75 / (window * window * window)
}

/// Why a number of streams is the best one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The bandwidth-delay product fits into one window.
    OneIsEnough,
    /// This number of windows fills the link; more only increase the loss.
    FillsTheLink,
    /// This number of streams fills the link, each with the window that background loss permits.
    FillsTheLinkDespiteLoss,
    /// More streams would be better, but the limit was reached.
    Limit,
}

/// The best number of streams for a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimum {
    /// The window at the optimum, packets: x* of the delivered part of each window, which
    /// background loss limits or reduces.
    pub x_star: f64,
    /// BR/x*: the best number if it could be fractional.
    pub streams_real: f64,
    /// The best whole number; of two equally good ones the smaller.
    pub streams: u64,
    /// The smallest number that reaches 99 % of the best goodput.
    pub streams_99_percent: u64,
    /// Steady state with [`streams`](Self::streams).
    pub steady: Steady,
    /// Goodput at [`streams_real`](Self::streams_real), packets/ms.
    pub goodput_sup: f64,
    /// Why this number is the best.
    pub reason: Reason,
}

/// Finds the number of streams up to `max_streams` that maximizes Eq (12).
///
/// # Errors
/// `max_streams` is 0 or above [`MAX_STREAMS`].
pub fn optimum(path: &Path, max_streams: u64) -> Result<Optimum, ParameterError> {
    check_streams(max_streams)?;
    let by_loss = path.loss_limited_window();
    // The intersection of both branches of Eq (12). Background loss reduces the first one.
    let x_star = x_star(path.window().min(by_loss) * (1.0 - path.background_loss()));
    let streams_real = path.bandwidth_delay_product() / x_star;
    // The cast turns a float beyond the limit into the limit.
    let floor = (streams_real.floor() as u64).clamp(1, max_streams);
    let ceil = (streams_real.ceil() as u64).clamp(1, max_streams);
    let (lower, upper) = (goodput_of(path, floor as f64), goodput_of(path, ceil as f64));
    let (streams, steady) = if upper.goodput > lower.goodput { (ceil, upper) } else { (floor, lower) };
    let reason = if streams_real > max_streams as f64 {
        Reason::Limit
    } else if streams == 1 {
        Reason::OneIsEnough
    } else if by_loss < path.window() {
        Reason::FillsTheLinkDespiteLoss
    } else {
        Reason::FillsTheLink
    };
    Ok(Optimum {
        x_star,
        streams_real,
        streams,
        streams_99_percent: least_for(path, 0.99 * steady.goodput, streams),
        steady,
        goodput_sup: goodput_of(path, streams_real).goodput,
        reason,
    })
}

/// The smallest number of streams up to `most` that reaches `wanted`; goodput grows with the number
/// up to there.
fn least_for(path: &Path, wanted: f64, most: u64) -> u64 {
    // Accept a number that misses the target only because of rounding.
    let wanted = wanted * (1.0 - 1e-12);
    let (mut low, mut high) = (1, most);
    while low < high {
        let middle = low + (high - low) / 2;
        if goodput_of(path, middle as f64).goodput >= wanted {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// The real number of streams if a fraction `background_loss` of packets is lost without
/// congestion, by the rule BR / min(x*, w(p)). It does not consider that the loss reduces windows
/// that buffers limit; [`optimum`] does.
///
/// # Errors
/// `background_loss` is not in [0, 1).
pub fn streams_with_loss(path: &Path, background_loss: f64) -> Result<f64, ParameterError> {
    let path = path.with_background_loss(background_loss)?;
    Ok(path.bandwidth_delay_product() / x_star(path.window()).min(path.loss_limited_window()))
}

/// The smallest window, in packets, with which `streams` connections fill the path; a larger window
/// changes nothing: W* = x(1-p(x)), x = BR/N. The path's own window is ignored.
///
/// # Errors
/// `streams` is 0 or above [`MAX_STREAMS`].
pub fn window_needed(path: &Path, streams: u64) -> Result<f64, ParameterError> {
    Ok(delivered(path.bandwidth_delay_product() / check_streams(streams)?))
}

/// The limits of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest window of one connection that the systems allow, packets.
    pub window: f64,
    /// Buffer memory for all connections together, packets.
    pub memory: Option<f64>,
    /// Maximum number of connections.
    pub streams: u64,
}

/// The best combination of streams and window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Joint {
    /// Number of connections.
    pub streams: u64,
    /// Window of each, packets.
    pub window: f64,
    /// Steady state with this combination.
    pub steady: Steady,
    /// Whether the memory determined the window.
    pub memory_binds: bool,
}

/// Chooses window and streams together: the window as large as the bandwidth-delay product and the
/// limits permit, then the best number of streams for it. If the window may reach the
/// bandwidth-delay product, the result is one stream: in this model parallel streams help only
/// because windows are limited. The path's own window is ignored.
///
/// # Errors
/// A limit is not positive, not finite or absurd.
pub fn joint(path: &Path, limits: &Limits) -> Result<Joint, ParameterError> {
    let largest = within("largest window", limits.window, super::path::WINDOWS, " packets")?;
    let window = path.bandwidth_delay_product().clamp(super::path::WINDOWS.0, largest);
    let best = |window: f64| -> Result<(u64, f64, Steady), ParameterError> {
        let found = optimum(&path.with_window(window)?, limits.streams)?;
        Ok((found.streams, window, found.steady))
    };
    let (streams, window, steady) = best(window)?;
    let memory = match limits.memory {
        Some(memory) => within("memory", memory, super::path::WINDOWS, " packets")?,
        None => f64::INFINITY,
    };
    if streams as f64 * window <= memory {
        return Ok(Joint { streams, window, steady, memory_binds: false });
    }
    let least = super::path::WINDOWS.0;
    let share = |streams: u64| (memory / streams as f64).max(least).min(window);
    let narrow = path.with_window(share(streams))?;
    let mut found = Joint {
        streams,
        window: narrow.window(),
        steady: goodput_of(&narrow, streams as f64),
        memory_binds: true,
    };
    let (again, _, _) = best(narrow.window())?;
    let narrower = path.with_window(share(again))?;
    let steady = goodput_of(&narrower, again as f64);
    if steady.goodput > found.steady.goodput * (1.0 + 1e-12) {
        found = Joint { streams: again, window: narrower.window(), steady, memory_binds: true };
    }
    Ok(found)
}

/// Eq (13) of Ito, Ohsaki and Imase **as printed, which is wrong**; it is here only for the record.
///
/// It is an exact root of W/R = B(1-p(N)): the factor N of the left side was lost, and the sign
/// before the root selects the spurious one of the two solutions. For BR > W, where streams matter,
/// it is always negative (B = 8.3 packets/ms, R = 100 ms, W = 64 KiB: -201.7, the optimum is 19).
/// For 7W/9 < BR < W it is not real (`None`), at BR = 2W/3 it has a pole (`None`), and below that
/// it is at least 14 times too large. The correct intersection is a cubic: [`x_star`].
pub fn printed_eq13(path: &Path) -> Option<f64> {
    let (br, w) = (path.bandwidth_delay_product(), path.window());
    let radicand = 9.0 * br * br - 16.0 * br * w + 7.0 * w * w;
    let value = (3.0 * br - 3.0 * w - 3f64.sqrt() * radicand.sqrt()) * br / (9.0 * br - 6.0 * w);
    value.is_finite().then_some(value)
}

/// Loss at a full link, Eq (7): p(BR/N), and BR/N.
///
/// # Errors
/// A number is outside its limits.
pub fn saturated_loss(bandwidth: f64, rtt_ms: f64, streams: u64) -> Result<(f64, f64), ParameterError> {
    let path = Path::new(bandwidth, rtt_ms, 1.0)?;
    let share = path.bandwidth_delay_product() / check_streams(streams)?;
    Ok((loss_of_window(share), share))
}

const _: () = assert!(MAX_STREAMS < 1 << 53);

#[cfg(test)]
#[path = "optimum_tests.rs"]
mod tests;
