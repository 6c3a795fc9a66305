//! `ropewalk profile`: measures both ends while a transfer runs, and says what held it back.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::net::{IpAddr, ToSocketAddrs as _, UdpSocket};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, ValueEnum};
use ropewalk_client::{Cancel, Location, Options, Pair, parse_location};
use ropewalk_profiler::collect::{self, Sockets};
use ropewalk_profiler::profile::{
    Baselines, ConnectionSample, KindRate, Outcome, Profile, Role as HostRole, SCHEMA, Workload,
};
use ropewalk_profiler::sweep::Sweeps;
use ropewalk_protocol::url::Url;

use crate::credentials;
use crate::exit::{Exit, usage};
use crate::output::{Human, Loudness, colour_wanted, say};
use crate::profiling::baseline::{self, Part};
use crate::profiling::sweep::{self, Design, Plan, Vary};
use crate::profiling::{Ends, Kind, Measured, Moved, SshEnd, collector, raw, run};
use crate::settings::{CopyFlags, Layers, Settings};
use crate::{signals, units, whole};

/// How long a measurement of whatever moves, or one for somebody else, may take.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Measure both ends, their disks and the path while a transfer runs, and name what held it back.
///
/// At each end is measured by this program itself (local paths), by the server (ropewalk's, where its settings have
/// profiling.enabled and name the user), or by a ropewalk that ssh starts there (--ssh-source, --ssh-destination: for any
/// server, GCT's too). An end that cannot be measured is named, and the other one is measured alone.
#[derive(Debug, Args)]
#[command(after_help = crate::exit::HELP)]
pub(crate) struct Profiled {
    /// What is copied where, as with `cp`
    #[arg(value_names = ["SOURCE", "DESTINATION"], num_args = 2, required_unless_present_any = ["collect", "seconds"])]
    places: Vec<OsString>,
    /// In place of the copy: transfers of these kinds, each with a profile of its own (in FILE.KIND.json). Needs, for zeros
    /// at a server, a ropewalk's that takes profiles
    #[arg(long, value_name = "KINDS", value_delimiter = ',', conflicts_with_all = ["seconds", "collect"])]
    workload: Vec<Kind>,
    /// With --workload: how much comes from memory
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "1G")]
    size: u64,
    /// Measure first what parts reach by themselves; the profile tells which share of that the transfer reached
    #[arg(long, value_name = "PARTS", value_delimiter = ',', conflicts_with = "seconds")]
    baseline: Vec<Part>,
    /// Then the same again and again with one setting changed: buffer, streams, block, files or workload, with values as in
    /// streams=1,2,4 or buffer=auto,bdp,64K (may be given for several) [without a value: streams and buffer]
    #[arg(long, value_name = "SETTING=VALUES", num_args = 0..=1, default_missing_value = "",
          conflicts_with_all = ["seconds", "collect"])]
    sweep: Vec<Vary>,
    /// With --sweep: rounds, each of which has every value once, in an order of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// With --sweep: from the destination to the source as well, where nothing is written over by it
    #[arg(long, requires = "sweep")]
    both: bool,
    /// Measure at this host only
    #[arg(long, conflicts_with_all = ["server", "ssh_source", "ssh_destination"])]
    local: bool,
    /// Measure at this server only
    #[arg(long, value_name = "URL", conflicts_with_all = ["ssh_source", "ssh_destination"])]
    server: Option<OsString>,
    /// Without a transfer of its own: measure for so long what others move (with --local or --server). With --collect:
    /// at most
    #[arg(long, value_name = "TIME", value_parser = some_time, conflicts_with = "places")]
    seconds: Option<Duration>,
    /// With --seconds: what the host does meanwhile
    #[arg(long, value_name = "ROLE", default_value = "both")]
    role: Role,
    /// Only connections with this port at either end (may be given several times)
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,
    /// Only connections with this host (may be given several times)
    #[arg(long, value_name = "ADDRESS")]
    peer: Vec<IpAddr>,
    /// Measure the source's host through ssh
    #[arg(long, value_name = "HOST")]
    ssh_source: Option<String>,
    /// Measure the destination's host through ssh
    #[arg(long, value_name = "HOST")]
    ssh_destination: Option<String>,
    /// What ssh runs there [default: ropewalk profile --collect]
    #[arg(long, value_name = "COMMAND")]
    collect_command: Option<String>,
    /// Measure this host for whoever started this: ends with its standard input, and writes what was found to standard
    /// output
    #[arg(long, conflicts_with_all = ["places", "local", "server", "ssh_source", "ssh_destination", "output"])]
    collect: bool,
    /// With --collect or --seconds: a path whose file system matters (may be given several times)
    #[arg(long, value_name = "PATH")]
    path: Vec<PathBuf>,
    /// Do not use perf
    #[arg(long)]
    no_perf: bool,
    /// Do not use sysstat, but what the kernel says itself
    #[arg(long)]
    no_sysstat: bool,
    /// Write the profile (JSON) to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Keep what the tools wrote (sar's file, the same as JSON, perf's report) of each end in this directory, for
    /// `ropewalk report --raw`
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "collect")]
    raw: Option<PathBuf>,
    /// With --collect: give the tools' files as well
    #[arg(long, requires = "collect", hide = true)]
    with_raw: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    flags: CopyFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Source,
    Destination,
    Both,
}

