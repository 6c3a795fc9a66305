//! Reservations of transfers at a time and of a rate, with a network path and alone: real programs
//! on loopback.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ropewalk_tests::control::Control;
use ropewalk_tests::process::{Outcome, Program, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::{files, peers};

const LIMIT: Duration = Duration::from_secs(120);
const USERS: [&str; 4] = ["ada", "bob", "eve", "joe"];
/// At this rate, a download of the large file lasts for minutes.
const SLOW: &str = "[[bandwidth]]\nrate = '4MB/s'\n";

/// A server that lets half of its permits and 80 % of its rate be reserved.
struct Server {
    program: Program,
    address: SocketAddr,
    root: PathBuf,
}

impl Server {
    /// `more` are further settings.
    fn start(scratch: &Scratch, name: &str, active: u32, more: &str) -> Self {
        let root = scratch.directory(name).unwrap();
        files::write_random(&root.join("small"), 1 << 20, 7).unwrap();
        files::write_sparse(&root.join("large"), 1 << 30, &[], 1).unwrap();
        let passwords = scratch.join("users");
        for user in USERS.iter().filter(|_| !passwords.exists() || name == "first") {
            let mut passwd = peers::ropewalk_command().unwrap();
            passwd.args(["passwd", "--file"]).arg(&passwords).arg(user);
            let mut child = passwd.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
            writeln!(child.stdin.take().unwrap(), "sesame").unwrap();
            assert!(child.wait().unwrap().success());
        }
        let settings = scratch.join(format!("{name}.toml"));
        let text = format!(
            "root = {root:?}\nlisten = ['127.0.0.1:0']\npassword_file = {passwords:?}\n{more}\n\
             [identity]\nmapped = false\n[tls]\nenabled = false\n[limits]\nactive = {active}\n\
             [reservations]\nstate_file = {:?}\nslots = 50\nbandwidth = 80\n",
            scratch.join(format!("{name}.reservations")),
        );
        fs::write(&settings, text).unwrap();
        let mut serve = peers::ropewalk_command().unwrap();
        let program = Program::start(serve.args(["serve", "--config"]).arg(settings)).unwrap();
        let listening = |line: &str| line.strip_prefix("Server listening at ")?.trim().parse().ok();
        let address = program.wait_for_line(LIMIT, listening).unwrap();
        Self { program, address, root }
    }

    fn url(&self, user: &str, name: &str) -> String {
        format!("ftp://{user}:sesame@{}/{name}", self.address)
    }

    fn log_in(&self, user: &str) -> Control {
        let mut control = Control::connect(self.address).unwrap();
        control.expect(format!("USER {user}"), 331).unwrap();
        control.expect("PASS sesame", 230).unwrap();
        control.expect("TYPE I", 200).unwrap();
        control
    }

    fn block(&self) -> Blocker {
        let mut control = self.log_in("eve");
        let data = control.open_data().unwrap();
        control.send("RETR large").unwrap();
        assert_eq!(control.reply().unwrap().code, 150);
        // One that takes nothing would lose its permit.
        let mut reading = data.try_clone().unwrap();
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(1..) = reading.read(&mut buffer) {}
        });
        Blocker { control, data, reader: Some(reader) }
    }

    /// The tokens of the reservations of a user.
    fn tokens(&self) -> Vec<String> {
        let listed = ropewalk(&["slots", "list", "--json", &self.url("ada", "")]).succeeded().unwrap().text();
        let of_line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["token"].as_str().unwrap().to_owned()
        };
        listed.lines().map(of_line).collect()
    }

    /// Downloads the large file as a user, and counts the bytes that have come.
    fn download(&self, user: &str, token: Option<&str>) -> Arc<AtomicU64> {
        let mut control = self.log_in(user);
        if let Some(token) = token {
            control.expect(format!("SITE SLOTS USE {token}"), 250).unwrap();
        }
        let mut data = control.open_data().unwrap();
        control.send("RETR large").unwrap();
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        thread::spawn(move || {
            let _control = control;
            let mut buffer = vec![0; 64 << 10];
            while let Ok(n @ 1..) = data.read(&mut buffer) {
                counted.fetch_add(n as u64, Ordering::Relaxed);
            }
        });
        count
    }
}

