//! A server that accepts bearer tokens over TLS, with a test issuer.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/tokens/tests/common/mod.rs"]
pub mod issuer;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use issuer::{AUDIENCE, ISSUER, ec256, key_set, with};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::peers;
use crate::process::{self, Outcome, Program, run};

const LIMIT: Duration = Duration::from_secs(60);

pub struct Site {
    pub directory: TempDir,
    pub server: Program,
    pub port: u16,
}

impl Site {
    #[expect(clippy::new_without_default, reason = "it makes files and starts programs")]
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["root/data", "root/up", "state"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("root/data/file"), content()).unwrap();
        fs::write(at("root/database"), "secret").unwrap();
        issuer::write(&at("keys.json"), &key_set(&[ec256()]).to_string());
        let text = format!(
            "listen = ['127.0.0.1:0']\nroot = 'root'\n[identity]\nmapped = false\n[tls]\nstate_directory = 'state'\n\
             [[tokens.issuers]]\nurl = '{ISSUER}'\naudiences = ['{AUDIENCE}']\nkeys = 'keys.json'\nuser = 'vo'\n"
        );
        fs::write(at("server.toml"), text).unwrap();
        let mut command = peers::ropewalk_command().unwrap();
        command.current_dir(directory.path()).args(["serve", "--config", "server.toml"]);
        let server = Program::start(&mut command).unwrap();
        let port = server.wait_for_line(LIMIT, port_in).unwrap();
        Self { directory, server, port }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn url(&self, path: &str) -> String {
        format!("127.0.0.1:{}{path}", self.port)
    }

    /// Writes a token to a file that only the current user may read.
    pub fn token(&self, name: &str, changes: Value) -> PathBuf {
        let path = self.path(name);
        private(&path, &token(changes));
        path
    }

    pub fn curl(&self, token: &str, arguments: &[&str]) -> Outcome {
        let netrc = self.path("netrc");
        private(&netrc, &format!("machine 127.0.0.1 login :token: password {token}\n"));
        let mut command = process::command("curl");
        command.args(["--silent", "--show-error", "--insecure", "--ssl-reqd", "--netrc-file"]).arg(netrc);
        run(command.args(arguments), LIMIT).unwrap()
    }

    pub fn ours(&self) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command
            .env("XDG_STATE_HOME", self.path("client"))
            .env_remove("BEARER_TOKEN")
            .env_remove("BEARER_TOKEN_FILE")
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    pub fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        run(
            self.ours()
                .args(["cp", "--quiet", "--accept-new", "--retries", "0"])
                .args(options)
                .args([from, to]),
            LIMIT,
        )
        .unwrap()
    }

    /// Checks that the server's log contains no signature of these tokens.
    pub fn kept_secret(&self, tokens: &[&str]) {
        let log = self.server.log();
        assert!(log.contains("bearer token accepted"), "{log}");
        for token in tokens {
            let signature = token.rsplit('.').next().unwrap();
            assert!(!log.contains(signature), "{log}");
        }
    }
}

pub fn content() -> Vec<u8> {
    (0..500_000u32).flat_map(u32::to_le_bytes).collect()
}

fn port_in(line: &str) -> Option<u16> {
    let at = line.find("127.0.0.1:")? + "127.0.0.1:".len();
    let digits: String = line[at..].chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|port| *port != 0)
}

pub fn private(path: &std::path::Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let _ = fs::remove_file(path);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Returns a token that is valid now, with `changes` applied to its claims.
pub fn token(changes: Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut claims = with(json!({
        "iat": now, "nbf": now, "exp": now + 3600, "scope": "storage.read:/data storage.create:/up",
    }));
    for (name, value) in changes.as_object().unwrap() {
        match (value, claims.as_object_mut()) {
            (Value::Null, Some(claims)) => drop(claims.remove(name)),
            _ => claims[name] = value.clone(),
        }
    }
    ec256().token(&claims)
}
