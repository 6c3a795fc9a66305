//! The running labs of this machine, by name.
//!
//! A lab listens at the abstract Unix address `ropewalk-lab/NAME`, which the kernel removes with
//! the process. A client that connects receives a description of the lab. The address
//! `ropewalk-lab-control/NAME` accepts changes of the lab's paths.

use super::{Context, RunError};
use crate::netns::HostSpace;
use rustix::{
    io::Errno,
    net::{self, AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, shutdown, sockopt},
};
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
    time::{Duration, Instant},
};

const PREFIX: &str = "ropewalk-lab/";
const CONTROL: &str = "ropewalk-lab-control/";

/// A running lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabInfo {
    pub name: String,
    /// The title of its scenario.
    pub scenario: String,
    /// The process that owns the lab.
    pub process: u32,
    /// The hosts by name.
    pub hosts: BTreeMap<String, HostInfo>,
}

/// A host of a running lab.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostInfo {
    /// IP addresses.
    pub addresses: Vec<String>,
    /// Descriptors of the lab's process: network, mounts, host name, process ids.
    pub(super) namespaces: [i32; 4],
    /// The environment of programs on the host.
    pub(super) environment: BTreeMap<String, String>,
    /// The working directory of programs on the host.
    pub(super) directory: String,
}

impl LabInfo {
    /// The description for users who cannot enter the lab. It has no environments, which may
    /// contain passwords.
    fn for_others(&self) -> Self {
        let mut public = self.clone();
        public.hosts.values_mut().for_each(|host| host.environment.clear());
        public
    }
}

/// Owns a name and answers clients until it is dropped.
pub(super) struct Registration {
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
}

/// A unique name, with its listeners.
pub(super) struct Name {
    pub(super) name: String,
    listener: UnixListener,
    control: UnixListener,
}

