//! The trials of a sweep. A trial is a complete scenario with an identity and a fingerprint. The
//! identity says which combination of values it is, and the fingerprint tells results of different
//! versions of a scenario apart.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{SweepError, Vary};
use crate::library::{Call, Workload, attach};
use crate::scenario::{Document, Scenario, Value};

/// The design of a sweep.
#[derive(Clone, Debug, Default)]
pub struct Design {
    /// The programs. The scenario's own commands if empty.
    pub programs: Vec<Call>,
    /// The data to transfer.
    pub workload: Workload,
    /// The parameters: all combinations of their values.
    pub vary: Vec<Vary>,
    /// Number of repetitions of each trial; the seed increases by one each time.
    pub repetitions: u32,
}

/// The identity of a trial.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TrialId {
    /// The scenario's name.
    pub scenario: String,
    /// The program with its arguments; empty for the scenario's own commands.
    pub program: String,
    /// Names and values of the parameters.
    pub values: Vec<(String, String)>,
    /// The number of the repetition, from 0.
    pub repetition: u32,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The identity.
    pub id: TrialId,
    /// The whole scenario, with the program.
    pub scenario: Scenario,
    /// A hash of the scenario. Results of another version of the scenario have another fingerprint.
    pub fingerprint: String,
}

impl std::fmt::Display for TrialId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let program = if self.program.is_empty() { &self.scenario } else { &self.program };
        write!(formatter, "{program}")?;
        for (name, value) in &self.values {
            write!(formatter, ", {name} {value}")?;
        }
        write!(formatter, ", round {}", self.repetition + 1)
    }
}

impl Trial {
    /// A trial with the fingerprint of its scenario.
    pub fn new(id: TrialId, scenario: Scenario) -> Self {
        let text = serde_json::to_vec(&scenario).unwrap_or_default();
        Self { id, scenario, fingerprint: format!("{:016x}", xxh3_64(&text)) }
    }
}

/// All trials of a design on the scenario `document`, whose name is `name`, ordered by rounds.
///
/// # Errors
/// [`SweepError`] if a parameter has no effect, the scenario rejects a value, or a program does not
/// fit.
pub fn trials(name: &str, document: &Document, design: &Design) -> Result<Vec<Trial>, SweepError> {
    let own = document.scenario()?;
    if design.programs.is_empty() && own.commands.is_empty() {
        return Err(SweepError::NoCommands { scenario: name.to_owned() });
    }
    for vary in &design.vary {
        check_used(name, &own, design, vary)?;
    }
    let mut once = Vec::new();
    for values in combinations(&design.vary) {
        let mut document = document.clone();
        for (name, value) in &values {
            document.set(&field(name), value)?;
        }
        let scenario = document.scenario()?;
        let values: Vec<_> =
            values.iter().map(|(name, value)| ((*name).clone(), value.to_string())).collect();
        if design.programs.is_empty() {
            once.push(Point { program: String::new(), values, scenario });
            continue;
        }
        for call in &design.programs {
            let attached = attach(&scenario, call, &design.workload)?;
            once.push(Point { program: call.label.clone(), values: values.clone(), scenario: attached });
        }
    }
    let rounds = 0..design.repetitions.max(1);
    Ok(rounds.flat_map(|repetition| once.iter().map(move |point| point.trial(name, repetition))).collect())
}

/// A program with one value of each parameter.
struct Point {
    program: String,
    values: Vec<(String, String)>,
    scenario: Scenario,
}

impl Point {
    fn trial(&self, scenario: &str, repetition: u32) -> Trial {
        let id = TrialId {
            scenario: scenario.to_owned(),
            program: self.program.clone(),
            values: self.values.clone(),
            repetition,
        };
        let seed = self.scenario.seed.wrapping_add(u64::from(repetition));
        Trial::new(id, Scenario { seed, ..self.scenario.clone() })
    }
}

/// The field of a parameter. A plain name is a variable, even if the scenario does not have it yet.
fn field(name: &str) -> String {
    if name.contains(['.', '[']) { name.to_owned() } else { format!("variables.{name}") }
}

fn check_used(name: &str, scenario: &Scenario, design: &Design, vary: &Vary) -> Result<(), SweepError> {
    if vary.name.contains(['.', '[']) {
        return Ok(());
    }
    let in_scenario = scenario.variables.contains_key(&vary.name);
    let unused = |program: &str| SweepError::Unused {
        name: vary.name.clone(),
        program: program.to_owned(),
        scenario: name.to_owned(),
    };
    if design.programs.is_empty() && !in_scenario {
        return Err(unused("it"));
    }
    match design.programs.iter().find(|call| !in_scenario && !call.uses(&vary.name, &design.workload)) {
        Some(call) => Err(unused(&call.label)),
        None => Ok(()),
    }
}

/// All combinations of values. The last parameter changes fastest.
fn combinations(vary: &[Vary]) -> Vec<Vec<(&String, &Value)>> {
    vary.iter().fold(vec![vec![]], |all, vary| {
        let with = |before: Vec<(_, _)>| {
            vary.values.iter().map(move |value| {
                let mut values = before.clone();
                values.push((&vary.name, value));
                values
            })
        };
        all.into_iter().flat_map(with).collect()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::library::open;

    fn design(programs: &[&str], vary: &[&str], repetitions: u32) -> Design {
        Design {
            programs: programs.iter().map(|text| Call::parse(text).unwrap()).collect(),
            vary: vary.iter().map(|text| text.parse().unwrap()).collect(),
            repetitions,
            workload: Workload::default(),
        }
    }

    #[test]
    fn trials_with_repetitions_have_each_combination_once_a_round() {
        let paper = open("paper-20ms").unwrap();
        let design = design(&["iperf3", "globus-url-copy"], &["streams=1,2", "buffer=64K,1M,4M"], 3);
        let all = trials("paper-20ms", &paper, &design).unwrap();
        assert_eq!(all.len(), 2 * 2 * 3 * 3);
        assert!(all[..12].iter().all(|trial| trial.id.repetition == 0));
        assert_eq!(all[0].id.to_string(), "iperf3, streams 1, buffer 64K, round 1");
        assert_eq!(all[0].scenario.seed + 1, all[12].scenario.seed);
        let mut prints: Vec<_> = all.iter().map(|trial| &trial.fingerprint).collect();
        prints.sort();
        prints.dedup();
        assert_eq!(prints.len(), all.len());
    }

    #[test]
    fn trials_over_a_field_change_the_scenario() {
        let paper = open("paper-20ms").unwrap();
        let design = design(&["iperf3"], &["links[0].path.both.queue=50,100"], 1);
        let all = trials("paper-20ms", &paper, &design).unwrap();
        assert_ne!(all[0].scenario.links, all[1].scenario.links);
    }

    #[test]
    fn trials_over_an_unused_parameter_are_rejected() {
        let paper = open("paper-20ms").unwrap();
        let error = trials("p", &paper, &design(&["iperf3", "curl"], &["streams=1,2"], 1)).unwrap_err();
        assert!(error.to_string().contains("curl has no option"), "{error}");
        let none = trials("p", &paper, &design(&[], &["streams=1,2"], 1));
        assert!(matches!(none, Err(SweepError::NoCommands { .. })));
    }
}
