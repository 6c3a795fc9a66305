//! Sources that can be read only once: named pipes and standard input.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use common::*;
use parking_lot::Mutex;
use ropewalk_client::{Auto, Cancel, Event, Location, Options, Pair};
use ropewalk_tests::scratch::Scratch;
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// The data that a server received by each STOR.
type Stored = Arc<Mutex<Vec<Vec<u8>>>>;

/// The way in which a server makes the first upload fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// It replies with 451 after the data.
    Refusal,
    /// It refuses the rename.
    Name,
    /// It reports another size.
    Size,
    /// It does not listen at the announced data port.
    NoData,
}

/// A plain FTP server with one such failure.
fn server(trouble: Trouble) -> Result<(Location, Stored)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = place(&format!("ftp://u:secret@{}/f", listener.local_addr()?));
    let stored = Stored::default();
    let (told, left) = (stored.clone(), Arc::new(Mutex::new(Some(trouble))));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (told, left) = (told.clone(), left.clone());
            std::thread::spawn(move || serve(client, &told, &left));
        }
    });
    Ok((url, stored))
}

fn serve(client: TcpStream, stored: &Stored, left: &Mutex<Option<Trouble>>) -> Result<()> {
    let take = |trouble| left.lock().take_if(|t| *t == trouble).is_some();
    let mut out = client.try_clone()?;
    let mut data = None;
    let (mut size, mut rest) = (0, 0);
    out.write_all(b"220 ready\r\n")?;
    for line in BufReader::new(client).lines() {
        let line = line?;
        let answer = match line.split(' ').next().unwrap_or_default() {
            "USER" => "230 in".into(),
            "FEAT" => "211-Features\r\n SIZE\r\n211 End".into(),
            "PASV" | "EPSV" if take(Trouble::NoData) => {
                let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
                if line == "EPSV" { format!("229 (|||{port}|)") } else { passive(port) }
            }
            "PASV" | "EPSV" => {
                let listener = TcpListener::bind("127.0.0.1:0")?;
                let port = listener.local_addr()?.port();
                data = Some(listener);
                if line == "EPSV" { format!("229 (|||{port}|)") } else { passive(port) }
            }
            "REST" => {
                rest = line["REST ".len()..].parse()?;
                "350 go on".into()
            }
            "STOR" => {
                out.write_all(b"150 come\r\n")?;
                let mut bytes = Vec::new();
                data.take().context("no data connection")?.accept()?.0.read_to_end(&mut bytes)?;
                size = rest + bytes.len();
                stored.lock().push(bytes);
                if take(Trouble::Refusal) { "451 not now".into() } else { "226 thanks".into() }
            }
            "SIZE" if size == 0 => "550 no such file".into(),
            "SIZE" if take(Trouble::Size) => "213 7".into(),
            "SIZE" => format!("213 {size}"),
            "RNFR" => "350 go on".into(),
            "RNTO" if take(Trouble::Name) => "450 busy".into(),
            "MLST" | "MLSD" | "SITE" | "OPTS" | "ALLO" | "MDTM" => "500 no".into(),
            _ => "200 ok".into(),
        };
        out.write_all(format!("{answer}\r\n").as_bytes())?;
    }
    Ok(())
}

fn passive(port: u16) -> String {
    format!("227 Entering (127,0,0,1,{},{})", port >> 8, port & 255)
}

fn pipe(here: &Scratch) -> Result<PathBuf> {
    let path = here.join("pipe");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
    Ok(path)
}

/// Writes once to a pipe as soon as it has a reader.
fn pour(path: &Path, content: &'static [u8]) {
    let path = path.to_owned();
    std::thread::spawn(move || File::options().write(true).open(path).and_then(|mut f| f.write_all(content)));
}

const CONTENT: &[u8] = b"what a program says once";

fn patient() -> Options {
    options().with(|o| {
        o.recovery.retries = 3;
        o.tuning.files = Auto::Set(1);
    })
}

#[test]
fn what_was_read_of_a_pipe_is_not_sent_again_as_nothing() -> Result<()> {
    for trouble in [Trouble::Refusal, Trouble::Name, Trouble::Size] {
        let here = Scratch::new()?;
        let path = pipe(&here)?;
        let (url, stored) = server(trouble)?;
        pour(&path, CONTENT);
        let told = run(Location::Local(path), url, &patient())?.summary;
        ensure!((told.files_done, told.files_failed, told.retries) == (0, 1, 0), "{told:?}");
        ensure!(told.failures[0].error.contains("a second time"), "{told:?}");
        ensure!(*stored.lock() == [CONTENT]);
    }
    Ok(())
}

#[test]
fn standard_input_of_which_nothing_was_read_is_tried_again() -> Result<()> {
    let Some(program) = std::env::var_os("ROPEWALK_BIN") else { return Ok(()) };
    let here = Scratch::new()?;
    let (Location::Remote(url), stored) = server(Trouble::NoData)? else { anyhow::bail!("no URL") };
    let mut child = Command::new(program)
        .args(["cp", "--retry-pause", "10ms", "--offset", "5", "--length", "9", "-"])
        .arg(url.to_string())
        .env("HOME", here.path())
        .env("XDG_STATE_HOME", here.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    child.stdin.take().context("no input")?.write_all(CONTENT)?;
    ensure!(child.wait()?.success());
    ensure!(*stored.lock() == [&CONTENT[5..14]]);
    Ok(())
}

/// The copy can be stopped while the pipe has no writer, and while its writer is silent.
#[test]
fn a_silent_pipe_does_not_keep_a_copy_from_being_stopped() -> Result<()> {
    for destination_is_here in [true, false] {
        for writer in [false, true] {
            let here = Scratch::new()?;
            let path = pipe(&here)?;
            let both_ends = writer.then(|| File::options().read(true).write(true).open(&path)).transpose()?;
            let (url, _stored) = server(Trouble::Refusal)?;
            let destination = if destination_is_here { Location::Local(here.join("t")) } else { url };
            let pair = Pair { source: Location::Local(path), destination, window: None };
            let cancel = Cancel::new();
            let told = run_until(vec![pair], &patient(), &cancel, &|event| {
                if matches!(event, Event::FileStarted { .. }) {
                    cancel.cancel();
                }
            })?;
            ensure!(told.summary.interrupted, "{:?}", told.summary);
            drop(both_ends);
        }
    }
    Ok(())
}
