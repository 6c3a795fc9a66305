//! Sessions that are closed while their servers have commands left to execute, and the files that
//! fail because of that.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, ChecksumPolicy, Event, FailureKind, Location, Options, Pair, Preserve, StallLimit,
};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::queue_server::{QueueServer, Script, Watch, What};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};

const FILES: [&str; 6] = ["/f0", "/f1", "/f2", "/f3", "/f4", "/f5"];

/// There is only one try, so a file that is blamed for the failure of another one fails.
fn once() -> Options {
    options().with(|o| {
        o.integrity.checksum = ChecksumPolicy::None;
        o.tuning.files = Auto::Set(1);
        o.recovery.retries = 0;
    })
}

fn content(name: &str) -> Vec<u8> {
    format!("contents of {name}").repeat(name.len() * 3).into_bytes()
}

/// Whether the path is a part file of that file. At such servers each upload has a unique one.
fn is_part(path: &str, name: &str) -> bool {
    path.starts_with(&format!("/.{name}~")) && path.ends_with(".ropewalk-part")
}

/// Six local files, and a server for them. The script gets an observer of its own server.
fn uploads(script: fn(&Watch, &str, &str) -> What) -> Result<(Scratch, QueueServer, Vec<Pair>)> {
    let here = Scratch::new()?;
    let watch = Arc::new(OnceLock::new());
    let later = watch.clone();
    let script: Arc<Script> =
        Arc::new(move |verb, path| later.get().map_or(What::Do, |watch| script(watch, verb, path)));
    let server = QueueServer::start(true, script)?;
    let _ = watch.set(server.watch());
    let mut pairs = Vec::new();
    for name in FILES {
        write(&here.join(&name[1..]), &content(name))?;
        let source = Location::Local(here.join(&name[1..]));
        pairs.push(Pair { source, destination: place(&server.url(name)), window: None });
    }
    Ok((here, server, pairs))
}

/// Six files at one server, and the server that they are copied to.
fn between(
    retrieve: fn(&Watch, &str, &str) -> What,
    store: fn(&str, &str) -> What,
) -> Result<(QueueServer, QueueServer, Vec<Pair>)> {
    let destination = QueueServer::start(false, Arc::new(store))?;
    let watch = destination.watch();
    let source = QueueServer::start(false, Arc::new(move |verb, path| retrieve(&watch, verb, path)))?;
    let mut pairs = Vec::new();
    for name in FILES {
        source.put(name, b"moved");
        let (source, destination) = (place(&source.url(name)), place(&destination.url(name)));
        pairs.push(Pair { source, destination, window: None });
    }
    Ok((source, destination, pairs))
}

/// Checks that all files except `but` were copied, and that no other file failed.
fn ensure_all_but(
    but: &str,
    told: &Told,
    destination: &QueueServer,
    content: fn(&str) -> Vec<u8>,
) -> Result<()> {
    let summary = &told.summary;
    let blamed: Vec<_> = told
        .events
        .iter()
        .filter_map(|event| match event {
            Event::FileFailed { source, .. } => Some(source.clone()),
            _ => None,
        })
        .collect();
    ensure!((summary.files_done, summary.files_failed) == (5, 1), "{summary:?}");
    ensure!(blamed.iter().all(|source| source.ends_with(but)), "{blamed:?}");
    let last = told.events.iter().rev().find_map(|event| match event {
        Event::Progress { bytes, files_active, .. } => Some((*bytes, *files_active)),
        _ => None,
    });
    let there: usize = FILES.iter().filter(|name| **name != but).map(|name| content(name).len()).sum();
    // The file may have arrived without its name.
    let most = there + content(but).len();
    ensure!(
        last.is_some_and(|(bytes, active)| active == 0 && [there as u64, most as u64].contains(&bytes)),
        "{last:?} where {there} bytes should be"
    );
    let files = destination.files();
    for name in FILES.iter().filter(|name| **name != but) {
        ensure!(files.get(*name) == Some(&content(name)), "{name}: {:?}", files.get(*name));
    }
    Ok(())
}

