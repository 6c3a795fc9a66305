//! A case as a scenario of the lab: two hosts, a server on `right`, and `ropewalk profile` on
//! `left`.

use std::fmt::Write;
use std::path::Path;

use ropewalk_lab::scenario::{Document, Scenario, ScenarioError, Value};

/// The addresses of a wire.
const LEFT: &str = "192.168.77.1";
const RIGHT: &str = "192.168.77.2";

/// A path without limits.
pub(super) const WIDE: &str = "queue = 20000";

/// The direction, as seen from `left`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Get,
    Put,
    /// From our server at `left` to our server at `right`, controlled by a client at a third host,
    /// `here`.
    Third,
}

/// The server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A Ropewalk server, which profiles itself.
    Ours,
    /// GCT's server, whose host is profiled through the stand-in for ssh.
    Gct,
    /// vsftpd, whose host is profiled through the stand-in for ssh.
    Vsftpd,
}

/// The data that is moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data {
    /// One file of this many bytes.
    File(u64),
    /// A number of files, of this many bytes each.
    Files(u32, u64),
    /// Zeros from memory to memory.
    Zeros(u64),
}

/// A wire between the hosts' interfaces (veth), limited only by the processors: the emulator would
/// need one itself. One processor of two handles arriving packets (RPS).
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Bytes.
    pub(super) mtu: u64,
    /// Whether the interface may merge and split packets.
    pub(super) offload: bool,
    /// Number of firewall rules that the receiver compares each packet with. Processor 0 then
    /// serves the interrupts, and runs nothing else.
    pub(super) filters: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Scene {
    way: Way,
    peer: Peer,
    round_trip: String,
    both: String,
    wire: Option<Wire>,
    /// The table `path` of the link, if it differs by direction; replaces `round_trip` and
    /// `both`.
    ways: Option<String>,
    data: Data,
    left: Vec<String>,
    right: Vec<String>,
    arguments: Vec<String>,
    /// Words before the programs' names.
    client: &'static [&'static str],
    server: &'static [&'static str],
    /// Rate limit of vsftpd, bytes per second.
    limit: Option<u64>,
    /// Further tables.
    more: String,
}

impl Scene {
    pub(super) fn new(
        way: Way,
        peer: Peer,
        (round_trip, both): (impl Into<String>, impl Into<String>),
        data: Data,
    ) -> Self {
        Self {
            way,
            peer,
            round_trip: round_trip.into(),
            both: both.into(),
            wire: None,
            ways: None,
            data,
            left: vec![],
            right: vec![],
            arguments: vec![],
            client: &[],
            server: &[],
            limit: None,
            more: String::new(),
        }
    }

    /// Adds a line to the host's table.
    pub(super) fn left(mut self, line: impl Into<String>) -> Self {
        self.left.push(line.into());
        self
    }

    /// Adds a line to the host's table.
    pub(super) fn right(mut self, line: impl Into<String>) -> Self {
        self.right.push(line.into());
        self
    }

    pub(super) fn ways(self, path: impl Into<String>) -> Self {
        Self { ways: Some(path.into()), ..self }
    }

    pub(super) fn wire(self, wire: Wire) -> Self {
        Self { wire: Some(wire), ..self }
    }

    /// Adds arguments of the client.
    pub(super) fn arguments<T: AsRef<str>>(mut self, words: &[T]) -> Self {
        self.arguments.extend(words.iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Runs the client with this prefix.
    pub(super) fn client(self, client: &'static [&'static str]) -> Self {
        Self { client, ..self }
    }

    /// Runs our server with this prefix.
    pub(super) fn server(self, server: &'static [&'static str]) -> Self {
        Self { server, ..self }
    }

    pub(super) fn limit(self, bytes_per_second: u64) -> Self {
        Self { limit: Some(bytes_per_second), ..self }
    }

    pub(super) fn more(self, more: String) -> Self {
        Self { more, ..self }
    }

    /// Whether the path has no limit.
    pub(super) fn is_wide(&self) -> bool {
        self.both == WIDE || self.wire.is_some()
    }

    /// The scenario that writes the profile to `profile`.
    ///
    /// # Errors
    /// An invalid scenario, which a test would have found.
    pub(super) fn scenario(&self, name: &str, profile: &Path) -> Result<Scenario, ScenarioError> {
        let mut document = Document::parse(&self.text(name), name)?;
        document.set("variables.profile", &Value::Text(profile.display().to_string()))?;
        document.scenario()
    }

