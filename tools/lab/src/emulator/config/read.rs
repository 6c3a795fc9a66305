//! Reads paths from TOML and JSON. Some values have a short form in addition to the full table: a
//! loss may be a probability, a queue may be a number of packets, and `both` and `round_trip`
//! describe two directions at once. A path is checked after it is read, so a file with values out
//! of bounds is an error.

use std::fmt;
use std::time::Duration;

use ropewalk_units::print::exact_duration;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::check::MAX_QUEUE;
use super::{Codel, ConfigError, Loss, Path, Queue, Red, wrong};
use crate::emulator::change::Patch;
use crate::emulator::units;

/// A path as it is written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPath {
    #[serde(default)]
    mtu: Option<u32>,
    #[serde(default, with = "units::duration::option")]
    round_trip: Option<Duration>,
    #[serde(default)]
    both: Patch,
    #[serde(default)]
    forward: Patch,
    #[serde(default)]
    backward: Patch,
}

impl TryFrom<RawPath> for Path {
    type Error = ConfigError;

    fn try_from(raw: RawPath) -> Result<Self, ConfigError> {
        let mut path = Self::default();
        path.mtu = raw.mtu.unwrap_or(path.mtu);
        if let Some(round_trip) = raw.round_trip {
            if [&raw.both, &raw.forward, &raw.backward].iter().any(|patch| patch.delay.is_some()) {
                return Err(wrong("round_trip", "no delay beside it", exact_duration(round_trip)));
            }
            path.forward.delay = round_trip / 2;
            path.backward.delay = round_trip - round_trip / 2;
        }
        for (direction, own) in [(&mut path.forward, &raw.forward), (&mut path.backward, &raw.backward)] {
            raw.both.apply(direction);
            own.apply(direction);
        }
        path.validate()?;
        Ok(path)
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LossVisitor)
    }
}

struct LossVisitor;

impl<'de> Visitor<'de> for LossVisitor {
    type Value = Loss;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a probability, `none`, or a table with `model`: bernoulli, gilbert-elliott or bursts")
    }
    fn visit_f64<E: de::Error>(self, p: f64) -> Result<Loss, E> {
        self.visit_str(&p.to_string())
    }
    fn visit_i64<E: de::Error>(self, p: i64) -> Result<Loss, E> {
        self.visit_str(&p.to_string())
    }
    fn visit_u64<E: de::Error>(self, p: u64) -> Result<Loss, E> {
        self.visit_str(&p.to_string())
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<Loss, E> {
        if text == "none" {
            return Ok(Loss::None);
        }
        let p = units::parse_probability(text).map_err(E::custom)?;
        Ok(if p == 0.0 { Loss::None } else { Loss::Bernoulli { p } })
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Loss, A::Error> {
        #[derive(Deserialize)]
        #[serde(tag = "model", rename_all = "kebab-case", deny_unknown_fields)]
        enum Raw {
            None {},
            Bernoulli {
                #[serde(with = "units::probability")]
                p: f64,
            },
            GilbertElliott {
                #[serde(with = "units::probability")]
                enter: f64,
                #[serde(with = "units::probability")]
                leave: f64,
                #[serde(with = "units::probability", default)]
                good: f64,
                #[serde(with = "units::probability", default = "one")]
                bad: f64,
            },
            Bursts {
                #[serde(with = "units::probability")]
                average: f64,
                length: f64,
            },
        }
        fn one() -> f64 {
            1.0
        }
        Ok(match Raw::deserialize(MapAccessDeserializer::new(map))? {
            Raw::None {} => Loss::None,
            Raw::Bernoulli { p } => Loss::Bernoulli { p },
            Raw::GilbertElliott { enter, leave, good, bad } => {
                Loss::GilbertElliott { enter, leave, good, bad }
            }
            // Gaps between bursts are at least one packet long.
            Raw::Bursts { average, length }
                if length.is_finite() && length >= (average / (1.0 - average)).max(1.0) =>
            {
                Loss::bursts(average, length)
            }
            Raw::Bursts { average, length } => {
                let found = format_args!("{average} and {length}");
                let expected =
                    "an average below 1 and a length of at least 1 and average / (1 - average) packets";
                return Err(de::Error::custom(wrong("loss", expected, found)));
            }
        })
    }
}

impl<'de> Deserialize<'de> for Queue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QueueVisitor)
    }
}

struct QueueVisitor;

impl<'de> Visitor<'de> for QueueVisitor {
    type Value = Queue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of packets, or a table with `kind`: drop-tail, red or codel")
    }
    fn visit_i64<E: de::Error>(self, packets: i64) -> Result<Queue, E> {
        let packets = u32::try_from(packets)
            .map_err(|_| E::custom(wrong("queue", format_args!("1 to {MAX_QUEUE} packets"), packets)))?;
        Ok(Queue::DropTail { packets })
    }
    fn visit_u64<E: de::Error>(self, packets: u64) -> Result<Queue, E> {
        self.visit_i64(i64::try_from(packets).unwrap_or(i64::MAX))
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Queue, A::Error> {
        #[derive(Deserialize)]
        #[serde(tag = "kind", rename_all = "kebab-case")]
        enum Raw {
            DropTail(DropTail),
            Red(Red),
            Codel(Codel),
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct DropTail {
            packets: u32,
        }
        Ok(match Raw::deserialize(MapAccessDeserializer::new(map))? {
            Raw::DropTail(DropTail { packets }) => Queue::DropTail { packets },
            Raw::Red(red) => Queue::Red(red),
            Raw::Codel(codel) => Queue::Codel(codel),
        })
    }
}
