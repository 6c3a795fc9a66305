//! Losses that must not go unnoticed: files that were not renamed, data that could not be read at
//! the source, data that arrives out of order, and corrupted data.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{
    Auto, Cancel, ChecksumPolicy, DataMode, Event, Location, Pair, Preserve, Remote, SyncLevel, Window,
};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::Kind;

const MIB: u64 = 1 << 20;

/// The part file is removed during the transfer. The first try must not succeed, and must not
/// report success.
#[test]
fn a_download_that_got_no_name_is_not_done() -> Result<()> {
    each(&servers(), |bench| {
        write_random(&bench.remote.join("f"), 6 * MIB, 1)?;
        write(&bench.local.join("back"), b"old")?;
        let part = bench.local.join(".back.ropewalk-part");
        for retries in [0, 2] {
            let removed = AtomicBool::new(false);
            let pairs = vec![Pair { source: bench.url("f"), destination: bench.here("back"), window: None }];
            let told =
                run_until(pairs, &options().with(|o| o.recovery.retries = retries), &Cancel::new(), &|_| {
                    if !removed.load(Ordering::Relaxed) && fs::remove_file(&part).is_ok() {
                        removed.store(true, Ordering::Relaxed);
                    }
                })?
                .succeeded()?;
            ensure!(removed.load(Ordering::Relaxed) && told.summary.retries >= 1, "{:?}", told.summary);
            ensure_same(&bench.remote.join("f"), &bench.local.join("back"))?;
            write(&bench.local.join("back"), b"old")?;
        }
        ensure_clean(bench.local.path())
    })
}

#[test]
fn what_cannot_be_read_at_the_source_is_not_removed() -> Result<()> {
    each(&servers(), |bench| {
        for alone in [true, false] {
            let (from, to) = (bench.local.join("s/d"), bench.remote.join("d/d"));
            fs::create_dir_all(&from)?;
            symlink("/nowhere/data", from.join("data"))?;
            write(&to.join("data/f"), b"from when it was there")?;
            write(&to.join("other"), b"x")?;
            if !alone {
                write(&from.join("other"), b"y")?;
            }
            let sync = options().with(|o| {
                o.selection.sync = Some(SyncLevel::Size);
                o.selection.delete = true;
            });
            let told = run(bench.here("s/"), bench.url("d/"), &sync)?;
            ensure!(told.summary.files_failed == 1, "{:?}", told.summary);
            ensure!(to.join("data/f").is_file(), "alone: {alone}: {:?}", told.summary);
            fs::remove_dir_all(bench.local.join("s"))?;
        }
        Ok(())
    })
}

#[test]
fn a_directory_takes_the_place_of_a_file_that_is_removed() -> Result<()> {
    each(&servers(), |bench| {
        write(&bench.local.join("s/x/f"), b"within")?;
        fs::create_dir_all(bench.local.join("s/empty"))?;
        for name in ["x", "empty"] {
            write(&bench.remote.join("d").join(name), b"a file")?;
        }
        // Another transfer of the file is in progress.
        write(&bench.remote.join("d/.big.ropewalk-part"), b"part")?;
        let sync = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.selection.delete = true;
        });
        run(bench.here("s/"), bench.url("d/"), &sync)?.succeeded()?;
        ensure!(fs::read(bench.remote.join("d/x/f"))? == b"within");
        ensure!(bench.remote.join("d/empty").is_dir());
        ensure!(bench.remote.join("d/.big.ropewalk-part").is_file());
        Ok(())
    })
}

#[test]
fn a_pipe_gets_bytes_in_order() -> Result<()> {
    each(&gridftp(), |bench| {
        let data = bench.remote.join("f");
        write_random(&data, 40 * MIB, 2)?;
        let pipe = bench.local.join("pipe");
        make_pipe(&pipe)?;
        // The test opens both ends of the pipe, because an open of one end waits for the other.
        let mut reader = fs::File::options().read(true).write(true).open(&pipe)?;
        let expected = fs::read(&data)?;
        let length = expected.len();
        let got = std::thread::spawn(move || {
            let mut got = vec![0; length];
            reader.read_exact(&mut got).map(|()| got)
        });
        let options = options().with(|o| {
            o.tuning.streams = Auto::Set(4);
            o.tuning.files = Auto::Set(3);
        });
        run(bench.url("f"), bench.here("pipe"), &options)?.succeeded()?;
        let got = got.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        ensure!(got == expected, "the bytes are not in order");
        Ok(())
    })
}

