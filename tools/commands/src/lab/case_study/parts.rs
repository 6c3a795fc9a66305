//! The parts: each is a scenario of the lab, in which one or more programs write their results.
//!
//! `left` stands for the paper's Breadboard, the host whose settings could be changed; `right` for
//! a server far away.

use std::fmt::Write;

use ropewalk_lab::scenario::{Document, Scenario, ScenarioError, Value};

use crate::lab::labelled::SSH;

/// A scenario and the files that it produces.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Side by side in the directory of results.
    pub(super) files: Vec<String>,
    text: String,
}

/// Round trips of the paper's paths, derived from its bandwidth-delay products at 1 Gbit/s.
const FAR: &str = "16ms";
/// The 1 Gbit/s network cards of Breadboard and Pople, with a queue of a bandwidth-delay product.
const NIC: &str = "rate = '1Gbit/s', queue = 1400";
/// The equivalent of Breadboard's `net.core` limits of 128 KB for autotuning: the kernel accounts
/// about twice the data in flight.
const SMALL: &str =
    "kernel = { tcp_rmem = ['4 KiB', '85 KiB', '256 KiB'], tcp_wmem = ['4 KiB', '16 KiB', '256 KiB'] }";
const TUNED: &str =
    "kernel = { tcp_rmem = ['4 KiB', '85 KiB', '16 MiB'], tcp_wmem = ['4 KiB', '64 KiB', '16 MiB'] }";
/// Breadboard's disks as Bonnie measured them.
const DISKS: &str = "disk = { read = '91 MB/s', write = '100 MB/s' }";

/// Rounds at 40 ms.
pub(super) const FAR_ROUNDS: u32 = 7;

const PROFILE: &str = "{ropewalk} profile --quiet --no-sysstat";
/// The paper's client: one stream unless stated otherwise, no automatic choice.
const PLAIN: &str = "-p 1 --files 1 --tuner fixed --checksum none";
const SERVER: &str = "ftp://{addr:right}:{port:server}";

/// All parts, in the order of the text.
pub(super) fn all() -> Vec<Part> {
    let buffers = "--sweep buffer=auto,128K,bdp,4M,8M,16M,32M --capacity 1Gbit/s --no-perf";
    let new = Scene::new(FAR, NIC).left(SMALL).right(TUNED).apply("left", FAR);
    let near_disks = || Scene::new("0.3ms", "rate = '1Gbit/s', queue = 1000").left(DISKS).right(DISKS);
    // A longer path crosses more lossy segments.
    let long = |round_trip, both| Scene::new(round_trip, both).left(TUNED).right(TUNED);
    // With losses the rate of one stream varies by chance: it takes more rounds to distinguish it
    // from two streams.
    let streams = |rounds: u32| {
        format!(
            "--sweep streams=1,2,4,8,16 --repeat {rounds} --files 1 --tuner fixed --checksum none --no-perf"
        )
    };
    let (few, many) = (streams(3), streams(FAR_ROUNDS));
    let blocks = "--sweep block=64K,256K,1M,4M --files 1 --tuner fixed --checksum none --no-perf";
    let get = |server: &str, path: &str| format!("ftp://{{addr:right}}:{{port:{server}}}{path}/source null:");
    let gct = "--ssh-source right --ssh 'sh {dir}/ssh' --collect-command '{ropewalk} profile --collect'";
    let of_servers = |name: &str| {
        [
            format!("{PROFILE} {PLAIN} -o {{out}}/{name}-gct.json {gct} {}", get("gct", "{disk:right}")),
            format!("{PROFILE} {PLAIN} -o {{out}}/{name}-ours.json {}", get("server", "")),
        ]
    };
    let servers = |scene: Scene| scene.gct().file("right", 160);
    vec![
        Scene::new(FAR, NIC)
            .left(SMALL)
            .right(TUNED)
            .file("left", 128)
            .command(format!("{PROFILE} {PLAIN} {buffers} -o {{out}}/buffers-old.json {{disk}}/source {SERVER}/target"))
            .part("buffers-old", &["buffers-old.json"]),
        Scene::new(FAR, NIC)
            .left(SMALL)
            .right(TUNED)
            .file("left", 128)
            .command(format!(
                "{{ropewalk}} doctor --state {{dir}}/state --json --rate 1Gbit/s --apply --yes {PLAIN} --profiles {{out}} \
                 --verify {{disk}}/source {SERVER}/target > {{out}}/doctor.json"
            ))
            .part("doctor", &["doctor.json", "before.json", "after.json"]),
        new.file("left", 128)
            .command(format!("{PROFILE} {PLAIN} {buffers} -o {{out}}/buffers-new.json {{disk}}/source {SERVER}/target"))
            .part("buffers-new", &["buffers-new.json"]),
        long("6.5ms", "rate = '1Gbit/s', queue = 600, loss = '0.001%'")
            .file("left", 160)
            .command(format!("{PROFILE} {few} -o {{out}}/streams-near.json {{disk}}/source {SERVER}/target"))
            .part("streams-near", &["streams-near.json"]),
        long("40ms", "rate = '1Gbit/s', queue = 3500, loss = '0.01%'")
            .file("left", 80)
            .command(format!("{PROFILE} {many} -o {{out}}/streams-far.json {{disk}}/source {SERVER}/target"))
            .part("streams-far", &["streams-far.json"]),
        Scene::new(FAR, NIC)
            .left(TUNED)
            .right(TUNED)
            .file("left", 192)
            .command(format!("{PROFILE} -p 1 {blocks} -o {{out}}/block-1.json {{disk}}/source {SERVER}/target"))
            .command(format!("{PROFILE} -p 16 {blocks} -o {{out}}/block-16.json {{disk}}/source {SERVER}/target"))
            .part("block", &["block-1.json", "block-16.json"]),
        near_disks()
            .file("left", 200)
            .command(format!(
                "{PROFILE} {PLAIN} --size 200M --sweep workload --baseline path,disk -o {{out}}/disks.json {{disk}}/source \
                 {SERVER}/target"
            ))
            .part("disks", &["disks.json"]),
        servers(Scene::new(FAR, NIC).left(TUNED).right(SMALL))
            .commands(of_servers("old"))
            .part("servers-old", &["old-gct.json", "old-ours.json"]),
        servers(Scene::new(FAR, NIC).left(TUNED).right(SMALL).apply("right", FAR))
            .commands(of_servers("new"))
            .part("servers-new", &["new-gct.json", "new-ours.json"]),
    ]
}