impl From<Role> for HostRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Source => Self::Source,
            Role::Destination => Self::Destination,
            Role::Both => Self::Both,
        }
    }
}

impl Profiled {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        if self.collect && !self.baseline.is_empty() {
            baseline::tell(&self.baseline, self.role.into(), &self.path)?;
            return Ok(Exit::Done);
        }
        if self.collect {
            collector::collect(collector::Wanted {
                role: self.role.into(),
                peers: self.peer,
                ports: self.port,
                paths: self.path,
                longest: self.seconds.unwrap_or(LONGEST).min(LONGEST),
                perf: !self.no_perf,
                sysstat: !self.no_sysstat,
                raw: self.with_raw,
            })?;
            return Ok(Exit::Done);
        }
        let mut server = self.server.as_ref().map(parse_location).transpose()?;
        let mut pair = self.pair()?;
        let Settings { mut options, password_file } = Layers::load(&self.flags.0)?.settings()?;
        let places = pair.iter_mut().flat_map(|pair| [&mut pair.source, &mut pair.destination]);
        credentials::complete(&mut options, password_file.as_deref(), true, places.chain(server.as_mut()))?;
        let server = match server {
            Some(Location::Remote(url)) => Some(url),
            Some(_) => return Err(usage("--server expects the URL of a server")),
            None => None,
        };
        if let (Some(pair), Some(output)) = (&pair, &self.output) {
            spares(pair, output)?;
        }
        raw::can_write(self.raw.as_deref(), self.output.as_deref())?;
        let cancel = Cancel::new();
        signals::watch(&cancel, "ropewalk: stopping; what was measured so far is told")?;
        let loudness = if self.quiet { Loudness::Quiet } else { Loudness::Normal };
        let human = Human::new(loudness, &cancel);
        let run = Run { command: &self, options: &options, human: &human, cancel: &cancel, silent: false };
        let exit = match &pair {
            Some(pair) => run.transfers(pair, server.as_ref()),
            None => {
                run.others(server.as_ref()).and_then(|profile| self.tell(&profile, None)).map(|()| Exit::Done)
            }
        };
        human.finish();
        exit
    }

    fn pair(&self) -> anyhow::Result<Option<Pair>> {
        let [source, destination] = self.places.as_slice() else {
            return match (self.local, &self.server) {
                (false, None) => Err(usage("--seconds without a transfer needs --local or --server")),
                _ => Ok(None),
            };
        };
        let (source, destination) = (parse_location(source)?, parse_location(destination)?);
        if source == Location::Standard || destination == Location::Standard {
            return Err(usage(
                "standard input and output cannot be profiled: name files, or zero: and null:",
            ));
        }
        Ok(Some(Pair { source, destination, window: None }))
    }

    /// What is said does not wait for what is written: that may fail.
    fn tell(&self, profile: &Profile, kind: Option<Kind>) -> anyhow::Result<()> {
        if !self.quiet {
            std::io::stdout().lock().write_all(report(profile).as_bytes())?;
        }
        self.write(profile, kind)
    }

    fn write(&self, profile: &Profile, kind: Option<Kind>) -> anyhow::Result<()> {
        if let Some(directory) = &self.raw {
            raw::write(directory, kind.map(Kind::name), profile)?;
        }
        if let Some(path) = &self.output {
            let path = output_of(path, kind);
            let text = serde_json::to_vec(profile)?;
            whole::write(&path, &text)
                .map_err(|error| anyhow::Error::new(error).context(format!("{}", path.display())))?;
        }
        Ok(())
    }

    fn measuring(&self) -> collect::Options {
        collect::Options {
            perf: !self.no_perf,
            sysstat: !self.no_sysstat,
            sockets: Sockets { ports: self.port.clone(), peers: self.peer.clone(), ..Sockets::default() },
            paths: self.path.clone(),
            raw: self.raw.is_some(),
            ..collect::Options::default()
        }
    }

    /// What ssh runs there, without what is wanted of it.
    fn collector(&self) -> &str {
        self.collect_command.as_deref().unwrap_or("ropewalk profile --collect")
    }

    /// What ssh is to run at an end.
    fn collecting(&self, role: HostRole, peers: &[IpAddr], path: &[u8], raw: bool) -> String {
        let mut command = self.collector().to_owned();
        let role = match role {
            HostRole::Source => "source",
            HostRole::Destination => "destination",
            HostRole::Both => "both",
        };
        command += &format!(" --role {role}");
        let peers = if self.peer.is_empty() { peers } else { &self.peer };
        for peer in peers {
            command += &format!(" --peer {peer}");
        }
        for port in &self.port {
            command += &format!(" --port {port}");
        }
        if let Some(path) = std::str::from_utf8(path).ok().and_then(|path| shlex::try_quote(path).ok()) {
            command += &format!(" --path={path}");
        }
        let flags = [(" --no-perf", self.no_perf), (" --no-sysstat", self.no_sysstat), (" --with-raw", raw)];
        for (flag, given) in flags {
            command += if given { flag } else { "" };
        }
        command
    }
}

