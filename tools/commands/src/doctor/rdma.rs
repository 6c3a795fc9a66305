//! `ropewalk doctor --rdma`: checks whether data can go over the `ucx` driver, and by RDMA.
//!
//! The kernel's devices come from `/sys`, transports and devices from the UCX library, and the rate
//! from a transfer within this process over the driver that `cp --stack ucx` uses. A library that
//! is missing is a failed check, not an error of the command.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_profiler::collect::facts::{self, Root};
use ropewalk_profiler::doctor::{Check, CheckState, SCHEMA};
use ropewalk_transport::{Connection, Driver, Options};
use ropewalk_ucx_driver::{Inspection, Resource, Ucx};
use rustix::process::getrlimit;
use serde::Serialize;

use super::{listed, ready};
use crate::exit::Exit;
use crate::output::{colour_wanted, harmless};
use crate::units;

/// The place of the kernel's RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";
/// How long the transfer lasts, and how long it may wait for the driver.
const TRANSFER: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
const BUFFER: usize = 1 << 20;
/// The environment variables that change what UCX sees.
const VARIABLES: [&str; 3] = ["UCX_TLS", "UCX_NET_DEVICES", "ROPEWALK_UCX_LIBRARY"];

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    event: &'static str,
    host: &'a str,
    ready: bool,
    /// The version of UCX, if it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    ucx: Option<&'a str>,
    transports: Vec<Transport<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transfer: Option<Transfer>,
    checks: &'a [Check],
}

#[derive(Serialize)]
struct Transport<'a> {
    name: &'a str,
    device: &'a str,
    rdma: bool,
}

/// A transfer within this process.
#[derive(Clone, Copy, Serialize)]
struct Transfer {
    bytes: u64,
    seconds: f64,
    bytes_per_second: f64,
}

/// A port of a device, as the kernel describes it.
struct Port {
    name: String,
    /// `ACTIVE`, `DOWN` and others.
    state: String,
    link_layer: String,
}

/// Runs the checks and prints them.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn run(json: bool) -> io::Result<Exit> {
    let ucx = Ucx::default();
    let inspection = ucx.inspect();
    let transfer = inspection.is_ok().then(|| transfer(&ucx, TRANSFER));
    let variables = VARIABLES.iter().filter_map(|name| {
        let value = std::env::var_os(name)?;
        Some(format!("{name}={}", value.display()))
    });
    let variables: Vec<String> = variables.collect();
    let checks = [
        library(&inspection),
        devices(&ports(Path::new(DEVICES))),
        transports(&inspection, &variables),
        locked_memory(getrlimit(rustix::process::Resource::Memlock).current),
        loopback(transfer.as_ref()),
    ];
    let host = facts::gather(&Root::default(), &[]).name;
    let mut out = io::stdout().lock();
    if json {
        let found = inspection.as_ref().ok();
        let resources = found.map_or(&[][..], |found| &found.resources);
        let report = Report {
            schema: SCHEMA,
            event: "rdma",
            host: &host,
            ready: ready(&checks),
            ucx: found.map(|found| &*found.version),
            transports: resources.iter().map(Transport::from).collect(),
            transfer: transfer.and_then(Result::ok),
            checks: &checks,
        };
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        let word = if ready(&checks) { "ready" } else { "not ready" };
        let colour = colour_wanted(out.is_terminal());
        write!(out, "{}: data over RDMA: {word}\n{}", harmless(&host), listed(&checks, colour))?;
    }
    Ok(if ready(&checks) { Exit::Done } else { Exit::Failed })
}

impl<'a> From<&'a Resource> for Transport<'a> {
    fn from(resource: &'a Resource) -> Self {
        Self { name: &resource.transport, device: &resource.device, rdma: resource.is_rdma() }
    }
}

fn check(name: &str, state: CheckState, found: String, wanted: &str, why: &'static str) -> Check {
    Check { name: name.to_owned(), state, found, wanted: wanted.to_owned(), why, set: None }
}

fn library(inspection: &io::Result<Inspection>) -> Check {
    let (name, wanted) = ("UCX library", "UCX 1.12 or a later 1.x");
    match inspection {
        Ok(found) => {
            let found = format!("UCX {}", found.version);
            check(name, CheckState::Good, found, wanted, "the driver loads it when it is used, at both ends")
        }
        Err(error) => {
            let why = "install libucx0 (Debian, Ubuntu) or ucx, ucx-ib and ucx-rdmacm (Red Hat) at both ends; \
                       ROPEWALK_UCX_LIBRARY names another file, such as that of HPC-X";
            check(name, CheckState::Bad, error.to_string(), wanted, why)
        }
    }
}

