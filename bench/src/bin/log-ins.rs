//! Starts log-ins at a steady rate, whether the server keeps up or not.
//!
//! `log-ins WAY HOST:PORT RATE SECONDS [FROM [USER PASSWORD]]` with WAY `gsi` (delegates a proxy),
//! `gsi-plain` (does not) or `password` (over TLS). RATE log-ins per second are started, from the
//! address FROM; with RATE 0, as many as 16 clients can do. Each client logs in and disconnects.
//! With SECONDS 0 it runs until standard input ends. It prints one JSON object: how many log-ins
//! were started, succeeded, were refused (530), were postponed by the server (421) or failed; and
//! the times in milliseconds from the scheduled start of the successful ones to their end.

#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use ropewalk_gsi::{
    After, Expected, Identity, Initiator, InitiatorOptions, Places, ProxyTerms, Step, TlsSettings, Trust,
    decode_token, encode_token,
};
use ropewalk_tls::{Client, ClientSettings, Records};
use rustix::net::{AddressFamily, SocketType};

/// Maximum number of concurrent clients.
const CLIENTS: usize = 256;
/// Number of clients that start the next log-in immediately.
const EAGER: usize = 16;
const PATIENCE: Duration = Duration::from_secs(60);

enum Way {
    Gsi { identity: Box<Identity>, delegate: bool },
    Password { client: Client, user: String, password: String },
}

#[derive(Default)]
struct Counts {
    took: Vec<f64>,
    refused: u64,
    later: u64,
    failed: u64,
    /// Description of the first failure.
    why: String,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| {
        words.get(at).cloned().context("usage: log-ins WAY HOST:PORT RATE SECONDS [FROM [USER PASSWORD]]")
    };
    let server: SocketAddr = word(1)?.parse()?;
    let (rate, seconds): (f64, f64) = (word(2)?.parse()?, word(3)?.parse()?);
    let from: Ipv4Addr = words.get(4).map_or(Ok(Ipv4Addr::LOCALHOST), |word| word.parse())?;
    let way = match word(0)?.as_str() {
        kind @ ("gsi" | "gsi-plain") => {
            let places = Places::of_process();
            let credential = places.client().context("no credential")?.load(&mut |_| None)?;
            let trust = Trust::directory(places.authorities());
            let identity = Identity::new(Arc::new(credential), Arc::new(trust), &TlsSettings::default())?;
            Way::Gsi { identity: Box::new(identity), delegate: kind == "gsi" }
        }
        "password" => {
            let client = Client::new(&ClientSettings::default())?;
            Way::Password { client, user: word(5)?, password: word(6)? }
        }
        other => bail!("unknown way {other}"),
    };
    let (began, next, counts) = (Instant::now(), AtomicU64::new(0), Mutex::new(Counts::default()));
    let clients = if rate > 0.0 { CLIENTS } else { EAGER };
    thread::scope(|scope| -> Result<()> {
        if seconds == 0.0 {
            scope.spawn(|| {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                // Do not wait for pending log-ins, which may take long if the server does not keep
                // up.
                report(&counts, began);
                std::process::exit(0);
            });
        }
        for _ in 0..clients {
            thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let due =
                        if rate > 0.0 { Duration::from_secs_f64(at as f64 / rate) } else { began.elapsed() };
                    if seconds > 0.0 && due.as_secs_f64() >= seconds {
                        return;
                    }
                    thread::sleep(due.saturating_sub(began.elapsed()));
                    let result = log_in(&way, server, from);
                    let took = began.elapsed().saturating_sub(due).as_secs_f64() * 1000.0;
                    let mut counts = counts.lock();
                    match result {
                        Ok(reply) if reply.starts_with("230") => counts.took.push(took),
                        Ok(reply) if reply.starts_with("421") => counts.later += 1,
                        Ok(reply) if reply.starts_with("530") => counts.refused += 1,
                        other => {
                            if counts.failed == 0 {
                                counts.why = other.unwrap_or_else(|e| format!("{e:#}"));
                            }
                            counts.failed += 1;
                        }
                    }
                }
            })?;
        }
        Ok(())
    })?;
    report(&counts, began);
    Ok(())
}

fn report(counts: &Mutex<Counts>, began: Instant) {
    let elapsed = began.elapsed().as_secs_f64();
    let mut counts = counts.lock();
    counts.took.sort_by(f64::total_cmp);
    let part = |share: f64| {
        let last = counts.took.len().saturating_sub(1);
        counts.took.get((last as f64 * share) as usize).copied().unwrap_or(0.0)
    };
    let Counts { refused, later, failed, why, .. } = &*counts;
    let all = counts.took.len() as u64 + refused + later + failed;
    println!(
        r#"{{"begun": {all}, "seconds": {elapsed:.2}, "in": {}, "refused": {refused}, "later": {later}, "failed": {failed}, "why": {:?}, "median_ms": {:.1}, "p99_ms": {:.1}, "most_ms": {:.1}}}"#,
        counts.took.len(),
        why.trim_end(),
        part(0.5),
        part(0.99),
        part(1.0),
    );
}

