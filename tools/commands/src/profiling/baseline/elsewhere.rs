//! Baselines of other hosts: by a Ropewalk server there, or by a ropewalk that ssh starts.

use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use ropewalk_client::{Cancel, Options, Remote};
use ropewalk_profiler::baseline::iperf::Server;
use ropewalk_profiler::baseline::{self, ProcessorRates};
use ropewalk_profiler::profile::Role;
use ropewalk_protocol::profiling::{Baseline, ProfileAnswer};
use ropewalk_protocol::url::Url;
use serde::{Deserialize, Serialize};

use super::{Part, disks};
use crate::profiling::SshEnd;

/// Precedes the output of [`tell`].
const MARK: &str = "ropewalk-baseline 1 ";

/// The one-line report of a ropewalk that ssh started.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Told {
    disk: Option<f64>,
    processor: Option<ProcessorRates>,
    iperf: Option<u16>,
    problem: Option<String>,
}

/// Another end.
pub(super) struct Elsewhere<'a> {
    pub(super) url: &'a Url,
    pub(super) role: Role,
    pub(super) ssh: Option<(&'a str, &'a str)>,
    pub(super) options: &'a Options,
    pub(super) cancel: &'a Cancel,
}

/// An iperf3 that waits for a test; it is stopped when this is dropped.
pub(super) struct Iperf {
    pub(super) port: u16,
    held: Held,
}

enum Held {
    Server { session: Box<Remote> },
    Ssh { _session: Box<SshEnd> },
}

impl Elsewhere<'_> {
    pub(super) fn name(&self) -> &str {
        self.ssh.map_or(&self.url.host, |(host, _)| host)
    }

    pub(super) fn disk(&self) -> anyhow::Result<f64> {
        let rate = if self.ssh.is_some() {
            self.ask(Part::Disk)?.0.disk
        } else {
            let path = self.url.path.clone();
            let part = if self.role == Role::Source { Baseline::Read(path) } else { Baseline::Write(path) };
            match Remote::connect(self.url, self.options)?.baseline(part)? {
                ProfileAnswer::Disk { bytes_per_second, .. } => Some(bytes_per_second),
                _ => None,
            }
        };
        plausible(rate)
    }

    pub(super) fn processor(&self) -> anyhow::Result<ProcessorRates> {
        let rates = if self.ssh.is_some() {
            self.ask(Part::Cpu)?.0.processor
        } else {
            match Remote::connect(self.url, self.options)?.baseline(Baseline::Processor)? {
                ProfileAnswer::Processor { checksum, encryption } => {
                    Some(ProcessorRates { checksum, encryption })
                }
                _ => None,
            }
        };
        let (checksum, encryption) = rates.map(|rates| (rates.checksum, rates.encryption)).unzip();
        Ok(ProcessorRates { checksum: plausible(checksum)?, encryption: plausible(encryption)? })
    }

    /// Starts an iperf3 there, in place of `last`.
    pub(super) fn iperf(&self, last: Option<Iperf>) -> anyhow::Result<Iperf> {
        let session = last.and_then(|last| match last.held {
            Held::Server { session } => Some(session),
            Held::Ssh { .. } => None,
        });
        if self.ssh.is_some() {
            let (told, end) = self.ask(Part::Path)?;
            let port = told.iperf.context("it reports no port of iperf3")?;
            return Ok(Iperf { port, held: Held::Ssh { _session: Box::new(end) } });
        }
        // The same session, so that a server that runs one iperf3 at a time stops the last one.
        let mut session = match session {
            Some(session) => session,
            None => Box::new(Remote::connect(self.url, self.options)?),
        };
        match session.baseline(Baseline::Iperf)? {
            ProfileAnswer::Iperf { port } => Ok(Iperf { port, held: Held::Server { session } }),
            _ => bail!("it reports no port of iperf3"),
        }
    }

    fn ask(&self, part: Part) -> anyhow::Result<(Told, SshEnd)> {
        let (host, command) = self.ssh.context("there is no ssh to it")?;
        let role = if self.role == Role::Source { "source" } else { "destination" };
        let mut command = format!("{command} --role {role} --baseline {}", part.name());
        if let Some(path) =
            std::str::from_utf8(&self.url.path).ok().and_then(|path| shlex::try_quote(path).ok())
        {
            command += &format!(" --path={path}");
        }
        let (line, end) = SshEnd::ask(host, &command, self.role, &self.options.ssh, self.cancel)?;
        let told = line.strip_prefix(MARK).and_then(|json| serde_json::from_str::<Told>(json).ok());
        let told = told.ok_or_else(|| anyhow!("{host} printed {line:?}, expected a baseline"))?;
        match told.problem {
            Some(problem) => bail!("{problem}"),
            None => Ok((told, end)),
        }
    }
}

/// Checks a rate from another host, which may be wrong.
fn plausible(rate: Option<f64>) -> anyhow::Result<f64> {
    rate.filter(|rate| (1.0..1e15).contains(rate)).context("it reports an impossible rate")
}

/// For `ropewalk profile --collect --baseline`: measures this host for a client at the other end of
/// ssh, and reports in one line. A process that has to stay does so until the input ends.
pub(crate) fn tell(parts: &[Part], role: Role, paths: &[PathBuf]) -> anyhow::Result<()> {
    let (mut told, mut server) = (Told::default(), None);
    if let Err(error) = find(parts, role, paths, &mut told, &mut server) {
        told.problem = Some(crate::message(&error).chars().take(1000).collect());
    }
    let mut out = io::stdout().lock();
    writeln!(out, "{MARK}{}", serde_json::to_string(&told)?)?;
    out.flush()?;
    if server.is_some() {
        let mut input = io::stdin().lock();
        while let length @ 1.. = input.fill_buf()?.len() {
            input.consume(length);
        }
    }
    Ok(())
}

fn find(
    parts: &[Part],
    role: Role,
    paths: &[PathBuf],
    told: &mut Told,
    server: &mut Option<Server>,
) -> anyhow::Result<()> {
    let path = paths.first().map(PathBuf::as_path).unwrap_or(Path::new("."));
    for part in parts {
        match part {
            Part::Disk if role == Role::Source => told.disk = Some(disks::read(path)?),
            // A path that does not exist yet is measured in its nearest directory.
            Part::Disk if path.parent().is_some_and(Path::exists) => told.disk = Some(disks::write(path)?),
            Part::Disk => told.disk = Some(disks::write(disks::directory_of(path))?),
            Part::Cpu => told.processor = Some(baseline::processor()?),
            Part::Path => {
                let started = Server::start(None, None, ())?;
                told.iperf = Some(started.port());
                *server = Some(started);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn implausible_rate_is_refused() {
        for rate in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert!(plausible(rate).is_err(), "{rate:?}");
        }
        assert_eq!(plausible(Some(5e9)).unwrap(), 5e9);
    }

    #[test]
    fn find_without_the_file_fails() {
        let (mut told, mut server) = (Told::default(), None);
        let path = [PathBuf::from("/no/such/file")];
        assert!(find(&[Part::Disk], Role::Source, &path, &mut told, &mut server).is_err());
        assert!(told.disk.is_none() && server.is_none());
    }
}
