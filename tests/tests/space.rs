//! Quotas: real programs on loopback.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ropewalk_tests::client::{Client, Copy};
use ropewalk_tests::control::{Control, connect_data};
use ropewalk_tests::files::write_random;
use ropewalk_tests::peers;
use ropewalk_tests::process::{Program, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::small_disk::{can_mount, on_small_disk};

const LIMIT: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;

/// A server whose directory `data` has quotas.
struct Site {
    scratch: Scratch,
    server: Server,
}

impl Site {
    /// `limits` are the lines of the quota.
    fn new(limits: &str) -> Self {
        Self::with("", limits)
    }

    /// `settings` are further lines of `[space]`.
    fn with(settings: &str, limits: &str) -> Self {
        let scratch = Scratch::new().unwrap();
        let root = scratch.directory("root").unwrap();
        fs::create_dir(root.join("data")).unwrap();
        fs::set_permissions(root.join("data"), fs::metadata(&root).unwrap().permissions()).unwrap();
        let text = format!(
            "[space]\nstate_directory = {:?}\n{settings}\n[[quota]]\nname = \"q\"\ntree = {:?}\n{limits}\n",
            scratch.join("state"),
            root.join("data"),
        );
        let config = scratch.join("server.toml");
        fs::write(&config, text).unwrap();
        let server = Setup::new(Kind::Ropewalk, &root).argument("--config").argument(config).start().unwrap();
        let mut site = Self { scratch, server };
        site.wait_for_count();
        site
    }

    fn wait_for_count(&mut self) {
        let counted = |log: &str| log.contains("files counted");
        self.server.program().wait_for_log(LIMIT, counted).unwrap();
    }

    fn control(&self) -> Control {
        let mut control = Control::log_in(self.server.address()).unwrap();
        control.expect("CWD /data", 250).unwrap();
        control
    }

    fn data(&self, name: &str) -> PathBuf {
        self.server.root().join("data").join(name)
    }

    fn source(&self, size: u64) -> PathBuf {
        let path = self.scratch.join("source");
        write_random(&path, size, 7).unwrap();
        path
    }
}

/// All files beneath a directory, in bytes.
fn sum(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| entry.metadata().unwrap().len()).sum()
}

#[test]
fn upload_that_cannot_fit_is_refused_with_free_space() {
    let site = Site::new("bytes = 1000\nfiles = 3");
    let mut control = site.control();
    assert_eq!(control.store("one", &[1; 600]).unwrap().code, 226);
    // Refused before data flows.
    control.expect("ALLO 500", 200).unwrap();
    let refused = control.store("two", &[2; 500]).unwrap();
    assert_eq!(refused.code, 552, "{}", refused.text);
    assert!(refused.text.contains("c=QUOTA_EXCEEDED"), "{}", refused.text);
    assert!(
        refused.text.contains("Quota q: 400 of 1000 bytes are free, and 500 more are needed."),
        "{}",
        refused.text
    );
    let huge = u64::MAX;
    control.expect(format!("ALLO {huge}"), 200).unwrap();
    assert_eq!(control.store("two", b"2").unwrap().code, 552);
    assert!(!site.data("two").exists());
    // Stopped at the limit.
    assert_eq!(control.store("two", &[2; 401]).unwrap().code, 552);
    assert!(!site.data("two").exists() && sum(&site.data("")) == 600);
    assert_eq!(control.store("two", &[2; 400]).unwrap().code, 226);
    // A replacement needs room beside the old file.
    assert_eq!(control.store("two", b"2").unwrap().code, 552);
    control.expect("DELE one", 250).unwrap();
    assert_eq!(control.store("two", b"2").unwrap().code, 226);
    assert_eq!(control.store("one", &[1; 999]).unwrap().code, 226);
    // The third file is the last one; one that is not counted goes elsewhere.
    control.expect("DELE one", 250).unwrap();
    for name in ["three", "four"] {
        assert_eq!(control.store(name, b"3").unwrap().code, 226);
    }
    let refused = control.store("five", b"5").unwrap();
    assert!(refused.text.contains("0 of 3 files are free"), "{}", refused.text);
    assert_eq!(control.store("/five", &[5; 2000]).unwrap().code, 226);
    control.expect("RNFR /five", 350).unwrap();
    control.expect("RNTO /data/two", 552).unwrap();
}

