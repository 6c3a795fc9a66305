//! Compares programs with static settings on random paths.
//!
//! On each path the static settings of the first program run first, each for some seconds
//! ([`RandomStudy::trials`]). Then the two best and all programs transfer the number of bytes for
//! which the best needs the wanted time ([`RandomStudy::finals`]). These are whole transfers, so
//! that the end of a transfer counts too.

mod results;

pub use results::{Figures, RandomResults, Row, Score};

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::library::{Call, Direction, Program, RandomPath, Workload};
use crate::report::capacity;
use crate::scenario::Document;
use crate::sweep::{Design, Measurement, Record, Spread, Store, SweepError, Trial, trials};

/// A study: the paths, the programs and the static settings.
#[derive(Clone, Debug)]
pub struct RandomStudy {
    /// The paths.
    pub paths: Vec<RandomPath>,
    /// The programs to compare. The static settings use the template of the first one.
    pub programs: Vec<Call>,
    /// The direction of the data.
    pub direction: Direction,
    /// The numbers of streams of the static settings.
    pub streams: Vec<u32>,
    /// Seconds that the best static setting needs for a whole transfer.
    pub seconds: u32,
    /// Seconds after which a run that looks for the best static settings is stopped.
    pub coarse: u32,
    /// Number of whole transfers of each setting and program.
    pub repetitions: u32,
    /// Number of plain cubic flows that run at the same time, in the direction of the data.
    pub beside: u32,
    /// The build of the program ([`build_of`]); results of other builds are not used.
    pub build: String,
    /// Whether results of static settings of any build are used.
    pub any_build: bool,
}

/// A hash of the program's file, which identifies the build.
///
/// # Errors
/// The file cannot be read.
pub fn build_of(program: &Path) -> io::Result<String> {
    Ok(format!("{:016x}", xxh3_64(&fs::read(program)?)))
}

/// The name of the flows that run at the same time.
const BESIDE: &str = "beside";
/// A whole transfer is stopped after this multiple of the wanted time.
const PATIENCE: u32 = 3;
/// Number of the best static settings that make whole transfers.
const BEST: usize = 2;
/// Payload of a packet of 1500 bytes.
const SEGMENT: u32 = 1448;
const BUILD: &str = "build";

/// A program that transfers nothing, to measure the rate of the flows alone.
const IDLE: &str = r#"
about = "nothing"
get = { run = ["sleep", "infinity"], unstored = ["sleep", "infinity"] }
put = { run = ["sleep", "infinity"], unstored = ["sleep", "infinity"] }
"#;

/// The limit of a run.
#[derive(Clone, Copy)]
enum Bound {
    /// The run is stopped after a time in seconds.
    Seconds(u32),
    /// The run ends after a number of bytes.
    Bytes(u64),
}

impl RandomStudy {
    /// Every static setting on every path, for a limited time.
    ///
    /// # Errors
    /// [`SweepError`] if the program does not fit the scenario.
    pub fn trials(&self, store: &Store) -> Result<Vec<Trial>, SweepError> {
        let mut all = Vec::new();
        for path in &self.paths {
            for count in &self.streams {
                all.push(self.coarse(path, *count, store)?);
            }
        }
        Ok(all)
    }

    /// The whole transfers, on those paths whose static settings have results in the store.
    ///
    /// # Errors
    /// The same as those of [`Self::trials`].
    pub fn finals(&self, store: &Store) -> Result<Vec<Trial>, SweepError> {
        let mut all = Vec::new();
        for path in &self.paths {
            let Some(finals) = self.finals_of(path, store)? else { continue };
            let alone = self.alone(path)?;
            all.extend(alone.into_iter().chain(finals.fixed.into_iter().map(|(_, trial)| trial)));
            all.extend(finals.programs);
        }
        // Ordered by rounds.
        all.sort_by_key(|trial| trial.id.repetition);
        Ok(all)
    }

