//! Connections that break, stall or are slow, and runs that are stopped.

mod common;

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, Cancel, ChecksumPolicy, DataMode, Event, FailureKind, Location, Pair, StallLimit,
};
use ropewalk_tests::fake_server::{Data, FakeServer};
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::Kind;
use ropewalk_tests::tree;

const MIB: u64 = 1 << 20;

#[test]
fn a_cut_connection_is_made_again_and_goes_on() -> Result<()> {
    each(&servers(), |bench| {
        let size = 24 * MIB;
        write_random(&bench.local.join("f"), size, 1)?;
        write_random(&bench.remote.join("f"), size, 1)?;
        for get in [true, false] {
            let proxy = Proxy::start(bench.server.address())?;
            proxy.set_rate(Some(20 * MIB));
            proxy.cut_after(12 * MIB);
            let through = |name: &str| place(&bench.server.url_at(proxy.address(), name));
            let (from, to, copied) = if get {
                (through("f"), bench.here("back"), bench.local.join("back"))
            } else {
                (bench.here("f"), through("up"), bench.remote.join("up"))
            };
            let state = bench.local.directory("state")?;
            let options = options().with(|o| {
                o.state_directory = Some(state);
                o.tuning.streams = Auto::Set(2);
            });
            let told = run(from, to, &options)?.succeeded()?;
            ensure!(told.summary.retries >= 1, "{:?}", told.summary);
            ensure_same(&bench.local.join("f"), &copied)?;
            // Data that has arrived is not sent again, except for what was in the receiver's
            // buffers. Of an upload, only the data that a marker reported is known to have arrived.
            let most = if get { size + 8 * MIB } else { 2 * size };
            ensure!(proxy.moved() <= most, "{} bytes moved for {size}", proxy.moved());
        }
        ensure_clean(bench.remote.path())?;
        ensure_clean(bench.local.path())?;
        Ok(())
    })
}

/// GCT's server writes the received part of an interrupted block to the beginning of the file. Here
/// no checksum reveals it.
#[test]
fn what_a_cut_leaves_at_the_beginning_is_sent_again() -> Result<()> {
    each(&gridftp(), |bench| {
        write_random(&bench.local.join("f"), 24 * MIB, 1)?;
        write_random(&bench.remote.join("f"), 24 * MIB, 1)?;
        // One session, and several that divide a file.
        for (round, files) in [1, 1, 4, 4].into_iter().enumerate() {
            for from in [bench.here("f"), bench.url("f")] {
                let proxy = Proxy::start(bench.server.address())?;
                proxy.set_rate(Some(40 * MIB));
                proxy.cut_after((6 + 5 * (round as u64 % 2)) * MIB + 100_001);
                let options = {
                    let mut o = options();
                    o.state_directory = Some(bench.local.directory("state")?);
                    o.integrity.checksum = ChecksumPolicy::None;
                    o.tuning.files = Auto::Set(files);
                    o.tuning.streams = Auto::Set(1);
                    o
                };
                let told =
                    run(from, place(&bench.server.url_at(proxy.address(), "up")), &options)?.succeeded()?;
                ensure!(told.summary.retries >= 1, "{:?}", told.summary);
                ensure_same(&bench.local.join("f"), &bench.remote.join("up"))?;
                fs::remove_file(bench.remote.join("up"))?;
            }
        }
        ensure_clean(bench.remote.path())
    })
}

#[test]
fn a_cut_between_servers_is_survived() -> Result<()> {
    each(&gridftp(), |bench| {
        write_random(&bench.remote.join("f"), 24 * MIB, 1)?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(20 * MIB));
        proxy.cut_after(12 * MIB);
        let to = place(&bench.server.url_at(proxy.address(), "third"));
        let options = {
            let mut o = options();
            o.state_directory = Some(bench.local.directory("state")?);
            o
        };
        let told = run(bench.url("f"), to, &options)?.succeeded()?;
        ensure!(told.summary.retries >= 1, "{:?}", told.summary);
        ensure_same(&bench.remote.join("f"), &bench.remote.join("third"))?;
        ensure_clean(bench.remote.path())
    })
}

