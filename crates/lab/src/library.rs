//! What comes with the lab: scenarios of typical paths, and programs to be tried on them.
//!
//! A scenario of the library is a path with two hosts, `left` and `right`, and nothing that runs on it. A [`Program`] adds
//! a server on `right`, a client on `left`, and the files that they move. So every program can be tried on every path.

mod programs;
mod random;
mod scenarios;
mod workload;

pub use programs::{Call, PROGRAMS, Program};
pub use random::RandomPath;
pub use scenarios::{Entry, SCENARIOS, open};
pub use workload::{COMMAND, Direction, Workload, attach};

use crate::scenario::ScenarioError;

/// Why a program cannot be put on a scenario.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A name that is neither a file nor in the library.
    #[error("there is no scenario {name:?}: expected a file, or one of {}", known.join(", "))]
    NoScenario {
        /// As given.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// The scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// No such program.
    #[error("there is no program {name:?}: expected a file NAME.toml, or one of {}", known.join(", "))]
    NoProgram {
        /// As given.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// A program's description is wrong.
    #[error("program {origin}: {message}")]
    Program {
        /// File name or name.
        origin: String,
        /// What is wrong.
        message: String,
    },
    /// The words after a program's name have no end.
    #[error("{text:?}: a quote is not closed")]
    Quote {
        /// As given.
        text: String,
    },
    /// The program cannot do that.
    #[error("{program} cannot {action}")]
    Unable {
        /// Its name.
        program: String,
        /// What was wanted.
        action: &'static str,
    },
    /// A program of another package is not here.
    #[error("{needed} is not installed, {program} needs it: install the package {package}")]
    Missing {
        /// Which template.
        program: String,
        /// Which program.
        needed: String,
        /// The Debian package that has it.
        package: String,
    },
    /// Not a scenario with the library's hosts.
    #[error(
        "{scenario} has no host {host:?}: programs of the library run on `left` (client) and `right` (server)"
    )]
    NoHost {
        /// The scenario's title.
        scenario: String,
        /// Which is missing.
        host: &'static str,
    },
    /// A variable's value does not suit.
    #[error("variable {name}: {message}")]
    Variable {
        /// Which.
        name: String,
        /// What is wrong.
        message: String,
    },
}
