//! The fixture for the cells of a table: one served directory, the servers on it, and a directory
//! for each cell.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};
use parking_lot::Mutex;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};

/// Cells that need a lot of space run one at a time, over all tables.
pub(crate) static ROOMY: Mutex<()> = Mutex::new(());

/// Bytes that a table needs at most.
const ROOM: u64 = 7 << 30;

pub(crate) struct Yard {
    scratch: Scratch,
    /// A server that did not start fails the cells that need it, with its error.
    servers: Vec<(Kind, bool, Result<Server>)>,
    next: AtomicUsize,
}

impl Yard {
    /// Starts a server of each of `kinds`, on IPv4 and, if `ipv6` is set, on IPv6 too.
    pub(crate) fn open(kinds: &[Kind], ipv6: bool) -> Result<Self> {
        let scratch = Scratch::in_memory(ROOM)?;
        let served = scratch.directory("served")?;
        scratch.directory("local")?;
        let mut servers = Vec::new();
        for &kind in kinds {
            servers.push((kind, false, Setup::new(kind, &served).start()));
            if ipv6 {
                servers.push((kind, true, Setup::new(kind, &served).ipv6().start()));
            }
        }
        Ok(Self { scratch, servers, next: AtomicUsize::new(0) })
    }

    pub(crate) fn server(&self, kind: Kind) -> Result<&Server> {
        self.find(kind, false)
    }

    pub(crate) fn server6(&self, kind: Kind) -> Result<&Server> {
        self.find(kind, true)
    }

    fn find(&self, kind: Kind, ipv6: bool) -> Result<&Server> {
        let found = self.servers.iter().find(|(k, six, _)| *k == kind && *six == ipv6);
        match found {
            Some((_, _, Ok(server))) => Ok(server),
            Some((_, _, Err(error))) => bail!("{error:#}"),
            None => bail!("no {kind:?} server was asked for"),
        }
    }

    /// New directories: one that the servers offer, one that they do not.
    pub(crate) fn plot(&self) -> Result<Plot> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = PathBuf::from(format!("cell{number}"));
        let served = self.scratch.directory(Path::new("served").join(&name))?;
        let local = self.scratch.directory(Path::new("local").join(&name))?;
        Ok(Plot { name, served, local })
    }
}

/// The directories of one cell, removed after it.
pub(crate) struct Plot {
    /// Relative to the served directory.
    pub(crate) name: PathBuf,
    pub(crate) served: PathBuf,
    pub(crate) local: PathBuf,
}

impl Plot {
    /// The path of `name` for [`Server::url`].
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.name.join(name)
    }
}

impl Drop for Plot {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.served);
        let _ = std::fs::remove_dir_all(&self.local);
    }
}