/// No process writes to the pipe or closes it.
#[test]
fn an_upload_from_a_silent_pipe_can_be_given_up() -> Result<()> {
    each(&servers(), |bench| {
        let pipe = bench.local.join("pipe");
        make_pipe(&pipe)?;
        let _writer = fs::File::options().read(true).write(true).open(&pipe)?;
        let pairs = vec![Pair { source: bench.here("pipe"), destination: bench.url("f"), window: None }];
        let cancel = Cancel::new();
        let told = run_until(pairs, &options(), &cancel, &|event| {
            if matches!(event, Event::FileStarted { .. }) {
                cancel.cancel();
            }
        })?;
        ensure!(told.summary.interrupted && !bench.remote.join("f").exists(), "{:?}", told.summary);
        Ok(())
    })
}

#[test]
fn nothing_is_read_back_from_a_pipe() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("f"), b"0123456789")?;
        let pipe = bench.local.join("pipe");
        make_pipe(&pipe)?;
        let _reader = fs::File::options().read(true).write(true).open(&pipe)?;
        let options = options().with(|o| o.integrity.checksum = ChecksumPolicy::Require(Algorithm::Md5));
        let told = run(bench.url("f"), bench.here("pipe"), &options)?;
        ensure!(told.summary.files_failed == 1, "{:?}", told.summary);
        Ok(())
    })
}

/// The data that a server has of an interrupted upload is corrupted. The checksum reveals that, and
/// the data is sent again.
#[test]
fn what_arrived_wrong_is_sent_again() -> Result<()> {
    each(&gridftp(), |bench| {
        let size = 24 * MIB;
        write_random(&bench.local.join("f"), size, 3)?;
        write_random(&bench.remote.join("f"), size, 3)?;
        let proxy = Proxy::start(bench.server.address())?;
        let state = bench.local.directory("state")?;
        let options = options().with(|o| o.state_directory = Some(state.clone()));
        for (source, name) in [(bench.here("f"), "up"), (bench.url("f"), "third")] {
            proxy.set_rate(Some(5 * MIB));
            let destination = place(&bench.server.url_at(proxy.address(), name));
            let pairs = vec![Pair { source, destination, window: None }];
            let cancel = Cancel::new();
            let told = run_until(pairs.clone(), &options, &cancel, &|event| {
                if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB)
                    && journaled(&state) >= 9 * MIB
                {
                    cancel.cancel();
                }
            })?;
            ensure!(told.summary.interrupted, "{:?}", told.summary);
            proxy.set_rate(None);
            // The damage is behind the beginning, which is sent again in any case.
            let part = part_in(bench.remote.path(), name)?;
            fs::File::options().write(true).open(part)?.write_all_at(b"not what was sent", 9 * MIB / 2)?;
            let told = run_pairs(pairs, &options)?.succeeded()?;
            ensure!(told.summary.bytes_resumed >= 4 * MIB && told.summary.retries >= 1, "{:?}", told.summary);
            ensure_same(&bench.local.join("f"), &bench.remote.join(name))?;
        }
        ensure_clean(bench.remote.path())
    })
}

/// GCT's server writes the received part of a block there if the connection breaks, and no checksum
/// reveals it.
#[test]
fn the_beginning_at_gcts_server_is_not_believed() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Gct)? else { return Ok(()) };
    write_random(&bench.local.join("f"), 24 * MIB, 3)?;
    let proxy = Proxy::start(bench.server.address())?;
    proxy.set_rate(Some(5 * MIB));
    let state = bench.local.directory("state")?;
    let checksum = ChecksumPolicy::None;
    let options = options().with(|o| {
        o.state_directory = Some(state.clone());
        o.integrity.checksum = checksum;
    });
    let destination = place(&bench.server.url_at(proxy.address(), "up"));
    let pairs = vec![Pair { source: bench.here("f"), destination, window: None }];
    let cancel = Cancel::new();
    let told = run_until(pairs.clone(), &options, &cancel, &|event| {
        if matches!(event, Event::Progress { .. }) && journaled(&state) >= 9 * MIB {
            cancel.cancel();
        }
    })?;
    ensure!(told.summary.interrupted, "{:?}", told.summary);
    proxy.set_rate(None);
    let part = part_in(bench.remote.path(), "up")?;
    fs::File::options().write(true).open(part)?.write_all_at(&[7; 256 << 10], 0)?;
    let told = run_pairs(pairs, &options)?.succeeded()?;
    ensure!(told.summary.bytes_resumed >= 4 * MIB, "{:?}", told.summary);
    ensure_same(&bench.local.join("f"), &bench.remote.join("up"))
}

