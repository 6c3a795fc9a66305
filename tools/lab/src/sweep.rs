//! Series of runs, over values of parameters and over programs, with repetitions.
//!
//! A [`Trial`] is one run of one program with one value of each parameter. [`trials`] orders them
//! in rounds, each of which has every combination once, so that a temporary disturbance of the
//! machine affects all of them alike. [`execute`] runs the trials that have no result in the
//! [`Store`] (a file of JSON lines) yet, so an interrupted sweep can be resumed. [`groups`] returns
//! medians.

mod execute;
mod measure;
mod store;
mod summary;
mod trial;
mod vary;

pub use execute::{Options, Progress, execute};
pub use measure::{Measurement, SPAN};
pub use store::{Outcome, Record, Store};
pub use summary::{Group, Spread, groups};
pub use trial::{Design, Trial, TrialId, trials};
pub use vary::Vary;

use std::io;
use std::path::PathBuf;

use crate::library::LibraryError;
use crate::run::RunError;
use crate::scenario::ScenarioError;

/// The reason why a sweep cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The text is not `NAME=VALUES`.
    #[error(
        "{given:?}: expected NAME=VALUES, as in streams=1,2,4, streams=1..50, streams=1..50/7 (every 7th) or \
             streams=1..64*2 (doubling)"
    )]
    Vary {
        /// The text.
        given: String,
    },
    /// The parameter has no effect.
    #[error(
        "nothing depends on {name:?}: {program} has no option for it and scenario {scenario} no such variable"
    )]
    Unused {
        /// The parameter.
        name: String,
        /// The program.
        program: String,
        /// The scenario.
        scenario: String,
    },
    /// The scenario has no commands.
    #[error("scenario {scenario} has no commands: name a program to run on it")]
    NoCommands {
        /// The name of the scenario.
        scenario: String,
    },
    /// The scenario does not accept a value.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A program does not fit the scenario.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The result file cannot be used.
    #[error("{}: {error}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A line of the result file is not a result.
    #[error("{}:{line}: expected a result of a trial: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The error.
        message: String,
    },
    /// No trial can run on this machine.
    #[error(transparent)]
    Run(RunError),
}