#[test]
fn what_an_abandoned_upload_session_would_still_do_is_waited_for() -> Result<()> {
    let (_here, server, pairs) = uploads(|watch, verb, path| match verb {
        "STOR" if is_part(path, "f3") => {
            // Waits until commands for names are queued behind transfers that are not refused yet.
            watch.heard("RNTO", 3);
            What::Refuse("553 not this one")
        }
        _ => What::Do,
    })?;
    ensure_all_but("/f3", &run_pairs(pairs, &once())?, &server, content)
}

fn refuse_late(watch: &Watch, verb: &str, path: &str) -> What {
    if (verb, path) == ("RETR", "/f3") {
        watch.heard("RNTO", 3);
        return What::Refuse("550 not this one");
    }
    What::Do
}

#[test]
fn what_an_abandoned_session_between_servers_would_still_do_is_waited_for() -> Result<()> {
    let (_source, destination, pairs) = between(refuse_late, |verb, path| match verb {
        // The data of this file does not arrive.
        "STOR" if is_part(path, "f3") => What::Hang,
        _ => What::Do,
    })?;
    ensure_all_but("/f3", &run_pairs(pairs, &once())?, &destination, |_| b"moved".to_vec())
}

#[test]
fn a_session_that_does_not_end_cannot_take_the_part_of_the_next() -> Result<()> {
    let (_source, destination, pairs) = between(refuse_late, |verb, path| match verb {
        "STOR" if is_part(path, "f3") => What::Deaf,
        _ => What::Do,
    })?;
    let told = run_pairs(pairs, &once())?;
    ensure_all_but("/f3", &told, &destination, |_| b"moved".to_vec())?;
    let read = destination.read();
    let parts: BTreeSet<_> =
        read.iter().filter(|line| is_part(line.trim_start_matches("STOR "), "f0")).collect();
    ensure!(parts.len() == 2, "{read:?}");
    Ok(())
}

#[test]
fn a_session_that_breaks_costs_only_the_file_at_which_it_breaks() -> Result<()> {
    let options = once().with(|o| o.recovery.retries = 2);
    let (_here, server, pairs) = uploads(|_, verb, path| match verb {
        "RNFR" if is_part(path, "f3") => What::Close,
        _ => What::Do,
    })?;
    let told = run_pairs(pairs, &options)?;
    ensure_all_but("/f3", &told, &server, content)?;
    ensure!(told.summary.failures[0].kind == FailureKind::Unreachable && told.summary.retries == 2);

    let (_source, destination, pairs) = between(
        |_, _, _| What::Do,
        |verb, path| match verb {
            "RNFR" if is_part(path, "f3") => What::Close,
            _ => What::Do,
        },
    )?;
    let told = run_pairs(pairs, &options)?;
    ensure_all_but("/f3", &told, &destination, |_| b"moved".to_vec())?;
    ensure!(told.summary.failures[0].kind == FailureKind::Unreachable && told.summary.retries == 2);
    Ok(())
}

#[test]
fn a_part_that_got_its_name_from_somebody_else_is_recognised() -> Result<()> {
    let options = once().with(|o| o.recovery.retries = 1);
    static MEDDLED: AtomicBool = AtomicBool::new(false);
    let (_here, server, pairs) = uploads(|watch, verb, path| {
        if (verb, path) == ("RNTO", "/f1") && !MEDDLED.swap(true, Ordering::SeqCst) {
            watch.rename_part("f1", "/f1");
        }
        What::Do
    })?;
    let told = run_pairs(pairs, &options)?.succeeded()?;
    ensure!(told.summary.retries == 1 && server.files().get("/f1") == Some(&content("/f1")));
    let sent = server.read().iter().filter(|line| line.starts_with("STOR /.f1~")).count();
    ensure!(sent == 1, "it was sent {sent} times");

    // The name belongs to another file, so the file is sent again.
    static REPLACED: AtomicBool = AtomicBool::new(false);
    let (_here, server, pairs) = uploads(|watch, verb, path| {
        if (verb, path) == ("RNTO", "/f1") && !REPLACED.swap(true, Ordering::SeqCst) {
            watch.rename("/f0", "/f1");
            watch.rename_part("f1", "/elsewhere");
        }
        What::Do
    })?;
    run_pairs(pairs, &options)?.succeeded()?;
    ensure!(server.files().get("/f1") == Some(&content("/f1")));
    Ok(())
}

