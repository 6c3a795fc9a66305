//! `ropewalk gateway` on loopback. A step that fails fails the test.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::control::Control;
use crate::peers;
use crate::process::{self, Program, run};
use crate::scratch::Scratch;

pub const LIMIT: Duration = Duration::from_secs(60);

/// No pause after a refused log-in.
pub const SETTINGS: &str = "[server.timeouts]\nlogin_failure = 0\n";

/// A running gateway.
pub struct Gateway {
    pub program: Program,
    pub address: SocketAddr,
    directory: Scratch,
}

impl Gateway {
    /// It listens at 127.0.0.1 if the options name no other address.
    pub fn start(options: &[&str], settings: &str) -> Self {
        Self::start_with(options, settings, &[])
    }

    /// As [`Gateway::start`], with these variables. It trusts no authority if they name none.
    pub fn start_with(options: &[&str], settings: &str, environment: &[(&str, &Path)]) -> Self {
        let directory = Scratch::new().unwrap();
        let config = directory.join("gateway.toml");
        fs::write(&config, settings).unwrap();
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["gateway", "--config"]).arg(config);
        if !options.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        command
            .args(options)
            .env("XDG_STATE_HOME", directory.join("state"))
            .env("X509_CERT_DIR", "/nonexistent")
            .envs(environment.iter().copied());
        let program = Program::start(&mut command).unwrap();
        let address = next_address(&program);
        Self { program, address, directory }
    }

    /// For clients of this host and clear FTP servers on loopback.
    pub fn open() -> Self {
        Self::start(&["--authorized-hosts", "127.0.0.1", "--allow-target", "127.0.0.0/8"], SETTINGS)
    }

    /// The next address at which it listens: the one with implicit TLS, if it has two.
    pub fn next_address(&self) -> SocketAddr {
        next_address(&self.program)
    }

    /// The certificate that it has made for itself.
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("state/ropewalk/server.pem")
    }

    /// The final reply to a log-in.
    pub fn log_in(&self, user: &str, password: &str) -> (u16, String) {
        let mut control = Control::connect(self.address).unwrap();
        control.expect(format!("USER {user}"), 331).unwrap();
        let reply = control.command(format!("PASS {password}")).unwrap();
        (reply.code, reply.text)
    }
}

fn next_address(program: &Program) -> SocketAddr {
    let address = |line: &str| line.strip_prefix("Gateway listening at ")?.trim().parse().ok();
    program.wait_for_line(LIMIT, address).unwrap()
}

/// Writes a file of passwords: that of each user is `secret-NAME`.
pub fn write_passwords(path: &Path, users: &[&str]) {
    for user in users {
        let program = peers::ropewalk().unwrap();
        let script = format!("echo secret-{user} | {program:?} passwd --file {path:?} {user}");
        run(process::command("sh").args(["-c", &script]), LIMIT).unwrap().succeeded().unwrap();
    }
}
