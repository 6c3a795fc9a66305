//! Several sources, patterns and comparisons, and their effects on each other.

mod common;

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, Cancel, ChecksumPolicy, Event, FailureKind, Location, Pair, Preserve, Remote, SyncLevel,
};
use ropewalk_protocol::command::Password;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::peers;
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};

const MIB: u64 = 1 << 20;

fn pairs(sources: impl IntoIterator<Item = Location>, destination: &Location) -> Vec<Pair> {
    let pair = |source| Pair { source, destination: destination.clone(), window: None };
    sources.into_iter().map(pair).collect()
}

/// Files that are compared are between files that are being transferred.
#[test]
fn downloads_that_are_compared_do_not_take_the_answers_of_others() -> Result<()> {
    each(&gridftp(), |bench| {
        let mut changed = HashSet::new();
        for n in 0..60 {
            let name = format!("f{n:02}");
            write(&bench.remote.join("t").join(&name), format!("file {n:02}").as_bytes())?;
            match n % 4 {
                // The file is new, of another size, changed, or the same.
                0 => continue,
                1 => write(&bench.local.join("t").join(&name), b"old")?,
                2 => write(&bench.local.join("t").join(&name), format!("FILE {n:02}").as_bytes())?,
                _ => {
                    write(&bench.local.join("t").join(&name), format!("file {n:02}").as_bytes())?;
                    continue;
                }
            }
            changed.insert(name);
        }
        let options = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Checksum);
            o.tuning.files = Auto::Set(1);
            o.recovery.retries = 0;
        });
        let told = run(bench.url("t/"), bench.here("t/"), &options)?.succeeded()?.summary;
        ensure!((told.files_done, told.files_skipped) == (45, 15), "{told:?}");
        for n in 0..60 {
            let name = format!("t/f{n:02}");
            ensure!(fs::read(bench.local.join(&name))? == fs::read(bench.remote.join(&name))?, "{name}");
        }
        Ok(())
    })
}

/// A server that replies with 421 to the first `refused` clients. Later ones find one file. Without
/// `answer_sum`, the first two sessions end when they ask for its checksum.
fn scripted(refused: u32, answer_sum: bool) -> Result<(String, Arc<AtomicU32>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("ftp://{}", listener.local_addr()?);
    let came = Arc::new(AtomicU32::new(0));
    let counter = came.clone();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let n = counter.fetch_add(1, Ordering::Relaxed);
            std::thread::spawn(move || serve(client, n < refused, answer_sum || n > 1));
        }
    });
    Ok((url, came))
}

fn serve(client: TcpStream, refused: bool, answer_sum: bool) -> Result<()> {
    let mut out = client.try_clone()?;
    if refused {
        return Ok(out.write_all(b"421 Too many connections.\r\n")?);
    }
    out.write_all(b"220 ready\r\n")?;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let reply = match line.split(' ').next().unwrap_or_default() {
            "USER" => "230 in",
            "FEAT" => {
                "211-Features\r\n SIZE\r\n MLST Type*;Size*;Modify*;\r\n MDTM\r\n CKSM MD5:10;\r\n211 End"
            }
            "MLST" => "250-Listing\r\n Type=file;Size=1;Modify=20200101000000; /f\r\n250 End",
            "CKSM" if !answer_sum => return Ok(()),
            // The checksum of "x".
            "CKSM" => "213 9dd4e461268c8034f5c8564e155c67a6",
            _ => "200 ok",
        };
        out.write_all(format!("{reply}\r\n").as_bytes())?;
    }
    Ok(())
}

#[test]
fn a_session_that_ends_over_a_comparison_loses_no_file() -> Result<()> {
    let (url, came) = scripted(0, false)?;
    let here = Scratch::new()?;
    write(&here.join("f"), b"x")?;
    let options = options().with(|o| o.selection.sync = Some(SyncLevel::Checksum));
    let told = run(place(&format!("{url}/f")), Location::Local(here.join("f")), &options)?.succeeded()?;
    ensure!(told.summary.files_skipped == 1 && told.summary.retries >= 1, "{:?}", told.summary);
    ensure!(came.load(Ordering::Relaxed) >= 2);
    Ok(())
}

