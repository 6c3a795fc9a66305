//! `ropewalk profile`: measures both ends during a transfer, and reports what limited it.

mod runs;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};
use ropewalk_client::{Cancel, Location, Pair};
use ropewalk_profiler::collect::{self, Sockets};
use ropewalk_profiler::profile::{Profile, Role as HostRole};

use crate::credentials::{self, Side};
use crate::exit::{Exit, usage};
use crate::output::{Human, Loudness, colour_wanted};
use crate::profiling::baseline::{self, Part};
use crate::profiling::sweep::Vary;
use crate::profiling::{Kind, collector, raw};
use crate::settings::{CopyFlags, Layers, Settings};
use crate::sites::Used;
use crate::{signals, units, whole};
use runs::Run;

/// Longest measurement without a transfer of our own.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Measure both ends, their disks and the path during a transfer, and name what limited it.
///
/// Each end is measured by this program itself (local paths), by the server (a Ropewalk server
/// whose settings have profiling.enabled and name the user), or by a ropewalk that ssh starts there
/// (--ssh-source, --ssh-destination: for any server, GCT's too). If an end cannot be measured, the
/// report says so, and the other one is measured alone.
#[derive(Debug, Args)]
#[command(after_help = crate::exit::HELP)]
#[command(group = ArgGroup::new("timed").args(["seconds", "collect"]).multiple(true))]
#[command(group = ArgGroup::new("sized").args(["workload", "sweep"]).multiple(true))]
pub struct Profiled {
    /// Source and destination, as with `cp`
    #[arg(value_names = ["SOURCE", "DESTINATION"], num_args = 2, required_unless_present_any = ["collect", "seconds"])]
    places: Vec<OsString>,
    /// Instead of the copy: transfers of these kinds, each with a profile of its own (in
    /// FILE.KIND.json). Zeros at a server need a Ropewalk server that takes profiles
    #[arg(long, value_name = "KINDS", value_delimiter = ',', conflicts_with_all = ["seconds", "collect"])]
    workload: Vec<Kind>,
    /// With --workload, or --sweep workload: amount of data from memory
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "1G", requires = "sized")]
    size: u64,
    /// First measure the parts by themselves; the profile then contains the share of their rate
    /// that the transfer reached
    #[arg(long, value_name = "PARTS", value_delimiter = ',', conflicts_with = "seconds")]
    baseline: Vec<Part>,
    /// Then repeat the transfer with one setting changed: buffer, streams, block, files or
    /// workload, with values as in streams=1,2,4 or buffer=auto,bdp,64K (can be repeated) [without
    /// a value: streams and buffer]
    #[arg(long, value_name = "SETTING=VALUES", num_args = 0..=1, default_missing_value = "",
          conflicts_with_all = ["seconds", "collect"])]
    sweep: Vec<Vary>,
    /// With --sweep: rounds, each of which has every value once, in an order of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100),
          requires = "sweep")]
    repeat: u32,
    /// With --sweep: also from the destination to the source, if that overwrites nothing
    #[arg(long, requires = "sweep")]
    both: bool,
    /// Measure at this host only
    #[arg(long, conflicts_with_all = ["server", "ssh_source", "ssh_destination"])]
    local: bool,
    /// Measure at this server only
    #[arg(long, value_name = "URL", conflicts_with_all = ["ssh_source", "ssh_destination"])]
    server: Option<OsString>,
    /// Without a transfer: measure other traffic for this time (with --local or --server). With
    /// --collect: at most this time
    #[arg(long, value_name = "TIME", value_parser = some_time, conflicts_with = "places")]
    seconds: Option<Duration>,
    /// With --seconds or --collect: the role of the host meanwhile
    #[arg(long, value_name = "ROLE", default_value = "both", requires = "timed")]
    role: Role,
    /// Only connections with this port at either end (can be repeated). Data connections use other
    /// ports: the port of a GridFTP server selects only control connections
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,
    /// Only connections with this host (can be repeated)
    #[arg(long, value_name = "ADDRESS")]
    peer: Vec<IpAddr>,
    /// Measure the source's host through ssh
    #[arg(long, value_name = "HOST")]
    ssh_source: Option<String>,
    /// Measure the destination's host through ssh
    #[arg(long, value_name = "HOST")]
    ssh_destination: Option<String>,
    /// The command that ssh runs there [default: ropewalk profile --collect]
    #[arg(long, value_name = "COMMAND")]
    collect_command: Option<String>,
    /// Measure this host for the process that started this one: stops at the end of standard input,
    /// and writes the result to standard output
    #[arg(long, conflicts_with_all = ["places", "local", "server", "ssh_source", "ssh_destination", "output"])]
    collect: bool,
    /// With --collect or --seconds: a path whose file system is measured (can be repeated)
    #[arg(long, value_name = "PATH")]
    path: Vec<PathBuf>,
    /// Do not use perf
    #[arg(long)]
    no_perf: bool,
    /// Do not use sysstat, but the kernel's own figures
    #[arg(long)]
    no_sysstat: bool,
    /// Write the profile (JSON) to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Keep the tools' output (sar's file, the same as JSON, perf's report) of each end in this
    /// directory, for `ropewalk report --raw`
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "collect")]
    raw: Option<PathBuf>,
    /// With --collect: also transmit the tools' files
    #[arg(long, requires = "collect", hide = true)]
    with_raw: bool,
    /// Print errors only
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
    pub fn run(self) -> anyhow::Result<Exit> {
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
        let mut sites = Used::default();
        let mut server = self.server.as_ref().map(|given| sites.parse(Side::Only, given)).transpose()?;
        let mut pair = self.pair(&mut sites)?;
        let settings = Layers::load_at(&self.flags.0, &sites)?.settings()?;
        let _keeper = settings.keep_socket_memory()?;
        let Settings { mut options, password_files, .. } = settings;
        let places = credentials::sides(&mut pair).chain(server.as_mut().map(|server| (Side::Only, server)));
        credentials::complete(&mut options, &password_files, true, places, sites.hops)?;
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
        signals::watch(&cancel, "ropewalk: stopping; the results so far are reported")?;
        let loudness = if self.quiet { Loudness::Quiet } else { Loudness::Normal };
        let human = Arc::new(Human::new(loudness, &cancel));
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

    fn pair(&self, sites: &mut Used) -> anyhow::Result<Option<Pair>> {
        let [source, destination] = self.places.as_slice() else {
            return match (self.local, &self.server) {
                (false, None) => Err(usage("--seconds without a transfer needs --local or --server")),
                _ => Ok(None),
            };
        };
        let source = sites.parse(Side::Source, source)?;
        let destination = sites.parse(Side::Destination, destination)?;
        if source == Location::Standard || destination == Location::Standard {
            return Err(usage(
                "standard input and output cannot be profiled: name files, or zero: and null:",
            ));
        }
        Ok(Some(Pair { source, destination, window: None }))
    }

    /// Prints and writes a profile. The text comes first, because writing may fail.
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
            let text = profile.to_json()?;
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

    /// The program that ssh runs there, without arguments.
    fn collector(&self) -> &str {
        self.collect_command.as_deref().unwrap_or("ropewalk profile --collect")
    }

    /// The command that ssh runs at an end.
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

/// Checks that the profile does not overwrite the copied files.
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
        // Into a directory, the file keeps the source's name.
        let within = name.map(|name| path.join(name));
        for kind in Kind::value_variants().iter().copied().map(Some).chain([None]) {
            let file = output_of(output, kind);
            if [Some(path), within.as_ref()].into_iter().flatten().any(|copied| whole::is_same(copied, &file))
            {
                return Err(usage(format!("--output {}: this file is part of the copy", output.display())));
            }
        }
    }
    Ok(())
}

