//! A server with short timeouts and one known file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ropewalk_tests::control::Control;
use ropewalk_tests::process::memory_of;
use ropewalk_tests::random::Random;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};

/// Maximum time in which a server or a client must detect a fault.
pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Fixture {
    pub(crate) scratch: Scratch,
    pub(crate) root: PathBuf,
    pub(crate) server: Server,
    known: Vec<u8>,
}

impl Fixture {
    pub(crate) fn new() -> Result<Self> {
        Self::with(|setup| setup)
    }

    /// Starts a server that waits only seconds for data and for log-ins.
    pub(crate) fn with(change: impl FnOnce(Setup) -> Setup) -> Result<Self> {
        let scratch = Scratch::new()?;
        let root = scratch.directory("served")?;
        let known = Random::new(4).bytes(300_000);
        fs::write(root.join("known"), &known)?;
        let config = scratch.join("server.toml");
        fs::write(
            &config,
            "[limits]\nsessions = 20000\n[data]\nconnect_timeout = 2\nstall_timeout = 3\n[timeouts]\nlogin = 20\nwrite = 5\n",
        )?;
        let setup = Setup::new(Kind::Ropewalk, &root).argument("--config").argument(config);
        let server = change(setup).start()?;
        Ok(Self { scratch, root, server, known })
    }

    pub(crate) fn log_in(&self) -> Result<Control> {
        Control::log_in(self.server.address())
    }

    /// Fails unless the server is alive and a new client can fetch the known file.
    pub(crate) fn still_serves(&mut self) -> Result<()> {
        ensure!(self.server.is_running(), "the server is gone; it wrote: {}", self.server.log());
        let mut control = self.log_in().context("the server serves no more")?;
        let (data, reply) = control.retrieve("/known")?;
        ensure!(reply.code == 226, "RETR of the known file: {reply:?}");
        ensure!(data == self.known, "the known file came as {} other bytes", data.len());
        ensure!(!self.server.log().contains("panicked"), "the server panicked: {}", self.server.log());
        Ok(())
    }

    /// Returns the resident memory of the server in bytes.
    pub(crate) fn memory(&self) -> Result<u64> {
        memory_of(self.server.pid(), "VmRSS")
    }

    /// Returns the names in the served directory that clients can see, sorted.
    pub(crate) fn visible(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}
