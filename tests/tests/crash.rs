//! Kills clients and servers with SIGKILL at random moments and interrupts clients with Ctrl-C.
//! After a rerun every byte must be right, and few bytes may have moved twice.
//!
//! `ROPEWALK_TEST_SEED` repeats a run with the moments that it printed.

#![allow(clippy::unwrap_used)]

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, SystemTime};

use ropewalk_tests::client::{Client, Copy, Mode, Summary};
use ropewalk_tests::peers::loudly;
use ropewalk_tests::process::Program;
use ropewalk_tests::proxy::{CHUNK, Proxy};
use ropewalk_tests::random::Random;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, peers, process};
use rustix::process::Signal;

/// Large enough for a journal, and not a multiple of the block size.
const SIZE: u64 = (80 << 20) + 12_345;
/// The default block size of both programs.
const BLOCK: u64 = 1 << 20;
const RATE: u64 = 120_000_000;
/// Kills per transfer of a file; 14 files make 56 kills.
const KILLS: u64 = 4;
const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Get,
    Put,
    ThirdParty,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Victim {
    Client,
    /// The server behind the proxy: the only server, or the destination of a third-party transfer.
    Server,
    /// The source server of a third-party transfer.
    Source,
    /// The client, which receives a signal that asks it to end.
    Told(Signal),
}

/// A transfer that was killed a moment ago may still wait for the disk and hold the lock on the
/// file.
#[test]
fn locked_destination_is_waited_for() {
    let scratch = Scratch::new().unwrap();
    let served = scratch.directory("served").unwrap();
    files::write_random(&served.join("source"), 3 << 20, 1).unwrap();
    let server = Setup::new(Kind::Ropewalk, &served).start().unwrap();
    let part = fs::File::create(scratch.join(".copy.ropewalk-part")).unwrap();
    part.lock().unwrap();
    let copy = Copy::new(server.url("source"), Client::Ropewalk.local(&scratch.join("copy"), false));
    let mut command = Client::Ropewalk.command(&copy).unwrap();
    let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
    let events = BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut held = Some(part);
    let mut retries = 0;
    for event in events.filter(|line| line.contains("\"file_failed\"")) {
        assert!(event.contains("in use"), "{event}");
        held = None;
        retries += 1;
    }
    assert!(client.wait().unwrap().success());
    assert!(retries > 0 && held.is_none());
    files::ensure_same(&served.join("source"), &scratch.join("copy")).unwrap();
}

/// Each try makes some progress, so the copy does not use up its `--retries`.
#[test]
fn retries_that_make_progress_are_not_counted() {
    const SIZE: u64 = 25 << 20;
    const EVERY: u64 = 3 << 20;
    for mode in [Mode::Auto, Mode::Stream] {
        let scratch = Scratch::in_memory(256 << 20).unwrap();
        let served = scratch.directory("served").unwrap();
        files::write_random(&served.join("source"), SIZE, 7).unwrap();
        let server = Setup::new(Kind::Ropewalk, &served).start().unwrap();
        let proxy = Proxy::start(server.address()).unwrap();
        let copy = scratch.join("copy");
        let url = |name: &str| OsString::from(server.url_at(proxy.address(), name));
        for (from, to, result) in [
            (url("source"), copy.clone().into_os_string(), copy.clone()),
            (copy.clone().into_os_string(), url("back"), served.join("back")),
        ] {
            proxy.cut_every(EVERY);
            let mut command = peers::ropewalk_command().unwrap();
            command.args(["cp", "-q", "--retries", "2", "--retry-pause", "10ms", "--files", "1"]);
            if mode == Mode::Stream {
                command.args(["--mode", "stream"]);
            }
            command.arg(&from).arg(to).env("XDG_STATE_HOME", scratch.path());
            let before = proxy.data_connections();
            process::run(&mut command, SOON).unwrap().succeeded().unwrap();
            proxy.cut_every(0);
            // More tries than `--retries` allows without progress.
            assert!(proxy.data_connections() - before > 5, "{from:?}");
            files::ensure_same(&served.join("source"), &result).unwrap();
        }
    }
}

