//! Transfers that wait for their turn at a server: their clients learn the place in the queue, and
//! clients that know nothing of queues take it for a reply of several lines.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read as _;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ropewalk_tests::control::Control;
use ropewalk_tests::files::{self, ensure_same};
use ropewalk_tests::process::{self, Program};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::small_disk::{can_mount, on_small_disk};
use ropewalk_tests::{grid, peers};

const LIMIT: Duration = Duration::from_secs(120);
const FIRST: &str = "Waiting at the server: position 1 of 1.";
/// One transfer at a time, at a rate at which it keeps its permit.
const BUSY: &str = "[limits]\nactive = 1\n[[bandwidth]]\nrate = '1MB/s'\n[admin]\nsocket = 'admin'\n";

/// A server for anonymous users that carries out one transfer at a time.
struct Server {
    scratch: Scratch,
    address: SocketAddr,
    _program: Program,
}

impl Server {
    fn new() -> Self {
        Self::with(BUSY, |_| Vec::new())
    }

    /// `wrapper` returns the beginning of a command line that runs the server, for the directory of
    /// all files.
    fn with(more: &str, wrapper: impl FnOnce(&Scratch) -> Vec<String>) -> Self {
        let scratch = Scratch::new().unwrap();
        let root = scratch.directory("root").unwrap();
        files::write_sparse(&root.join("large"), 256 << 20, &[], 1).unwrap();
        files::write_random(&root.join("small"), 10_000, 2).unwrap();
        let settings = scratch.join("server.toml");
        let text = format!(
            "root = 'root'\nlisten = ['127.0.0.1:0']\n[anonymous]\nwrite = true\nrun_as = 'server'\n\
             [tls]\nenabled = false\n{more}"
        );
        fs::write(&settings, text).unwrap();
        let mut words = wrapper(&scratch);
        words.push(peers::ropewalk().unwrap().display().to_string());
        let mut serve = process::command(&words[0]);
        serve.args(&words[1..]).args(["serve", "--config"]).arg(settings);
        let program = Program::start(&mut serve).unwrap();
        let listening = |line: &str| line.strip_prefix("Server listening at ")?.trim().parse().ok();
        let address = program.wait_for_line(LIMIT, listening).unwrap();
        Self { scratch, address, _program: program }
    }

    fn url(&self, name: &str) -> String {
        format!("ftp://{}/{name}", self.address)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.join("root").join(name)
    }

    fn wait_for_place(&self) {
        wait_for_place(&self.scratch.join("admin"));
    }
}

/// Waits until a client at the server with this admin socket knows its place.
fn wait_for_place(socket: &Path) {
    let began = Instant::now();
    loop {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["admin", "--socket"]).arg(socket).arg("sessions");
        let sessions = process::run(&mut command, LIMIT).unwrap().succeeded().unwrap().text();
        if sessions.contains("waiting, position 1") {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{sessions}");
    }
}

/// A download that has the only permit until it is dropped.
struct Blocker {
    control: Control,
    data: TcpStream,
    reader: Option<JoinHandle<()>>,
}

impl Blocker {
    fn new(server: &Server) -> Self {
        let mut control = Control::log_in(server.address).unwrap();
        control.expect("TYPE I", 200).unwrap();
        let data = control.open_data().unwrap();
        control.send("RETR large").unwrap();
        assert_eq!(control.reply().unwrap().code, 150);
        let mut reading = data.try_clone().unwrap();
        let reader = thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(1..) = reading.read(&mut buffer) {}
        });
        Self { control, data, reader: Some(reader) }
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        let _ = self.data.shutdown(Shutdown::Both);
        let _ = self.control.stream().shutdown(Shutdown::Both);
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

/// One transfer at a time moves slowly enough to be there for long. More may begin.
const SLOW: &str = "[[bandwidth]]\nrate = '1MB/s'\n[admin]\nsocket = 'admin'\n";

