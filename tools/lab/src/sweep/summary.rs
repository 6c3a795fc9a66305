//! Summarises the repetitions of trials: medians and bounds of their figures, and the numbers of
//! failed and doubtful trials.

use std::collections::BTreeMap;

use super::Record;

/// The trials that differ only in their repetition.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The scenario's name.
    pub scenario: String,
    /// The program with its arguments.
    pub program: String,
    /// Names and values of the parameters.
    pub values: Vec<(String, String)>,
    /// Payload in bits per second.
    pub goodput: Spread,
    /// CPU seconds of the client per gigabyte (10^9 bytes).
    pub cpu: Spread,
    /// Maximum number of TCP connections at the same time.
    pub streams: Spread,
    /// Share of packets that were lost or dropped.
    pub loss: Spread,
    /// Round trip time in seconds.
    pub rtt: Spread,
    /// Maximum segment size, in bytes of payload.
    pub segment: u32,
    /// Duration of the longest trial in seconds.
    pub seconds: f64,
    /// Number of trials that failed.
    pub failed: usize,
    /// Number of trials whose figures are doubtful.
    pub doubtful: usize,
}

/// The distribution of a value over several repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Number of values.
    pub count: usize,
    /// The median; the mean of the two middle values if their number is even.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The distribution of values in any order. Values that are not finite are ignored. All fields
    /// are 0 if there is no value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else { return Self::default() };
        let count = values.len();
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        Self { count, median, min: *min, max: *max }
    }
}

/// Groups the records, in the order of their first occurrence. A trial that was measured again
/// counts once, with its latest figures.
pub fn groups<'a>(records: impl IntoIterator<Item = &'a Record>) -> Vec<Group> {
    let mut order = Vec::new();
    let mut latest: BTreeMap<_, BTreeMap<u32, &Record>> = BTreeMap::new();
    for record in records {
        let key = (&record.id.scenario, &record.id.program, &record.id.values);
        let group = latest.entry(key).or_insert_with(|| {
            order.push(key);
            BTreeMap::new()
        });
        // A failure does not replace figures of the same trial.
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
    /// The number of trials with figures, and of failed and doubtful ones: `3`, `3 (1 doubtful)`,
    /// `2 (1 failed)`.
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
    fn spread_of_values_has_their_median_and_bounds() {
        let spread = Spread::of([3.0, 1.0, f64::NAN, 2.0]);
        assert_eq!(spread, Spread { count: 3, median: 2.0, min: 1.0, max: 3.0 });
        assert!((Spread::of([1.0, 2.0]).median - 1.5).abs() < 1e-12);
        assert_eq!(Spread::of([]), Spread::default());
    }
}
