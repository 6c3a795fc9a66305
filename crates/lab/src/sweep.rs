//! Many runs: over values of parameters, over programs, again and again.
//!
//! A [`Trial`] is one run of one program with one value of each parameter. [`trials`] makes them, so that each round has
//! all of them once: what disturbs the machine for a while disturbs all alike. [`execute`] runs those that the [`Store`]
//! (a file of JSON lines) does not have yet, so an interrupted sweep goes on where it was. [`groups`] gives medians.

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

/// Why a sweep cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Not `NAME=VALUES`.
    #[error(
        "{given:?}: expected NAME=VALUES, as in streams=1,2,4, streams=1..50, streams=1..50/7 (every 7th) or \
             streams=1..64*2 (doubling)"
    )]
    Vary {
        /// As given.
        given: String,
    },
    /// Nothing depends on it.
    #[error(
        "nothing depends on {name:?}: {program} has no option for it and scenario {scenario} no such variable"
    )]
    Unused {
        /// The parameter.
        name: String,
        /// Of which program.
        program: String,
        /// In which scenario.
        scenario: String,
    },
    /// A scenario that runs nothing.
    #[error("scenario {scenario} has no commands: name a program to run on it")]
    NoCommands {
        /// Its name.
        scenario: String,
    },
    /// The scenario does not take a value.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A program does not fit.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The file of results cannot be used.
    #[error("{}: {error}", path.display())]
    Store {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file of results has a line that is no result.
    #[error("{}:{line}: expected a result of a trial: {message}", path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// No trial can run on this machine.
    #[error(transparent)]
    Run(RunError),
}