/// Returns the beginning of a command line that runs a program which reads `pressure` and `meminfo`
/// of the directory in place of the files in /proc, and has no control group. `None`, after a
/// message: this machine does not permit mounts, or has no pressure stall information.
fn with_readings(scratch: &Scratch) -> Option<Vec<String>> {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    fs::write(scratch.join("meminfo"), meminfo).unwrap();
    set_pressure(scratch.path(), 0);
    let empty = scratch.directory("empty").unwrap();
    let at = scratch.path().display();
    let mut words = vec!["unshare".to_owned(), "--mount".into()];
    if !rustix::process::geteuid().is_root() {
        words.extend(["--user".into(), "--map-root-user".into()]);
    }
    let script = format!(
        "mount --bind {} /sys/fs/cgroup && mount --bind {at}/meminfo /proc/meminfo && \
         mount --bind {at}/pressure /proc/pressure/cpu && exec \"$@\"",
        empty.display()
    );
    words.extend(["sh".into(), "-c".into(), script, "sh".into()]);
    let run = process::run(process::command(&words[0]).args(&words[1..]).arg("true"), LIMIT);
    if run.and_then(process::Outcome::succeeded).is_ok() {
        return Some(words);
    }
    peers::skip("files in /proc cannot be replaced (needs root or user namespaces, and PSI)");
    None
}

fn set_pressure(directory: &Path, percent: u32) {
    let text = format!("some avg10={percent}.00 avg60=0.00 avg300=0.00 total=0\n");
    fs::write(directory.join("pressure"), text).unwrap();
}

fn set_memory(directory: &Path, kib: u32) {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let lines = meminfo.lines().map(|line| match line.starts_with("MemAvailable:") {
        true => format!("MemAvailable: {kib} kB\n"),
        false => format!("{line}\n"),
    });
    fs::write(directory.join("meminfo"), lines.collect::<String>()).unwrap();
}

/// Runs a client while another transfer has the only permit, until the client knows its place. Its
/// log has to contain `place` in the end.
fn waits_and_succeeds(server: &Server, mut command: Command, place: &str) {
    let blocker = Blocker::new(server);
    let mut client = Program::start(&mut command).unwrap();
    server.wait_for_place();
    drop(blocker);
    let status = client.wait(LIMIT).unwrap();
    let log = client.finish();
    assert!(status.success() && log.contains(place), "{command:?}: {log}");
}

fn curl(arguments: &[&str], file: &Path, url: &str) -> Command {
    let mut command = process::command("curl");
    command.args(["--silent", "--show-error", "--verbose"]).args(arguments).arg(file).arg(url);
    command
}

#[test]
fn curl_takes_the_place_in_the_queue_for_a_reply_of_several_lines() {
    if !peers::available(&["curl"]) {
        return;
    }
    let server = Server::new();
    let small = server.path("small");
    let back = server.scratch.join("back");
    waits_and_succeeds(&server, curl(&["--output"], &back, &server.url("small")), FIRST);
    ensure_same(&small, &back).unwrap();
    waits_and_succeeds(&server, curl(&["--upload-file"], &small, &server.url("new")), FIRST);
    ensure_same(&small, &server.path("new")).unwrap();
}

#[test]
fn globus_url_copy_takes_the_place_in_the_queue_for_a_reply_of_several_lines() {
    if !peers::available(&["globus-url-copy"]) {
        return;
    }
    let server = Server::new();
    let small = server.path("small");
    let back = server.scratch.join("back");
    for parallelism in [&[][..], &["-p", "2"]] {
        let guc = |from: String, to: String| {
            let mut command = process::command("globus-url-copy");
            command.arg("-dbg").args(parallelism).args([from, to]);
            command
        };
        let file = |path: &Path| format!("file://{}", path.display());
        waits_and_succeeds(&server, guc(server.url("small"), file(&back)), FIRST);
        ensure_same(&small, &back).unwrap();
        waits_and_succeeds(&server, guc(file(&small), server.url("new")), FIRST);
        ensure_same(&small, &server.path("new")).unwrap();
        fs::remove_file(&back).unwrap();
        fs::remove_file(server.path("new")).unwrap();
    }
}

