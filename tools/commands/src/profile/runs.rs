//! The runs of `ropewalk profile`: measures both ends during a transfer of its own or during other
//! traffic.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::{IpAddr, ToSocketAddrs as _, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use ropewalk_client::{Cancel, EventSink, Location, Options, Pair};
use ropewalk_profiler::collect::{self, Sockets};
use ropewalk_profiler::profile::{
    Baselines, Connection, ConnectionSample, HostProfile, KindRate, Outcome, Profile, Role as HostRole,
    SCHEMA, Workload,
};
use ropewalk_profiler::sweep::Sweeps;
use ropewalk_protocol::url::Url;

use super::{LONGEST, Profiled};
use crate::credentials;
use crate::exit::{Exit, usage};
use crate::output::{Human, Loudness, say};
use crate::profiling::baseline;
use crate::profiling::sweep::{self, Design, Plan, Vary};
use crate::profiling::{Ends, Kind, Measured, Moved, SshEnd, run};

/// The inputs of a run.
pub(super) struct Run<'a> {
    pub(super) command: &'a Profiled,
    pub(super) options: &'a Options,
    pub(super) human: &'a Arc<Human>,
    pub(super) cancel: &'a Cancel,
    /// Suppresses problems that an earlier run has reported.
    pub(super) silent: bool,
}