impl Part {
    /// Returns the scenario. `out` is the directory of the files.
    ///
    /// # Errors
    /// An invalid scenario, which a test would have found.
    pub(super) fn scenario(&self, out: &std::path::Path) -> Result<Scenario, ScenarioError> {
        let mut document = Document::parse(&self.text, self.name)?;
        document.set("variables.out", &Value::Text(out.display().to_string()))?;
        document.scenario()
    }
}

struct Scene {
    text: String,
    left: Vec<&'static str>,
    right: Vec<&'static str>,
    link: String,
}

impl Scene {
    fn new(round_trip: &str, both: &str) -> Self {
        let link = format!("path = {{ round_trip = '{round_trip}', both = {{ {both} }} }}");
        Self { text: SERVERS.to_owned(), left: vec![], right: vec![], link }
    }

    fn left(mut self, line: &'static str) -> Self {
        self.left.push(line);
        self
    }

    fn right(mut self, line: &'static str) -> Self {
        self.right.push(line);
        self
    }

    /// A source of this many MiB.
    fn file(mut self, host: &str, mebibytes: u32) -> Self {
        let _ = writeln!(
            self.text,
            "[[files]]\nhost = '{host}'\npath = '{{disk}}/source'\nsize = '{mebibytes} MiB'"
        );
        self
    }

    /// Applies doctor's settings for this path before anything runs.
    fn apply(mut self, host: &str, round_trip: &str) -> Self {
        // Doctor exits with 1 if another property than a setting is insufficient, such as a small
        // MTU.
        let command = format!(
            "{{ropewalk}} doctor --state {{dir}}/state --rate 1Gbit/s --rtt {round_trip} --apply --yes > /dev/null; \
             test -s {{dir}}/state/doctor.json"
        );
        let _ = writeln!(self.text, "[[prepare]]\nhost = '{host}'\nrun = {command:?}");
        self
    }

    fn gct(mut self) -> Self {
        self.text += GCT;
        self.text += SSH;
        self
    }

    fn command(mut self, command: String) -> Self {
        let number = self.text.matches("[[commands]]").count() + 1;
        let _ = writeln!(
            self.text,
            "[[commands]]\nname = 'c{number}'\nhost = 'left'\nrun = {command:?}\n\
             environment = {{ XDG_CONFIG_HOME = '{{dir}}', XDG_STATE_HOME = '{{dir}}', XDG_CACHE_HOME = '{{dir}}' }}"
        );
        self
    }

    fn commands(self, commands: impl IntoIterator<Item = String>) -> Self {
        commands.into_iter().fold(self, Self::command)
    }

    fn part(self, name: &'static str, files: &[&str]) -> Part {
        let mut text = format!(
            "title = '{name}'\ntimeout = '175s'\n[variables]\nout = ''\n[kernel]\ncongestion = 'cubic'\n"
        );
        for (host, lines) in [("left", &self.left), ("right", &self.right)] {
            let _ = writeln!(text, "[hosts.{host}]\n{}", lines.join("\n"));
        }
        let _ = writeln!(text, "[[links]]\nbetween = ['left', 'right']\n{}\n{}", self.link, self.text);
        Part { name, files: files.iter().map(|&file| file.to_owned()).collect(), text }
    }
}

const SERVERS: &str = r#"
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
run = ['{ropewalk}', 'serve', '--config', '{dir}/server.toml', '--listen', '0.0.0.0:{port:server}', '--anonymous=rw',
    '--root', '{disk}', '--log', 'error']
ready = { port = '{port:server}' }
"#;

const GCT: &str = r#"
[[servers]]
name = 'gct'
host = 'right'
run = ['globus-gridftp-server', '-p', '{port:gct}', '-aa', '-anonymous-user', 'root', '-allow-root', '-home-dir', '/',
    '-control-interface', '0.0.0.0']
ready = { port = '{port:gct}' }
"#;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn each_part_is_a_valid_scenario() {
        let parts = all();
        for part in &parts {
            let scenario = part.scenario(Path::new("/tmp/results"));
            scenario.unwrap_or_else(|error| panic!("{}: {error}\n{}", part.name, part.text));
            for file in &part.files {
                // `--profiles` has names of its own.
                assert!(part.text.contains(file.as_str()) || part.name == "doctor", "{file}");
            }
        }
        let files: BTreeSet<&String> = parts.iter().flat_map(|part| &part.files).collect();
        assert_eq!(files.len(), parts.iter().map(|part| part.files.len()).sum::<usize>());
    }
}
