//! The results of programs on random paths. A row has the measurements on one path, and a score
//! summarises one program over all paths. Shares are relative to the best static setting in a whole
//! transfer on the same path.

use serde::Serialize;

use super::beside;
use crate::library::RandomPath;
use crate::report::{Table, digits};
use crate::sweep::{Measurement, Spread};

/// All results of a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RandomResults {
    /// The paths whose static settings have all run.
    pub rows: Vec<Row>,
    /// The programs, each over all paths.
    pub scores: Vec<Score>,
    #[serde(skip)]
    beside: bool,
}

/// The results on one path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The path.
    pub path: RandomPath,
    /// The path in words.
    pub description: String,
    /// The path as a scenario file.
    pub scenario: String,
    /// Numbers of streams and rates in bits per second of the static settings, from the runs of
    /// limited time.
    pub swept: Vec<(u32, f64)>,
    /// The best static setting in a whole transfer.
    pub best: Option<(u32, Figures)>,
    /// The programs; without figures if there is no measurement.
    pub programs: Vec<(String, Option<Figures>)>,
    /// The total rate of the flows without a transfer, in bits per second; 0 if it was not
    /// measured.
    pub alone: f64,
}

/// Medians of the whole transfers of one program on one path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Payload in bits per second.
    pub goodput: f64,
    /// Share of the segments that were retransmitted.
    pub retransmitted: f64,
    /// Share of the time in which the last twentieth of the bytes arrived; absent if no transfer
    /// was complete.
    pub tail: Option<f64>,
    /// Number of connections when that last twentieth began, including control connections.
    pub streams_end: f64,
    /// Maximum number of connections.
    pub streams: f64,
    /// The total rate of the flows that ran at the same time, in bits per second.
    pub beside: f64,
    /// Number of transfers.
    pub runs: usize,
    /// Number of transfers that were stopped before their end.
    pub cut: usize,
    /// Number of transfers whose figures are doubtful.
    pub doubtful: usize,
}

/// A program over all paths. Shares are relative to the goodput of the best static setting on the
/// same path.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// The program with its arguments.
    pub program: String,
    /// Number of paths on which it was measured.
    pub paths: usize,
    /// The median share.
    pub median: f64,
    /// The least share.
    pub worst: f64,
    /// The seed of the path with the least share.
    pub worst_seed: u32,
    /// Number of paths with a share below nine tenths.
    pub below: usize,
    /// Mean share of retransmitted segments.
    pub retransmitted: f64,
    /// Mean share of retransmitted segments of the best static settings on the same paths.
    pub retransmitted_static: f64,
    /// Median and maximum share of the time in which the last twentieth arrived.
    pub tail: [f64; 2],
    /// Median and maximum of that share for the best static settings on the same paths.
    pub tail_static: [f64; 2],
    /// The share of their rate without a transfer that the flows kept, median and minimum; absent
    /// if there were no flows.
    pub kept: Option<[f64; 2]>,
    /// The share that the flows kept next to the best static settings.
    pub kept_static: Option<[f64; 2]>,
}

impl Figures {
    pub(super) fn of(all: &[Measurement]) -> Option<Self> {
        let median = |of: &dyn Fn(&Measurement) -> f64| Spread::of(all.iter().map(of)).median;
        let again = |measured: &Measurement| measured.retransmitted as f64 / measured.segments.max(1) as f64;
        let tails = Spread::of(all.iter().filter_map(|measured| measured.tail));
        (!all.is_empty()).then(|| Self {
            goodput: median(&|measured| measured.goodput),
            retransmitted: median(&again),
            tail: (tails.count > 0).then_some(tails.median),
            streams_end: median(&|measured| measured.streams_end.into()),
            streams: median(&|measured| measured.streams.into()),
            beside: median(&beside),
            runs: all.len(),
            cut: all.iter().filter(|measured| measured.cut).count(),
            doubtful: all.iter().filter(|measured| !measured.warnings.is_empty()).count(),
        })
    }
}

impl Row {
    pub(super) fn new(path: &RandomPath, swept: Vec<(u32, f64)>) -> Self {
        Self {
            path: path.clone(),
            description: path.describe(),
            scenario: path.text(),
            swept,
            best: None,
            programs: Vec::new(),
            alone: 0.0,
        }
    }

    pub(super) fn fixed(&mut self, count: u32, figures: Option<Figures>) {
        let Some(figures) = figures else { return };
        if self.best.as_ref().is_none_or(|(_, best)| best.goodput < figures.goodput) {
            self.best = Some((count, figures));
        }
    }

    pub(super) fn program(&mut self, label: &str, figures: Option<Figures>) {
        self.programs.push((label.to_owned(), figures));
    }

    /// The share of their rate without a transfer that the flows kept.
    fn kept(&self, figures: &Figures) -> Option<f64> {
        (self.alone > 0.0).then(|| figures.beside / self.alone)
    }
}

/// A path, the figures of a program on it, and those of the best static setting.
type Compared<'a> = (&'a Row, &'a Figures, &'a Figures);