    fn text(&self, name: &str) -> String {
        let mut text = format!("title = '{name}'\ntimeout = '170s'\n[variables]\nprofile = ''\n");
        text += "[kernel]\ncongestion = 'cubic'\n";
        if self.way == Way::Third {
            // The few commands pass through `left`.
            text += "[hosts.here]\n[[links]]\nbetween = ['here', 'left']\n";
            text += "path = { round_trip = '2ms', both = { queue = 1000 } }\n";
            text += &OURS
                .replace("'right'", "'left'")
                .replace("'server'", "'origin'")
                .replace(":server}", ":origin}");
        }
        for (host, lines) in [("left", &self.left), ("right", &self.right)] {
            let _ = writeln!(text, "[hosts.{host}]\n{}", lines.join("\n"));
        }
        let path = self.ways.clone().unwrap_or_else(|| {
            format!("{{ round_trip = '{}', both = {{ {} }} }}", self.round_trip, self.both)
        });
        let _ = writeln!(text, "[[links]]\nbetween = ['left', 'right']\npath = {path}");
        text += self.server_table();
        if self.peer != Peer::Ours || self.wire.is_some() {
            text += SSH;
        }
        if let Some(wire) = &self.wire {
            text += &self.wire_tables(wire);
        }
        text += &self.files();
        text += &self.more;
        let words: Vec<String> =
            self.command().iter().map(|word| Value::Text(word.clone())).map(quoted).collect();
        let client = if self.way == Way::Third { "here" } else { "left" };
        let _ =
            writeln!(text, "[[commands]]\nname = 'profile'\nhost = '{client}'\nrun = [{}]", words.join(", "));
        text += "environment = { XDG_CONFIG_HOME = '{dir}', XDG_STATE_HOME = '{dir}', XDG_CACHE_HOME = '{dir}' }\n";
        if self.way == Way::Third {
            text = text.replace("'--anonymous=rw'", "'--anonymous=rw', '--anonymous-third-party'");
        }
        text.replace("@SERVER@", &self.server.iter().map(|word| format!("'{word}', ")).collect::<String>())
            .replace("@LIMIT@", &self.limit.unwrap_or(0).to_string())
    }

    fn server_table(&self) -> &'static str {
        match self.peer {
            Peer::Ours => OURS,
            Peer::Gct => GCT,
            Peer::Vsftpd => VSFTPD,
        }
    }

    /// The interface `wire` of both hosts, and the handling of packets that arrive by it.
    fn wire_tables(&self, wire: &Wire) -> String {
        let features = |enter: &str| match wire.offload {
            true => String::new(),
            false => format!(" && {enter}ethtool -K wire tso off gso off gro off"),
        };
        let there = "nsenter -t $id --net ";
        let mut text = format!(
            "[[servers]]\nname = 'wire'\nhost = 'left'\nready = {{ line = 'ready' }}\nrun = \"\"\"\nid=$(cat \
             {{dir:right}}/sshd.pid) && ip link add wire mtu {mtu} type veth peer name wire mtu {mtu} netns $id && ip addr \
             add {LEFT}/24 dev wire && ip link set wire up && {there}ip addr add {RIGHT}/24 dev wire && {there}ip link set \
             wire up{}{} && echo ready && exec sleep 600\"\"\"\n",
            features(""),
            features(there),
            mtu = wire.mtu
        );
        let receiver = if self.way == Way::Get { "left" } else { "right" };
        for host in ["left", "right"] {
            let filters = wire.filters.filter(|_| host == receiver);
            let steer = match (filters, wire.filters) {
                (Some(_), _) => "1",
                (None, Some(_)) => "2",
                (None, None) => "0",
            };
            let filters = filters.map_or_else(String::new, |count| {
                format!(
                    "tc qdisc add dev wire clsact && for n in $(seq {count}); do echo filter add dev wire ingress protocol \
                     ip prio 1 u32 match ip dport $n 0xffff flowid 1:1; done > {{dir}}/rules && tc -batch {{dir}}/rules && "
                )
            });
            let _ = writeln!(
                text,
                "[[servers]]\nname = 'steer-{host}'\nhost = '{host}'\nready = {{ line = 'ready' }}\nrun = \"\"\"\n\
                 until [ -e /sys/class/net/wire ]; do sleep 0.05; done; {filters}echo {steer} > \
                 /sys/class/net/wire/queues/rx-0/rps_cpus && echo ready && exec sleep 600\"\"\""
            );
        }
        text
    }

    fn files(&self) -> String {
        let host = if self.way == Way::Get { "right" } else { "left" };
        let (size, count) = match self.data {
            Data::File(size) => (size, String::new()),
            Data::Files(count, size) => (size, format!("count = {count}\n")),
            Data::Zeros(_) => return String::new(),
        };
        format!("[[files]]\nhost = '{host}'\npath = '{{disk}}/source'\nsize = '{size} B'\n{count}")
    }

    fn command(&self) -> Vec<String> {
        let end = if matches!(self.data, Data::Files(..)) { "/" } else { "" };
        let address = if self.wire.is_some() { RIGHT } else { "{addr:right}" };
        let root = if self.peer == Peer::Ours { "" } else { "{disk:right}" };
        let server = format!("ftp://{address}:{{port:server}}{root}");
        let (source, destination) = match (self.way, self.data) {
            (Way::Get, Data::Zeros(size)) => {
                (format!("{server}/dev/ropewalk-zero-{size}"), "null:".to_owned())
            }
            (Way::Put, Data::Zeros(size)) => (format!("zero:{size}"), format!("{server}/dev/ropewalk-null")),
            (Way::Get, _) => (format!("{server}/source{end}"), format!("{{disk}}/target{end}")),
            (Way::Put, _) => (format!("{{disk}}/source{end}"), format!("{server}/target{end}")),
            (Way::Third, _) => {
                (format!("ftp://{{addr:left}}:{{port:origin}}/source{end}"), format!("{server}/target{end}"))
            }
        };
        let fixed = ["{ropewalk}", "profile", "--quiet", "--output", "{profile}"];
        let ssh: &[&str] = match (self.peer, self.way) {
            (Peer::Ours, _) => &[],
            (_, Way::Get) => &["--ssh-source", "right"],
            (_, Way::Put | Way::Third) => &["--ssh-destination", "right"],
        };
        let through: &[&str] = match self.peer {
            Peer::Ours => &[],
            _ => &["--ssh", "sh {dir}/ssh", "--collect-command", "{ropewalk} profile --collect"],
        };
        let words = self.client.iter().chain(&fixed).chain(ssh).chain(through);
        let words = words.map(|&word| word.to_owned()).chain(self.arguments.iter().cloned());
        words.chain([source, destination]).collect()
    }
}

