//! Revoked certificates, at the server and at the client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::site::{Site, cp};
use ropewalk_tests::certificates::{Authority, Credential, Made};

fn write(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
}

/// Invalid revocation lists, and a part of the error message for each.
fn bad_lists(authority: &Authority) -> Vec<(Vec<u8>, &'static str)> {
    let stranger = Authority::new("Test CA");
    vec![
        (authority.revoking(&[], Made { from: -20, to: -10 }), "expired at"),
        (authority.revoking(&[], Made { from: 10, to: 20 }), "is valid only from"),
        (stranger.revoking(&[], Made::default()), "is not signed by"),
        (b"nonsense".to_vec(), "is no revocation list"),
    ]
}

#[test]
fn clients_with_revoked_certificates_do_not_log_in() {
    let authority = Authority::new("Test CA");
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let (ada, bob) = (authority.host("Ada", Made::default()), authority.host("Bob", Made::default()));
    ada.write(&at("ada.pem"));
    bob.write(&at("bob.pem"));
    write(&at("users.pem"), &ada.authority_pem());
    // The list of another authority comes first: a file may have several.
    let others = Authority::new("Other CA").revoking(&[], Made { from: -20, to: -10 });
    write(&at("lists.pem"), &[others, authority.revoking(&[&bob], Made::default())].concat());
    let tls = "client_authorities = 'users.pem'\nclient_revocations = 'lists.pem'\n[tls.users]\n\
               '/O=Test/CN=Ada' = 'ada'\n'/O=Test/CN=Bob' = 'bob'";
    let site = Site::start(directory, tls, "[log]\naudit = 'audit'\n[identity]\nmapped = false");
    site.content("source");
    let put = |who: &str| {
        let url = site.explicit_url().replace("//", &format!("//{who}:wrong@"));
        let credential = format!("{who}.pem");
        let got = site.cp(&["--accept-new", "--credential", &credential], "source", &format!("{url}/up"));
        let there = fs::remove_file(site.path("root/up")).is_ok();
        (there, got.errors())
    };
    let (there, text) = put("ada");
    assert!(there, "{text}");
    let (there, text) = put("bob");
    assert!(!there && text.contains("certificate revoked"), "{text}");
    let audit = fs::read_to_string(site.path("audit")).unwrap();
    let line = audit.lines().find(|line| line.contains("was revoked by O=Test, CN=Test CA at")).unwrap();
    assert!(line.contains("the certificate of O=Test, CN=Bob"), "{line}");
    assert!(
        line.contains(r#""decision":"refused""#) && line.contains(r#""mechanism":"certificate""#),
        "{line}"
    );
    // An invalid list affects everybody below its authority at once.
    for (list, words) in bad_lists(&authority) {
        write(&site.path("lists.pem"), &list);
        let (there, text) = put("ada");
        assert!(!there, "{words}: {text}");
        assert!(site.log().contains(words), "{words}: {}", site.log());
    }
    write(&site.path("lists.pem"), &authority.revoking(&[], Made::default()));
    fs::set_permissions(site.path("lists.pem"), PermissionsExt::from_mode(0o646)).unwrap();
    let (there, _) = put("ada");
    assert!(!there && site.log().contains("anybody can change"), "{}", site.log());
    fs::set_permissions(site.path("lists.pem"), PermissionsExt::from_mode(0o644)).unwrap();
    for who in ["ada", "bob"] {
        let (there, text) = put(who);
        assert!(there, "{who}: {text}");
    }
}

/// The error message of a server in this directory that refuses these settings of `[tls]`.
fn refused(directory: &Path, tls: &str) -> String {
    let text = format!("root = '.'\n[anonymous]\n[tls]\n{tls}\n");
    write(&directory.join("server.toml"), text.as_bytes());
    let mut command = crate::site::client(directory);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config", "server.toml"]);
    let outcome = ropewalk_tests::process::run(&mut command, crate::site::LIMIT).unwrap();
    outcome.failed().unwrap().errors()
}

#[test]
fn a_server_without_its_lists_does_not_start() {
    let authority = Authority::new("Test CA");
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("users.pem"), &authority.host("Ada", Made::default()).authority_pem());
    fs::create_dir(directory.path().join("none")).unwrap();
    write(&directory.path().join("bad"), b"nonsense");
    for (place, words) in [
        ("missing", "missing: No such file"),
        ("none", "has no file with a revocation list: expected HASH.r0"),
        ("bad", "is no revocation list"),
    ] {
        let tls = format!(
            "state_directory = '.'\nclient_authorities = 'users.pem'\nclient_revocations = '{place}'"
        );
        let text = refused(directory.path(), &tls);
        assert!(text.contains(words), "{place}: {text}");
    }
}