impl Score {
    fn of(program: &str, rows: &[Row]) -> Self {
        let measured = |row| {
            let row: &Row = row;
            let best = &row.best.as_ref()?.1;
            let own = row.programs.iter().find(|(label, _)| label == program)?.1.as_ref()?;
            (best.goodput > 0.0).then_some((row, own, best))
        };
        let all: Vec<Compared<'_>> = rows.iter().filter_map(measured).collect();
        let share = |(_, own, best): &Compared<'_>| own.goodput / best.goodput;
        let shares = Spread::of(all.iter().map(share));
        let worst = all.iter().min_by(|a, b| share(a).total_cmp(&share(b)));
        let mean =
            |of: &dyn Fn(&Compared<'_>) -> f64| all.iter().map(of).sum::<f64>() / all.len().max(1) as f64;
        let tail = |of: &dyn Fn(&Compared<'_>) -> Option<f64>| {
            let tails = Spread::of(all.iter().filter_map(of));
            [tails.median, tails.max]
        };
        let kept = |of: &dyn Fn(&Compared<'_>) -> Option<f64>| {
            let kept = Spread::of(all.iter().filter_map(of));
            (kept.count > 0).then_some([kept.median, kept.min])
        };
        Self {
            program: program.to_owned(),
            paths: all.len(),
            median: shares.median,
            worst: shares.min,
            worst_seed: worst.map_or(0, |(row, ..)| row.path.seed),
            below: all.iter().filter(|one| share(one) < 0.9).count(),
            retransmitted: mean(&|(_, own, _)| own.retransmitted),
            retransmitted_static: mean(&|(_, _, best)| best.retransmitted),
            tail: tail(&|(_, own, _)| own.tail),
            tail_static: tail(&|(_, _, best)| best.tail),
            kept: kept(&|(row, own, _)| row.kept(own)),
            kept_static: kept(&|(row, _, best)| row.kept(best)),
        }
    }
}

impl RandomResults {
    pub(super) fn new(rows: Vec<Row>, programs: Vec<String>, beside: bool) -> Self {
        let scores = programs.iter().map(|program| Score::of(program, &rows)).collect();
        Self { rows, scores, beside }
    }

    /// A table with a line for the best static setting of each path, and one for each program.
    pub fn table(&self) -> Table {
        let mut columns = vec![
            "seed and path",
            "setting",
            "Mbit/s",
            "of best static",
            "sent again",
            "last 5 %",
            "connections at the end / most",
        ];
        if self.beside {
            columns.extend(["beside, Mbit/s", "of alone"]);
        }
        columns.push("runs");
        let mut table = Table::new(columns);
        for row in &self.rows {
            let Some((count, best)) = &row.best else { continue };
            let mut name = format!("{}: {}", row.path.seed, row.description);
            let fixed = format!("-p {count}");
            let programs = row.programs.iter().map(|(label, figures)| (label, figures.as_ref()));
            for (label, figures) in std::iter::once((&fixed, Some(best))).chain(programs) {
                let Some(figures) = figures else { continue };
                let mut cells = vec![
                    std::mem::take(&mut name),
                    label.clone(),
                    digits(figures.goodput / 1e6),
                    percent(Some(figures.goodput / best.goodput), 1),
                    percent(Some(figures.retransmitted), 2),
                    percent(figures.tail, 1),
                    format!("{} / {}", figures.streams_end, figures.streams),
                ];
                if self.beside {
                    cells.extend([digits(figures.beside / 1e6), percent(row.kept(figures), 0)]);
                }
                cells.push(figures.runs());
                table.row(cells);
            }
        }
        table
    }

    /// A table with a line for each program, over all paths.
    pub fn summary(&self) -> Table {
        let mut columns = vec![
            "setting",
            "paths",
            "of best static, median",
            "worst (seed)",
            "below 90 %",
            "sent again",
            "best static",
            "last 5 %, median / most",
            "best static",
        ];
        if self.beside {
            columns.extend(["beside keeps, median / least", "best static"]);
        }
        let mut table = Table::new(columns);
        let two = |[one, other]: [f64; 2], places| {
            format!("{} / {}", percent(Some(one), places), percent(Some(other), places))
        };
        for score in &self.scores {
            let mut cells = vec![
                score.program.clone(),
                score.paths.to_string(),
                percent(Some(score.median), 1),
                format!("{} ({})", percent(Some(score.worst), 1), score.worst_seed),
                score.below.to_string(),
                percent(Some(score.retransmitted), 2),
                percent(Some(score.retransmitted_static), 2),
                two(score.tail, 1),
                two(score.tail_static, 1),
            ];
            if self.beside {
                let kept = |kept: Option<[f64; 2]>| kept.map_or_else(String::new, |kept| two(kept, 0));
                cells.extend([kept(score.kept), kept(score.kept_static)]);
            }
            table.row(cells);
        }
        table
    }
}

impl Figures {
    fn runs(&self) -> String {
        let count = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let notes: Vec<String> =
            [count(self.cut, "cut"), count(self.doubtful, "doubtful")].into_iter().flatten().collect();
        if notes.is_empty() { self.runs.to_string() } else { format!("{} ({})", self.runs, notes.join(", ")) }
    }
}

fn percent(share: Option<f64>, places: usize) -> String {
    share.map_or_else(String::new, |share| format!("{:.places$} %", 100.0 * share))
}