/// The data of an earlier run is read again before the file is renamed.
#[test]
fn what_was_written_to_meanwhile_comes_again() -> Result<()> {
    each(&gridftp(), |bench| {
        let size = 24 * MIB;
        write_random(&bench.remote.join("f"), size, 3)?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(20 * MIB));
        let source = place(&bench.server.url_at(proxy.address(), "f"));
        let pairs = vec![Pair { source, destination: bench.here("f"), window: None }];
        let cancel = Cancel::new();
        let told = run_until(pairs.clone(), &options(), &cancel, &|event| {
            if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB) {
                cancel.cancel();
            }
        })?;
        ensure!(told.summary.interrupted, "{:?}", told.summary);
        proxy.set_rate(None);
        let part = bench.local.join(".f.ropewalk-part");
        fs::File::options().write(true).open(part)?.write_all_at(b"not what came", 3 * MIB)?;
        let told = run_pairs(pairs, &options())?.succeeded()?;
        ensure!(told.summary.retries == 1, "{:?}", told.summary);
        ensure_same(&bench.remote.join("f"), &bench.local.join("f"))?;
        ensure_clean(bench.local.path())
    })
}

#[test]
fn a_pipe_is_copied_as_far_as_it_gives() -> Result<()> {
    let here = Scratch::new()?;
    let at = |name: &str| Location::Local(here.join(name));
    let pipe = here.join("pipe");
    make_pipe(&pipe)?;
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    for (window, wanted) in [
        (None, 0..data.len()),
        (Some(Window { offset: 1_000_000, length: Some(70_000) }), 1_000_000..1_070_000),
        (Some(Window { offset: 2_999_000, length: None }), 2_999_000..3_000_000),
    ] {
        write(&here.join("out"), b"old")?;
        let (path, bytes) = (pipe.clone(), data.clone());
        let writer = std::thread::spawn(move || {
            // A reader that has enough closes the pipe before its end.
            let _ = fs::File::options().write(true).open(path).and_then(|mut pipe| pipe.write_all(&bytes));
        });
        let pair = Pair { source: at("pipe"), destination: at("out"), window };
        run_pairs(vec![pair], &options())?.succeeded()?;
        writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        // A window is written at its offset in the existing file.
        ensure!(fs::read(here.join("out"))?[wanted.clone()] == data[wanted.clone()], "{window:?}");
        ensure!(fs::metadata(here.join("out"))?.len() == wanted.end as u64, "{window:?}");
        fs::remove_file(here.join("out"))?;
    }
    Ok(())
}

#[test]
fn endless_sources_end_with_the_window() -> Result<()> {
    each(&servers(), |bench| {
        let source = Location::Local("/dev/zero".into());
        let window = Some(Window { offset: 5, length: Some(1_000_000) });
        for destination in [bench.url("up"), bench.here("here")] {
            let pair = Pair { source: source.clone(), destination, window };
            run_pairs(vec![pair], &options())?.succeeded()?;
        }
        for copied in [bench.remote.join("up"), bench.local.join("here")] {
            ensure!(fs::read(&copied)? == vec![0; 1_000_005], "{copied:?}");
        }
        Ok(())
    })
}

/// The data around a window stays, and the window gets the content of the source, including its
/// holes.
#[test]
fn windows_are_put_in_the_place_of_what_is_there() -> Result<()> {
    each(&servers(), |bench| {
        let source = bench.local.join("s");
        let file = fs::File::create(&source)?;
        file.set_len(3 * MIB)?;
        file.write_all_at(b"head", 0)?;
        file.write_all_at(b"tail", 3 * MIB - 4)?;
        let mut expected = fs::read(&source)?;
        expected.extend(vec![b'o'; MIB as usize]);
        for mode in [DataMode::Stream, DataMode::Auto] {
            write(&bench.remote.join("d"), &vec![b'o'; 4 * MIB as usize])?;
            let window = Some(Window { offset: 0, length: Some(3 * MIB) });
            let pair = Pair { source: bench.here("s"), destination: bench.url("d"), window };
            let told = run_pairs(vec![pair], &options().with(|o| o.data.mode = mode))?;
            let there = fs::read(bench.remote.join("d"))?;
            if bench.server.kind() == Kind::Vsftpd {
                // This server can only replace whole files.
                ensure!(told.summary.files_failed == 1 && there == vec![b'o'; 4 * MIB as usize]);
            } else {
                told.succeeded()?;
                ensure!(there == expected, "{mode:?}: {} bytes", there.len());
            }
        }
        if bench.server.kind() != Kind::Vsftpd {
            write(&bench.remote.join("third"), &vec![b'o'; 4 * MIB as usize])?;
            write(&bench.remote.join("s"), &fs::read(&source)?)?;
            let window = Some(Window { offset: 0, length: Some(3 * MIB) });
            let pair = Pair { source: bench.url("s"), destination: bench.url("third"), window };
            run_pairs(vec![pair], &options().with(|o| o.data.through_here = true))?.succeeded()?;
            ensure!(fs::read(bench.remote.join("third"))? == expected);
        }
        Ok(())
    })
}