/// The data of the first try belongs to another version of the same length. No checksum would
/// reveal that.
#[test]
fn a_source_that_changes_between_two_tries_is_sent_anew() -> Result<()> {
    for here in [false, true] {
        changing(here)?;
    }
    Ok(())
}

fn changing(here: bool) -> Result<()> {
    each(&gridftp(), |bench| {
        let source = bench.remote.join("f");
        write_random(&source, 24 * MIB, 1)?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(8 * MIB));
        proxy.cut_after(20 * MIB);
        let proxied = |path| place(&bench.server.url_at(proxy.address(), path));
        let state_directory = Some(bench.local.directory("state")?);
        let options = options().with(|o| {
            o.state_directory = state_directory;
            o.integrity.checksum = ChecksumPolicy::None;
        });
        let changed = AtomicBool::new(false);
        let (pair, arrived) = match here {
            true => ((proxied("f"), bench.here("third")), bench.local.join("third")),
            false => ((bench.url("f"), proxied("third")), bench.remote.join("third")),
        };
        let pair = Pair { source: pair.0, destination: pair.1, window: None };
        let told = run_until(vec![pair], &options, &Cancel::new(), &|event| {
            if matches!(event, Event::Progress { bytes, .. } if *bytes > 2 * MIB)
                && !changed.swap(true, Ordering::Relaxed)
            {
                let other = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
                let new = bench.remote.join("new");
                let _ = write_random(&new, 24 * MIB, 2)
                    .and_then(|()| Ok(fs::File::options().write(true).open(&new)?.set_modified(other)?))
                    .and_then(|()| Ok(fs::rename(&new, &source)?));
            }
        })?;
        ensure!(told.summary.retries >= 1 && changed.into_inner(), "{:?}", told.summary);
        told.succeeded()?;
        ensure_same(&source, &arrived)?;
        ensure_clean(bench.remote.path())
    })
    .with_context(|| format!("here: {here}"))
}

#[test]
fn a_stopped_run_is_taken_up() -> Result<()> {
    each(&gridftp(), |bench| {
        let size = 24 * MIB;
        write_random(&bench.local.join("f"), size, 2)?;
        write_random(&bench.remote.join("f"), size, 2)?;
        let proxy = Proxy::start(bench.server.address())?;
        let through = |name: &str| place(&bench.server.url_at(proxy.address(), name));
        for (source, destination, copied) in [
            (through("f"), bench.here("back"), bench.local.join("back")),
            (bench.here("f"), through("up"), bench.remote.join("up")),
            (bench.url("f"), through("third"), bench.remote.join("third")),
        ] {
            proxy.set_rate(Some(5 * MIB));
            let pairs = vec![Pair { source, destination, window: None }];
            let state = bench.local.directory("state")?;
            let options = options().with(|o| o.state_directory = Some(state.clone()));
            let cancel = Cancel::new();
            let began = Instant::now();
            let here = matches!(&pairs[0].destination, Location::Local(_));
            let told = run_until(pairs.clone(), &options, &cancel, &|event| {
                // The copy is stopped after a marker, if only markers report the data that has
                // arrived, because the beginning of the file is not trusted then.
                if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB)
                    && (here || journaled(&state) >= 8 * MIB)
                {
                    cancel.cancel();
                }
            })?;
            ensure!(
                told.summary.interrupted && began.elapsed() < Duration::from_secs(60),
                "{:?}",
                told.summary
            );
            ensure!(told.summary.failures[0].kind == FailureKind::Interrupted, "{:?}", told.summary);
            ensure!(!copied.exists(), "{copied:?}: {:?}", told.summary);
            proxy.set_rate(None);
            let told = run_pairs(pairs, &options)?.succeeded()?;
            let resumed = told.summary.bytes_resumed;
            let what: Vec<_> = told.events.iter().filter(|e| !matches!(e, Event::Progress { .. })).collect();
            ensure!(
                resumed >= 4 * MIB && told.summary.bytes + resumed == size,
                "{:?}: {what:?}",
                told.summary
            );
            ensure_same(&bench.local.join("f"), &copied)?;
        }
        ensure_clean(bench.remote.path())?;
        ensure_clean(bench.local.path())?;
        ensure!(fs::read_dir(bench.local.join("state"))?.next().is_none(), "a journal was left");
        Ok(())
    })
}

