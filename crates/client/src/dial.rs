//! Connects to a host name that may have several addresses of both families (RFC 8305, "happy
//! eyeballs").
//!
//! Names are resolved and addresses are tried in separate threads, because neither can be
//! interrupted; a thread whose result is no longer needed ends by itself. The calling thread waits
//! for them and checks for cancellation in short intervals. If all addresses fail, the error is
//! that of the last attempt that ended.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::model::gate::Gate;
use crate::{Cancel, RemoteError};

/// The next address is tried after the one before has been silent for this long (RFC 8305 section 5
/// recommends 250 ms).
const HEAD_START: Duration = Duration::from_millis(250);

/// How often the wait checks whether the copy was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// The addresses of a name that are tried.
#[derive(Clone, Copy, Default)]
pub(crate) struct Choice<'a> {
    pub(crate) gate: Option<&'a dyn Gate>,
    /// This one is tried first. A name may have the addresses of several servers with the same
    /// files, and the sessions of a copy share uploads at one server only.
    pub(crate) preferred: Option<IpAddr>,
}

/// Connects to the first address that answers. Also returns the duration of the handshake, which is
/// one round trip.
pub(crate) fn dial(
    host: &str,
    port: u16,
    timeout: Duration,
    cancel: &Cancel,
    choice: Choice<'_>,
) -> Result<(TcpStream, Duration), RemoteError> {
    let found = resolve(host, port, timeout, cancel)?;
    let addresses = in_order(interleave(permitted(found, host, choice.gate)?), choice.preferred);
    if addresses.is_empty() {
        let source = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        return Err(RemoteError::Resolve { host: host.to_owned(), source });
    }
    race(&addresses, timeout, cancel).map_err(|source| match source.kind() {
        io::ErrorKind::Interrupted => RemoteError::Cancelled,
        _ => RemoteError::Connect { peer: format!("{host}:{port}"), source, hint: String::new() },
    })
}

/// Puts the preferred address before the others, whose order stays.
fn in_order(mut addresses: Vec<SocketAddr>, preferred: Option<IpAddr>) -> Vec<SocketAddr> {
    addresses.sort_by_key(|address| Some(address.ip()) != preferred);
    addresses
}

/// The addresses that the gate permits.
fn permitted(
    found: Vec<SocketAddr>,
    host: &str,
    gate: Option<&dyn Gate>,
) -> Result<Vec<SocketAddr>, RemoteError> {
    let Some(gate) = gate else { return Ok(found) };
    let (mut addresses, mut refused) = (Vec::new(), None);
    for address in found {
        match gate.permits(host, address) {
            Ok(()) => addresses.push(address),
            Err(reason) => refused = Some(reason),
        }
    }
    match refused {
        Some(reason) if addresses.is_empty() => Err(RemoteError::Security { peer: host.to_owned(), reason }),
        _ => Ok(addresses),
    }
}

/// Resolves a name in a separate thread, because the system's resolver has no time limit and cannot
/// be interrupted.
fn resolve(
    host: &str,
    port: u16,
    timeout: Duration,
    cancel: &Cancel,
) -> Result<Vec<SocketAddr>, RemoteError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let deadline = Instant::now() + timeout;
    let (sender, result) = mpsc::channel();
    let name = host.to_owned();
    let failed = |source| RemoteError::Resolve { host: host.to_owned(), source };
    let resolver = thread::Builder::new().spawn(move || {
        let _ = sender.send((name.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    });
    resolver.map_err(RemoteError::Threads)?;
    loop {
        if cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        let rest = deadline.saturating_duration_since(Instant::now());
        match result.recv_timeout(rest.min(LOOK)) {
            Ok(found) => return found.map_err(failed),
            Err(RecvTimeoutError::Timeout) if !rest.is_zero() => {}
            Err(_) => {
                let silent = format!("no answer within {} s", timeout.as_secs_f64());
                return Err(failed(io::Error::new(io::ErrorKind::TimedOut, silent)));
            }
        }
    }
}

/// Alternates the address families, starting with the one that the resolver prefers.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|a| a.is_ipv6() == first_is_v6);
    let mut mixed = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        let pair = (first.next(), second.next());
        if pair == (None, None) {
            return mixed;
        }
        mixed.extend(pair.0);
        mixed.extend(pair.1);
    }
}

