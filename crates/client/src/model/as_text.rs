//! Forms in which values of other crates are serialised: names, seconds, and bytes that are mostly
//! text.

use std::fmt::Display;
use std::str::FromStr;

use ropewalk_storage::DirectIo;
use ropewalk_tuning::tuner::{Fairness, Kind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// The same of an optional value.
pub(crate) mod optional {
    use super::*;

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// The same of a list.
pub(crate) mod list {
    use super::*;

    pub(crate) fn serialize<T: Display, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}

/// A time as a number of seconds.
pub(crate) mod seconds {
    use std::time::Duration;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// An optional time as a number of seconds.
pub(crate) mod optional_seconds {
    use std::time::Duration;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)).transpose()
    }
}

/// An optional rate: bytes per second as a number, or the text of a timetable.
pub(crate) mod optional_rate {
    use ropewalk_limits::{LocalTime, Timetable};

    use super::*;

    #[derive(Deserialize, Serialize)]
    #[serde(untagged)]
    enum Rate {
        Constant(u64),
        Text(String),
    }

    pub(crate) fn serialize<S: Serializer>(
        rate: &Option<Timetable>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let form = |rate: &Timetable| match rate.rate(LocalTime { weekday: 0, minute: 0 }) {
            Some(bytes) if rate.is_constant() => Rate::Constant(bytes),
            _ => Rate::Text(rate.to_string()),
        };
        rate.as_ref().map(form).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timetable>, D::Error> {
        match Option::<Rate>::deserialize(deserializer)? {
            None => Ok(None),
            Some(Rate::Constant(bytes)) => Ok(Some(Timetable::from(bytes))),
            Some(Rate::Text(text)) => text.parse().map(Some).map_err(D::Error::custom),
        }
    }
}

/// A name that need not be UTF-8: text, or else an array of its bytes.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
pub(crate) enum Name {
    Text(String),
    Bytes(Vec<u8>),
}

impl Name {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(bytes.to_vec()),
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.into_bytes(),
            Self::Bytes(bytes) => bytes,
        }
    }
}

/// Words of a command.
pub(crate) mod words {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

    use super::*;

    pub(crate) fn serialize<S: Serializer>(words: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(words.iter().map(|word| Name::new(word.as_bytes())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<OsString>, D::Error> {
        let words = Vec::<Name>::deserialize(deserializer)?;
        Ok(words.into_iter().map(|word| OsString::from_vec(word.into_bytes())).collect())
    }
}

/// An optional list of names of files.
pub(crate) mod optional_names {
    use bstr::BString;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        names: &Option<Vec<BString>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let names = names.as_ref().map(|names| names.iter().map(|name| Name::new(name)).collect::<Vec<_>>());
        names.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Vec<BString>>, D::Error> {
        let names = Option::<Vec<Name>>::deserialize(deserializer)?;
        Ok(names.map(|names| names.into_iter().map(|name| name.into_bytes().into()).collect()))
    }
}

/// The names of [`Kind::name`].
#[derive(Deserialize, Serialize)]
#[serde(remote = "Kind", rename_all = "kebab-case")]
pub(crate) enum TunerName {
    Fixed,
    Apt,
    AptGolden,
    AptLong,
    Climb,
    Track,
    Pilot,
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "Fairness", rename_all = "snake_case")]
pub(crate) enum FairnessForm {
    Share(f64),
    Polite,
}

#[derive(Deserialize, Serialize)]
#[serde(remote = "DirectIo", rename_all = "snake_case")]
pub(crate) enum DirectIoName {
    Auto,
    Always,
    Never,
}
