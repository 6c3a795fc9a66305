//! Where the figures come from.
//!
//! Every way to measure is a [`Collector`]: it starts, and later puts what it found into the [`HostProfile`]. What is
//! missing, denied or dies on the way is reported there and keeps nothing else from being measured.

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
    /// Under which it is reported.
    fn name(&self) -> CollectorName;

    /// Begins. Times count from now.
    ///
    /// # Errors
    /// It cannot be used here.
    fn start(&mut self) -> Result<(), Unavailable>;

    /// Looks no more, at once: what is still to be done with what was found is done by [`finish`](Self::finish), after all
    /// have stopped, and takes processor time that is not the transfer's.
    fn stop(&mut self) {}

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
    pub(crate) fn of(what: &str, error: &std::io::Error) -> Self {
        let text = format!("{what}: {error}");
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::Missing(text),
            std::io::ErrorKind::PermissionDenied => Self::Denied(text),
            _ => Self::Failed(text),
        }
    }
}

/// Keeps a tool's text, unless it is too long.
fn keep(profile: &mut HostProfile, name: &str, text: &str) {
    if text.len() <= RawFile::LARGEST {
        profile.raw.push(RawFile { name: name.to_owned(), bytes: text.as_bytes().to_owned() });
    }
}

/// Keeps a tool's file, unless it is too long or not there.
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
