//! The library of the lab: scenarios of typical paths, and programs that can be run on them.
//!
//! One of [`SCENARIOS`] is a path with two hosts, `left` and `right`, without any program. A
//! [`Program`] adds a server on `right`, a client on `left`, and the files that they transfer. So
//! every program can be run on every path. Those of data nodes ([`OF_NODES`]) are complete.

mod programs;
mod random;
mod scenarios;
mod workload;

pub use programs::{Call, PROGRAMS, Program};
pub use random::RandomPath;
pub use scenarios::{Entry, OF_NODES, SCENARIOS, all, open};
pub use workload::{COMMAND, Direction, Workload, attach};

use crate::scenario::ScenarioError;

/// The reason why a program cannot be attached to a scenario.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The name is neither a file nor a scenario of the library.
    #[error("there is no scenario {name:?}: expected a file, or one of {}", known.join(", "))]
    NoScenario {
        /// The name.
        name: String,
        /// The names of the library.
        known: Vec<&'static str>,
    },
    /// The scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// There is no such program.
    #[error("there is no program {name:?}: expected a file NAME.toml, or one of {}", known.join(", "))]
    NoProgram {
        /// The name.
        name: String,
        /// The names of the library.
        known: Vec<&'static str>,
    },
    /// The description of a program is invalid.
    #[error("program {origin}: {message}")]
    Program {
        /// The file, or the name of the program.
        origin: String,
        /// The error.
        message: String,
    },
    /// The arguments of a program have an unclosed quote.
    #[error("{text:?}: a quote is not closed")]
    Quote {
        /// The text.
        text: String,
    },
    /// The program does not support the action.
    #[error("{program} cannot {action}")]
    Unable {
        /// The name of the program.
        program: String,
        /// The action.
        action: &'static str,
    },
    /// A required program is not installed.
    #[error("{needed} is not installed, {program} needs it: install the package {package}")]
    Missing {
        /// The name of the template.
        program: String,
        /// The program that is missing.
        needed: String,
        /// The Debian package that contains it.
        package: String,
    },
    /// The scenario lacks a host that the library's programs need.
    #[error(
        "{scenario} has no host {host:?}: programs of the library run on `left` (client) and `right` (server)"
    )]
    NoHost {
        /// The title of the scenario.
        scenario: String,
        /// The missing host.
        host: &'static str,
    },
    /// The value of a variable is invalid.
    #[error("variable {name}: {message}")]
    Variable {
        /// The name of the variable.
        name: String,
        /// The error.
        message: String,
    },
}
