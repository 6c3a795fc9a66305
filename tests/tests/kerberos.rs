//! gsiftp:// and ftp:// with Kerberos tickets of a real key distribution centre: our client and our server, and clients of
//! others with our server.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Outcome, Program, run};
use ropewalk_tests::realm::{self, Realm};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);

struct Site {
    directory: TempDir,
    realm: Realm,
}

impl Site {
    fn new() -> Option<Self> {
        if !realm::available() {
            return None;
        }
        let site = Self { directory: tempfile::tempdir().unwrap(), realm: Realm::new().unwrap() };
        site.realm.principal("eve/host", Some("eve.keytab")).unwrap();
        site.realm.login("ada", "cache", &[]).unwrap();
        fs::set_permissions(site.realm.keytab(), PermissionsExt::from_mode(0o600)).unwrap();
        fs::create_dir(site.path("root")).unwrap();
        Some(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let none = self.path("none");
        self.realm
            .environment(command)
            .current_dir(self.directory.path())
            .env("HOME", &none)
            .env("X509_USER_PROXY", &none)
            .env("X509_CERT_DIR", self.path("certificates"))
    }

    fn serve(&self, settings: &str) -> (Program, u16) {
        let text = format!(
            "[kerberos]\nkeytab = '{}'\nrealms = ['{}']\nrequired = true\n{settings}[identity]\nmapped = false\n",
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

    fn cp(&self, options: &[&str], from: &str, to: &str) -> Outcome {
        let mut command = peers::ropewalk_command().unwrap();
        self.environment(&mut command);
        run(command.args(["cp", "--quiet", "--retries", "0"]).args(options).args([from, to]), LIMIT).unwrap()
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
        assert!(!got.contains("warning"), "{url} {options:?}: {got}");
        assert!(fs::read(self.path("back")).unwrap() == content, "{url} {options:?}");
        fs::remove_file(self.path("root/there")).unwrap();
        fs::remove_file(self.path("back")).unwrap();
    }

    /// The client that is not ours.
    fn python(&self, port: u16, arguments: &[&str]) -> Outcome {
        // Debian's, which has the package python3-gssapi.
        let mut command = process::command("/usr/bin/python3");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kerberos/client.py");
        self.environment(&mut command);
        run(command.arg(script).arg(port.to_string()).args(arguments), LIMIT).unwrap()
    }
}

fn port_in(line: &str) -> Option<u16> {
    line.contains("listening").then(|| line.trim().rsplit(':').next()?.parse().ok()).flatten()
}

#[test]
fn both_ways_with_our_own_server() {
    let Some(site) = Site::new() else { return };
    let (_server, port) = site.serve("");
    let url = format!("gsiftp://localhost:{port}");
    site.round(&url, &[]);
    site.round(&url, &["--auth", "kerberos"]);
    for protection in ["clear", "safe", "private"] {
        for way in [&["-p", "1"][..], &["-p", "4"], &["--mode", "stream"]] {
            site.round(&url, &[way, &["--data-protection", protection]].concat());
        }
    }
    // In clear before, in clear again: the port and the scheme say nothing of Kerberos.
    let ftp = format!("ftp://localhost:{port}");
    site.round(&ftp, &["--auth", "kerberos", "--data-protection", "private"]);
    let text = site.cp(&[], "source", &format!("{ftp}/x")).failed().unwrap().errors();
    assert!(text.contains("Must perform GSSAPI authentication"), "{text}");
    // Many small files over connections that are used again.
    fs::create_dir_all(site.path("tree/below")).unwrap();
    for n in 0..60u8 {
        fs::write(site.path(&format!("tree/below/{n}")), vec![n; usize::from(n) * 321]).unwrap();
    }
    for options in
        [&["-r"][..], &["-r", "--data-protection", "private"], &["-r", "--data-protection", "safe"]]
    {
        site.cp(options, "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        let got = site.cp(options, &format!("{url}/tree/"), "again/").succeeded().unwrap().errors();
        assert!(!got.contains("warning"), "{options:?}: {got}");
        for n in 0..60u8 {
            assert_eq!(
                fs::read(site.path(&format!("again/below/{n}"))).unwrap(),
                vec![n; usize::from(n) * 321]
            );
        }
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
    }
}

#[test]
fn who_is_not_a_user_and_who_has_no_ticket() {
    let Some(site) = Site::new() else { return };
    let (server, port) = site.serve("services = ['host']\nusers = { 'known/one@ROPEWALK.TEST' = 'ada' }\n");
    let url = format!("gsiftp://localhost:{port}");
    let content = site.content();
    site.realm.login("eve", "cache", &[]).unwrap_err();
    let login = site.realm.run("kinit", &["-k", "-t", "eve.keytab", "-c", "cache", "eve/host"]).unwrap();
    login.succeeded().unwrap();
    let text = site.cp(&[], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("The principal eve/host@ROPEWALK.TEST is no user here"), "{text}");
    site.realm.login("ada", "cache", &[]).unwrap();
    let text = site.cp(&["--user", "root"], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("ada@ROPEWALK.TEST may not be the user root"), "{text}");
    // A server that is another one.
    let other = ["--server-subject", "ftp/localhost@ROPEWALK.TEST"];
    let text = site.cp(&other, "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("ftp/localhost@ROPEWALK.TEST not found"), "{text}");
    let text =
        site.cp(&["--kerberos-service", "nfs"], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("nfs/localhost@ROPEWALK.TEST not found"), "{text}");
    // Between two servers nothing can be wrapped.
    let twice = ["--data-protection", "private"];
    fs::write(site.path("root/a"), &content).unwrap();
    let text = site.cp(&twice, &format!("{url}/a"), &format!("{url}/b")).failed().unwrap().errors();
    assert!(text.contains("between two servers with Kerberos"), "{text}");
    site.cp(&[], &format!("{url}/a"), &format!("{url}/b")).succeeded().unwrap();
    assert!(fs::read(site.path("root/b")).unwrap() == content);
    fs::remove_file(site.realm.path("cache")).unwrap();
    let text = site.cp(&["--auth", "kerberos"], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("kinit"), "{text}");
    assert!(!site.path("root/x").exists());
    let log = server.finish();
    assert!(log.contains("eve/host@ROPEWALK.TEST"), "{log}");
}

#[test]
fn a_client_of_others() {
    let Some(site) = Site::new() else { return };
    let (_server, port) = site.serve("");
    let content = site.content();
    fs::write(site.path("root/there"), &content).unwrap();
    for level in ["S", "P"] {
        let got = site.python(port, &[level, "GET", "there", "got"]);
        got.succeeded().unwrap();
        assert!(fs::read(site.path("got")).unwrap() == content);
        site.python(port, &[level, "PUT", "source", "put"]).succeeded().unwrap();
        assert!(fs::read(site.path("root/put")).unwrap() == content);
        fs::remove_file(site.path("root/put")).unwrap();
        for (wrong, word) in [
            ("CUT", "without its protected end"),
            ("REORDER", "changed their order"),
            ("TWICE", "a second time"),
            ("BIG", "16777216 bytes"),
            ("STRANGER", "bytes on a data connection"),
        ] {
            let text = site.python(port, &[level, wrong, "source", "bad"]).failed().unwrap();
            let text = text.text() + &text.errors();
            assert!(text.contains(word), "{level} {wrong}: {text}");
            assert!(!site.path("root/bad").exists(), "{level} {wrong}");
        }
    }
}

#[test]
fn a_host_without_kerberos() {
    // The library cannot be loaded where a file of its name is no library.
    let Some(site) = Site::new() else { return };
    let fake = site.path("fake");
    fs::create_dir(&fake).unwrap();
    fs::write(fake.join("libgssapi_krb5.so.2"), "nothing").unwrap();
    let ropewalk = |arguments: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        site.environment(&mut command).env("LD_LIBRARY_PATH", &fake);
        run(command.args(arguments), LIMIT).unwrap()
    };
    ropewalk(&["--version"]).succeeded().unwrap();
    site.content();
    ropewalk(&["cp", "--quiet", "source", "copy"]).succeeded().unwrap();
    fs::write(site.path("server.toml"), "root = 'root'\n[kerberos]\nrealms = ['ROPEWALK.TEST']\n").unwrap();
    let text =
        ropewalk(&["serve", "--config", "server.toml", "--listen", "127.0.0.1:0"]).failed().unwrap().errors();
    assert!(text.contains("Kerberos is not installed") && text.contains("libgssapi-krb5-2"), "{text}");
}
