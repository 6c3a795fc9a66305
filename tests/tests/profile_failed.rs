//! `ropewalk profile` on transfers that fail, at once or half-way, and on transfers that end almost
//! immediately.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ropewalk_tests::process::{self, Outcome, Program};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{json_schema, peers};
use rustix::process::Signal;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);
const MIB: u64 = 1 << 20;

struct Site {
    scratch: Scratch,
}

/// The messages and the reports of a transfer.
struct Told {
    code: Option<i32>,
    screen: String,
    page: String,
    profile: Value,
}

impl Site {
    fn new() -> Self {
        Self { scratch: Scratch::new().unwrap() }
    }

    fn setup(&self) -> Setup {
        let root = self.scratch.directory("root").unwrap();
        let config = self.scratch.join("server.toml");
        let text =
            "[identity]\nmapped = false\n[profiling]\nenabled = true\nusers = ['anonymous']\nperf = false\n";
        std::fs::write(&config, text).unwrap();
        Setup::new(Kind::Ropewalk, &root).argument("--config").argument(config)
    }

    fn server(&self) -> Server {
        // The server finds no sysstat, whose processes would outlive a killed server.
        self.setup().wrapper(["env", "PATH=/nowhere"]).start().unwrap()
    }

    /// Starts a server behind a proxy with this rate.
    fn slowed(&self, bytes_per_second: u64) -> (Server, Proxy) {
        let server = self.server();
        let proxy = Proxy::start(server.address()).unwrap();
        proxy.set_rate(Some(bytes_per_second));
        (server, proxy)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["profile", "--no-perf", "--no-sysstat", "--retries", "0", "--output"]);
        command.arg(self.scratch.join("profile.json")).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Told {
        let outcome = process::run(&mut self.command(arguments), LIMIT).unwrap();
        self.told(outcome.status.code())
    }

    /// Runs a transfer and calls `what` once the proxy has forwarded `bytes`.
    fn disturbed(&self, arguments: &[&str], proxy: &Proxy, bytes: u64, what: impl FnOnce(&Program)) -> Told {
        let mut program = Program::start(&mut self.command(arguments)).unwrap();
        proxy.wait_for(bytes, LIMIT).unwrap();
        what(&program);
        let status = program.wait(LIMIT).unwrap();
        self.told(status.code())
    }

    /// Returns what the written profile reports, on the screen and as a page.
    fn told(&self, code: Option<i32>) -> Told {
        let (json, page) = (self.scratch.join("profile.json"), self.scratch.join("report.html"));
        let profile: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let schema = include_str!("../../tools/profiler/profile.schema.json");
        json_schema::validate(&profile, &serde_json::from_str(schema).unwrap()).unwrap();
        let mut report = peers::ropewalk_command().unwrap();
        report.env("COLUMNS", "1000").arg("report").arg(&json).arg("--html").arg(&page);
        let screen = process::run(&mut report, LIMIT).and_then(Outcome::succeeded).unwrap().text();
        // One paragraph per line, whatever the width of the terminal.
        let screen = screen.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
        let screen = screen.collect::<Vec<_>>().join("\n");
        Told { code, screen, page: std::fs::read_to_string(&page).unwrap(), profile }
    }
}

impl Told {
    fn check(&self, code: i32, kind: &str, headline: &[&str], finding: &str) {
        let screen = &self.screen;
        assert_eq!(self.code, Some(code), "{screen}");
        let workload = &self.profile["workload"];
        assert!(workload["outcome"]["failed"].as_str().is_some_and(|why| !why.is_empty()), "{workload}");
        assert_eq!(workload["failure"], kind, "{screen}");
        let first = screen.lines().next().unwrap();
        for part in headline {
            assert!(first.contains(part), "{part}: {screen}");
        }
        assert!(screen.contains(finding), "{finding}: {screen}");
        assert!(self.page.contains("Why it failed") && self.page.contains(finding), "{finding}");
    }

    /// Returns the highest confidence in a cause that is on the screen.
    fn surest(&self) -> f64 {
        let words: Vec<&str> = self.screen.split_whitespace().collect();
        let sure = words.windows(2).filter(|pair| ["faint", "possible", "likely", "very"].contains(&pair[1]));
        sure.filter_map(|pair| pair[0].parse::<f64>().ok()).fold(0.0, f64::max)
    }

    fn moved(&self) -> u64 {
        self.profile["workload"]["bytes"].as_u64().unwrap()
    }
}

#[test]
fn transfer_that_never_begins_is_reported() {
    let site = Site::new();
    let mut server = site.server();
    let missing = site.run(&[&server.url("no-such-file"), "null:"]);
    missing.check(4, "not_found", &["Your transfer failed before any data had moved: "], "Not found");
    assert_eq!(missing.surest(), 0.0, "{}", missing.screen);
    server.kill();
    let refused = site.run(&["zero:10M", &server.url("file")]);
    refused.check(
        9,
        "unreachable",
        &["failed before any data had moved: ", "server out of reach ("],
        "Server out of reach",
    );
    assert_eq!((refused.surest(), refused.moved()), (0.0, 0), "{}", refused.screen);
}

#[test]
fn denied_destination_is_reported() {
    let site = Site::new();
    let server = site.setup().read_only().start().unwrap();
    let denied = site.run(&["zero:10M", &server.url("file")]);
    denied.check(5, "permission", &["Your transfer failed ", ": permission denied ("], "Permission denied");
    // Something may have been sent before the reply arrived.
    assert!(denied.surest() < 0.4 || seconds(&denied) > 1.0, "{}", denied.screen);
}

