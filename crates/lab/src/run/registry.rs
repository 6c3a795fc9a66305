//! Labs that run on this machine, by name.
//!
//! A lab listens at the abstract Unix address `ropewalk-lab/NAME`, which the kernel forgets with the process. Whoever
//! connects learns what the lab consists of.

use super::{Context, RunError};
use crate::netns::HostSpace;
use rustix::net::{Shutdown, shutdown, sockopt};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

const PREFIX: &str = "ropewalk-lab/";

/// A lab that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabInfo {
    /// Its name.
    pub name: String,
    /// Its scenario's title.
    pub scenario: String,
    /// The process that it belongs to.
    pub process: u32,
    /// Its hosts.
    pub hosts: BTreeMap<String, HostInfo>,
}

/// A host of a lab that runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Descriptors of the lab's process: network, mounts, host name, processes.
    pub(super) namespaces: [i32; 4],
    /// What its programs have in their environment.
    pub(super) environment: BTreeMap<String, String>,
    /// Where its programs start.
    pub(super) directory: String,
}

/// Keeps a name and answers questions, until it is dropped.
pub(super) struct Registration {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

/// A name that nobody else has.
pub(super) struct Name {
    pub(super) name: String,
    listener: UnixListener,
}

impl Name {
    /// Takes a name, or makes one up.
    pub(super) fn take(given: Option<&str>) -> Result<Self, RunError> {
        let failed = |error| RunError::Build { what: "take a name for the lab".into(), error };
        if let Some(name) = given {
            let fits = !name.is_empty()
                && name.len() <= 64
                && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
            if !fits {
                let message = format!("`{name}`: expected up to 64 letters, digits, `-`, `_` and `.`");
                return Err(failed(io::Error::new(ErrorKind::InvalidInput, message)));
            }
            return match bind(name) {
                Ok(listener) => Ok(Self { name: name.to_owned(), listener }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    Err(RunError::NameTaken(name.to_owned()))
                }
                Err(error) => Err(failed(error)),
            };
        }
        for number in 1..10_000 {
            let name = format!("lab{number}");
            match bind(&name) {
                Ok(listener) => return Ok(Self { name, listener }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(ErrorKind::AddrInUse.into()))
    }

    /// Answers from now on.
    pub(super) fn answer(self, info: &LabInfo) -> io::Result<Registration> {
        let answer = serde_json::to_vec(info)?;
        let listener = Arc::new(self.listener);
        let own = listener.clone();
        let thread = thread::Builder::new().name("lab-registry".into()).spawn(move || {
            // Ends when the listener is shut down.
            while let Ok((mut stream, _)) = own.accept() {
                // Nobody may keep the others waiting.
                let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
                let _ = stream.write_all(&answer);
            }
        })?;
        Ok(Registration { listener, thread: Some(thread) })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Wakes the thread.
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What to say of a lab.
pub(super) fn info(context: &Context, hosts: &[HostSpace]) -> Result<LabInfo, RunError> {
    let mut all = BTreeMap::new();
    for host in hosts {
        let interfaces = context.topology.of(host.name());
        let spaces = host.spaces();
        let info = HostInfo {
            addresses: interfaces.iter().flat_map(|end| [end.v4.to_string(), end.v6.to_string()]).collect(),
            namespaces: [&spaces.net, &spaces.mount, &spaces.uts, &spaces.pid].map(AsRawFd::as_raw_fd),
            environment: context.environment(host.name(), &BTreeMap::new())?,
            directory: Context::dir(host.name()),
        };
        all.insert(host.name().to_owned(), info);
    }
    Ok(LabInfo {
        name: context.lab.clone(),
        scenario: context.scenario.title.clone(),
        process: std::process::id(),
        hosts: all,
    })
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{name}"))
}

fn bind(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&address(name)?)
}

/// The labs that run on this machine.
pub fn labs() -> Vec<LabInfo> {
    names().iter().filter_map(|name| ask(name).ok()).collect()
}

fn names() -> Vec<String> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut names: Vec<_> = sockets
        .lines()
        .filter_map(|line| line.rsplit_once(&format!(" @{PREFIX}")).map(|(_, name)| name.to_owned()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Asks a lab what it consists of.
pub(super) fn find(name: &str) -> Result<LabInfo, RunError> {
    ask(name).map_err(|_| RunError::NoSuchLab { name: name.to_owned(), running: names() })
}

fn ask(name: &str) -> io::Result<LabInfo> {
    let mut stream = UnixStream::connect_addr(&address(name)?)?;
    // Any user may listen at such an address; only root's labs can be entered.
    if !sockopt::socket_peercred(&stream)?.uid.is_root() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}
