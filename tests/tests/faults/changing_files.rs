//! A file that changes after its checksum was computed and before it is sent.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};
use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::control::{host_port, parse_host_port};
use ropewalk_tests::random::Random;

use crate::fixture::Fixture;

/// Larger than the socket buffers in between, and small enough that its checksum is announced in
/// advance.
const SIZE: usize = 4 << 20;

/// Forwards a control connection and its data connections to `target`. Calls `act` at the first
/// STOR and forwards no data before it has returned.
fn act_before_data(target: SocketAddr, act: impl FnOnce() + Send + 'static) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    let (acted, has_acted) = mpsc::channel();
    let mut act = Some(act);
    thread::spawn(move || -> Result<()> {
        let (client, _) = listener.accept()?;
        // Further connections are refused.
        drop(listener);
        let mut server = TcpStream::connect(target)?;
        let (replies, back) = (server.try_clone()?, client.try_clone()?);
        let answers = thread::spawn(move || pass_replies(replies, back, has_acted));
        let mut lines = BufReader::new(client);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            if line.starts_with(b"STOR ")
                && let Some(act) = act.take()
            {
                act();
                acted.send(())?;
            }
            server.write_all(&line)?;
            line.clear();
        }
        server.shutdown(std::net::Shutdown::Write)?;
        let _ = answers.join();
        Ok(())
    });
    Ok(address)
}

/// Replaces the address in the reply to PASV by a local one, whose connections are forwarded after
/// a message on `go`.
fn pass_replies(replies: TcpStream, mut client: TcpStream, go: mpsc::Receiver<()>) -> Result<()> {
    let mut go = Some(go);
    for line in BufReader::new(replies).lines() {
        let mut line = line?;
        if line.starts_with("227 ")
            && let Some(go) = go.take()
        {
            let target = parse_host_port(&line).context("no address in the reply to PASV")?;
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            line = format!("227 Entering Passive Mode ({})", host_port(listener.local_addr()?)?);
            thread::spawn(move || -> Result<()> {
                go.recv()?;
                for from in listener.incoming() {
                    let (mut from, mut to) = (from?, TcpStream::connect(target)?);
                    thread::spawn(move || std::io::copy(&mut from, &mut to));
                }
                Ok(())
            });
        }
        client.write_all(format!("{line}\r\n").as_bytes())?;
    }
    Ok(())
}

#[test]
fn small_file_changed_after_checksum_is_discarded() {
    let mut fixture = Fixture::new().unwrap();
    let source = fixture.scratch.join("source");
    fs::write(&source, Random::new(1).bytes(SIZE)).unwrap();
    let path = source.clone();
    let address = act_before_data(fixture.server.address(), move || {
        let file = fs::File::options().write(true).open(&path).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&Random::new(2).bytes(SIZE), 0).unwrap();
        // Only the content reveals the change.
        file.set_modified(modified).unwrap();
    })
    .unwrap();
    let url = fixture.server.url_at(address, "changed");
    let job = Copy::new(Client::Ropewalk.local(&source, false), url);
    let outcome =
        Client::Ropewalk.run(&job.mode(Mode::Extended(1)).argument("--retries=0")).unwrap().failed().unwrap();
    let said = outcome.text();
    assert!(said.contains("INCORRECT_CHECKSUM"), "{said}");
    assert_eq!(fixture.visible().unwrap(), ["known"], "{said}");
    fixture.still_serves().unwrap();
}