#[test]
fn a_link_that_cannot_be_made_destroys_nothing() -> Result<()> {
    each(&servers(), |bench| {
        write(&bench.local.join("s/f"), b"x")?;
        symlink("f", bench.local.join("s/link"))?;
        write(&bench.remote.join("d/link"), b"a file")?;
        let links = Preserve { links: true, ..Preserve::default() };
        let told = run(bench.here("s/"), bench.url("d/"), &options().with(|o| o.preserve = links))?;
        let there = bench.remote.join("d/link");
        if bench.server.kind() == Kind::Vsftpd {
            ensure!(told.summary.files_failed == 1 && fs::read(there)? == b"a file", "{:?}", told.summary);
        } else {
            told.succeeded()?;
            ensure!(there.is_symlink() && fs::read(there)? == b"x");
        }
        ensure_clean(&bench.remote.join("d"))
    })
}

#[test]
fn removing_a_link_leaves_what_it_leads_to() -> Result<()> {
    each(&servers(), |bench| {
        write(&bench.remote.join("archive/f"), b"x")?;
        for (name, recursive) in [("current", true), ("current/", true), ("current/", false)] {
            symlink("archive", bench.remote.join("current"))?;
            let Location::Remote(url) = bench.url(name) else { anyhow::bail!("not a URL") };
            let mut remote = Remote::connect(&url, &options())?;
            remote.remove(&url.path, recursive)?;
            remote.quit();
            ensure!(bench.remote.join("archive/f").is_file(), "{name}");
            ensure!(!bench.remote.join("current").is_symlink(), "{name}");
        }
        Ok(())
    })
}

#[test]
fn a_link_to_a_directory_is_the_same_the_second_time() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.local.join("s/d/f"), b"x")?;
        // GCT's server makes links absolute, and reports them so.
        let target = if bench.server.kind() == Kind::Gct { bench.remote.join("d/d") } else { "d".into() };
        symlink(&target, bench.local.join("s/link"))?;
        let preserve = Preserve { links: true, ..Preserve::default() };
        let sync = options().with(|o| {
            o.selection.sync = Some(SyncLevel::Size);
            o.preserve = preserve;
        });
        run(bench.here("s/"), bench.url("d/"), &sync)?.succeeded()?;
        let told = run(bench.here("s/"), bench.url("d/"), &sync)?.succeeded()?;
        ensure!(told.summary.files_done == 0, "{:?}", told.summary);
        Ok(())
    })
}

/// Two sources have one destination, and both copies are interrupted. Neither resumes with the
/// other's data.
#[test]
fn sources_are_not_mixed() -> Result<()> {
    each(&servers(), |bench| {
        let size = 24 * MIB;
        for (name, seed) in [("a", 4), ("b", 5)] {
            write_random(&bench.local.join(name), size, seed)?;
        }
        let proxy = Proxy::start(bench.server.address())?;
        let state = bench.local.directory("state")?;
        let checksum = ChecksumPolicy::None;
        let options = options().with(|o| {
            o.state_directory = Some(state);
            o.integrity.checksum = checksum;
            o.data.mode = DataMode::Stream;
        });
        let pairs = |name: &str| {
            let destination = place(&bench.server.url_at(proxy.address(), "up"));
            vec![Pair { source: bench.here(name), destination, window: None }]
        };
        for name in ["a", "b"] {
            proxy.set_rate(Some(10 * MIB));
            let cancel = Cancel::new();
            let told = run_until(pairs(name), &options, &cancel, &|event| {
                if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB) {
                    cancel.cancel();
                }
            })?;
            ensure!(told.summary.interrupted, "{:?}", told.summary);
        }
        proxy.set_rate(None);
        run_pairs(pairs("a"), &options)?.succeeded()?;
        ensure_same(&bench.local.join("a"), &bench.remote.join("up"))
    })
}