/// Rerunning the command after Ctrl-C does not send the finished files of a tree again, unless the
/// source or the destination has changed.
#[test]
fn interrupted_tree_copy_resumes() {
    const FILES: usize = 300;
    let scratch = Scratch::in_memory(256 << 20).unwrap();
    let served = scratch.directory("served").unwrap();
    let source = scratch.directory("served/source").unwrap();
    for number in 0..FILES {
        fs::write(source.join(number.to_string()), number.to_string()).unwrap();
    }
    let server = Setup::new(Kind::Ropewalk, &served).start().unwrap();
    let (tree, remote) = (source.join("").into_os_string(), |path: &str| OsString::from(server.url(path)));
    let from_server = remote("source/");
    let here = scratch.join("here/").into_os_string();
    for (from, to, destination) in [
        (&from_server, here, scratch.join("here")),
        (&tree, remote("put/"), served.join("put")),
        (&tree, scratch.join("local/").into_os_string(), scratch.join("local")),
        (&from_server, remote("third/"), served.join("third")),
    ] {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["cp", "-r", "--json", "-q", "--files", "1"]).arg(from).arg(&to);
        command.env("XDG_STATE_HOME", scratch.path());
        let mut client = command.stdout(Stdio::piped()).spawn().unwrap();
        let (mut done, mut first) = (0, None);
        for event in BufReader::new(client.stdout.take().unwrap()).lines().map(Result::unwrap) {
            if event.contains("\"file_started\"") {
                first.get_or_insert(event);
            } else if event.contains("\"file_done\"") {
                done += 1;
                if done == 10 {
                    let client = rustix::process::Pid::from_child(&client);
                    rustix::process::kill_process(client, Signal::INT).unwrap();
                }
            }
        }
        assert_eq!(client.wait().unwrap().code(), Some(130));
        assert!((10..FILES).contains(&done), "{done} of {FILES} files were done");
        // The first file is finished; change its copy, as another user could.
        let first: serde_json::Value = serde_json::from_str(&first.unwrap()).unwrap();
        let name = Path::new(first["source"].as_str().unwrap()).file_name().unwrap();
        fs::write(destination.join(name), "other").unwrap();
        let again = process::run(&mut command, SOON).unwrap().succeeded().unwrap().text();
        let count = |event: &str| again.lines().filter(|line| line.contains(event)).count();
        assert_eq!((count("\"file_skipped\""), count("\"file_done\"")), (done - 1, FILES - done + 1));
        for number in 0..FILES {
            let name = number.to_string();
            assert_eq!(fs::read_to_string(destination.join(&name)).unwrap(), name);
        }
        // The copy is finished, so its record of finished files is gone.
        let kept = fs::read_dir(scratch.join("ropewalk")).into_iter().flatten().flatten();
        let kept = kept.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "done"));
        assert_eq!(kept.count(), 0);
    }
}

struct Series {
    scratch: Scratch,
    /// The server behind the proxy.
    server: Server,
    source_server: Option<Server>,
    proxy: Proxy,
    copy: Copy,
    source: PathBuf,
    destination: PathBuf,
}

impl Series {
    /// With `direct`, both sides write with O_DIRECT into preallocated space.
    fn new(way: Way, mode: Mode, direct: bool) -> Self {
        let scratch = Scratch::in_memory(1 << 30).unwrap();
        let served = scratch.directory("served").unwrap();
        let mut setup = Setup::new(Kind::Ropewalk, &served);
        if direct {
            let config = scratch.path().join("server.toml");
            fs::write(&config, "files.direct_io = \"always\"\n").unwrap();
            setup = setup.argument("--config").argument(config);
        }
        let server = setup.start().unwrap();
        let proxy = Proxy::start(server.address()).unwrap();
        proxy.set_rate(Some(RATE));
        let local = |name: &str| Client::Ropewalk.local(&scratch.join(name), false);
        let mut source_server = None;
        let (from, to, source, destination) = match way {
            Way::Get => (
                server.url_at(proxy.address(), "source").into(),
                local("copy"),
                served.join("source"),
                scratch.join("copy"),
            ),
            Way::Put => (
                local("source"),
                server.url_at(proxy.address(), "copy").into(),
                scratch.join("source"),
                served.join("copy"),
            ),
            Way::ThirdParty => {
                let other = scratch.directory("other").unwrap();
                let url =
                    source_server.insert(Setup::new(Kind::Ropewalk, &other).start().unwrap()).url("source");
                (
                    url.into(),
                    server.url_at(proxy.address(), "copy").into(),
                    other.join("source"),
                    served.join("copy"),
                )
            }
        };
        files::write_random(&source, SIZE, 1).unwrap();
        let copy = Copy { limit: SOON, ..Copy::new(from, to).mode(mode) }.argument("--block-size=1MiB");
        // Direct writes slow the receiver down. On a busy machine more data would wait in a socket
        // than the test allows.
        let slow = ["--direct-io=always", "--tcp-buffer=128KiB"];
        let copy = if direct { slow.into_iter().fold(copy, Copy::argument) } else { copy };
        Self { scratch, server, source_server, proxy, copy, source, destination }
    }

    fn start(&self, patient: bool) -> Program {
        let mut copy = self.copy.clone();
        if let Some(server) = &self.source_server {
            copy.source = server.url("source").into();
        }
        let retries = if patient { ["--retries=50", "--retry-pause=100ms"] } else { ["--retries=0"; 2] };
        let retries = if patient { &retries[..] } else { &retries[..1] };
        let copy = retries.iter().fold(copy, |copy, word| copy.argument(*word));
        Client::Ropewalk.start(&copy).unwrap()
    }