impl Run<'_> {
    /// The event sink for sessions, which own it.
    fn events(&self) -> Arc<dyn EventSink> {
        self.human.clone()
    }

    /// Profiles the requested transfers, one after the other.
    pub(super) fn transfers(&self, pair: &Pair, only: Option<&Url>) -> anyhow::Result<Exit> {
        let command = self.command;
        let knobs = Vary::expand(&command.sweep).map_err(usage)?;
        let design = |kind| Design {
            knobs: &knobs,
            rounds: command.repeat,
            both: command.both,
            pair,
            kind,
            size: command.size,
            options: self.options,
        };
        let kinds: Vec<Option<Kind>> = command.workload.iter().copied().map(Some).collect();
        for kind in kinds.iter().copied().chain(kinds.is_empty().then_some(None)) {
            design(kind).check()?;
        }
        let mut baselines = Baselines::default();
        if !command.baseline.is_empty() {
            let ssh = [&command.ssh_source, &command.ssh_destination];
            baselines = baseline::measure(&baseline::Wanted {
                parts: &command.baseline,
                pair,
                options: self.options,
                ssh: ssh.map(|host| host.as_deref().map(|host| (host, command.collector()))),
                events: &**self.human,
                cancel: self.cancel,
            });
        }
        let complete = |profile: &mut Profile| {
            let reached = baseline::share(&profile.workload, &baselines);
            let streams = profile.sweeps.as_ref().map(Sweeps::streams).unwrap_or_default();
            profile.baselines = Baselines { reached, streams, ..baselines.clone() };
        };
        if command.workload.is_empty() {
            let profiled = self.transfer(pair, self.options, only)?;
            let (mut profile, exit) = self.sweep(profiled, &design(None), only, &baselines);
            complete(&mut profile);
            return command.tell(&profile, None).map(|()| exit);
        }
        let several = command.workload.len() > 1;
        let (mut exits, mut profiles, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        for kind in &command.workload {
            let pair = kind.pair(pair, command.size, self.options)?;
            if several && !command.quiet {
                say(format_args!("ropewalk: {}", kind.name()));
            }
            let profiled = self.transfer(&pair, &kind.options(self.options), only)?;
            let (mut profile, exit) = self.sweep(profiled, &design(Some(*kind)), only, &baselines);
            complete(&mut profile);
            if profile.workload.outcome == Outcome::Done {
                let bytes_per_second = profile.workload.rate();
                kinds.push(KindRate { kind: profile.workload.kind, bytes_per_second });
            }
            profile.baselines.kinds = kinds.clone();
            command.tell(&profile, several.then_some(*kind))?;
            exits.push(exit);
            profiles.push((*kind, profile));
            if self.cancel.is_cancelled() {
                break;
            }
        }
        if let Some(((_, profile), before)) = profiles.split_last_mut() {
            // The next profile contains the earlier ones, too.
            for (kind, profile) in before {
                profile.baselines.kinds = kinds.clone();
                command.write(profile, Some(*kind))?;
            }
            if several && !command.quiet {
                let table = ropewalk_profiler::report::kinds(&profile.baselines);
                std::io::stdout().lock().write_all(table.as_bytes())?;
            }
        }
        Ok(Exit::of_kinds(exits))
    }

    /// Runs the sweep, if one is requested and the first run succeeded.
    fn sweep(
        &self,
        (mut profile, exit): (Profile, Exit),
        design: &Design<'_>,
        only: Option<&Url>,
        baselines: &Baselines,
    ) -> (Profile, Exit) {
        if design.knobs.is_empty() || exit != Exit::Done {
            return (profile, exit);
        }
        self.human.finish();
        let quiet = Arc::new(Human::new(Loudness::Quiet, self.cancel));
        let sink: Arc<dyn EventSink> = quiet.clone();
        let again = Run { human: &quiet, silent: true, ..*self };
        let refusals = |sizes: &[u64]| sweep::refusals(design.pair, sizes, self.options, &sink, self.cancel);
        let plan = Plan::new(design, &profile, baselines, &refusals);
        let tell = |text: String| {
            if !self.command.quiet {
                say(format_args!("ropewalk: {text}"));
            }
        };
        tell(plan.announced(&profile.workload));
        let transfer = |pair: &Pair, options: &Options| Ok(again.transfer(pair, options, only)?.0);
        let sweeps = sweep::run(plan, profile.started, &transfer, self.cancel, &tell);
        let failed =
            sweeps.curves.iter().flat_map(|curve| &curve.points).any(|point| point.failures().count() > 0);
        let exit = match (self.cancel.is_cancelled(), failed) {
            (true, _) => Exit::Interrupted,
            (false, true) => Exit::Failed,
            (false, false) => exit,
        };
        profile.sweeps = Some(sweeps);
        (profile, exit)
    }

    /// Profiles one transfer of our own.
    fn transfer(
        &self,
        pair: &Pair,
        options: &Options,
        only: Option<&Url>,
    ) -> anyhow::Result<(Profile, Exit)> {
        let mut ends = Ends::default();
        ends.silent = self.silent;
        ends.raw = self.command.raw.is_some() && !self.silent;
        self.begin(&mut ends, pair, only)?;
        if ends.is_empty() {
            return Err(usage("neither end can be measured: see the messages above"));
        }
        ends.read_clocks();
        let moved = ends.during(|| run(pair, options, &**self.human, self.cancel));
        let measured = ends.finish();
        let exit = moved.summary.as_ref().map_or(Exit::Failed, Exit::of_summary);
        if let Outcome::Failed(why) = &moved.workload.outcome
            && !self.silent
        {
            say(format_args!(
                "ropewalk: the transfer failed; the report has what was measured until \
                              then: {why}"
            ));
        }
        Ok((put_together(moved, measured), exit))
    }

    /// Starts the measurement at each end, as far as it is requested and possible.
    fn begin(&self, ends: &mut Ends, pair: &Pair, only: Option<&Url>) -> anyhow::Result<()> {
        let command = self.command;
        let here = |location: &Location| !matches!(location, Location::Remote(_));
        let role = match (here(&pair.source), here(&pair.destination)) {
            (true, true) => Some(HostRole::Both),
            (true, false) => Some(HostRole::Source),
            (false, true) => Some(HostRole::Destination),
            (false, false) => None,
        };
        let remote = [
            (&pair.source, HostRole::Source, &command.ssh_source, &pair.destination),
            (&pair.destination, HostRole::Destination, &command.ssh_destination, &pair.source),
        ];
        let mut asked: Option<&Url> = None;
        for (location, role, ssh, other) in remote {
            let Location::Remote(url) = location else {
                if ssh.is_some() {
                    return Err(usage("--ssh-source and --ssh-destination are for ends that are URLs"));
                }
                continue;
            };
            let wanted = !command.local && only.is_none_or(|only| credentials::same_server(only, url));
            if let Some(host) = ssh {
                let collecting = command.collecting(role, &addresses_of(other, url), &url.path, ends.raw);
                let end = SshEnd::start(host, &collecting, role, &self.options.ssh, self.cancel);
                ends.ssh(end, host);
            } else if wanted && asked.is_some_and(|asked| credentials::same_server(asked, url)) {
                ends.is_both();
            } else if wanted {
                ends.server(url, role, None, self.options, &self.events(), self.cancel);
                asked = Some(url);
            }
        }
        if let Some(only) = only
            && asked.is_none()
        {
            return Err(usage(format!("--server {only} is neither the source nor the destination")));
        }
        if let (Some(role), None) = (role, only) {
            let control =
                [&pair.source, &pair.destination].into_iter().filter_map(|location| match location {
                    Location::Remote(url) => Some(url.port),
                    _ => None,
                });
            let paths = [&pair.source, &pair.destination].into_iter().filter_map(|location| match location {
                Location::Local(path) => Some(existing(path)),
                _ => None,
            });
            let measuring = command.measuring();
            ends.here(&collect::Options {
                role,
                sockets: Sockets { own: true, except: control.collect(), ..measuring.sockets },
                programs: vec![std::process::id()],
                paths: paths.chain(measuring.paths).collect(),
                ..measuring
            });
        } else if command.local {
            return Err(usage("--local: the data does not pass this host"));
        }
        Ok(())
    }

    /// Profiles other traffic for a time.
    pub(super) fn others(&self, server: Option<&Url>) -> anyhow::Result<Profile> {
        let command = self.command;
        let seconds = command.seconds.unwrap_or_default().min(LONGEST);
        let mut ends = Ends::default();
        if command.local {
            let measuring = command.measuring();
            ends.here(&collect::Options { role: command.role.into(), ..measuring });
        }
        if let Some(url) = server {
            // The server measures for as long as it permits, which may be less than requested; the
            // result shows it.
            ends.server(url, command.role.into(), None, self.options, &self.events(), self.cancel);
        }
        if ends.is_empty() {
            return Err(usage("nothing can be measured: see the messages above"));
        }
        ends.read_clocks();
        let began = crate::profiling::now();
        let taken = ends.during(|| {
            let (begin, mut taken) = (Instant::now(), Duration::ZERO);
            while taken < seconds && !self.cancel.is_cancelled() {
                thread::sleep(Duration::from_millis(100).min(seconds - taken));
                taken = begin.elapsed();
            }
            taken
        });
        let measured = ends.finish();
        if measured.hosts.is_empty() {
            bail!("nothing was measured: {}", measured.problems.join("; "));
        }
        let (bytes, streams) = seen(&measured.hosts);
        let workload = Workload {
            description: "what others moved".to_owned(),
            bytes,
            streams,
            files: 1,
            files_in_flight: 1,
            seconds: taken.as_secs_f64(),
            ..Workload::default()
        };
        let moved = Moved { began, workload, stages: None, summary: None };
        Ok(put_together(moved, measured))
    }
}

