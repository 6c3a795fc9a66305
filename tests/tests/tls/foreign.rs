//! Foreign programs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ropewalk_tests::process::{Outcome, command, run};
use ropewalk_tests::server::{Kind, Setup};
use ropewalk_tests::{files, peers};

use crate::site::{LIMIT, Site};
use ropewalk_tests::certificates::{Authority, Made};

fn curl(arguments: &[&str]) -> Outcome {
    let mut curl = command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "100"]).args(arguments);
    run(&mut curl, LIMIT).unwrap()
}

#[test]
fn curl_in_both_ways_and_both_versions() {
    if !peers::available(&["curl"]) {
        return;
    }
    let site = Site::new();
    let content = site.content("source");
    let path = |name: &str| site.path(name).display().to_string();
    let ca = site.certificate().display().to_string();
    fs::write(site.path("root/a"), &content).unwrap();
    site.tree("small");
    for version in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        for (scheme, port) in [("ftp", site.address.port()), ("ftps", site.implicit.port())] {
            let url = format!("{scheme}://localhost:{port}");
            let run =
                |arguments: &[&str]| curl(&[&["--cacert", &ca, "--ssl-reqd"], version, arguments].concat());
            run(&[&format!("{url}/a"), "-o", &path("got")]).succeeded().unwrap();
            files::ensure_same(&site.path("got"), &site.path("source")).unwrap();
            run(&["-T", &path("source"), &format!("{url}/up")]).succeeded().unwrap();
            files::ensure_same(&site.path("root/up"), &site.path("source")).unwrap();
            let list = run(&[&format!("{url}/")]).succeeded().unwrap().text();
            assert!(list.contains(" up"), "{list}");
            // Several data connections in one session: each resumes.
            let many = format!(
                "{{{}}}",
                (0..5).map(|n| path(&format!("small/below/{n}"))).collect::<Vec<_>>().join(",")
            );
            run(&["--ftp-create-dirs", "-T", &many, &format!("{url}/many/below/")]).succeeded().unwrap();
            for n in 0..5 {
                let (there, here) = (format!("root/many/below/{n}"), format!("small/below/{n}"));
                files::ensure_same(&site.path(&there), &site.path(&here)).unwrap();
            }
            fs::remove_dir_all(site.path("root/many")).unwrap();
            fs::remove_file(site.path("root/up")).unwrap();
            let wrong = curl(&[&["--ssl-reqd"], version, &[&format!("{url}/a"), "-o", &path("no")]].concat());
            assert!(wrong.failed().unwrap().errors().contains("self-signed"), "an unknown authority");
        }
    }
    assert!(!site.log().contains("not that of the control connection"), "{}", site.log());
}

#[test]
fn lftp_mirrors_both_ways() {
    if !peers::available(&["lftp"]) {
        return;
    }
    let site = Site::with("required = 'data'");
    site.tree("tree");
    let lftp = |url: &str, script: &str| {
        let settings = format!(
            "set ssl:ca-file {}; set ftp:ssl-force true; set ftp:ssl-allow-anonymous true; set ftp:ssl-protect-data true; set ftp:ssl-protect-list true; \
             set net:max-retries 1; set net:timeout 20; set cmd:fail-exit true; open {url}; {script}",
            site.certificate().display()
        );
        let mut lftp = command("lftp");
        lftp.arg("--norc").args(["-c", &settings]).env("HOME", site.path("home"));
        run(&mut lftp, LIMIT).unwrap().succeeded().unwrap()
    };
    for (scheme, port) in [("ftp", site.address.port()), ("ftps", site.implicit.port())] {
        let url = format!("{scheme}://localhost:{port}");
        lftp(&url, &format!("mirror -R -P 3 {} /tree", site.path("tree").display()));
        site.ensure_same("tree", "root/tree");
        // Active mode: the server connects, but still has the server's role in TLS.
        let active = "set ftp:passive-mode false; ";
        lftp(&url, &format!("{active}mirror -P 3 /tree {}", site.path("back").display()));
        site.ensure_same("tree", "back");
        fs::remove_dir_all(site.path("root/tree")).unwrap();
        fs::remove_dir_all(site.path("back")).unwrap();
    }
    assert!(!site.log().contains("not that of the control connection"), "{}", site.log());
}

#[test]
fn our_client_with_vsftpd_which_requires_reuse() {
    if !peers::available(&["vsftpd"]) {
        return;
    }
    // Only the directory of our own server is used, not the server.
    let site = Site::new();
    let made = Authority::new("Test CA").host("localhost", Made::default());
    let pem = made.write(&site.path("vsftpd.pem"));
    fs::create_dir(site.path("served")).unwrap();
    let tls = |mut setup: Setup, implicit: bool| {
        let settings = [
            "ssl_enable=YES".to_owned(),
            "allow_anon_ssl=YES".to_owned(),
            "force_anon_logins_ssl=YES".to_owned(),
            "force_anon_data_ssl=YES".to_owned(),
            "require_ssl_reuse=YES".to_owned(),
            "strict_ssl_read_eof=YES".to_owned(),
            "ssl_ciphers=HIGH".to_owned(),
            format!("implicit_ssl={}", if implicit { "YES" } else { "NO" }),
            format!("rsa_cert_file={}", pem.display()),
            format!("rsa_private_key_file={}", pem.display()),
        ];
        for setting in settings {
            setup = setup.argument(format!("-o{setting}"));
        }
        setup.start().unwrap()
    };
    for (scheme, implicit) in [("ftpes", false), ("ftps", true)] {
        let server = tls(Setup::new(Kind::Vsftpd, &site.path("served")), implicit);
        let root = site.path("served");
        let url = format!("{scheme}://localhost:{}{}", server.address().port(), root.display());
        let ca = site.path("ca.pem");
        fs::write(&ca, made.authority_pem()).unwrap();
        let ca = ca.display().to_string();
        for options in [&[][..], &["-p", "4"]] {
            let options = [&["--authorities", &ca, "--checksum", "none"], options].concat();
            site.round(&url, &root, &options);
        }
        site.tree("tree");
        site.cp(&["-r", "--authorities", &ca], "tree/", &format!("{url}/tree/")).succeeded().unwrap();
        site.ensure_same("tree", "served/tree");
        site.cp(&["-r", "--authorities", &ca], &format!("{url}/tree/"), "again/").succeeded().unwrap();
        site.ensure_same("tree", "again");
        fs::remove_dir_all(site.path("served/tree")).unwrap();
        fs::remove_dir_all(site.path("again")).unwrap();
        // The certificate is from a trusted authority, but for another name.
        let other = url.replace("localhost", "127.0.0.1");
        let text = site.cp(&["--authorities", &ca], &format!("{other}/x"), "y").failed().unwrap().errors();
        assert!(text.contains("its certificate is for localhost, not for 127.0.0.1"), "{text}");
    }
    assert_eq!(mode(&site.path("state/ropewalk/known_hosts")), 0o600);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}
