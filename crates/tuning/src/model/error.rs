//! Errors in parameters of the models.

use thiserror::Error;

/// A parameter that the models do not accept.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ParameterError {
    /// A number is zero, negative, not a number, infinite or absurd.
    #[error("{name} is {}{unit}: expected {} to {}{unit}", number(*value), number(*low), number(*high))]
    Outside {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The smallest accepted value.
        low: f64,
        /// The largest accepted value.
        high: f64,
        /// Its unit with a leading space, or empty.
        unit: &'static str,
    },
    /// A combination of parameters that is not possible.
    #[error("{0}")]
    Combination(String),
}

/// Formats very large and very small numbers with an exponent.
fn number(value: f64) -> String {
    if value == 0.0 || (1e-4..1e7).contains(&value.abs()) || !value.is_finite() {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// Returns `value` if it is in `low..=high` (NaN is not).
///
/// # Errors
/// The value is outside of that range.
pub fn within(
    name: &'static str,
    value: f64,
    (low, high): (f64, f64),
    unit: &'static str,
) -> Result<f64, ParameterError> {
    if (low..=high).contains(&value) {
        Ok(value)
    } else {
        Err(ParameterError::Outside { name, value, low, high, unit })
    }
}
