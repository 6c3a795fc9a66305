//! The data model of a scenario: hosts, links, cross traffic, files, programs, and the recorded
//! data. The types follow the TOML file field by field; unknown fields are errors.

use super::units::{ByteRate, Size, Time};
use crate::emulator::{Change, Path};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::collections::BTreeMap;

/// A whole scenario as in its TOML file. [`super::Document`] reads and checks one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A short name, for tables and plots.
    pub title: String,
    /// The purpose of the scenario.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Seed of all random numbers: loss, cross traffic, file contents.
    #[serde(default = "one")]
    pub seed: u64,
    /// Time limit of the whole run, from time zero; the run fails when it is exceeded.
    #[serde(default = "ten_minutes")]
    pub timeout: Time,
    /// Values for `{name}` in commands, files and environments. A sweep varies these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Value>,
    /// Kernel settings of all hosts.
    #[serde(default)]
    pub kernel: Kernel,
    /// The hosts, by name.
    pub hosts: BTreeMap<String, Host>,
    /// The links. Hosts and links must form a tree.
    pub links: Vec<Link>,
    /// Other flows on the same paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<Traffic>,
    /// Files that are created before any program runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
    /// Commands that run one after the other before the servers start and before time zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<Prepare>,
    /// Programs that run until the end. Time zero is when all of them are ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Server>,
    /// The timed commands. The run ends when all of them, except those in the background, have
    /// ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    /// The recorded data.
    #[serde(default)]
    pub record: Record,
}

/// A value of a variable or setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// `true`, `false`
    Bool(bool),
    /// `4`
    Integer(i64),
    /// `0.5`
    Float(f64),
    /// `"64 KiB"`
    Text(String),
}

/// Kernel settings. A setting of a host overrides the one of the scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// TCP congestion control, for example `"reno"`, `"cubic"` or `"bbr"`. Every host must have
    /// one, because with the machine's default the results would differ between machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// `net.ipv4.tcp_rmem`: minimum, initial and maximum receive buffer. The default is that of
    /// Linux, not the value of this machine.
    #[serde(default, deserialize_with = "perhaps_exactly", skip_serializing_if = "Option::is_none")]
    pub tcp_rmem: Option<[Size; 3]>,
    /// `net.ipv4.tcp_wmem`: the same for send buffers.
    #[serde(default, deserialize_with = "perhaps_exactly", skip_serializing_if = "Option::is_none")]
    pub tcp_wmem: Option<[Size; 3]>,
    /// Other settings of a network namespace, for example `"net.ipv4.tcp_sack" = 0`. A setting of
    /// the whole machine (`net.core.rmem_max`, `net.core.wmem_max`, `net.ipv4.tcp_mem`) is rejected
    /// unless it has the stated value already.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, Value>,
}

/// A host: a network namespace with its own name, addresses and settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Kernel settings of this host only.
    #[serde(default)]
    pub kernel: Kernel,
    /// The disk at `{disk}`. If absent, `{disk}` is as fast as memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Environment of all commands on this host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// A disk with limited rates, mounted at `{disk}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Limit of the read rate. No limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<ByteRate>,
    /// Limit of the write rate. No limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<ByteRate>,
    /// Whether reads and writes share the device, so that one waits while the other is served.
    #[serde(default)]
    pub shared: bool,
    /// Time that each read or write request (of up to 1 MiB) takes in addition to the time for its
    /// bytes.
    #[serde(default)]
    pub latency: Time,
}

/// A link between two hosts, with the path that is emulated on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two hosts. *Forward* is from the first to the second.
    #[serde(deserialize_with = "exactly")]
    pub between: [String; 2],
    /// The path: MTU, and delay, rate, queue and loss of both directions.
    pub path: Path,
    /// Whether the hosts may pass segments in packets of up to 64 KiB (TSO and GRO), which takes
    /// far less CPU. The emulator splits them for loss and queueing.
    #[serde(default = "yes")]
    pub offload: bool,
    /// Changes of the path during the run; `at` counts from time zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// TCP flows that share the path. They send as fast as TCP permits, from `start` to `stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// The name in the results.
    pub name: String,
    /// The sending host.
    pub from: String,
    /// The receiving host.
    pub to: String,
    /// Number of connections.
    #[serde(default = "one_flow")]
    pub flows: u32,
    /// Start time, from time zero.
    #[serde(default)]
    pub start: Time,
    /// Stop time. The end of the run if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Time>,
    /// Length of a busy period. If absent, the flows are always busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Time>,
    /// Length of the idle period after a busy one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<Time>,
    /// If true, `on` and `off` are the means of exponential distributions, from which each flow
    /// draws its own lengths.
    #[serde(default)]
    pub random: bool,
    /// Congestion control of these flows. That of the sending host if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Rate limit of each flow. The kernel paces the flow, a few segments at a time. No limit if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<ByteRate>,
}

