//! The result file: one JSON object per line, written when a trial has ended. The file is locked,
//! so that only one sweep writes to it. After an interruption the incomplete last line is cut off,
//! and the sweep continues with the trials that have no figures.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Measurement, SweepError, Trial, TrialId};

/// Version of the format of a line. It increases when a field changes its meaning or is removed.
const SCHEMA: u32 = 1;
/// The beginning of each line.
const BEGINNING: &str = "{\"schema\":";

/// The result of one trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    schema: u32,
    /// The trial.
    #[serde(flatten)]
    pub id: TrialId,
    /// The fingerprint of the scenario that was run.
    pub fingerprint: String,
    /// The outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The outcome of a trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The trial has figures.
    Measured(Measurement),
    /// The trial failed with this error. It is run again when the sweep is resumed.
    Failed(String),
}

/// Results of trials, in memory and optionally in a file.
#[derive(Debug, Default)]
pub struct Store {
    records: Vec<Record>,
    file: Option<(File, PathBuf)>,
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing the file would not release the lock if a program that is just being started has a
        // copy of the descriptor.
        if let Some((file, _)) = &self.file {
            let _ = file.unlock();
        }
    }
}

impl Record {
    /// The record of a trial.
    pub fn new(trial: &Trial, outcome: Outcome) -> Self {
        Self { schema: SCHEMA, id: trial.id.clone(), fingerprint: trial.fingerprint.clone(), outcome }
    }

    /// The figures, if the trial has not failed.
    pub fn measurement(&self) -> Option<&Measurement> {
        match &self.outcome {
            Outcome::Measured(measurement) => Some(measurement),
            Outcome::Failed(_) => None,
        }
    }
}

impl Store {
    /// A store without a file.
    pub fn in_memory() -> Self {
        Self::default()
    }

    /// Opens or creates a file, and reads its records. An incomplete last line is cut off.
    ///
    /// # Errors
    /// [`SweepError::Store`], also if another sweep has the file open; [`SweepError::Line`]
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
            // Only the beginning of a record is cut off, because the user may have named another
            // file by mistake.
            if !torn.starts_with(BEGINNING) && !BEGINNING.starts_with(torn) {
                let line = text[..whole].lines().count() + 1;
                let message = "the last line is something else".to_owned();
                return Err(SweepError::Line { path: path.to_owned(), line, message });
            }
            file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(failed)?;
        }
        Ok(Self { records, file: Some((file, path.to_owned())) })
    }

    /// Reads the records of a file without locking or changing it.
    ///
    /// # Errors
    /// [`SweepError::Store`], [`SweepError::Line`]
    pub fn read(path: &Path) -> Result<Vec<Record>, SweepError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| SweepError::Store { path: path.to_owned(), error })?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        parse(path, &text[..whole])
    }

    /// All records in the order of the file.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The records whose scenario is the same as in the latest record of the same trial. Results of
    /// an earlier version of a scenario are left out.
    pub fn current(&self) -> Vec<Record> {
        let last: HashMap<&TrialId, &str> =
            self.records.iter().map(|record| (&record.id, record.fingerprint.as_str())).collect();
        let is_current = |record: &&Record| last.get(&record.id) == Some(&record.fingerprint.as_str());
        self.records.iter().filter(is_current).cloned().collect()
    }

    /// The latest record with figures of this trial.
    pub fn measured(&self, trial: &Trial) -> Option<&Record> {
        self.records.iter().rev().find(|record| {
            record.id == trial.id && record.fingerprint == trial.fingerprint && record.measurement().is_some()
        })
    }

    /// Adds a record; it is in the file when this function returns.
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

    /// The copy of the descriptor is like one in a child process that another thread is just
    /// starting.
    #[test]
    fn store_when_dropped_releases_the_lock_despite_a_copy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("results");
        let store = Store::open(&path).unwrap();
        let _copy = store.file.as_ref().unwrap().0.try_clone().unwrap();
        drop(store);
        Store::open(&path).unwrap();
    }

    #[test]
    fn store_with_an_incomplete_last_line_cuts_it_off() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sweep.jsonl");
        let mut store = Store::open(&path).unwrap();
        store.add(Record::new(&trial(0), measured(1.0))).unwrap();
        store.add(Record::new(&trial(1), Outcome::Failed("no".into()))).unwrap();
        store.add(Record::new(&trial(2), measured(3.0))).unwrap();
        assert!(matches!(Store::open(&path), Err(SweepError::Store { .. })), "two at the same time");
        drop(store);
        // The last line is incomplete.
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
    fn store_when_the_scenario_changed_has_no_result() {
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
    fn store_on_another_file_fails_and_leaves_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, "hello\n").unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("x:1: expected a result"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "hello\n");
        // This includes files whose last line has no line end, as an incomplete record has none.
        for text in ["hello", "\nhello", "{\"schedule\": 1}"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(Store::open(&path), Err(SweepError::Line { .. })), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, "{\"sch").unwrap();
        assert!(Store::open(&path).unwrap().records().is_empty());
    }
}
