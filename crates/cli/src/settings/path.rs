//! `--path`, `--path-policy`, `--path-time` and `--rate`.

use std::time::Duration;

use ropewalk_paths::Policy;

use super::Settings;
use super::values::{parse_link_rate, show_link_rate};
use crate::path_source::PathSource;

/// The network path that a copy asks for.
#[derive(Clone, Debug)]
pub(crate) struct PathSettings {
    pub(crate) source: Option<PathSource>,
    pub(crate) policy: Policy,
    /// The longest time for which it is reserved.
    pub(crate) time: Duration,
    /// The rate to ask for, in bits per second. `None`: the capacity of the path, if that is known.
    pub(crate) rate: Option<u64>,
}

impl Default for PathSettings {
    fn default() -> Self {
        Self { source: None, policy: Policy::Prefer, time: Duration::from_secs(12 * 3600), rate: None }
    }
}

pub(super) fn provider(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.path.source = match text {
        "none" => None,
        text => Some(PathSource::parse(text)?),
    };
    Ok(())
}

pub(super) fn show_provider(settings: &Settings) -> String {
    settings.path.source.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

pub(super) fn rate(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.path.rate = parse_link_rate(text)?;
    Ok(())
}

pub(super) fn show_rate(settings: &Settings) -> String {
    show_link_rate(settings.path.rate)
}

pub(super) fn policy(settings: &mut Settings, text: &str) -> Result<(), String> {
    settings.path.policy = match text {
        "prefer" => Policy::Prefer,
        "require" => Policy::Require,
        _ => return Err(format!("{text:?}: expected prefer or require")),
    };
    Ok(())
}

pub(super) fn show_policy(settings: &Settings) -> String {
    match settings.path.policy {
        Policy::Prefer => "prefer".to_owned(),
        Policy::Require => "require".to_owned(),
    }
}
