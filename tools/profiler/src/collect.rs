//! The collectors: the ways to measure a host during a transfer.
//!
//! Every way to measure is a [`Collector`]. It is started, and when it finishes it puts its results
//! into the [`HostProfile`]. A collector that is missing, denied or dies during the measurement is
//! reported there and does not prevent the others from measuring.

pub(crate) mod child;
mod collection;
mod doing;
pub mod facts;
mod files;
mod owners;
pub mod perf;
mod proc;
mod programs;
mod sampler;
mod sock_diag;
mod stale;
mod subsystems;
pub mod sysstat;
mod tcp;

pub use collection::{Collection, Options};
pub use tcp::{Chosen, Sockets};

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use thiserror::Error;

use crate::profile::{CollectorName, CollectorReport, CollectorState, HostProfile, RawFile};

/// A way to measure.
pub trait Collector: Send {
    /// The name under which the collector is reported.
    fn name(&self) -> CollectorName;

    /// Starts measuring. The times of the samples count from this moment.
    ///
    /// # Errors
    /// The collector cannot be used on this host.
    fn start(&mut self) -> Result<(), Unavailable>;

    /// Stops measuring at once. Results are evaluated later, by [`finish`](Self::finish) after all
    /// collectors have stopped, because this takes processor time that does not belong to the
    /// transfer.
    fn stop(&mut self) {}

    /// Ends the measurement, puts the results into `profile`, and returns a description of how they
    /// were measured.
    ///
    /// # Errors
    /// The collector broke. The results it had until then may be in `profile` nevertheless.
    fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable>;
}

/// The reason why something was not measured, and what would help.
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

    /// Classifies an error of the kernel.
    pub(crate) fn of(what: &str, error: &std::io::Error) -> Self {
        let text = format!("{what}: {error}");
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::Missing(text),
            std::io::ErrorKind::PermissionDenied => Self::Denied(text),
            _ => Self::Failed(text),
        }
    }
}

/// Keeps a tool's text in the profile, unless it is too long.
fn keep(profile: &mut HostProfile, name: &str, text: &str) {
    if text.len() <= RawFile::LARGEST {
        profile.raw.push(RawFile { name: name.to_owned(), bytes: text.as_bytes().to_owned() });
    }
}

/// Keeps a tool's file in the profile, unless it is too long or does not exist.
fn keep_file(profile: &mut HostProfile, name: &str, path: &Path) {
    let mut bytes = Vec::new();
    let read =
        File::open(path).and_then(|file| file.take(RawFile::LARGEST as u64 + 1).read_to_end(&mut bytes));
    if read.is_ok_and(|length| length <= RawFile::LARGEST) {
        profile.raw.push(RawFile { name: name.to_owned(), bytes });
    }
}

fn report(name: CollectorName, result: &Result<String, Unavailable>) -> CollectorReport {
    match result {
        Ok(detail) => CollectorReport { name, state: CollectorState::Used, detail: detail.clone() },
        Err(error) => CollectorReport { name, state: error.state(), detail: error.to_string() },
    }
}
