//! The scenarios that are built into the program.

use std::path::Path;

use super::LibraryError;
use crate::scenario::{Document, ScenarioError};

/// A scenario of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// By which it is called.
    pub name: &'static str,
    /// The TOML file.
    pub text: &'static str,
}

macro_rules! entries {
    ($($name:literal),* $(,)?) => {
        &[$(Entry { name: $name, text: include_str!(concat!("../../scenarios/", $name, ".toml")) }),*]
    };
}

/// All of them, from near to far, then the special ones.
pub const SCENARIOS: &[Entry] = entries![
    "metro",
    "metro-lossy",
    "regional",
    "regional-lossy",
    "continental",
    "continental-lossy",
    "transatlantic",
    "transatlantic-lossy",
    "intercontinental",
    "intercontinental-lossy",
    "cross-traffic",
    "bursty-neighbours",
    "changing-path",
    "small-buffers",
    "untuned-server",
    "slow-disk-source",
    "slow-disk-destination",
    "asymmetric",
    "bufferbloat",
    "paper-100ms",
    "paper-20ms",
    "apt-60ms",
    "apt-120ms",
];

impl Entry {
    /// The scenario as a document that can be changed.
    ///
    /// # Errors
    /// None that a test would not have shown.
    pub fn document(&self) -> Result<Document, ScenarioError> {
        Document::parse(self.text, self.name)
    }
}

/// A scenario by its name in the library, or of a file. A name with a `/` or `.toml` is a file.
///
/// # Errors
/// [`LibraryError::NoScenario`], [`LibraryError::Scenario`]
pub fn open(name: &str) -> Result<Document, LibraryError> {
    let file = name.contains('/') || name.ends_with(".toml");
    match SCENARIOS.iter().find(|entry| entry.name == name) {
        Some(entry) if !file => Ok(entry.document()?),
        _ if file || Path::new(name).is_file() => Ok(Document::open(Path::new(name))?),
        _ => {
            let known = SCENARIOS.iter().map(|entry| entry.name).collect();
            Err(LibraryError::NoScenario { name: name.to_owned(), known })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_scenario_loads() {
        for entry in SCENARIOS {
            let scenario = entry.document().unwrap().scenario().unwrap();
            assert!(!scenario.description.is_empty(), "{}", entry.name);
            assert!(
                scenario.hosts.contains_key("left") && scenario.hosts.contains_key("right"),
                "{}",
                entry.name
            );
            assert!(scenario.commands.is_empty(), "{}", entry.name);
            // Its own, on every host: the machine's default would make results differ.
            for host in scenario.hosts.values() {
                assert!(scenario.kernel.overlaid(&host.kernel).congestion.is_some(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn every_file_is_in_the_list() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let files: BTreeSet<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".toml", ""))
            .collect();
        let listed: BTreeSet<String> = SCENARIOS.iter().map(|entry| entry.name.to_owned()).collect();
        assert_eq!(files, listed);
    }

    #[test]
    fn names_and_files() {
        assert!(open("metro").is_ok());
        let error = open("moon").unwrap_err().to_string();
        assert!(error.contains("paper-100ms"), "{error}");
        assert!(matches!(open("./metro"), Err(LibraryError::Scenario(ScenarioError::Read { .. }))));
    }
}
