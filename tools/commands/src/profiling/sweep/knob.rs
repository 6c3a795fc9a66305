//! The settings that a sweep changes, and their values.

use std::str::FromStr;

use clap::ValueEnum as _;
use ropewalk_profiler::sweep::Knob;

use crate::profiling::Kind;
use crate::settings::{Setting, Settings};

/// Most values of one setting, because the user waits for the sweep.
const MOST: usize = 64;
const STREAMS: u64 = 1024;
const FILES: u64 = 256;

/// A setting and its values; `--sweep` without a value stands for all settings that usually matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vary {
    /// `None`: those that usually matter.
    pub(crate) knob: Option<Knob>,
    pub(crate) values: Vec<Value>,
}

/// One value, with the text that the user gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The program or the kernel finds it.
    Auto,
    /// The product of rate and round trip, from the first run.
    Bdp,
    /// Streams, files or bytes.
    Number(u64),
    Kind(Kind),
}

impl Vary {
    /// Each setting with its values.
    pub(crate) fn expand(given: &[Self]) -> Result<Vec<(Knob, Vec<Value>)>, String> {
        let mut all: Vec<(Knob, Vec<Value>)> = Vec::new();
        let mut add = |knob: Knob, values: Vec<Value>| {
            if all.iter().any(|(known, _)| *known == knob) {
                return Err(format!(
                    "--sweep {0} is given twice: give all values at once, --sweep {0}=A,B",
                    knob.name()
                ));
            }
            all.push((knob, values));
            Ok(())
        };
        for vary in given {
            match vary.knob {
                Some(knob) => add(knob, vary.values.clone())?,
                None => {
                    for knob in [Knob::Streams, Knob::Buffer] {
                        add(knob, usual(knob))?;
                    }
                }
            }
        }
        Ok(all)
    }
}

/// The default values: those of the published study (its Tables 1, 3 and 6), and block sizes around
/// the default.
fn usual(knob: Knob) -> Vec<Value> {
    let text = match knob {
        Knob::Buffer => "auto,bdp,4M,8M,16M,32M",
        Knob::Streams => "1,2,4,8,16",
        Knob::Block => "64K,256K,1M,4M",
        Knob::Files => "1,2,4,8",
        Knob::Workload => "mem-mem,mem-disk,disk-mem,disk-disk",
    };
    text.split(',').filter_map(|one| value(knob, one).ok()).collect()
}

impl FromStr for Vary {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, String> {
        let (name, list) = match given.split_once('=') {
            Some((name, list)) => (name, Some(list)),
            None => (given, None),
        };
        if name.is_empty() && list.is_none() {
            return Ok(Self { knob: None, values: Vec::new() });
        }
        let knob = Knob::ALL.into_iter().find(|knob| knob.name() == name).ok_or_else(|| {
            let known = Knob::ALL.map(Knob::name).join(", ");
            format!(
                "{name:?} cannot be swept: expected one of {known}, as in streams=1,2,4 (a --sweep \
                 without a value follows source and destination)"
            )
        })?;
        let values = match list {
            None => usual(knob),
            Some(list) => {
                list.split(',').map(|one| value(knob, one.trim())).collect::<Result<Vec<_>, _>>()?
            }
        };
        if values.len() > MOST {
            return Err(format!("{} values of {name}, expected at most {MOST}", values.len()));
        }
        for (number, one) in values.iter().enumerate() {
            if let Some(other) = values[..number].iter().find(|other| other.what == one.what) {
                return Err(format!("{name}: {} and {} are the same value", other.name, one.name));
            }
        }
        Ok(Self { knob: Some(knob), values })
    }
}

