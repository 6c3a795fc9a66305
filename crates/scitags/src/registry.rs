//! The registry of experiments and activities: the file that <https://scitags.org/api.json> is.
//!
//! The program reads a copy on disk. `copy` keeps it up to date, if the user has named a URL.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ropewalk_protocol::scitag::{InvalidSciTag, SciTag};
use serde::Deserialize;

/// The registry has some tens of kilobytes.
pub(crate) const LONGEST: u64 = 4 << 20;
/// The activity that stands for none.
const DEFAULT_ACTIVITY: u16 = 1;

/// Experiments by name in lower case: the number, and the activities in the same form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry(BTreeMap<String, Experiment>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Experiment {
    number: u16,
    activities: BTreeMap<String, u16>,
}

/// A registry could not be read, or does not have a name.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("cannot read the registry of SciTags {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no registry of SciTags (scitags.org/api.json): {source}")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error("{url} has no registry of SciTags (scitags.org/api.json): {reason}")]
    Fetched { url: String, reason: String },
    #[error("cannot fetch the registry of SciTags from {url}: {reason}")]
    Fetch { url: String, reason: String },
    #[error("the registry of SciTags has no experiment {0:?}")]
    Experiment(String),
    #[error("the registry of SciTags has no activity {activity:?} of the experiment {experiment:?}")]
    Activity { experiment: String, activity: String },
    #[error(transparent)]
    Number(#[from] InvalidSciTag),
}

impl Registry {
    /// Reads a copy of the registry.
    ///
    /// # Errors
    /// The file cannot be read, or is no registry.
    pub fn load(path: &Path) -> Result<Self, RegistryError> {
        let text = ropewalk_files::read(path, LONGEST)
            .map_err(|source| RegistryError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|source| RegistryError::Parse { path: path.to_owned(), source })
    }

    /// Entries with numbers out of range, and names that differ from an earlier one only in case,
    /// are ignored.
    ///
    /// # Errors
    /// The text is not JSON, or not of this form.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        let file: File = serde_json::from_slice(text)?;
        let mut experiments = BTreeMap::new();
        for entry in file.experiments.into_iter().filter(|entry| (1..=1023).contains(&entry.number)) {
            let mut activities = BTreeMap::new();
            for activity in entry.activities.into_iter().filter(|activity| activity.number <= 63) {
                activities.entry(plain(&activity.name)).or_insert(activity.number as u16);
            }
            let experiment = Experiment { number: entry.number as u16, activities };
            experiments.entry(plain(&entry.name)).or_insert(experiment);
        }
        Ok(Self(experiments))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Finds `experiment/activity`, or `experiment` alone with the default activity. Each part may
    /// be a number. Case does not matter, and hyphens and underscores are as good as spaces:
    /// `atlas/production-input` is `ATLAS/Production Input`.
    ///
    /// # Errors
    /// The registry does not have the name.
    pub fn find(&self, name: &str) -> Result<SciTag, RegistryError> {
        let (experiment, activity) = match name.split_once('/') {
            Some((experiment, activity)) => (experiment.trim(), Some(activity.trim())),
            None => (name.trim(), None),
        };
        let known = self.0.get(&plain(experiment));
        let number = match (experiment.parse(), known) {
            (Ok(number), _) => number,
            (Err(_), Some(known)) => known.number,
            (Err(_), None) => return Err(RegistryError::Experiment(experiment.to_owned())),
        };
        let Some(activity) = activity else { return Ok(SciTag::of(number, DEFAULT_ACTIVITY)?) };
        let listed = known.and_then(|known| known.activities.get(&plain(activity)).copied());
        match activity.parse().ok().or(listed) {
            Some(activity) => Ok(SciTag::of(number, activity)?),
            None => Err(RegistryError::Activity {
                experiment: experiment.to_owned(),
                activity: activity.to_owned(),
            }),
        }
    }
}

/// The form in which names are compared.
fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace(['-', '_'], " ")
}

#[derive(Deserialize)]
struct File {
    experiments: Vec<FileExperiment>,
}

#[derive(Deserialize)]
struct FileExperiment {
    #[serde(rename = "expName")]
    name: String,
    #[serde(rename = "expId")]
    number: u64,
    #[serde(default)]
    activities: Vec<FileActivity>,
}

#[derive(Deserialize)]
struct FileActivity {
    #[serde(rename = "activityName")]
    name: String,
    #[serde(rename = "activityId")]
    number: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TEXT: &str = r#"{"version":1,"modified":"2025-09-04T12:01:55.844133+00:00","experiments":[
        {"expName":"atlas","expId":2,"more":[1],"activities":[
            {"activityName":"Production Input","activityId":15},
            {"activityName":"production input","activityId":16},
            {"activityName":"Wrong","activityId":64}]},
        {"expName":"ATLAS","expId":9,"activities":[]},
        {"expName":"huge","expId":70000,"activities":[]}]}"#;

    #[test]
    fn names_are_found_in_any_case() {
        let registry = Registry::parse(TEXT.as_bytes()).unwrap();
        for (name, expected) in [
            ("atlas/Production Input", (2, 15)),
            ("Atlas/PRODUCTION INPUT", (2, 15)),
            ("atlas/production-input", (2, 15)),
            ("atlas / production_input", (2, 15)),
            ("atlas", (2, 1)),
            ("atlas/20", (2, 20)),
            ("3/4", (3, 4)),
        ] {
            let tag = registry.find(name).unwrap();
            assert_eq!((tag.experiment(), tag.activity()), expected, "{name}");
        }
    }

    #[test]
    fn name_that_the_registry_does_not_have_is_an_error() {
        let registry = Registry::parse(TEXT.as_bytes()).unwrap();
        for name in ["cms", "huge", "atlas/Wrong", "atlas/", "", "atlas/64", "2000/1"] {
            assert!(registry.find(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn text_of_another_form_is_an_error() {
        for wrong in
            ["", "{}", "[]", "{\"experiments\":[{}]}", "{\"experiments\":[{\"expName\":\"a\",\"expId\":-1}]}"]
        {
            assert!(Registry::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