/// A file (or many) that is created before any program runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The host.
    pub host: String,
    /// The path, which must be below `{dir}` or `{disk}`. Missing directories are created.
    pub path: String,
    /// Size in bytes; the content is random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// A special file, without random bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FileKind>,
    /// Number of files of `size`. `path` is then a directory, and the names are `0`, `1`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// The text of the file, instead of random bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Permissions, for example `"0600"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// Files that take no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    /// A file of `size` bytes that are all zero and not stored.
    Hole,
    /// A device that accepts all data and stores none, like `/dev/null`.
    Null,
}

/// A command line: a text for `/bin/sh -c`, or a program with its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Run {
    /// `"a | b"`
    Shell(String),
    /// `["program", "argument"]`
    Program(Vec<String>),
}

/// A command that prepares a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepare {
    /// The host.
    pub host: String,
    /// The command line.
    pub run: Run,
    /// Additional environment, which overrides that of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Time limit; the command fails when it is exceeded.
    #[serde(default = "one_minute")]
    pub timeout: Time,
}

/// A program that runs until the end of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// The name in the results and in `{port:NAME}`.
    pub name: String,
    /// The host.
    pub host: String,
    /// The command line.
    pub run: Run,
    /// The condition for being ready. At once if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// Time limit for becoming ready; the run fails when it is exceeded.
    #[serde(default = "ten_seconds")]
    pub timeout: Time,
    /// Additional environment, which overrides that of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// The condition for a server to be ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ready {
    /// A socket listens at this TCP port of the host: a number or `"{port:NAME}"`. The check makes
    /// no connection.
    Port(Value),
    /// A line of the output (stdout or stderr) contains this text.
    Line(String),
}

/// A timed command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The name in the results.
    pub name: String,
    /// The host.
    pub host: String,
    /// The command line.
    pub run: Run,
    /// Start time, from time zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// The command starts when these commands have ended. With neither `at` nor `after` it starts
    /// when the previous command in the file has ended (not counting those with `at` or in the
    /// background), or at time zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
    /// Additional delay of the start after `after`, or after the previous command. Cannot be
    /// combined with `at`.
    #[serde(default)]
    pub delay: Time,
    /// Whether the run does not wait for this command. It is killed at the end of the run.
    #[serde(default)]
    pub background: bool,
    /// Time limit; the command and the run fail when it is exceeded. The time limit of the run if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Time>,
    /// Whether the run continues (and can succeed) if the command exits with a code other than 0 or
    /// exceeds its timeout.
    #[serde(default)]
    pub may_fail: bool,
    /// Time after which the command is stopped by SIGINT, which is not a failure. For programs that
    /// do not end by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Time>,
    /// Bytes that the command transfers, for the goodput in the results: a size, or a text with
    /// variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Value>,
    /// Additional environment, which overrides that of the host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// The recorded data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Interval of the samples.
    #[serde(default = "tenth")]
    pub interval: Time,
    /// Number of TCP connections that get a time series. The final values of every connection are
    /// recorded in any case.
    #[serde(default = "connections")]
    pub connections: u32,
    /// The recorded hosts; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// Bytes of output that are kept of each command and server.
    #[serde(default = "output")]
    pub output: Size,
}

impl Default for Record {
    fn default() -> Self {
        Self { interval: tenth(), connections: connections(), hosts: None, output: output() }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(formatter),
            Self::Integer(value) => value.fmt(formatter),
            Self::Float(value) => value.fmt(formatter),
            Self::Text(value) => value.fmt(formatter),
        }
    }
}

impl Kernel {
    /// Returns these settings, overridden by those that `over` has.
    pub fn overlaid(&self, over: &Self) -> Self {
        let mut sysctl = self.sysctl.clone();
        sysctl.extend(over.sysctl.clone());
        Self {
            congestion: over.congestion.clone().or_else(|| self.congestion.clone()),
            tcp_rmem: over.tcp_rmem.or(self.tcp_rmem),
            tcp_wmem: over.tcp_wmem.or(self.tcp_wmem),
            sysctl,
        }
    }
}

/// Reads a list of exactly `N` elements. Without this the TOML reader would ignore further
/// elements: `["a", "relay", "b"]` would connect `a` and `relay`.
fn exactly<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
    deserializer: D,
) -> Result<[T; N], D::Error> {
    let given = Vec::<T>::deserialize(deserializer)?;
    let length = given.len();
    given.try_into().map_err(|_| D::Error::custom(format!("expected a list of {N}, found one of {length}")))
}

fn perhaps_exactly<'de, D: Deserializer<'de>, T: Deserialize<'de>, const N: usize>(
    deserializer: D,
) -> Result<Option<[T; N]>, D::Error> {
    exactly(deserializer).map(Some)
}

fn one() -> u64 {
    1
}
fn one_flow() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn ten_seconds() -> Time {
    Time::seconds(10)
}
fn one_minute() -> Time {
    Time::seconds(60)
}
fn ten_minutes() -> Time {
    Time::seconds(600)
}
fn tenth() -> Time {
    Time::millis(100)
}
fn connections() -> u32 {
    256
}
fn output() -> Size {
    Size(1 << 20)
}
