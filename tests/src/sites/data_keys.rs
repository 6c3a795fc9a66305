//! Servers that bind data connections to their session by one-time keys.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::peers;
use crate::process::{self, Outcome, Program, run};

const LIMIT: Duration = Duration::from_secs(120);

pub struct Site {
    pub directory: TempDir,
}

impl Site {
    #[expect(clippy::new_without_default, reason = "it makes files and starts programs")]
    pub fn new() -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap() };
        site.ca(&["init"]);
        site.ca(&["host", "localhost", "127.0.0.1"]);
        let account = run(process::command("id").arg("-un"), LIMIT).unwrap().text().trim().to_owned();
        fs::write(site.path("gridmap"), site.ca(&["user", "Test User", "--map", &account]).text()).unwrap();
        let pair = ["proxy", "init", "--cert", "usercert.pem", "--key", "userkey.pem"];
        run(site.command().args(pair), LIMIT).unwrap().succeeded().unwrap();
        let content: Vec<u8> = (0..1_300_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(site.path("source"), content).unwrap();
        fs::create_dir_all(site.path("tree/below")).unwrap();
        for n in 0..40 {
            fs::write(site.path(&format!("tree/below/{n}")), vec![n; usize::from(n) * 321]).unwrap();
        }
        site
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn environment(&self, command: &mut Command) {
        command
            .current_dir(self.directory.path())
            .env("X509_USER_PROXY", self.path("proxy"))
            .env("X509_CERT_DIR", self.path("certificates"))
            .env("GLOBUS_HOSTNAME", "127.0.0.1")
            .env("XDG_STATE_HOME", self.path("state"))
            .env_remove("X509_USER_CERT")
            .env_remove("X509_USER_KEY");
    }

    pub fn command(&self) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        self.environment(&mut command);
        command
    }

    pub fn ca(&self, arguments: &[&str]) -> Outcome {
        run(self.command().arg("ca").args(arguments), LIMIT).unwrap().succeeded().unwrap()
    }

    pub fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        let common = ["cp", "--quiet", "--no-dcau"];
        run(self.command().args(common).args(options).args([from, to]), LIMIT).unwrap()
    }

    /// Starts a server for anonymous users over TLS that refuses data channels without a key or
    /// PROT P.
    pub fn serve_tls(&self, root: &str) -> (Program, String) {
        let text = format!(
            "{REQUIRED}\n[anonymous]\nroot = '{root}'\nwrite = true\nthird_party = true\n[identity]\nmapped = false\n\
             [tls]\nstate_directory = 'tls'\nrequired = 'control'\n"
        );
        let (program, port) = self.start(root, &text);
        (program, format!("ftpes://localhost:{port}"))
    }

    /// Starts a server with GSI and these settings.
    pub fn serve(&self, root: &str, data: &str) -> (Program, String) {
        let text = format!(
            "{data}\n[identity]\nmapped = false\n[gsi]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\nauthorities = 'certificates'\n\
             gridmap = 'gridmap'\nrequired = true\nallow_root = true\n"
        );
        let (program, port) = self.start(root, &text);
        (program, format!("gsiftp://localhost:{port}"))
    }

    pub fn start(&self, root: &str, text: &str) -> (Program, u16) {
        fs::create_dir(self.path(root)).unwrap();
        fs::write(self.path("server.toml"), text).unwrap();
        let mut command = self.command();
        command.args(["serve", "--config", "server.toml", "--listen", "127.0.0.1:0", "--root", root]);
        let program = Program::start(&mut command).unwrap();
        let port = |line: &str| {
            line.contains("listening").then(|| line.trim().rsplit(':').next()?.parse::<u16>().ok()).flatten()
        };
        let port = program.wait_for_line(LIMIT, port).unwrap();
        (program, port)
    }

    pub fn is_whole(&self, name: &str) -> bool {
        fs::read(self.path(name)).unwrap() == fs::read(self.path("source")).unwrap()
    }

    pub fn tree_is_whole(&self, name: &str) -> bool {
        (0..40).all(|n| {
            fs::read(self.path(&format!("{name}/below/{n}"))).unwrap() == vec![n; usize::from(n) * 321]
        })
    }
}

pub const REQUIRED: &str = "[data]\nrequire_key = true";
pub const WITHOUT: &str = "disabled_commands = ['SITE DATAKEY']";
