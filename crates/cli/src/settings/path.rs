//! `--path`, `--path-policy`, `--path-time`, `--rate` and `--task-id`.

use std::time::Duration;

use ropewalk_paths::{Id, Policy};

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
    pub(crate) task: TaskId,
}

/// The task ID that servers and network managers get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TaskId {
    /// A random UUID for each run.
    #[default]
    Random,
    /// None is sent.
    None,
    Given(String),
}

impl TaskId {
    /// Longer names are refused.
    const LONGEST: usize = 128;

    /// The ID of a run.
    pub(crate) fn of_run(&self) -> Option<String> {
        match self {
            Self::Random => Some(Id::random().to_string()),
            Self::None => None,
            Self::Given(id) => Some(id.clone()),
        }
    }
}

impl Default for PathSettings {
    fn default() -> Self {
        Self {
            source: None,
            policy: Policy::Prefer,
            time: Duration::from_secs(12 * 3600),
            rate: None,
            task: TaskId::Random,
        }
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

pub(super) fn task(settings: &mut Settings, text: &str) -> Result<(), String> {
    let is_word = text.len() <= TaskId::LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic());
    settings.path.task = match text {
        "random" => TaskId::Random,
        "none" | "" => TaskId::None,
        text if is_word => TaskId::Given(text.to_owned()),
        _ => return Err(format!("expected a word of at most {} visible ASCII characters", TaskId::LONGEST)),
    };
    Ok(())
}

pub(super) fn show_task(settings: &Settings) -> String {
    match &settings.path.task {
        TaskId::Random => "random".to_owned(),
        TaskId::None => "none".to_owned(),
        TaskId::Given(id) => id.clone(),
    }
}
