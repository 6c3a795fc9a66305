//! The same rules apply to users that a gridmap names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::peers;
use ropewalk_tests::process::{Outcome, run};
use ropewalk_tests::scratch::Scratch;

use crate::user_fixture::{ADA, Town, is_possible};

const LIMIT: Duration = Duration::from_secs(120);

/// An authority and one of its users.
struct Site(Scratch);

impl Site {
    fn new() -> Self {
        let site = Self(Scratch::new().unwrap());
        for arguments in
            [&["ca", "init"][..], &["ca", "host", "localhost", "127.0.0.1"], &["ca", "user", "Ada"]]
        {
            site.run(arguments).succeeded().unwrap();
        }
        site.run(&["proxy", "init", "--cert", "usercert.pem", "--key", "userkey.pem"]).succeeded().unwrap();
        site
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command: Command = peers::ropewalk_command().unwrap();
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env("X509_USER_PROXY", self.0.join("proxy"))
            .env("X509_CERT_DIR", self.0.join("certificates"))
            .env_remove("X509_USER_CERT")
            .env_remove("X509_USER_KEY");
        run(&mut command, LIMIT).unwrap()
    }

    /// Starts a server that maps the user's certificate to the account `user`.
    fn town(&self, user: &str, settings: &str) -> Town {
        let line = self.run(&["ca", "user", "Other", "--force", "--map", user]).succeeded().unwrap().text();
        fs::write(self.0.join("gridmap"), line.replace("Other", "Ada")).unwrap();
        let here = self.0.path().display();
        Town::new(&format!(
            "[gsi]\ncertificate = '{here}/hostcert.pem'\nkey = '{here}/hostkey.pem'\nauthorities = \
             '{here}/certificates'\ngridmap = '{here}/gridmap'\nrequired = true\n[log]\naudit = 'audit'\n{settings}"
        ))
    }

    fn upload(&self, town: &Town, options: &[&str], to: &str) -> Outcome {
        fs::write(self.0.join("data"), b"data").unwrap();
        let to = format!("gsiftp://localhost:{}{to}", town.port());
        self.run(&[&["cp", "--quiet", "--retries", "0"], options, &["data", &to]].concat())
    }
}

#[test]
fn gridmap_users_run_as_their_account() {
    if !is_possible() {
        return;
    }
    let site = Site::new();
    let town = site.town("ada", "");
    site.upload(&town, &[], "/home/ada/new").succeeded().unwrap();
    assert_eq!(fs::metadata(town.real("/home/ada/new")).unwrap().uid(), ADA);
    let failed = site.upload(&town, &[], "/home/bob/new").failed().unwrap();
    assert!(failed.errors().contains("ermission denied"), "{}", failed.errors());
    let audit = fs::read_to_string(town.scratch.join("audit")).unwrap();
    let wanted = format!("\"uid\":{ADA}");
    assert!(
        audit.contains("CN=Ada") && audit.contains("\"mechanism\":\"gsi\"") && audit.contains(&wanted),
        "{audit}"
    );

    for (user, why) in [("root", "root is not allowed"), ("system", "system account"), ("closed", "disabled")]
    {
        let town = site.town(user, "[timeouts]\nlogin_failure = 0.001\n");
        let failed = site.upload(&town, &[], "/shared/new").failed().unwrap();
        assert!(failed.errors().contains(why), "{user}: {}", failed.errors());
    }
}

#[test]
fn account_requiring_protection_gets_it() {
    if !is_possible() {
        return;
    }
    let site = Site::new();
    let town = site.town("ada", "[users.ada]\nprotection = 'data'\n");
    for options in [&[][..], &["--no-dcau"]] {
        let failed = site.upload(&town, options, "/home/ada/new").failed().unwrap();
        assert!(failed.errors().contains("protected data connections"), "{}", failed.errors());
    }
    site.upload(&town, &["--data-protection", "private"], "/home/ada/new").succeeded().unwrap();
    assert_eq!(fs::read(town.real("/home/ada/new")).unwrap(), b"data");
}

#[test]
fn certificate_logins_leave_no_privileged_thread() {
    if !is_possible() {
        return;
    }
    let site = Site::new();
    let town = site.town("ada", "");
    // With keys for delegated proxies.
    for name in ["first", "second"] {
        site.upload(&town, &[], &format!("/home/ada/{name}")).succeeded().unwrap();
    }
    for (field, wanted) in
        [("CapPrm", "00000000000000c0"), ("CapBnd", "00000000000000c0"), ("NoNewPrivs", "1")]
    {
        let found = town.threads(field);
        assert!(!found.is_empty() && found.iter().all(|value| value == wanted), "{field}: {found:?}");
    }
}