/// Tries each address in its own thread. Each attempt starts [`HEAD_START`] after the one before,
/// or when no attempt is under way.
fn race(addresses: &[SocketAddr], timeout: Duration, cancel: &Cancel) -> io::Result<(TcpStream, Duration)> {
    let deadline = Instant::now() + timeout;
    let (sender, results) = mpsc::channel();
    let mut waiting = addresses.iter().copied();
    let mut running = 0;
    let mut failure = io::Error::from(io::ErrorKind::TimedOut);
    let mut turn = Instant::now();
    loop {
        if cancel.is_cancelled() {
            return Err(Cancel::error());
        }
        let next = if running == 0 || Instant::now() >= turn { waiting.next() } else { None };
        if let Some(address) = next {
            turn = Instant::now() + HEAD_START;
            let sender = sender.clone();
            // The thread of an attempt that lost ends at the time limit; its socket is closed with
            // the channel.
            let begun = thread::Builder::new().spawn(move || {
                let began = Instant::now();
                let result = TcpStream::connect_timeout(&address, timeout);
                let _ = sender.send(result.map(|stream| (stream, began.elapsed())));
            });
            match begun {
                Ok(_) => running += 1,
                // Attempts that are under way may still succeed.
                Err(e) => failure = e,
            }
        } else if running == 0 {
            return Err(failure);
        }
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(failure);
        }
        match results.recv_timeout(rest.min(LOOK)) {
            Ok(Ok(connected)) => return Ok(connected),
            Ok(Err(e)) => {
                running -= 1;
                failure = e;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn families_take_turns() {
        let a = |s: &str| s.parse::<SocketAddr>().unwrap();
        let mixed =
            interleave(vec![a("[::1]:1"), a("[::2]:1"), a("1.1.1.1:1"), a("2.2.2.2:1"), a("3.3.3.3:1")]);
        assert_eq!(mixed, [a("[::1]:1"), a("1.1.1.1:1"), a("[::2]:1"), a("2.2.2.2:1"), a("3.3.3.3:1")]);
    }

    #[test]
    fn a_dead_address_does_not_hold_up() {
        let live = TcpListener::bind("127.0.0.1:0").unwrap();
        let dead = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [dead.local_addr().unwrap(), live.local_addr().unwrap()];
        drop(dead);
        let (stream, _) = race(&addresses, Duration::from_secs(5), &Cancel::new()).unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
    }

    #[test]
    fn preferred_address_is_tried_first_and_others_in_their_order() {
        let addresses = ["1.1.1.1:1", "[::1]:1", "2.2.2.2:1", "3.3.3.3:1"].map(|s| s.parse().unwrap());
        let [first, second, third, last]: [SocketAddr; 4] = addresses;
        let ordered = |preferred| in_order(addresses.to_vec(), preferred);
        assert_eq!(ordered(Some(third.ip())), [third, first, second, last]);
        assert_eq!(ordered(None), [first, second, third, last]);
        assert_eq!(ordered(Some([9, 9, 9, 9].into())), [first, second, third, last]);
    }

    /// The listener's queue is full, so connection attempts get no answer.
    #[test]
    fn a_silent_address_is_given_up_when_it_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut filling = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            filling.push(stream);
        }
        let cancel = Cancel::new();
        let began = Instant::now();
        std::thread::scope(|scope| {
            let dialled = scope.spawn(|| race(&[address], Duration::from_secs(60), &cancel));
            cancel.cancel();
            assert_eq!(dialled.join().unwrap().unwrap_err().kind(), io::ErrorKind::Interrupted);
        });
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn names_are_found_unless_nobody_waits_for_them() {
        let (limit, cancel) = (Duration::from_secs(60), Cancel::new());
        let found = resolve("localhost", 7, limit, &cancel).unwrap();
        assert!(
            !found.is_empty() && found.iter().all(|a| a.ip().is_loopback() && a.port() == 7),
            "{found:?}"
        );
        assert_eq!(resolve("::1", 7, limit, &cancel).unwrap(), ["[::1]:7".parse().unwrap()]);
        cancel.cancel();
        let given_up = resolve("localhost", 7, limit, &cancel).unwrap_err();
        assert!(matches!(given_up, RemoteError::Cancelled), "{given_up}");
    }

    /// The texts are those of the C library in the wording of the standard library.
    #[test]
    fn a_resolver_that_is_out_of_order_may_come_back() {
        let failed = |reason: &str| {
            let text = format!("failed to lookup address information: {reason}");
            RemoteError::Resolve { host: "h".into(), source: io::Error::other(text) }
        };
        assert!(failed("Temporary failure in name resolution").is_transient());
        assert!(!failed("Name or service not known").is_transient());
        let silent = resolve("localhost", 7, Duration::ZERO, &Cancel::new());
        assert!(silent.is_ok() || silent.is_err_and(|error| error.is_transient()));
    }

    #[test]
    fn nobody_there() {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = dead.local_addr().unwrap().port();
        drop(dead);
        let choice = Choice::default();
        let error = dial("127.0.0.1", port, Duration::from_secs(5), &Cancel::new(), choice).unwrap_err();
        assert!(matches!(error, RemoteError::Connect { .. }), "{error}");
    }
}
