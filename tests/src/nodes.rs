//! A front end with data nodes on loopback. A step that fails fails the test.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, clippy::new_without_default)]

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::files::write_random;
use crate::peers;
use crate::process::{self, Outcome, Program};
use crate::scratch::Scratch;
use crate::server::{Kind, Server, Setup};

pub const LIMIT: Duration = Duration::from_secs(60);

/// A front end, and the directory that it shares with its nodes.
pub struct Site {
    pub scratch: Scratch,
    pub server: Server,
    /// Where nodes join.
    join: String,
}

impl Site {
    pub fn new() -> Self {
        Self::with(&[])
    }

    pub fn with(arguments: &[&str]) -> Self {
        let scratch = Scratch::new().unwrap();
        let root = scratch.directory("root").unwrap();
        write_token(&scratch.join("token"), 'a');
        let mut setup = Setup::new(Kind::Ropewalk, &root)
            .argument("--nodes-listen")
            .argument("127.0.0.1:0")
            .argument("--join-token-file")
            .argument(scratch.join("token"));
        for argument in arguments {
            setup = setup.argument(*argument);
        }
        let mut server = setup.start().unwrap();
        let joins = |line: &str| line.strip_prefix("Nodes join at ").map(str::to_owned);
        let join = server.program().wait_for_line(LIMIT, joins).unwrap();
        Self { scratch, server, join }
    }

    pub fn node_command(&self, name: &str, root: &Path) -> std::process::Command {
        let mut command = process::command(peers::ropewalk().unwrap());
        command.args(["node", "--join", &self.join, "--name", name, "--join-token-file"]);
        command.arg(self.scratch.join("token")).arg("--root").arg(root);
        command
    }

    pub fn node(&self, name: &str) -> Program {
        self.node_at(name, self.server.root())
    }

    pub fn node_at(&self, name: &str, root: &Path) -> Program {
        let program = Program::start(&mut self.node_command(name, root)).unwrap();
        let ready = format!("Node {name} ready");
        program.wait_for_line(LIMIT, |line| (line == ready).then_some(())).unwrap();
        program
    }

    pub fn source(&self, size: u64) -> PathBuf {
        let path = self.scratch.join("source");
        write_random(&path, size, 7).unwrap();
        path
    }

    pub fn shared(&self, name: &str) -> PathBuf {
        self.server.root().join(name)
    }

    /// The number of data channels that nodes have got.
    pub fn channels(&self) -> usize {
        self.server.log().matches("data channel on a node").count()
    }

    pub fn wait_for_log(&mut self, text: &str) {
        self.server.program().wait_for_log(LIMIT, |log| log.contains(text)).unwrap();
    }
}

/// A join token of 40 times this letter.
pub fn write_token(path: &Path, letter: char) {
    fs::write(path, letter.to_string().repeat(40)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

/// Runs `ropewalk cp`.
pub fn cp(options: &[&str], from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    command.arg("cp").args(options).arg(from).arg(to);
    process::run(&mut command, LIMIT).unwrap()
}
