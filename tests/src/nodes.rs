//! Front ends with data nodes on loopback. A step that fails fails the test.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, clippy::new_without_default)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
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

/// A node's command, for front ends at these addresses.
fn node_command(name: &str, join: &[&str], token: &Path, root: &Path) -> std::process::Command {
    let mut command = process::command(peers::ropewalk().unwrap());
    command.arg("node").args(join.iter().flat_map(|address| ["--join", address]));
    command.args(["--name", name, "--join-token-file"]).arg(token).arg("--root").arg(root);
    command
}

/// Starts a node, and waits until it has joined.
pub fn start_node(mut command: std::process::Command, name: &str) -> Program {
    let program = Program::start(&mut command).unwrap();
    let ready = format!("Node {name} ready");
    program.wait_for_line(LIMIT, |line| (line == ready).then_some(())).unwrap();
    program
}

impl Site {
    pub fn new() -> Self {
        Self::with(&[])
    }

    pub fn with(arguments: &[&str]) -> Self {
        Self::start(arguments, |setup| setup)
    }

    /// Clients connect over IPv6. Nodes need an address of that family.
    pub fn over_ipv6(arguments: &[&str]) -> Self {
        Self::start(arguments, Setup::ipv6)
    }

    fn start(arguments: &[&str], change: impl FnOnce(Setup) -> Setup) -> Self {
        let scratch = Scratch::new().unwrap();
        let root = scratch.directory("root").unwrap();
        write_token(&scratch.join("token"), 'a');
        let (server, join) =
            front_end(&scratch, change(Setup::new(Kind::Ropewalk, &root)), "127.0.0.1:0", arguments);
        Self { scratch, server, join }
    }

    /// Starts another front end with the same shared directory, which nodes join at `address`.
    /// Returns the address with its port.
    pub fn another_front_end(&self, address: &str, arguments: &[&str]) -> (Server, String) {
        front_end(&self.scratch, Setup::new(Kind::Ropewalk, self.server.root()), address, arguments)
    }

    /// Kills the front end, and starts it again at other ports.
    pub fn restart(&mut self) {
        self.server.restart().unwrap();
        self.join = joins(&mut self.server);
    }

    /// Where nodes join.
    pub fn join(&self) -> &str {
        &self.join
    }

    pub fn node_command(&self, name: &str, root: &Path) -> std::process::Command {
        node_command(name, &[&self.join], &self.scratch.join("token"), root)
    }

    pub fn node(&self, name: &str) -> Program {
        self.node_at(name, self.server.root())
    }

    pub fn node_at(&self, name: &str, root: &Path) -> Program {
        self.node_with(name, root, &[])
    }

    /// A node with further arguments.
    pub fn node_with(&self, name: &str, root: &Path, arguments: &[&str]) -> Program {
        let mut command = self.node_command(name, root);
        command.args(arguments);
        start_node(command, name)
    }

    /// Starts a node of the front ends at these addresses.
    pub fn node_of(&self, name: &str, join: &[&str]) -> Program {
        start_node(node_command(name, join, &self.scratch.join("token"), self.server.root()), name)
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

fn front_end(scratch: &Scratch, setup: Setup, address: &str, arguments: &[&str]) -> (Server, String) {
    let mut setup = setup
        .argument("--nodes-listen")
        .argument(address)
        .argument("--join-token-file")
        .argument(scratch.join("token"));
    for argument in arguments {
        setup = setup.argument(*argument);
    }
    let mut server = setup.start().unwrap();
    let join = joins(&mut server);
    (server, join)
}

fn joins(server: &mut Server) -> String {
    let joins = |line: &str| line.strip_prefix("Nodes join at ").map(str::to_owned);
    server.program().wait_for_line(LIMIT, joins).unwrap()
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

/// A front end of GCT with data nodes.
pub struct GctSite {
    pub scratch: Scratch,
    pub server: Server,
    _nodes: Vec<Program>,
}

impl GctSite {
    pub fn new(count: usize) -> Self {
        let scratch = Scratch::new().unwrap();
        let mut nodes = Vec::new();
        let mut contacts = Vec::new();
        for _ in 0..count {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = process::command(peers::find("globus-gridftp-server").unwrap());
            command.args(["-dn", "-aa", "-p", &port.to_string(), "-home-dir", "/", "-ipc-allow-from", "127"]);
            command.args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]);
            command.args(["-anonymous-user", "root", "-allow-root"]).env("GLOBUS_HOSTNAME", "127.0.0.1");
            nodes.push(Program::start(&mut command).unwrap());
            // It prints nothing.
            let end = Instant::now() + LIMIT;
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert!(Instant::now() < end, "a data node of GCT does not listen");
                thread::sleep(Duration::from_millis(20));
            }
            contacts.push(format!("127.0.0.1:{port}"));
        }
        let server = Setup::new(Kind::Gct, scratch.path())
            .argument("-r")
            .argument(contacts.join(","))
            .start()
            .unwrap();
        Self { scratch, server, _nodes: nodes }
    }
}

/// The client's options for striped transfers; a block of 0 bytes is one range for each node.
pub fn layout(client: Client, block: Option<u32>) -> Vec<OsString> {
    let mut words = Vec::new();
    match (client, block) {
        (Client::Ropewalk, block) => {
            words.extend(["--stripes".to_owned(), "auto".to_owned()]);
            let size = block.map(|size| if size > 0 { size.to_string() } else { "partitioned".to_owned() });
            words.extend(size.into_iter().flat_map(|size| ["--stripe-block-size".to_owned(), size]));
        }
        (_, block) => {
            words.push("-stripe".to_owned());
            words.extend(block.into_iter().flat_map(|size| ["-sbs".to_owned(), size.to_string()]));
        }
    }
    words.into_iter().map(Into::into).collect()
}