fn devices(ports: &[Port]) -> Check {
    let (name, wanted) = ("RDMA devices of the kernel", "a device with an active port");
    if ports.is_empty() {
        let why = "without one, UCX moves data over TCP; if there is a card, load its driver (lspci and \
                   `rdma link` show both)";
        return check(name, CheckState::Bad, format!("none in {DEVICES}"), wanted, why);
    }
    let active = ports.iter().any(|port| port.state == "ACTIVE");
    let found: Vec<String> = ports
        .iter()
        .map(|Port { name, state, link_layer }| format!("{name} {state} ({link_layer})"))
        .collect();
    let (state, why) = if active {
        (CheckState::Good, "UCX needs them for RDMA")
    } else {
        (
            CheckState::Bad,
            "plug in the cable; InfiniBand needs a subnet manager in the network, RoCE an Ethernet interface \
             that is up",
        )
    };
    check(name, state, found.join(", "), wanted, why)
}

/// `variables` are those of the environment that may hide a transport.
fn transports(inspection: &io::Result<Inspection>, variables: &[String]) -> Check {
    let (name, wanted) = ("transports of UCX", "rc, ud or dc over an RDMA device");
    let Ok(inspection) = inspection else {
        let why = "only the library can name them";
        return check(name, CheckState::Unknown, "no library".to_owned(), wanted, why);
    };
    let names = inspection.resources.iter().map(|one| format!("{} on {}", one.transport, one.device));
    let mut found = names.collect::<Vec<_>>().join(", ");
    if !variables.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(found, " (with {})", variables.join(" "));
    }
    if inspection.resources.iter().any(Resource::is_rdma) {
        return check(name, CheckState::Good, found, wanted, "both ends need one in common");
    }
    let why = "UCX needs its module libuct_ib (ucx-ib on Red Hat), the card's provider for libibverbs \
               (ibverbs-providers on Debian, libibverbs on Red Hat), and UCX_TLS and UCX_NET_DEVICES that \
               do not exclude the device";
    check(name, CheckState::Bad, found, wanted, why)
}

fn locked_memory(limit: Option<u64>) -> Check {
    let state = if limit.is_none() { CheckState::Good } else { CheckState::Advice };
    let found = limit.map_or_else(|| "unlimited".to_owned(), units::size);
    let why = "RDMA devices lock the memory that they use: LimitMEMLOCK=infinity in the systemd unit, \
               `ulimit -l unlimited` in a shell";
    check("locked memory", state, found, "unlimited", why)
}

fn loopback(transfer: Option<&io::Result<Transfer>>) -> Check {
    let (name, wanted) = ("transfer within this host", "any rate");
    match transfer {
        None => check(name, CheckState::Unknown, "no library".to_owned(), wanted, "it goes over the library"),
        Some(Ok(transfer)) => {
            let size = units::size(transfer.bytes);
            let rate = units::link_rate(transfer.bytes_per_second);
            let found = format!("{size} in {:.1} s: {rate}", transfer.seconds);
            let why = "both ends were in this process, over the transport that UCX prefers; compare with \
                       UCX_TLS=rc,self before the command, which permits RDMA alone";
            check(name, CheckState::Good, found, wanted, why)
        }
        Some(Err(error)) => {
            let why = "both ends were in this process: a transport that UCX_TLS permits does not work here, \
                       or cannot notice a dead peer; RDMA without TCP needs the module libuct_rdmacm; \
                       UCX_TLS=tcp,self shows whether TCP works";
            check(name, CheckState::Bad, error.to_string(), wanted, why)
        }
    }
}

/// The ports of the kernel's devices, without those that cannot be read.
fn ports(devices: &Path) -> Vec<Port> {
    let entries = |directory: &Path| {
        let mut names: Vec<_> =
            directory.read_dir().into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        names.sort();
        names
    };
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut ports = Vec::new();
    for device in entries(devices) {
        for port in entries(&device.join("ports")) {
            let read = |file: &str| std::fs::read_to_string(port.join(file)).unwrap_or_default();
            // Such as `4: ACTIVE`.
            let state = read("state");
            let state = state.split_once(':').map_or(&*state, |(_, word)| word).trim().to_owned();
            let link_layer = read("link_layer").trim().to_owned();
            ports.push(Port { name: format!("{}:{}", name(&device), name(&port)), state, link_layer });
        }
    }
    ports
}