    /// The results of this study in the store.
    ///
    /// # Errors
    /// The same as those of [`Self::trials`].
    pub fn results(&self, store: &Store) -> Result<RandomResults, SweepError> {
        let mut rows = Vec::new();
        for path in &self.paths {
            let coarse = self.swept(path, store)?;
            let Some(finals) = self.finals_of(path, store)? else { continue };
            let mut row = Row::new(path, coarse);
            let measured = |trials: &[Trial]| -> Vec<Measurement> {
                trials.iter().filter_map(|trial| store.measured(trial)?.measurement().cloned()).collect()
            };
            row.alone = Spread::of(measured(&self.alone(path)?).iter().map(beside)).median;
            for count in
                finals.fixed.iter().map(|(count, _)| *count).collect::<std::collections::BTreeSet<_>>()
            {
                let own = finals.fixed.iter().filter(|(other, _)| *other == count);
                let trials: Vec<Trial> = own.map(|(_, trial)| trial.clone()).collect();
                row.fixed(count, Figures::of(&measured(&trials)));
            }
            for call in &self.programs {
                let own = finals.programs.iter().filter(|trial| trial.id.program == call.label);
                let trials: Vec<Trial> = own.cloned().collect();
                row.program(&call.label, Figures::of(&measured(&trials)));
            }
            rows.push(row);
        }
        let programs = self.programs.iter().map(|call| call.label.clone()).collect();
        Ok(RandomResults::new(rows, programs, self.beside > 0))
    }

    /// The static settings that have run, with their rates.
    fn swept(&self, path: &RandomPath, store: &Store) -> Result<Vec<(u32, f64)>, SweepError> {
        let mut swept = Vec::new();
        for count in &self.streams {
            let trial = self.coarse(path, *count, store)?;
            let measured = store.measured(&trial).and_then(|record| record.measurement());
            swept.extend(measured.map(|measured| (*count, measured.goodput)));
        }
        Ok(swept)
    }

    /// The whole transfers on a path. Returns `None` until every static setting has a result; a
    /// failed run counts as a result.
    fn finals_of(&self, path: &RandomPath, store: &Store) -> Result<Option<Finals>, SweepError> {
        for count in &self.streams {
            let trial = self.coarse(path, *count, store)?;
            let ran = |record: &Record| record.id == trial.id && record.fingerprint == trial.fingerprint;
            if !store.records().iter().any(ran) {
                return Ok(None);
            }
        }
        let mut swept = self.swept(path, store)?;
        swept.sort_by(|a, b| b.1.total_cmp(&a.1));
        let Some((_, best)) = swept.first().copied() else { return Ok(None) };
        let bytes = Bound::Bytes(two_digits(best / 8.0 * f64::from(self.seconds)));
        let mut finals = Finals { fixed: Vec::new(), programs: Vec::new() };
        for (count, _) in swept.into_iter().take(BEST) {
            let trials = self.some(path, &self.of_streams(count)?, bytes, self.repetitions)?;
            finals.fixed.extend(trials.into_iter().map(|trial| (count, self.known(trial, store))));
        }
        for call in &self.programs {
            finals.programs.extend(self.some(path, call, bytes, self.repetitions)?);
        }
        Ok(Some(finals))
    }

    fn coarse(&self, path: &RandomPath, count: u32, store: &Store) -> Result<Trial, SweepError> {
        let trials = self.some(path, &self.of_streams(count)?, Bound::Seconds(self.coarse), 1)?;
        let trial =
            trials.into_iter().next().ok_or_else(|| SweepError::NoCommands { scenario: path.name() })?;
        Ok(self.known(trial, store))
    }

    /// Runs of the flows without a transfer.
    fn alone(&self, path: &RandomPath) -> Result<Vec<Trial>, SweepError> {
        if self.beside == 0 {
            return Ok(Vec::new());
        }
        let program = Program::parse("nothing", IDLE)?;
        let call = Call { program, words: Vec::new(), label: "nothing".to_owned() };
        self.some(path, &call, Bound::Seconds(self.seconds), self.repetitions)
    }

    fn of_streams(&self, count: u32) -> Result<Call, SweepError> {
        let program = self.programs.first().map_or("ropewalk", |call| &call.program.name);
        Ok(Call::parse(&format!("{program} --streams {count}"))?)
    }

