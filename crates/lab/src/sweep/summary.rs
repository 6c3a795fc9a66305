//! Repetitions together.

use std::collections::BTreeMap;

use super::Record;

/// Trials that differ in their repetition only.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The scenario's name.
    pub scenario: String,
    /// The program with its arguments.
    pub program: String,
    /// Names and values of the parameters.
    pub values: Vec<(String, String)>,
    /// Bits of payload a second.
    pub goodput: Spread,
    /// CPU seconds of the client for each gigabyte (10^9).
    pub cpu: Spread,
    /// Most TCP connections at the same time.
    pub streams: Spread,
    /// Share of packets that were lost or dropped.
    pub loss: Spread,
    /// Round trip time in seconds.
    pub rtt: Spread,
    /// Largest segment, in bytes of payload.
    pub segment: u32,
    /// Most seconds that a trial took.
    pub seconds: f64,
    /// Trials that failed.
    pub failed: usize,
    /// Trials whose figures are doubtful.
    pub doubtful: usize,
}

/// Values of several repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// How many.
    pub count: usize,
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of values in any order; those that are not finite do not count. All zero if there is none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else { return Self::default() };
        let count = values.len();
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        Self { count, median, min: *min, max: *max }
    }
}

/// Groups of records, in the order in which their first ones came. A trial that was measured again counts once, with its
/// latest figures.
pub fn groups<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Group> {
    let mut order = Vec::new();
    let mut latest: BTreeMap<_, BTreeMap<u32, &Record>> = BTreeMap::new();
    for record in records {
        let key = (&record.id.scenario, &record.id.program, &record.id.values);
        let group = latest.entry(key).or_insert_with(|| {
            order.push(key);
            BTreeMap::new()
        });
        // What failed once and went well later has not failed.
        let failed_now = record.measurement().is_none();
        if !(failed_now
            && group.get(&record.id.repetition).is_some_and(|known| known.measurement().is_some()))
        {
            group.insert(record.id.repetition, record);
        }
    }
    let group = |key: &(&String, &String, &Vec<(String, String)>)| {
        let records = latest.get(key)?;
        let all: Vec<_> = records.values().filter_map(|record| record.measurement()).collect();
        Some(Group {
            scenario: key.0.clone(),
            program: key.1.clone(),
            values: key.2.clone(),
            goodput: Spread::of(all.iter().map(|m| m.goodput)),
            cpu: Spread::of(all.iter().map(|m| m.cpu / (m.bytes as f64 / 1e9))),
            streams: Spread::of(all.iter().map(|m| f64::from(m.streams))),
            loss: Spread::of(all.iter().map(|m| m.loss)),
            rtt: Spread::of(all.iter().map(|m| m.rtt)),
            segment: all.iter().map(|m| m.segment).max().unwrap_or(0),
            seconds: all.iter().map(|m| m.seconds).fold(0.0, f64::max),
            failed: records.len() - all.len(),
            doubtful: all.iter().filter(|m| !m.warnings.is_empty()).count(),
        })
    };
    order.iter().filter_map(group).collect()
}

impl Group {
    /// How many trials there were: `3`, `3 (1 doubtful)`, `2 (1 failed)`.
    pub fn runs(&self) -> String {
        let count = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let notes: Vec<String> =
            [count(self.failed, "failed"), count(self.doubtful, "doubtful")].into_iter().flatten().collect();
        match notes.is_empty() {
            true => self.goodput.count.to_string(),
            false => format!("{} ({})", self.goodput.count, notes.join(", ")),
        }
    }

    /// The value of a parameter.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let spread = Spread::of([3.0, 1.0, f64::NAN, 2.0]);
        assert_eq!(spread, Spread { count: 3, median: 2.0, min: 1.0, max: 3.0 });
        assert!((Spread::of([1.0, 2.0]).median - 1.5).abs() < 1e-12);
        assert_eq!(Spread::of([]), Spread::default());
    }
}
