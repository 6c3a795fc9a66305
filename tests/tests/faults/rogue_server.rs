//! Servers that send malformed or false data to Ropewalk's client.

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use anyhow::Result;
use ropewalk_tests::client::{Client, Copy, Mode};
use ropewalk_tests::fake_server::{Data, FakeServer};
use ropewalk_tests::mode_e::{EOD, block, end_of_file, header};
use ropewalk_tests::scratch::Scratch;

use crate::fixture::SOON;

const SIZE: u64 = 1000;

/// A download from a server with `script` must fail in time and leave nothing that looks like a
/// complete file.
fn refused(
    name: &str,
    mode: Mode,
    script: impl Fn(&Data, &mut TcpStream) -> Result<()> + Send + Sync + 'static,
) {
    let scratch = Scratch::new().unwrap();
    let server = FakeServer::start(
        SIZE,
        Arc::new(move |_: &str, data: &Data, control: &mut TcpStream| {
            // The client may close the connection at any time.
            let _ = script(data, control);
            Ok(())
        }),
    )
    .unwrap();
    let copy = scratch.join("copy");
    let job = Copy::new(format!("ftp://{}/file", server.address()), Client::Ropewalk.local(&copy, false))
        .mode(mode)
        .argument("--retries=0")
        .argument("--stall-limit=1KiB/2s")
        .argument("--reply-timeout=3s");
    let outcome =
        Client::Ropewalk.run(&Copy { limit: SOON, ..job }).unwrap_or_else(|e| panic!("{name}: {e:#}"));
    assert!(!outcome.errors().contains("panicked"), "{name}: {}", outcome.errors());
    outcome.failed().unwrap_or_else(|error| panic!("{name}: {error:#}"));
    assert!(!copy.exists(), "{name}: there is a file of {} bytes", fs::metadata(&copy).unwrap().len());
}

fn begin(control: &mut TcpStream) -> Result<()> {
    Ok(control.write_all(b"150 Beginning transfer.\r\n")?)
}

fn end(control: &mut TcpStream) -> Result<()> {
    Ok(control.write_all(b"226 Transfer Complete.\r\n")?)
}

/// Sends `bytes` over one connection and closes it.
fn send(data: &Data, control: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    let mut stream = data.open()?;
    begin(control)?;
    stream.write_all(bytes)?;
    stream.shutdown(Shutdown::Write)?;
    end(control)
}

#[test]
fn short_stream_fails_download() {
    refused("too few", Mode::Stream, |data, control| send(data, control, &[1; 999]));
    refused("none", Mode::Stream, |data, control| send(data, control, &[]));
}

#[test]
fn long_stream_fails_download() {
    refused("too many", Mode::Stream, |data, control| send(data, control, &[1; 1001]));
}

#[test]
fn lost_control_connection_fails_download() {
    refused("no 226", Mode::Stream, |data, control| {
        let mut stream = data.open()?;
        begin(control)?;
        stream.write_all(&[1; SIZE as usize])?;
        control.shutdown(Shutdown::Both)?;
        Ok(())
    });
}

#[test]
fn error_reply_after_all_bytes_fails_download() {
    refused("451", Mode::Stream, |data, control| {
        let mut stream = data.open()?;
        begin(control)?;
        stream.write_all(&[1; SIZE as usize])?;
        stream.shutdown(Shutdown::Write)?;
        Ok(control.write_all(b"451 The disk is on fire.\r\n")?)
    });
}

#[test]
fn silent_server_times_out() {
    refused("silence", Mode::Stream, |data, _| {
        // Keep the connection open until the client times out.
        let stream = data.open()?;
        std::thread::sleep(SOON);
        drop(stream);
        Ok(())
    });
}

#[test]
fn malformed_replies_fail_download() {
    refused("garbage", Mode::Stream, |_, control| Ok(control.write_all(b"what?\r\n\x00\xff\r\n9999 x\r\n")?));
    refused("endless line", Mode::Stream, |_, control| {
        let piece = vec![b'5'; 1 << 20];
        for _ in 0..256 {
            control.write_all(&piece)?;
        }
        Ok(())
    });
    refused("endless reply", Mode::Stream, |_, control| {
        let piece = b"550-and so on\r\n".repeat(10_000);
        for _ in 0..256 {
            control.write_all(&piece)?;
        }
        Ok(())
    });
}

#[test]
fn blocks_outside_file_fail_download() {
    let places = [SIZE, SIZE - 5, 1 << 40, i64::MAX as u64 - 5, u64::MAX - 5, u64::MAX];
    for offset in places {
        refused("offset", Mode::Extended(1), move |data, control| {
            let mut bytes = header(0, 10, offset).to_vec();
            bytes.extend_from_slice(&[1; 10]);
            bytes.extend_from_slice(&end_of_file(1));
            send(data, control, &bytes)
        });
    }
    refused("count", Mode::Extended(1), |data, control| send(data, control, &header(0, u64::MAX, 0)));
}

#[test]
fn missing_range_fails_download() {
    refused("hole", Mode::Extended(1), |data, control| {
        let mut bytes = block(0, &[1; 400]);
        bytes.extend_from_slice(&block(600, &[1; 400]));
        bytes.extend_from_slice(&end_of_file(1));
        send(data, control, &bytes)
    });
}

#[test]
fn missing_or_wrong_eod_fails_download() {
    refused("early FIN", Mode::Extended(1), |data, control| send(data, control, &block(0, &[1; 500])));
    refused("FIN in a header", Mode::Extended(1), |data, control| send(data, control, &header(0, 9, 0)[..7]));
    refused("count of 3", Mode::Extended(1), |data, control| {
        let mut bytes = block(0, &[1; SIZE as usize]);
        bytes.extend_from_slice(&end_of_file(3));
        send(data, control, &bytes)
    });
    refused("no EOF", Mode::Extended(1), |data, control| {
        let mut bytes = block(0, &[1; SIZE as usize]);
        bytes.extend_from_slice(&header(EOD, 0, 0));
        send(data, control, &bytes)
    });
}

#[test]
fn valid_download_succeeds() {
    let scratch = Scratch::new().unwrap();
    let server = FakeServer::start(
        SIZE,
        Arc::new(|_: &str, data: &Data, control: &mut TcpStream| {
            let mut bytes = block(500, &[2; 500]);
            bytes.extend_from_slice(&block(0, &[1; 500]));
            bytes.extend_from_slice(&end_of_file(1));
            send(data, control, &bytes)
        }),
    )
    .unwrap();
    let copy = scratch.join("copy");
    let job = Copy::new(format!("ftp://{}/file", server.address()), Client::Ropewalk.local(&copy, false))
        .mode(Mode::Extended(1));
    Client::Ropewalk.run(&job).unwrap().succeeded().unwrap();
    assert_eq!(fs::read(copy).unwrap(), [[1; 500], [2; 500]].concat());
}
