//! A site for gsiftp:// with tickets from a real key distribution centre.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::peers;
use crate::process::{self, Outcome, Program, run};
use crate::realm::{self, Realm};

const LIMIT: Duration = Duration::from_secs(120);

pub struct Site {
    pub directory: TempDir,
    pub realm: Realm,
}

impl Site {
    pub fn new() -> Option<Self> {
        let site = Self::at(None)?;
        site.realm.principal("eve/host", Some("eve.keytab")).unwrap();
        site.realm.login("ada", "cache", &[]).unwrap();
        Some(site)
    }

    /// Creates a site whose key distribution centre has a shifted clock (`-2h`), without any
    /// ticket.
    pub fn at(shift: Option<&str>) -> Option<Self> {
        if !realm::available() {
            return None;
        }
        let site = Self { directory: tempfile::tempdir().unwrap(), realm: Realm::at(shift).unwrap() };
        fs::set_permissions(site.realm.keytab(), PermissionsExt::from_mode(0o600)).unwrap();
        fs::create_dir(site.path("root")).unwrap();
        Some(site)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let none = self.path("none");
        self.realm
            .environment(command)
            .current_dir(self.directory.path())
            .env("HOME", &none)
            .env("X509_USER_PROXY", &none)
            .env("X509_CERT_DIR", self.path("certificates"))
    }

    pub fn serve(&self, settings: &str) -> (Program, u16) {
        // Shorten the pause after a failed log-in unless the test sets timeouts itself.
        let pauses = if settings.contains("[timeouts]") { "" } else { "[timeouts]\nlogin_failure = 0.001\n" };
        let text = format!(
            "[kerberos]\nkeytab = '{}'\nrealms = ['{}']\nrequired = true\n{settings}[identity]\nmapped = false\n{pauses}",
            self.realm.keytab().display(),
            realm::NAME
        );
        fs::write(self.path("server.toml"), text).unwrap();
        let mut command = peers::ropewalk_command().unwrap();
        self.environment(&mut command);
        command.args(["serve", "--config", "server.toml", "--listen", "127.0.0.1:0", "--root", "root"]);
        let program = Program::start(&mut command).unwrap();
        let port = program.wait_for_line(LIMIT, port_in).unwrap();
        (program, port)
    }

    pub fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        let mut command = peers::ropewalk_command().unwrap();
        self.environment(&mut command);
        run(command.args(["cp", "--quiet", "--retries", "0"]).args(options).args([from, to]), LIMIT).unwrap()
    }

    pub fn content(&self) -> Vec<u8> {
        let content: Vec<u8> = (0..1_300_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(self.path("source"), &content).unwrap();
        content
    }

    pub fn round(&self, url: &str, options: &[&str]) {
        let content = self.content();
        self.cp(options, "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(fs::read(self.path("root/there")).unwrap() == content, "{url} {options:?}");
        let got = self.cp(options, &format!("{url}/there"), "back").succeeded().unwrap().errors();
        assert!(!got.contains("warning"), "{url} {options:?}: {got}");
        assert!(fs::read(self.path("back")).unwrap() == content, "{url} {options:?}");
        fs::remove_file(self.path("root/there")).unwrap();
        fs::remove_file(self.path("back")).unwrap();
    }

    /// Returns the first token, in base64, of a client with a shifted clock.
    pub fn token(&self, shift: Option<&str>) -> String {
        const CLIENT: &str = "import base64, gssapi\n\
            name = gssapi.Name('host@localhost', gssapi.NameType.hostbased_service)\n\
            flags = gssapi.RequirementFlag.mutual_authentication\n\
            token = gssapi.SecurityContext(name=name, usage='initiate', flags=flags).step()\n\
            print(base64.b64encode(token).decode())\n";
        let mut command = realm::shifted("/usr/bin/python3", shift).unwrap();
        self.environment(command.args(["-c", CLIENT]));
        run(&mut command, LIMIT).unwrap().succeeded().unwrap().text().trim().to_owned()
    }

    /// Runs the independent client, which uses python3-gssapi instead of Ropewalk's code.
    pub fn python(&self, port: u16, arguments: &[&str]) -> Outcome {
        // Debian's interpreter, which has the package python3-gssapi.
        let mut command = process::command("/usr/bin/python3");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kerberos/client.py");
        self.environment(&mut command);
        run(command.arg(script).arg(port.to_string()).args(arguments), LIMIT).unwrap()
    }
}

fn port_in(line: &str) -> Option<u16> {
    line.contains("listening").then(|| line.trim().rsplit(':').next()?.parse().ok()).flatten()
}
