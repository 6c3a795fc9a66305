//! The gateway with a real MyProxy server, of which FTP clients have user name and password.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use ropewalk_tests::gateway::{Gateway, LIMIT, SETTINGS};
use ropewalk_tests::process::{self, run};
use ropewalk_tests::{files, grid, peers};
use tempfile::TempDir;

const PASSPHRASE: &str = "correct horse";

/// A MyProxy server that has the credential of the user `ada`.
struct MyProxy {
    address: String,
    _directory: TempDir,
}

impl MyProxy {
    /// `None`: the test is skipped.
    fn start(site: &grid::Site) -> Option<Self> {
        let needed = [
            "myproxy-server",
            "myproxy-admin-load-credential",
            "myproxy-logon",
            "openssl",
            "setpriv",
            "curl",
        ];
        if !peers::available(&needed) {
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["hostcert.pem", "hostkey.pem", "usercert.pem"] {
            fs::copy(site.path(name), at(name)).unwrap();
        }
        run(process::command("cp").arg("-r").arg(site.path("certificates")).arg(at("certificates")), LIMIT)
            .unwrap()
            .succeeded()
            .unwrap();
        // The password of the key is that of the user at the server.
        let mut seal = process::command("openssl");
        seal.args(["pkey", "-aes256", "-passout", &format!("pass:{PASSPHRASE}"), "-in"]);
        seal.arg(site.path("userkey.pem")).arg("-out").arg(at("sealed.pem"));
        run(&mut seal, LIMIT).unwrap().succeeded().unwrap();
        fs::set_permissions(at("sealed.pem"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(at("store")).unwrap();
        fs::set_permissions(at("store"), fs::Permissions::from_mode(0o700)).unwrap();
        let policy = "accepted_credentials \"*\"\nauthorized_retrievers \"*\"\ndefault_retrievers \"*\"\n";
        fs::write(at("config"), policy).unwrap();
        give_to_nobody(directory.path());
        let mut load = as_nobody("myproxy-admin-load-credential", directory.path());
        load.args([
            "--username",
            "ada",
            "--certfile",
            "usercert.pem",
            "--keyfile",
            "sealed.pem",
            "--storage",
        ]);
        run(load.arg(at("store")), LIMIT).unwrap().succeeded().unwrap();
        // As inetd does it: a program for each connection.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        let place = directory.path().to_owned();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let mut command = as_nobody("myproxy-server", &place);
                command.args(["--config", "config", "--storage"]).arg(place.join("store"));
                let output = OwnedFd::from(stream.try_clone().unwrap());
                command.stdin(OwnedFd::from(stream)).stdout(output).stderr(Stdio::null());
                let _ = command.status();
            }
        });
        Some(Self { address, _directory: directory })
    }
}

/// If root runs the test, MyProxy's programs insist on an account of their own.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn give_to_nobody(directory: &Path) {
    if is_root() {
        let mut chown = process::command("chown");
        run(chown.args(["-R", "65534:65534"]).arg(directory), LIMIT).unwrap().succeeded().unwrap();
    }
}

fn as_nobody(program: &str, directory: &Path) -> Command {
    let program = peers::find(program).unwrap();
    let mut command = if is_root() {
        let mut command = process::command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
        command
    } else {
        process::command(program)
    };
    command
        .current_dir(directory)
        .env_remove("X509_USER_PROXY")
        .env("HOME", directory)
        .env("X509_CERT_DIR", directory.join("certificates"))
        .env("X509_USER_CERT", directory.join("hostcert.pem"))
        .env("X509_USER_KEY", directory.join("hostkey.pem"));
    command
}

/// A gateway whose directory for temporary files is empty at first.
fn gateway(options: &[&str], settings: &str, site: &grid::Site, temporary: &TempDir) -> Gateway {
    let certificates = site.path("certificates");
    let environment = [
        ("X509_CERT_DIR", certificates.as_path()),
        ("TMPDIR", temporary.path()),
        // The name in the certificate of this site's hosts.
        ("MYPROXY_SERVER_DN", Path::new("/O=Grid/OU=site/CN=localhost")),
    ];
    Gateway::start_with(options, settings, &environment)
}

