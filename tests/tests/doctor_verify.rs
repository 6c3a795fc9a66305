//! `ropewalk doctor --apply --verify`: settings on trial are kept or reverted, also by the next run
//! after a crash. Uses real kernel settings in separate network namespaces.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use ropewalk_tests::peers;
use ropewalk_tests::process;
use ropewalk_tests::scratch::Scratch;
use serde_json::Value;

/// The setting in the namespace before the trial, which is restored.
const OLD: &str = "4096 100000 222222";
/// The value that doctor sets.
const NEW: &str = "4096 100000 134217728";

fn can_test(tun: bool) -> bool {
    let can = rustix::process::geteuid().is_root() && (!tun || fs::exists("/dev/net/tun").unwrap_or(false));
    (can || !peers::skip("namespaces need root, the lab /dev/net/tun"))
        && peers::available(&["unshare", "setpriv"])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a script in a new network namespace in which a server listens on port 2811. The script can
/// use `trial PLACES...`, which runs doctor in the background, `until_is VALUE`, which waits until
/// `tcp_rmem` has this value while doctor runs, and `look`, which shows the final state.
fn in_namespace(state: &Path, script: &str) -> Output {
    let binary = peers::ropewalk().unwrap();
    let mut command = process::command("unshare");
    let functions = format!(
        r#"
        cd /proc/sys/net/ipv4; echo '{OLD}' > tcp_rmem; echo 0 > tcp_mtu_probing
        trial() {{ $doctor --rate 10Gbit/s --rtt 80ms --apply --yes --checksum none --verify "$@" > "$out" 2> "$err" & pid=$!; }}
        until_is() {{
            while [ "$(echo $(cat tcp_rmem))" != "$1" ]; do
                kill -0 $pid 2> /dev/null || {{ echo "it ended before $1"; cat "$err"; exit 9; }}
                sleep 0.002
            done
        }}
        look() {{ echo $(cat tcp_rmem tcp_mtu_probing) $(ls $state); }}
        ip link set lo up
        PATH=/nowhere $serve > $log 2>&1 & server=$!
        trap 'kill -9 $server; wait $server 2> /dev/null' EXIT
        until [ -s $log ]; do kill -0 $server || {{ cat $log; exit 9; }}; sleep 0.01; done
        "#
    );
    fs::write(
        state.with_extension("toml"),
        "root = '.'\n[anonymous]\nwrite = true\n[identity]\nmapped = false\n\
         [profiling]\nenabled = true\nusers = ['anonymous']\nperf = false\n",
    )
    .unwrap();
    let config = state.with_extension("toml");
    let serve = format!("{} serve --listen 127.0.0.1:2811 --config {}", binary.display(), config.display());
    command.env("serve", serve).env("log", state.with_extension("log"));
    command.args(["--net", "sh", "-c", &(functions + script)]);
    command.env("doctor", format!("{} doctor --state {}", binary.display(), state.display()));
    command
        .env("state", state)
        .env("out", state.with_extension("out"))
        .env("err", state.with_extension("err"));
    command.env_remove("XDG_STATE_HOME").output().unwrap()
}

const NOWHERE: &str = "ftp://127.0.0.1:2811/dev/ropewalk-null";
/// The transfer takes some tenths of a second.
const PLACES: &str = "zero:500M ftp://127.0.0.1:2811/dev/ropewalk-null";

#[test]
fn trial_killed_at_any_moment_is_reverted() {
    if !can_test(false) {
        return;
    }
    for (moment, wait) in [
        (
            "before the first setting",
            "until [ -e $state/doctor.json ]; do kill -0 $pid || exit 9; sleep 0.002; done",
        ),
        ("with new settings", "until_is \"$new\""),
        ("with old ones again", "until_is \"$new\"; until_is \"$old\""),
        ("with new ones again", "until_is \"$new\"; until_is \"$old\"; until_is \"$new\""),
    ] {
        let scratch = Scratch::new().unwrap();
        let script = format!(
            "old='{OLD}'; new='{NEW}'; trial {PLACES}; {wait}
             kill -9 $pid; wait $pid 2> /dev/null
             [ -e $state/doctor.json ] || echo 'no old values'
             $doctor --rate 10Gbit/s --rtt 80ms --apply --yes > /dev/null 2>&1; echo exit $?
             trial {PLACES}; wait $pid; echo exit $?
             $doctor --restore > /dev/null; echo exit $?; look"
        );
        let output = in_namespace(&scratch.join("state"), &script);
        let said = text(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        // Doctor changes nothing else until the trial has been reverted.
        assert_eq!(
            said,
            format!("exit 1 exit 1 exit 0 {OLD} 0"),
            "killed {moment}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn revert_before_trial_has_nothing_to_restore() {
    if !can_test(false) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let script = format!(
        "trial {PLACES}; until grep -q 'first transfer' $err; do sleep 0.002; done; kill -9 $pid; wait $pid
         $doctor --restore; look"
    );
    let output = in_namespace(&scratch.join("state"), &script);
    let said = text(&output.stdout);
    assert_eq!(said.trim(), format!("nothing to restore\n{OLD} 0"), "{}", text(&output.stderr));
}

#[test]
fn ctrl_c_reverts_and_reports_it() {
    if !can_test(false) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let script =
        format!("trial {PLACES}; until_is '{NEW}'; kill -INT $pid; wait $pid; echo exit $?; look; cat $err");
    let output = in_namespace(&scratch.join("state"), &script);
    let said = text(&output.stdout);
    assert!(said.starts_with(&format!("exit 130\n{OLD} 0\n")), "{said}");
    assert!(said.contains("restoring the old settings") && said.contains("--restore"), "{said}");
}

#[test]
fn transfer_failure_with_new_settings_reverts() {
    if !can_test(false) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let source = scratch.join("source");
    fs::File::create(&source).unwrap().set_len(2 << 30).unwrap();
    let script = format!(
        "trial '{}' {NOWHERE} --no-sparse; until_is '{NEW}'; rm '{}'; wait $pid; echo exit $?; look; cat $err",
        source.display(),
        source.display()
    );
    let output = in_namespace(&scratch.join("state"), &script);
    let said = text(&output.stdout);
    assert!(said.starts_with(&format!("exit 4\n{OLD} 0\n")), "{said}");
    assert!(said.contains("the transfer failed with the new settings"), "{said}");
    assert!(said.contains("the old settings are restored"), "{said}");
    // The transfer fails with the old settings too, so nothing is tried.
    let script = format!("trial '{}' {NOWHERE}; wait $pid; echo exit $?; look; cat $err", source.display());
    let said = text(&in_namespace(&scratch.join("state"), &script).stdout);
    assert!(
        said.starts_with(&format!("exit 4\n{OLD} 0\n")) && said.contains("nothing was changed"),
        "{said}"
    );
}

#[test]
fn setting_changed_by_others_during_trial_is_kept() {
    if !can_test(false) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let script = format!(
        "trial {PLACES}; until_is '{NEW}'; echo 1 > tcp_no_metrics_save; echo '4096 100000 7777777' > tcp_rmem
         wait $pid; echo exit $?; cat tcp_rmem tcp_mtu_probing; cat $err
         $doctor --restore > /dev/null; echo exit $?; $doctor --restore --force > /dev/null; look"
    );
    let output = in_namespace(&scratch.join("state"), &script);
    let said = text(&output.stdout);
    assert!(said.starts_with("exit 1\n4096\t100000\t7777777\n0\n"), "{said}");
    assert!(said.contains("somebody else changed net.ipv4.tcp_rmem meanwhile"), "{said}");
    assert!(said.ends_with(&format!("exit 1\n{OLD} 0\n")), "{said}");
}

/// The reported result and the active settings agree, whatever the transfers measured.
#[test]
fn reported_result_matches_settings() {
    if !can_test(false) {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let script = format!("trial zero:50M {NOWHERE} --json; wait $pid; echo exit $?; cat tcp_rmem; cat $out");
    let output = in_namespace(&scratch.join("state"), &script);
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().collect();
    let report: Value = serde_json::from_str(lines[2]).unwrap_or_else(|e| panic!("{e}: {said}"));
    let verified = &report["verified"];
    let (kept, judged) = (verified["kept"].as_bool().unwrap(), &verified["judgement"]);
    assert_eq!(judged["helped"], kept, "{verified}");
    for side in ["old", "new"] {
        assert_eq!(judged[side].as_array().unwrap().len(), 3, "{verified}");
    }
    let (exit, set) = if kept { ("exit 0", NEW) } else { ("exit 1", OLD) };
    assert_eq!((lines[0], lines[1].replace('\t', " ").as_str()), (exit, set), "{said}");
    assert_eq!(report["applied"].as_array().unwrap().is_empty(), !kept, "{report}");
    assert_eq!(scratch.join("state/doctor.json").exists(), kept);
}

#[test]
fn invalid_arguments_are_refused() {
    let scratch = Scratch::new().unwrap();
    let refused = |words: &str, why: &str| {
        let mut command = Command::new(peers::ropewalk().unwrap());
        command.arg("doctor").arg("--state").arg(scratch.join("state"));
        let output = command.args(words.split_whitespace()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(why), "{words}: {}", text(&output.stderr));
    };
    refused("--rate 1Gbit/s --verify a b", "--apply");
    refused("--apply --verify zero:1 null:", "--rate");
    refused("--rate 1Gbit/s --apply --verify - null:", "standard input");
    refused("--rate 1Gbit/s --apply --verify ftp://a/x ftp://b/x", "this host");
    refused("--rate 1Gbit/s --apply --verify zero:1 null:", "--verify needs the network");
    refused("--rate 1Gbit/s --apply --verify a file:///b --rtt 1ms", "has to be the URL of a server");
    refused("--rate 1Gbit/s --apply --verify zero:1 ftp://a/x --rounds 2", "--rounds");
    refused("--rate 1Gbit/s --rtt 1ms -p 4", "--verify");
    refused("--restore --verify a b", "--verify");
    assert!(!scratch.join("state").exists());
}

/// Runs `doctor` in the lab on `left`, with these limits of `left`'s receive buffers and `right`'s
/// send buffers. Returns its output and `left`'s `tcp_rmem` afterwards.
fn in_lab(rmem: &str, wmem: &str) -> (Value, String) {
    let scratch = Scratch::new().unwrap();
    let scenario = format!(
        r#"
        title = "doctor"
        [kernel]
        congestion = "cubic"
        [hosts.left.kernel]
        tcp_rmem = ["4 KiB", "64 KiB", "{rmem}"]
        [hosts.right.kernel]
        tcp_wmem = ["4 KiB", "16 KiB", "{wmem}"]
        [[links]]
        between = ["left", "right"]
        path = {{ round_trip = "40ms", both = {{ rate = "200Mbit/s", queue = 2000 }} }}
        [[files]]
        host = "right"
        path = "{{dir}}/server.toml"
        text = """
        [identity]
        mapped = false
        [profiling]
        enabled = true
        users = ["anonymous"]
        perf = false
        """
        [[servers]]
        name = "server"
        host = "right"
        run = ["{{ropewalk}}", "serve", "--config", "{{dir}}/server.toml", "--listen", "0.0.0.0:{{port:server}}",
            "--anonymous=rw", "--root", "{{disk}}", "--log", "error"]
        ready = {{ port = "{{port:server}}" }}
        environment = {{ PATH = "/nowhere" }}
        [[commands]]
        name = "doctor"
        host = "left"
        may_fail = true
        run = "{{ropewalk}} doctor --state {{dir}}/state --json --rate 200Mbit/s --apply --yes -p 1 --tuner fixed --checksum none --verify ftp://{{addr:right}}:{{port:server}}/dev/ropewalk-zero-6000000 null: > {out}; cat /proc/sys/net/ipv4/tcp_rmem > {rmem_out}"
        environment = {{ XDG_CONFIG_HOME = "{{dir}}", XDG_STATE_HOME = "{{dir}}", XDG_CACHE_HOME = "{{dir}}" }}
        "#,
        out = scratch.join("out").display(),
        rmem_out = scratch.join("rmem").display(),
    );
    fs::write(scratch.join("doctor.toml"), scenario).unwrap();
    let output = Command::new(peers::ropewalk().unwrap())
        .args(["lab", "run"])
        .arg(scratch.join("doctor.toml"))
        .args(["--json", "--quiet", "--output"])
        .arg(scratch.join("results"))
        .output()
        .unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    let report = fs::read(scratch.join("out")).unwrap_or_default();
    let report = serde_json::from_slice(&report).unwrap_or_else(|e| panic!("{e}: {said}"));
    (report, fs::read_to_string(scratch.join("rmem")).unwrap())
}

#[test]
fn settings_that_help_are_kept() {
    if !can_test(true) {
        return;
    }
    let (report, rmem) = in_lab("128 KiB", "16 MiB");
    let verified = &report["verified"];
    assert_eq!(verified["kept"], true, "{report}");
    assert!(verified["judgement"]["gain"].as_f64().unwrap() > 0.3, "{verified}");
    assert!((report["rtt_seconds"].as_f64().unwrap() - 0.04).abs() < 0.02, "{report}");
    assert!(rmem.trim_end().ends_with("\t16777216"), "{rmem}");
}

#[test]
fn limit_at_other_end_is_reported() {
    if !can_test(true) {
        return;
    }
    let (report, rmem) = in_lab("6 MiB", "64 KiB");
    let elsewhere = &report["verified"]["elsewhere"];
    assert_eq!(elsewhere["host"], "right", "{report}");
    assert!(elsewhere["evidence"].as_str().is_some_and(|said| said.contains("tcp_wmem")), "{report}");
    assert!(
        elsewhere["command"].as_str().unwrap().starts_with("ropewalk doctor --rate 200000000bit/s"),
        "{report}"
    );
    let kept = report["verified"]["kept"].as_bool().unwrap();
    // Depends on chance, which has little influence here.
    assert_eq!(rmem.trim_end().ends_with("\t16777216"), kept, "{rmem}");
}
