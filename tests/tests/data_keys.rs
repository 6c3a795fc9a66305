//! Data connections bound to their session by one-time keys: our client with our servers, where DCAU is not wanted.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::{peers, process::run};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

struct Site {
    directory: TempDir,
}

impl Site {
    fn new() -> Self {
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

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn environment(&self, command: &mut Command) {
        command
            .current_dir(self.directory.path())
            .env("X509_USER_PROXY", self.path("proxy"))
            .env("X509_CERT_DIR", self.path("certificates"))
            .env("GLOBUS_HOSTNAME", "127.0.0.1")
            .env_remove("X509_USER_CERT")
            .env_remove("X509_USER_KEY");
    }

    fn command(&self) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        self.environment(&mut command);
        command
    }

    fn ca(&self, arguments: &[&str]) -> Outcome {
        run(self.command().arg("ca").args(arguments), LIMIT).unwrap().succeeded().unwrap()
    }

    fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        let common = ["cp", "--quiet", "--no-dcau"];
        run(self.command().args(common).args(options).args([from, to]), LIMIT).unwrap()
    }

    /// A server for everybody, who has to use TLS; it makes no data channel without a key or PROT P.
    fn serve_tls(&self, root: &str) -> (Program, String) {
        let text = format!(
            "{REQUIRED}\n[anonymous]\nroot = '{root}'\nwrite = true\nthird_party = true\n[identity]\nmapped = false\n\
             [tls]\nstate_directory = 'tls'\nrequired = 'control'\n"
        );
        let (program, port) = self.start(root, &text);
        (program, format!("ftpes://localhost:{port}"))
    }

    /// A server with GSI and these settings.
    fn serve(&self, root: &str, data: &str) -> (Program, String) {
        let text = format!(
            "{data}\n[identity]\nmapped = false\n[gsi]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\nauthorities = 'certificates'\n\
             gridmap = 'gridmap'\nrequired = true\nallow_root = true\n"
        );
        let (program, port) = self.start(root, &text);
        (program, format!("gsiftp://localhost:{port}"))
    }

    fn start(&self, root: &str, text: &str) -> (Program, u16) {
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

    fn is_whole(&self, name: &str) -> bool {
        fs::read(self.path(name)).unwrap() == fs::read(self.path("source")).unwrap()
    }

    fn tree_is_whole(&self, name: &str) -> bool {
        (0..40).all(|n| {
            fs::read(self.path(&format!("{name}/below/{n}"))).unwrap() == vec![n; usize::from(n) * 321]
        })
    }
}

const REQUIRED: &str = "[data]\nrequire_key = true";
const WITHOUT: &str = "disabled_commands = ['SITE DATAKEY']";