#[test]
fn a_server_that_is_full_for_a_moment_is_asked_again() -> Result<()> {
    let (url, came) = scripted(2, true)?;
    let here = Scratch::new()?;
    write(&here.join("f"), b"x")?;
    let options = options().with(|o| o.selection.sync = Some(SyncLevel::Checksum));
    run(place(&format!("{url}/f")), Location::Local(here.join("f")), &options)?.succeeded()?;
    ensure!(came.load(Ordering::Relaxed) >= 3);
    Ok(())
}

/// The permitted sessions do the work of the others.
#[test]
fn a_server_that_takes_two_sessions_gives_all_files() -> Result<()> {
    if !peers::available(&["globus-gridftp-server"]) {
        return Ok(());
    }
    let (here, there) = (Scratch::new()?, Scratch::new()?);
    let server = Setup::new(Kind::Gct, there.path()).argument("-connections-max").argument("2").start()?;
    for n in 0..60 {
        write(&there.join("s").join(n.to_string()), format!("file {n}").as_bytes())?;
    }
    let options = options().with(|o| {
        o.tuning.files = Auto::Set(4);
        o.recovery.retries = 1;
        o.tuning.pipeline = Auto::Set(1);
    });
    let source = place(&server.url("s"));
    let told = run(source, Location::Local(here.join("t")), &options)?.succeeded()?.summary;
    ensure!((told.files_done, told.files_failed) == (60, 0), "{told:?}");
    Ok(())
}

/// The plan has the only session, and there are more files than may wait in the queue.
#[test]
fn a_server_that_takes_one_session_gives_and_takes_all_files() -> Result<()> {
    if !peers::available(&["globus-gridftp-server"]) {
        return Ok(());
    }
    let (here, there) = (Scratch::new()?, Scratch::new()?);
    let server = Setup::new(Kind::Gct, there.path()).argument("-connections-max").argument("1").start()?;
    for n in 0..5000 {
        write(&there.join("s").join(n.to_string()), b"x")?;
    }
    let options = options().with(|o| o.recovery.retries = 1);
    for (from, to, arrived) in [
        (place(&server.url("s")), Location::Local(here.join("t")), here.join("t")),
        (Location::Local(here.join("t")), place(&server.url("u")), there.join("u")),
    ] {
        let told = run(from, to, &options)?.succeeded()?.summary;
        ensure!((told.files_done, told.files_failed) == (5000, 0), "{told:?}");
        ensure!(fs::read_dir(arrived)?.count() == 5000);
    }
    Ok(())
}

/// One worker has both sessions, and the last steps use one of them. No step needs a second try.
#[test]
fn servers_that_take_one_session_each_have_a_tree_copied_between_them() -> Result<()> {
    if !peers::available(&["globus-gridftp-server"]) {
        return Ok(());
    }
    let (here, there) = (Scratch::new()?, Scratch::new()?);
    let single = |root: &Scratch| {
        Setup::new(Kind::Gct, root.path()).argument("-connections-max").argument("1").start()
    };
    let (source, destination) = (single(&here)?, single(&there)?);
    for n in 0..400 {
        write(&here.join("s").join((n % 4).to_string()).join(n.to_string()), b"x")?;
    }
    std::os::unix::fs::symlink("0/0", here.join("s/link"))?;
    let preserve = Preserve { times: true, modes: false, links: true };
    for files in [Auto::Set(4), Auto::Auto] {
        let options = options().with(|o| {
            o.recovery.retries = 0;
            o.tuning.files = files;
            o.preserve = preserve;
        });
        let to = there.join("t");
        let told = run(place(&source.url("s/")), place(&destination.url("t/")), &options)?;
        ensure!(told.summary.files_failed == 0, "{:?}", told.summary);
        let unset =
            |e: &Event| matches!(e, Event::Warning { message } if message.contains("could not be set"));
        ensure!(told.count(unset) == 0, "{:?}", told.events);
        ensure_same(&here.join("s/3/399"), &to.join("3/399"))?;
        ensure!(fs::read_link(to.join("link"))?.ends_with("0"));
        fs::remove_dir_all(&to)?;
    }
    Ok(())
}