    /// With `any_build`, returns the same trial of another build if the store has only that one.
    fn known(&self, trial: Trial, store: &Store) -> Trial {
        if !self.any_build || store.measured(&trial).is_some() {
            return trial;
        }
        let without = |values: &[(String, String)]| -> Vec<(String, String)> {
            values.iter().filter(|(name, _)| name != BUILD).cloned().collect()
        };
        let values = without(&trial.id.values);
        let same = store.records().iter().rev().find(|record| {
            record.measurement().is_some()
                && record.fingerprint == trial.fingerprint
                && (&record.id.scenario, &record.id.program) == (&trial.id.scenario, &trial.id.program)
                && record.id.repetition == trial.id.repetition
                && without(&record.id.values) == values
        });
        match same {
            Some(record) => Trial { id: record.id.clone(), ..trial },
            None => trial,
        }
    }

    fn some(
        &self,
        path: &RandomPath,
        call: &Call,
        bound: Bound,
        repetitions: u32,
    ) -> Result<Vec<Trial>, SweepError> {
        let mut text = path.text();
        if self.beside > 0 {
            let [from, to] = match self.direction {
                Direction::Get => ["right", "left"],
                Direction::Put => ["left", "right"],
            };
            text += &format!(
                "\n[[traffic]]\nname = \"{BESIDE}\"\nfrom = \"{from}\"\nto = \"{to}\"\nflows = {}\n\
                 congestion = \"cubic\"\n",
                self.beside
            );
        }
        let document = Document::parse(&text, &path.name())?;
        let (size, limit) = match bound {
            Bound::Bytes(bytes) => (bytes, self.seconds * PATIENCE),
            Bound::Seconds(seconds) => {
                let most = capacity(&document.scenario()?, self.direction, seconds.into(), SEGMENT);
                // More bytes than the path can carry in the time. The cast saturates.
                ((1.05 * most / 8.0 * f64::from(seconds)) as u64, seconds)
            }
        };
        let workload = Workload {
            direction: self.direction,
            size: Some(size),
            limit: Some(Duration::from_secs(limit.into())),
            unstored: true,
            ..Workload::default()
        };
        let design = Design { programs: vec![call.clone()], workload, vary: vec![], repetitions };
        let mut all = trials(&path.name(), &document, &design)?;
        let way = if self.direction == Direction::Put { "put" } else { "get" };
        let time = match bound {
            Bound::Bytes(_) => ("whole", self.seconds),
            Bound::Seconds(seconds) => ("seconds", seconds),
        };
        for trial in &mut all {
            let mut add = |name: &str, value: String| trial.id.values.push((name.to_owned(), value));
            add("way", way.to_owned());
            add(time.0, time.1.to_string());
            if self.beside > 0 {
                add(BESIDE, self.beside.to_string());
            }
            add(BUILD, self.build.clone());
        }
        Ok(all)
    }
}

struct Finals {
    /// The number of streams and the trial.
    fixed: Vec<(u32, Trial)>,
    programs: Vec<Trial>,
}

/// The total rate of the flows that ran at the same time, in bits per second.
fn beside(measured: &Measurement) -> f64 {
    measured.traffic.get(BESIDE).copied().unwrap_or(0.0)
}