#[test]
fn a_name_that_cannot_travel_leaves_nothing_behind_for_the_next_file() -> Result<()> {
    let here = Scratch::new()?;
    for name in ["s/a", "s/b\nc", "s/d"] {
        write(&here.join(name), &content(name))?;
    }
    let server = QueueServer::start(true, Arc::new(|_, _| What::Do))?;
    let options = once().with(|o| o.integrity.checksum = ChecksumPolicy::Default);
    let told = run(Location::Local(here.join("s/")), place(&server.url("/t/")), &options)?;
    ensure!((told.summary.files_done, told.summary.files_failed) == (2, 1), "{:?}", told.summary);
    let read = server.read();
    let sent = |verb: &str| read.iter().filter(|line| line.starts_with(verb)).count();
    ensure!((sent("SCKS"), sent("STOR")) == (2, 2), "{read:?}");
    Ok(())
}

#[test]
fn a_session_that_breaks_before_the_data_costs_its_file() -> Result<()> {
    let (here, server, _) = uploads(|_, verb, _| if verb == "DELE" { What::Close } else { What::Do })?;
    // The file is large enough to be divided.
    std::fs::File::create(here.join("big"))?.set_len(140 << 20)?;
    let options = once().with(|o| o.tuning.files = Auto::Set(2));
    let told = run(Location::Local(here.join("big")), place(&server.url("/big")), &options)?;
    ensure!((told.summary.files_done, told.summary.files_failed) == (0, 1), "{:?}", told.summary);
    ensure!(server.read().iter().any(|line| line.starts_with("DELE")), "{:?}", server.read());
    Ok(())
}

/// Without a limit on their number, tries end when their time is over. That costs their file and no
/// other.
#[test]
fn time_for_tries_that_is_over_costs_its_file() -> Result<()> {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    let (_here, server, pairs) = uploads(|_, verb, path| {
        if verb == "STOR" && is_part(path, "f2") {
            REFUSED.fetch_add(1, Ordering::SeqCst);
            return What::Refuse("450 Not now.");
        }
        What::Do
    })?;
    let pause = Duration::from_millis(10);
    let options = once().with(|o| {
        o.recovery.retries = u32::MAX;
        o.recovery.retry_pause = pause;
        o.recovery.retry_limit = Some(20 * pause);
    });
    let told = run_pairs(pairs, &options)?;
    ensure!((told.summary.files_done, told.summary.files_failed) == (5, 1), "{:?}", told.summary);
    ensure!(REFUSED.load(Ordering::SeqCst) > 1 && server.files().len() == 5, "{:?}", server.files().keys());
    Ok(())
}

#[test]
fn who_cannot_be_reached_is_asked_once() -> Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    std::thread::spawn(move || {
        for _gone in listener.incoming() {
            CONNECTIONS.fetch_add(1, Ordering::SeqCst);
        }
    });
    let at = |name: &str, n: u32| place(&format!("ftp://{address}/{name}{n}"));
    let pairs =
        (0..300).map(|n| Pair { source: at("f", n), destination: at("t", n), window: None }).collect();
    let told = run_pairs(pairs, &once())?;
    ensure!(told.summary.files_failed == 300, "{:?}", told.summary);
    let connections = CONNECTIONS.load(Ordering::SeqCst);
    ensure!(connections <= 2, "{connections} connections");
    Ok(())
}

