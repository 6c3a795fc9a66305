//! Values of settings: how each is read from text, and shown as text that reads as the same value.
//!
//! A function named like a setting reads its value into the settings; `show_` and the name prints
//! it. Errors are texts for users: the given text, and the values that are expected.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use ropewalk_client::{
    Auto, ChecksumPolicy, DataMode, DirectIo, Fairness, FsyncPolicy, Preserve, StallLimit, SyncLevel,
    Timetable, TunerKind,
};
use ropewalk_storage::checksum::UnknownAlgorithm;
use ropewalk_tuning::tuner::MAX_STREAMS;

use super::{Settings, ends};
use crate::units::{parse_duration, parse_rate, parse_size};

pub(super) fn show_path(path: Option<&PathBuf>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

pub(super) fn credential(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.login.credential = ends::path(text);
    Ok(())
}

pub(super) fn number<T: FromStr + Display>(text: &str, expected: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{text:?}: expected {expected}"))
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("{text:?}: expected true or false")),
    }
}

pub(super) fn auto(text: &str) -> Result<Auto<u32>, String> {
    if text == "auto" {
        return Ok(Auto::Auto);
    }
    number::<NonZeroU32>(text, "a whole number from 1, or auto").map(|n| Auto::Set(n.get()))
}

pub(super) fn show_auto(value: Auto<u32>) -> String {
    match value {
        Auto::Auto => "auto".into(),
        Auto::Set(number) => number.to_string(),
    }
}

