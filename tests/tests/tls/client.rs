//! The Ropewalk client with the Ropewalk server: the certificates that it trusts.

use std::fs;
use std::path::Path;

use openssl::hash::MessageDigest;
use tempfile::TempDir;

use crate::rogue_server::{CONTENT, Liar, Lie, silent};
use crate::site::{LIMIT, Site, client, cp};
use ropewalk_tests::certificates::{Authority, Credential, Made, self_signed};

#[test]
fn with_our_own_server() {
    let site = Site::with("required = 'control'");
    let root = site.path("root");
    for url in [site.explicit_url(), site.implicit_url()] {
        for options in [
            &[][..],
            &["-p", "4"],
            &["--mode", "stream"],
            &["--mode", "stream", "--data-protection", "clear"],
            &["-p", "4", "--data-protection", "clear"],
        ] {
            site.round(&url, &root, &[&["--fingerprint", &site.fingerprint], options].concat());
        }
    }
    let url = format!("ftp://localhost:{}", site.address.port());
    let options = ["-r", "--tls", "--fingerprint", &site.fingerprint];
    site.tree("tree");
    site.cp(&options, "tree/", &format!("{url}/tree/")).succeeded().unwrap();
    site.ensure_same("tree", "root/tree");
    site.cp(&options, &format!("{url}/tree/"), "again/").succeeded().unwrap();
    site.ensure_same("tree", "again");
    for command in [&["ls"][..], &["du"], &["stat"], &["find"], &["rm", "-r"]] {
        let mut run = client(site.path("").as_path());
        run.args(command).args(["--tls", "--accept-new"]).arg(format!("{url}/tree"));
        ropewalk_tests::process::run(&mut run, LIMIT).unwrap().succeeded().unwrap();
    }
    assert!(!site.path("root/tree").exists());
    let text = site.cp(&[], "source", &format!("{url}/x")).failed().unwrap().errors();
    assert!(text.contains("send AUTH TLS first"), "{text}");
}

#[test]
fn between_two_servers() {
    let (one, other) = (Site::new(), Site::new());
    let content = one.content("root/a");
    let (from, to) = (format!("{}/a", one.explicit_url()), format!("{}/b", other.explicit_url()));
    let text = one.cp(&["--accept-new"], &from, &to).failed().unwrap().errors();
    assert!(text.contains("--through-here") && text.contains("--data-protection clear"), "{text}");
    assert!(!other.path("root/b").exists());
    for option in [&["--data-protection", "clear"][..], &["--through-here"]] {
        one.cp(&[&["--accept-new"], option].concat(), &from, &to).succeeded().unwrap();
        assert!(fs::read(other.path("root/b")).unwrap() == content, "{option:?}");
        fs::remove_file(other.path("root/b")).unwrap();
    }
}

