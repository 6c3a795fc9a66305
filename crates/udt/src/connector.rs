//! The handshake of a connector.
//!
//! The connector asks for a cookie, returns it, and takes the first answer that accepts it. Each
//! packet is repeated on a timer. If a request with a cookie is not answered, the connector asks
//! for a new cookie: libudt does not accept a cookie of the previous minute. Data packets that have
//! overtaken the answer are kept for the connection.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::Seq;
use crate::acceptor::{print, random_number};
use crate::config::{Config, Parameters};
use crate::handshake::{
    CONFIRM, Handshake, REFUSED, REQUEST_COOKIE, ROPEWALK_ANSWER, ROPEWALK_REQUEST, STREAM, VERSION,
    address_bytes,
};
use crate::packet::{Body, Control, Packet};

/// The time between two requests at first, and at last.
const FIRST_INTERVAL: Duration = Duration::from_millis(100);
const LAST_INTERVAL: Duration = Duration::from_millis(250);
/// After this time without an answer the cookie counts as expired.
const COOKIE_TIMEOUT: Duration = Duration::from_millis(600);
/// More packets than arrive before a repeated answer, unless a stranger sends them.
const MOST_EARLY: usize = 64;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    #[error("the peer refuses the connection (UDT error 1002)")]
    Refused,
    #[error("the peer does not answer the UDT handshake")]
    TimedOut,
}

/// A connection that is being made.
pub struct Connector {
    config: Config,
    initial: Seq,
    id: u32,
    address: [u8; 16],
    /// The cookie of the peer, and since when it has been tried.
    cookie: Option<(u32, Instant)>,
    next: Instant,
    interval: Duration,
    deadline: Instant,
    early: Vec<Vec<u8>>,
    outcome: Option<Result<Parameters, ConnectError>>,
}

impl Connector {
    /// `key` must be random and secret.
    pub fn new(config: Config, key: [u8; 32], peer: IpAddr, now: Instant) -> Self {
        Self {
            initial: Seq::new(random_number(&key, 0)),
            id: (random_number(&key, 1) >> 2).max(1),
            address: address_bytes(peer),
            cookie: None,
            next: now,
            interval: FIRST_INTERVAL,
            deadline: now + config.connect_timeout,
            early: Vec::new(),
            outcome: None,
            config,
        }
    }

    /// Takes a datagram of the peer.
    pub fn handle(&mut self, now: Instant, datagram: &[u8]) {
        if self.outcome.is_some() {
            return;
        }
        match Packet::parse(datagram) {
            Some(packet) if packet.destination() != self.id => {}
            Some(Packet::Control(control)) if matches!(control.body, Body::Handshake(_)) => {
                self.handle_answer(now, &control);
            }
            Some(_) if self.early.len() < MOST_EARLY => self.early.push(datagram.to_vec()),
            _ => {}
        }
    }

    /// Returns the next datagram to send now, if there is one.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.outcome.is_some() {
            return None;
        }
        if now >= self.deadline {
            self.outcome = Some(Err(ConnectError::TimedOut));
            return None;
        }
        if now < self.next {
            return None;
        }
        self.cookie = self.cookie.filter(|(_, since)| now < *since + COOKIE_TIMEOUT);
        self.next = now + self.interval;
        self.interval = (2 * self.interval).min(LAST_INTERVAL);
        let (request, cookie) = self.cookie.map_or((REQUEST_COOKIE, 0), |(cookie, _)| (CONFIRM, cookie));
        let handshake = Handshake {
            version: VERSION,
            socket_type: STREAM,
            initial: self.initial,
            mss: self.config.mss(),
            window: self.config.window(),
            request,
            id: self.id,
            cookie,
            address: self.address,
        };
        Some(print(ROPEWALK_REQUEST, 0, handshake))
    }

    /// When to call [`Connector::poll_transmit`] again at the latest.
    pub fn timeout(&self) -> Option<Instant> {
        self.outcome.is_none().then(|| self.next.min(self.deadline))
    }

    /// The result, when there is one.
    pub fn outcome(&self) -> Option<Result<Parameters, ConnectError>> {
        self.outcome
    }

    /// The datagrams that came before the answer; the connection must get them first.
    pub fn into_early(self) -> Vec<Vec<u8>> {
        self.early
    }

    fn handle_answer(&mut self, now: Instant, control: &Control<'_>) {
        let Body::Handshake(answer) = control.body else { return };
        if answer.initial != self.initial {
            return;
        }
        match answer.request {
            // An answer to an earlier request must not restart the time of the same cookie.
            REQUEST_COOKIE if self.cookie.is_none() && answer.id == self.id => {
                self.cookie = Some((answer.cookie, now));
                self.next = now;
                self.interval = FIRST_INTERVAL;
            }
            REFUSED => self.outcome = Some(Err(ConnectError::Refused)),
            CONFIRM if self.cookie.is_some() => {
                let ropewalk = control.info == ROPEWALK_ANSWER;
                let agreed = Parameters::agree(self.config.mss(), self.id, &answer, ropewalk);
                self.outcome = agreed.map(Ok);
            }
            _ => {}
        }
    }
}