/// A copy within one server needs two sessions.
#[test]
fn a_server_that_takes_too_few_sessions_is_given_up() -> Result<()> {
    if !peers::available(&["globus-gridftp-server"]) {
        return Ok(());
    }
    let there = Scratch::new()?;
    for n in 0..5000 {
        write(&there.join("s").join(n.to_string()), b"x")?;
    }
    for (most, copied) in [("1", false), ("2", true), ("3", true)] {
        let server =
            Setup::new(Kind::Gct, there.path()).argument("-connections-max").argument(most).start()?;
        let options = options().with(|o| o.recovery.retries = 1);
        let to = format!("t{most}");
        let told = run(place(&server.url("s")), place(&server.url(&to)), &options)?.summary;
        if copied {
            ensure!((told.files_done, told.files_failed) == (5000, 0), "{most}: {told:?}");
        } else {
            ensure!(told.files_failed > 0 && !there.join(to).exists(), "{told:?}");
        }
    }
    Ok(())
}

/// The password belongs to the user.
#[test]
fn a_password_goes_to_nobody_without_a_name() -> Result<()> {
    for (user, expected) in
        [("", "PASS ropewalk@"), ("anonymous@", "PASS ropewalk@"), ("ada@", "PASS secret")]
    {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = place(&format!("ftp://{user}{}/", listener.local_addr()?));
        let heard = std::thread::spawn(move || -> Result<String> {
            let (stream, _) = listener.accept()?;
            let mut out = stream.try_clone()?;
            out.write_all(b"220 ready\r\n")?;
            let mut lines = BufReader::new(stream).lines();
            lines.next();
            out.write_all(b"331 Password?\r\n")?;
            let password = lines.next().unwrap_or_else(|| Ok(String::new()))?;
            out.write_all(b"530 no\r\n")?;
            Ok(password)
        });
        let Location::Remote(url) = url else { anyhow::bail!("not a URL") };
        let options = options().with(|o| o.login.password = Some(Password::new("secret")));
        ensure!(Remote::connect(&url, &options).is_err());
        let heard = heard.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        ensure!(heard == expected, "{user}: {heard}");
    }
    Ok(())
}

#[test]
fn two_files_of_one_name_do_not_become_one() -> Result<()> {
    each(&servers(), |bench| {
        for name in ["a/out", "b/out", "c/other"] {
            write(&bench.remote.join(name), name.as_bytes())?;
        }
        let told = run(bench.url("*/*"), bench.here("t/"), &options())?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (2, 1), "{:?}", told.summary);
        let kept = fs::read(bench.local.join("t/out"))?;
        ensure!(kept == b"a/out" || kept == b"b/out");
        let told =
            run_pairs(pairs(["a/out", "b/out"].map(|name| bench.url(name)), &bench.here("u/")), &options())?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (1, 1), "{:?}", told.summary);
        ensure!(fs::read(bench.local.join("u/out"))? == b"a/out");
        // A file that is named twice is copied.
        let told =
            run_pairs(pairs(["a/out", "*/out"].map(|name| bench.url(name)), &bench.here("v/")), &options())?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (1, 1), "{:?}", told.summary);
        Ok(())
    })
}

#[test]
fn sources_of_one_mirror_do_not_remove_each_other() -> Result<()> {
    let here = Scratch::new()?;
    let at = |name: &str| Location::Local(format!("{}/{name}", here.path().display()).into());
    write(&here.join("a/x"), b"x")?;
    write(&here.join("b/y"), b"y")?;
    let mirror = options().with(|o| {
        o.selection.sync = Some(SyncLevel::Size);
        o.selection.delete = true;
    });
    for (one, other) in [(at("t/"), at("t/")), (at("t"), at("t/sub/")), (at("t/sub/"), at("t/"))] {
        let pair = |source: &str, destination| Pair { source: at(source), destination, window: None };
        ensure!(run_pairs(vec![pair("a/", one), pair("b/", other)], &mirror).is_err());
    }
    ensure!(!here.join("t").exists());
    // The directories have different names.
    for _ in 0..2 {
        run_pairs(pairs([at("a"), at("b")], &at("t/")), &mirror)?.succeeded()?;
    }
    ensure!(here.join("t/a/x").is_file() && here.join("t/b/y").is_file());
    Ok(())
}