/// Printed with a unit if that is exact.
pub(super) fn show_size(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        b if b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b % 1024 == 0 => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

pub(super) fn show_duration(time: Duration) -> String {
    if time.subsec_millis() == 0 { format!("{}s", time.as_secs()) } else { format!("{}ms", time.as_millis()) }
}

pub(super) fn tuner(settings: &mut Settings, text: &str) -> Result<(), String> {
    let names = || TunerKind::ALL.map(TunerKind::name).join(", ");
    settings.options.tuning.tuner =
        TunerKind::from_name(text).ok_or_else(|| format!("{text:?}: expected one of {}", names()))?;
    Ok(())
}

pub(super) fn streams(settings: &mut Settings, text: &str) -> Result<(), String> {
    let streams = auto(text)?;
    if matches!(streams, Auto::Set(n) if n > MAX_STREAMS) {
        return Err(format!("{text:?}: expected a whole number from 1 to 1024, or auto"));
    }
    settings.options.tuning.streams = streams;
    Ok(())
}

pub(super) fn max_streams(settings: &mut Settings, text: &str) -> Result<(), String> {
    let number: u32 = number(text, "a whole number from 1 to 1024")?;
    if !(1..=MAX_STREAMS).contains(&number) {
        return Err(format!("{text:?}: expected a whole number from 1 to 1024"));
    }
    settings.options.tuning.max_streams = number;
    Ok(())
}

pub(super) fn polite(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.tuning.fairness =
        if boolean(text)? { Fairness::Polite } else { ropewalk_client::Options::default().tuning.fairness };
    Ok(())
}

pub(super) fn share(settings: &mut Settings, text: &str) -> Result<(), String> {
    let percent = text.trim().trim_end_matches('%').trim_end();
    let wrong = || format!("{text:?}: expected a percentage from 1 to 100");
    let share: f64 = percent.parse().map_err(|_| wrong())?;
    if !(1.0..=100.0).contains(&share) {
        return Err(wrong());
    }
    settings.options.tuning.fairness = Fairness::Share(share / 100.0);
    Ok(())
}

/// The value that applies to `share` while `polite` is in effect.
pub(super) fn show_share(settings: &Settings) -> String {
    let default = ropewalk_client::Options::default().tuning.fairness;
    match [settings.options.tuning.fairness, default] {
        // Removes rounding errors of the multiplication.
        [Fairness::Share(share), _] | [_, Fairness::Share(share)] => {
            format!("{}%", (1e8 * share).round() / 1e6)
        }
        _ => "100%".into(),
    }
}

pub(super) fn capacity(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.tuning.capacity = parse_link_rate(text)?;
    Ok(())
}

pub(super) fn show_capacity(settings: &Settings) -> String {
    show_link_rate(settings.options.tuning.capacity)
}

/// A rate of a link in bits per second, or `auto`.
pub(super) fn parse_link_rate(text: &str) -> Result<Option<u64>, String> {
    if text == "auto" {
        return Ok(None);
    }
    let bits = parse_rate(text)?.saturating_mul(8);
    match (8..=80_000_000_000_000).contains(&bits) {
        true => Ok(Some(bits)),
        false => Err(format!("{text:?}: expected a rate from 1 byte/s to 80 Tbit/s")),
    }
}

pub(super) fn show_link_rate(bits: Option<u64>) -> String {
    bits.map_or_else(|| "auto".into(), |bits| crate::units::link_rate(bits as f64 / 8.0))
}

pub(super) fn bandwidth(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.tuning.bandwidth = parse_bandwidth(text)?;
    Ok(())
}

/// The value of `--bandwidth`; `None`: no limit.
pub(crate) fn parse_bandwidth(text: &str) -> Result<Option<Timetable>, String> {
    Ok(match text {
        "none" => None,
        // Days, times, or several entries.
        text if text.contains([',', ':']) => Some(text.parse().map_err(|error| format!("{error}"))?),
        text => match parse_rate(text).map_err(|error| format!("{error}, or none"))? {
            0 => return Err(format!("{text:?}: expected at least 1 byte/s, or none")),
            bytes => Some(bytes.into()),
        },
    })
}

pub(super) fn show_bandwidth(settings: &Settings) -> String {
    show_rate(settings.options.tuning.bandwidth.as_ref())
}

/// The text of `--bandwidth` for this limit.
pub(crate) fn show_rate(limit: Option<&Timetable>) -> String {
    limit.map_or_else(|| "none".into(), Timetable::to_string)
}

pub(super) fn congestion(settings: &mut Settings, text: &str) -> Result<(), String> {
    let names = || text.split(',').map(str::trim).filter(|name| !name.is_empty());
    if names().next().is_none() && !text.is_empty() {
        return Err(format!("{text:?}: expected names out of reno, cubic, bbr; or none"));
    }
    settings.options.tuning.congestion = names().filter(|name| *name != "none").map(str::to_owned).collect();
    match settings.options.tuning.congestion.iter().find(|name| !matches!(&***name, "reno" | "cubic" | "bbr"))
    {
        Some(name) => Err(format!("{name:?}: expected names out of reno, cubic, bbr")),
        None => Ok(()),
    }
}

pub(super) fn show_congestion(settings: &Settings) -> String {
    if settings.options.tuning.congestion.is_empty() {
        "none".into()
    } else {
        settings.options.tuning.congestion.join(",")
    }
}

pub(super) fn mode(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.data.mode = match text {
        "auto" => DataMode::Auto,
        "stream" | "s" | "S" => DataMode::Stream,
        "extended" | "e" | "E" => DataMode::Extended,
        _ => return Err(format!("{text:?}: expected auto, stream or extended")),
    };
    Ok(())
}

pub(super) fn show_mode(settings: &Settings) -> String {
    match settings.options.data.mode {
        DataMode::Auto => "auto",
        DataMode::Stream => "stream",
        DataMode::Extended => "extended",
    }
    .into()
}

pub(super) fn block_size(settings: &mut Settings, text: &str) -> Result<(), String> {
    let size = parse_size(text)?;
    if !(1024..=1 << 30).contains(&size) {
        return Err(format!("{text:?}: expected a size from 1KiB to 1GiB"));
    }
    settings.options.data.block_size = size as usize;
    Ok(())
}

pub(super) fn tcp_buffer(settings: &mut Settings, text: &str) -> Result<(), String> {
    if text == "auto" {
        settings.options.tuning.tcp_buffer = None;
        return Ok(());
    }
    let size = parse_size(text).map_err(|error| format!("{error}, or auto"))?;
    if !(4096..=1 << 30).contains(&size) {
        return Err(format!("{text:?}: expected a size from 4KiB to 1GiB, or auto"));
    }
    settings.options.tuning.tcp_buffer = Some(size);
    Ok(())
}

pub(super) fn show_tcp_buffer(settings: &Settings) -> String {
    settings.options.tuning.tcp_buffer.map_or_else(|| "auto".into(), show_size)
}

pub(super) fn buffer_memory(settings: &mut Settings, text: &str) -> Result<(), String> {
    let size = parse_size(text)?;
    if size < 1 << 20 {
        return Err(format!("{text:?}: expected at least 1MiB"));
    }
    settings.options.tuning.buffer_memory =
        usize::try_from(size).map_err(|_| format!("{text:?} is more than this machine can address"))?;
    Ok(())
}

pub(super) fn sync(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.selection.sync = match text {
        "off" | "false" => None,
        "exists" => Some(SyncLevel::Exists),
        "size" => Some(SyncLevel::Size),
        "time" | "true" => Some(SyncLevel::Time),
        "checksum" => Some(SyncLevel::Checksum),
        _ => return Err(format!("{text:?}: expected exists, size, time, checksum or off")),
    };
    Ok(())
}

pub(super) fn show_sync(settings: &Settings) -> String {
    match settings.options.selection.sync {
        None => "off",
        Some(SyncLevel::Exists) => "exists",
        Some(SyncLevel::Size) => "size",
        Some(SyncLevel::Time) => "time",
        Some(SyncLevel::Checksum) => "checksum",
    }
    .into()
}

pub(super) fn preserve(settings: &mut Settings, text: &str) -> Result<(), String> {
    let mut preserve = Preserve::default();
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word {
            "times" => preserve.times = true,
            "modes" => preserve.modes = true,
            "links" => preserve.links = true,
            "all" => preserve = Preserve { times: true, modes: true, links: true },
            "none" => preserve = Preserve::default(),
            _ => return Err(format!("{word:?}: expected times, modes, links, all or none")),
        }
    }
    settings.options.preserve = preserve;
    Ok(())
}

