//! A listener for the messages of a provider: one POST on each connection.
//!
//! A thread accepts connections; each has a thread of its own, with limits on number, time and
//! size. The [`Judge`] decides about each message. With TLS, the sender has to prove the provider's
//! name by its certificate.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use openssl::ssl::{SslAcceptor, SslRef};
use openssl::x509::X509Ref;

use crate::http::{Answer, Refused, read_post, write_answer};

/// Time for one message.
const LIMIT: Duration = Duration::from_secs(10);
/// Messages that are read at a time.
const MOST: usize = 16;
/// How often the listener looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// Decides about messages, and passes on those that the process waits for.
pub(crate) trait Judge: Send + Sync + 'static {
    /// Returns the answer. An error is the reason for which the message is refused, for the log.
    fn judge(&self, message: &[u8]) -> (Answer, Result<(), String>);
}

/// The place that messages come to.
pub(crate) struct Door {
    /// The path of the callback URL.
    pub(crate) path: String,
    /// With TLS, also the host name in the provider's certificate.
    pub(crate) tls: Option<(SslAcceptor, String)>,
}

/// A listener. Dropping it ends it.
pub(crate) struct Listener {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Listener {
    /// # Errors
    /// The address cannot be used, or there is no thread.
    pub(crate) fn start(address: SocketAddr, door: Door, judge: impl Judge) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || accept(&listener, &Arc::new((door, judge)), &stopped);
        let thread = thread::Builder::new().name("nsi".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of the thread has been reported by it.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

fn accept<J: Judge>(listener: &TcpListener, rules: &Arc<(Door, J)>, stop: &AtomicBool) {
    let busy = Arc::new(AtomicUsize::new(0));
    while !stop.load(Ordering::Relaxed) {
        let Ok((stream, peer)) = listener.accept() else {
            thread::sleep(LOOK);
            continue;
        };
        if busy.load(Ordering::Relaxed) >= MOST {
            continue;
        }
        busy.fetch_add(1, Ordering::Relaxed);
        let (rules, busy) = (Arc::clone(rules), Arc::clone(&busy));
        thread::spawn(move || {
            let (door, judge) = &*rules;
            if let Err(why) = serve(stream, door, judge) {
                tracing::warn!(%peer, "a message to the NSI listener was refused: {why}");
            }
            busy.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn serve(stream: TcpStream, door: &Door, judge: &impl Judge) -> Result<(), String> {
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(LIMIT)))
        .and_then(|()| stream.set_write_timeout(Some(LIMIT)));
    prepared.map_err(|error| error.to_string())?;
    match &door.tls {
        None => exchange(stream, door, judge),
        Some((acceptor, host)) => {
            let mut stream = acceptor.accept(stream).map_err(|error| format!("TLS: {error}"))?;
            prove(stream.ssl(), host)?;
            let served = exchange(&mut stream, door, judge);
            // The answer is complete without it.
            let _ = stream.shutdown();
            served
        }
    }
}

fn exchange(mut stream: impl Read + Write, door: &Door, judge: &impl Judge) -> Result<(), String> {
    let bytes = match read_post(&mut stream, &door.path, Instant::now() + LIMIT) {
        Ok(bytes) => bytes,
        Err(Refused::Lost) => return Err("the connection ended, or was too slow".to_owned()),
        Err(Refused::Status(status, reason)) => {
            // The peer may be gone already.
            let _ = write_answer(&mut stream, &Answer::empty(status, reason));
            return Err(format!("HTTP {status} {reason}"));
        }
    };
    let (answer, judged) = judge.judge(&bytes);
    let written = write_answer(&mut stream, &answer);
    judged?;
    written.map_err(|error| error.to_string())
}

/// Checks that the peer's certificate, which the authorities have signed, has this host name.
fn prove(ssl: &SslRef, host: &str) -> Result<(), String> {
    let certificate = ssl.peer_certificate().ok_or("the peer has no certificate")?;
    match names(&certificate).iter().any(|name| name.eq_ignore_ascii_case(host)) {
        true => Ok(()),
        false => Err(format!(
            "the peer's certificate is for {:?}, not for the provider {host:?}",
            names(&certificate)
        )),
    }
}

/// The DNS names and addresses of a certificate or, if it has none, the common name.
fn names(certificate: &X509Ref) -> Vec<String> {
    let alternatives = certificate.subject_alt_names();
    let mut found: Vec<String> = alternatives
        .iter()
        .flatten()
        .filter_map(|name| name.dnsname().map(str::to_owned).or_else(|| name.ipaddress().and_then(address)))
        .collect();
    if found.is_empty() {
        let common = certificate.subject_name().entries_by_nid(openssl::nid::Nid::COMMONNAME);
        found.extend(common.filter_map(|entry| entry.data().to_string().ok()));
    }
    found
}

fn address(bytes: &[u8]) -> Option<String> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(std::net::IpAddr::from(four).to_string());
    }
    <[u8; 16]>::try_from(bytes).ok().map(|sixteen| std::net::IpAddr::from(sixteen).to_string())
}
