//! Access to the parameters of a vector, the object under "in".

use serde_json::{Map, Value};

use super::EvalError;

/// An object whose members are read by name and type.
pub(super) struct Input<'a>(&'a Map<String, Value>);

/// A value for an error message, shortened.
pub(super) fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { text.chars().take(60).chain(['…']).collect() }
}

pub(super) fn wrong(key: &str, value: &Value, expected: &'static str) -> EvalError {
    EvalError::Kind { key: key.to_owned(), value: short(value), expected }
}

/// A non-negative whole number, which may be written as 64.0.
pub(super) fn whole(key: &str, value: &Value) -> Result<u64, EvalError> {
    let float = || {
        let number = value.as_f64()?;
        (number >= 0.0 && number < 2f64.powi(53) && number.fract() == 0.0).then_some(number as u64)
    };
    value.as_u64().or_else(float).ok_or_else(|| wrong(key, value, "a whole number, not negative"))
}

impl<'a> Input<'a> {
    pub(super) fn new(value: &'a Value) -> Result<Self, EvalError> {
        value.as_object().map(Self).ok_or_else(|| wrong("in", value, "an object"))
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key)
    }

    pub(super) fn need(&self, key: &str) -> Result<&'a Value, EvalError> {
        self.get(key).ok_or_else(|| EvalError::Missing(key.to_owned()))
    }

    pub(super) fn number(&self, key: &str) -> Result<f64, EvalError> {
        let value = self.need(key)?;
        value.as_f64().ok_or_else(|| wrong(key, value, "a number"))
    }

    pub(super) fn whole(&self, key: &str) -> Result<u64, EvalError> {
        whole(key, self.need(key)?)
    }

    /// A whole number that is usable as a number of connections in a search.
    pub(super) fn count(&self, key: &str) -> Result<u32, EvalError> {
        let value = self.need(key)?;
        let number = u32::try_from(whole(key, value)?).ok().filter(|number| (1..=100_000).contains(number));
        number.ok_or_else(|| wrong(key, value, "a number from 1 to 100000"))
    }

    pub(super) fn text(&self, key: &str) -> Result<&'a str, EvalError> {
        let value = self.need(key)?;
        value.as_str().ok_or_else(|| wrong(key, value, "a text"))
    }

    pub(super) fn list(&self, key: &str) -> Result<&'a [Value], EvalError> {
        let value = self.need(key)?;
        value.as_array().map(Vec::as_slice).ok_or_else(|| wrong(key, value, "a list"))
    }
}