    /// Kills the victim and restarts servers.
    fn kill(&mut self, victim: Victim, running: &mut Program) {
        match victim {
            Victim::Client => running.kill(),
            Victim::Told(signal) => running.signal(signal),
            Victim::Server => {
                self.server.restart().unwrap();
                self.proxy.set_target(self.server.address());
            }
            Victim::Source => self.source_server.as_mut().unwrap().restart().unwrap(),
        }
    }
}

/// Copies one file whose transfer is killed [`KILLS`] times. If `patient`, one client survives all
/// crashes of its server; otherwise each crash ends the client too, and the command is started
/// again.
fn series(way: Way, mode: Mode, victim: Victim, patient: bool) {
    series_of(way, mode, victim, patient, false);
}

fn series_of(way: Way, mode: Mode, victim: Victim, patient: bool, direct: bool) {
    let streams = match mode {
        Mode::Auto | Mode::Stream => 1,
        Mode::Extended(streams) => u64::from(streams),
    };
    let name = format!("{way:?} {mode:?}, {victim:?} killed, patient: {patient}, direct: {direct}");
    let mut random = Random::new(seed());
    let mut series = Series::new(way, mode, direct);
    let mut running = series.start(patient);
    let mut moments = Vec::new();
    for kill in 0..KILLS {
        // One moment in each chunk of the file, so that the crashes add up.
        let part = SIZE / (KILLS + 1);
        let mut moment = kill * part + random.below(part) + 1;
        if let Victim::Told(_) = victim {
            // Wait until this run moves data: a client that has just started does not handle the
            // signal yet.
            moment = moment.max(series.proxy.moved() + BLOCK);
        }
        moments.push(moment);
        if series.proxy.wait_for(moment, SOON).is_err() {
            panic!("{name}, moments {moments:?}: {}", running.log());
        }
        series.kill(victim, &mut running);
        if !patient {
            // The client may need a moment to notice that its server is gone.
            if victim != Victim::Client {
                let status = running.wait(SOON).unwrap();
                assert!(!status.success(), "{name}, moments {moments:?}: {}", running.log());
                if let Victim::Told(_) = victim {
                    // It ended in an orderly way and reported so.
                    assert_eq!(status.code(), Some(130), "{name}, moments {moments:?}: {}", running.log());
                }
            }
            running = series.start(patient);
        }
    }
    let status = running.wait(SOON).unwrap();
    let log = running.finish();
    assert!(status.success(), "{name}, moments {moments:?}: {log}");
    files::ensure_same(&series.source, &series.destination).unwrap();
    assert_eq!(leftovers(&series.scratch), Vec::<PathBuf>::new(), "{name}");

    let events: String =
        log.lines().filter(|line| line.starts_with('{')).map(|line| format!("{line}\n")).collect();
    let summary = Summary::parse(&events).unwrap();
    let (bytes, resumed) = (summary.number("bytes").unwrap(), summary.number("bytes_resumed").unwrap());
    if !patient {
        assert_eq!(bytes + resumed, SIZE, "{name}: {}", summary.value());
        assert!(resumed > 0, "{name}: nothing was resumed: {}", summary.value());
    }
    // Bytes that may move twice: those in incomplete blocks, and those between the proxy and the
    // receiver's memory.
    let allowed = KILLS * streams * (BLOCK + 2 * CHUNK as u64);
    let headers = 17 * (SIZE / BLOCK + 2 + KILLS * streams * 2);
    let again = series.proxy.moved().saturating_sub(SIZE + headers);
    loudly(&format!("{name}: moments {moments:?}, {again} bytes moved again, {allowed} allowed"));
    assert!(
        again <= allowed,
        "{name}, moments {moments:?}: {again} bytes were moved again, {allowed} are allowed"
    );
}

fn seed() -> u64 {
    let seed = env::var("ROPEWALK_TEST_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64));
    loudly(&format!("ROPEWALK_TEST_SEED={seed}"));
    seed
}

/// Returns the remaining part files and journals.
fn leftovers(scratch: &Scratch) -> Vec<PathBuf> {
    fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            if entry.path().is_dir() {
                collect(&entry.path(), found);
            } else if entry.file_name().to_string_lossy().contains("ropewalk-") {
                found.push(entry.path());
            }
        }
    }
    let mut found = Vec::new();
    collect(scratch.path(), &mut found);
    found
}

fn both_modes(way: Way, victim: Victim, patient: bool) {
    if !peers::available(&["setpriv"]) {
        return;
    }
    series(way, Mode::Stream, victim, patient);
    series(way, Mode::Extended(4), victim, patient);
    // Server processes that a killed client left running end by themselves.
    thread::yield_now();
}