#[test]
fn client_with_refused_upload_ends_with_code_for_space() {
    let site = Site::new("bytes = \"3M\"");
    let source = site.source(4 * MIB);
    let copy = Copy::new(&source, site.server.url("data/big"));
    let outcome = Client::Ropewalk.run(&copy).unwrap().failed().unwrap();
    assert_eq!(outcome.status.code(), Some(7), "{}", outcome.errors());
    assert!(outcome.text().contains("of 3145728 bytes are free"), "{}", outcome.text());
    assert_eq!(sum(&site.data("")), 0);
    let source = site.source(3 * MIB);
    Client::Ropewalk.run(&Copy::new(&source, site.server.url("data/big"))).unwrap().succeeded().unwrap();
}

#[test]
fn accounts_after_crash_equal_files() {
    let mut site = Site::new("bytes = 10000000");
    let mut control = site.control();
    assert_eq!(control.store("whole", &[1; 1000]).unwrap().code, 226);
    // A part file of five million bytes stays.
    let address = control.passive().unwrap();
    control.send("STOR part").unwrap();
    let mut data = connect_data(address).unwrap();
    data.write_all(&vec![2; 5_000_000]).unwrap();
    let deadline = std::time::Instant::now() + LIMIT;
    while sum(&site.data("")) < 5_001_000 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    site.server.kill();
    for damage in [false, true] {
        if damage {
            site.server.kill();
            fs::write(site.scratch.join("state/space.ledger"), "ropewalk space ledger 1\n00000000 {}")
                .unwrap();
        }
        site.server.restart().unwrap();
        site.wait_for_count();
        let mut control = site.control();
        control.expect("ALLO 9000000", 200).unwrap();
        let refused = control.store("more", b"x").unwrap();
        let free = 10_000_000 - sum(&site.data(""));
        assert!(refused.text.contains(&format!("{free} of 10000000 bytes are free")), "{}", refused.text);
    }
}

#[test]
fn each_directory_has_its_own_account() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    let text = format!(
        "[space]\nstate_directory = {:?}\n[[quota]]\nname = \"home\"\ntree = {:?}\nbytes = 100\n",
        scratch.join("state"),
        root.join("*"),
    );
    let config = scratch.join("server.toml");
    fs::write(&config, text).unwrap();
    let server = Setup::new(Kind::Ropewalk, &root).argument("--config").argument(config).start().unwrap();
    let mut control = Control::log_in(server.address()).unwrap();
    for directory in ["ann", "bob"] {
        control.expect(format!("MKD {directory}"), 257).unwrap();
        assert_eq!(control.store(&format!("{directory}/f"), &[0; 100]).unwrap().code, 226);
    }
    let refused = control.store("bob/g", b"x").unwrap();
    assert!(refused.text.contains("Quota home of bob: 0 of 100"), "{}", refused.text);
    control.expect("RNFR bob/f", 350).unwrap();
    control.expect("RNTO ann/g", 552).unwrap();
    control.expect("RNFR bob", 350).unwrap();
    assert!(control.command("RNTO carl").unwrap().text.contains("copy it"));
    control.expect("SITE RDEL bob", 250).unwrap();
    control.expect("MKD bob", 257).unwrap();
    assert_eq!(control.store("bob/g", &[0; 100]).unwrap().code, 226);
}