/// The session of a killed client may still hold the part file when the next session asks for it.
#[test]
fn what_is_still_held_is_not_begun_anew() -> Result<()> {
    each(&gridftp(), |bench| {
        if bench.server.kind() != Kind::Ropewalk {
            return Ok(());
        }
        let size = 24 * MIB;
        write_random(&bench.local.join("f"), size, 6)?;
        write_random(&bench.remote.join("f"), size, 6)?;
        let proxy = Proxy::start(bench.server.address())?;
        let state = bench.local.directory("state")?;
        let options = options().with(|o| {
            o.state_directory = Some(state);
            o.trace_control = true;
            o.recovery.retries = 0;
        });
        for (source, name) in [(bench.here("f"), "up"), (bench.url("f"), "third")] {
            let destination = place(&bench.server.url_at(proxy.address(), name));
            let pairs = vec![Pair { source, destination, window: None }];
            proxy.set_rate(Some(10 * MIB));
            let cancel = Cancel::new();
            let told = run_until(pairs.clone(), &options, &cancel, &|event| {
                if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB) {
                    cancel.cancel();
                }
            })?;
            ensure!(told.summary.interrupted, "{:?}", told.summary);
            proxy.set_rate(None);
            let part = fs::File::open(bench.remote.join(format!(".{name}.ropewalk-part")))?;
            part.lock()?;
            let refused = AtomicBool::new(false);
            let told = run_until(pairs, &options, &Cancel::new(), &|event| {
                // Unlocked as soon as the server has reported the lock.
                if matches!(event, Event::Dialogue { direction: '<', line, .. } if line.contains("TOO_BUSY"))
                {
                    refused.store(true, Ordering::Relaxed);
                    let _ = part.unlock();
                }
            })?
            .succeeded()?;
            ensure!(refused.load(Ordering::Relaxed), "nothing was busy");
            ensure!(told.summary.bytes_resumed >= 4 * MIB, "{:?}", told.summary);
            ensure_same(&bench.local.join("f"), &bench.remote.join(name))?;
        }
        ensure_clean(bench.remote.path())
    })
}

#[test]
fn a_stall_is_noticed() -> Result<()> {
    each(&gridftp(), |bench| {
        write_random(&bench.remote.join("f"), 4 * MIB, 3)?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.stall(true);
        let limit = StallLimit { bytes_per_second: 1, time: Duration::from_secs(1) };
        let options = options().with(|o| {
            o.timeouts.stall = Some(limit);
            o.data.mode = DataMode::Stream;
        });
        let pair = Pair {
            source: place(&bench.server.url_at(proxy.address(), "f")),
            destination: bench.here("f"),
            window: None,
        };
        let failed = AtomicBool::new(false);
        let told = run_until(vec![pair], &options, &Cancel::new(), &|event| {
            if let Event::FileFailed { .. } = event {
                failed.store(true, Ordering::Relaxed);
                proxy.stall(false);
            }
        })?;
        told.succeeded()?;
        ensure!(failed.load(Ordering::Relaxed));
        ensure_same(&bench.remote.join("f"), &bench.local.join("f"))
    })
}

#[test]
fn a_server_that_is_gone_is_given_up() -> Result<()> {
    each(&gridftp(), |mut bench| {
        tree::make_many(&bench.local.join("s"), 30, 500)?;
        let url = bench.url("up/");
        bench.server.kill();
        let told = run(bench.here("s/"), url, &options().with(|o| o.recovery.retries = 2))?;
        ensure!(told.summary.files_done == 0 && told.summary.files_failed > 0, "{:?}", told.summary);
        ensure!(told.summary.failures[0].kind == FailureKind::Unreachable, "{:?}", told.summary);
        Ok(())
    })
}