/// Rounds to two digits, so that a new measurement of a static setting seldom changes the size,
/// which would make all others run again.
fn two_digits(bytes: f64) -> u64 {
    let unit = 10_f64.powf((bytes.max(10.0).log10()).floor() - 1.0);
    // The cast saturates.
    ((bytes / unit).round() * unit) as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sweep::Outcome;

    fn study() -> RandomStudy {
        RandomStudy {
            paths: vec![RandomPath::draw(1), RandomPath::draw(2)],
            programs: ["ropewalk", "ropewalk --streams 2 --congestion bbr"]
                .map(|text| Call::parse(text).unwrap())
                .to_vec(),
            direction: Direction::Get,
            streams: vec![1, 4, 16],
            seconds: 30,
            coarse: 20,
            repetitions: 1,
            beside: 0,
            build: "one".into(),
            any_build: false,
        }
    }

    /// Runs the trials that have no result yet.
    fn run(trials: Vec<Trial>, store: &mut Store) -> usize {
        let wanted: Vec<Trial> = trials.into_iter().filter(|trial| store.measured(trial).is_none()).collect();
        for trial in &wanted {
            let goodput = match trial.id.program.as_str() {
                "ropewalk --streams 4" => 40e6,
                "ropewalk --streams 16" => 50e6,
                "ropewalk" => 45e6,
                _ => 20e6,
            };
            let measurement = Measurement {
                goodput,
                segments: 1000,
                retransmitted: if trial.id.program == "ropewalk" { 10 } else { 5 },
                tail: Some(0.06),
                streams: 9,
                streams_end: 5,
                traffic: [(BESIDE.to_owned(), goodput / 10.0)].into(),
                ..Measurement::default()
            };
            store.add(Record::new(trial, Outcome::Measured(measurement))).unwrap();
        }
        wanted.len()
    }

    #[test]
    fn finals_when_static_settings_have_run_transfer_the_same_bytes() {
        let (study, mut store) = (study(), Store::in_memory());
        assert!(study.finals(&store).unwrap().is_empty());
        assert_eq!(run(study.trials(&store).unwrap(), &mut store), 2 * 3);
        let finals = study.finals(&store).unwrap();
        let names: Vec<&str> = finals[..4].iter().map(|trial| trial.id.program.as_str()).collect();
        assert_eq!(names[..3], ["ropewalk --streams 16", "ropewalk --streams 4", "ropewalk"]);
        // If a static setting failed on a path, the next best one is used.
        let (trials, mut failing) = (study.trials(&store).unwrap(), Store::in_memory());
        failing.add(Record::new(&trials[2], Outcome::Failed("no".into()))).unwrap();
        run(trials[..2].to_vec(), &mut failing);
        let names: Vec<String> =
            study.finals(&failing).unwrap().into_iter().map(|trial| trial.id.program).collect();
        assert_eq!(names[..3], ["ropewalk --streams 4", "ropewalk --streams 1", "ropewalk"]);
        assert_eq!(names.len(), 4);
        // 50 Mbit/s for 30 s are 187.5 MB, which are rounded to 190 MB.
        for trial in &finals {
            assert_eq!(trial.scenario.commands[0].bytes.as_ref().unwrap().to_string(), "190000000");
        }
        assert_eq!(run(finals, &mut store), 2 * 4);
        // Nothing is missing now. For another build everything is missing, except static settings
        // with `any_build`.
        assert_eq!(run(study.trials(&store).unwrap(), &mut store), 0);
        assert_eq!(run(study.finals(&store).unwrap(), &mut store), 0);
        let other = RandomStudy { build: "two".into(), any_build: true, ..study };
        assert_eq!(run(other.trials(&store).unwrap(), &mut store), 0);
        assert_eq!(run(other.finals(&store).unwrap(), &mut store), 2 * 2);
        let strict = RandomStudy { any_build: false, ..other };
        assert_eq!(run(strict.trials(&store).unwrap(), &mut store), 2 * 3);
    }

    #[test]
    fn scores_with_all_results_are_shares_of_the_best_static_setting() {
        let (study, mut store) = (RandomStudy { beside: 2, ..study() }, Store::in_memory());
        run(study.trials(&store).unwrap(), &mut store);
        run(study.finals(&store).unwrap(), &mut store);
        let results = study.results(&store).unwrap();
        assert_eq!(results.rows.len(), 2);
        let score = &results.scores[0];
        assert!((score.median - 0.9).abs() < 1e-9 && (score.worst - 0.9).abs() < 1e-9, "{score:?}");
        assert!((score.retransmitted - 0.01).abs() < 1e-9, "{score:?}");
        assert!((score.retransmitted_static - 0.005).abs() < 1e-9, "{score:?}");
        let text = results.table().text();
        for wanted in ["-p 16", "90.0 %", "1.00 %", "6.0 %", "5 / 9", "4.5"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(json["rows"][0]["path"]["seed"], 1);
        assert!(json["rows"][0]["scenario"].as_str().unwrap().contains("[links.path]"));
    }

    #[test]
    fn two_digits_of_any_size_rounds() {
        assert_eq!([187_500_000.0, 1.0, 99.6].map(two_digits), [190_000_000, 1, 100]);
    }
}
