//! Passwords and bearer tokens for servers behind relays (SITE HOPLOGIN), over TLS.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use ropewalk_tests::process::{Outcome, Program, run};
use ropewalk_tests::sites::tokens::issuer::{self, AUDIENCE, ISSUER, ec256, key_set};
use ropewalk_tests::sites::tokens::{private, token};
use ropewalk_tests::{files, grid, peers, process};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(120);
const SIZE: u64 = (9 << 20) + 12_345;
const SECRET: &str = "open-sesame";

/// Servers whose certificates an authority of the test vouches for.
struct Site(grid::Site);

struct Served {
    program: Program,
    address: SocketAddr,
}

impl Site {
    fn new() -> Self {
        let site = grid::Site::new().unwrap();
        let script = format!("echo {SECRET} | {:?} passwd --file passwords ada", peers::ropewalk().unwrap());
        let mut sh = process::command("sh");
        run(sh.current_dir(site.path("")).args(["-c", &script]), LIMIT).unwrap().succeeded().unwrap();
        issuer::write(&site.path("keys.json"), &key_set(&[ec256()]).to_string());
        Self(site)
    }

    fn serve(&self, settings: &str) -> Served {
        let text = format!(
            "{settings}\n[identity]\nmapped = false\n[tls]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\n"
        );
        fs::write(self.0.path("server.toml"), text).unwrap();
        let mut command = peers::ropewalk_command().unwrap();
        command.current_dir(self.0.path("")).env("ROPEWALK_LOG", "debug");
        command.args(["serve", "--config", "server.toml", "--listen", "127.0.0.1:0", "--root", "root"]);
        let program = Program::start(&mut command).unwrap();
        let address = |line: &str| line.strip_prefix("Server listening at ")?.parse().ok();
        let address = program.wait_for_line(LIMIT, address).unwrap();
        Served { program, address }
    }

    /// A server for ada, who needs her password.
    fn far(&self) -> Served {
        self.serve("password_file = 'passwords'")
    }

    /// A relay for anonymous clients.
    fn relay(&self) -> Served {
        self.serve(
            "[anonymous]\nwrite = true\nrun_as = 'server'\n[relay]\nto = ['127.0.0.1', 'localhost']\n\
             authorities = 'certificates'\n",
        )
    }

    /// A file with the password, as options for that end.
    fn password(&self, end: &str, password: &str) -> [String; 2] {
        let path = self.0.path(password);
        private(&path, password);
        [format!("--{end}-password-file"), path.display().to_string()]
    }

    fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        let mut command = peers::ropewalk_command().unwrap();
        command.env_remove("BEARER_TOKEN").env_remove("BEARER_TOKEN_FILE").current_dir(self.0.path(""));
        command.args(["cp", "--debug", "--retries", "0", "--authorities", "certificates"]);
        run(command.args(options).args([from, to]), LIMIT).unwrap()
    }
}

impl Served {
    fn url(&self, user: &str) -> String {
        format!("ftpes://{user}localhost:{}", self.address.port())
    }
}

fn no_secret(outcome: &Outcome, servers: &[&Served], secret: &str) {
    assert!(!outcome.errors().contains(secret) && !outcome.text().contains(secret), "{}", outcome.errors());
    for server in servers {
        let log = server.program.log();
        assert!(!log.contains(secret), "{log}");
    }
}

#[test]
fn password_logs_in_at_the_last_server_through_one_and_two_relays() {
    let site = Site::new();
    let (far, b, c) = (site.far(), site.relay(), site.relay());
    files::write_random(&site.0.path("original"), SIZE, 1).unwrap();
    for (name, via) in [("one", b.url("")), ("two", format!("{},{}", b.url(""), c.url("")))] {
        let there = format!("{}/{name}", far.url("ada@"));
        let put = site.password("destination", SECRET);
        let put = site.cp(&[&*put[0], &put[1], "--via", &via], "original", &there);
        put.succeeded().unwrap();
        files::ensure_same(&site.0.path("original"), &site.0.path(&format!("root/{name}"))).unwrap();
        let get = site.password("source", SECRET);
        let get = site.cp(&[&*get[0], &get[1], "--via", &via], &there, &format!("back-{name}"));
        let get = get.succeeded().unwrap();
        files::ensure_same(&site.0.path("original"), &site.0.path(&format!("back-{name}"))).unwrap();
        assert!(get.errors().contains("SITE HOPLOGIN localhost:") && get.errors().contains("ada ***"));
        no_secret(&get, &[&far, &b, &c], SECRET);
    }
    // The relay next to the server logs in, and the other one passes the log-in on.
    assert!(far.program.log().contains("ada"), "{}", far.program.log());
    // In URLs in a row, the log-in stands in the path, and does not reach the relay's paths.
    let split = format!("{}/{}/one", b.url(""), far.url(&format!("ada:{SECRET}@")));
    let got = site.cp(&[], &split, "split");
    got.succeeded().unwrap();
    files::ensure_same(&site.0.path("original"), &site.0.path("split")).unwrap();
    for server in [&far, &b, &c] {
        assert!(!server.program.log().contains(SECRET), "{}", server.program.log());
    }
}