/// The file of a profile, or of one of several kinds.
fn output_of(path: &Path, kind: Option<Kind>) -> PathBuf {
    match kind {
        Some(kind) => path.with_extension("").with_added_extension(kind.name()).with_added_extension("json"),
        None => path.to_owned(),
    }
}

/// The profile does not take the place of what is copied.
fn spares(pair: &Pair, output: &Path) -> anyhow::Result<()> {
    let name = match &pair.source {
        Location::Local(path) => path.file_name(),
        Location::Remote(url) => {
            url.path.rsplit(|&byte| byte == b'/').next().map(std::ffi::OsStr::from_bytes)
        }
        Location::Standard | Location::Measure { .. } => None,
    };
    for end in [&pair.source, &pair.destination] {
        let Location::Local(path) = end else { continue };
        // A directory gets the source's name.
        let within = name.map(|name| path.join(name));
        for kind in Kind::value_variants().iter().copied().map(Some).chain([None]) {
            let file = output_of(output, kind);
            if [Some(path), within.as_ref()].into_iter().flatten().any(|copied| whole::is_same(copied, &file))
            {
                return Err(usage(format!("--output {}: that is what is copied", output.display())));
            }
        }
    }
    Ok(())
}

/// What a run works with.
struct Run<'a> {
    command: &'a Profiled,
    options: &'a Options,
    human: &'a Human,
    cancel: &'a Cancel,
    /// Problems were said of an earlier run.
    silent: bool,
}