/// vsftpd reports success if it could not open a directory.
#[test]
fn a_listing_that_was_none_is_no_empty_directory() -> Result<()> {
    let here = Scratch::new()?;
    let told =
        run(place(&format!("{}/d/", falls_short("550 no")?)), Location::Local(here.join("copy")), &options());
    match told {
        Err(error) => ensure!(error.to_string().contains("failed to open"), "{error}"),
        Ok(told) => ensure!(told.summary.files_failed == 1, "{:?}", told.summary),
    }
    Ok(())
}

/// A file is read in order from a server that closes its data connection early and reports success.
#[test]
fn a_file_that_comes_in_part_is_no_whole_one() -> Result<()> {
    let Location::Remote(url) = place(&format!("{}/f", falls_short("213 17000")?)) else { unreachable!() };
    let mut remote = Remote::connect(&url, &options())?;
    let mut got = Vec::new();
    let whole = remote.read_to(b"/f", &mut got, None);
    ensure!(got.len() == SHORT.len(), "{}", got.len());
    let Err(error) = whole else { anyhow::bail!("it passes for whole") };
    ensure!(error.to_string() == "/f: only 100 of 17000 bytes arrived", "{error}");
    let beginning = remote.read_to(b"/f", &mut got, Some(Window { offset: 0, length: Some(60) }))?;
    ensure!(beginning == 60, "{beginning}");
    Ok(())
}

const SHORT: [u8; 100] = [b'x'; 100];

/// A plain server that opens no directory and sends only the beginning of files. `size` is its
/// reply to SIZE.
fn falls_short(size: &'static str) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("ftp://{}", listener.local_addr()?);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let _ = serve_short(client, size);
        }
    });
    Ok(url)
}

fn serve_short(client: TcpStream, size: &str) -> Result<()> {
    let mut out = client.try_clone()?;
    out.write_all(b"220 ready\r\n")?;
    let mut data = None;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let reply = match line.split(' ').next().unwrap_or_default() {
            "USER" => "230 in".to_owned(),
            "FEAT" | "SITE" => "500 no".to_owned(),
            "SIZE" => size.to_owned(),
            "MDTM" => "550 no".to_owned(),
            "PWD" => "257 \"/\" is here".to_owned(),
            "CWD" => "250 ok".to_owned(),
            "EPSV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let port = listener.local_addr()?.port();
                data = Some(listener);
                format!("229 Entering (|||{port}|)")
            }
            "PASV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let port = listener.local_addr()?.port();
                data = Some(listener);
                format!("227 Entering (127,0,0,1,{},{})", port >> 8, port & 255)
            }
            "RETR" => {
                out.write_all(b"150 Here it comes.\r\n")?;
                if let Some(listener) = &data {
                    listener.accept()?.0.write_all(&SHORT)?;
                }
                "226 Transfer complete.".to_owned()
            }
            "LIST" => {
                out.write_all(b"150 Here comes the directory listing.\r\n")?;
                if let Some(listener) = &data {
                    drop(listener.accept()?);
                }
                "226 Transfer done (but failed to open directory).".to_owned()
            }
            _ => "200 ok".to_owned(),
        };
        out.write_all(format!("{reply}\r\n").as_bytes())?;
    }
    Ok(())
}

fn make_pipe(path: &std::path::Path) -> Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?)
}

/// GCT's servers remove control characters, and so take one file for another.
#[test]
fn control_characters_do_not_make_one_file_of_two() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Gct)? else { return Ok(()) };
    for place in [bench.local.path(), bench.remote.path()] {
        write(&place.join("s/az"), b"first")?;
        write(&place.join("s/a\u{1}z"), b"other content")?;
    }
    for (from, to, copied) in [
        (bench.url("s/"), bench.here("down/"), bench.local.join("down")),
        (bench.here("s/"), bench.url("up/"), bench.remote.join("up")),
    ] {
        let told = run(from, to, &options().with(|o| o.recovery.retries = 0))?.summary;
        ensure!((told.files_done, told.files_failed) == (1, 1), "{told:?}");
        ensure!(fs::read(copied.join("az"))? == b"first" && !copied.join("a\u{1}z").exists());
    }
    Ok(())
}
