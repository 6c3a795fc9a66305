//! The transfers of the study.

use std::time::Duration;

use crate::library::{Call, Direction, Entry, SCENARIOS, Workload};
use crate::report::capacity;
use crate::scenario::Scenario;
use crate::sweep::{Design, Group, Record, SweepError, Trial, groups, trials};

pub(super) const GCT: &str = "globus-url-copy";
pub(super) const OURS: &str = "ropewalk";
/// The length of groups that do not record one.
pub(super) const OLD: u32 = 0;

/// A tuned transfer.
pub(super) struct Case {
    /// The name by which a study selects the case; `untuned_name` selects the same transfer without
    /// tuning.
    pub(super) name: &'static str,
    untuned_name: &'static str,
    pub(super) program: &'static str,
    pub(super) direction: Direction,
    /// The heading in the table.
    pub(super) heading: &'static str,
}

const fn case(
    [name, untuned_name]: [&'static str; 2],
    program: &'static str,
    direction: Direction,
    heading: &'static str,
) -> Case {
    Case { name, untuned_name, program, direction, heading }
}

impl Case {
    /// The program for the same transfer without tuning.
    pub(super) fn untuned(&self) -> String {
        format!("{} --tuner fixed", self.program)
    }
}

pub(super) const CASES: [Case; 6] = [
    case(["get", "untuned"], OURS, Direction::Get, "get"),
    case(["put", "untuned-put"], OURS, Direction::Put, "put"),
    case(["third-party", "untuned-third-party"], "ropewalk-third", Direction::Get, "third-party"),
    case(["get-gct", "untuned-get-gct"], "ropewalk-gct", Direction::Get, "get, GCT"),
    case(["put-gct", "untuned-put-gct"], "ropewalk-gct", Direction::Put, "put, GCT"),
    case(
        ["third-party-gct", "untuned-third-party-gct"],
        "ropewalk-third-gct",
        Direction::Get,
        "third-party, GCT",
    ),
];

/// Names of the transfers that the tuned ones are compared with: GCT with its defaults, and the
/// sweep of static settings.
const COMPARED: [&str; 2] = ["gct", "static"];

/// The names that can be used to limit a study.
pub fn live_cases() -> impl Iterator<Item = &'static str> {
    CASES.iter().flat_map(|case| [case.name, case.untuned_name]).chain(COMPARED)
}

/// The study of live tuning.
#[derive(Clone, Debug)]
pub struct LiveStudy {
    /// Names of scenarios of the library; all if empty.
    pub scenarios: Vec<String>,
    /// Names from [`live_cases`]; all if empty.
    pub cases: Vec<String>,
    /// The numbers of streams of the static settings.
    pub streams: Vec<u32>,
    /// Seconds after which a transfer is stopped.
    pub seconds: u32,
    /// Seconds after which a transfer of the sweep of static settings is stopped. The two best
    /// settings of the sweep then run for `seconds`.
    pub coarse: u32,
    /// Number of rounds.
    pub repetitions: u32,
}

impl LiveStudy {
    /// Each case tuned and untuned, GCT with its defaults, and the sweep, on each scenario.
    ///
    /// # Errors
    /// A built-in scenario or program is invalid, which tests exclude.
    pub fn trials(&self) -> Result<Vec<Trial>, SweepError> {
        let mut all = Vec::new();
        for case in CASES.iter().filter(|case| self.wants(case.name)) {
            all.extend(self.everywhere(case.program, case.direction, self.seconds)?);
        }
        for case in CASES.iter().filter(|case| self.wants(case.untuned_name)) {
            all.extend(self.everywhere(&case.untuned(), case.direction, self.seconds)?);
        }
        if self.wants("static") {
            for count in &self.streams {
                all.extend(self.everywhere(&of_streams(*count), Direction::Get, self.coarse)?);
            }
        }
        if self.wants("gct") {
            all.extend(self.everywhere(GCT, Direction::Get, self.seconds)?);
        }
        // Ordered by cases, so that an interrupted study has finished its cases on every scenario.
        all.sort_by_key(|trial| trial.id.repetition);
        Ok(all)
    }

