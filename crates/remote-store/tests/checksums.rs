//! Checksums that a far server computes slowly, as a scripted server does.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use ropewalk_client::ClientLimits;
use ropewalk_protocol::marker::{Marker, StatusMarker};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::url::Url;
use ropewalk_remote_store::{RemoteClient, RemoteSettings, RemoteStore};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{Error, ErrorKind, Result, Store};

/// The bytes of the file at the far server.
const SIZE: u64 = 1 << 40;

/// A store behind a server that logs one session in and leaves the reply to CKSM to `answer`.
fn behind(answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> (Arc<RemoteStore>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("ftp://{}/", listener.local_addr().unwrap())).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 ready\r\n").unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for line in lines.by_ref() {
            let line = line.unwrap();
            let reply = match line.split(' ').next().unwrap() {
                "USER" => "230 in\r\n".to_owned(),
                "FEAT" => "211-Features\r\n SIZE\r\n211 End\r\n".to_owned(),
                "TYPE" => "200 ok\r\n".to_owned(),
                "SIZE" => format!("213 {SIZE}\r\n"),
                "CKSM" => break,
                other => panic!("{other}"),
            };
            stream.write_all(reply.as_bytes()).unwrap();
        }
        answer(&mut stream);
    });
    let client = RemoteClient::new(&ClientLimits::default(), 1 << 20, None);
    (RemoteStore::new(&client, &url, RemoteSettings::default()), server)
}

fn checksum(store: &RemoteStore, progress: &mut dyn FnMut(u64) -> Result<()>) -> Result<String> {
    let path = VirtualPath::parse(b"/f").unwrap();
    store.checksum(&path, Algorithm::Md5, 0, None, progress).unwrap()
}

fn sum(stream: &mut TcpStream) {
    stream.write_all(b"213 5d41402abc4b2a76b9719d911017c592\r\n").unwrap();
}

#[test]
fn markers_of_the_far_server_are_reported_while_it_computes() {
    let (reported, heard) = mpsc::channel();
    let (store, server) = behind(move |stream| {
        for bytes in [500, SIZE / 2] {
            let marker = Marker::Status(StatusMarker { timestamp: 1, bytes });
            stream.write_all(&marker.to_reply().to_bytes()).unwrap();
            // No reply before the caller has the marker.
            while heard.recv().unwrap() != bytes {}
        }
        sum(stream);
    });
    let mut all = Vec::new();
    let sum = checksum(&store, &mut |bytes| {
        all.push(bytes);
        reported.send(bytes).unwrap();
        Ok(())
    });
    assert_eq!(sum.unwrap(), "5d41402abc4b2a76b9719d911017c592");
    assert!(all[0] == 0 && all.is_sorted(), "{all:?}");
    server.join().unwrap();
}

#[test]
fn caller_is_called_while_the_far_server_says_nothing() {
    let (reported, heard): (_, Receiver<u64>) = mpsc::channel();
    let (store, server) = behind(move |stream| {
        // The first one is before the command.
        for _ in 0..4 {
            assert_eq!(heard.recv().unwrap(), 0);
        }
        sum(stream);
    });
    let sum = checksum(&store, &mut |bytes| {
        // The server has had enough of them.
        let _ = reported.send(bytes);
        Ok(())
    });
    assert_eq!(sum.unwrap(), "5d41402abc4b2a76b9719d911017c592");
    server.join().unwrap();
}

#[test]
fn caller_that_stops_ends_the_session_with_the_far_server() {
    let (store, server) = behind(|stream| {
        let mut rest = Vec::new();
        // Until the store closes the connection.
        let _ = stream.read_to_end(&mut rest);
    });
    let mut calls = 0;
    let stopped = checksum(&store, &mut |_| {
        calls += 1;
        if calls < 3 { Ok(()) } else { Err(Error::new(ErrorKind::Interrupted, "checksum", b"/f")) }
    });
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Interrupted);
    server.join().unwrap();
}
