//! `ropewalk doctor` with real kernel settings, in separate network namespaces, so that the
//! machine's own settings do not change.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Output;

use anyhow::{Result, ensure};
use ropewalk_tests::peers;
use ropewalk_tests::process;
use ropewalk_tests::scratch::Scratch;

const LINK: &str = "--rate 10Gbit/s --rtt 80ms";

/// Runs a script in a new network namespace. `$doctor` is the command, which keeps the old values
/// in `state`.
fn in_namespace(state: &Path, script: &str) -> Result<Output> {
    let binary = peers::ropewalk()?;
    let mut command = process::command("unshare");
    command.args(["--net", "sh", "-c", script]);
    command.env("doctor", format!("{} doctor --state {}", binary.display(), state.display()));
    Ok(command.env_remove("XDG_STATE_HOME").output()?)
}

fn can_test() -> bool {
    let root = rustix::process::geteuid().is_root();
    (root || !peers::skip("network namespaces need root")) && peers::available(&["unshare", "setpriv"])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn setting(name: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap()
}

#[test]
fn apply_and_revert_restore_settings_exactly() {
    if !can_test() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let machine = setting("tcp_rmem");
    let script = format!(
        "cd /proc/sys/net/ipv4; echo '4096 100000 222222' > tcp_rmem; echo 0 > tcp_mtu_probing
         $doctor {LINK} --apply --yes > /dev/null
         cat tcp_rmem tcp_mtu_probing
         $doctor --restore > /dev/null; echo exit $?
         cat tcp_rmem tcp_mtu_probing"
    );
    let output = in_namespace(&scratch.join("state"), &script).unwrap();
    let said = text(&output.stdout);
    let words: Vec<&str> = said.split_whitespace().collect();
    let expected = "4096 100000 134217728 1 exit 0 4096 100000 222222 0";
    assert_eq!(words.join(" "), expected, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("- net.ipv4.tcp_rmem = 4096 100000 222222\n+ net.ipv4.tcp_rmem"));
    assert_eq!(setting("tcp_rmem"), machine);
    assert!(std::fs::read_dir(scratch.join("state")).unwrap().next().is_none());
}

#[test]
fn revert_without_saved_values_creates_nothing() {
    let scratch = Scratch::new().unwrap();
    let state = scratch.join("none/state");
    let mut command = peers::ropewalk_command().unwrap();
    let outcome = process::run(
        command.args(["doctor", "--restore", "--state"]).arg(&state),
        std::time::Duration::from_secs(60),
    );
    let said = outcome.unwrap().succeeded().unwrap().text();
    assert_eq!(said, format!("nothing was saved in {}: nothing to restore\n", state.display()));
    assert!(!scratch.join("none").exists(), "it was made");
}

#[test]
fn revert_after_crash_restores_settings() {
    if !can_test() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let state = scratch.join("state");
    // The state after doctor was killed: the file of old values still says `applying`, and some
    // settings have been written.
    let script = format!(
        "cd /proc/sys/net/ipv4; echo '4096 100000 222222' > tcp_rmem; echo '4096 16384 333333' > tcp_wmem
         $doctor {LINK} --apply --yes > /dev/null
         sed -i 's/\"applied\"/\"applying\"/' {}
         echo '4096 16384 333333' > tcp_wmem; echo '4096 100000 55555555' > tcp_rmem
         $doctor {LINK} --apply --yes > /dev/null; echo exit $?
         $doctor --restore > /dev/null; echo exit $?
         cat tcp_rmem tcp_wmem",
        state.join("doctor.json").display()
    );
    let output = in_namespace(&state, &script).unwrap();
    let said = text(&output.stdout);
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(
        words.join(" "),
        "exit 1 exit 0 4096 100000 222222 4096 16384 333333",
        "{}",
        text(&output.stderr)
    );
    assert!(text(&output.stderr).contains("--restore"), "{}", text(&output.stderr));
}

#[test]
fn checks_report_found_and_wanted_values_and_reason() {
    if !can_test() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let script = format!("echo '4096 100000 222222' > /proc/sys/net/ipv4/tcp_rmem; $doctor {LINK} --json");
    let output = in_namespace(&scratch.join("state"), &script).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["schema"], &report["ready"]), (&1.into(), &false.into()));
    let checks = report["checks"].as_array().unwrap();
    let rmem = checks.iter().find(|check| check["name"] == "net.ipv4.tcp_rmem").unwrap();
    assert_eq!((&rmem["state"], &rmem["found"]), (&"bad".into(), &"4096 100000 222222".into()));
    assert_eq!(rmem["set"], "4096 100000 134217728");
    assert!(checks.iter().all(|check| !check["why"].as_str().unwrap().is_empty()));
    assert!(!scratch.join("state").exists(), "only looking wrote something");
}

#[test]
fn doctor_without_apply_changes_nothing() {
    if !can_test() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let check = || -> Result<()> {
        let script = format!(
            "echo '4096 100000 222222' > /proc/sys/net/ipv4/tcp_rmem
             $doctor {LINK} --apply < /dev/null > /dev/null; echo exit $?; cat /proc/sys/net/ipv4/tcp_rmem
             $doctor --rate 10Gbit/s; echo exit $?; $doctor --restore --apply; echo exit $?"
        );
        let output = in_namespace(&scratch.join("state"), &script)?;
        let said = text(&output.stdout);
        let words: Vec<&str> = said.split_whitespace().collect();
        ensure!(words.join(" ") == "exit 2 4096 100000 222222 exit 2 exit 2", "{said}");
        ensure!(text(&output.stderr).contains("--yes"), "{}", text(&output.stderr));
        Ok(())
    };
    check().unwrap();
}
