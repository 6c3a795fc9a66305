//! Reads profiles that another host sent.
//!
//! A first pass walks over the JSON without building anything. It limits every string, list and
//! number and the depth, independently of the fields' names, so that no field can be forgotten.
//! Only then are the values deserialised and their meaning checked.

use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

use super::SCHEMA;

/// Largest profile, in bytes. Two ends at 10 Hz with 64 connections each write 20 MB in five
/// minutes.
pub(super) const LARGEST: usize = 64 << 20;
/// Longest string, in bytes: strings are evidence and messages of tools, not files.
const LONGEST: usize = 8192;
/// Most entries of a list or an object.
const MOST: usize = 100_000;
/// Most values in total. Without this limit, 64 MB of JSON with empty lists would take some
/// gigabytes of memory.
const VALUES: usize = 8_000_000;
const DEEPEST: usize = 12;
/// Larger than every real quantity (bytes and nanoseconds since 1970 are below), and small enough
/// that sums of its squares are finite.
const GREATEST: f64 = 1e19;
/// Fields that may be negative: clocks differ in both directions, and samples may be older than the
/// transfer.
const SIGNED: [&str; 2] = ["offset_seconds", "time"];

/// A profile cannot be used.
#[derive(Debug, Error)]
pub enum ProfileError {
    #[error("the profile has {found} bytes, expected at most {most}")]
    TooLarge { found: usize, most: usize },
    #[error("not a profile: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the profile has schema {found}, this program knows 1 to {known}: use the newer ropewalk")]
    Schema { found: u32, known: u32 },
    #[error("the profile is not sound: {field} is {found}, expected {expected}")]
    Wrong { field: &'static str, expected: &'static str, found: String },
}

/// Checks of the meaning, made after all values are deserialised.
pub(crate) trait Check {
    fn check(&self) -> Result<(), ProfileError>;
}

pub(crate) fn wrong(field: &'static str, expected: &'static str, found: impl fmt::Display) -> ProfileError {
    ProfileError::Wrong { field, expected, found: found.to_string() }
}

pub(super) fn schema(found: u32) -> Result<(), ProfileError> {
    if (1..=SCHEMA).contains(&found) { Ok(()) } else { Err(ProfileError::Schema { found, known: SCHEMA }) }
}

/// Checks a share of one. Sums of rounded parts may be slightly larger.
pub(crate) fn share(field: &'static str, value: f64) -> Result<(), ProfileError> {
    if value <= 1.05 { Ok(()) } else { Err(wrong(field, "a share from 0 to 1", value)) }
}

/// Checks that times do not decrease.
pub(super) fn ascending(
    field: &'static str,
    times: impl IntoIterator<Item = f64>,
) -> Result<(), ProfileError> {
    let mut last = f64::NEG_INFINITY;
    for time in times {
        if time < last {
            return Err(wrong(field, "times in order", format!("{time} after {last}")));
        }
        last = time;
    }
    Ok(())
}

pub(super) fn read<T: DeserializeOwned + Check>(bytes: &[u8]) -> Result<T, ProfileError> {
    if bytes.len() > LARGEST {
        return Err(ProfileError::TooLarge { found: bytes.len(), most: LARGEST });
    }
    let mut left = VALUES;
    let mut walk = serde_json::Deserializer::from_slice(bytes);
    Limits { left: &mut left, depth: 0, signed: false }.deserialize(&mut walk)?;
    walk.end()?;
    let value: T = serde_json::from_slice(bytes)?;
    value.check()?;
    Ok(value)
}

struct Limits<'a> {
    left: &'a mut usize,
    depth: usize,
    signed: bool,
}

impl Limits<'_> {
    fn within(&mut self, signed: bool) -> Limits<'_> {
        Limits { left: self.left, depth: self.depth + 1, signed }
    }

    fn number<E: serde::de::Error>(&self, value: f64) -> Result<(), E> {
        let least = if self.signed { -GREATEST } else { 0.0 };
        if (least..=GREATEST).contains(&value) {
            Ok(())
        } else {
            Err(E::custom(format_args!("a number is {value:e}, expected {least} to {GREATEST:e}")))
        }
    }
}

fn string<E: serde::de::Error>(text: &str) -> Result<(), E> {
    if text.len() <= LONGEST {
        Ok(())
    } else {
        Err(E::custom(format_args!("a string has {} bytes, expected at most {LONGEST}", text.len())))
    }
}

impl<'de> DeserializeSeed<'de> for Limits<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        *self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| D::Error::custom(format_args!("more than {VALUES} values")))?;
        if self.depth > DEEPEST {
            return Err(D::Error::custom(format_args!("deeper than {DEEPEST} levels")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Limits<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON within limits")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.number(value as f64)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.number(value as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.number(value)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        string(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        let signed = self.signed;
        for _ in 0..=MOST {
            if list.next_element_seed(self.within(signed))?.is_none() {
                return Ok(());
            }
        }
        Err(A::Error::custom(format_args!("a list has more than {MOST} entries")))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut object: A) -> Result<(), A::Error> {
        for _ in 0..=MOST {
            let Some(signed) = object.next_key_seed(Key)? else { return Ok(()) };
            object.next_value_seed(self.within(signed))?;
        }
        Err(A::Error::custom(format_args!("an object has more than {MOST} entries")))
    }
}

/// Reads a key and returns whether its value may be negative.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<bool, E> {
        string(key)?;
        Ok(SIGNED.contains(&key))
    }
}
