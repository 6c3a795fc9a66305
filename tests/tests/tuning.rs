//! Transfers over long paths, tuned while they run: in the WAN lab, which needs root.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use parking_lot::{Mutex, MutexGuard};
use ropewalk_tests::peers;
use ropewalk_tests::scratch::Scratch;
use serde_json::Value;

/// The paths want the machine for themselves.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// There can be none here, which is said.
fn no_lab() -> bool {
    let can = rustix::process::geteuid().is_root() && fs::exists("/dev/net/tun").unwrap_or(false);
    !can && peers::skip("the lab needs root and /dev/net/tun")
}

/// Runs `program` on a path of 200 Mbit/s and 60 ms whose hosts allow windows of 64 KiB, so that only streams help. Gives the
/// most connections that it had at the same time, and bits of payload a second.
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

/// What a lab made of this scenario says of this program; `None` where there can be none.
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

/// Runs all commands of a scenario; gives what the lab says of it as JSON.
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

/// What `--json` wrote.
fn events(log: &str) -> Vec<Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The decisions among it.
fn tuned(log: &str) -> Vec<Value> {
    events(log).into_iter().filter(|event| event["event"] == "tuned").collect()
}

/// Eight streams carry 85 Mbit/s at most.
const UNTUNED_STREAMS: u64 = 8;
const UNTUNED: f64 = 90e6;

#[test]
fn streams_come_while_a_file_is_fetched() {
    let _alone = alone();
    let Some((streams, rate)) = on_small_buffers("ropewalk", &[]) else { return };
    assert!(streams > 2 * UNTUNED_STREAMS && rate > 1.1 * UNTUNED, "{streams} connections, {rate} bit/s");
    let (streams, rate) = on_small_buffers("ropewalk --tuner fixed", &[]).unwrap();
    assert!(streams <= UNTUNED_STREAMS + 2 && rate < UNTUNED, "{streams} connections, {rate} bit/s");
}

#[test]
fn no_more_streams_than_allowed() {
    let _alone = alone();
    // A server that is not ours gets sessions instead, each with a control connection.
    for (program, way, most) in
        [("ropewalk", &[][..], 5), ("ropewalk", &["--put"], 5), ("ropewalk-gct", &[], 6)]
    {
        let program = format!("{program} --max-streams 3");
        let Some((streams, rate)) = on_small_buffers(&program, way) else { return };
        assert!(streams <= most && rate < 34e6, "{program} {way:?}: {streams} connections, {rate} bit/s");
    }
}

#[test]
fn streams_come_while_a_file_is_sent() {
    let _alone = alone();
    for program in ["ropewalk", "ropewalk-gct"] {
        let Some((streams, rate)) = on_small_buffers(program, &["--put"]) else { return };
        assert!(streams > 2 * UNTUNED_STREAMS && rate > 1.1 * UNTUNED, "{program}: {streams}, {rate} bit/s");
    }
}

/// A sender that is not ours has a fixed number of streams for each transfer: further sessions bring further ones.
#[test]
fn sessions_come_where_streams_cannot() {
    let _alone = alone();
    let Some((streams, rate)) = on_small_buffers("ropewalk-gct", &[]) else { return };
    assert!(streams > 2 * UNTUNED_STREAMS && rate > 1.1 * UNTUNED, "{streams} connections, {rate} bit/s");
}

#[test]
fn streams_come_between_two_servers() {
    let _alone = alone();
    for program in ["ropewalk-third", "ropewalk-third-gct"] {
        // The client has no data connections of its own.
        let Some((_, rate)) = on_small_buffers(program, &[]) else { return };
        assert!(rate > 1.1 * UNTUNED, "{program}: {rate} bit/s");
    }
}

/// Nothing gets through for some seconds in the middle. No tuner, time limit or retry may make a failure of that.
#[test]
fn a_path_that_dies_and_returns() {
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

/// A scenario of two hosts, `left` and `right`, with a path between them: its round trip and what is the same in both directions.
/// `kernel` are further settings of both hosts.
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

/// A server of ours at the right end of a path.
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

/// A path of 100 Mbit/s and 50 ms with it.
fn with_server(kernel: &str) -> String {
    path("50ms", r#"rate = "100Mbit/s", queue = 500"#, kernel) + &server()
}

/// Two uploads from the same host over one path, each with its options, for so many seconds: what each moved from 60 to 90 % of that
/// time, in bytes.
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
        // They come at regular intervals.
        let bytes: Vec<f64> = events
            .filter(|event| event["event"] == "progress")
            .map(|event| event["bytes"].as_f64().unwrap())
            .collect();
        assert!(bytes.len() > 20, "{log}");
        bytes[bytes.len() * 9 / 10] - bytes[bytes.len() * 6 / 10]
    }))
}