fn put_together(moved: Moved, measured: Measured) -> Profile {
    let mut hosts = measured.hosts;
    // Servers report their own.
    if let Some(host) = measured.here.and_then(|at| hosts.get_mut(at)) {
        host.stages = moved.stages;
    }
    hosts.sort_by_key(|host| !host.role.sends());
    Profile { schema: SCHEMA, started: moved.began, workload: moved.workload, hosts, ..Profile::default() }
}

/// The nearest existing ancestor of a path: new files are made on its file system.
fn existing(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default().join(path);
    here.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// The addresses by which the host at `url` sees the other end of its data connections, as far as
/// they are known here.
fn addresses_of(other: &Location, url: &Url) -> Vec<IpAddr> {
    let resolve = |url: &Url| {
        let port = if url.port == 0 { 22 } else { url.port };
        (url.host.as_str(), port).to_socket_addrs().into_iter().flatten().collect::<Vec<_>>()
    };
    let mut addresses: Vec<IpAddr> = match other {
        Location::Remote(other) => resolve(other).iter().map(|address| address.ip().to_canonical()).collect(),
        // Our address on the way to it; nothing is sent.
        _ => resolve(url)
            .iter()
            .filter_map(|server| {
                let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
                let socket = UdpSocket::bind((any, 0)).ok()?;
                socket.connect(server).ok()?;
                Some(socket.local_addr().ok()?.ip().to_canonical())
            })
            .collect(),
    };
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The bytes that the connections have carried, and the number of connections with data.
fn seen(hosts: &[HostProfile]) -> (u64, u32) {
    let moved =
        |of: fn(&ConnectionSample) -> Option<u64>, first: &ConnectionSample, last: &ConnectionSample| {
            of(last).unwrap_or(0).saturating_sub(of(first).unwrap_or(0))
        };
    let all = hosts.iter().map(|host| {
        let ends: HashSet<(&str, &str)> =
            host.connections.iter().map(|connection| (&*connection.local, &*connection.remote)).collect();
        // A connection whose both ends are on this host was counted twice.
        let twice = |connection: &Connection| {
            connection.local > connection.remote && ends.contains(&(&*connection.remote, &*connection.local))
        };
        let both = host.role == HostRole::Both;
        let sums = host.connections.iter().filter(|connection| !(both && twice(connection)));
        let sums = sums.filter_map(|connection| {
            let (first, last) = (connection.samples.first()?, connection.samples.last()?);
            let sent = moved(|sample| sample.acknowledged, first, last);
            let received = moved(|sample| sample.received, first, last);
            Some(match host.role {
                HostRole::Source => sent,
                HostRole::Destination => received,
                HostRole::Both => sent.max(received),
            })
        });
        let carried: Vec<u64> = sums.filter(|bytes| *bytes > 1 << 20).collect();
        (carried.iter().sum(), carried.len().max(1) as u32)
    });
    all.max().unwrap_or((0, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seen_counts_both_directions_and_local_connections_once() {
        let connection = |local: &str, remote: &str, sent: u64, came: u64| {
            let sample = |part: u64| ConnectionSample {
                time: part as f64,
                acknowledged: Some(sent * part),
                received: Some(came * part),
                ..ConnectionSample::default()
            };
            Connection {
                local: local.into(),
                remote: remote.into(),
                samples: vec![sample(0), sample(1)],
                ..Connection::default()
            }
        };
        let counted = |role, connections| {
            let host = HostProfile { role, connections, ..HostProfile::default() };
            seen(&[host])
        };
        let comes = || vec![connection("a:1", "b:2", 900, 50 << 20)];
        assert_eq!(counted(HostRole::Both, comes()), (50 << 20, 1));
        assert_eq!(counted(HostRole::Source, comes()), (0, 1));
        let within = vec![connection("a:1", "a:2", 0, 30 << 20), connection("a:2", "a:1", 30 << 20, 0)];
        assert_eq!(counted(HostRole::Both, within), (30 << 20, 1));
    }
}