/// A file that a server has confirmed before it refuses the next one is complete, and is not sent
/// again.
#[test]
fn what_came_before_a_refused_file_is_done() -> Result<()> {
    each(&gridftp(), |bench| {
        const SIZE: u64 = 6 << 20;
        for name in ["big", "other", "last"] {
            write(&bench.local.join(name), &vec![7; SIZE as usize])?;
        }
        write(&bench.local.join("small"), b"x")?;
        let pairs = |from: &dyn Fn(&str) -> Location, to: &str| -> Vec<Pair> {
            let pair = |name| Pair { source: from(name), destination: bench.url(to), window: None };
            ["big", "small", "other", "last"].map(pair).to_vec()
        };
        let here = |name: &str| bench.here(name);
        let there = |name: &str| bench.url(&format!("from/{name}"));
        run_pairs(pairs(&here, "from/"), &options())?.succeeded()?;
        let options = options().with(|o| {
            o.recovery.retries = 0;
            o.tuning.files = Auto::Set(1);
        });
        for (from, to) in [(&here as &dyn Fn(&str) -> Location, "up/"), (&there, "third/")] {
            // There are directories with these names: one file is refused before or during its
            // data, the other one after it.
            fs::create_dir_all(bench.remote.join(to).join("small/x"))?;
            fs::create_dir_all(bench.remote.join(to).join("other/x"))?;
            let told = run_pairs(pairs(from, to), &options)?;
            let summary = &told.summary;
            ensure!((summary.files_done, summary.files_failed) == (2, 2), "{to}: {:?}", told.events);
            let began = told
                .count(|event| matches!(event, Event::FileStarted { source, .. } if source.ends_with("big")));
            ensure!(began == 1, "{to}: {:?}", told.events);
            let mut names: Vec<_> =
                fs::read_dir(bench.remote.join(to))?.map(|e| Ok(e?.file_name())).collect::<Result<_>>()?;
            names.sort();
            ensure!(names == ["big", "last", "other", "small"], "{to}: {names:?}");
            ensure!(fs::metadata(bench.remote.join(to).join("big"))?.len() == SIZE);
        }
        Ok(())
    })
}

/// A renamed file that may no longer be written is not sent again because a file behind it was
/// refused.
#[test]
fn read_only_files_before_a_refused_one_are_done() -> Result<()> {
    for kind in gridftp() {
        let Some(bench) = Bench::with(kind, Setup::obeying_permissions)? else { continue };
        for n in 0..60 {
            let path = bench.local.join(format!("s/f{n}"));
            write(&path, format!("contents of {n}").as_bytes())?;
            fs::set_permissions(path, Permissions::from_mode(0o444))?;
        }
        let preserve = Preserve { times: true, modes: true, ..Preserve::default() };
        let options = options().with(|o| {
            o.recovery.retries = 0;
            o.preserve = preserve;
        });
        run(bench.here("s/"), bench.url("from/"), &options)?.succeeded()?;
        for (from, to, in_place) in [
            (bench.here("s/"), "up", false),
            (bench.here("s/"), "up-in-place", true),
            (bench.url("from/"), "third", false),
            (bench.url("from/"), "third-in-place", true),
        ] {
            // There are directories with these names.
            for n in [20, 41] {
                fs::create_dir_all(bench.remote.join(format!("{to}/f{n}/x")))?;
            }
            let options = options.clone().with(|o| o.storage.in_place = in_place);
            let told = run(from, bench.url(&format!("{to}/")), &options)?.summary;
            ensure!((told.files_done, told.files_failed) == (58, 2), "{kind:?}, {to}: {:?}", told.failures);
            for n in (0..60).filter(|n| ![20, 41].contains(n)) {
                let there = bench.remote.join(format!("{to}/f{n}"));
                ensure!(fs::read(&there)? == format!("contents of {n}").into_bytes(), "{kind:?}, {to}: {n}");
                let mode = fs::metadata(&there)?.permissions().mode() & 0o777;
                ensure!(mode == 0o444, "{kind:?}, {to}: {n} has {mode:o}");
            }
        }
    }
    Ok(())
}