    /// The two best static settings of each scenario at full length, as far as `records` has the
    /// results of the sweep.
    ///
    /// # Errors
    /// The same as those of [`Self::trials`].
    pub fn finals(&self, records: &[Record]) -> Result<Vec<Trial>, SweepError> {
        if !self.wants("static") || self.coarse == self.seconds {
            return Ok(Vec::new());
        }
        let all = groups(records);
        let mut again = Vec::new();
        for entry in self.entries() {
            let swept = |count: &u32| {
                let program = of_streams(*count);
                let of = |group: &&Group| {
                    group.scenario == entry.name
                        && group.program == program
                        && seconds_of(group) == self.coarse
                };
                Some((all.iter().find(of)?.goodput.median, *count))
            };
            let mut best: Vec<(f64, u32)> = self.streams.iter().filter_map(swept).collect();
            best.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (_, count) in best.into_iter().take(2) {
                again.extend(self.one(entry, &of_streams(count), Direction::Get, self.seconds)?);
            }
        }
        again.sort_by_key(|trial| trial.id.repetition);
        Ok(again)
    }

    fn wants(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == name)
    }

    fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        let wanted = |entry: &&Entry| {
            self.scenarios.is_empty() || self.scenarios.iter().any(|name| name == entry.name)
        };
        SCENARIOS.iter().filter(wanted)
    }

    fn everywhere(
        &self,
        program: &str,
        direction: Direction,
        seconds: u32,
    ) -> Result<Vec<Trial>, SweepError> {
        let mut all = Vec::new();
        for entry in self.entries() {
            all.extend(self.one(entry, program, direction, seconds)?);
        }
        Ok(all)
    }

    fn one(
        &self,
        entry: &Entry,
        program: &str,
        direction: Direction,
        seconds: u32,
    ) -> Result<Vec<Trial>, SweepError> {
        let document = entry.document()?;
        let scenario = document.scenario()?;
        let most = capacity(&scenario, direction, seconds.into(), 1448) / 8.0;
        let call = Call::parse(program)?;
        let action = if direction == Direction::Put { &call.program.put } else { &call.program.get };
        // If a disk is the limit, the transfer must use the disk.
        let unstored =
            !has_disk(&scenario) && action.as_ref().is_some_and(|action| action.unstored.is_some());
        // Data must be read from a disk, so the source is not a hole if there is one.
        let hollow = !has_disk(&scenario);
        let largest = match (unstored, hollow) {
            (true, _) => f64::INFINITY,
            (false, true) => half_of_memory(),
            // With a disk the data is in memory twice, at the source and at the destination.
            (false, false) => 0.5 * half_of_memory(),
        };
        let workload = Workload {
            direction,
            // The size is so large that the time limit ends the transfer. The cast saturates.
            size: Some((1.05 * most * f64::from(seconds)).min(largest) as u64),
            limit: Some(Duration::from_secs(seconds.into())),
            unstored,
            hollow,
            ..Workload::default()
        };
        let design = Design { programs: vec![call], workload, vary: vec![], repetitions: self.repetitions };
        let mut all = trials(entry.name, &document, &design)?;
        for trial in &mut all {
            trial.id.values.extend([way(direction), (SECONDS.to_owned(), seconds.to_string())]);
        }
        Ok(all)
    }
}

fn of_streams(count: u32) -> String {
    format!("{OURS} --streams {count}")
}

/// Half of the memory in bytes: stored files are in memory and may take this much of it.
fn half_of_memory() -> f64 {
    let memory = rustix::system::sysinfo();
    0.5 * memory.totalram as f64 * f64::from(memory.mem_unit)
}

fn has_disk(scenario: &Scenario) -> bool {
    scenario.hosts.values().any(|host| host.disk.is_some())
}

const SECONDS: &str = "seconds";

pub(super) fn way(direction: Direction) -> (String, String) {
    let name = if direction == Direction::Put { "put" } else { "get" };
    ("way".to_owned(), name.to_owned())
}

/// The time limit of a group in seconds; [`OLD`] if the group does not record it.
pub(super) fn seconds_of(group: &Group) -> u32 {
    let told = group.values.iter().find(|(name, _)| name == SECONDS);
    told.and_then(|(_, value)| value.parse().ok()).unwrap_or(OLD)
}