pub(super) fn show_preserve(settings: &Settings) -> String {
    let preserve = settings.options.preserve;
    let words = [(preserve.times, "times"), (preserve.modes, "modes"), (preserve.links, "links")];
    let words: Vec<_> = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
    if words.is_empty() { "none".into() } else { words.join(",") }
}

pub(super) fn checksum(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.integrity.checksum = match text {
        "auto" => ChecksumPolicy::Default,
        "none" => ChecksumPolicy::None,
        name => ChecksumPolicy::Require(name.parse().map_err(|error: UnknownAlgorithm| error.to_string())?),
    };
    Ok(())
}

pub(super) fn show_checksum(settings: &Settings) -> String {
    match settings.options.integrity.checksum {
        ChecksumPolicy::Default => "auto".into(),
        ChecksumPolicy::None => "none".into(),
        ChecksumPolicy::Require(algorithm) => algorithm.name().to_ascii_lowercase(),
    }
}

pub(super) fn fsync(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.integrity.fsync = match text {
        "none" | "false" => FsyncPolicy::None,
        "end" | "true" => FsyncPolicy::AtEnd,
        "marker" => FsyncPolicy::EachMarker,
        _ => return Err(format!("{text:?}: expected none, end or marker")),
    };
    Ok(())
}

pub(super) fn direct_io(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.storage.direct_io = match text {
        "auto" => DirectIo::Auto,
        "always" => DirectIo::Always,
        "never" => DirectIo::Never,
        _ => return Err(format!("{text:?}: expected auto, always or never")),
    };
    Ok(())
}

pub(super) fn show_direct_io(settings: &Settings) -> String {
    match settings.options.storage.direct_io {
        DirectIo::Auto => "auto",
        DirectIo::Always => "always",
        DirectIo::Never => "never",
    }
    .to_owned()
}

pub(super) fn show_fsync(settings: &Settings) -> String {
    match settings.options.integrity.fsync {
        FsyncPolicy::None => "none",
        FsyncPolicy::AtEnd => "end",
        FsyncPolicy::EachMarker => "marker",
    }
    .into()
}

pub(super) fn log_file(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.log_file = (!text.is_empty()).then(|| text.into());
    Ok(())
}

pub(super) fn retries(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.recovery.retries = number(text, "a whole number")?;
    Ok(())
}

pub(super) fn stall(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.timeouts.stall = if text == "off" {
        None
    } else {
        // The rate itself may end with "/s", so the time follows the last slash.
        let (rate, time) = text
            .rsplit_once('/')
            .ok_or_else(|| format!("{text:?}: expected RATE/TIME, for example 10KiB/60s, or off"))?;
        let time = parse_duration(time)?;
        if time < Duration::from_secs(1) {
            return Err(format!("{text:?}: the time is shorter than a second"));
        }
        Some(StallLimit { bytes_per_second: parse_rate(rate)?, time })
    };
    Ok(())
}

pub(super) fn retry_limit(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.recovery.retry_limit = match text {
        "off" => None,
        time => Some(parse_duration(time).map_err(|error| format!("{error}, or off"))?),
    };
    Ok(())
}

pub(super) fn show_retry_limit(settings: &Settings) -> String {
    settings.options.recovery.retry_limit.map_or_else(|| "off".into(), show_duration)
}

pub(super) fn show_stall(settings: &Settings) -> String {
    match settings.options.timeouts.stall {
        None => "off".into(),
        Some(limit) => format!("{}/{}", show_size(limit.bytes_per_second), show_duration(limit.time)),
    }
}

pub(super) fn user(settings: &mut Settings, text: &str) -> Result<(), String> {
    if text.contains(['\r', '\n', '\0']) {
        return Err("a user name has no line ends".into());
    }
    settings.options.login.user = (!text.is_empty()).then(|| text.to_owned());
    Ok(())
}

pub(super) fn data_ports(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.options.data.ports = if text == "any" { None } else { Some(port_range(text)?) };
    Ok(())
}

pub(super) fn show_data_ports(settings: &Settings) -> String {
    settings.options.data.ports.map_or_else(|| "any".into(), |(first, last)| format!("{first}-{last}"))
}

/// `50000-51000`; a comma is accepted as well, as in GCT's GLOBUS_TCP_PORT_RANGE.
pub(crate) fn port_range(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("{text:?}: expected FIRST-LAST, for example 50000-51000");
    let (first, last) = text.split_once(['-', ',']).ok_or_else(wrong)?;
    let first: u16 = first.trim().parse().map_err(|_| wrong())?;
    let last: u16 = last.trim().parse().map_err(|_| wrong())?;
    if first == 0 || first > last { Err(wrong()) } else { Ok((first, last)) }
}