#[test]
fn cp_reports_the_place_in_the_queue() {
    let server = Server::new();
    let small = server.path("small");
    let back = server.scratch.join("back");
    for options in [&["-p", "2"][..], &["--mode", "stream"]] {
        let cp = |from: &str, to: &str| {
            let mut command = peers::ropewalk_command().unwrap();
            command.args(["cp", "--json"]).args(options).args([from, to]);
            command
        };
        let (there, back_name) = (server.url("new"), back.to_str().unwrap());
        let event = |end| format!(r#""event":"queued","id":0,"server":"{end}","position":1,"waiting":1"#);
        waits_and_succeeds(&server, cp(&server.url("small"), back_name), &event("source"));
        ensure_same(&small, &back).unwrap();
        waits_and_succeeds(&server, cp(small.to_str().unwrap(), &there), &event("destination"));
        ensure_same(&small, &server.path("new")).unwrap();
        fs::remove_file(&back).unwrap();
        fs::remove_file(server.path("new")).unwrap();
    }
}

#[test]
fn transfer_that_is_aborted_or_refused_while_it_waits_ends_its_reply() {
    let server = Server::new();
    let blocker = Blocker::new(&server);
    let mut control = Control::log_in(server.address).unwrap();
    control.expect("TYPE I", 200).unwrap();
    let _data = control.open_data().unwrap();
    control.send("RETR small").unwrap();
    server.wait_for_place();
    control.send("ABOR").unwrap();
    let lines = control.reply().unwrap();
    assert_eq!((lines.code, lines.text.contains(FIRST)), (150, true), "{lines:?}");
    assert_eq!(control.reply().unwrap().code, 426);
    assert_eq!(control.reply().unwrap().code, 226);
    // The session continues. The next one waits, and finds no file.
    let _data = control.open_data().unwrap();
    control.send("RETR missing").unwrap();
    server.wait_for_place();
    drop(blocker);
    assert_eq!(control.reply().unwrap().code, 150);
    assert_eq!(control.reply().unwrap().code, 500);
    control.expect("NOOP", 200).unwrap();
}

#[test]
fn clients_with_certificates_wait_in_the_queue() {
    if !peers::available(&["globus-url-copy"]) {
        return;
    }
    let site = grid::Site::new().unwrap();
    let served = site.serve(BUSY, &[]).unwrap();
    files::write_sparse(&site.path("root/large"), 256 << 20, &[], 1).unwrap();
    files::write_random(&site.path("original"), 10_000, 2).unwrap();
    let url = |name: &str| format!("{}/{name}", served.url);
    let cp = |from: &str, to: &str| {
        let mut command = site.command().unwrap();
        command.args(["cp", "--json", "--retries", "0", from, to]);
        command
    };
    let guc = |from: &str, to: &str| {
        let mut command = process::command("globus-url-copy");
        site.environment(&mut command);
        command.args(["-dbg", from, to]);
        command
    };
    let file = |name: &str| format!("file://{}", site.path(name).display());
    for (mut command, place, to) in [
        (guc(&file("original"), &url("a")), "position 1 of 1", "root/a"),
        (cp(site.path("original").to_str().unwrap(), &url("b")), r#""event":"queued""#, "root/b"),
        (guc(&url("a"), &file("c")), "position 1 of 1", "c"),
    ] {
        let mut blocker = Program::start(&mut cp(&url("large"), "/dev/null")).unwrap();
        blocker.wait_for_log(LIMIT, |log| log.contains(r#""event":"progress","bytes":"#)).unwrap();
        let mut client = Program::start(&mut command).unwrap();
        wait_for_place(&site.path("admin"));
        blocker.kill();
        let status = client.wait(LIMIT).unwrap();
        let log = client.finish();
        assert!(status.success() && log.contains(place), "{command:?}: {log}");
        ensure_same(&site.path("original"), &site.path(to)).unwrap();
    }
}

/// `admin load`, as the name and state of each resource.
fn load(server: &Server) -> Vec<(String, bool)> {
    let mut command = peers::ropewalk_command().unwrap();
    command.args(["admin", "--socket"]).arg(server.scratch.join("admin")).args(["load", "--json"]);
    let text = process::run(&mut command, LIMIT).unwrap().succeeded().unwrap().text();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|line| (line["name"].as_str().unwrap().to_owned(), line["short"] == true)).collect()
}

#[test]
fn transfers_wait_while_memory_or_processors_are_short() {
    let limits = "[limits]\nfree_memory = '64M'\ncpu_pressure = 50\n";
    if with_readings(&Scratch::new().unwrap()).is_none() {
        return;
    }
    let server = Server::with(&format!("{limits}{SLOW}"), |scratch| with_readings(scratch).unwrap());
    let (at, small) = (server.scratch.path(), server.path("small"));
    for (resource, set, short, enough) in [
        ("memory", set_memory as fn(&Path, u32), 60_000, 70_000),
        ("processors", set_pressure as fn(&Path, u32), 90, 10),
    ] {
        set(at, short);
        let is_short = || load(&server).contains(&(resource.to_owned(), true));
        while !is_short() {}
        // One transfer runs in any case.
        let blocker = Blocker::new(&server);
        let back = server.scratch.join(resource);
        let mut client = Program::start(&mut curl(&["--output"], &back, &server.url("small"))).unwrap();
        server.wait_for_place();
        set(at, enough);
        // The other transfer goes on.
        assert!(client.wait(LIMIT).unwrap().success());
        assert!(client.finish().contains(FIRST));
        ensure_same(&small, &back).unwrap();
        assert!(!is_short());
        drop(blocker);
    }
}

#[test]
fn upload_waits_until_its_disk_has_free_space_or_its_time_is_over() {
    const MIB: usize = 1 << 20;
    if !can_mount() {
        return;
    }
    let start = |wait: &str| {
        let limits = format!("[limits]\nfree_disk = '6M'\ndisk_wait = {wait}\n{SLOW}");
        Server::with(&limits.replace("1MB/s", "off"), |scratch| {
            on_small_disk(&scratch.join("root"), 8 * MIB as u64)
        })
    };
    let server = start("600");
    let mut control = Control::log_in(server.address).unwrap();
    assert_eq!(control.store("filler", &vec![1; 4 * MIB]).unwrap().code, 226);
    let source = server.scratch.join("source");
    files::write_random(&source, 10_000, 2).unwrap();
    let mut client = Program::start(&mut curl(&["--upload-file"], &source, &server.url("new"))).unwrap();
    server.wait_for_place();
    assert!(load(&server).contains(&("disk".to_owned(), true)));
    // Downloads do not wait.
    assert_eq!(control.retrieve("filler").unwrap().0.len(), 4 * MIB);
    control.expect("DELE filler", 250).unwrap();
    assert!(client.wait(LIMIT).unwrap().success());
    assert!(client.finish().contains(FIRST));
    assert_eq!(control.retrieve("new").unwrap().0, fs::read(&source).unwrap());

    let server = start("0");
    let mut control = Control::log_in(server.address).unwrap();
    assert_eq!(control.store("filler", &vec![1; 4 * MIB]).unwrap().code, 226);
    let _data = control.open_data().unwrap();
    let refused = control.command("STOR new").unwrap();
    let least = 6 * MIB;
    assert_eq!(refused.code, 452, "{}", refused.text);
    assert!(refused.text.contains(&format!("and uploads begin when {least} are")), "{}", refused.text);
    control.expect("NOOP", 200).unwrap();
}
