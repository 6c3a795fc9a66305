//! The file of results: one JSON object a line, written when a trial has ended.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Measurement, SweepError, Trial, TrialId};

/// Version of the lines. It grows when a field changes its meaning or goes.
const SCHEMA: u32 = 1;
/// How each line begins.
const BEGINNING: &str = "{\"schema\":";

/// The result of one trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    schema: u32,
    /// Which trial.
    #[serde(flatten)]
    pub id: TrialId,
    /// Of the scenario that was run.
    pub fingerprint: String,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With figures.
    Measured(Measurement),
    /// With an error. It is tried again when the sweep goes on.
    Failed(String),
}

/// Results of trials, in memory and, if wanted, in a file.
#[derive(Debug, Default)]
pub struct Store {
    records: Vec<Record>,
    file: Option<(File, PathBuf)>,
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing is not enough while a program that is just being started has a copy of the descriptor.
        if let Some((file, _)) = &self.file {
            let _ = file.unlock();
        }
    }
}

impl Record {
    /// Of a trial.
    pub fn new(trial: &Trial, outcome: Outcome) -> Self {
        Self { schema: SCHEMA, id: trial.id.clone(), fingerprint: trial.fingerprint.clone(), outcome }
    }

    /// The figures, if there are any.
    pub fn measurement(&self) -> Option<&Measurement> {
        match &self.outcome {
            Outcome::Measured(measurement) => Some(measurement),
            Outcome::Failed(_) => None,
        }
    }
}

impl Store {
    /// Without a file.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Opens a file, or makes one, and reads what is in it. A last line that was not written to its end is cut off.
    ///
    /// # Errors
    /// [`SweepError::Store`], also when another sweep writes to it; [`SweepError::Line`]
    pub fn open(path: &Path) -> Result<Self, SweepError> {
        let failed = |error| SweepError::Store { path: path.to_owned(), error };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        file.try_lock().map_err(|error| {
            failed(match error {
                std::fs::TryLockError::WouldBlock => {
                    io::Error::new(ErrorKind::WouldBlock, "another sweep writes to it")
                }
                std::fs::TryLockError::Error(error) => error,
            })
        })?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let records = parse(path, &text[..whole])?;
        let torn = &text[whole..];
        if !torn.is_empty() {
            // Only what a sweep began to write is cut off: the file may be another one, named by mistake.
            if !torn.starts_with(BEGINNING) && !BEGINNING.starts_with(torn) {
                let line = text[..whole].lines().count() + 1;
                let message = "the last line is something else".to_owned();
                return Err(SweepError::Line { path: path.to_owned(), line, message });
            }
            file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        }
        Ok(Self { records, file: Some((file, path.to_owned())) })
    }

    /// Reads a file without opening it for more.
    ///
    /// # Errors
    /// [`SweepError::Store`], [`SweepError::Line`]
    pub fn read(path: &Path) -> Result<Vec<Record>, SweepError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SweepError::Store { path: path.to_owned(), error })?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        parse(path, &text[..whole])
    }

    /// All results, in the order in which they came.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Those of the scenarios as they were run last: what an earlier version of one gave is no result of the present one.
    pub fn current(&self) -> Vec<Record> {
        let last: HashMap<&TrialId, &str> =
            self.records.iter().map(|record| (&record.id, record.fingerprint.as_str())).collect();
        let is_current = |record: &&Record| last.get(&record.id) == Some(&record.fingerprint.as_str());
        self.records.iter().filter(is_current).cloned().collect()
    }

    /// The figures of this trial, if it has run.
    pub fn measured(&self, trial: &Trial) -> Option<&Record> {
        self.records.iter().rev().find(|record| {
            record.id == trial.id && record.fingerprint == trial.fingerprint && record.measurement().is_some()
        })
    }

    /// Adds a result; it is in the file when this returns.
    ///
    /// # Errors
    /// [`SweepError::Store`]
    pub fn add(&mut self, record: Record) -> Result<(), SweepError> {
        if let Some((file, path)) = &mut self.file {
            let failed = |error| SweepError::Store { path: path.clone(), error };
            let mut line = serde_json::to_vec(&record).map_err(|error| failed(error.into()))?;
            line.push(b'\n');
            file.write_all(&line).map_err(failed)?;
        }
        self.records.push(record);
        Ok(())
    }
}

fn parse(path: &Path, text: &str) -> Result<Vec<Record>, SweepError> {
    let wrong = |line, message| SweepError::Line { path: path.to_owned(), line, message };
    let mut records = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let record: Record =
            serde_json::from_str(line).map_err(|error| wrong(number + 1, error.to_string()))?;
        if record.schema > SCHEMA {
            return Err(wrong(
                number + 1,
                format!("schema {} is newer than this program's {SCHEMA}", record.schema),
            ));
        }
        records.push(record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::library::open;

    fn trial(repetition: u32) -> Trial {
        let id = TrialId {
            scenario: "s".into(),
            program: "p -x".into(),
            values: vec![("streams".into(), "4".into())],
            repetition,
        };
        Trial::new(id, open("metro").unwrap().scenario().unwrap())
    }

    fn measured(goodput: f64) -> Outcome {
        Outcome::Measured(Measurement { goodput, ..Measurement::default() })
    }

    /// As when another thread is just starting a program.
    #[test]
    fn a_copy_of_the_descriptor_keeps_no_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results");
        let store = Store::open(&path).unwrap();
        let _copy = store.file.as_ref().unwrap().0.try_clone().unwrap();
        drop(store);
        Store::open(&path).unwrap();
    }

    #[test]
    fn a_sweep_goes_on_after_it_was_killed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sweep.jsonl");
        let mut store = Store::open(&path).unwrap();
        store.add(Record::new(&trial(0), measured(1.0))).unwrap();
        store.add(Record::new(&trial(1), Outcome::Failed("no".into()))).unwrap();
        store.add(Record::new(&trial(2), measured(3.0))).unwrap();
        assert!(matches!(Store::open(&path), Err(SweepError::Store { .. })), "two at the same time");
        drop(store);
        // The last line was torn.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 10]).unwrap();

        let mut store = Store::open(&path).unwrap();
        assert!(store.measured(&trial(0)).is_some());
        assert!(store.measured(&trial(1)).is_none(), "what failed is tried again");
        assert!(store.measured(&trial(2)).is_none());
        store.add(Record::new(&trial(2), measured(4.0))).unwrap();
        assert_eq!(Store::read(&path).unwrap(), store.records());
        assert_eq!(store.records().len(), 3);
    }

    #[test]
    fn another_scenario_is_another_trial() {
        let mut store = Store::in_memory();
        store.add(Record::new(&trial(0), measured(1.0))).unwrap();
        let mut changed = trial(0).scenario;
        changed.links[0].offload = false;
        let changed = Trial::new(trial(0).id, changed);
        assert!(store.measured(&changed).is_none());
        store.add(Record::new(&trial(1), measured(3.0))).unwrap();
        assert_eq!(store.current(), store.records());
        store.add(Record::new(&changed, measured(2.0))).unwrap();
        assert_eq!(store.current(), store.records()[1..]);
    }

    #[test]
    fn other_files_are_not_taken_for_results() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, "hello\n").unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("x:1: expected a result"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello\n");
        // Not even where its last line has no end, as a torn result has none.
        for text in ["hello", "\nhello", "{\"schedule\": 1}"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(Store::open(&path), Err(SweepError::Line { .. })), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, "{\"sch").unwrap();
        assert!(Store::open(&path).unwrap().records().is_empty());
    }
}
