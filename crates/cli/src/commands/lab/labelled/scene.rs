//! A case as a scenario of the lab: two hosts, a server on `right`, and `ropewalk profile` on `left`.

use std::fmt::Write;
use std::path::Path;

use ropewalk_lab::scenario::{Document, Scenario, ScenarioError, Value};

/// A path of which nothing limits.
pub(super) const WIDE: &str = "queue = 20000";

/// Seen from `left`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Get,
    Put,
}

/// The server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Ours, which profiles itself.
    Ours,
    /// GCT's, whose host is profiled as through ssh.
    Gct,
    /// As GCT's.
    Vsftpd,
}

/// What is moved.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data {
    /// Of so many bytes.
    File(u64),
    /// So many, of so many bytes each.
    Files(u32, u64),
    /// From memory to memory.
    Zeros(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Scene {
    way: Way,
    peer: Peer,
    round_trip: &'static str,
    both: &'static str,
    /// In place of the two, where the ways differ: the table `path` of the link.
    ways: Option<&'static str>,
    data: Data,
    left: Vec<&'static str>,
    right: Vec<&'static str>,
    arguments: Vec<&'static str>,
    /// Words before the programs' names.
    client: &'static [&'static str],
    server: &'static [&'static str],
    /// Of vsftpd, bytes per second.
    limit: Option<u64>,
    /// Further tables.
    more: String,
}

impl Scene {
    pub(super) fn new(
        way: Way,
        peer: Peer,
        (round_trip, both): (&'static str, &'static str),
        data: Data,
    ) -> Self {
        Self {
            way,
            peer,
            round_trip,
            both,
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

    /// A line of the host's table.
    pub(super) fn left(mut self, line: &'static str) -> Self {
        self.left.push(line);
        self
    }

    /// A line of the host's table.
    pub(super) fn right(mut self, line: &'static str) -> Self {
        self.right.push(line);
        self
    }

    pub(super) fn ways(self, path: &'static str) -> Self {
        Self { ways: Some(path), ..self }
    }

    /// Further arguments of the client.
    pub(super) fn arguments(mut self, words: &[&'static str]) -> Self {
        self.arguments.extend(words);
        self
    }

    /// Runs the client so.
    pub(super) fn client(self, client: &'static [&'static str]) -> Self {
        Self { client, ..self }
    }

    /// Runs our server so.
    pub(super) fn server(self, server: &'static [&'static str]) -> Self {
        Self { server, ..self }
    }

    pub(super) fn limit(self, bytes_per_second: u64) -> Self {
        Self { limit: Some(bytes_per_second), ..self }
    }

    pub(super) fn more(self, more: String) -> Self {
        Self { more, ..self }
    }

    /// Whether nothing of the path limits.
    pub(super) fn is_wide(&self) -> bool {
        self.both == WIDE
    }

    /// Writes the profile to `profile`.
    ///
    /// # Errors
    /// What a test would have shown.
    pub(super) fn scenario(&self, name: &str, profile: &Path) -> Result<Scenario, ScenarioError> {
        let mut document = Document::parse(&self.text(name), name)?;
        document.set("variables.profile", &Value::Text(profile.display().to_string()))?;
        document.scenario()
    }

    fn text(&self, name: &str) -> String {
        let mut text = format!("title = '{name}'\ntimeout = '170s'\n[variables]\nprofile = ''\n");
        text += "[kernel]\ncongestion = 'cubic'\n";
        for (host, lines) in [("left", &self.left), ("right", &self.right)] {
            let _ = writeln!(text, "[hosts.{host}]\n{}", lines.join("\n"));
        }
        let ways = self.ways.map(str::to_owned);
        let path = ways.unwrap_or_else(|| {
            format!("{{ round_trip = '{}', both = {{ {} }} }}", self.round_trip, self.both)
        });
        let _ = writeln!(text, "[[links]]\nbetween = ['left', 'right']\npath = {path}");
        text += self.server_table();
        if self.peer != Peer::Ours {
            text += SSH;
        }
        text += &self.files();
        text += &self.more;
        let words: Vec<String> =
            self.command().iter().map(|word| Value::Text(word.clone())).map(quoted).collect();
        let _ = writeln!(text, "[[commands]]\nname = 'profile'\nhost = 'left'\nrun = [{}]", words.join(", "));
        text += "environment = { XDG_CONFIG_HOME = '{dir}', XDG_STATE_HOME = '{dir}', XDG_CACHE_HOME = '{dir}' }\n";
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
        let server = match self.peer {
            Peer::Ours => "ftp://{addr:right}:{port:server}",
            Peer::Gct | Peer::Vsftpd => "ftp://{addr:right}:{port:server}{disk:right}",
        };
        let (source, destination) = match (self.way, self.data) {
            (Way::Get, Data::Zeros(size)) => {
                (format!("{server}/dev/ropewalk-zero-{size}"), "null:".to_owned())
            }
            (Way::Put, Data::Zeros(size)) => (format!("zero:{size}"), format!("{server}/dev/ropewalk-null")),
            (Way::Get, _) => (format!("{server}/source{end}"), format!("{{disk}}/target{end}")),
            (Way::Put, _) => (format!("{{disk}}/source{end}"), format!("{server}/target{end}")),
        };
        let fixed = ["{ropewalk}", "profile", "--quiet", "--output", "{profile}"];
        let ssh: &[&str] = match (self.peer, self.way) {
            (Peer::Ours, _) => &[],
            (_, Way::Get) => &["--ssh-source", "right"],
            (_, Way::Put) => &["--ssh-destination", "right"],
        };
        let through: &[&str] = match self.peer {
            Peer::Ours => &[],
            _ => &["--ssh", "sh {dir}/ssh", "--collect-command", "{ropewalk} profile --collect"],
        };
        let words = self.client.iter().chain(&fixed).chain(ssh).chain(through).chain(&self.arguments);
        words.map(|&word| word.to_owned()).chain([source, destination]).collect()
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

/// In place of ssh: enters the other host, which shows itself by a process.
pub(in crate::commands::lab) const SSH: &str = r#"
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
    fn every_case_is_a_scenario() {
        let all = cases::all();
        for case in &all {
            let scenario = case.scene.scenario(&case.name, Path::new("/tmp/it's.json"));
            scenario
                .unwrap_or_else(|error| panic!("{}: {error}\n{}", case.name, case.scene.text(&case.name)));
        }
        let names: BTreeSet<&str> = all.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
    }
}