/// A TOML string.
fn quoted(value: Value) -> String {
    format!("{:?}", value.to_string())
}

const OURS: &str = r#"
[[files]]
host = 'right'
path = '{dir}/server.toml'
text = """
[identity]
mapped = false
[profiling]
enabled = true
users = ['anonymous']
"""
[[servers]]
name = 'server'
host = 'right'
run = [@SERVER@'{ropewalk}', 'serve', '--config', '{dir}/server.toml', '--listen', '0.0.0.0:{port:server}', '--anonymous=rw',
    '--root', '{disk}', '--log', 'error']
ready = { port = '{port:server}' }
"#;

const GCT: &str = r#"
[[servers]]
name = 'server'
host = 'right'
run = ['globus-gridftp-server', '-p', '{port:server}', '-aa', '-anonymous-user', 'root', '-allow-root', '-home-dir', '/',
    '-control-interface', '0.0.0.0']
ready = { port = '{port:server}' }
"#;

const VSFTPD: &str = r#"
[[servers]]
name = 'server'
host = 'right'
run = ['vsftpd', '{dir}/vsftpd.conf']
ready = { port = '{port:server}' }
[[files]]
host = 'right'
path = '{dir}/vsftpd.conf'
text = """
background=NO
listen=YES
listen_port={port:server}
anonymous_enable=YES
no_anon_password=YES
local_enable=NO
anon_root={disk}
run_as_launching_user=YES
anon_world_readable_only=NO
write_enable=YES
anon_upload_enable=YES
anon_other_write_enable=YES
anon_max_rate=@LIMIT@
connect_from_port_20=NO
xferlog_enable=NO
seccomp_sandbox=NO
"""
"#;

/// Replaces ssh: enters the other host's namespaces through a process there.
pub(in crate::lab) const SSH: &str = r#"
[[servers]]
name = 'sshd'
host = 'right'
run = 'echo $$ > {dir}/sshd.pid; echo ready; exec sleep 600'
ready = { line = 'ready' }
[[files]]
host = 'left'
path = '{dir}/ssh'
text = """
exec nsenter -t "$(cat {dir:right}/sshd.pid)" --net --uts sh -c "$2"
"""
"#;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::super::cases;
    use super::*;

    #[test]
    fn each_case_is_a_valid_scenario() {
        let all = cases::all();
        for case in &all {
            for scene in [Some(&case.scene), case.control.as_ref()].into_iter().flatten() {
                let scenario = scene.scenario(&case.name, Path::new("/tmp/it's.json"));
                scenario.unwrap_or_else(|error| panic!("{}: {error}\n{}", case.name, scene.text(&case.name)));
            }
        }
        let names: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
    }
}
