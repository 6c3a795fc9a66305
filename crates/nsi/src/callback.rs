//! The listener for the results and notifications of a provider.
//!
//! A thread accepts connections; each has a thread of its own, with limits on number, time and
//! size. A message is passed on only if it is for this requester, from its provider, and belongs to
//! a request or a connection of this process; otherwise the sender gets a SOAP fault. With TLS, the
//! sender has to prove the provider's name by its certificate.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use openssl::ssl::{SslAcceptor, SslRef};
use openssl::x509::X509Ref;
use parking_lot::Mutex;

use crate::http::{Refused, read_post, write_answer};
use crate::message::{self, Body, Message};

/// Time for one message.
const LIMIT: Duration = Duration::from_secs(10);
/// Messages that are read at a time.
const MOST: usize = 16;
/// How often the listener looks whether it is to end.
const LOOK: Duration = Duration::from_millis(20);

/// The messages that the process waits for.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Those of requests.
    pub(crate) correlations: HashSet<String>,
    pub(crate) connection: Option<String>,
}

/// The rules for messages.
pub(crate) struct Rules {
    pub(crate) path: String,
    pub(crate) requester: String,
    pub(crate) provider: String,
    /// The host name in the provider's certificate, with TLS.
    pub(crate) provider_host: String,
    pub(crate) tls: Option<SslAcceptor>,
    pub(crate) expected: Arc<Mutex<Expected>>,
}

/// A listener. Dropping it ends it.
pub(crate) struct Callback {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Callback {
    /// # Errors
    /// The address cannot be used, or there is no thread.
    pub(crate) fn listen(address: SocketAddr, rules: Rules, sender: Sender<Message>) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || accept(&listener, &Arc::new(rules), &sender, &stopped);
        let thread = thread::Builder::new().name("nsi".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of the thread has been reported by it.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}

fn accept(listener: &TcpListener, rules: &Arc<Rules>, sender: &Sender<Message>, stop: &AtomicBool) {
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
        let (rules, sender, busy) = (Arc::clone(rules), sender.clone(), Arc::clone(&busy));
        thread::spawn(move || {
            if let Err(why) = serve(stream, &rules, &sender) {
                tracing::warn!(%peer, "a message to the NSI listener was refused: {why}");
            }
            busy.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn serve(stream: TcpStream, rules: &Rules, sender: &Sender<Message>) -> Result<(), String> {
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(LIMIT)))
        .and_then(|()| stream.set_write_timeout(Some(LIMIT)));
    prepared.map_err(|error| error.to_string())?;
    match &rules.tls {
        None => exchange(stream, rules, sender),
        Some(acceptor) => {
            let mut stream = acceptor.accept(stream).map_err(|error| format!("TLS: {error}"))?;
            prove(stream.ssl(), &rules.provider_host)?;
            let served = exchange(&mut stream, rules, sender);
            // The answer is complete without it.
            let _ = stream.shutdown();
            served
        }
    }
}

fn exchange(mut stream: impl Read + Write, rules: &Rules, sender: &Sender<Message>) -> Result<(), String> {
    let bytes = match read_post(&mut stream, &rules.path, Instant::now() + LIMIT) {
        Ok(bytes) => bytes,
        Err(Refused::Lost) => return Err("the connection ended, or was too slow".to_owned()),
        Err(Refused::Status(status, reason)) => {
            // The peer may be gone already.
            let _ = write_answer(&mut stream, status, reason, "");
            return Err(format!("HTTP {status} {reason}"));
        }
    };
    let judged = message::parse(&bytes).map_err(|error| error.to_string());
    let judged = judged.and_then(|message| rules.judge(&message).map(|()| message));
    let (status, reason, text) = match &judged {
        Ok(Message { correlation, requester, provider, .. }) => {
            (200, "OK", message::acknowledgment(correlation, requester, provider))
        }
        Err(why) => (500, "Internal Server Error", message::fault(why)),
    };
    let written = write_answer(&mut stream, status, reason, &text);
    let message = judged?;
    // The receiver is gone if the process ends.
    let _ = sender.send(message);
    written.map_err(|error| error.to_string())
}

impl Rules {
    fn judge(&self, message: &Message) -> Result<(), String> {
        if message.requester != self.requester {
            return Err(format!(
                "the message is for the requester {:?}, not {:?}",
                message.requester, self.requester
            ));
        }
        if message.provider != self.provider {
            return Err(format!(
                "the message is from the provider {:?}, not {:?}",
                message.provider, self.provider
            ));
        }
        let expected = self.expected.lock();
        let is_own = |connection: &str| expected.connection.as_deref() == Some(connection);
        match &message.body {
            Body::Notification { connection, .. } if is_own(connection) => return Ok(()),
            Body::Notification { connection, .. } => {
                return Err(format!("the connection {connection:?} is not one of this requester"));
            }
            Body::Held(_) | Body::Error(_) | Body::Failed { .. } => {}
            // The name is known before anything but the reservation can be confirmed.
            Body::Confirmed(_, connection) if is_own(connection) => {}
            Body::Confirmed(_, connection) => {
                return Err(format!("the connection {connection:?} is not one of this requester"));
            }
            other => return Err(format!("a requester does not expect this message: {other:?}")),
        }
        match expected.correlations.contains(&message.correlation) {
            true => Ok(()),
            false => Err(format!("the correlation ID {:?} belongs to no request", message.correlation)),
        }
    }
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
