//! Compares programs on the same scenario.
//!
//! A match is a sweep ([`crate::sweep`]) whose only parameter is the program. Every round runs each
//! program once, so that disturbances of the machine affect all of them alike.

mod random;

pub use random::{Figures, RandomResults, RandomStudy, Row, Score, build_of};

use crate::report::{Table, digits};
use crate::sweep::{Group, Spread};

/// A table of the programs' medians, with the ratio of each to the first one. `capacity` returns
/// the payload that the path could carry, in bits per second.
pub fn table(groups: &[Group], capacity: impl Fn(&Group) -> f64) -> Table {
    let mut table = Table::new([
        "program",
        "Mbit/s",
        "least",
        "most",
        "ratio",
        "of capacity",
        "streams",
        "loss",
        "RTT ms",
        "CPU s/GB",
        "runs",
    ]);
    let first = groups.first().map_or(0.0, |group| group.goodput.median);
    for group in groups {
        if group.goodput.count == 0 {
            table.row([group.program.clone(), "failed".into()]);
            continue;
        }
        let mbit = |bits: f64| digits(bits / 1e6);
        let Spread { median, min, max, .. } = group.goodput;
        table.row([
            group.program.clone(),
            mbit(median),
            mbit(min),
            mbit(max),
            ratio(median, first).map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            ratio(median, capacity(group))
                .map_or_else(String::new, |share| format!("{:.1} %", share * 100.0)),
            digits(group.streams.median),
            format!("{} %", digits(group.loss.median * 100.0)),
            digits(group.rtt.median * 1e3),
            digits(group.cpu.median),
            group.runs(),
        ]);
    }
    table
}

fn ratio(value: f64, to: f64) -> Option<f64> {
    (to > 0.0 && to.is_finite()).then(|| value / to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(program: &str, goodput: f64, count: usize) -> Group {
        Group {
            scenario: "s".into(),
            program: program.into(),
            values: vec![],
            goodput: Spread { count, median: goodput, min: goodput, max: goodput },
            cpu: Spread::default(),
            streams: Spread { count, median: 8.0, min: 8.0, max: 8.0 },
            loss: Spread::default(),
            rtt: Spread::default(),
            segment: 1448,
            seconds: 30.0,
            failed: 1,
            doubtful: 0,
        }
    }

    #[test]
    fn match_table_has_ratios_to_the_first_program() {
        let groups = [group("a", 80e6, 3), group("b", 20e6, 3), group("c", 0.0, 0)];
        let text = table(&groups, |_| 100e6).text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("1.00") && lines[1].contains("80.0 %"), "{text}");
        assert!(lines[2].contains("0.25") && lines[2].contains("3 (1 failed)"), "{text}");
        assert!(lines[3].contains("failed"), "{text}");
    }
}
