//! Where the figures come from.
//!
//! Every way to measure is a [`Collector`]: it starts, and later puts what it found into the [`HostProfile`]. What is
//! missing, denied or dies on the way is reported there and keeps nothing else from being measured.

mod child;
mod collection;
pub mod facts;
mod files;
pub mod perf;
mod proc;
mod programs;
mod sampler;
mod sock_diag;
pub mod sysstat;
mod tcp;

pub use collection::{Collection, Options};
pub use tcp::{Chosen, Sockets};

use thiserror::Error;

use crate::profile::{CollectorName, CollectorReport, CollectorState, HostProfile};

/// A way to measure.
pub trait Collector: Send {
    /// Under which it is reported.
    fn name(&self) -> CollectorName;

    /// Begins. Times count from now.
    ///
    /// # Errors
    /// It cannot be used here.
    fn start(&mut self) -> Result<(), Unavailable>;

    /// Ends, and puts what was found into `profile`; the result says how it was done.
    ///
    /// # Errors
    /// It broke. What it had until then may be in `profile` nevertheless.
    fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable>;
}

/// Why something was not measured, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unavailable {
    #[error("{0}")]
    Missing(String),
    #[error("{0}")]
    Denied(String),
    #[error("{0}")]
    Failed(String),
}

impl Unavailable {
    fn state(&self) -> CollectorState {
        match self {
            Self::Missing(_) => CollectorState::Missing,
            Self::Denied(_) => CollectorState::Denied,
            Self::Failed(_) => CollectorState::Failed,
        }
    }

    /// By what the kernel says.
    fn of(what: &str, error: &std::io::Error) -> Self {
        let text = format!("{what}: {error}");
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::Missing(text),
            std::io::ErrorKind::PermissionDenied => Self::Denied(text),
            _ => Self::Failed(text),
        }
    }
}

fn report(name: CollectorName, result: &Result<String, Unavailable>) -> CollectorReport {
    match result {
        Ok(detail) => CollectorReport { name, state: CollectorState::Used, detail: detail.clone() },
        Err(error) => CollectorReport { name, state: error.state(), detail: error.to_string() },
    }
}