#[test]
fn get_when_client_is_killed_resumes() {
    both_modes(Way::Get, Victim::Client, false);
}

#[test]
fn put_when_client_is_killed_resumes() {
    both_modes(Way::Put, Victim::Client, false);
}

#[test]
fn get_when_interrupted_resumes() {
    both_modes(Way::Get, Victim::Told(Signal::INT), false);
}

#[test]
fn put_when_interrupted_resumes() {
    both_modes(Way::Put, Victim::Told(Signal::INT), false);
}

#[test]
fn direct_and_third_party_when_terminated_resume() {
    if !peers::available(&["setpriv"]) {
        return;
    }
    series_of(Way::Get, Mode::Extended(4), Victim::Told(Signal::TERM), false, true);
    series_of(Way::Put, Mode::Extended(4), Victim::Told(Signal::TERM), false, true);
    series(Way::ThirdParty, Mode::Extended(4), Victim::Told(Signal::TERM), false);
}

#[test]
fn get_when_server_is_killed_resumes() {
    both_modes(Way::Get, Victim::Server, false);
}

#[test]
fn put_when_server_is_killed_resumes() {
    both_modes(Way::Put, Victim::Server, false);
}

#[test]
fn put_when_server_is_killed_survives_in_one_client() {
    both_modes(Way::Put, Victim::Server, true);
}

/// All sessions that work on one file notice the crash together and query together which ranges
/// have arrived.
#[test]
fn server_crash_counts_as_one_try_for_all_sessions() {
    if !peers::available(&["setpriv"]) {
        return;
    }
    for way in [Way::Put, Way::ThirdParty, Way::Get] {
        let mut series = Series::new(way, Mode::Auto, false);
        // Enough for several ranges.
        files::write_random(&series.source, 4 * SIZE, 2).unwrap();
        series.proxy.set_rate(Some(3 * RATE));
        for words in [["--files=8", "--retries=1"], ["--retry-pause=1s", "--checksum=none"]] {
            series.copy.arguments.extend(words.map(Into::into));
        }
        let copy = series.copy.clone();
        let mut running = Client::Ropewalk.start(&copy).unwrap();
        if series.proxy.wait_for(2 * SIZE, SOON).is_err() {
            panic!("{way:?}: {} bytes, {}", series.proxy.moved(), running.finish());
        }
        series.kill(Victim::Server, &mut running);
        let status = running.wait(SOON).unwrap();
        assert!(status.success(), "{way:?}: {}", running.finish());
        files::ensure_same(&series.source, &series.destination).unwrap();
        assert_eq!(leftovers(&series.scratch), Vec::<PathBuf>::new(), "{way:?}");
    }
}

#[test]
fn direct_writes_when_killed_resume() {
    if !peers::available(&["setpriv"]) {
        return;
    }
    series_of(Way::Get, Mode::Extended(4), Victim::Client, false, true);
    series_of(Way::Put, Mode::Extended(4), Victim::Server, false, true);
}

#[test]
fn third_party_when_client_is_killed_resumes() {
    both_modes(Way::ThirdParty, Victim::Client, false);
}

#[test]
fn third_party_when_servers_are_killed_resumes() {
    if !peers::available(&["setpriv"]) {
        return;
    }
    series(Way::ThirdParty, Mode::Extended(4), Victim::Server, false);
    series(Way::ThirdParty, Mode::Extended(4), Victim::Source, false);
}

/// A signal interrupts the removal of a tree, file by file at a server without a command that
/// removes trees.
#[test]
fn removal_of_tree_when_signalled_stops() {
    if !peers::available(&["vsftpd"]) {
        return;
    }
    const FILES: usize = 1000;
    let scratch = Scratch::new().unwrap();
    scratch.directory("served").unwrap();
    let server = Setup::new(Kind::Vsftpd, &scratch.join("served")).start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    proxy.delay_lines(Duration::from_millis(5));
    for signal in [Signal::INT, Signal::TERM] {
        // Each signal gets its own tree: the server may still execute commands of the previous run.
        let name = format!("tree{}", signal.as_raw());
        let tree = scratch.directory(format!("served/{name}")).unwrap();
        for n in 0..FILES {
            fs::write(tree.join(n.to_string()), "x").unwrap();
        }
        let left = || fs::read_dir(&tree).map_or(0, Iterator::count);
        let before = left();
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["rm", "-r", &server.url_at(proxy.address(), &name)]);
        let mut program = Program::start(&mut command).unwrap();
        let begun = SystemTime::now();
        while left() == before {
            assert!(begun.elapsed().unwrap() < SOON, "nothing is removed");
            thread::yield_now();
        }
        program.signal(signal);
        let status = program.wait(SOON).unwrap();
        assert_eq!(status.code(), Some(130), "{signal:?}");
        assert!((1..before).contains(&left()), "{signal:?}: {} of {before} are left", left());
    }
}