#[test]
fn a_directory_is_not_copied_into_itself() -> Result<()> {
    let inside = |path: &std::path::Path, source: Location, within: Location| {
        write(&path.join("d/f"), b"x")?;
        let told = run(source, within, &options())?;
        ensure!(told.summary.files_failed == 1, "{:?}", told.summary);
        ensure!(fs::read_dir(path.join("d"))?.count() == 1, "something was made");
        Ok(())
    };
    let here = Scratch::new()?;
    std::os::unix::fs::symlink("d", here.join("link"))?;
    let at = |name: &str| Location::Local(format!("{}/{name}", here.path().display()).into());
    for within in ["d/backup/", "d/", "link/a/b"] {
        inside(here.path(), at("d"), at(within))?;
    }
    run(at("d"), at("dd"), &options())?.succeeded()?;
    let without = options().with(|o| o.selection.filters = vec![(false, "/backup".into())]);
    for _ in 0..2 {
        run(at("d/"), at("d/backup/"), &without)?.succeeded()?;
    }
    ensure!(here.join("d/backup/f").is_file() && !here.join("d/backup/backup").exists());
    each(&gridftp(), |bench| inside(bench.remote.path(), bench.url("d"), bench.url("d/backup/")))
}

#[test]
fn what_a_pattern_matches_is_told_or_copied() -> Result<()> {
    each(&servers(), |bench| {
        for name in ["d/one/f", "d/two/f"] {
            write(&bench.remote.join(name), b"x")?;
        }
        let flat = options().with(|o| o.selection.recursive = false);
        let told = run(bench.url("d/*"), bench.here("t/"), &flat)?;
        ensure!(told.summary.files_failed == 1, "nothing but directories: {:?}", told.summary);
        for name in ["e/keep", "e/x.tmp"] {
            write(&bench.remote.join(name), b"x")?;
        }
        let filtered = options().with(|o| o.selection.filters = vec![(false, "*.tmp".into())]);
        run(bench.url("e/*"), bench.here("t/"), &filtered)?.succeeded()?;
        ensure!(bench.local.join("t/keep").is_file() && !bench.local.join("t/x.tmp").exists());
        // The files would arrive in any order.
        let told = run(bench.url("e/*"), Location::Standard, &options())?;
        ensure!((told.summary.files_done, told.summary.files_failed) == (1, 1), "{:?}", told.summary);
        Ok(())
    })
}

/// Listings without times do not show that the source has another version.
#[test]
fn versions_of_a_source_are_not_mixed() -> Result<()> {
    each(&servers(), |bench| {
        let size = 24 * MIB;
        write_random(&bench.remote.join("d/f"), size, 6)?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(10 * MIB));
        let from = place(&bench.server.url_at(proxy.address(), "d/"));
        let options = options().with(|o| o.integrity.checksum = ChecksumPolicy::None);
        let cancel = Cancel::new();
        let told = run_until(pairs([from.clone()], &bench.here("t/")), &options, &cancel, &|event| {
            if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB) {
                cancel.cancel();
            }
        })?;
        ensure!(told.summary.interrupted, "{:?}", told.summary);
        write_random(&bench.remote.join("d/f"), size, 7)?;
        let later = SystemTime::now() + Duration::from_secs(60);
        fs::File::open(bench.remote.join("d/f"))?.set_modified(later)?;
        proxy.set_rate(None);
        run(from, bench.here("t/"), &options)?.succeeded()?;
        ensure_same(&bench.remote.join("d/f"), &bench.local.join("t/f"))
    })
}

