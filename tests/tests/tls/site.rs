//! A Ropewalk server with TLS, and the configuration that clients need.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::nodes::{start_node, write_token};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Outcome, Program};
use tempfile::TempDir;

pub(crate) const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Site {
    directory: TempDir,
    program: Program,
    pub(crate) address: SocketAddr,
    /// The address for implicit TLS.
    pub(crate) implicit: SocketAddr,
    pub(crate) fingerprint: String,
    /// Where data nodes join, if the server has a section for them.
    join: Option<String>,
    nodes: Vec<Program>,
}

/// The section of a server that has data nodes.
const NODES: &str = "[nodes]\nlisten = '127.0.0.1:0'\njoin_token_file = 'token'";

impl Site {
    pub(crate) fn new() -> Self {
        Self::with("")
    }

    /// With these lines in `[tls]`.
    pub(crate) fn with(tls: &str) -> Self {
        Self::start(tempfile::tempdir().unwrap(), tls, "")
    }

    /// With these lines in `[tls]`, and so many data nodes.
    pub(crate) fn with_nodes(tls: &str, count: usize) -> Self {
        Self::start_with_nodes(tempfile::tempdir().unwrap(), tls, "", count)
    }

    /// As [`Self::start`], with so many data nodes.
    pub(crate) fn start_with_nodes(directory: TempDir, tls: &str, more: &str, count: usize) -> Self {
        write_token(&directory.path().join("token"), 'a');
        let mut site = Self::start(directory, tls, &format!("{more}\n{NODES}"));
        for name in (0..count).map(|at| format!("node{at}")) {
            let join = site.join.as_deref().expect("the server has said where nodes join");
            let mut command = client(site.directory.path());
            command.args(["node", "--join", join, "--join-token-file", "token"]);
            command.args(["--name", &name, "--root", "root"]);
            site.nodes.push(start_node(command, &name));
        }
        site
    }

    /// In a directory that may have files already. `more`: further sections.
    pub(crate) fn start(directory: TempDir, tls: &str, more: &str) -> Self {
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("root")).unwrap();
        let text = format!(
            "root = 'root'\nlisten = ['127.0.0.1:0']\n[anonymous]\nwrite = true\nrun_as = 'server'\nthird_party = true\n[tls]\n\
             state_directory = 'tls'\nimplicit = ['127.0.0.1:0']\n{tls}\n{more}\n"
        );
        fs::write(at("server.toml"), text).unwrap();
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["serve", "--config"]).arg(at("server.toml"));
        let program = Program::start(&mut command).unwrap();
        let address =
            || program.wait_for_line(LIMIT, |line| line.strip_prefix("Server listening at ")?.parse().ok());
        let (explicit, implicit) = (address().unwrap(), address().unwrap());
        let join = RefCell::new(None);
        let fingerprint = program
            .wait_for_line(LIMIT, |line| {
                if let Some(address) = line.strip_prefix("Nodes join at ") {
                    join.replace(Some(address.to_owned()));
                }
                Some(line.strip_prefix("TLS certificate ")?.to_owned())
            })
            .unwrap();
        let join = join.into_inner();
        Self { directory, program, address: explicit, implicit, fingerprint, join, nodes: Vec::new() }
    }

    /// The process of the first node.
    pub(crate) fn node(&self) -> u32 {
        self.nodes[0].pid()
    }

    /// Waits until the log has `words` this many times.
    pub(crate) fn wait_for_log(&self, words: &str, times: usize) {
        self.program.wait_for_log(LIMIT, |log| log.matches(words).count() >= times).unwrap();
    }

    /// The number of data channels that nodes have got.
    pub(crate) fn channels_on_nodes(&self) -> usize {
        self.log().matches("data channel on a node").count()
    }

    /// Waits until the program that has the data connections has logged `words` this many times.
    pub(crate) fn wait_for_data_log(&self, words: &str, times: usize) -> String {
        let program = self.nodes.first().unwrap_or(&self.program);
        program.wait_for_log(LIMIT, |log| log.matches(words).count() >= times).unwrap();
        program.log()
    }

    /// The logs of the server and of its nodes.
    pub(crate) fn logs(&self) -> String {
        self.nodes.iter().map(Program::log).fold(self.log(), |all, log| all + &log)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn log(&self) -> String {
        self.program.log()
    }

    /// The certificate that the server has generated.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.path("tls/server.pem")
    }

    pub(crate) fn explicit_url(&self) -> String {
        format!("ftpes://localhost:{}", self.address.port())
    }

    pub(crate) fn implicit_url(&self) -> String {
        format!("ftps://localhost:{}", self.implicit.port())
    }

    pub(crate) fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        cp(self.directory.path(), options, from, to)
    }

    /// Uploads and downloads.
    pub(crate) fn round(&self, url: &str, root: &Path, options: &[&str]) {
        let content = self.content("source");
        self.cp(options, "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(fs::read(root.join("there")).unwrap() == content, "{url} {options:?}");
        let got = self.cp(options, &format!("{url}/there"), "back").succeeded().unwrap().errors();
        assert!(!got.contains("warning"), "{url} {options:?}: {got}");
        assert!(fs::read(self.path("back")).unwrap() == content, "{url} {options:?}");
        fs::remove_file(root.join("there")).unwrap();
        fs::remove_file(self.path("back")).unwrap();
    }

    /// A file of some megabytes.
    pub(crate) fn content(&self, name: &str) -> Vec<u8> {
        let content: Vec<u8> = (0..700_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(self.path(name), &content).unwrap();
        content
    }

    /// Files of many sizes.
    pub(crate) fn tree(&self, name: &str) {
        fs::create_dir_all(self.path(name).join("below")).unwrap();
        for n in 0..20u8 {
            fs::write(self.path(name).join(format!("below/{n}")), vec![n; usize::from(n) * 4321]).unwrap();
        }
    }

    pub(crate) fn ensure_same(&self, one: &str, other: &str) {
        ropewalk_tests::tree::ensure_same(&self.path(one), &self.path(other)).unwrap();
    }
}

/// The Ropewalk client, with its state in `directory`.
pub(crate) fn client(directory: &Path) -> Command {
    let mut command = peers::ropewalk_command().unwrap();
    command.current_dir(directory).env("XDG_STATE_HOME", directory.join("state"));
    command
}

pub(crate) fn cp(directory: &Path, options: &[&str], from: &str, to: &str) -> Outcome {
    let mut command = client(directory);
    command.args(["cp", "--quiet", "--retries", "0"]).args(options).args([from, to]);
    process::run(&mut command, LIMIT).unwrap()
}