/// Returns the reply that decided the log-in: the one to PASS, or an earlier one that ended it.
fn log_in(way: &Way, server: SocketAddr, from: Ipv4Addr) -> Result<String> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(IpAddr::V4(from), 0))?;
    rustix::net::connect(&socket, &server)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut control = Control { stream: BufReader::new(stream), protection: Protection::Clear };
    let greeting = control.reply()?;
    if !greeting.starts_with("220") {
        return Ok(greeting);
    }
    let secured = match way {
        Way::Gsi { identity, delegate } => control.gsi(identity, *delegate)?,
        Way::Password { client, .. } => control.tls(client)?,
    };
    if let Some(refused) = secured {
        return Ok(refused);
    }
    let (user, password) = match way {
        Way::Gsi { .. } => (":globus-mapping:", "dummy"),
        Way::Password { user, password, .. } => (user.as_str(), password.as_str()),
    };
    let reply = control.ask(&format!("USER {user}"))?;
    if !reply.starts_with("331") {
        return Ok(reply);
    }
    control.ask(&format!("PASS {password}"))
}

enum Protection {
    Clear,
    Gsi(Box<ropewalk_gsi::Session>),
    Tls { records: Box<Records>, plain: Vec<u8> },
}

struct Control {
    stream: BufReader<TcpStream>,
    protection: Protection,
}

impl Control {
    fn ask(&mut self, command: &str) -> Result<String> {
        let line = format!("{command}\r\n");
        let mut out = Vec::new();
        match &mut self.protection {
            Protection::Clear => out.extend_from_slice(line.as_bytes()),
            Protection::Gsi(session) => session.seal_command(line.as_bytes(), &mut out)?,
            Protection::Tls { records, .. } => records.seal(line.as_bytes(), &mut out)?,
        }
        self.stream.get_mut().write_all(&out)?;
        self.reply()
    }

    /// Reads a reply; returns its last line.
    fn reply(&mut self) -> Result<String> {
        let first = self.line()?;
        let code = first.get(..3).context("no reply code")?.to_owned();
        let mut line = first;
        while !(line.starts_with(&code) && line.as_bytes().get(3) == Some(&b' ')) {
            line = self.line()?;
        }
        Ok(line)
    }

    fn line(&mut self) -> Result<String> {
        if let Protection::Tls { records, plain } = &mut self.protection {
            loop {
                if let Some(end) = plain.iter().position(|&byte| byte == b'\n') {
                    return Ok(String::from_utf8(plain.drain(..=end).collect())?);
                }
                let bytes = some(&mut self.stream)?;
                records.open(&bytes, plain)?;
            }
        }
        let mut line = Vec::new();
        if self.stream.read_until(b'\n', &mut line)? == 0 {
            bail!("the server hung up");
        }
        let line = match &mut self.protection {
            Protection::Gsi(session) if !line.starts_with(b"421") => session.open_reply(&line)?,
            _ => line,
        };
        Ok(String::from_utf8(line)?)
    }

    /// Authenticates with GSI. Returns the reply that refused it, if any.
    fn gsi(&mut self, identity: &Identity, delegate: bool) -> Result<Option<String>> {
        let terms = delegate.then(ProxyTerms::default);
        let options = InitiatorOptions {
            expected: Expected::Anybody,
            delegate: terms,
            after: After::Flag,
            server_name: None,
        };
        let mut initiator = Initiator::new(identity, options)?;
        let reply = self.ask("AUTH GSSAPI")?;
        if !reply.starts_with("334") {
            return Ok(Some(reply));
        }
        let mut token = Vec::new();
        loop {
            let (out, session) = match initiator.step(&token)? {
                Step::Continue(out) => (out, None),
                Step::Done(out, session) => (out, Some(session)),
            };
            let reply = self.ask(&format!("ADAT {}", encode_token(&out)))?;
            match session {
                Some(session) if reply.starts_with("235") => {
                    self.protection = Protection::Gsi(session);
                    return Ok(None);
                }
                None if reply.starts_with("335 ") => token = decode_token(&reply[4..])?,
                _ => return Ok(Some(reply)),
            }
        }
    }

    fn tls(&mut self, client: &Client) -> Result<Option<String>> {
        let reply = self.ask("AUTH TLS")?;
        if !reply.starts_with("234") {
            return Ok(Some(reply));
        }
        let mut handshake = client.connect("localhost")?;
        let mut bytes = Vec::new();
        loop {
            let mut out = Vec::new();
            let established = handshake.step(&bytes, &mut out)?;
            self.stream.get_mut().write_all(&out)?;
            if let Some(established) = established {
                self.protection =
                    Protection::Tls { records: Box::new(established.records), plain: Vec::new() };
                return Ok(None);
            }
            bytes = some(&mut self.stream)?;
        }
    }
}

fn some(stream: &mut impl Read) -> Result<Vec<u8>> {
    let mut buffer = vec![0; 16 << 10];
    let count = stream.read(&mut buffer)?;
    if count == 0 {
        bail!("the server hung up");
    }
    buffer.truncate(count);
    Ok(buffer)
}
