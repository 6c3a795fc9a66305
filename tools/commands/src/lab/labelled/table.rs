//! The section of docs/evaluation/profiler.md.

use std::collections::BTreeSet;
use std::fmt::Write;

use ropewalk_lab::report::Table;
use ropewalk_lab::report::findings::Section;
use ropewalk_profiler::verdict::CauseKind;

use super::Judged;
use super::cases::Set;

/// The JSON name with spaces.
pub(super) fn name(kind: CauseKind) -> String {
    let text = serde_json::to_value(kind).ok();
    text.and_then(|text| Some(text.as_str()?.replace('_', " "))).unwrap_or_default()
}

pub(super) fn section(judged: &[Judged]) -> Section {
    let mut text = String::new();
    for (set, heading) in [
        (Set::First, "First set"),
        (Set::Second, "Second set"),
        (Set::Third, "Third set"),
        (Set::Fourth, "Fourth set"),
    ] {
        let set: Vec<&Judged> = judged.iter().filter(|case| case.set == set).collect();
        if set.is_empty() {
            continue;
        }
        let right = set.iter().filter(|case| case.right).count();
        let _ = write!(text, "### {heading}: {right} of {} right\n\n", set.len());
        text += &matrix(&set).markdown();
        text += "\n";
        text += &misses(&set);
        text += &binding(&set);
    }
    Section { name: "labelled", text, charts: vec![] }
}

/// A matrix of labels and first causes; correct ones are marked.
fn matrix(set: &[&Judged]) -> Table {
    let labels: BTreeSet<CauseKind> = set.iter().map(|case| case.label).collect();
    // A right answer by another name of the label counts as the label.
    let said = |case: &Judged| if case.right { Some(case.label) } else { case.first };
    let columns: BTreeSet<Option<CauseKind>> = set.iter().map(|case| said(case)).collect();
    let heading = |kind: &Option<CauseKind>| kind.map_or_else(|| "nothing".to_owned(), name);
    let text = |cell: &[&&Judged]| match (cell.len(), cell.iter().filter(|case| case.right).count()) {
        (0, _) => String::new(),
        (all, 0) => all.to_string(),
        (all, right) if all == right => format!("**{all}**"),
        // The right kind, but at the wrong host.
        (all, right) => format!("**{right}** + {}", all - right),
    };
    let mut table =
        Table::new(["created \\ first verdict".to_owned()].into_iter().chain(columns.iter().map(heading)));
    for label in labels {
        let cell = |column: &Option<CauseKind>| {
            text(&set.iter().filter(|case| case.label == label && said(case) == *column).collect::<Vec<_>>())
        };
        table.row([name(label)].into_iter().chain(columns.iter().map(cell)));
    }
    table
}

/// Whether the created bottleneck really limited the transfers: how close they came to the rate
/// that it permits, and the rate without it.
fn binding(set: &[&Judged]) -> String {
    let sorted = |of: fn(&Judged) -> Option<f64>| {
        let mut ratios: Vec<(f64, &str)> =
            set.iter().filter_map(|case| Some((of(case)?, case.case.as_str()))).collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        ratios
    };
    let reached = sorted(|case| Some(case.rate / case.ceiling?));
    let without = sorted(|case| Some(case.control? / case.rate.max(1.0)));
    let mut text = String::new();
    if let [least, .., most] = reached.as_slice() {
        let _ = writeln!(
            text,
            "Relative to the rate that their parameters permit, {} transfers reached {:.2} in the \
             median, {:.2} (`{}`) to {:.2} (`{}`).",
            reached.len(),
            reached[reached.len() / 2].0,
            least.0,
            least.1,
            most.0,
            most.1
        );
    }
    if !without.is_empty() {
        let all: Vec<String> = without.iter().map(|(ratio, case)| format!("`{case}` {ratio:.1}")).collect();
        let _ = writeln!(text, "Speed-up without the created bottleneck: {}.", all.join(", "));
    }
    if !text.is_empty() {
        text += "\n";
    }
    text
}

fn misses(set: &[&Judged]) -> String {
    let mut text = String::new();
    for case in set.iter().filter(|case| !case.right) {
        let first = case.first.map_or_else(|| "nothing".to_owned(), name);
        let rank = case.rank.map_or_else(|| "not named there".to_owned(), |rank| format!("rank {rank}"));
        let _ = writeln!(
            text,
            "- `{}`: {first} ({:.2}); {} is {rank}.",
            case.case,
            case.confidence,
            name(case.label)
        );
    }
    if !text.is_empty() {
        text += "\n";
    }
    text
}