/// Moves data between two ends in this process for a while.
fn transfer(driver: &dyn Driver, duration: Duration) -> io::Result<Transfer> {
    let options = Options::default();
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let listener = driver.listen(address.into(), &options)?;
    let mut near = driver.connect(listener.local_addr()?, &options, TIMEOUT)?;
    let late = || io::Error::new(ErrorKind::TimedOut, "the connection does not arrive");
    let mut far = listener.accept(Instant::now() + TIMEOUT)?.ok_or_else(late)?;
    near.set_time_limit(TIMEOUT)?;
    far.set_time_limit(TIMEOUT)?;
    let began = Instant::now();
    let bytes = thread::scope(|scope| {
        let sender = scope.spawn(move || send(&mut *near, began + duration));
        let received = count(&mut *far);
        // A sender without a receiver fails, and does not wait.
        drop(far);
        let sent = sender.join().unwrap_or_else(|_| Err(io::Error::other("the sender has failed")))?;
        let received = received?;
        if received == sent {
            return Ok(received);
        }
        let text = format!("{sent} bytes were sent, and {received} received");
        Err(io::Error::new(ErrorKind::InvalidData, text))
    })?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Transfer { bytes, seconds, bytes_per_second: bytes as f64 / seconds })
}

fn send(connection: &mut dyn Connection, until: Instant) -> io::Result<u64> {
    let data = vec![0x5a; BUFFER];
    let mut sent = 0;
    while Instant::now() < until {
        connection.write_all(&data)?;
        sent += data.len() as u64;
    }
    connection.finish()?;
    Ok(sent)
}

fn count(connection: &mut dyn Connection) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut received = 0;
    loop {
        match connection.read(&mut buffer)? {
            0 => return Ok(received),
            bytes => received += bytes as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    fn inspection(transports: &[&str]) -> io::Result<Inspection> {
        let resource = |transport: &&str| Resource { transport: (*transport).into(), device: "d".into() };
        Ok(Inspection { version: "1.13.1".into(), resources: transports.iter().map(resource).collect() })
    }

    #[test]
    fn ports_of_the_kernel_have_states_and_link_layers() {
        let directory = tempfile::tempdir().unwrap();
        for (port, state, layer) in
            [("mlx5_0/ports/1", "4: ACTIVE\n", "InfiniBand\n"), ("mlx5_1/ports/1", "1: DOWN\n", "")]
        {
            let port = directory.path().join(port);
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), state).unwrap();
            fs::write(port.join("link_layer"), layer).unwrap();
        }
        fs::create_dir(directory.path().join("broken")).unwrap();
        let mut ports = ports(directory.path());
        let found = devices(&ports);
        assert_eq!(
            (found.state, &*found.found),
            (CheckState::Good, "mlx5_0:1 ACTIVE (InfiniBand), mlx5_1:1 DOWN ()")
        );
        ports.remove(0);
        assert_eq!(devices(&ports).state, CheckState::Bad);
        assert!(devices(&[]).found.contains(DEVICES));
    }

    #[test]
    fn transports_without_rdma_are_bad_and_name_the_environment() {
        let variables = ["UCX_TLS=tcp".to_owned()];
        let found = transports(&inspection(&["self", "tcp"]), &variables);
        assert_eq!((found.state, &*found.found), (CheckState::Bad, "self on d, tcp on d (with UCX_TLS=tcp)"));
        assert_eq!(transports(&inspection(&["tcp", "rc_mlx5"]), &[]).state, CheckState::Good);
        let missing = || Err(io::Error::new(ErrorKind::Unsupported, "no UCX"));
        assert_eq!(transports(&missing(), &[]).state, CheckState::Unknown);
        assert_eq!((library(&missing()).state, &*library(&missing()).found), (CheckState::Bad, "no UCX"));
    }

    #[test]
    fn transfer_counts_the_bytes_that_arrive() {
        let transfer = transfer(&ropewalk_transport::Tcp, Duration::from_millis(20)).unwrap();
        assert!(transfer.bytes > 0 && transfer.bytes.is_multiple_of(BUFFER as u64));
        assert_eq!(loopback(Some(&Ok(transfer))).state, CheckState::Good);
        assert_eq!(locked_memory(Some(8 << 20)).state, CheckState::Advice);
    }
}