#[test]
fn what_is_not_there_is_not_found() -> Result<()> {
    each(&servers(), |bench| {
        let Location::Remote(url) = bench.url("nothing") else { anyhow::bail!("not a URL") };
        let mut remote = Remote::connect(&url, &options())?;
        let error = remote.stat(&url.path).err().map(|error| error.failure_kind());
        ensure!(error == Some(FailureKind::NotFound), "{error:?}");
        remote.quit();
        Ok(())
    })
}

#[test]
fn long_pauses_between_signs_of_life_are_possible() -> Result<()> {
    each(&[Kind::Vsftpd], |bench| {
        write(&bench.remote.join("f"), b"x")?;
        for keepalive in [Duration::from_secs(12 * 3600), Duration::ZERO] {
            run(bench.url("f"), bench.here("f"), &options().with(|o| o.timeouts.keepalive = keepalive))?
                .succeeded()?;
        }
        Ok(())
    })
}

/// Runs while another thread appends to `file`.
fn appending<T>(file: &Path, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let over = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<()> {
            let mut file = fs::File::options().append(true).open(file)?;
            while over.load(Ordering::Relaxed) == 0 {
                file.write_all(&[b'y'; 100])?;
                // This is slower than the file is read.
                std::thread::sleep(Duration::from_micros(100));
            }
            Ok(())
        });
        let result = run();
        over.store(1, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow::anyhow!("a panic"))??;
        result
    })
}

/// For example a log: the copy has the content that the file had at some time, which its checksum
/// proves. Without a checksum the change is reported.
#[test]
fn a_file_that_grows_is_copied_as_it_was() -> Result<()> {
    each(&gridftp(), |bench| {
        for (size, checksum) in [
            (1 << 10, ChecksumPolicy::Default),
            (1 << 20, ChecksumPolicy::Default),
            (24 << 20, ChecksumPolicy::Default),
            (24 << 20, ChecksumPolicy::None),
        ] {
            let proves = checksum == ChecksumPolicy::Default;
            let local = (bench.local.join("s"), bench.here("s"));
            let there = (bench.remote.join("s"), bench.url("s"));
            for (source, to, url) in [
                (&there, bench.local.join("t"), bench.here("t")),
                (&there, bench.remote.join("v"), bench.url("v")),
                (&local, bench.remote.join("t"), bench.url("t")),
                (&local, bench.local.join("u"), bench.here("u")),
            ] {
                write(&source.0, &vec![b'x'; size])?;
                let options = options().with(|o| {
                    o.recovery.retries = 3;
                    o.integrity.checksum = checksum;
                });
                let told = appending(&source.0, || run(source.1.clone(), url, &options))?;
                let failed = &told.summary.failures;
                if !proves {
                    // The file may have been read before it changed.
                    ensure!(failed.iter().all(|f| f.kind == FailureKind::Other), "{failed:?}");
                    continue;
                }
                ensure!(failed.is_empty(), "{size} to {}: {failed:?}", to.display());
                let (whole, copy) = (fs::read(&source.0)?, fs::read(&to)?);
                ensure!(copy.len() >= size && whole.starts_with(&copy), "{size} to {}", to.display());
                fs::remove_file(&to)?;
            }
        }
        Ok(())
    })
}

/// Between servers, sizes do not reveal the change if no checksums are compared.
#[test]
fn a_file_that_changes_between_servers_is_sent_again() -> Result<()> {
    each(&gridftp(), |bench| {
        let source = bench.remote.join("f");
        for (checksum, tries) in [(ChecksumPolicy::None, 2), (ChecksumPolicy::Default, 1)] {
            write_random(&source, 6 * MIB, 1)?;
            let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            fs::File::open(&source)?.set_modified(old)?;
            let begun = AtomicU32::new(0);
            let options = options().with(|o| {
                o.recovery.retries = 1;
                o.integrity.checksum = checksum;
            });
            let pairs = pairs([bench.url("f")], &bench.url("t"));
            let told = run_until(pairs, &options, &Cancel::new(), &|event| {
                if matches!(event, Event::FileStarted { .. })
                    && begun.fetch_add(1, Ordering::Relaxed) == 0
                    && let Ok(file) = fs::File::open(&source)
                {
                    let _ = file.set_modified(old + Duration::from_secs(60));
                }
            })?
            .succeeded()?;
            ensure!(begun.load(Ordering::Relaxed) == tries, "{checksum:?}: {:?}", told.events);
            ensure_same(&source, &bench.remote.join("t"))?;
        }
        Ok(())
    })
}

