//! What is wrong with a parameter.

use thiserror::Error;

/// A parameter that the models cannot be asked about.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ParameterError {
    /// Zero, negative, not a number, infinite or absurd.
    #[error("{name} is {}{unit}: expected {} to {}{unit}", number(*value), number(*low), number(*high))]
    Outside {
        /// Which parameter.
        name: &'static str,
        /// What was given.
        value: f64,
        /// The smallest that is accepted.
        low: f64,
        /// The largest that is accepted.
        high: f64,
        /// With a leading space, or empty.
        unit: &'static str,
    },
    /// A combination that means nothing.
    #[error("{0}")]
    Combination(String),
}

/// Very large and very small numbers with an exponent.
fn number(value: f64) -> String {
    if value == 0.0 || (1e-4..1e7).contains(&value.abs()) || !value.is_finite() {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

/// `value` if it lies in `low..=high` (NaN does not).
pub(crate) fn within(
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