#[test]
fn everything_goes_over_bound_connections() {
    let site = Site::new();
    let (_server, url) = site.serve("root", REQUIRED);
    for options in [&["-p", "4"][..], &["-p", "1"], &["--mode", "stream"], &["--no-delegate", "-p", "4"]] {
        site.cp(options, "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(site.is_whole("root/there"), "{options:?}");
        let got = site.cp(options, &format!("{url}/there"), "back").succeeded().unwrap().errors();
        assert!(!got.contains("warning") && site.is_whole("back"), "{options:?}: {got}");
        fs::remove_file(site.path("root/there")).unwrap();
        fs::remove_file(site.path("back")).unwrap();
    }
    // Listings too, and many small files over connections that are used again.
    for options in [&["-r"][..], &["-r", "--mode", "stream"]] {
        site.cp(options, "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        assert!(site.tree_is_whole("root/tree"), "{options:?}");
        site.cp(options, &format!("{url}/tree/"), "again/").succeeded().unwrap();
        assert!(site.tree_is_whole("again"), "{options:?}");
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
    }
}

#[test]
fn the_dialogue_is_shown_without_the_secret() {
    let site = Site::new();
    let (server, url) = site.serve("root", REQUIRED);
    let shown = site.cp(&["--debug"], "source", &format!("{url}/there")).succeeded().unwrap().errors();
    let line = shown.lines().find(|line| line.contains("SITE DATAKEY")).unwrap_or_else(|| panic!("{shown}"));
    assert!(line.ends_with(" ***"), "{line}");
    assert!(shown.contains("is for the next data channel"), "{shown}");
    let logged = server.log();
    assert!(!logged.contains("DATAKEY"), "{logged}");
}

#[test]
fn between_two_servers_both_get_the_key_or_none() {
    let site = Site::new();
    let (_one, one) = site.serve("one", REQUIRED);
    let (_other, other) = site.serve("other", REQUIRED);
    let (_old, old) = site.serve("old", WITHOUT);
    let (_open, open) = site.serve("open", "");
    fs::copy(site.path("source"), site.path("one/a")).unwrap();
    for options in [&["-p", "4"][..], &["--mode", "stream"], &["--delayed-passive"]] {
        site.cp(options, &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
        assert!(site.is_whole("other/b"), "{options:?}");
        fs::remove_file(site.path("other/b")).unwrap();
    }
    site.cp(&["-r"], "tree/", &format!("{one}/tree/")).succeeded().unwrap();
    site.cp(&["-r"], &format!("{one}/tree/"), &format!("{other}/tree/")).succeeded().unwrap();
    assert!(site.tree_is_whole("other/tree"));
    let required = &["--require-data-authentication", "--retries", "0"][..];
    site.cp(required, &format!("{one}/a"), &format!("{other}/b")).succeeded().unwrap();
    assert!(site.is_whole("other/b"));
    // With one that does not know keys there is none; and who wants one says so.
    fs::copy(site.path("source"), site.path("old/a")).unwrap();
    site.cp(&[], &format!("{old}/a"), &format!("{open}/b")).succeeded().unwrap();
    assert!(site.is_whole("open/b"));
    let text =
        site.cp(&["--retries", "0"], &format!("{old}/a"), &format!("{one}/b")).failed().unwrap().errors();
    assert!(text.contains("521") && text.contains("SITE DATAKEY"), "{text}");
    // So does a client that wants one, before any data.
    fs::copy(site.path("source"), site.path("open/a")).unwrap();
    for (from, to) in [(&old, &open), (&open, &old)] {
        let text = site.cp(required, &format!("{from}/a"), &format!("{to}/c")).failed().unwrap().errors();
        assert!(text.contains("--require-data-authentication"), "{text}");
    }
    assert!(!site.path("open/c").exists() && !site.path("old/c").exists());
}

#[test]
fn within_tls_data_in_clear_is_bound() {
    let site = Site::new();
    let ((_one, one), (_other, other)) = (site.serve_tls("one"), site.serve_tls("other"));
    let clear = |options: &[&'static str]| {
        let common = ["--accept-new", "--data-protection", "clear", "--require-data-authentication"];
        [&common[..], options].concat()
    };
    for options in [&["-p", "4"][..], &["--mode", "stream"]] {
        let options = clear(options);
        site.cp(&options, "source", &format!("{one}/there")).succeeded().unwrap();
        assert!(site.is_whole("one/there"), "{options:?}");
        site.cp(&options, &format!("{one}/there"), "back").succeeded().unwrap();
        assert!(site.is_whole("back"), "{options:?}");
        site.cp(&options, &format!("{one}/there"), &format!("{other}/there")).succeeded().unwrap();
        assert!(site.is_whole("other/there"), "{options:?}");
        for name in ["one/there", "other/there", "back"] {
            fs::remove_file(site.path(name)).unwrap();
        }
    }
    // Who knows no keys gets data with PROT P, and none without.
    if !peers::available(&["curl"]) {
        return;
    }
    let url = format!("{}/there", one.replace("ftpes", "ftp"));
    let curl = |options: &[&str]| {
        let mut command = process::command("curl");
        command.args(["--silent", "--show-error", "--max-time", "60", "--insecure", "-T"]);
        run(command.arg(site.path("source")).args(options).arg(&url), LIMIT).unwrap()
    };
    curl(&["--ssl-reqd"]).succeeded().unwrap();
    assert!(site.is_whole("one/there"));
    curl(&["--ftp-ssl-control"]).failed().unwrap();
}
