//! Sessions that share a file must not wait for each other's log-in.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use parking_lot::{Condvar, Mutex};
use ropewalk_tests::client::{Client, Copy};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Setup};

use crate::fixture::SOON;

const SESSIONS: usize = 4;

/// Forwards connections to `target`: the first one at once, all others when there are [`SESSIONS`]
/// of them. Until then the first session receives no end of a transfer, so that it cannot move the
/// whole file alone.
fn held_until_all_came(target: SocketAddr) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let came = Arc::new((Mutex::new(0), Condvar::new()));
    thread::spawn(move || -> Result<()> {
        for (number, client) in listener.incoming().enumerate() {
            let (client, came) = (client?, came.clone());
            *came.0.lock() += 1;
            came.1.notify_all();
            thread::spawn(move || -> Result<()> {
                let wait = move || {
                    came.1.wait_while(&mut came.0.lock(), |count| *count < SESSIONS);
                };
                if number > 0 {
                    wait();
                }
                let server = TcpStream::connect(target)?;
                let (replies, mut back) = (BufReader::new(server.try_clone()?), client.try_clone()?);
                thread::spawn(move || -> Result<()> {
                    for reply in replies.split(b'\n') {
                        let reply = reply?;
                        if reply.starts_with(b"226") {
                            wait();
                        }
                        back.write_all(&[&reply[..], b"\n"].concat())?;
                    }
                    Ok(back.shutdown(Shutdown::Both)?)
                });
                let (mut commands, mut to) = (client, server);
                std::io::copy(&mut commands, &mut to)?;
                Ok(to.shutdown(Shutdown::Both)?)
            });
        }
        Ok(())
    });
    Ok(address)
}

#[test]
fn sessions_of_a_file_log_in_concurrently() {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("served").unwrap();
    // Several ranges for each session.
    let size = 512 << 20;
    fs::File::create(root.join("big")).unwrap().set_len(size).unwrap();
    let server = Setup::new(Kind::Gct, &root).start().unwrap();
    let address = held_until_all_came(server.address()).unwrap();
    let target = scratch.join("target");
    let url = server.url_at(address, "big");
    let copy = Copy::new(url, Client::Ropewalk.local(&target, false))
        .argument(format!("--files={SESSIONS}"))
        .argument("--checksum=none")
        .argument("--debug");
    let mut running = Client::Ropewalk.start(&copy).unwrap();
    // If one session waited for another, they would wait forever.
    let status = running.wait(SOON).unwrap();
    let log = running.log();
    assert!(status.success(), "{log}");
    assert_eq!(fs::metadata(&target).unwrap().len(), size);
    // A range that was cut before a log-in is not mistaken for the rest of the file.
    let asked =
        log.lines().filter_map(|line| line.split_once("ERET P ")?.1.split(' ').nth(1)?.parse::<u64>().ok());
    let long = asked.filter(|&bytes| bytes >= 24 << 20).count();
    assert!(long >= SESSIONS, "{log}");
}