fn left(temporary: &TempDir) -> Vec<PathBuf> {
    fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn user_of_a_myproxy_server_has_his_credential_behind() {
    let site = grid::Site::new().unwrap();
    let Some(myproxy) = MyProxy::start(&site) else { return };
    files::write_random(&site.path("root/f"), 3_000_001, 1).unwrap();
    let served = site.serve("", &[]).unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let settings = format!("{SETTINGS}[sites.dtn]\nurl = '{}/'\n", served.url);
    let gateway = gateway(&["--myproxy", &myproxy.address], &settings, &site, &temporary);
    let got = site.path("got");
    let curl = |password: &str, more: &[&str]| {
        let mut command = process::command("curl");
        command.args(["-sSv", "--ssl-reqd", "--cacert"]).arg(gateway.certificate());
        run(command.args(["-u", &format!("ada::dtn:{password}")]).args(more), LIMIT).unwrap()
    };
    let url = |name: &str| format!("ftp://{}//{name}", gateway.address);
    let outcome = curl(PASSPHRASE, &["-o", &got.display().to_string(), &url("f")]);
    outcome.succeeded().unwrap_or_else(|error| panic!("{error}: {}", gateway.program.log()));
    files::ensure_same(&got, &site.path("root/f")).unwrap();
    curl(PASSPHRASE, &["-T", &got.display().to_string(), &url("up")]).succeeded().unwrap();
    files::ensure_same(&got, &site.path("root/up")).unwrap();
    assert!(served.program.log().contains(&site.identity()), "{}", served.program.log());
    for (user, password) in [("ada", "wrong horse"), ("bob", PASSPHRASE), ("ada", "")] {
        let (code, text) = gateway.log_in(&format!("{user}::dtn"), password);
        assert!(code == 530 && text.contains("log-in at the MyProxy server failed"), "{user}: {text}");
        assert!(!gateway.program.log().contains(PASSPHRASE));
    }
    // The proxies were read and removed.
    assert_eq!(left(&temporary), Vec::<PathBuf>::new());
}

#[test]
fn gateway_does_not_wait_for_a_myproxy_server_that_is_silent() {
    if !peers::available(&["myproxy-logon"]) {
        return;
    }
    let site = grid::Site::new().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = silent.local_addr().unwrap();
    let temporary = tempfile::tempdir().unwrap();
    let settings =
        format!("default = 'gsiftp://127.0.0.1:1/'\n[myproxy]\nserver = '{server}'\ntimeout = 1\n{SETTINGS}");
    let gateway = gateway(&[], &settings, &site, &temporary);
    let (code, text) = gateway.log_in("ada", PASSPHRASE);
    assert!(code == 530 && text.contains("log-in at the MyProxy server failed"), "{text}");
    assert!(gateway.program.log().contains("no answer within 1 s"), "{}", gateway.program.log());
    assert_eq!(left(&temporary), Vec::<PathBuf>::new());
}

#[test]
fn gateway_without_the_program_does_not_start() {
    let scratch = tempfile::tempdir().unwrap();
    let config = scratch.path().join("gateway.toml");
    for (settings, options, reason) in [
        ("[myproxy]\nserver = 'h'\nprogram = '/nonexistent/logon'\n", &[][..], "install MyProxy's client"),
        ("[myproxy]\nserver = 'h'\nprogram = '/etc/passwd'\n", &[], "install MyProxy's client"),
        ("[myproxy]\nserver = 'h'\nprogram = '/bin/sh'\ntimeout = 0\n", &[], "myproxy.timeout"),
        ("", &["--myproxy", "h:x"], "myproxy.server"),
        ("", &["--myproxy", "h", "--password-file", "/p"], "file of passwords"),
        ("", &["--myproxy", "h", "--credential", "/p"], "hosts"),
    ] {
        fs::write(&config, settings).unwrap();
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["gateway", "--listen", "127.0.0.1:0", "--config"]).arg(&config).args(options);
        let outcome = run(&mut command, LIMIT).unwrap();
        let said = outcome.errors();
        assert!(outcome.status.code() == Some(2) && said.contains(reason), "{settings}{options:?}: {said}");
    }
}
