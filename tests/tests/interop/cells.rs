//! Cells of a table, and how they run.

use std::env;
use std::fmt::Write;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use ropewalk_tests::peers::loudly;

use crate::document::{self, Section};

/// Cells of a table that run at the same time. Two tables run at the same time as well.
const WORKERS: usize = 2;

/// The expected result of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    Works,
    /// A *foreign* program does not support this; the reason becomes a footnote. The cell still
    /// runs and must fail.
    PeerCannot(&'static str),
}

type Run = Box<dyn Fn() -> Result<()> + Send + Sync>;

pub(crate) struct Cell {
    pub(crate) row: String,
    pub(crate) column: String,
    pub(crate) expected: Expected,
    pub(crate) run: Run,
}

impl Cell {
    pub(crate) fn new(
        row: impl Into<String>,
        column: impl Into<String>,
        run: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { row: row.into(), column: column.into(), expected: Expected::Works, run: Box::new(run) }
    }

    pub(crate) fn expected(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    fn name(&self) -> String {
        format!("{}/{}", self.row, self.column)
    }

    /// Returns an error unless the result was the expected one.
    fn check(&self) -> Result<()> {
        match (self.expected, &self.run) {
            (Expected::Works, run) => run(),
            (Expected::PeerCannot(why), run) => match run() {
                Err(_) => Ok(()),
                Ok(()) => Err(anyhow!("works, but the table says that the peer cannot ({why})")),
            },
        }
    }
}

/// Runs all cells, writes the section, and fails if a cell did not have the expected result.
pub(crate) fn run(section: &Section, cells: Vec<Cell>) {
    let filter = env::var("ROPEWALK_TEST_CELLS").ok();
    let chosen: Vec<&Cell> = cells
        .iter()
        .filter(|cell| filter.as_ref().is_none_or(|part| cell.name().contains(part.as_str())))
        .collect();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(cell) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let result = panic::catch_unwind(AssertUnwindSafe(|| cell.check()))
                        .unwrap_or_else(|_| Err(anyhow!("panicked, as told above")));
                    if env::var_os("ROPEWALK_TEST_TIMES").is_some() {
                        loudly(&format!("{:6.2} s {}", begin.elapsed().as_secs_f64(), cell.name()));
                    }
                    if let Err(error) = result {
                        failures.lock().push(format!("{}: {error:#}", cell.name()));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    if !failures.is_empty() {
        let mut text = String::new();
        for failure in &failures {
            let _ = write!(text, "\n\n{failure}");
        }
        panic!("{} of {} cells failed:{text}", failures.len(), chosen.len());
    }
    if filter.is_none() {
        document::write(section, &cells);
    }
}