#[test]
fn full_disk_is_the_finding() {
    let scratch = Scratch::new().unwrap();
    let words = on_small_disk(scratch.path());
    let tried = process::run(process::command(&words[0]).args(&words[1..]).arg("true"), LIMIT);
    if tried.and_then(Outcome::succeeded).is_err()
        && peers::skip("a small file system cannot be mounted (needs root or user namespaces)")
    {
        return;
    }
    let site = Site::new();
    let setup = site.setup();
    let words = on_small_disk(&setup.root);
    let server = setup.wrapper(words).start().unwrap();
    let full = site.run(&["zero:64M", &server.url("file")]);
    // The server allocates space first, and its reply may arrive before the first byte has been
    // sent.
    let headline: &[&str] = match full.moved() {
        0 => &["Your transfer failed before any data had moved: no space left at the destination"],
        _ => &["Your transfer failed after ", " of 64.0 MiB ("],
    };
    full.check(7, "no_space", headline, "No space left at the destination");
    assert!(full.moved() < 64 * MIB, "{}", full.screen);
    assert_eq!(full.profile["workload"]["planned"], 64 * MIB);
    // The transfer was too short for any conclusion with certainty.
    assert!(full.surest() < 0.6 || seconds(&full) > 1.0, "{}", full.screen);
}

fn on_small_disk(directory: &Path) -> Vec<String> {
    let mut words = vec!["unshare".to_owned(), "--mount".into()];
    if !rustix::process::geteuid().is_root() {
        words.extend(["--user".into(), "--map-root-user".into()]);
    }
    let script = format!("mount -t tmpfs -o size=16m none '{}' && exec \"$@\"", directory.display());
    words.extend(["sh".into(), "-c".into(), script, "sh".into()]);
    words
}

fn seconds(told: &Told) -> f64 {
    told.profile["workload"]["seconds"].as_f64().unwrap()
}

#[test]
fn server_death_half_way_is_reported() {
    let site = Site::new();
    let (mut server, proxy) = site.slowed(20 * MIB);
    let url = server.url_at(proxy.address(), "file");
    let lost = site.disturbed(&["zero:1G", &url], &proxy, 8 * MIB, |_| {
        server.kill();
        proxy.cut();
    });
    lost.check(9, "connection_lost", &["Your transfer failed after ", " of 1.00 GiB ("], "Connection lost");
    assert!((1..512 * MIB).contains(&lost.moved()), "{}", lost.screen);
}

#[test]
fn stalled_data_is_reported() {
    let site = Site::new();
    let (server, proxy) = site.slowed(20 * MIB);
    let url = server.url_at(proxy.address(), "file");
    let arguments = ["--stall-limit", "1/5s", "zero:1G", &url];
    let stalled = site.disturbed(&arguments, &proxy, 8 * MIB, |_| proxy.stall(true));
    stalled.check(8, "stalled", &["Your transfer failed after ", " of 1.00 GiB ("], "Stalled");
    assert!(stalled.screen.contains("nothing had moved in the last "), "{}", stalled.screen);
    // The proxy accepts no data, and the sender's kernel measured that.
    assert!(stalled.screen.contains("the receiver took nothing any more"), "{}", stalled.screen);
    proxy.stall(false);
}

#[test]
fn interrupted_transfer_is_reported() {
    let site = Site::new();
    let (server, proxy) = site.slowed(20 * MIB);
    let url = server.url_at(proxy.address(), "file");
    let stopped = site.disturbed(&["zero:1G", &url], &proxy, 8 * MIB, |program| program.signal(Signal::INT));
    stopped.check(
        130,
        "interrupted",
        &["Your transfer was broken off after ", " of 1.00 GiB ("],
        "Broken off",
    );
    let hosts = stopped.profile["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), 2, "both ends tell what there is: {}", stopped.screen);
}

#[test]
fn very_short_transfer_has_no_finding() {
    let site = Site::new();
    let server = site.server();
    for (size, bytes) in [("zero:1", 1), ("zero:4M", 4 * MIB)] {
        let short = site.run(&[size, &server.url("file")]);
        assert_eq!((short.code, short.moved()), (Some(0), bytes), "{}", short.screen);
        // On a very busy machine the transfer may take longer.
        if seconds(&short) < 1.0 {
            let first = short.screen.lines().next().unwrap();
            assert!(first.contains("which is too short to tell what held it back"), "{}", short.screen);
            assert!(short.screen.contains("too short to tell: ") && short.surest() < 0.4, "{}", short.screen);
        }
    }
    let nothing = site.run(&["zero:0", &server.url("file")]);
    assert!(nothing.screen.starts_with("Nothing was moved"), "{}", nothing.screen);
    assert_eq!(nothing.surest(), 0.0, "{}", nothing.screen);
}

#[test]
fn unmeasured_items_are_listed_once() {
    let site = Site::new();
    let server = site.server();
    let told = site.run(&["zero:4M", &server.url("file")]);
    // Both ends are this machine, under one name.
    let list = told.page.split_once("<h3>Not measured</h3>").unwrap().1.split_once("</ul>").unwrap().0;
    let mut items: Vec<&str> = list.split("<li>").skip(1).collect();
    let all = items.len();
    items.sort_unstable();
    items.dedup();
    assert!(all == items.len() && all > 0, "{list}");
}