#[test]
fn client_certificates() {
    let authority = Authority::new("Users");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let ada = authority.host("Ada", Made::default());
    ada.write(&at("ada.pem"));
    authority.host("Bob", Made::default()).write(&at("bob.pem"));
    authority.host("Ada", Made { from: -20, to: -10 }).write(&at("expired.pem"));
    Authority::new("Users").host("Ada", Made::default()).write(&at("forged.pem"));
    fs::write(at("users.pem"), ada.authority_pem()).unwrap();
    let tls = "client_authorities = 'users.pem'\n[tls.users]\n'/O=Test/CN=Ada' = 'ada'";
    let site = Site::start(directory, tls, "[identity]\nmapped = false");
    site.content("source");
    let put = |credential: &str, user: &str| {
        let url = format!("{}/up", site.explicit_url().replace("//", &format!("//{user}")));
        let got = site.cp(&["--accept-new", "--credential", credential], "source", &url);
        let there = site.path("root/up").exists();
        let _ = fs::remove_file(site.path("root/up"));
        (there, got.errors())
    };
    for user in ["ada@", "ada:wrong@", ""] {
        let (there, text) = put("ada.pem", user);
        assert!(there, "{user}: {text}");
    }
    assert!(site.log().contains("/O=Test/CN=Ada"));
    for credential in ["bob.pem", "expired.pem", "forged.pem"] {
        let (there, text) = put(credential, "ada:wrong@");
        assert!(!there && !text.is_empty(), "{credential}");
        let says_why = text.contains("does not accept the certificate of this end");
        assert_eq!(says_why, credential != "bob.pem", "{credential}: {text}");
    }
    let log = site.log();
    let refused = |line: &&str| {
        line.contains(r#"decision="refused""#)
            && line.contains(r#"mechanism="certificate""#)
            && line.contains("certificate of the peer")
    };
    // The log-ins with the expired and with the forged certificate.
    assert!(log.lines().filter(refused).count() >= 2, "{log}");
    let (there, text) = put("ada.pem", "grace:wrong@");
    assert!(!there, "{text}");
}

/// A client's directory, and a server with this certificate.
fn serving(made: &Credential) -> (TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    made.write(&directory.path().join("made.pem"));
    (tempfile::tempdir().unwrap(), Site::start(directory, "certificate = 'made.pem'", ""))
}

fn get(directory: &Path, site: &Site, options: &[&str]) -> Result<(), String> {
    fs::write(site.path("root/a"), "content").unwrap();
    let outcome = cp(directory, options, &format!("{}/a", site.explicit_url()), "got");
    let there = fs::remove_file(directory.join("got")).is_ok();
    match outcome.succeeded() {
        Ok(_) if there => Ok(()),
        Ok(_) => Err("nothing came".to_owned()),
        Err(error) => {
            assert!(!there);
            assert!(!site.log().contains("logged in"), "it logged in all the same");
            Err(error.to_string())
        }
    }
}

#[test]
fn servers_that_nobody_vouches_for() {
    let (directory, site) = serving(&self_signed("localhost", Made::default()));
    let home = directory.path();
    let text = get(home, &site, &[]).unwrap_err();
    assert!(text.contains("self-signed") && text.contains(&site.fingerprint), "{text}");
    assert!(text.contains("--fingerprint") && text.contains("--accept-new"), "{text}");
    assert!(!home.join("state/ropewalk/known_hosts").exists());
    let wrong = format!("SHA256:{}", "00".repeat(32));
    let text = get(home, &site, &["--fingerprint", &wrong]).unwrap_err();
    assert!(text.contains("--fingerprint: it has"), "{text}");
    // Accepted once, and remembered.
    get(home, &site, &["--accept-new"]).unwrap();
    get(home, &site, &[]).unwrap();
}

#[test]
fn a_fingerprint_that_has_changed() {
    let (directory, site) = serving(&self_signed("localhost", Made::default()));
    let home = directory.path();
    let file = home.join("state/ropewalk/known_hosts");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let before = format!("SHA256{}", ":AB".repeat(32));
    let name = format!("localhost:{}", site.address.port());
    fs::write(&file, format!("# mine\n{name} {before}\n")).unwrap();
    for options in [&[][..], &["--accept-new"]] {
        let text = get(home, &site, options).unwrap_err();
        assert!(text.contains("CERTIFICATE HAS CHANGED"), "{text}");
        assert!(text.contains(&before) && text.contains(&site.fingerprint), "{text}");
        assert!(text.contains(&format!("line 2 of {}", file.display())), "{text}");
    }
    // A server that was trusted through an authority must not become self-signed unnoticed.
    fs::write(&file, format!("{name} authority\n")).unwrap();
    for options in [&[][..], &["--accept-new"]] {
        let text = get(home, &site, options).unwrap_err();
        assert!(
            text.contains("NO AUTHORITY VOUCHES FOR IT ANY MORE") && text.contains("line 1 of"),
            "{text}"
        );
    }
    fs::write(&file, format!("{name} nonsense\n")).unwrap();
    let text = get(home, &site, &["--accept-new"]).unwrap_err();
    assert!(text.contains("known_hosts, line 1: expected"), "{text}");
    get(home, &site, &["--fingerprint", &site.fingerprint]).unwrap();
}

#[test]
fn certificates_that_are_not_good() {
    let authority = Authority::new("Test CA");
    let past = || Made { from: -20, to: -10 };
    let future = || Made { from: 10, to: 20 };
    for (made, expected) in [
        (authority.host("localhost", past()), "its certificate expired at"),
        (authority.host("localhost", future()), "its certificate is not valid before"),
        (authority.host("elsewhere.example", Made::default()), "is for elsewhere.example, not for localhost"),
        (self_signed("localhost", past()), "its certificate expired at"),
        (self_signed("localhost", future()), "its certificate is not valid before"),
    ] {
        let (directory, site) = serving(&made);
        let ca = directory.path().join("ca.pem");
        fs::write(&ca, authority.host("x", Made::default()).authority_pem()).unwrap();
        let ca = ca.display().to_string();
        for options in [&["--authorities", &ca][..], &["--authorities", &ca, "--accept-new"]] {
            let text = get(directory.path(), &site, options).unwrap_err();
            assert!(text.contains(expected) && text.contains(&site.fingerprint), "{text}");
        }
        get(directory.path(), &site, &["--fingerprint", &site.fingerprint]).unwrap();
    }
    // An unknown authority counts as none.
    let (directory, site) = serving(&authority.host("localhost", Made::default()));
    let text = get(directory.path(), &site, &[]).unwrap_err();
    assert!(text.contains("an authority that is not trusted (O=Test, CN=Test CA)"), "{text}");
    // A valid certificate is accepted without any option.
    let ca = directory.path().join("ca.pem");
    fs::write(&ca, authority.host("x", Made::default()).authority_pem()).unwrap();
    get(directory.path(), &site, &["--authorities", &ca.display().to_string()]).unwrap();
    let known = fs::read_to_string(directory.path().join("state/ropewalk/known_hosts")).unwrap();
    assert!(known.ends_with(" authority\n"), "{known}");
}

#[test]
fn servers_that_lie() {
    let (own, other) = (self_signed("localhost", Made::default()), self_signed("localhost", Made::default()));
    for (lie, expected) in [
        (Lie::None, None),
        (Lie::Stripped, Some("does not continue in clear")),
        (Lie::Injected, Some("clear data followed")),
        (Lie::CutOff, Some("ended without close_notify")),
        (Lie::OtherData, Some("not that of the control connection")),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let liar = Liar::start(lie, &own, &other);
        let url = format!("ftpes://localhost:{}/a", liar.address.port());
        let options = ["--accept-new", "--mode", "stream", "--checksum", "none"];
        let outcome = cp(directory.path(), &options, &url, "got");
        let heard = liar.heard();
        match expected {
            None => {
                outcome.succeeded().unwrap();
                assert_eq!(fs::read(directory.path().join("got")).unwrap(), CONTENT);
            }
            Some(words) => {
                let text = outcome.failed().unwrap().errors();
                assert!(text.contains(words), "{lie:?}: {text}");
                assert!(!directory.path().join("got").exists(), "{lie:?}");
            }
        }
        let logged_in = heard.iter().any(|line| line.starts_with("USER") || line.starts_with("PASS"));
        assert_eq!(logged_in, !matches!(lie, Lie::Stripped | Lie::Injected), "{lie:?}: {heard:?}");
    }
}

#[test]
fn certificates_signed_with_md5() {
    let made = Authority::signing_with(MessageDigest::md5()).host("localhost", Made::default());
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("ca.pem"), made.authority_pem()).unwrap();
    let liar = Liar::start(Lie::None, &made, &made);
    let url = format!("ftpes://localhost:{}/a", liar.address.port());
    let options = ["--authorities", "ca.pem", "--mode", "stream", "--checksum", "none"];
    let text = cp(directory.path(), &options, &url, "got").failed().unwrap().errors();
    assert!(text.contains("digest algorithm too weak"), "{text}");
    assert!(!liar.heard().iter().any(|line| line.starts_with("USER") || line.starts_with("PASS")));
}

#[test]
fn chains_that_are_too_long() {
    let mut authority = Authority::new("Test CA");
    let root = authority.host("x", Made::default()).authority_pem();
    let directory = tempfile::tempdir().unwrap();
    let home = tempfile::tempdir().unwrap();
    let ca = home.path().join("ca.pem");
    fs::write(&ca, &root).unwrap();
    fs::write(directory.path().join("users.pem"), &root).unwrap();
    let few = authority.below("1").below("2");
    for n in 0..100 {
        authority = authority.below(&n.to_string());
    }
    few.host("Ada", Made::default()).write(&home.path().join("few.pem"));
    authority.host("Ada", Made::default()).write(&home.path().join("many.pem"));
    few.host("localhost", Made::default()).write(&directory.path().join("few.pem"));
    let many = tempfile::tempdir().unwrap();
    authority.host("localhost", Made::default()).write(&many.path().join("many.pem"));
    let tls =
        "certificate = 'few.pem'\nclient_authorities = 'users.pem'\n[tls.users]\n'/O=Test/CN=Ada' = 'ada'";
    let site = Site::start(directory, tls, "[identity]\nmapped = false");
    site.content("source");
    let ca = ca.display().to_string();
    let put = |credential: &str| {
        let credential = home.path().join(credential).display().to_string();
        let options = ["--authorities", &ca, "--credential", &credential, "--user", "ada"];
        let outcome = site.cp(&options, "source", &format!("{}/up", site.explicit_url()));
        let there = fs::remove_file(site.path("root/up")).is_ok();
        (there, outcome.errors())
    };
    let (there, text) = put("few.pem");
    assert!(there, "{text}");
    let (there, text) = put("many.pem");
    assert!(!there, "{text}");
    assert!(site.log().contains("too long"), "{}", site.log());
    // The same for a server's chain.
    let site = Site::start(many, "certificate = 'many.pem'", "");
    let text = get(home.path(), &site, &["--authorities", &ca]).unwrap_err();
    assert!(text.contains("too long"), "{text}");
}

#[test]
fn a_server_that_begins_in_clear() {
    let directory = tempfile::tempdir().unwrap();
    let (address, thread) = silent();
    let url = format!("ftps://localhost:{}/a", address.port());
    let text = cp(directory.path(), &["--accept-new"], &url, "got").failed().unwrap().errors();
    assert!(text.contains("does not speak TLS here") && text.contains("ftpes://"), "{text}");
    let heard = thread.join().unwrap();
    assert!(!heard.windows(4).any(|word| word == b"USER"), "it logged in");
}
