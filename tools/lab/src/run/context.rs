//! The values of the placeholders `{...}` in a running lab, and the environment of its programs.
//! The addresses come from the topology, and ports are assigned in the order of their first use.

use super::RunError;
use crate::{
    netns::LAB_DIR,
    scenario::{Run, Scenario, Topology, template},
};
use std::{collections::BTreeMap, io, path::PathBuf};

use parking_lot::Mutex;

/// First port for `{port:NAME}`; it is below the range that the kernel uses for outgoing
/// connections.
const FIRST_PORT: u16 = 20_001;

/// The constant data of a running lab.
pub(super) struct Context {
    pub(super) lab: String,
    pub(super) scenario: Scenario,
    pub(super) topology: Topology,
    pub(super) program: PathBuf,
    ports: Mutex<BTreeMap<String, u16>>,
}

impl Context {
    pub(super) fn new(lab: String, scenario: Scenario, program: PathBuf) -> Self {
        let topology = Topology::new(&scenario);
        Self { lab, scenario, topology, program, ports: Mutex::default() }
    }

    /// The directory of a host.
    pub(super) fn dir(host: &str) -> String {
        format!("{LAB_DIR}/{host}")
    }

    /// The directory of a host's disk.
    pub(super) fn disk(host: &str) -> String {
        format!("{LAB_DIR}/{host}/disk")
    }

    /// Fills in the placeholders of a text for a host.
    pub(super) fn fill(&self, text: &str, host: &str) -> Result<String, RunError> {
        template::fill(text, |kind, argument| self.value(kind, argument, host)).map_err(|message| {
            RunError::Build {
                what: format!("fill in `{text}`"),
                error: io::Error::new(io::ErrorKind::InvalidInput, message),
            }
        })
    }

    fn value(&self, kind: &str, argument: Option<&str>, host: &str) -> Result<String, String> {
        let unknown = || match argument {
            Some(argument) => format!("{{{kind}:{argument}}} is unknown"),
            None => format!("{{{kind}}} is unknown"),
        };
        Ok(match (kind, argument) {
            ("addr", Some(other)) => self.topology.address(other, host).ok_or_else(unknown)?.0.to_string(),
            ("addr6", Some(other)) => self.topology.address(other, host).ok_or_else(unknown)?.1.to_string(),
            ("dir", other) => Self::dir(other.unwrap_or(host)),
            ("disk", other) => Self::disk(other.unwrap_or(host)),
            ("port", Some(name)) => self.port(name).to_string(),
            ("host", None) => host.to_owned(),
            ("seed", None) => self.scenario.seed.to_string(),
            ("ropewalk", None) => self.program.display().to_string(),
            (name, None) => self.scenario.variables.get(name).ok_or_else(unknown)?.to_string(),
            _ => return Err(unknown()),
        })
    }

    fn port(&self, name: &str) -> u16 {
        let mut ports = self.ports.lock();
        let next = FIRST_PORT.saturating_add(ports.len() as u16);
        *ports.entry(name.to_owned()).or_insert(next)
    }

    /// The program and its arguments, with placeholders filled in.
    pub(super) fn arguments(&self, run: &Run, host: &str) -> Result<Vec<String>, RunError> {
        match run {
            Run::Shell(text) => Ok(vec!["/bin/sh".into(), "-c".into(), self.fill(text, host)?]),
            Run::Program(words) => words.iter().map(|word| self.fill(word, host)).collect(),
        }
    }

    /// The variables that are added to this process's environment for programs on a host, or
    /// override it.
    pub(super) fn environment(
        &self,
        host: &str,
        own: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, RunError> {
        let mut environment = BTreeMap::from([
            ("HOME".to_owned(), Self::dir(host)),
            ("TMPDIR".to_owned(), format!("{}/tmp", Self::dir(host))),
            ("ROPEWALK_LAB".to_owned(), self.lab.clone()),
            ("ROPEWALK_LAB_HOST".to_owned(), host.to_owned()),
            ("HOSTNAME".to_owned(), host.to_owned()),
        ]);
        if let Some((v4, _)) = self.topology.address(host, host) {
            // Globus programs look up their own host name and announce the address that they find.
            environment.insert("GLOBUS_HOSTNAME".to_owned(), v4.to_string());
        }
        let of_host = self.scenario.hosts.get(host).map(|host| &host.environment);
        for (name, value) in of_host.into_iter().flatten().chain(own) {
            environment.insert(name.clone(), self.fill(value, host)?);
        }
        Ok(environment)
    }

    /// The `/etc/hosts` of a host.
    pub(super) fn hosts_file(&self, host: &str) -> String {
        let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
        for name in self.scenario.hosts.keys() {
            if let Some((v4, v6)) = self.topology.address(name, host) {
                text.push_str(&format!("{v4} {name}\n{v6} {name}-v6\n"));
            }
            // Every address of a host gets a name, so that reverse lookups are answered from this
            // file.
            for other in self.topology.of(name) {
                text.push_str(&format!("{} {name}-to-{}\n", other.v4, other.peer));
            }
        }
        text
    }
}