fn some_time(text: &str) -> Result<Duration, String> {
    match units::parse_duration(text)? {
        Duration::ZERO => Err("expected more than 0, for example 30s".into()),
        time => Ok(time),
    }
}

/// The text for the terminal.
fn report(profile: &Profile) -> String {
    let terminal = std::io::stdout().is_terminal();
    ropewalk_profiler::report::terminal(profile, crate::report::width(), colour_wanted(terminal))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        _profile: Profiled,
    }

    #[test]
    fn flags_without_effect_are_refused() {
        let takes = |words: &str| {
            Command::try_parse_from(["x"].into_iter().chain(words.split_whitespace())).map(drop).is_ok()
        };
        for words in [
            "zero:1M null:",
            "zero:1M null: --workload mem-mem --size 1G",
            "zero:1M null: --sweep workload=mem-mem --size 1G --repeat 2",
            "--local --seconds 1 --role source",
            "--collect --role source",
            "--collect --seconds 1 --role source",
        ] {
            assert!(takes(words), "{words}");
        }
        for words in [
            "zero:1M null: --size 1G",
            "zero:1M null: --role source",
            "zero:1M null: --repeat 2",
            "zero:1M null: --workload mem-mem --repeat 2",
            "--local --seconds 1 --size 1G",
        ] {
            assert!(!takes(words), "{words}");
        }
    }
}