fn value(knob: Knob, text: &str) -> Result<Value, String> {
    let wrong = |expected: &str| format!("{}: {text:?}: expected {expected}", knob.name());
    if text.is_empty() {
        return Err(wrong("a value before and after each comma"));
    }
    let count = |most: u64| {
        let number: u64 = text.parse().map_err(|_| wrong(&format!("auto or a number from 1 to {most}")))?;
        if (1..=most).contains(&number) {
            Ok(What::Number(number))
        } else {
            Err(wrong(&format!("auto or a number from 1 to {most}")))
        }
    };
    // In the syntax of the settings' flags.
    let size = |key: &str, of: fn(&Settings) -> Option<u64>| {
        let mut settings = Settings::default();
        let setting = Setting::find(key).ok_or_else(|| wrong("a setting of this program"))?;
        (setting.apply)(&mut settings, text).map_err(|error| format!("{}: {error}", knob.name()))?;
        of(&settings).map(What::Number).ok_or_else(|| wrong("a size"))
    };
    let what = match (knob, text) {
        (Knob::Buffer | Knob::Streams | Knob::Files, "auto") => What::Auto,
        (Knob::Buffer, "bdp" | "BDP") => What::Bdp,
        (Knob::Buffer, _) => size("tcp-buffer", |settings| settings.options.tuning.tcp_buffer)
            .map_err(|error| format!("{error} or bdp"))?,
        (Knob::Block, _) => size("block-size", |settings| Some(settings.options.data.block_size as u64))?,
        (Knob::Streams, _) => count(STREAMS)?,
        (Knob::Files, _) => count(FILES)?,
        (Knob::Workload, _) => What::Kind(
            Kind::from_str(text, false).map_err(|_| wrong("mem-mem, mem-disk, disk-mem or disk-disk"))?,
        ),
    };
    Ok(Value { name: text.to_owned(), what })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn numbers(text: &str) -> Vec<What> {
        text.parse::<Vary>().unwrap().values.into_iter().map(|value| value.what).collect()
    }

    #[test]
    fn values_use_the_syntax_of_flags() {
        assert_eq!(
            numbers("buffer=auto,bdp,64K,1MiB"),
            [What::Auto, What::Bdp, What::Number(65536), What::Number(1 << 20)]
        );
        assert_eq!(numbers("streams=1, 16,auto"), [What::Number(1), What::Number(16), What::Auto]);
        assert_eq!(numbers("block=1K"), [What::Number(1024)]);
        assert_eq!(
            numbers("workload=mem-mem,disk-disk"),
            [What::Kind(Kind::MemMem), What::Kind(Kind::DiskDisk)]
        );
        for knob in Knob::ALL {
            assert!(numbers(knob.name()).len() >= 4, "{}", knob.name());
        }
    }

    #[test]
    fn invalid_sweeps_are_reported() {
        for (text, expected) in [
            ("zero:1G", "cannot be swept"),
            ("=4", "cannot be swept"),
            ("streams=", "a value before and after each comma"),
            ("streams=1,,2", "a value before and after each comma"),
            ("streams=0", "number from 1 to 1024"),
            ("streams=1025", "number from 1 to 1024"),
            ("streams=4K", "number from 1 to 1024"),
            ("streams=bdp", "number from 1 to 1024"),
            ("files=-1", "number from 1 to 256"),
            ("buffer=big", "not a size"),
            ("buffer=big", "or auto or bdp"),
            ("buffer=0", "4KiB to 1GiB, or auto or bdp"),
            ("block=1", "1KiB to 1GiB"),
            ("block=auto", "not a size"),
            ("workload=mem", "mem-mem, mem-disk"),
            ("buffer=64K,65536", "are the same value"),
        ] {
            let error = text.parse::<Vary>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many: Vec<String> = (1..=65).map(|n| n.to_string()).collect();
        assert!(format!("streams={}", many.join(",")).parse::<Vary>().unwrap_err().contains("at most 64"));
    }

    #[test]
    fn setting_named_twice_is_refused() {
        let vary = |text: &str| text.parse::<Vary>().unwrap();
        let all = Vary::expand(&[vary("")]).unwrap();
        let knobs: Vec<Knob> = all.iter().map(|one| one.0).collect();
        assert_eq!((knobs, all[0].1.len(), all[1].1.len()), (vec![Knob::Streams, Knob::Buffer], 5, 6));
        assert!(
            Vary::expand(&[vary(""), vary("streams=1")])
                .unwrap_err()
                .contains("--sweep streams is given twice")
        );
        assert_eq!(Vary::expand(&[vary("block"), vary("files=1,2")]).unwrap().len(), 2);
    }
}
