//! `ropewalk profile --collect`: measures this host for a client at the other end of standard input
//! and output.
//!
//! It writes `ropewalk-profile 1 TIME` when it has started, and `clock TIME` for each input line
//! `clock`. When the input ends, or contains `stop`, it writes `raw NAME LENGTH` and that many
//! bytes for each requested tool file, then `profile LENGTH` and that many bytes of JSON. Times are
//! seconds since 1970.

use std::io::{self, BufRead, Read as _, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_profiler::collect::{Collection, Options, Sockets};
use ropewalk_profiler::profile::{HostProfile, Role};

use super::end::now;

/// Longest input line.
const LINE: u64 = 256;

/// The options of `--collect`.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) role: Role,
    pub(crate) peers: Vec<IpAddr>,
    pub(crate) ports: Vec<u16>,
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) longest: Duration,
    pub(crate) perf: bool,
    pub(crate) sysstat: bool,
    /// Whether to transmit the tools' own files.
    pub(crate) raw: bool,
}

impl Wanted {
    fn options(self) -> Options {
        Options {
            role: self.role,
            longest: self.longest + Duration::from_secs(600),
            perf: self.perf,
            sysstat: self.sysstat,
            raw: self.raw,
            sockets: Sockets { ports: self.ports, peers: self.peers, ..Sockets::default() },
            paths: self.paths,
            ..Options::default()
        }
    }
}

/// Runs until the input ends, contains `stop`, or `longest` has passed.
pub(crate) fn collect(wanted: Wanted) -> anyhow::Result<()> {
    let deadline = Instant::now() + wanted.longest;
    let collection = Collection::start(&wanted.options());
    tell(format_args!("ropewalk-profile 1 {:.6}", now()))?;
    let (hear, heard) = mpsc::channel();
    // The thread stays blocked if the time limit expires.
    thread::Builder::new().name("input".into()).spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let read = (&mut input).take(LINE).read_until(b'\n', &mut line);
            let stops = !matches!(read, Ok(1..)) || line.trim_ascii() == b"stop";
            if stops || line.trim_ascii() == b"clock" && hear.send(()).is_err() {
                return;
            }
        }
    })?;
    // Until the time limit, or the end of the input.
    while let Ok(()) = heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        tell(format_args!("clock {:.6}", now()))?;
    }
    let mut host = collection.finish();
    let mut out = io::stdout().lock();
    for file in std::mem::take(&mut host.raw) {
        writeln!(out, "raw {} {}", file.name, file.bytes.len())?;
        out.write_all(&file.bytes)?;
    }
    let bytes = host.to_json(HostProfile::LARGEST)?;
    writeln!(out, "profile {}", bytes.len())?;
    out.write_all(&bytes)?;
    out.flush()?;
    Ok(())
}

fn tell(line: std::fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