/// The token and the end time of a reservation that is made.
fn reserve(control: &mut Control, arguments: &str) -> (String, String) {
    let reply = control.expect(format!("SITE SPACE RESERVE {arguments}"), 250).unwrap();
    let words: Vec<_> = reply.text.trim().split(' ').collect();
    let at = words.iter().position(|word| *word == "SPACE").unwrap();
    (words[at + 1].to_owned(), words[at + 7].to_owned())
}

#[test]
fn reservation_holds_space_until_used_released_or_expired() {
    let mut site = Site::new("bytes = 1000");
    let mut control = site.control();
    let (token, end) = reserve(&mut control, "600 60");
    assert!(token.len() == 32 && end.len() == 14, "{token} {end}");
    let refused = control.command("SITE SPACE RESERVE 401 60").unwrap();
    assert_eq!(refused.code, 552, "{}", refused.text);
    assert!(refused.text.contains("400 of 1000 bytes are free, and 401 more"), "{}", refused.text);
    let (released, _) = reserve(&mut control, "400 60 /data");
    assert_eq!(control.store("x", b"x").unwrap().code, 552);
    control.expect(format!("SITE SPACE RELEASE {released}"), 250).unwrap();
    control.expect(format!("SITE SPACE USE {released}"), 550).unwrap();

    // It survives a crash, and each byte is charged once.
    site.server.kill();
    site.server.restart().unwrap();
    site.wait_for_count();
    let mut control = site.control();
    assert_eq!(control.store("x", &[0; 401]).unwrap().code, 552);
    let used = control.expect(format!("SITE SPACE USE {token}"), 250).unwrap();
    assert!(used.text.contains(&format!("BYTES 600 LEFT 600 UNTIL {end}")), "{}", used.text);
    assert_eq!(control.store("mine", &[1; 700]).unwrap().code, 226);
    let used = control.expect(format!("SITE SPACE USE {token}"), 250).unwrap();
    assert!(used.text.contains("LEFT 0"), "{}", used.text);
    control.expect("SITE SPACE USE none", 250).unwrap();
    assert_eq!(control.store("x", &[2; 301]).unwrap().code, 552);

    // It ends by itself.
    reserve(&mut control, "300 1");
    assert_eq!(control.store("x", &[2; 300]).unwrap().code, 552);
    let deadline = std::time::Instant::now() + LIMIT;
    while control.store("x", &[2; 300]).unwrap().code != 226 {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(sum(&site.data("")), 1000);
}

#[test]
fn client_with_token_draws_on_reservation() {
    let site = Site::new("bytes = \"3M\"");
    let (token, _) = reserve(&mut site.control(), &format!("{} 60", 3 * MIB));
    let source = site.source(2 * MIB);
    let copy = Copy::new(&source, site.server.url("data/big"));
    let refused = Client::Ropewalk.run(&copy).unwrap().failed().unwrap();
    assert_eq!(refused.status.code(), Some(7), "{}", refused.errors());
    let unknown = copy.clone().argument("--space-token").argument("0123");
    let refused = Client::Ropewalk.run(&unknown).unwrap().failed().unwrap();
    assert!(refused.text().contains("no reservation with this token"), "{}", refused.text());
    let known = copy.argument("--space-token").argument(&token);
    Client::Ropewalk.run(&known).unwrap().succeeded().unwrap();
    let used = site.control().expect(format!("SITE SPACE USE {token}"), 250).unwrap();
    assert!(used.text.contains(&format!("LEFT {MIB} ")), "{}", used.text);
}

#[test]
fn space_is_reserved_listed_used_and_released_from_the_command_line() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    fs::create_dir(root.join("data")).unwrap();
    let passwords = scratch.join("users");
    let mut passwd = peers::ropewalk_command().unwrap();
    passwd.args(["passwd", "--file"]).arg(&passwords).arg("ada");
    let mut child = passwd.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "sesame").unwrap();
    assert!(child.wait().unwrap().success());
    let config = scratch.join("server.toml");
    let text = format!(
        "root = {root:?}\nlisten = ['127.0.0.1:0']\npassword_file = {passwords:?}\n\
         [identity]\nmapped = false\n[tls]\nenabled = false\n[space]\nstate_directory = {:?}\n\
         [[quota]]\nname = 'q'\ntree = {:?}\nbytes = '100MiB'\n",
        scratch.join("state"),
        root.join("data"),
    );
    fs::write(&config, text).unwrap();
    let mut serve = peers::ropewalk_command().unwrap();
    let server = Program::start(serve.args(["serve", "--config"]).arg(&config)).unwrap();
    let listening = |line: &str| line.strip_prefix("Server listening at ").map(str::to_owned);
    let address = server.wait_for_line(LIMIT, listening).unwrap();
    server.wait_for_log(LIMIT, |log| log.contains("files counted")).unwrap();
    let url = format!("ftp://ada:sesame@{address}/data/");
    let space = |arguments: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        run(command.arg("space").args(arguments), LIMIT).unwrap()
    };
    let shown = space(&["usage", &url]).succeeded().unwrap().text();
    assert_eq!(shown, "0 B used, 100 MiB free of 100 MiB\n");
    let token = space(&["reserve", &url, "60MiB", "--for", "1h"]).succeeded().unwrap().text();
    let token = token.trim();
    let listed = space(&["list", &url, "--json"]).succeeded().unwrap().text();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((listed["token"].as_str(), listed["left"].as_u64()), (Some(token), Some(60 * MIB)));
    let usage = space(&["usage", &url, "--quota", "q", "--json"]).succeeded().unwrap().text();
    let usage: serde_json::Value = serde_json::from_str(&usage).unwrap();
    assert_eq!(usage["free"], 40 * MIB, "{usage}");
    let large = scratch.join("large");
    write_random(&large, 50 * MIB, 1).unwrap();
    let copy = |options: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        run(command.args(["cp", "--quiet", "--retries", "0"]).args(options).arg(&large).arg(&url), LIMIT)
    };
    copy(&[]).unwrap().failed().unwrap();
    copy(&["--space-token", token]).unwrap().succeeded().unwrap();
    for (arguments, reason) in [
        (&["reserve", &url, "200MiB"][..], "552"),
        (&["reserve", &url, "0"], "at least 1 byte"),
        (&["reserve", &url, "1MiB", "--for", "0s"], "at least 1s"),
        (&["usage", "/tmp"], "the URL of a directory"),
        (&["release", &url, "no-such-token"], "there is no reservation"),
    ] {
        let refused = space(arguments).failed().unwrap().errors();
        assert!(refused.contains(reason) && !refused.contains("sesame"), "{refused}");
    }
    let until =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["until"].as_u64().unwrap();
    let before = until(&space(&["list", &url, "--json"]).succeeded().unwrap().text());
    for (time, refusal) in [("0s", "at least 1s"), ("100000h", "501"), ("1h", "550")] {
        let other = if time == "1h" { "no-such-token" } else { token };
        let refused = space(&["extend", &url, other, "--for", time]).failed().unwrap().errors();
        assert!(refused.contains(refusal), "{refused}");
    }
    assert_eq!(until(&space(&["list", &url, "--json"]).succeeded().unwrap().text()), before);
    let extended = space(&["extend", &url, token, "--for", "2h", "--json"]).succeeded().unwrap().text();
    assert!(until(&extended) >= before + 3500, "{extended}");
    space(&["release", &url, token]).succeeded().unwrap();
    assert_eq!(space(&["list", &url]).succeeded().unwrap().text(), "");
}