impl<'a> Run<'a> {
    /// Profiles what is wanted of transfers of ours, one after the other.
    fn transfers(&self, pair: &Pair, only: Option<&Url>) -> anyhow::Result<Exit> {
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
                events: self.human,
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
            // What was written before tells of the later ones as well.
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

    /// The same with other settings, where that is wanted and the first run went well.
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
        let quiet = Human::new(Loudness::Quiet, self.cancel);
        let again = Run { human: &quiet, silent: true, ..*self };
        let refusals = |sizes: &[u64]| sweep::refusals(design.pair, sizes, self.options, &quiet, self.cancel);
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

    /// Profiles a transfer of ours.
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
            return Err(usage("neither end can be measured: see what is said above"));
        }
        ends.read_clocks();
        let moved = ends.during(|| run(pair, options, self.human, self.cancel));
        let measured = ends.finish();
        let exit = moved.summary.as_ref().map_or(Exit::Failed, Exit::of_summary);
        if let Outcome::Failed(why) = &moved.workload.outcome
            && !self.silent
        {
            say(format_args!("ropewalk: the transfer failed, what there is of it is told: {why}"));
        }
        Ok((put_together(moved, measured), exit))
    }

    /// Has each end measured, as far as that is wanted and can be done.
    fn begin(&self, ends: &mut Ends<'a>, pair: &Pair, only: Option<&Url>) -> anyhow::Result<()> {
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
                ends.server(url, role, None, self.options, self.human, self.cancel);
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

    /// Profiles what others move meanwhile.
    fn others(&self, server: Option<&Url>) -> anyhow::Result<Profile> {
        let command = self.command;
        let seconds = command.seconds.unwrap_or_default().min(LONGEST);
        let mut ends = Ends::default();
        if command.local {
            let measuring = command.measuring();
            ends.here(&collect::Options { role: command.role.into(), ..measuring });
        }
        if let Some(url) = server {
            // For as long as it allows: it may be less than is wanted, which shows in what was measured.
            ends.server(url, command.role.into(), None, self.options, self.human, self.cancel);
        }
        if ends.is_empty() {
            return Err(usage("nothing can be measured: see what is said above"));
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
        let (bytes, streams) = seen(&measured);
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
    // Servers tell their own.
    if let Some(host) = measured.here.and_then(|at| hosts.get_mut(at)) {
        host.stages = moved.stages;
    }
    hosts.sort_by_key(|host| !host.role.sends());
    Profile { schema: SCHEMA, started: moved.began, workload: moved.workload, hosts, ..Profile::default() }
}

/// The nearest part of a path that exists: its file system is that of what is made there.
fn existing(path: &Path) -> PathBuf {
    let here = std::env::current_dir().unwrap_or_default().join(path);
    here.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

/// The addresses by which the host at `url` knows the other end of its data connections, as far as is known here.
fn addresses_of(other: &Location, url: &Url) -> Vec<IpAddr> {
    let resolve = |url: &Url| {
        let port = if url.port == 0 { 22 } else { url.port };
        (url.host.as_str(), port).to_socket_addrs().into_iter().flatten().collect::<Vec<_>>()
    };
    let mut addresses: Vec<IpAddr> = match other {
        Location::Remote(other) => resolve(other).iter().map(|address| address.ip().to_canonical()).collect(),
        // Ours on the way there: nothing is sent by this.
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

/// How much the connections have carried, and how many of them did.
fn seen(measured: &Measured) -> (u64, u32) {
    let moved =
        |of: fn(&ConnectionSample) -> Option<u64>, first: &ConnectionSample, last: &ConnectionSample| {
            of(last).unwrap_or(0).saturating_sub(of(first).unwrap_or(0))
        };
    let all = measured.hosts.iter().map(|host| {
        let sums = host.connections.iter().filter_map(|connection| {
            let (first, last) = (connection.samples.first()?, connection.samples.last()?);
            Some(match host.role {
                HostRole::Destination => moved(|sample| sample.received, first, last),
                _ => moved(|sample| sample.acknowledged, first, last),
            })
        });
        let carried: Vec<u64> = sums.filter(|bytes| *bytes > 1 << 20).collect();
        (carried.iter().sum(), carried.len().max(1) as u32)
    });
    all.max().unwrap_or((0, 1))
}

fn some_time(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text)? {
        Duration::ZERO => Err("expected more than 0, for example 30s".into()),
        time => Ok(time),
    }
}

/// For people.
fn report(profile: &Profile) -> String {
    let terminal = std::io::stdout().is_terminal();
    ropewalk_profiler::report::terminal(profile, super::profile_report::width(), colour_wanted(terminal))
}
