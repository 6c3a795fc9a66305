//! Transfers that this end breaks off. The server's reply to that is a consequence, and is not the
//! error of the file.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use common::*;
use ropewalk_client::{Auto, FailureKind, Location, Options, Pair};
use ropewalk_tests::fake_server::{Data, FakeServer};
use ropewalk_tests::scratch::Scratch;

const BROKEN_OFF: &[u8] = b"426 Data connection closed; transfer aborted.\r\n";

/// A server whose files have `size` bytes. It sends `header` and then zeros until its client closes
/// the connection, and replies 426.
fn sends(size: u64, header: &'static [u8]) -> Result<FakeServer> {
    FakeServer::start(
        size,
        Arc::new(move |_verb: &str, data: &Data, control: &mut TcpStream| {
            control.write_all(b"150 here it comes\r\n")?;
            let mut data = data.open()?;
            let mut sent = data.write_all(header);
            for _ in 0..size >> 16 {
                sent = sent.and_then(|()| data.write_all(&[0; 1 << 16]));
            }
            // The client has nothing to say but that it closes the connection.
            let _ = data.read(&mut [0]);
            Ok(control.write_all(BROKEN_OFF)?)
        }),
    )
}

fn at(server: &FakeServer) -> Location {
    place(&format!("ftp://{}/f", server.address()))
}

fn once() -> Options {
    options().with(|o| o.recovery.retries = 0)
}

/// The kind and the text of the only failure.
fn failure(from: Location, to: Location, options: &Options) -> Result<(FailureKind, String)> {
    let summary = run(from, to, options)?.summary;
    let failure = summary.failures.first().with_context(|| format!("{summary:?}"))?;
    Ok((failure.kind, failure.error.clone()))
}

#[test]
fn invalid_blocks_are_the_cause_and_not_the_reply_to_the_end() -> Result<()> {
    // EOF (64) in a header of MODE E without payload, which announces 2^32 streams.
    let server = sends(1 << 20, &[64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])?;
    let here = Scratch::new()?;
    let (kind, error) = failure(at(&server), Location::Local(here.join("f")), &once())?;
    ensure!(error.contains("EOF announces 4294967296 streams"), "{error}");
    ensure!(error.ends_with("(its reply: 426 Data connection closed; transfer aborted.)"), "{error}");
    ensure!(kind == FailureKind::Other, "{kind:?}: {error}");
    Ok(())
}

#[test]
fn full_disk_is_the_cause_and_not_the_reply_to_the_end() -> Result<()> {
    // A block of 64 MiB at offset 0.
    let server = sends(64 << 20, &[0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
    // Another try would find the disk as full.
    let options = options().with(|o| o.recovery.retries = 3);
    let (kind, error) = failure(at(&server), Location::Local("/dev/full".into()), &options)?;
    ensure!(error.contains("no space left") && !error.contains("426"), "{error}");
    ensure!(kind == FailureKind::NoSpace, "{kind:?}: {error}");
    let transfers = server.commands().iter().filter(|line| line.starts_with("RETR")).count();
    ensure!(transfers == 1, "{:?}", server.commands());
    Ok(())
}

/// The source ends its session when the copy takes no more.
#[test]
fn full_destination_is_the_cause_of_a_copy_through_here() -> Result<()> {
    let source = FakeServer::start(
        64 << 20,
        Arc::new(|_verb: &str, data: &Data, control: &mut TcpStream| {
            control.write_all(b"150 here it comes\r\n")?;
            let mut data = data.open()?;
            while data.write_all(&[0; 1 << 16]).is_ok() {}
            Ok(control.shutdown(Shutdown::Both)?)
        }),
    )?;
    let stored = Arc::new(AtomicBool::new(false));
    let taken = stored.clone();
    let destination = FakeServer::start(
        0,
        Arc::new(move |verb: &str, data: &Data, control: &mut TcpStream| {
            if verb == "CKSM" {
                return Ok(control.write_all(b"500 no\r\n")?);
            }
            control.write_all(b"150 send it\r\n")?;
            let mut data = data.open()?;
            data.read_exact(&mut [0; 1 << 16])?;
            taken.store(true, Ordering::SeqCst);
            drop(data);
            Ok(control.write_all(b"552 No space left on device.\r\n")?)
        }),
    )?;
    let options = once().with(|o| {
        o.data.through_here = true;
        o.storage.in_place = true;
    });
    let (kind, error) = failure(at(&source), at(&destination), &options)?;
    ensure!(stored.load(Ordering::SeqCst), "{:?}", destination.commands());
    ensure!(error.contains("552 No space left") && kind == FailureKind::NoSpace, "{kind:?}: {error}");
    Ok(())
}

/// If a file fails, the sessions with both servers are made again, because one server may still
/// wait for the other one. No other file counts a try.
#[test]
fn copy_between_servers_goes_on_over_a_new_channel_after_426() -> Result<()> {
    const SIZE: u64 = 100;
    let failed = Arc::new(AtomicBool::new(false));
    let source = FakeServer::start(
        SIZE,
        Arc::new(move |_: &str, data: &Data, control: &mut TcpStream| {
            control.write_all(b"150 here it comes\r\n")?;
            let mut data = data.open()?;
            if !failed.swap(true, Ordering::SeqCst) {
                drop(data);
                return Ok(control.write_all(BROKEN_OFF)?);
            }
            data.write_all(&[0; SIZE as usize])?;
            drop(data);
            Ok(control.write_all(b"226 sent\r\n")?)
        }),
    )?;
    let destination = FakeServer::start(
        SIZE,
        Arc::new(|verb: &str, data: &Data, control: &mut TcpStream| {
            if verb == "CKSM" {
                return Ok(control.write_all(b"500 no\r\n")?);
            }
            control.write_all(b"150 send it\r\n")?;
            let came = data.open()?.read_to_end(&mut Vec::new())? as u64;
            Ok(control.write_all(if came == SIZE { b"226 stored\r\n" } else { BROKEN_OFF })?)
        }),
    )?;
    let pairs = ["f", "g", "h"].map(|name| {
        let at = |server: &FakeServer| place(&format!("ftp://{}/{name}", server.address()));
        Pair { source: at(&source), destination: at(&destination), window: None }
    });
    let options = options().with(|o| {
        o.storage.in_place = true;
        o.tuning.files = Auto::Set(1);
    });
    let told = run_pairs(pairs.to_vec(), &options)?.succeeded()?;
    ensure!(told.summary.retries == 1 && told.summary.files_done == 3, "{:?}", told.summary);
    for (server, channel) in [(&source, "PORT"), (&destination, "PASV")] {
        let commands = server.commands();
        let count = |verb: &str| commands.iter().filter(|line| line.starts_with(verb)).count();
        ensure!((count("USER"), count(channel)) == (2, 2), "{commands:#?}");
    }
    Ok(())
}
