//! Creates the hosts and links of a lab, in the order that they need: name, namespaces, disks,
//! hosts, settings, links, addresses, files. No program of the scenario is started. If a step
//! fails, the values created so far are dropped, which removes everything again.

use super::{
    Context, Event, RunError, RunOptions, files,
    lab::{self, Lab, Link},
    registry::Name,
};
use crate::{
    disk::DiskServer,
    emulator::{Emulator, Options, Tun},
    netns::{self, Applied, Base, Ends, HostSpace, SysctlError},
    scenario::Scenario,
};
use rustix::io::Errno;
use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    time::{Instant, SystemTime},
};

/// Real-time priority of the emulator's threads, if the machine permits it.
const REALTIME: u8 = 20;

/// Creates the lab up to the point at which the first program is started.
pub(super) fn build(scenario: &Scenario, options: &RunOptions) -> Result<Lab, RunError> {
    if !rustix::process::geteuid().is_root() {
        return Err(RunError::NotRoot);
    }
    let name = Name::take(options.name.as_deref())?;
    let program = options.program.clone().map_or_else(std::env::current_exe, Ok);
    let context = Context::new(
        name.name.clone(),
        scenario.clone(),
        program.unwrap_or_else(|_| PathBuf::from("ropewalk")),
    );
    if let Some(events) = &options.events {
        events(&Event::Building { lab: context.lab.clone() });
    }
    let base = Base::new().map_err(|error| match error.raw_os_error() {
        // The process is root but lacks capabilities, as in a container.
        Some(code) if code == Errno::PERM.raw_os_error() => RunError::NotRoot,
        _ => RunError::Build { what: "make namespaces".into(), error },
    })?;
    let mut disks = BTreeMap::new();
    for (host, config) in &scenario.hosts {
        let failed = |error| RunError::Build { what: format!("make the directories of {host}"), error };
        base.with_files(|| directories(host)).map_err(failed)?;
        if let Some(disk) = &config.disk {
            let failed = |error: io::Error| match error.kind() {
                ErrorKind::NotFound => RunError::Unsupported {
                    host: host.clone(),
                    message: format!("a limited disk needs FUSE (modprobe fuse): {error}"),
                },
                _ => RunError::Build { what: format!("mount the disk of {host}"), error },
            };
            disks.insert(host.clone(), DiskServer::mount(&base, &Context::disk(host), disk).map_err(failed)?);
        }
    }
    let mut hosts = Vec::new();
    for host in scenario.hosts.keys() {
        let space = HostSpace::new(&base, host, &context.hosts_file(host));
        hosts.push(space.map_err(|error| RunError::Build { what: format!("make the host {host}"), error })?);
    }
    let applied = settings(scenario, &context, &hosts)?;
    let links = links(scenario, &context, &hosts)?;
    addresses(&context, &hosts, &applied)?;
    files::write(&base, &context)?;
    Ok(Lab {
        context,
        options: options.clone(),
        messages: lab::channel(),
        taken: Some(name),
        registration: None,
        control: None,
        recorder: None,
        changes: None,
        traffic: Vec::new(),
        base,
        servers: Vec::new(),
        commands: scenario.commands.iter().map(|_| None).collect(),
        links,
        hosts,
        disks,
        applied,
        zero: Instant::now(),
        started: SystemTime::now(),
        warnings: Default::default(),
    })
}

fn directories(host: &str) -> io::Result<()> {
    for path in [Context::dir(host), Context::disk(host), format!("{}/tmp", Context::dir(host))] {
        fs::create_dir_all(&path)?;
        // Servers may run as another user. Only the lab sees these directories.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o1777))?;
    }
    Ok(())
}

fn settings(
    scenario: &Scenario,
    context: &Context,
    hosts: &[HostSpace],
) -> Result<BTreeMap<String, Applied>, RunError> {
    let mut all = BTreeMap::new();
    for host in hosts {
        let own = scenario.hosts.get(host.name()).map(|host| &host.kernel).cloned().unwrap_or_default();
        let kernel = scenario.kernel.overlaid(&own);
        let forwards = context.topology.of(host.name()).len() > 1;
        let applied = host.spaces().on_network(|| Ok(netns::apply(&kernel, forwards)));
        let applied =
            applied.map_err(|error| RunError::Build { what: format!("enter {}", host.name()), error })?;
        let applied = applied.map_err(|error: SysctlError| RunError::Unsupported {
            host: host.name().to_owned(),
            message: error.explain(),
        })?;
        all.insert(host.name().to_owned(), applied);
    }
    Ok(all)
}

fn links(scenario: &Scenario, context: &Context, hosts: &[HostSpace]) -> Result<Vec<Link>, RunError> {
    let mut links = Vec::new();
    for (index, link) in scenario.links.iter().enumerate() {
        let between = link.between.join(" - ");
        let mut tuns = Vec::new();
        for name in &link.between {
            let interface = context.topology.of(name).iter().find(|interface| interface.link == index);
            let host = hosts.iter().find(|host| host.name() == name);
            let (Some(interface), Some(host)) = (interface, host) else { continue };
            let tun = host.spaces().on_network(|| {
                Tun::open(&interface.name, link.path.mtu, link.offload).map_err(io::Error::other)
            });
            let failed = |error| RunError::Build {
                what: format!("make the interface {} of {name}", interface.name),
                error,
            };
            tuns.push(tun.map_err(failed)?);
        }
        let (Some(right), Some(left)) = (tuns.pop(), tuns.pop()) else { continue };
        let options = Options {
            path: link.path.clone(),
            seed: scenario.seed.wrapping_mul(1000).wrapping_add(index as u64),
            sample: scenario.record.interval.0,
            realtime: Some(REALTIME),
            name: format!("lab-link{index}"),
            ..Options::default()
        };
        let started = Instant::now();
        let emulator = Emulator::start(options, left, right);
        links.push(Link {
            emulator: emulator.map_err(|error| RunError::Emulator { between, error })?,
            started,
            before: Default::default(),
        });
    }
    Ok(links)
}

fn addresses(
    context: &Context,
    hosts: &[HostSpace],
    applied: &BTreeMap<String, Applied>,
) -> Result<(), RunError> {
    for host in hosts {
        let ends = Ends {
            interfaces: context.topology.of(host.name()),
            routes: &context.topology.routes(host.name()).unwrap_or_default(),
            congestion: applied.get(host.name()).and_then(|applied| applied.by_route.as_deref()),
        };
        host.spaces().on_network(|| netns::configure(&ends)).map_err(|error| RunError::Build {
            what: format!("give {} its addresses and routes", host.name()),
            error,
        })?;
    }
    Ok(())
}