#[test]
fn wrong_password_is_an_error_that_names_the_server() {
    let site = Site::new();
    let (far, b, c) = (site.far(), site.relay(), site.relay());
    fs::write(site.0.path("root/f"), "x").unwrap();
    let there = format!("{}/f", far.url("ada@"));
    for via in [b.url(""), format!("{},{}", c.url(""), b.url(""))] {
        let wrong = site.password("source", "guess-4711");
        let refused = site.cp(&[&*wrong[0], &wrong[1], "--via", &via], &there, "none").failed().unwrap();
        let text = format!("localhost:{} refused the log-in", far.address.port());
        assert!(refused.errors().contains(&text), "{}", refused.errors());
        no_secret(&refused, &[&far, &b, &c], "guess-4711");
        // Without a password, the relay's anonymous log-in is refused.
        let refused = site.cp(&["--via", &via], &format!("{}/f", far.url("")), "none").failed().unwrap();
        assert!(
            refused.errors().contains(&format!("localhost:{}", far.address.port())),
            "{}",
            refused.errors()
        );
    }
    assert!(!site.0.path("none").exists());
}

#[test]
fn token_logs_in_at_the_last_server() {
    let site = Site::new();
    let far = site.serve(&format!(
        "[[tokens.issuers]]\nurl = '{ISSUER}'\naudiences = ['{AUDIENCE}']\nkeys = 'keys.json'\nuser = 'vo'\n"
    ));
    let b = site.relay();
    let secret = token(json!({"scope": "storage.read:/ storage.create:/"}));
    private(&site.0.path("token"), &secret);
    files::write_random(&site.0.path("original"), SIZE, 2).unwrap();
    // The relay has accounts without tokens: its user is named.
    let via = b.url("anonymous@");
    let options = ["--token", "token", "--via", &*via];
    site.cp(&options, "original", &format!("{}/f", far.url(""))).succeeded().unwrap();
    files::ensure_same(&site.0.path("original"), &site.0.path("root/f")).unwrap();
    let back = site.cp(&options, &format!("{}/f", far.url("")), "back").succeeded().unwrap();
    files::ensure_same(&site.0.path("original"), &site.0.path("back")).unwrap();
    no_secret(&back, &[&far, &b], secret.rsplit('.').next().unwrap());
    assert!(far.program.log().contains("bearer token accepted"), "{}", far.program.log());
}

#[test]
fn secrets_are_not_sent_to_a_server_in_clear() {
    let site = Site::new();
    let (far, b, c) = (site.far(), site.relay(), site.relay());
    fs::write(site.0.path("root/f"), "x").unwrap();
    let plain = |server: &Served, user: &str| server.url(user).replace("ftpes", "ftp");
    let password = site.password("source", SECRET);
    for (via, there, reason) in [
        // To the first relay, to the second one, and to the last server.
        (plain(&b, ""), far.url("ada@"), "would reach this relay in clear".to_owned()),
        (
            format!("{},{}", plain(&c, ""), b.url("")),
            far.url("ada@"),
            "would reach this relay in clear".into(),
        ),
        (b.url(""), plain(&far, "ada@"), "is not sent in clear".into()),
    ] {
        let options = [&*password[0], &password[1], "--via", &via];
        let refused = site.cp(&options, &format!("{there}/f"), "none").failed().unwrap();
        assert!(refused.errors().contains(&reason), "{via}: {}", refused.errors());
        no_secret(&refused, &[&far, &b, &c], SECRET);
    }
    // The far server has not even seen the user.
    assert!(!far.program.log().contains("ada"), "{}", far.program.log());
    // A relay whose certificate no authority vouches for gets nothing.
    let other = Site::new();
    let unknown = other.relay();
    let options = [&*password[0], &password[1], "--via", &format!("{},{}", unknown.url(""), b.url(""))];
    site.cp(&options, &format!("{}/f", far.url("ada@")), "none").failed().unwrap();
    assert!(!unknown.program.log().contains("HOPLOGIN"), "{}", unknown.program.log());
    assert!(!site.0.path("none").exists());
}
