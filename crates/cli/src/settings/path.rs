//! `--path`, `--path-policy` and `--path-time`.

use std::time::Duration;

use ropewalk_paths::Policy;

use super::Settings;
use crate::path_use::PathSource;

/// The network path that a copy asks for.
#[derive(Clone, Debug)]
pub(crate) struct PathSettings {
    pub(crate) source: Option<PathSource>,
    pub(crate) policy: Policy,
    /// The longest time for which it is reserved.
    pub(crate) time: Duration,
}

impl Default for PathSettings {
    fn default() -> Self {
        Self { source: None, policy: Policy::Prefer, time: Duration::from_secs(12 * 3600) }
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