/// A download that holds a permit until it is dropped.
struct Blocker {
    control: Control,
    data: TcpStream,
    reader: Option<JoinHandle<()>>,
}

impl Drop for Blocker {
    fn drop(&mut self) {
        let _ = self.data.shutdown(Shutdown::Both);
        let _ = self.control.stream().shutdown(Shutdown::Both);
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

fn ropewalk(words: &[&str]) -> Outcome {
    run(peers::ropewalk_command().unwrap().args(words), LIMIT).unwrap()
}

/// Runs a command with a journal of paths in the directory.
fn with_journal(scratch: &Scratch, words: &[&str]) -> Outcome {
    let mut command = peers::ropewalk_command().unwrap();
    run(command.env("XDG_STATE_HOME", scratch.join("state")).args(words), LIMIT).unwrap()
}

/// A hook that does as `script` says for each event, which is in `$1`.
fn hook(scratch: &Scratch, script: &str) -> String {
    let path = scratch.join("hook");
    fs::write(&path, format!("#!/bin/sh\nread -r json\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("hook:{}", path.display())
}

#[test]
fn slots_at_both_servers_are_reserved_with_a_path_used_and_cancelled() {
    let scratch = Scratch::new().unwrap();
    let servers = ["first", "second"].map(|name| Server::start(&scratch, name, 2, SLOW));
    let [source, destination] = &servers;
    let provider = hook(&scratch, "");
    let (from, to) = (source.url("ada", "small"), destination.url("ada", "copy"));
    let (at_source, at) = (source.url("ada", ""), destination.url("ada", ""));
    let reserve =
        ["reserve", &provider, "--for", "1h", "--slots", "1", "--at", &at, "--at-source", &at_source];
    let reserved = with_journal(&scratch, &reserve).succeeded().unwrap();
    let id = reserved.text().trim().to_owned();
    assert_eq!(
        reserved.errors().matches("also reserved: 1 slot at ftp://").count(),
        2,
        "{}",
        reserved.errors()
    );
    let listed = with_journal(&scratch, &["reservations", "--json"]).succeeded().unwrap().text();
    let entry: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let parts = entry["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 2, "{entry}");
    for part in parts {
        assert_eq!((part["kind"].as_str(), part["slots"].as_u64()), (Some("slots"), Some(1)), "{entry}");
        assert!(!part["url"].as_str().unwrap().contains("sesame"), "{entry}");
    }
    let shown = with_journal(&scratch, &["reservations"]).succeeded().unwrap().text();
    assert_eq!(shown.matches(", 1 slot at ftp://").count(), 2, "{shown}");

    // Each server has one more permit, which another client holds; and one more waits.
    let _blocked = servers.each_ref().map(Server::block);
    let queued = servers.each_ref().map(|server| {
        let mut control = server.log_in("eve");
        let data = control.open_data().unwrap();
        control.send("RETR large").unwrap();
        (control, data)
    });
    with_journal(&scratch, &["cp", "--path", &format!("reserved:{id}"), &from, &to]).succeeded().unwrap();
    assert_eq!(
        fs::read(destination.root.join("copy")).unwrap(),
        fs::read(source.root.join("small")).unwrap()
    );
    drop(queued);

    let password = scratch.join("password");
    fs::write(&password, "sesame").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let password = password.display().to_string();
    with_journal(&scratch, &["cancel", "--password-file", &password, &id]).succeeded().unwrap();
    assert!(servers.iter().all(|server| server.tokens().is_empty()));
}

#[test]
fn part_that_is_refused_leaves_no_other() {
    let scratch = Scratch::new().unwrap();
    let limit = "[[bandwidth]]\nrate = '10MB/s'\n";
    let servers = [Server::start(&scratch, "first", 4, ""), Server::start(&scratch, "second", 4, limit)];
    let [source, destination] = &servers;
    let (at_source, at) = (source.url("ada", ""), destination.url("ada", ""));
    let good = hook(&scratch, "");
    let refused = |words: &[&str], texts: &[&str]| {
        let all = [&["reserve", &good, "--for", "1h"], words, &["--at", &at]].concat();
        let outcome = with_journal(&scratch, &all).failed().unwrap();
        for text in texts {
            assert!(outcome.errors().contains(text), "{text}: {}", outcome.errors());
        }
        assert!(servers.iter().all(|server| server.tokens().is_empty()));
        let left = with_journal(&scratch, &["reservations"]).succeeded().unwrap().text();
        assert_eq!(left, "");
    };
    let place = format!("{}", source.address);
    refused(&["--slots", "3"], &["nothing is reserved: 3 slots at ftp://", "2 of 2 slots"]);
    // The destination reserves it, and the source does not.
    refused(
        &["--bandwidth", "1MB/s", "--at-source", &at_source],
        &["nothing is reserved: 8Mbit/s at ftp://", &place, "no limit on the rate"],
    );
    refused(&["--slots", "2", "--bandwidth", "9MB/s"], &["8000000 of 8000000 bytes/s can be reserved"]);
    // The path is refused.
    hook(&scratch, "test $1 != hold || { echo 'no circuit' >&2; exit 1; }");
    refused(&["--slots", "2"], &["no circuit"]);
    for words in [&["--slots", "0"][..], &["--bandwidth", "0"], &["--slots", "1", "--at-source"]] {
        let all = [&["reserve", &good, "--for", "1h"], words].concat();
        assert_eq!(with_journal(&scratch, &all).failed().unwrap().status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn reserved_copy_starts_at_once_and_others_wait_for_its_slot() {
    let scratch = Scratch::new().unwrap();
    let server = Server::start(&scratch, "first", 2, SLOW);
    let at = server.url("ada", "");
    let token = ropewalk(&["slots", "reserve", &at, "--slots", "1", "--for", "1h"]).succeeded().unwrap();
    let token = token.text().trim().to_owned();
    assert_eq!(server.tokens(), std::slice::from_ref(&token));
    let blocked = server.block();
    let (url, back) = (server.url("bob", "small"), scratch.join("other").display().to_string());
    let mut waiting = peers::ropewalk_command().unwrap();
    let mut waiting = Program::start(waiting.args(["cp", &url, &back])).unwrap();
    waiting.wait_for_log(LIMIT, |log| log.contains("position 1,")).unwrap();
    let (url, back) = (server.url("ada", "small"), scratch.join("back").display().to_string());
    ropewalk(&["cp", "--source-slots-token", &token, &url, &back]).succeeded().unwrap();
    assert!(scratch.join("back").exists() && !scratch.join("other").exists());
    drop(blocked);
    assert!(waiting.wait(LIMIT).unwrap().success());
    // A reservation that has ended is no reason to fail.
    assert_eq!(ropewalk(&["slots", "release", &at, &token]).succeeded().unwrap().text(), "");
    assert_eq!(ropewalk(&["slots", "release", &at, &token]).failed().unwrap().status.code(), Some(4));
    let again = scratch.join("again").display().to_string();
    let copied = ropewalk(&["cp", "--source-slots-token", &token, &url, &again]);
    let copied = copied.succeeded().unwrap();
    assert!(copied.errors().contains("the reservation of slots is not used"), "{}", copied.errors());
}

/// Moves the end of the reserved time of the only path in the journal to the past.
fn let_pass(scratch: &Scratch) {
    let is_entry = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "json");
    let files = fs::read_dir(scratch.join("state/ropewalk/paths")).unwrap();
    let path = files.map(|file| file.unwrap().path()).find(is_entry).unwrap();
    let mut entry: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    entry["request"]["until"]["secs"] = 1.into();
    fs::write(&path, entry.to_string()).unwrap();
}

#[test]
fn parts_whose_time_is_over_have_ended_and_others_are_not_released() {
    let scratch = Scratch::new().unwrap();
    let server = Server::start(&scratch, "first", 4, SLOW);
    let (at, provider) = (server.url("ada", ""), hook(&scratch, ""));
    let reserve = ["reserve", &provider, "--for", "1h", "--slots", "1", "--at", &at];
    with_journal(&scratch, &reserve).succeeded().unwrap();
    let_pass(&scratch);
    let over = with_journal(&scratch, &["reservations"]).succeeded().unwrap();
    let ended = "ended with its time: 1 slot at ftp://";
    assert!(over.errors().contains(ended) && !over.errors().contains("not released"), "{}", over.errors());
    assert_eq!(over.text(), "");

    let reserved = with_journal(&scratch, &reserve).succeeded().unwrap().text();
    let forgotten = with_journal(&scratch, &["cancel", "--forget", reserved.trim()]).succeeded().unwrap();
    let hangs = "not released: 1 slot: ropewalk slots release ftp://";
    assert!(forgotten.errors().contains(hangs), "{}", forgotten.errors());
    assert!(!forgotten.errors().contains("ended"), "{}", forgotten.errors());
}

#[test]
fn window_begins_at_its_time_or_just_after_but_never_before() {
    let scratch = Scratch::new().unwrap();
    let server = Server::start(&scratch, "first", 4, SLOW);
    let at = server.url("ada", "");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // The last full minute of the next hour.
    let wanted = (now() / 60 + 59) * 60;
    let from = format!("{:02}:{:02}Z", wanted / 3600 % 24, wanted / 60 % 60);
    let provider = hook(&scratch, "");
    let window = ["--slots", "1", "--from", &from, "--for", "1h"];
    ropewalk(&[&["slots", "reserve", &at], &window[..]].concat()).succeeded().unwrap();
    let with_path = [&["reserve", &provider, "--at", &at], &window[..]].concat();
    with_journal(&scratch, &with_path).succeeded().unwrap();
    let listed = ropewalk(&["slots", "list", "--json", &at]).succeeded().unwrap().text();
    let lines: Vec<serde_json::Value> =
        listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{listed}");
    for line in lines {
        let time = |name: &str| line[name].as_u64().unwrap();
        assert!((wanted..wanted + 3).contains(&time("from")), "{line} instead of {wanted}");
        assert_eq!(time("until"), time("from") + 3600, "{line}");
        // Kept to the end of the window, or of the path.
        assert!((wanted + 3600..=time("until")).contains(&time("lease")), "{line} instead of {wanted}");
    }
}

#[test]
fn administrator_sees_what_is_reserved_now_for_whom_and_until_when() {
    let scratch = Scratch::new().unwrap();
    let socket = scratch.join("admin");
    let settings = format!(
        "{SLOW}[[bandwidth]]\nrate = '3MB/s'\nuser = 'bob'\n[admin]\nsocket = {:?}\n",
        socket.display().to_string()
    );
    let server = Server::start(&scratch, "first", 8, &settings);
    let socket = socket.display().to_string();
    let admin = |what: &str, more: &[&str]| {
        ropewalk(&[&["admin", "--socket", &socket, what], more].concat()).succeeded().unwrap().text()
    };
    // Those of a kind, in the order of the list.
    let list = |what: &str, kind: &str| {
        let text = admin(what, &["--json"]);
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.filter(|line| line["kind"] == kind).collect::<Vec<_>>()
    };
    assert_eq!((&list("load", "resource")[0]["reserved"], list("load", "reservation").len()), (&0.into(), 0));

    let reserve = |user: &str, words: &[&str]| {
        let at = server.url(user, "");
        let all = [&["slots", "reserve", "--for", "1h", &at], words].concat();
        ropewalk(&all).succeeded().unwrap().text().trim().to_owned()
    };
    let token = reserve("ada", &["--slots", "2", "--bandwidth", "2MB/s"]);
    reserve("bob", &["--bandwidth", "1MB/s"]);
    reserve("eve", &["--slots", "1"]);
    // One whose window has not begun.
    let later = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600 + 2) * 3600;
    reserve("joe", &["--slots", "1", "--from", &format!("{:02}:00Z", later / 3600 % 24)]);
    let moved = server.download("ada", Some(&token));
    let began = Instant::now();
    while moved.load(Ordering::Relaxed) == 0 {
        assert!(began.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(20));
    }

    assert_eq!(list("load", "resource")[0]["reserved"], 3);
    let shown = |what: &str| {
        let mut all = list(what, "reservation");
        all.sort_by_key(|line| line["user"].to_string());
        let text = |line: &serde_json::Value| {
            format!("{} {} {} {}", line["user"], line["slots"], line["used"], line["rate"])
        };
        (all.iter().map(text).collect::<Vec<_>>(), all)
    };
    let (text, all) = shown("load");
    assert_eq!(text, ["\"ada\" 2 1 2000000", "\"eve\" 1 0 0"]);
    let until = all[0]["until"].as_u64().unwrap();
    assert!((3600..=3601).contains(&(until - all[0]["from"].as_u64().unwrap())), "{all:?}");
    assert_eq!(shown("limits").0, ["\"ada\" 2 1 2000000", "\"bob\" 0 0 1000000"]);
    let limits = list("limits", "limit");
    let reserved: Vec<_> = limits.iter().map(|limit| limit["reserved"].as_u64().unwrap()).collect();
    assert_eq!(reserved, [3_000_000, 1_000_000]);
    for (what, row) in [("load", "eve "), ("limits", "bob ")] {
        let table = admin(what, &[]);
        let wanted = ["RESERVED FOR", "UNTIL (UTC)", "\nada ", row];
        assert!(wanted.iter().all(|text| table.contains(text)) && !table.contains("joe"), "{table}");
    }
}

#[test]
fn reserved_rate_is_had_beside_three_greedy_copies_and_lent_while_it_is_not_used() {
    let scratch = Scratch::new().unwrap();
    let server = Server::start(&scratch, "first", 8, "[[bandwidth]]\nrate = '10MB/s'\n");
    let at = server.url("ada", "");
    let reserve = ["slots", "reserve", &at, "--bandwidth", "7MB/s", "--for", "1h"];
    let token = ropewalk(&reserve).succeeded().unwrap().text().trim().to_owned();
    let greedy = ["bob", "eve", "joe"].map(|user| server.download(user, None));
    let rates = |counters: &[&Arc<AtomicU64>]| {
        let read = || counters.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let (before, began) = (read(), Instant::now());
        while began.elapsed() < Duration::from_secs(3) {
            thread::sleep(Duration::from_millis(50));
        }
        let seconds = began.elapsed().as_secs_f64();
        read().iter().zip(before).map(|(after, before)| (after - before) as f64 / seconds).collect::<Vec<_>>()
    };
    let wait_for = |count: &AtomicU64| {
        let (began, before) = (Instant::now(), count.load(Ordering::Relaxed));
        while count.load(Ordering::Relaxed) < before + (4 << 20) {
            assert!(began.elapsed() < LIMIT);
            thread::sleep(Duration::from_millis(20));
        }
    };
    greedy.iter().for_each(|count| wait_for(count));
    let lent: f64 = rates(&greedy.each_ref()).iter().sum();
    // Fairly it would have a quarter.
    let reserved = server.download("ada", Some(&token));
    wait_for(&reserved);
    let [a, b, c] = &greedy;
    let all = rates(&[&reserved, a, b, c]);
    println!("lent {lent:.0}, then {all:.0?} bytes/s, of which the first has 7000000 reserved");
    let sum: f64 = all.iter().sum();
    assert!((9e6..11e6).contains(&lent) && (9e6..11e6).contains(&sum), "{lent} {sum}");
    // One stream on a busy host may ask too late for all of it.
    assert!(all[0] > 4e6, "{all:?}");
    drop(server.program);
}