/// A server with a certificate of this authority, and a client's directory with the authority's
/// certificate as `ca.pem`.
fn serving(made: &Credential) -> (TempDir, Site) {
    let directory = tempfile::tempdir().unwrap();
    made.write(&directory.path().join("made.pem"));
    let home = tempfile::tempdir().unwrap();
    write(&home.path().join("ca.pem"), &made.authority_pem());
    let site = Site::start(directory, "certificate = 'made.pem'", "");
    write(&site.path("root/a"), b"content");
    (home, site)
}

#[test]
fn servers_with_revoked_certificates_are_not_believed() {
    let root = Authority::new("Test CA");
    let below = root.below("Below");
    let made = below.host("localhost", Made::default());
    let (home, site) = serving(&made);
    let at = |name: &str| home.path().join(name);
    let get = |options: &[&str]| {
        let outcome = cp(home.path(), options, &format!("{}/a", site.explicit_url()), "got");
        (fs::remove_file(at("got")).is_ok(), outcome.errors())
    };
    let file = ["--authorities", "ca.pem", "--revocations", "lists.pem"];
    write(&at("lists.pem"), &below.revoking(&[], Made::default()));
    let (there, text) = get(&file);
    assert!(there, "{text}");
    write(&at("lists.pem"), &below.revoking(&[&made], Made::default()));
    for options in [&file[..], &[&file[..], &["--accept-new"]].concat()] {
        let (there, text) = get(options);
        assert!(!there && text.contains("the certificate of O=Test, CN=localhost (serial"), "{text}");
        assert!(text.contains("was revoked by O=Test, CN=Below at"), "{text}");
    }
    // A fingerprint that was accepted before does not override the revocation.
    let name = format!("localhost:{}", site.address.port());
    write(&at("state/ropewalk/known_hosts"), format!("{name} {}\n", site.fingerprint).as_bytes());
    let (there, text) = get(&file);
    assert!(!there && text.contains("was revoked by"), "{text}");
    for (list, words) in bad_lists(&below) {
        write(&at("lists.pem"), &list);
        let (there, text) = get(&file);
        assert!(!there && text.contains(words), "{words}: {text}");
    }
    // In a directory of authorities, lists are read without an option. The list of the issuer's
    // issuer counts, too.
    fs::create_dir(at("cas")).unwrap();
    write(&at("cas").join(format!("{}.0", root.hash())), &made.authority_pem());
    let directory = ["--authorities", "cas"];
    let (there, text) = get(&directory);
    assert!(there, "{text}");
    let middle = below.as_credential();
    write(&at("cas").join(format!("{}.r0", root.hash())), &root.revoking(&[&middle], Made::default()));
    let (there, text) = get(&directory);
    assert!(!there && text.contains("the certificate of O=Test, CN=Below (serial"), "{text}");
    let (there, text) = get(&["--fingerprint", &site.fingerprint]);
    assert!(there, "{text}");
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let root = Authority::new("Test CA");
    let made = root.host("localhost", Made::default());
    let (home, site) = serving(&made);
    let pipe = home.path().join("pipe");
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for (options, found) in [
        (&["--authorities", "ca.pem", "--revocations", "pipe"][..], "pipe: it is a pipe"),
        (&["--authorities", "ca.pem", "--revocations", "/dev/zero"], "/dev/zero: it is a device"),
        (&["--authorities", "pipe"], "pipe: it is a pipe"),
        (&["--authorities", "ca.pem", "--credential", "pipe"], "pipe: it is a pipe"),
        (&["--authorities", "ca.pem", "--credential", "/dev/zero"], "/dev/zero: it is a device"),
    ] {
        let outcome = cp(home.path(), options, &format!("{}/a", site.explicit_url()), "got");
        assert!(!outcome.status.success(), "{options:?}");
        assert!(outcome.errors().contains(found), "{options:?}: {}", outcome.errors());
    }
    // The same for a server.
    let directory = tempfile::tempdir().unwrap();
    made.write(&directory.path().join("made.pem"));
    write(&directory.path().join("users.pem"), &made.authority_pem());
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for tls in [
        "certificate = 'made.pem'\nclient_authorities = 'users.pem'\nclient_revocations = 'pipe'",
        "certificate = 'made.pem'\nclient_authorities = 'pipe'",
        "certificate = 'pipe'",
    ] {
        let text = refused(directory.path(), tls);
        assert!(text.contains("pipe: it is a pipe"), "{tls}: {text}");
    }
}

/// A list that would not be checked is an error, like a protection of data that is not available.
#[test]
fn lists_for_servers_without_tls_are_refused() {
    let home = tempfile::tempdir().unwrap();
    for (url, words) in [
        ("ftp://127.0.0.1:1/a", "--revocations requires"),
        ("gsiftp://127.0.0.1:1/a", "gsiftp:// reads those beside its authorities, HASH.r0"),
    ] {
        let outcome = cp(home.path(), &["--revocations", "/none"], url, "got");
        assert!(outcome.errors().contains(words), "{url}: {}", outcome.errors());
    }
}
