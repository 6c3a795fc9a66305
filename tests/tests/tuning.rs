//! Transfers over long paths that are tuned while they run, in the WAN lab, which requires root.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use parking_lot::{Mutex, MutexGuard};
use ropewalk_tests::peers;
use ropewalk_tests::scratch::Scratch;
use serde_json::Value;

/// Serialises the tests, because each emulated path needs the whole machine.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// Returns true, after a message, if the lab cannot run here.
fn no_lab() -> bool {
    let can = rustix::process::geteuid().is_root() && fs::exists("/dev/net/tun").unwrap_or(false);
    !can && peers::skip("the lab needs root and /dev/net/tun")
}

/// Runs `program` on a path of 200 Mbit/s and 60 ms whose hosts limit windows to 64 KiB, so that
/// only more streams help. Returns the maximum number of concurrent connections and the payload
/// rate in bit/s.
fn on_small_buffers(program: &str, arguments: &[&str]) -> Option<(u64, f64)> {
    let limits = [&["--size", "400M", "--limit", "14s"], arguments].concat();
    let result = run_lab("small-buffers", program, &limits)?;
    let command = &result["commands"][0];
    let host = |name: &str| result["hosts"].as_array().unwrap().iter().any(|host| host["name"] == name);
    assert!(host("left") && host("right"));
    let received: u64 = ["left", "right"]
        .iter()
        .map(|host| {
            let of_host = |connection: &&Value| connection["host"] == **host;
            let connections = result["connections"].as_array().unwrap().iter().filter(of_host);
            connections.filter_map(|connection| connection["received"].as_u64()).sum()
        })
        .max()
        .unwrap();
    let seconds = command["seconds"].as_f64().unwrap();
    Some((command["streams_max"].as_u64().unwrap(), received as f64 * 8.0 / seconds))
}

/// Returns the lab's result of this program in this scenario, or `None` if the lab cannot run here.
fn run_lab(scenario: &str, program: &str, arguments: &[&str]) -> Option<Value> {
    let needs = if program.contains("gct") { &["globus-gridftp-server"][..] } else { &[] };
    if !peers::available(needs) || no_lab() {
        return None;
    }
    let scratch = Scratch::new().unwrap();
    let output = Command::new(peers::ropewalk().unwrap())
        .args(["lab", "run", scenario, "--program", program, "--json", "--quiet", "--output"])
        .arg(scratch.join("results"))
        .args(arguments)
        .output()
        .unwrap();
    let result = serde_json::from_slice(&output.stdout);
    Some(result.unwrap_or_else(|e| panic!("{program}: {e}: {}", String::from_utf8_lossy(&output.stderr))))
}

