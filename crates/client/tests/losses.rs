//! What could get lost without a word: files that did not get their name, what could not be read at the source, bytes that come
//! out of turn, and bytes that went bad.

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{Auto, Cancel, Event, Options, Pair, SyncLevel};
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::proxy::Proxy;

const MIB: u64 = 1 << 20;

/// Its part is removed while it comes: the first try cannot end well, and must not seem to.
#[test]
fn a_download_that_got_no_name_is_not_done() -> Result<()> {
    each(&servers(), |bench| {
        write_random(&bench.remote.join("f"), 6 * MIB, 1)?;
        write(&bench.local.join("back"), b"old")?;
        let part = bench.local.join(".back.ropewalk-part");
        for retries in [0, 2] {
            let removed = AtomicBool::new(false);
            let pairs = vec![Pair { source: bench.url("f"), destination: bench.here("back"), window: None }];
            let told = run_until(pairs, &Options { retries, ..options() }, &Cancel::new(), &|_| {
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
            let sync = Options { sync: Some(SyncLevel::Size), delete: true, ..options() };
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
        // Another transfer is under way.
        write(&bench.remote.join("d/.big.ropewalk-part"), b"part")?;
        let sync = Options { sync: Some(SyncLevel::Size), delete: true, ..options() };
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
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )?;
        // Both ends at once: whoever opens one alone waits for the other.
        let mut reader = fs::File::options().read(true).write(true).open(&pipe)?;
        let expected = fs::read(&data)?;
        let length = expected.len();
        let got = std::thread::spawn(move || {
            let mut got = vec![0; length];
            reader.read_exact(&mut got).map(|()| got)
        });
        let options = Options { streams: Auto::Set(4), files: Auto::Set(3), ..options() };
        run(bench.url("f"), bench.here("pipe"), &options)?.succeeded()?;
        let got = got.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        ensure!(got == expected, "the bytes are not in order");
        Ok(())
    })
}

/// The bytes that a server has of an interrupted upload went bad: the sum says so, and then they are of no more use.
#[test]
fn what_arrived_wrong_is_sent_again() -> Result<()> {
    each(&gridftp(), |bench| {
        let size = 24 * MIB;
        write_random(&bench.local.join("f"), size, 3)?;
        write_random(&bench.remote.join("f"), size, 3)?;
        let proxy = Proxy::start(bench.server.address())?;
        let state = bench.local.directory("state")?;
        let options = Options { state_directory: Some(state.clone()), ..options() };
        for (source, name) in [(bench.here("f"), "up"), (bench.url("f"), "third")] {
            proxy.set_rate(Some(5 * MIB));
            let destination = place(&bench.server.url_at(proxy.address(), name));
            let pairs = vec![Pair { source, destination, window: None }];
            let cancel = Cancel::new();
            let told = run_until(pairs.clone(), &options, &cancel, &|event| {
                if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB)
                    && journaled(&state) >= 4 * MIB
                {
                    cancel.cancel();
                }
            })?;
            ensure!(told.summary.interrupted, "{:?}", told.summary);
            proxy.set_rate(None);
            let part = bench.remote.join(format!(".{name}.ropewalk-part"));
            fs::File::options().write(true).open(part)?.write_all(b"not what was sent")?;
            let told = run_pairs(pairs, &options)?.succeeded()?;
            ensure!(told.summary.bytes_resumed >= 4 * MIB && told.summary.retries >= 1, "{:?}", told.summary);
            ensure_same(&bench.local.join("f"), &bench.remote.join(name))?;
        }
        ensure_clean(bench.remote.path())
    })
}