impl Name {
    /// Takes the given name, or an unused one.
    pub(super) fn take(given: Option<&str>) -> Result<Self, RunError> {
        let failed = |error| RunError::Build { what: "take a name for the lab".into(), error };
        if let Some(name) = given {
            if !fits(name) {
                let message = format!("`{name}`: expected up to 64 letters, digits, `-`, `_` and `.`");
                return Err(failed(io::Error::new(ErrorKind::InvalidInput, message)));
            }
            return match bind(name) {
                Ok([listener, control]) => Ok(Self { name: name.to_owned(), listener, control }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    Err(RunError::NameTaken(name.to_owned()))
                }
                Err(error) => Err(failed(error)),
            };
        }
        for number in 1..10_000 {
            let name = format!("lab{number}");
            match bind(&name) {
                Ok([listener, control]) => return Ok(Self { name, listener, control }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(ErrorKind::AddrInUse.into()))
    }

    /// Answers clients from now on. Returns the listener for changes.
    pub(super) fn answer(self, info: &LabInfo) -> io::Result<(Registration, UnixListener)> {
        let (whole, public) = (serde_json::to_vec(info)?, serde_json::to_vec(&info.for_others())?);
        let listener = Arc::new(self.listener);
        let own = listener.clone();
        let thread = thread::Builder::new().name("lab-registry".into()).spawn(move || {
            loop {
                let mut stream = match own.accept() {
                    Ok((stream, _)) => stream,
                    // The listener was shut down.
                    Err(error) if error.kind() == ErrorKind::InvalidInput => return,
                    Err(_) => {
                        // The process is most likely out of descriptors. The client waits until
                        // there are some.
                        thread::sleep(Duration::from_millis(100));
                        continue;
                    }
                };
                let root = sockopt::socket_peercred(&stream).is_ok_and(|peer| peer.uid.is_root());
                // A client that does not read must not block the other clients.
                let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
                let _ = stream.write_all(if root { &whole } else { &public });
            }
        })?;
        Ok((Registration { listener, thread: Some(thread) }, self.control))
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

/// The description of a lab.
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

fn address(prefix: &str, name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{prefix}{name}"))
}

/// Listens at both addresses of a lab.
fn bind(name: &str) -> io::Result<[UnixListener; 2]> {
    let bind = |prefix| UnixListener::bind_addr(&address(prefix, name)?);
    Ok([bind(PREFIX)?, bind(CONTROL)?])
}

/// The running labs of this machine.
pub fn labs() -> Vec<LabInfo> {
    names().iter().filter_map(|name| ask(name, Duration::ZERO).ok()).collect()
}

/// Whether the name of a lab is valid.
fn fits(name: &str) -> bool {
    let letters = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    letters && (1..=64).contains(&name.len())
}

fn names() -> Vec<String> {
    // Names are bytes, and any user may take any name.
    names_in(&String::from_utf8_lossy(&fs::read("/proc/net/unix").unwrap_or_default()))
}

fn names_in(sockets: &str) -> Vec<String> {
    let mut names: Vec<_> = sockets
        .lines()
        .filter_map(|line| line.rsplit_once(&format!(" @{PREFIX}")).map(|(_, name)| name.to_owned()))
        .filter(|name| fits(name))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Asks a lab for its description.
pub(super) fn find(name: &str) -> Result<LabInfo, RunError> {
    ask(name, BUSY).map_err(|_| missing(name, names()))
}

/// The error for a lab without a description; `taken` are the names in use.
fn missing(name: &str, taken: Vec<String>) -> RunError {
    if taken.iter().any(|other| other == name) {
        return RunError::Silent(name.to_owned());
    }
    RunError::NoSuchLab { name: name.to_owned(), running: taken }
}

fn ask(name: &str, patience: Duration) -> io::Result<LabInfo> {
    let mut stream = connect(PREFIX, name, patience)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Connects to the control socket of a lab.
pub(super) fn control(name: &str) -> io::Result<UnixStream> {
    connect(CONTROL, name, BUSY)
}

/// How long to wait for room in the listen queue of a lab whose name the user gave.
const BUSY: Duration = Duration::from_secs(1);

/// Connects without blocking: any user may take a name and never accept a connection, and once its
/// queue is full, a blocking connect would wait for ever.
fn connect(prefix: &str, name: &str, patience: Duration) -> io::Result<UnixStream> {
    let to = SocketAddrUnix::new_abstract_name(format!("{prefix}{name}").as_bytes())?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let end = Instant::now() + patience;
    loop {
        match net::connect(&socket, &to) {
            Ok(()) => break,
            Err(Errno::AGAIN) if Instant::now() < end => thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    // Any user may listen at such an address; only root's labs can be entered.
    if !sockopt::socket_peercred(&stream)?.uid.is_root() {
        return Err(ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lab_info_for_other_users_has_no_environment() {
        let environment = BTreeMap::from([("PASSWORD".to_owned(), "secret".to_owned())]);
        let host = HostInfo {
            addresses: vec!["10.77.0.1".into()],
            namespaces: [3, 4, 5, 6],
            environment,
            directory: "/d".into(),
        };
        let hosts = BTreeMap::from([("left".to_owned(), host)]);
        let info = LabInfo { name: "lab1".into(), scenario: "s".into(), process: 1, hosts };
        assert!(!format!("{:?}", info.for_others()).contains("secret"));
        assert_eq!(info.for_others().hosts["left"].addresses, info.hosts["left"].addresses);
    }

    #[test]
    fn connect_when_the_owner_never_accepts_does_not_block() {
        let name = format!("test-silent-{}", std::process::id());
        let Ok(_listener) = UnixListener::bind_addr(&address(PREFIX, &name).unwrap()) else {
            panic!("{name}")
        };
        // Connects until the queue is full.
        let mut held = Vec::new();
        let full = loop {
            match connect(PREFIX, &name, Duration::ZERO) {
                Ok(stream) => held.push(stream),
                // The listener does not belong to root.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => return,
                Err(error) => break error,
            }
            assert!(held.len() < 100_000);
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!(labs().iter().all(|lab| lab.name != name));
        let said = missing(&name, names()).to_string();
        assert!(said.contains("does not answer"), "{said}");
    }

    #[test]
    fn missing_lab_is_distinguished_from_a_silent_one() {
        assert!(matches!(missing("a", vec!["b".into()]), RunError::NoSuchLab { .. }));
        assert!(matches!(missing("b", vec!["b".into()]), RunError::Silent(name) if name == "b"));
    }

    #[test]
    fn names_in_sockets_leaves_out_invalid_names() {
        let sockets = "Num RefCount Protocol Flags Type St Inode Path\n\
                       0: 2 0 10000 1 01 71 @ropewalk-lab/lab1\n\
                       0: 2 0 10000 1 01 71 @ropewalk-lab-control/lab1\n\
                       0: 2 0 10000 1 01 72 @ropewalk-lab/\x1b[31mred\n\
                       0: 2 0 10000 1 01 73 /run/other\n";
        assert_eq!(names_in(sockets), ["lab1"]);
    }
}