#[test]
fn space_is_reserved_together_with_a_path_and_released_with_it() {
    let site = Site::new("bytes = '100MiB'");
    let (refusing, hook) = (site.scratch.join("refusing"), site.scratch.join("hook"));
    for (hook, script) in [(&refusing, "echo no circuit >&2; exit 1"), (&hook, "exit 0")] {
        fs::write(hook, format!("#!/bin/sh\nread -r json\n{script}\n")).unwrap();
        fs::set_permissions(hook, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let ropewalk = |words: &[&str]| {
        let mut command = peers::ropewalk_command().unwrap();
        command.env("XDG_STATE_HOME", site.scratch.join("paths")).args(words);
        run(&mut command, LIMIT).unwrap()
    };
    let at = site.server.url("data/");
    let free = || {
        let usage = ropewalk(&["space", "usage", &at, "--json"]).succeeded().unwrap().text();
        serde_json::from_str::<serde_json::Value>(&usage).unwrap()["free"].as_u64().unwrap()
    };
    let reserve = |hook: &Path, space: &str| {
        let hook = format!("hook:{}", hook.display());
        ropewalk(&["reserve", &hook, "--for", "1h", "--space", space, "--at", &at])
    };
    // All or nothing.
    let refused = reserve(&refusing, "60MiB").failed().unwrap();
    assert!(refused.errors().contains("no circuit"), "{}", refused.errors());
    assert_eq!(free(), 100 * MIB);
    let refused = reserve(&hook, "101MiB").failed().unwrap();
    assert!(refused.errors().contains("552"), "{}", refused.errors());
    assert_eq!(ropewalk(&["reservations", "--json"]).succeeded().unwrap().text(), "");

    let id = reserve(&hook, "60MiB").succeeded().unwrap().text();
    let id = id.trim();
    assert_eq!(free(), 40 * MIB);
    let source = site.source(50 * MIB);
    let source = source.display().to_string();
    let copy = ["cp", "--quiet", "--retries", "0", &source, &at];
    ropewalk(&copy).failed().unwrap();
    ropewalk(&[&copy[..], &["--path", &format!("reserved:{id}")]].concat()).succeeded().unwrap();
    ropewalk(&["cancel", id]).succeeded().unwrap();
    assert_eq!(free(), 50 * MIB);
}

/// Sends `bytes` of a file of twice the size, and no more.
fn interrupt(control: &mut Control, name: &str, bytes: usize) {
    control.expect(format!("ALLO {}", 2 * bytes), 200).unwrap();
    let mut data = control.open_data().unwrap();
    control.send(format!("STOR {name}")).unwrap();
    assert_eq!(control.reply().unwrap().code, 150);
    data.write_all(&vec![1; bytes]).unwrap();
    drop(data);
    assert!(control.final_reply().unwrap().code >= 400);
}

/// Sends a command again until an interrupted upload is old enough to make room.
fn until_there_is_room(attempt: &mut dyn FnMut() -> u16) -> u16 {
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        let code = attempt();
        if code != 552 {
            return code;
        }
        assert!(std::time::Instant::now() < deadline);
    }
}

#[test]
fn old_interrupted_upload_makes_room_for_uploads_and_reservations() {
    let site = Site::with("expire_parts_after = 0.001", "bytes = 1000");
    let mut control = site.control();
    // Once with an announced size, once when the limit is reached, and once for a reservation.
    for announced in [true, false] {
        interrupt(&mut control, "old", 450);
        assert_eq!(sum(&site.data("")), 450);
        let mut attempt = || {
            if announced {
                control.expect("ALLO 600", 200).unwrap();
            }
            control.store("new", &[2; 600]).unwrap().code
        };
        assert_eq!(until_there_is_room(&mut attempt), 226);
        assert_eq!(sum(&site.data("")), 600);
        control.expect("DELE new", 250).unwrap();
    }
    interrupt(&mut control, "old", 450);
    let mut attempt = || control.command("SITE SPACE RESERVE 600 60").unwrap().code;
    assert_eq!(until_there_is_room(&mut attempt), 250);
    assert_eq!(sum(&site.data("")), 0);
    let usage = control.expect("SITE USAGE /data", 250).unwrap();
    assert!(usage.text.contains("USAGE 600 FREE 400 TOTAL 1000"), "{}", usage.text);
}

#[test]
fn old_interrupted_upload_makes_room_for_cp() {
    let site = Site::with("expire_parts_after = 0.001", "bytes = \"3M\"");
    interrupt(&mut site.control(), "old", (3 << 20) / 2);
    let source = site.source(2 * MIB);
    let copy = Copy::new(&source, site.server.url("data/new"));
    Client::Ropewalk.run(&copy).unwrap().succeeded().unwrap();
    assert_eq!(sum(&site.data("")), 2 * MIB);
}

#[test]
fn upload_that_is_younger_than_the_limit_stays() {
    let site = Site::new("bytes = 1000");
    let mut control = site.control();
    interrupt(&mut control, "old", 450);
    control.expect("ALLO 600", 200).unwrap();
    let refused = control.store("new", &[2; 600]).unwrap();
    assert!(refused.text.contains("550 of 1000 bytes are free"), "{}", refused.text);
    assert_eq!(sum(&site.data("")), 450);
}

#[test]
fn old_interrupted_upload_makes_room_on_a_full_disk() {
    const ROOM: u64 = 8 * MIB;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let served = scratch.directory("served").unwrap();
    let config = scratch.join("server.toml");
    fs::write(&config, "[space]\nexpire_parts_after = 0.001\n").unwrap();
    let setup = Setup::new(Kind::Ropewalk, &served).argument("--config").argument(config);
    let server = setup.wrapper(on_small_disk(&served, ROOM)).start().unwrap();
    let mut control = Control::log_in(server.address()).unwrap();
    interrupt(&mut control, "old", 4 << 20);
    control.expect("SIZE /.old.ropewalk-part", 213).unwrap();
    // More than there can be: the upload stays.
    control.expect(format!("ALLO {}", 9 * MIB), 200).unwrap();
    let refused = control.store("new", b"x").unwrap();
    assert!(refused.code == 552 && refused.text.contains("NO_SPACE_LEFT"), "{}", refused.text);
    control.expect("SIZE /.old.ropewalk-part", 213).unwrap();
    let mut attempt = || {
        control.expect(format!("ALLO {}", 6 * MIB), 200).unwrap();
        control.store("new", &vec![2; 6 << 20]).unwrap().code
    };
    assert_eq!(until_there_is_room(&mut attempt), 226);
    control.expect("SIZE /.old.ropewalk-part", 550).unwrap();
}

#[test]
fn second_of_two_uploads_that_fill_the_disk_together_is_refused_before_it_begins() {
    const ROOM: u64 = 8 * MIB;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let served = scratch.directory("served").unwrap();
    let server = Setup::new(Kind::Ropewalk, &served).wrapper(on_small_disk(&served, ROOM)).start().unwrap();
    let mut first = Control::log_in(server.address()).unwrap();
    first.expect(format!("ALLO {}", 5 * MIB), 200).unwrap();
    let mut data = first.open_data().unwrap();
    first.send("STOR first").unwrap();
    assert_eq!(first.reply().unwrap().code, 150);
    data.write_all(&vec![1; 2 << 20]).unwrap();
    let source = scratch.join("source");
    // A size of more than 4 MiB is announced.
    write_random(&source, 5 * MIB, 7).unwrap();
    let copy = Copy::new(&source, server.url("second")).argument("--retries=0");
    let refused = Client::Ropewalk.run(&copy).unwrap().failed().unwrap();
    assert_eq!(refused.status.code(), Some(7), "{}", refused.errors());
    assert!(refused.text().contains("that other uploads still need"), "{}", refused.text());
    data.write_all(&vec![1; 3 << 20]).unwrap();
    drop(data);
    assert_eq!(first.final_reply().unwrap().code, 226);
    first.expect("DELE first", 250).unwrap();
    Client::Ropewalk.run(&copy).unwrap().succeeded().unwrap();
}