/// The file is written to during its download. The result would be a mixture of two versions,
/// whatever the checksums.
#[test]
fn a_file_that_changes_on_its_way_is_fetched_again() -> Result<()> {
    each(&gridftp(), |bench| {
        let source = bench.remote.join("f");
        let proxy = Proxy::start(bench.server.address())?;
        let url = place(&bench.server.url_at(proxy.address(), "f"));
        for checksum in [ChecksumPolicy::Default, ChecksumPolicy::None] {
            write_random(&source, 24 * MIB, 1)?;
            fs::File::open(&source)?
                .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))?;
            proxy.set_rate(Some(16 * MIB));
            let begin = proxy.moved();
            let told = std::thread::scope(|scope| {
                let change = scope.spawn(|| -> Result<()> {
                    proxy.wait_for(begin + MIB, Duration::from_secs(60))?;
                    proxy.stall(true);
                    let file = fs::File::options().write(true).open(&source)?;
                    file.write_all_at(b"new head", 0)?;
                    file.write_all_at(b"new tail", 24 * MIB - 8)?;
                    proxy.stall(false);
                    proxy.set_rate(None);
                    Ok(())
                });
                let options = options().with(|o| {
                    o.recovery.retries = 1;
                    o.integrity.checksum = checksum;
                    o.tuning.files = Auto::Set(1);
                });
                let told = run(url.clone(), bench.here("f"), &options);
                change.join().map_err(|_| anyhow::anyhow!("a panic"))??;
                told
            })?
            .succeeded()?;
            ensure!(told.summary.retries == 1, "{checksum:?}: {:?}", told.events);
            ensure_same(&source, &bench.local.join("f"))?;
        }
        Ok(())
    })
}

/// The question is sent together with the other commands, and no other transfer waits for its
/// answer.
#[test]
fn sources_are_looked_at_in_the_pipeline() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Gct)? else { return Ok(()) };
    for n in 0..40 {
        write(&bench.remote.join("s").join(n.to_string()), b"x")?;
    }
    let options = options().with(|o| {
        o.tuning.files = Auto::Set(1);
        o.trace_control = true;
    });
    let told = run(bench.url("s/"), bench.here("t/"), &options)?.succeeded()?;
    let sent: Vec<&str> = told
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Dialogue { direction: '>', line, .. } => line.split(' ').next(),
            _ => None,
        })
        .skip_while(|verb| *verb != "RETR")
        .filter(|verb| ["RETR", "CKSM", "MLST"].contains(verb))
        .collect();
    ensure!(sent.len() == 120 && sent.chunks(3).all(|three| three == ["RETR", "CKSM", "MLST"]), "{sent:?}");
    Ok(())
}

/// Listings may report another time for a link than for its target.
#[test]
fn what_links_lead_to_has_not_changed() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("target"), b"x")?;
        fs::File::open(bench.remote.join("target"))?
            .set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000))?;
        fs::create_dir(bench.remote.join("s"))?;
        std::os::unix::fs::symlink("../target", bench.remote.join("s/link"))?;
        for checksum in [ChecksumPolicy::Default, ChecksumPolicy::None] {
            for (from, to) in [("s/", "tree"), ("s/l*", "pattern"), ("s/link", "file/link")] {
                let options = options().with(|o| {
                    o.recovery.retries = 0;
                    o.integrity.checksum = checksum;
                });
                run(bench.url(from), bench.here(&format!("{to}/")), &options)?.succeeded()?;
            }
            for copy in ["tree/link", "pattern/link"] {
                ensure!(fs::read(bench.local.join(copy))? == b"x", "{copy}");
                fs::remove_file(bench.local.join(copy))?;
            }
        }
        Ok(())
    })
}