/// Two transfers over one path, from the first of which is known what buffers of the second are to be set to: those to `here`, `"send"` or
/// `"receive"`. `kernel` ends their autotuning at 64 KiB.
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
    // The kernel shows twice of what is set, and what it tunes ends at the 64 KiB.
    let sockets = fs::read_to_string(place("sockets")).unwrap();
    let sizes =
        sockets.split(kernel_shows).skip(1).filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert!(sizes.filter(|size| *size > 100_000).count() >= 8, "{sockets}");
    // The server is asked to do so, too.
    assert!(told.contains("ABUF: left to kernel autotuning, nothing is known of the path yet"), "{told}");
    let set = told
        .split("ABUF: ")
        .any(|line| line.lines().next().unwrap().contains(&format!("{here} buffer set to")));
    assert!(set, "{told}");
}

/// What a transfer shows of a path makes the buffers of the next one's connections, where the kernel would leave them too small.
#[test]
fn buffers_that_do_not_suffice_are_set_and_told() {
    let place = "ftp://{addr:right}:{port:ropewalk}/dev/null";
    second_has_buffers(
        "send",
        r#"tcp_wmem = ["4 KiB", "16 KiB", "64 KiB"]"#,
        [&format!("zero:200M {place}"), &format!("zero:60M {place}")],
    );
}

/// The same where what comes is received.
#[test]
fn buffers_that_do_not_suffice_are_set_where_data_arrives() {
    let copy = "ftp://{addr:right}:{port:ropewalk}{data} /dev/null";
    second_has_buffers("receive", r#"tcp_rmem = ["4 KiB", "32 KiB", "64 KiB"]"#, [copy, copy]);
}

/// A disk that gives or takes less than the path carries is named, and gets no more streams for it: the server's as the peer's.
#[test]
fn the_end_that_is_the_limit_is_named() {
    let _alone = alone();
    for (scenario, way, limit) in [
        ("slow-disk-source", &[][..], "the limit is the peer"),
        ("slow-disk-destination", &["--put"], "the limit is the disk"),
    ] {
        // It is the second or third decision that says so, of ten seconds each, and on a busy machine one that comes later.
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

/// A server reports how long it waits for its disk, so that the client does not take that for the network.
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

/// Many files over one path: what one session has asked for is not kept from others that would be sooner through with it.
#[test]
fn files_in_flight_end_at_about_the_same_time() {
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
    // Of what was under way when nine tenths were done, each session has little to do.
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

/// How evenly two that are not polite share takes minutes to see: bench/fair.
#[test]
fn a_polite_one_yields() {
    let _alone = alone();
    let Some([bold, polite]) = two_on_a_path(["", "--polite"], 30) else { return };
    assert!(polite < 0.6 * bold, "{bold} and, polite, {polite} bytes");
}

/// Beside a transfer that does not give way, a stream more is added only while it gains what the stated share leaves it: of a path that is
/// shared stream for stream about that share is taken, where without it as many streams as gain anything would be.
#[test]
fn a_stated_share_is_about_what_is_taken() {
    let _alone = alone();
    let Some([other, ours]) = two_on_a_path(["--streams 40", "--share 30%"], 75) else { return };
    let share = ours / (ours + other);
    assert!((0.1..0.55).contains(&share), "{ours} of {} bytes", ours + other);
}

/// The next transfer over the same path begins with what the one before found.
#[test]
fn what_a_path_needed_is_remembered() {
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
        // Connections of the first seconds, before anything was decided.
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

/// Only the server that sends sees what is lost between two servers; it tells the client. Loss asks for BBR, where that is allowed.
#[test]
fn loss_between_two_servers_is_heard() {
    // One packet of a hundred is lost.
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

/// Where nothing is tuned there is nobody to choose: the one that is named is used, by whoever sends.
#[test]
fn a_named_congestion_control_is_used_with_a_fixed_number_of_streams() {
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
    // A server that does not let clients choose: the user is told.
    let program = "ropewalk --streams 4 --congestion bbr";
    let Some(result) = run_lab(scenario.to_str().unwrap(), program, &["--size", "1M"]) else { return };
    let told = result["commands"][0]["stderr"].as_str().unwrap();
    assert!(told.contains("--congestion bbr has no effect"), "{told}");
}

/// A match on a random path, with all that belongs to it.
#[test]
fn a_match_on_a_random_path() {
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
    // Everything is there: nothing runs again.
    let records = || fs::read_to_string(scratch.join("match.jsonl")).unwrap().lines().count();
    let (before, again) = (records(), run(&[]));
    assert_eq!((before, records()), (2 + 1 + 2 + 1, before));
    assert_eq!(run(&["--report-only"]), again);
    // The last digit of a number may change on its way through the file.
    let goodput = |results: &Value| results["rows"][0]["best"][1]["goodput"].as_f64().unwrap();
    assert!((goodput(&again) / goodput(&results) - 1.0).abs() < 1e-12, "{again}");
}

/// The seed of a slow path without loss and without cross traffic.
const LIGHT: &str = "0";
