//! How durations, sizes, modes and ports are written in the configuration.

/// A duration as seconds, whole or with a fraction.
pub(super) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        if value.subsec_nanos() == 0 {
            serializer.serialize_u64(value.as_secs())
        } else {
            serializer.serialize_f64(value.as_secs_f64())
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of seconds")]
        enum Number {
            Whole(u64),
            Fraction(f64),
        }
        match Number::deserialize(deserializer)? {
            Number::Whole(n) => Ok(Duration::from_secs(n)),
            Number::Fraction(n) => Duration::try_from_secs_f64(n)
                .map_err(|_| de::Error::custom(format!("{n} is not a number of seconds"))),
        }
    }
}

/// Permission bits: a number (`0o640`), or its octal digits as a string (`"0640"`, `"0o640"`). They
/// are printed as a string, since TOML prints numbers in decimal.
pub(super) mod mode {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("0o{value:03o}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "permission bits, such as 0o640")]
        enum Mode {
            Number(u32),
            Text(String),
        }
        match Mode::deserialize(deserializer)? {
            Mode::Number(bits) => Ok(bits),
            Mode::Text(text) => {
                let digits = text.trim().trim_start_matches("0o");
                u32::from_str_radix(digits, 8)
                    .map_err(|_| de::Error::custom(format!("{text:?} is no mode, such as \"0640\"")))
            }
        }
    }
}

/// The message about the first of these settings (table, key) that is a decimal number other than
/// 0, which is always a mistake.
pub(super) fn decimal_mode(text: &str, settings: &[(&str, &str)]) -> Option<String> {
    let whole = toml::de::DeTable::parse(text).ok()?;
    settings.iter().find_map(|(table, key)| {
        let table_of = whole.get_ref().get(*table)?.get_ref().as_table()?;
        let number = table_of.get(*key)?.get_ref().as_integer()?;
        let digits = number.as_str().replace('_', "");
        let octal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
        let example = if octal { digits.as_str() } else { "640" };
        (number.radix() == 10 && digits != "0")
            .then(|| format!("{table}.{key} = {digits} is decimal: write permission bits as 0o{example}"))
    })
}

/// As [`mode`], but optional.
pub(super) mod optional_mode {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Mode(#[serde(with = "super::mode")] u32);

    pub(crate) fn serialize<S: Serializer>(value: &Option<u32>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(bits) => super::mode::serialize(bits, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
        Ok(Option::<Mode>::deserialize(deserializer)?.map(|Mode(bits)| bits))
    }
}

/// A range of ports, first and last, or none.
pub(super) mod ports {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(
        value: &Option<(u16, u16)>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<(u16, u16)>, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "two ports, first and last: [50000, 50999]")]
        enum Ports {
            Some(Vec<i64>),
        }
        let Some(Ports::Some(ports)) = Option::<Ports>::deserialize(deserializer)? else { return Ok(None) };
        let port = |number: i64| {
            u16::try_from(number).map_err(|_| de::Error::custom(format!("{number} is no port")))
        };
        match ports[..] {
            [first, last] => Ok(Some((port(first)?, port(last)?))),
            _ => Err(de::Error::custom("expected two ports, first and last: [50000, 50999]")),
        }
    }
}

/// A rate, or a timetable of rates.
pub(super) mod timetable {
    use ropewalk_limits::Timetable;
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(value: &Timetable, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Timetable, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// As [`bytes`], but optional.
pub(super) mod optional_bytes {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Size(#[serde(with = "super::bytes")] u64);

    pub(crate) fn serialize<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(bytes) => super::bytes::serialize(bytes, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        Ok(Option::<Size>::deserialize(deserializer)?.map(|Size(bytes)| bytes))
    }
}

/// A size in bytes: a number, or a string such as `"64M"` or `"64 MiB"`.
pub(super) mod bytes {
    use ropewalk_units::read;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(*value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of bytes")]
        enum Size {
            Number(u64),
            Text(String),
        }
        match Size::deserialize(deserializer)? {
            Size::Number(n) => Ok(n),
            Size::Text(text) => parse(&text).ok_or_else(|| {
                de::Error::custom(format!("{text:?} is not a size in bytes, such as \"64M\""))
            }),
        }
    }

    /// A size whose unit ends with `B` alone is refused, because `MB` can mean a power of 1000 or
    /// of 1024.
    fn parse(text: &str) -> Option<u64> {
        let unit = read::unit(text).to_ascii_lowercase();
        let clear = unit == "b" || unit.ends_with("ib") || !unit.ends_with('b');
        read::size(text).filter(|_| clear)
    }

    #[cfg(test)]
    mod tests {
        use super::parse;

        #[test]
        fn size_in_powers_of_1024_is_parsed() {
            assert_eq!(parse("64M"), Some(64 << 20));
            assert_eq!(parse("3 KiB"), Some(3 << 10));
            assert_eq!(parse("7"), Some(7));
            assert_eq!(parse("7B"), Some(7));
            assert_eq!(parse("99999999T"), None);
            assert_eq!(parse("M"), None);
            assert_eq!(parse("1MB"), None);
        }
    }
}