/// Runs all commands of a scenario and returns the lab's JSON output.
fn run_scenario(scratch: &Scratch, text: &str) -> String {
    let scenario = scratch.join("scenario.toml");
    fs::write(&scenario, text).unwrap();
    let output = Command::new(peers::ropewalk().unwrap())
        .args(["lab", "run"])
        .arg(&scenario)
        .args(["--json", "--quiet", "--output"])
        .arg(scratch.join("results"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the events that `--json` wrote.
fn events(log: &str) -> Vec<Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the tuning decisions among the events.
fn tuned(log: &str) -> Vec<Value> {
    events(log).into_iter().filter(|event| event["event"] == "tuned").collect()
}

/// Eight streams carry at most 85 Mbit/s.
const UNTUNED_STREAMS: u64 = 8;
const UNTUNED: f64 = 90e6;

#[test]
fn download_adds_streams() {
    let _alone = alone();
    let Some((streams, rate)) = on_small_buffers("ropewalk", &[]) else { return };
    assert!(streams > 2 * UNTUNED_STREAMS && rate > 1.1 * UNTUNED, "{streams} connections, {rate} bit/s");
    let (streams, rate) = on_small_buffers("ropewalk --tuner fixed", &[]).unwrap();
    assert!(streams <= UNTUNED_STREAMS + 2 && rate < UNTUNED, "{streams} connections, {rate} bit/s");
}

#[test]
fn stream_limit_is_respected() {
    let _alone = alone();
    // With another server the client opens sessions instead, each with a control connection.
    for (program, way, most) in
        [("ropewalk", &[][..], 5), ("ropewalk", &["--put"], 5), ("ropewalk-gct", &[], 6)]
    {
        let program = format!("{program} --max-streams 3");
        let Some((streams, rate)) = on_small_buffers(&program, way) else { return };
        assert!(streams <= most && rate < 34e6, "{program} {way:?}: {streams} connections, {rate} bit/s");
    }
}

#[test]
fn upload_adds_streams() {
    let _alone = alone();
    for program in ["ropewalk", "ropewalk-gct"] {
        let Some((streams, rate)) = on_small_buffers(program, &["--put"]) else { return };
        assert!(streams > 2 * UNTUNED_STREAMS && rate > 1.1 * UNTUNED, "{program}: {streams}, {rate} bit/s");
    }
}

/// A foreign sender has a fixed number of streams per transfer, so the client adds sessions.
#[test]
fn download_from_gct_adds_sessions() {
    let _alone = alone();
    let Some((streams, rate)) = on_small_buffers("ropewalk-gct", &[]) else { return };
    assert!(streams > 2 * UNTUNED_STREAMS && rate > 1.1 * UNTUNED, "{streams} connections, {rate} bit/s");
}

#[test]
fn third_party_adds_streams() {
    let _alone = alone();
    for program in ["ropewalk-third", "ropewalk-third-gct"] {
        // The client has no data connections of its own.
        let Some((_, rate)) = on_small_buffers(program, &[]) else { return };
        assert!(rate > 1.1 * UNTUNED, "{program}: {rate} bit/s");
    }
}

/// The path carries nothing for some seconds in the middle. No tuner, timeout, or retry may turn
/// that into a failure.
#[test]
fn path_outage_is_survived() {
    let text = path("40ms", "rate = \"100Mbit/s\", queue = 500", "")
        + r#"
        [[links.changes]]
        at = "1s"
        both = { loss = "100%" }
        [[links.changes]]
        at = "4s"
        both = { loss = "0%" }
    "#;
    let _alone = alone();
    let scratch = Scratch::new().unwrap();
    let scenario = scratch.join("dead.toml");
    fs::write(&scenario, text).unwrap();
    for (program, way) in
        [("ropewalk", &[][..]), ("ropewalk", &["--put"]), ("ropewalk-gct", &[]), ("ropewalk-third", &[])]
    {
        let arguments = [&["--size", "32M", "--limit", "60s"], way].concat();
        let Some(result) = run_lab(scenario.to_str().unwrap(), program, &arguments) else { return };
        let command = &result["commands"][0];
        assert_eq!(command["end"]["exit"], 0, "{program} {way:?}: {command}");
        assert_eq!(command["bytes"], 32 << 20, "{program} {way:?}: {command}");
        assert!(command["seconds"].as_f64().unwrap() > 4.0, "the path was not dead: {command}");
    }
}

/// Returns a scenario of two hosts, `left` and `right`, and a path between them with this round
/// trip and the same properties in both directions. `kernel` holds further settings of both hosts.
fn path(round_trip: &str, both: &str, kernel: &str) -> String {
    format!(
        r#"
        title = "a path"
        description = "For one test."
        [kernel]
        congestion = "cubic"
        {kernel}
        [hosts.left]
        [hosts.right]
        [[links]]
        between = ["left", "right"]
        [links.path]
        round_trip = "{round_trip}"
        both = {{ {both} }}
        "#
    )
}

/// Returns the configuration of a Ropewalk server at the right end of a path.
fn server() -> String {
    format!(
        r#"
        [[servers]]
        name = "ropewalk"
        host = "right"
        run = ["{}", "serve", "--listen", "0.0.0.0:{{port:ropewalk}}", "--anonymous=rw", "--root", "/", "--log", "info"]
        ready = {{ port = "{{port:ropewalk}}" }}
        environment = {{ XDG_CONFIG_HOME = "{{dir}}", XDG_STATE_HOME = "{{dir}}" }}
        "#,
        peers::ropewalk().unwrap().display()
    )
}

/// Returns a scenario with this server and a path of 100 Mbit/s and 50 ms.
fn with_server(kernel: &str) -> String {
    path("50ms", r#"rate = "100Mbit/s", queue = 500"#, kernel) + &server()
}

/// Runs two uploads with these options from the same host over one path for `seconds`. Returns the
/// bytes that each moved between 60 and 90 % of that time.
fn two_on_a_path(options: [&str; 2], seconds: u32) -> Option<[f64; 2]> {
    let scratch = Scratch::new().unwrap();
    let ropewalk = peers::ropewalk().unwrap();
    let log = |n: usize| scratch.join(format!("{n}.jsonl"));
    let mut text = with_server("");
    for (n, options) in options.into_iter().enumerate() {
        text += &format!(
            r#"
            [[commands]]
            name = "upload-{n}"
            host = "left"
            at = "0s"
            stop = "{seconds}s"
            run = "exec {} cp --json {options} zero:100G ftp://{{addr:right}}:{{port:ropewalk}}/dev/null > {}"
            environment = {{ XDG_CONFIG_HOME = "{{dir}}/{n}", XDG_STATE_HOME = "{{dir}}/{n}" }}
            "#,
            ropewalk.display(),
            log(n).display()
        );
    }
    if no_lab() {
        return None;
    }
    run_scenario(&scratch, &text);
    Some([0, 1].map(|n| {
        let log = fs::read_to_string(log(n)).unwrap();
        let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        // Progress events come at regular intervals.
        let bytes: Vec<f64> = events
            .filter(|event| event["event"] == "progress")
            .map(|event| event["bytes"].as_f64().unwrap())
            .collect();
        assert!(bytes.len() > 20, "{log}");
        bytes[bytes.len() * 9 / 10] - bytes[bytes.len() * 6 / 10]
    }))
}

/// Runs two transfers over one path; the first one determines the buffer sizes for the second.
/// `here` is `"send"` or `"receive"` and selects the local buffers. `kernel` limits their
/// autotuning to 64 KiB.
fn second_has_buffers(here: &str, kernel: &str, [first, second]: [&str; 2]) {
    let _alone = alone();
    if !peers::available(&["ss"]) || no_lab() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let ropewalk = peers::ropewalk().unwrap();
    let place = |name: &str| scratch.join(name).display().to_string();
    fs::write(place("data"), vec![b'x'; 120_000_000]).unwrap();
    let copy =
        |what: &str| format!("{} cp --json {}", ropewalk.display(), what.replace("{data}", &place("data")));
    let mut text = with_server(kernel);
    text += &format!(
        r#"
        [[commands]]
        name = "copies"
        host = "left"
        at = "0s"
        run = """
            {first} > {first_log}
            {second} > {second_log} &
            sleep 2
            ss --tcp --memory --numeric > {sockets}
            wait
        """
        environment = {{ XDG_CONFIG_HOME = "{{dir}}", XDG_STATE_HOME = "{{dir}}" }}
        "#,
        first = copy(first),
        second = copy(second),
        first_log = place("first"),
        second_log = place("second"),
        sockets = place("sockets"),
    );
    let told = run_scenario(&scratch, &text);
    let (memory, kernel_shows) = if here == "send" { ("tcp_wmem", ",tb") } else { ("tcp_rmem", ",rb") };
    for run in ["first", "second"] {
        let log = fs::read_to_string(place(run)).unwrap();
        let end: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
        let tuned = &end["tuned"][0];
        let why = tuned["buffers"].as_str().unwrap_or_default();
        let told =
            why.contains(&format!("{here} buffer set to")) && why.contains(&format!("net.ipv4.{memory}"));
        assert!(told, "{log}");
        assert_eq!(tuned["buffers_matter"], true);
    }
    // The kernel reports twice the size that is set, and its autotuning ends at 64 KiB.
    let sockets = fs::read_to_string(place("sockets")).unwrap();
    let sizes =
        sockets.split(kernel_shows).skip(1).filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert!(sizes.filter(|size| *size > 100_000).count() >= 8, "{sockets}");
    // The server is asked to set its buffers too.
    assert!(told.contains("ABUF: left to kernel autotuning, nothing is known of the path yet"), "{told}");
    let set = told
        .split("ABUF: ")
        .any(|line| line.lines().next().unwrap().contains(&format!("{here} buffer set to")));
    assert!(set, "{told}");
}

/// A transfer's measurements of a path set the buffers of the next transfer's connections if the
/// kernel would leave them too small.
#[test]
fn small_send_buffers_are_set_and_reported() {
    let place = "ftp://{addr:right}:{port:ropewalk}/dev/null";
    second_has_buffers(
        "send",
        r#"tcp_wmem = ["4 KiB", "16 KiB", "64 KiB"]"#,
        [&format!("zero:200M {place}"), &format!("zero:60M {place}")],
    );
}

/// The same for the buffers of a receiving client.
#[test]
fn small_receive_buffers_are_set_and_reported() {
    let copy = "ftp://{addr:right}:{port:ropewalk}{data} /dev/null";
    second_has_buffers("receive", r#"tcp_rmem = ["4 KiB", "32 KiB", "64 KiB"]"#, [copy, copy]);
}

/// A disk that is slower than the path is named as the bottleneck and gets no more streams, at the
/// server as well as at the client.
#[test]
fn limiting_end_is_named() {
    let _alone = alone();
    for (scenario, way, limit) in [
        ("slow-disk-source", &[][..], "the limit is the peer"),
        ("slow-disk-destination", &["--put"], "the limit is the disk"),
    ] {
        // The second or third decision reports it, after ten seconds each; on a busy machine a
        // later one does.
        let arguments = [&["--size", "1G", "--limit", "45s"], way].concat();
        let Some(result) = run_lab(scenario, "ropewalk --json", &arguments) else { return };
        let command = &result["commands"][0];
        let told = tuned(command["stdout"].as_str().unwrap());
        let named = told
            .iter()
            .any(|event| event["reason"] == "limited" && event["why"].as_str().unwrap().ends_with(limit));
        assert!(named, "{scenario}: {told:?}");
        assert!(command["streams_max"].as_u64().unwrap() <= 32, "{scenario}: {command}");
    }
}

/// A server reports how long it waits for its disk, so that the client does not attribute this time
/// to the network.
#[test]
fn slowest_part_when_the_servers_disk_is_slow_is_the_disk() {
    let _alone = alone();
    for (way, part) in [(&[][..], "source_read"), (&["--put"], "destination_write")] {
        let arguments = [&["--size", "160M", "--limit", "60s"], way].concat();
        let Some(result) = run_lab("slow-disk-source", "ropewalk --json", &arguments) else { return };
        let command = &result["commands"][0];
        assert_eq!(command["end"]["exit"], 0, "{command}");
        let events = events(command["stdout"].as_str().unwrap());
        let finished = events.last().unwrap();
        assert_eq!(finished["slowest"]["part"], part, "{way:?}: {finished}");
    }
}

/// Many files over one path: pending files of one session can be taken by sessions that would
/// finish them earlier.
#[test]
fn sessions_finish_at_about_the_same_time() {
    let text = path("100ms", "rate = \"100Mbit/s\", queue = 400", "");
    let _alone = alone();
    let scratch = Scratch::new().unwrap();
    let scenario = scratch.join("many.toml");
    fs::write(&scenario, text).unwrap();
    let arguments = ["--size", "128M", "--count", "500", "--limit", "60s"];
    let Some(result) = run_lab(scenario.to_str().unwrap(), "ropewalk --json", &arguments) else { return };
    let command = &result["commands"][0];
    assert_eq!(command["end"]["exit"], 0, "{command}");
    let events = events(command["stdout"].as_str().unwrap());
    // When nine tenths are done, each session has little in-flight work left.
    let progress: Vec<&Value> = events.iter().filter(|event| event["event"] == "progress").collect();
    let done = |event: &&&Value| event["files_done"].as_u64().unwrap() >= 450;
    let late = progress.iter().find(done).unwrap();
    let active = late["files_active"].as_u64().unwrap();
    assert!(active <= 50, "{active} files are under way: {late}");
    let asked = progress.iter().map(|event| event["files_active"].as_u64().unwrap()).max().unwrap();
    assert!(asked < 400, "{asked} of 500 files were asked for at the same time");
    let streams = tuned(command["stdout"].as_str().unwrap());
    assert!(streams.iter().all(|event| event["pipeline"].as_u64().unwrap() <= 50), "{streams:?}");
}

/// How evenly two transfers without `--polite` share takes minutes to measure; see bench/fair.
#[test]
fn polite_transfer_yields() {
    let _alone = alone();
    let Some([bold, polite]) = two_on_a_path(["", "--polite"], 30) else { return };
    assert!(polite < 0.6 * bold, "{bold} and, polite, {polite} bytes");
}

/// Beside a transfer that does not yield, another stream is added only while it gains what the
/// stated share leaves it. On a path that is shared stream by stream, the transfer takes about the
/// stated share; without the option it would add streams as long as they gain anything.
#[test]
fn stated_share_is_about_the_share_taken() {
    let _alone = alone();
    let Some([other, ours]) = two_on_a_path(["--streams 40", "--share 30%"], 75) else { return };
    let share = ours / (ours + other);
    assert!((0.1..0.55).contains(&share), "{ours} of {} bytes", ours + other);
}

/// The next transfer over the same path begins with the result of the previous one.
#[test]
fn tuning_result_of_path_is_remembered() {
    let _alone = alone();
    if no_lab() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let ropewalk = peers::ropewalk().unwrap();
    let place = |name: &str| scratch.join(name).display().to_string();
    let mut text = path("50ms", r#"rate = "100Mbit/s", queue = 500, loss = "0.3%""#, "") + &server();
    text += &format!(
        r#"
        [[commands]]
        name = "copies"
        host = "left"
        at = "0s"
        run = """
            {ropewalk} cp --json zero:180M ftp://{{addr:right}}:{{port:ropewalk}}/dev/null > {first}
            {ropewalk} cp --json zero:60M ftp://{{addr:right}}:{{port:ropewalk}}/dev/null > {second}
        """
        environment = {{ XDG_CONFIG_HOME = "{{dir}}", XDG_STATE_HOME = "{{dir}}" }}
        "#,
        ropewalk = ropewalk.display(),
        first = place("first"),
        second = place("second"),
    );
    run_scenario(&scratch, &text);
    let [first, second] = ["first", "second"].map(|run| events(&fs::read_to_string(place(run)).unwrap()));
    let of = |event: &Value| event["streams"].as_u64().unwrap();
    let begun = |run: &[Value]| {
        // Connections of the first seconds, before the first decision.
        let early = run.iter().take_while(|event| event["event"] != "tuned");
        early.filter(|event| event["event"] == "progress").map(of).max().unwrap()
    };
    let found = of(first.iter().rfind(|event| event["event"] == "tuned").unwrap());
    assert!(begun(&first) == UNTUNED_STREAMS && found > 2 * UNTUNED_STREAMS, "{first:?}");
    assert!(begun(&second) > 2 * UNTUNED_STREAMS, "{found} were found: {second:?}");
    assert_eq!(
        second.iter().find(|event| event["event"] == "tuned").unwrap()["reason"],
        "remembered",
        "{second:?}"
    );
}

/// Only the sending server sees the loss between two servers, and reports it to the client. Loss
/// selects BBR if that is allowed.
#[test]
fn loss_between_servers_is_reported_to_client() {
    // One packet in a hundred is lost.
    let text = path("40ms", "rate = \"100Mbit/s\", queue = 500, loss = \"1%\"", "");
    let _alone = alone();
    let scratch = Scratch::new().unwrap();
    let scenario = scratch.join("lossy.toml");
    fs::write(&scenario, text).unwrap();
    let program = "ropewalk-third --json --congestion bbr,cubic";
    let Some(result) = run_lab(scenario.to_str().unwrap(), program, &["--size", "200M", "--limit", "12s"])
    else {
        return;
    };
    let command = &result["commands"][0];
    let told = tuned(command["stdout"].as_str().unwrap());
    assert!(told.iter().any(|event| event["congestion_control"] == "bbr"), "{command}");
}

/// Without tuning there is no selection: the sender uses the named congestion control.
#[test]
fn named_congestion_control_with_fixed_streams_is_used() {
    let _alone = alone();
    let scratch = Scratch::new().unwrap();
    let scenario = scratch.join("reno.toml");
    let text = path("10ms", "rate = \"200Mbit/s\", queue = 500", "");
    fs::write(&scenario, text.replace("\"cubic\"", "\"reno\"")).unwrap();
    for (program, way, sender) in [
        ("ropewalk --streams 4 --congestion bbr,cubic", &["--put"][..], "left"),
        ("ropewalk --streams 1 --congestion bbr", &["--put"], "left"),
        ("ropewalk --tuner fixed --congestion bbr", &["--put"], "left"),
        ("ropewalk-choice --streams 4 --congestion bbr", &[], "right"),
        ("ropewalk-choice --mode stream --congestion bbr --streams 1", &[], "right"),
    ] {
        let arguments = [&["--size", "16M"], way].concat();
        let Some(result) = run_lab(scenario.to_str().unwrap(), program, &arguments) else { return };
        let connections = result["connections"].as_array().unwrap();
        let sends = |connection: &&Value| {
            connection["host"] == sender && connection["sent"].as_u64().unwrap() > 1 << 18
        };
        let used: Vec<&Value> = connections.iter().filter(sends).map(|one| &one["congestion"]).collect();
        assert!(!used.is_empty() && used.iter().all(|name| *name == "bbr"), "{program}: {used:?}");
    }
    // If the server does not let clients choose, the user gets a warning.
    let program = "ropewalk --streams 4 --congestion bbr";
    let Some(result) = run_lab(scenario.to_str().unwrap(), program, &["--size", "1M"]) else { return };
    let told = result["commands"][0]["stderr"].as_str().unwrap();
    assert!(told.contains("--congestion bbr has no effect"), "{told}");
}

/// A complete match on a random path.
#[test]
fn match_on_random_path_is_recorded_once() {
    if no_lab() {
        return;
    }
    let _alone = alone();
    let scratch = Scratch::new().unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(peers::ropewalk().unwrap());
        command.args(["lab", "match", "--random", "1", "--seed", LIGHT, "--streams", "1,2", "--beside", "1"]);
        command.args(["--seconds", "2", "--coarse", "1", "--repeat", "1", "--json", "--quiet", "--output"]);
        let output = command.arg(scratch.join("match.jsonl")).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let results = run(&["--jobs", "2"]);
    let row = &results["rows"][0];
    assert!(row["scenario"].as_str().unwrap().contains("[links.path]"), "{results}");
    assert_eq!(row["swept"].as_array().unwrap().len(), 2, "{results}");
    for figures in [&row["best"][1], &row["programs"][0][1]] {
        assert!(figures["goodput"].as_f64().unwrap() > 0.0 && figures["runs"] == 1, "{results}");
        assert!(figures["beside"].as_f64().unwrap() > 0.0, "{results}");
    }
    assert!(row["alone"].as_f64().unwrap() > 0.0 && results["scores"][0]["paths"] == 1, "{results}");
    // All results are recorded, so nothing runs again.
    let records = || fs::read_to_string(scratch.join("match.jsonl")).unwrap().lines().count();
    let (before, again) = (records(), run(&[]));
    assert_eq!((before, records()), (2 + 1 + 2 + 1, before));
    assert_eq!(run(&["--report-only"]), again);
    // The last digit of a number may change when it is written and read.
    let goodput = |results: &Value| results["rows"][0]["best"][1]["goodput"].as_f64().unwrap();
    assert!((goodput(&again) / goodput(&results) - 1.0).abs() < 1e-12, "{again}");
}

/// The seed of a slow path without loss and cross traffic.
const LIGHT: &str = "0";
