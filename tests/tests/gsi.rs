//! gsiftp:// with certificates: our client with globus-gridftp-server and with our own server, on an authority that
//! `ropewalk ca` made.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
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
        fs::write(site.path("gridmap"), site.ca(&["user", "Test User", "--map", &account()]).text()).unwrap();
        let made = run(
            site.command().args(["proxy", "init", "--cert", "usercert.pem", "--key", "userkey.pem"]),
            LIMIT,
        );
        assert!(made.unwrap().succeeded().unwrap().text().contains("CN=Test User"));
        fs::create_dir(site.path("root")).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        self.environment(&mut command);
        command
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

    fn ca(&self, arguments: &[&str]) -> Outcome {
        run(self.command().arg("ca").args(arguments), LIMIT).unwrap().succeeded().unwrap()
    }

    fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        run(self.command().args(["cp", "--quiet"]).args(options).args([from, to]), LIMIT).unwrap()
    }

    /// Ours.
    fn serve(&self) -> (Program, String) {
        let text = "[gsi]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\nauthorities = 'certificates'\n\
                    gridmap = 'gridmap'\nrequired = true\nallow_root = true\n";
        fs::write(self.path("server.toml"), text).unwrap();
        let mut command = self.command();
        command.args(["serve", "--config", "server.toml", "--listen", "127.0.0.1:0", "--root", "root"]);
        let program = Program::start(&mut command).unwrap();
        let port = program.wait_for_line(LIMIT, port_in).unwrap();
        (program, format!("gsiftp://localhost:{port}"))
    }

    fn gct(&self) -> (Program, String) {
        let mut command = process::command(peers::find("globus-gridftp-server").unwrap());
        command.args(["-p", "0", "-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]);
        command.args(["-home-dir", "/", "-allow-root", "-disable-usage-stats"]);
        self.environment(&mut command);
        command
            .env_remove("X509_USER_PROXY")
            .env("X509_USER_CERT", self.path("hostcert.pem"))
            .env("X509_USER_KEY", self.path("hostkey.pem"))
            .env("GRIDMAP", self.path("gridmap"));
        let program = Program::start(&mut command).unwrap();
        let port = program.wait_for_line(LIMIT, port_in).unwrap();
        let root = self.path("root");
        (program, format!("gsiftp://localhost:{port}{}", root.display()))
    }

    fn content(&self) -> Vec<u8> {
        let content: Vec<u8> = (0..1_300_000u32).flat_map(u32::to_le_bytes).collect();
        fs::write(self.path("source"), &content).unwrap();
        content
    }

    fn round(&self, url: &str, options: &[&str]) {
        let content = self.content();
        self.cp(options, "source", &format!("{url}/there")).succeeded().unwrap();
        assert!(fs::read(self.path("root/there")).unwrap() == content, "{url} {options:?}");
        let got = self.cp(options, &format!("{url}/there"), "back").succeeded().unwrap().errors();
        // Nor was there another way than the one that was wanted.
        assert!(!got.contains("warning"), "{url} {options:?}: {got}");
        assert!(fs::read(self.path("back")).unwrap() == content, "{url} {options:?}");
        fs::remove_file(self.path("root/there")).unwrap();
        fs::remove_file(self.path("back")).unwrap();
    }

    fn rounds(&self, url: &str) {
        self.round(url, &[]);
        self.round(url, &["-p", "4"]);
        self.round(url, &["-p", "4", "--data-protection", "private"]);
        self.round(url, &["--mode", "stream"]);
        self.round(url, &["--mode", "stream", "--data-protection", "safe"]);
        self.round(url, &["--no-dcau"]);
        // Many small files over connections that are used again.
        for n in 0..40 {
            fs::create_dir_all(self.path("tree/below")).unwrap();
            fs::write(self.path(&format!("tree/below/{n}")), vec![n; usize::from(n) * 321]).unwrap();
        }
        for options in [&["-r"][..], &["-r", "--data-protection", "private"]] {
            self.cp(options, "tree/", &format!("{url}/tree/")).succeeded().unwrap();
            let got = self.cp(options, &format!("{url}/tree/"), "again/").succeeded().unwrap().errors();
            assert!(!got.contains("warning"), "{url} {options:?}: {got}");
            for n in 0..40u8 {
                let got = fs::read(self.path(&format!("again/below/{n}"))).unwrap();
                assert_eq!(got, vec![n; usize::from(n) * 321]);
            }
            fs::remove_dir_all(self.path("root/tree")).unwrap();
            fs::remove_dir_all(self.path("again")).unwrap();
        }
    }
}

fn account() -> String {
    let output = run(process::command("id").arg("-un"), LIMIT).unwrap();
    output.text().trim().to_owned()
}

fn port_in(line: &str) -> Option<u16> {
    line.contains("listening").then(|| line.trim().rsplit(':').next()?.parse().ok()).flatten()
}

#[test]
fn with_our_own_server() {
    let site = Site::new();
    let (_server, url) = site.serve();
    site.rounds(&url);
    // A server that is somebody else.
    let text = site
        .cp(&["--retries", "0", "--server-subject", "/O=Grid/CN=Other"], &format!("{url}/x"), "y")
        .failed()
        .unwrap()
        .errors();
    assert!(text.contains("not /O=Grid/CN=Other"), "{text}");
}

#[test]
fn with_gcts_server() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let site = Site::new();
    let (_server, url) = site.gct();
    site.rounds(&url);
}

#[test]
fn between_two_servers() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let site = Site::new();
    let ((_one, ours), (_other, gct)) = (site.serve(), site.gct());
    let content = site.content();
    fs::write(site.path("root/a"), &content).unwrap();
    for options in [&[][..], &["-p", "3", "--data-protection", "private"], &["--no-dcau"]] {
        site.cp(options, &format!("{ours}/a"), &format!("{gct}/b")).succeeded().unwrap();
        assert!(fs::read(site.path("root/b")).unwrap() == content, "{options:?}");
        site.cp(options, &format!("{gct}/b"), &format!("{ours}/c")).succeeded().unwrap();
        assert!(fs::read(site.path("root/c")).unwrap() == content, "{options:?}");
        fs::remove_file(site.path("root/b")).unwrap();
        fs::remove_file(site.path("root/c")).unwrap();
    }
}

#[test]
fn without_a_credential_it_says_what_to_do() {
    let site = Site::new();
    let (_server, url) = site.serve();
    fs::remove_file(site.path("proxy")).unwrap();
    let text = site.cp(&["--retries", "0"], &format!("{url}/x"), "y").failed().unwrap().errors();
    assert!(text.contains("ropewalk proxy init"), "{text}");
    let text =
        site.cp(&["--retries", "0", "--insecure"], &format!("{url}/x"), "y").failed().unwrap().errors();
    assert!(text.contains("Must perform GSSAPI authentication"), "{text}");
}

#[test]
fn a_server_without_auth_gets_nothing() {
    let site = Site::new();
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let url = format!("gsiftp://localhost:{}/x", listener.local_addr().unwrap().port());
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 ready.\r\n").unwrap();
        let mut heard = Vec::new();
        for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
            heard.push(line);
            if stream.write_all(b"500 Invalid command.\r\n").is_err() {
                break;
            }
        }
        heard
    });
    let text = site.cp(&["--retries", "0"], &url, "y").failed().unwrap().errors();
    assert!(text.contains("does not go on in clear"), "{text}");
    let heard = heard.join().unwrap();
    assert!(heard.iter().all(|line| !line.starts_with("USER") && !line.starts_with("PASS")), "{heard:?}");
}
