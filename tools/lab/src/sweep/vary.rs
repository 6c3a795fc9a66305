//! Parameters and their values.

use std::str::FromStr;

use super::SweepError;
use crate::scenario::Value;

/// A parameter and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Vary {
    /// A variable (`streams`), or a field of the scenario (`links[0].path.both.queue`).
    pub name: String,
    /// The values in the order of the trials.
    pub values: Vec<Value>,
}

/// Upper limit of the number of values; such a sweep would take too long.
const MOST: usize = 10_000;

impl FromStr for Vary {
    type Err = SweepError;

    /// Parses `streams=1,2,4`, `streams=1..50`, `streams=1..50/7`, `streams=1..64*2`, or a list of
    /// such parts with commas.
    fn from_str(given: &str) -> Result<Self, SweepError> {
        let wrong = || SweepError::Vary { given: given.to_owned() };
        let (name, list) = given.split_once('=').ok_or_else(wrong)?;
        let mut values = Vec::new();
        for part in list.split(',').map(str::trim) {
            match part.split_once("..") {
                Some((first, rest)) => values.extend(range(first, rest).ok_or_else(wrong)?),
                None if part.is_empty() => return Err(wrong()),
                None => values.push(value(part)),
            }
        }
        if name.trim().is_empty() || values.len() > MOST {
            return Err(wrong());
        }
        let mut distinct: Vec<Value> = Vec::new();
        values.into_iter().for_each(|value| {
            if !distinct.contains(&value) {
                distinct.push(value);
            }
        });
        Ok(Self { name: name.trim().to_owned(), values: distinct })
    }
}

fn range(first: &str, rest: &str) -> Option<Vec<Value>> {
    let (last, step, factor) = match (rest.split_once('/'), rest.split_once('*')) {
        (Some((last, step)), _) => (last, step.parse().ok()?, 1),
        (None, Some((last, factor))) => (last, 0, factor.parse().ok()?),
        (None, None) => (rest, 1, 1),
    };
    let (first, last): (i64, i64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let grows = if factor > 1 { first > 0 } else { step > 0 };
    if !grows || first > last {
        return None;
    }
    let next = |value: &i64| value.checked_mul(factor)?.checked_add(step).filter(|next| *next <= last);
    Some(std::iter::successors(Some(first), next).take(MOST + 1).map(Value::Integer).collect())
}

/// The type of a value without quotes: true or false, a whole number, a number, or else text.
fn value(text: &str) -> Value {
    if let Ok(value) = text.parse() {
        return Value::Bool(value);
    }
    if let Ok(value) = text.parse() {
        return Value::Integer(value);
    }
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Value::Float(value),
        _ => Value::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn values(given: &str) -> String {
        let vary: Vary = given.parse().unwrap();
        vary.values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn vary_with_lists_and_ranges_has_all_values() {
        assert_eq!(values("streams=1,2,4"), "1 2 4");
        assert_eq!(values("streams=1..5"), "1 2 3 4 5");
        assert_eq!(values("streams=1..50/7"), "1 8 15 22 29 36 43 50");
        assert_eq!(values("streams=1..64*2"), "1 2 4 8 16 32 64");
        assert_eq!(values("streams=1..3,3,10,20..30/10"), "1 2 3 10 20 30");
        assert_eq!(values("buffer=64 KiB, 1M,auto"), "64 KiB 1M auto");
        assert_eq!(values("links[0].path.both.loss=0.001,0.1%"), "0.001 0.1%");
    }

    #[test]
    fn vary_with_invalid_text_is_an_error() {
        for given in [
            "streams",
            "=1",
            "streams=",
            "x=1,,2",
            "x=5..1",
            "x=0..4*2",
            "x=1..5/0",
            "x=a..b",
            "x=1..1000000000",
        ] {
            assert!(given.parse::<Vary>().is_err(), "{given}");
        }
    }
}