/// Aborted transfers must not lose the replies that earlier transfers still wait for.
#[test]
fn sums_before_a_refused_file_are_heard() -> Result<()> {
    for kind in gridftp() {
        let Some(bench) = Bench::with(kind, Setup::obeying_permissions)? else { continue };
        for n in 0..40 {
            write(&bench.local.join(format!("s/f{n}")), &[n; 2000])?;
        }
        for n in 0..8 {
            write(&bench.local.join(format!("s/ro/f{n}")), b"x")?;
        }
        fs::create_dir_all(bench.remote.join("t/ro"))?;
        fs::set_permissions(bench.remote.join("t/ro"), Permissions::from_mode(0o555))?;
        let md5 = ChecksumPolicy::Require(Algorithm::Md5);
        for _ in 0..3 {
            // Each run sends all files, including those that the failed run before it had finished.
            let options = options().with(|o| {
                o.integrity.checksum = md5;
                o.recovery.retries = 0;
                o.tuning.files = Auto::Set(1);
                o.recovery.resume = false;
            });
            let told = run(bench.here("s/"), bench.url("t/"), &options)?.summary;
            ensure!((told.files_done, told.files_failed) == (40, 8), "{kind:?}: {:?}", told.failures);
        }
    }
    Ok(())
}

/// The destination has started a part file for it, and may have put another file's data there.
#[test]
fn nothing_stays_of_what_a_source_refuses() -> Result<()> {
    for kind in gridftp() {
        let Some(bench) = Bench::with(kind, Setup::obeying_permissions)? else { continue };
        for (n, size) in [9, 5 << 20, 11, 12, 5 << 20, 14].into_iter().enumerate() {
            write(&bench.remote.join(format!("s/f{n}")), &vec![n as u8; size])?;
        }
        for n in [1, 3] {
            fs::set_permissions(bench.remote.join(format!("s/f{n}")), Permissions::from_mode(0o0))?;
        }
        let options = options().with(|o| o.recovery.retries = 0);
        let told = run(bench.url("s/"), bench.url("t/"), &options)?.summary;
        ensure!((told.files_done, told.files_failed) == (4, 2), "{kind:?}: {:?}", told.failures);
        let mut names: Vec<_> =
            fs::read_dir(bench.remote.join("t"))?.map(|e| Ok(e?.file_name())).collect::<Result<_>>()?;
        names.sort();
        ensure!(names == ["f0", "f2", "f4", "f5"], "{kind:?}: {names:?}");
    }
    Ok(())
}

/// The server has one file less than there is data, and accepts no more data.
#[test]
fn data_behind_a_refused_file_is_not_waited_for() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Gct)? else { return Ok(()) };
    for (name, size) in [("a", 1000), ("b", 1000), ("z", 12 << 20)] {
        write(&bench.local.join(name), &vec![7; size])?;
    }
    fs::create_dir_all(bench.remote.join("up").join(bench.part("a")).join("x"))?;
    let proxy = Proxy::start(bench.server.address())?;
    proxy.delay_lines(Duration::from_millis(50));
    let to = place(&bench.server.url_at(proxy.address(), "up/"));
    let pair = |name| Pair { source: bench.here(name), destination: to.clone(), window: None };
    let stall = Some(StallLimit { bytes_per_second: 1, time: Duration::from_secs(20) });
    let state_directory = bench.known()?.state_directory;
    let options = once().with(|o| {
        o.tuning.streams = Auto::Set(1);
        o.timeouts.stall = stall;
        o.state_directory = state_directory;
    });
    let told = run_pairs(["a", "b", "z"].map(pair).to_vec(), &options)?;
    let summary = &told.summary;
    ensure!((summary.files_done, summary.files_failed) == (2, 1), "{:?}", told.events);
    ensure!(summary.failures[0].kind != FailureKind::Stalled && summary.seconds < 20.0, "{summary:?}");
    Ok(())
}
