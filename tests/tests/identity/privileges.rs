use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::peers;
use ropewalk_tests::process::run;

use crate::user_fixture::{ADA, Town, is_possible};

/// CAP_SETGID and CAP_SETUID.
const IDENTITIES: &str = "00000000000000c0";
const NOTHING: &str = "0000000000000000";

fn same(found: &[String], wanted: &str) -> bool {
    !found.is_empty() && found.iter().all(|value| value == wanted)
}

#[test]
fn root_server_keeps_only_identity_capabilities() {
    if !is_possible() {
        return;
    }
    let town = Town::new("");
    let mut ada = town.log_in("ada");
    assert_eq!(ada.store("f", b"x").unwrap().code, 226);
    for (field, wanted) in [
        ("CapPrm", IDENTITIES),
        ("CapEff", IDENTITIES),
        ("CapBnd", IDENTITIES),
        ("CapInh", NOTHING),
        ("CapAmb", NOTHING),
        ("NoNewPrivs", "1"),
    ] {
        let found = town.threads(field);
        assert!(same(&found, wanted), "{field}: {found:?}");
    }
    let limits = fs::read_to_string(format!("/proc/{}/limits", town.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let words: Vec<_> = core.split_whitespace().collect();
    assert_eq!(words[4..6], ["1", "1"], "{core}");
    assert!(town.log().contains("as the local accounts"), "{}", town.log());
}

/// With the privileges of `deploy/ropewalk-mapped.service`.
#[test]
fn privileges_of_unit_suffice() {
    if !is_possible() {
        return;
    }
    let before = "ulimit -c 0; set -- setpriv --bounding-set -all,+setuid,+setgid,+setpcap \"$@\";";
    let town = Town::started("", before);
    let mut ada = town.log_in("ada");
    assert_eq!(ada.store("f", b"x").unwrap().code, 226);
    assert_eq!(ada.retrieve("f").unwrap().0, b"x");
    assert_eq!(fs::metadata(town.real("/home/ada/f")).unwrap().uid(), ADA);
    assert!(same(&town.threads("CapPrm"), IDENTITIES));
}

#[test]
fn units_limit_memory_and_core_dumps() {
    for unit in ["ropewalk.service", "ropewalk-mapped.service"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(unit);
        let text = fs::read_to_string(path).unwrap();
        for setting in ["LimitCORE=0", "MemoryMax=", "MemorySwapMax=0", "LimitNOFILE=", "TasksMax="] {
            assert!(text.lines().any(|line| line.starts_with(setting)), "{unit}: no {setting}");
        }
    }
}

#[test]
fn units_drop_most_privileges() {
    if !peers::available(&["systemd-analyze"]) {
        return;
    }
    for unit in ["ropewalk.service", "ropewalk-mapped.service"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(unit);
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--no-pager", "--offline=true", "--threshold=30"]).arg(path);
        run(&mut command, Duration::from_secs(60)).unwrap().succeeded().unwrap();
    }
}

#[test]
fn server_without_mapping_keeps_no_capabilities() {
    if !is_possible() {
        return;
    }
    let town = Town::new("[identity]\nmapped = false\n");
    town.log_in("ada");
    for field in ["CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"] {
        let found = town.threads(field);
        assert!(same(&found, NOTHING), "{field}: {found:?}");
    }
}

#[test]
fn unprivileged_server_runs_as_its_user() {
    if !is_possible() {
        return;
    }
    // The server's files belong to that user.
    let before =
        "chown bob \"${4%/*}/users\"; set -- setpriv --reuid 31002 --regid 31002 --clear-groups \"$@\";";
    // The server has no directory for a certificate either.
    let town = Town::started("[tls]\nenabled = false\n", before);
    let mut ada = town.log_in("ada");
    assert!(town.threads("Uid").iter().all(|ids| ids == "31002 31002 31002 31002"));
    assert!(same(&town.threads("CapPrm"), NOTHING));
    assert!(town.log().contains("as the server's own user"), "{}", town.log());
    assert_eq!(ada.store("/home/bob/f", b"x").unwrap().code, 226);
    assert!(ada.store("/home/ada/f", b"x").unwrap().code >= 500);
}
