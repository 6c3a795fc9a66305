//! Window and loss of one connection in equilibrium: Ito, Ohsaki and Imase, Eqs (2) to (7), and
//! their continuation below the limit of three packets.

use super::error::{ParameterError, within};

/// The mean window, in packets, at which the paper's timeout probability 3/w reaches one. Smaller
/// windows are extrapolated.
pub const VALID_WINDOW: f64 = 3.0;

/// The loss at [`VALID_WINDOW`]. Larger losses are extrapolated.
pub const VALID_LOSS: f64 = 0.1;

/// Below this window every packet is lost: the end of the extrapolation.
const LEAST_WINDOW: f64 = 0.75;

/// Fraction of losses that are detected by a timeout, Eq (3): min(1, 3/w).
pub fn timeout_probability(window: f64) -> f64 {
    if window <= VALID_WINDOW { 1.0 } else { 3.0 / window }
}

/// Loss probability at which the mean window is `window` packets, Eq (7). Below three packets every
/// loss is assumed to be a timeout, which continues the function down to loss 1 at 3/4 of a packet;
/// (7) itself has a pole at 0.79 packets.
pub fn loss_of_window(window: f64) -> f64 {
    if window <= LEAST_WINDOW {
        1.0
    } else if window < VALID_WINDOW {
        1.0 / (1.0 - window + 4.0 * window * window / 3.0)
    } else {
        1.0 / (2.0 * window * window / 3.0 + 2.0 * window - 2.0)
    }
}

/// Mean window in packets of a connection that loses a fraction `loss` of its packets, Eq (4): the
/// inverse of [`loss_of_window`].
///
/// # Errors
/// `loss` is not in (0, 1].
pub fn window_of_loss(loss: f64) -> Result<f64, ParameterError> {
    let loss = within("loss", loss, (1e-18, 1.0), "")?;
    Ok(if loss <= VALID_LOSS {
        ((6.0 + 21.0 * loss) / loss).sqrt() / 2.0 - 1.5
    } else {
        (3.0 + (48.0 / loss - 39.0).sqrt()) / 8.0
    })
}

/// The delivered part of `window` in equilibrium: x(1-p(x)).
pub(crate) fn delivered(window: f64) -> f64 {
    window * (1.0 - loss_of_window(window))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn window_of_loss_is_inverse_and_continuous() {
        let mut window = 0.76;
        while window < 1e6 {
            let back = window_of_loss(loss_of_window(window)).unwrap();
            assert!((back / window - 1.0).abs() < 1e-9, "{window} {back}");
            window *= 1.01;
        }
        assert!((loss_of_window(3.0 - 1e-12) - 0.1).abs() < 1e-9);
        assert_eq!(loss_of_window(0.75), 1.0);
        assert!((window_of_loss(1.0).unwrap() - 0.75).abs() < 1e-12);
    }

    #[test]
    fn window_of_loss_outside_zero_to_one_fails() {
        for loss in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(window_of_loss(loss).is_err(), "{loss}");
        }
    }

    /// The equilibrium of Eq (1): growth and decrease of the window are equal.
    #[test]
    fn loss_of_window_solves_the_differential_equation() {
        for window in [0.8, 1.5, 3.0, 7.4, 43.7, 5000.0] {
            let (p, timeout) = (loss_of_window(window), timeout_probability(window));
            let gain = (1.0 - p) / window;
            let fall = p * (2.0 / 3.0 * window * (1.0 - timeout) + (4.0 / 3.0 * window - 1.0) * timeout);
            assert!((gain / fall - 1.0).abs() < 1e-9, "{window}");
        }
    }
}