#[test]
fn a_source_that_changes_is_not_taken_for_whole() -> Result<()> {
    each(&gridftp(), |bench| {
        let file = bench.local.join("f");
        write_random(&file, 16 * MIB, 4)?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(16 * MIB));
        let pair = Pair {
            source: bench.here("f"),
            destination: place(&bench.server.url_at(proxy.address(), "up")),
            window: None,
        };
        let changed = AtomicBool::new(false);
        let told = run_until(vec![pair], &options(), &Cancel::new(), &|event| {
            if matches!(event, Event::Progress { bytes, .. } if *bytes > 2 * MIB)
                && !changed.swap(true, Ordering::Relaxed)
            {
                let _ = write_random(&file, 17 * MIB, 5);
                proxy.set_rate(None);
            }
        })?;
        ensure!(told.summary.retries >= 1, "{:?}", told.summary);
        told.succeeded()?;
        ensure_same(&file, &bench.remote.join("up"))
    })
}

#[test]
fn a_server_that_cannot_call_back_is_asked_the_other_way() -> Result<()> {
    let here = Scratch::new()?;
    let server = FakeServer::start(
        3,
        Arc::new(|_verb: &str, data: &Data, control: &mut TcpStream| {
            // A firewall drops the connection from the server.
            if let Data::Listen(_) = data {
                let mut data = data.open()?;
                control.write_all(b"150 here it comes\r\n")?;
                data.write_all(b"abc")?;
                drop(data);
                control.write_all(b"226 done\r\n")?;
            }
            Ok(())
        }),
    )?;
    let options = options().with(|o| o.timeouts.connect = Duration::from_millis(200));
    let from = place(&format!("ftp://{}/f", server.address()));
    let to = Location::Local(here.join("f"));
    let told = run(from, to, &options)?.succeeded()?;
    ensure!(fs::read(here.join("f"))? == b"abc");
    ensure!(told.count(|e| matches!(e, Event::Warning { message } if message.contains("firewall"))) == 1);
    Ok(())
}

/// Servers may end any session, including those that list and make directories.
#[test]
fn the_sessions_that_find_and_make_things_may_break() -> Result<()> {
    let archive = || {
        options().with(|o| {
            o.preserve = ropewalk_client::Preserve { times: true, modes: true, links: true };
            o.recovery.retries = 5;
        })
    };
    each(&gridftp(), |bench| {
        for n in 0..30 {
            write(&bench.local.join(format!("s/d{n}/f")), b"x")?;
            write(&bench.remote.join(format!("s/d{n}/f")), b"x")?;
            std::os::unix::fs::symlink("f", bench.local.join(format!("s/d{n}/link")))?;
        }
        let whole =
            |top: &std::path::Path| (0..30).all(|n| top.join(format!("d{n}/f")).is_file()) && top.exists();
        let proxy = Proxy::start(bench.server.address())?;
        let through = |name: &str| place(&bench.server.url_at(proxy.address(), name));
        for (round, command) in ["MKD", "SITE SYMLINK", "SITE CHMOD", "MLST", "SIZE"].into_iter().enumerate()
        {
            proxy.cut_on(command, 2);
            let told = run(bench.here("s"), through(&format!("up{round}")), &archive())?;
            told.succeeded().with_context(|| format!("up, {command}"))?;
            let top = bench.remote.join(format!("up{round}"));
            ensure!(whole(&top), "{command}");
            ensure!((0..30).all(|n| top.join(format!("d{n}/link")).is_symlink()), "{command}");
            let at_once = command.starts_with("SITE") || command == "MKD";
            ensure!(!at_once || proxy.cuts_due() == 0, "{command} was never said");
        }
        proxy.cut_on("ML", 2);
        run(through("s/d*"), bench.here("down/"), &options())?.succeeded().context("a pattern")?;
        ensure!(proxy.cuts_due() == 0, "nothing was listed");
        ensure!(whole(&bench.local.join("down")));
        Ok(())
    })
}
