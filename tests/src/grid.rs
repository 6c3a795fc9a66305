//! Test sites with certificates: an authority made by `ropewalk ca`, a host certificate, a user
//! with a proxy, and servers that trust the authority.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::peers;
use crate::process::{self, Outcome, Program, run};

/// Time limit of each program that runs to completion.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A directory with `certificates`, `hostcert.pem`, `hostkey.pem`, `usercert.pem`, `userkey.pem`,
/// `proxy`, and `gridmap`. The authority is in `ropewalk-ca`; servers serve `root`.
pub struct Site {
    directory: TempDir,
    namespace: String,
}

/// A running server and the URL of its root.
pub struct Served {
    pub program: Program,
    pub url: String,
    pub address: SocketAddr,
}

impl Site {
    pub fn new() -> Result<Self> {
        Self::named("/O=Grid/OU=site")
    }

    /// Creates a site whose subject names all begin with `namespace`.
    pub fn named(namespace: &str) -> Result<Self> {
        let site = Self { directory: tempfile::tempdir()?, namespace: namespace.to_owned() };
        site.ca(&["init", "--namespace", namespace])?;
        site.ca(&["host", "localhost", "127.0.0.1"])?;
        let mapped = site.ca(&["user", "Test User", "--map", &account()?])?.text();
        fs::write(site.path("gridmap"), mapped)?;
        let made = run(
            site.command()?.args(["proxy", "init", "--cert", "usercert.pem", "--key", "userkey.pem"]),
            LIMIT,
        )?;
        ensure!(made.succeeded()?.text().contains("CN=Test User"), "the proxy is somebody else's");
        fs::create_dir(site.path("root"))?;
        Ok(site)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the subject name of the user's certificate.
    pub fn identity(&self) -> String {
        format!("{}/CN=Test User", self.namespace)
    }

    /// Returns a Ropewalk command that runs in this site's directory with its proxy.
    pub fn command(&self) -> Result<Command> {
        let mut command = peers::ropewalk_command()?;
        self.environment(&mut command);
        Ok(command)
    }

    pub fn environment(&self, command: &mut Command) {
        command
            .current_dir(self.directory.path())
            .env("X509_USER_PROXY", self.path("proxy"))
            .env("X509_CERT_DIR", self.path("certificates"))
            .env("GLOBUS_HOSTNAME", "127.0.0.1")
            .env_remove("X509_USER_CERT")
            .env_remove("X509_USER_KEY");
    }

    pub fn ca(&self, arguments: &[&str]) -> Result<Outcome> {
        run(self.command()?.arg("ca").args(arguments), LIMIT)?.succeeded()
    }

    pub fn cp(&self, options: &[&str], from: &str, to: &str) -> Result<Outcome> {
        run(self.command()?.args(["cp", "--quiet"]).args(options).args([from, to]), LIMIT)
    }

    /// Makes this site trust the authority of `other` too.
    pub fn trust(&self, other: &Self) -> Result<()> {
        for entry in fs::read_dir(other.path("certificates"))? {
            let entry = entry?;
            fs::copy(entry.path(), self.path("certificates").join(entry.file_name()))?;
        }
        Ok(())
    }

    /// Starts a Ropewalk server; `more` precedes the table `[gsi]` of its configuration.
    pub fn serve(&self, more: &str, environment: &[(&str, &Path)]) -> Result<Served> {
        serve(self.directory.path(), more, environment)
    }

    pub fn gct(&self, arguments: &[&str]) -> Result<Served> {
        let mut command = process::command(
            peers::find("globus-gridftp-server").context("globus-gridftp-server is missing")?,
        );
        command.args(["-p", "0", "-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]);
        command.args(["-home-dir", "/", "-allow-root", "-disable-usage-stats"]).args(arguments);
        self.environment(&mut command);
        command
            .env_remove("X509_USER_PROXY")
            .env("X509_USER_CERT", self.path("hostcert.pem"))
            .env("X509_USER_KEY", self.path("hostkey.pem"))
            .env("GRIDMAP", self.path("gridmap"));
        started(&mut command, &self.path("root").display().to_string())
    }

    /// Writes about 5 MB to `source` and returns the content.
    pub fn content(&self) -> Result<Vec<u8>> {
        let content: Vec<u8> = (0..1_300_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(self.path("source"), &content)?;
        Ok(content)
    }
}

/// Starts a Ropewalk server with the files of a [`Site`] in `directory`.
pub fn serve(directory: &Path, more: &str, environment: &[(&str, &Path)]) -> Result<Served> {
    let text = format!(
        "{more}\n[gsi]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\nauthorities = 'certificates'\n\
         gridmap = 'gridmap'\nrequired = true\nallow_root = true\n[identity]\nmapped = false\n"
    );
    std::fs::write(directory.join("server.toml"), text)?;
    let mut command = peers::ropewalk_command()?;
    command
        .current_dir(directory)
        .args(["serve", "--config", "server.toml", "--listen", "127.0.0.1:0", "--root", "root"])
        .env_remove("X509_USER_PROXY")
        .env_remove("X509_USER_CERT")
        .env_remove("X509_USER_KEY")
        .envs(environment.iter().copied());
    started(&mut command, "")
}

fn started(command: &mut Command, root: &str) -> Result<Served> {
    let program = Program::start(command)?;
    let port = program.wait_for_line(LIMIT, port_in)?;
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    Ok(Served { program, url: format!("gsiftp://localhost:{port}{root}"), address })
}

/// Whether a block of 1 MiB is stored in the place of the block before it, which is lost, and its
/// own place is empty. When globus-url-copy has several threads, it sometimes (1 of 100 uploads)
/// sends two blocks with one offset, to GCT's server as well.
pub fn offset_was_used_twice(made: &Path, stored: &Path) -> Result<bool> {
    let (made, stored) = (fs::read(made)?, fs::read(stored)?);
    let blocks = |bytes: &[u8]| -> Vec<Vec<u8>> { bytes.chunks(1 << 20).map(<[u8]>::to_vec).collect() };
    let (made, stored) = (blocks(&made), blocks(&stored));
    let next = |at: usize| {
        let gap = stored.get(at + 1).is_some_and(|block| block.iter().all(|&byte| byte == 0));
        gap && made.get(at + 1) == stored.get(at)
    };
    Ok(made.len() == stored.len() && (0..made.len()).any(|at| made[at] != stored[at] && next(at)))
}

/// Returns the name of the user who runs the test.
pub fn account() -> Result<String> {
    Ok(run(process::command("id").arg("-un"), LIMIT)?.succeeded()?.text().trim().to_owned())
}

fn port_in(line: &str) -> Option<u16> {
    line.contains("listening").then(|| line.trim().rsplit(':').next()?.parse().ok()).flatten()
}
