//! What a scenario says: hosts, links, cross traffic, commands.

use super::units::{ByteRate, Size, Time};
use crate::emulator::{Change, Path};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::collections::BTreeMap;

/// A whole scenario, as its TOML file says it. [`super::Document`] reads and checks one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A short name, for tables and plots.
    pub title: String,
    /// What the scenario is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Seed of all that is random: loss, cross traffic, file contents.
    #[serde(default = "one")]
    pub seed: u64,
    /// The whole run, from time zero, ends with an error after this.
    #[serde(default = "ten_minutes")]
    pub timeout: Time,
    /// Values for `{name}` in commands, files and environments. A sweep varies these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<String, Value>,
    /// Kernel settings of every host.
    #[serde(default)]
    pub kernel: Kernel,
    /// The hosts, by name.
    pub hosts: BTreeMap<String, Host>,
    /// The links. Hosts and links form a tree.
    pub links: Vec<Link>,
    /// Other flows on the same paths.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<Traffic>,
    /// Files that exist before anything runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<File>,
    /// Commands that run to their end, one after the other, before the servers start and before time zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<Prepare>,
    /// Programs that run throughout. Time zero is when all are ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<Server>,
    /// The commands that are timed. The run ends when all (but those in the background) have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    /// What is recorded.
    #[serde(default)]
    pub record: Record,
}

/// A number or a text.
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

/// Kernel settings. What a host says wins over what the scenario says for all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// TCP congestion control, for example `"reno"`, `"cubic"` or `"bbr"`. Every host must get one: the machine's default
    /// would make results differ from machine to machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// `net.ipv4.tcp_rmem`: least, first and greatest receive buffer. Linux's own defaults if absent, not this machine's.
    #[serde(default, deserialize_with = "perhaps_exactly", skip_serializing_if = "Option::is_none")]
    pub tcp_rmem: Option<[Size; 3]>,
    /// `net.ipv4.tcp_wmem`, for send buffers.
    #[serde(default, deserialize_with = "perhaps_exactly", skip_serializing_if = "Option::is_none")]
    pub tcp_wmem: Option<[Size; 3]>,
    /// Any other setting of a network namespace, for example `"net.ipv4.tcp_sack" = 0`. Settings of the whole machine
    /// (`net.core.rmem_max`, `net.core.wmem_max`, `net.ipv4.tcp_mem`) are refused, unless they are as stated already.
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
    /// The store at `{disk}`: as fast as memory if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Environment of every command on this host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// A store of limited rate, mounted at `{disk}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Limit of reads. No limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<ByteRate>,
    /// Limit of writes. No limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write: Option<ByteRate>,
    /// Reads and writes share the device: while one is served the other waits.
    #[serde(default)]
    pub shared: bool,
    /// What each read or write request (at most 1 MiB) costs beside its bytes.
    #[serde(default)]
    pub latency: Time,
}

/// A link between two hosts, with the path that is emulated on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two ends. *Forward* is from the first to the second.
    #[serde(deserialize_with = "exactly")]
    pub between: [String; 2],
    /// The path: MTU, delay, rate, queue, loss of both directions.
    pub path: Path,
    /// Whether the hosts may hand segments over in packets of up to 64 KiB (TSO and GRO), which the emulator takes apart
    /// again for loss and queueing. Costs far less CPU.
    #[serde(default = "yes")]
    pub offload: bool,
    /// Changes of the path while the scenario runs; `at` counts from time zero.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
}

/// TCP flows that share the path: as fast as TCP lets them, from `start` to `stop`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Its name in the results.
    pub name: String,
    /// The host that sends.
    pub from: String,
    /// The host that receives.
    pub to: String,
    /// How many connections.
    #[serde(default = "one_flow")]
    pub flows: u32,
    /// When they start, from time zero.
    #[serde(default)]
    pub start: Time,
    /// When they stop. At the end of the run if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Time>,
    /// Length of a busy period. Always busy if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Time>,
    /// Length of an idle period after a busy one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<Time>,
    /// `on` and `off` are means of exponential distributions, each flow's its own.
    #[serde(default)]
    pub random: bool,
    /// Congestion control of these flows. The sending host's if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub congestion: Option<String>,
    /// Limit of each flow, which the kernel paces: a few segments at a time. No limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<ByteRate>,
}

/// A file (or many) that is there before anything runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// On which host.
    pub host: String,
    /// Where; must be below `{dir}` or `{disk}`. Directories are made.
    pub path: String,
    /// Random bytes, so many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Instead of random bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FileKind>,
    /// So many files of `size`; `path` is then a directory, the names are `0`, `1`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// This text, instead of random bytes.
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
    /// `size` bytes of zeros, none of which are stored.
    Hole,
    /// Takes everything and keeps nothing, as `/dev/null` does.
    Null,
}

/// What runs: a text for `/bin/sh -c`, or a program with its arguments.
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
    /// On which host.
    pub host: String,
    /// What.
    pub run: Run,
    /// Environment, beside the host's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// It fails after this.
    #[serde(default = "one_minute")]
    pub timeout: Time,
}

/// A program that runs throughout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its name in the results and in `{port:NAME}`.
    pub name: String,
    /// On which host.
    pub host: String,
    /// What.
    pub run: Run,
    /// When it is ready. At once if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// Starting fails when it is not ready after this.
    #[serde(default = "ten_seconds")]
    pub timeout: Time,
    /// Environment, beside the host's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// When a server is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ready {
    /// Something listens at this TCP port of the host: a number or `"{port:NAME}"`. No connection is made.
    Port(Value),
    /// A line of its output (stdout or stderr) contains this text.
    Line(String),
}

/// A command that is timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// Its name in the results.
    pub name: String,
    /// On which host.
    pub host: String,
    /// What.
    pub run: Run,
    /// Starts at this time, from time zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Starts when these commands have ended. With neither `at` nor `after`: when the one before it in the file has ended
    /// (of those that have no `at` and are not in the background), or at time zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
    /// Starts so much later than `after` says, or the command before it. Not with `at`.
    #[serde(default)]
    pub delay: Time,
    /// The run does not wait for it; it is killed at the end.
    #[serde(default)]
    pub background: bool,
    /// It fails, and the run with it, after this. The run's timeout if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Time>,
    /// The run goes on (and succeeds) when it exits with another code than 0, or is stopped by its timeout.
    #[serde(default)]
    pub may_fail: bool,
    /// It is ended by SIGINT after this, which is not a failure. For programs that never end by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Time>,
    /// What it moves, for its goodput in the results: a size or a text with variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Value>,
    /// Environment, beside the host's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// How often.
    #[serde(default = "tenth")]
    pub interval: Time,
    /// A series for each TCP connection (beside its last values, which are always kept), of the first so many.
    #[serde(default = "connections")]
    pub connections: u32,
    /// On these hosts; on all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// Output of each command and server that is kept, in bytes.
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
    /// These settings, with what `over` states instead of its own.
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

/// A list of just so many. Without this the TOML reader would drop what is too much: `["a", "relay", "b"]` would join `a` and
/// `relay`.
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
