use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::{ConfigError, Problem, Severity};

/// A server cannot start, continue or take new settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Every error that [`Config::check`](crate::Config::check) found.
    #[error("{}", list(.0))]
    Config(Vec<Problem>),
    #[error(transparent)]
    Load(#[from] ConfigError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot open the log {path}: {source}")]
    Log { path: PathBuf, source: io::Error },
    /// The system denies something that it always grants: a poller, a thread, a signal handler.
    #[error("{action}: {source}")]
    System { action: &'static str, source: io::Error },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { action, source }
    }

    /// Fails with the errors among the `problems`.
    pub(crate) fn refuse(problems: Vec<Problem>) -> Result<()> {
        let errors: Vec<_> = problems.into_iter().filter(|p| p.severity == Severity::Error).collect();
        if errors.is_empty() { Ok(()) } else { Err(Self::Config(errors)) }
    }
}

fn list(problems: &[Problem]) -> String {
    let texts: Vec<_> = problems.iter().map(|p| format!("{}: {}", p.setting, p.text)).collect();
    texts.join("; ")
}
