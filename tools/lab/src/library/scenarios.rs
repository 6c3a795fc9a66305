//! The built-in scenarios. Each is a TOML file in `scenarios`.

use std::path::Path;

use super::LibraryError;
use crate::scenario::{Document, ScenarioError};

/// A scenario of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: &'static str,
    /// The text of the TOML file.
    pub text: &'static str,
}

macro_rules! entries {
    ($($name:literal),* $(,)?) => {
        &[$(Entry { name: $name, text: include_str!(concat!("../../scenarios/", $name, ".toml")) }),*]
    };
}

/// The scenarios to which programs can be attached: two hosts, `left` and `right`, and no commands.
/// First the general ones from short to long paths, then the special ones.
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

/// The scenarios of servers with data nodes, which have commands of their own.
pub const OF_NODES: &[Entry] =
    entries!["striped-2", "striped-4", "node-joins", "node-joins-file", "node-dies"];

/// All built-in scenarios.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    SCENARIOS.iter().chain(OF_NODES)
}

impl Entry {
    /// The scenario as a document that can be changed.
    ///
    /// # Errors
    /// The text is invalid, which tests exclude.
    pub fn document(&self) -> Result<Document, ScenarioError> {
        Document::parse(self.text, self.name)
    }
}

/// Opens a scenario by its name in the library, or from a file. A name that contains `/` or ends in
/// `.toml` is a file.
///
/// # Errors
/// [`LibraryError::NoScenario`], [`LibraryError::Scenario`]
pub fn open(name: &str) -> Result<Document, LibraryError> {
    let file = name.contains('/') || name.ends_with(".toml");
    match all().find(|entry| entry.name == name) {
        Some(entry) if !file => Ok(entry.document()?),
        _ if file || Path::new(name).is_file() => Ok(Document::open(Path::new(name))?),
        _ => {
            let known = all().map(|entry| entry.name).collect();
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
    fn scenario_of_every_library_entry_loads() {
        for entry in all() {
            let scenario = entry.document().unwrap().scenario().unwrap();
            assert!(!scenario.description.is_empty(), "{}", entry.name);
            assert!(
                scenario.hosts.contains_key("left") && scenario.hosts.contains_key("right"),
                "{}",
                entry.name
            );
            let own = OF_NODES.iter().any(|other| other.name == entry.name);
            assert_eq!(scenario.commands.is_empty(), !own, "{}", entry.name);
            // Each host must have a congestion control of its own, since with the machine's default
            // the results would differ between machines.
            for host in scenario.hosts.values() {
                assert!(scenario.kernel.overlaid(&host.kernel).congestion.is_some(), "{}", entry.name);
            }
        }
    }

    #[test]
    fn scenarios_in_the_directory_are_all_listed() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
        let files: BTreeSet<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".toml", ""))
            .collect();
        let listed: BTreeSet<String> = all().map(|entry| entry.name.to_owned()).collect();
        assert_eq!(files, listed);
    }

    #[test]
    fn open_by_name_or_file_finds_the_scenario() {
        assert!(open("metro").is_ok());
        let error = open("moon").unwrap_err().to_string();
        assert!(error.contains("paper-100ms"), "{error}");
        assert!(matches!(open("./metro"), Err(LibraryError::Scenario(ScenarioError::Read { .. }))));
    }
}
