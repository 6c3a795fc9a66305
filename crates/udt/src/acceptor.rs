//! The handshake of a listener.
//!
//! A request without a cookie is answered with one, and leaves no state here: the cookie is a keyed
//! hash of the request and the time. An answer is as long as its request, so that a forged source
//! address amplifies nothing. Only a peer that returns its cookie gets a connection; its answer is
//! stored, because the peer repeats the request if the answer is lost.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::config::{Config, Parameters};
use crate::handshake::{
    CONFIRM, Handshake, REFUSED, REQUEST_COOKIE, ROPEWALK_ANSWER, ROPEWALK_REQUEST, STREAM, VERSION,
};
use crate::packet::{Body, Control};

/// A cookie is valid in the period that made it and in the next one.
const COOKIE_PERIOD: Duration = Duration::from_secs(60);
/// How long an answer is kept after the end of its connection. A libudt connector repeats its
/// request for 3 seconds.
const ANSWER_KEPT: Duration = Duration::from_secs(10);

/// The most connections of one address, with those whose answers are kept. The streams of a
/// transfer are fewer.
const MOST_OF_ADDRESS: usize = 256;

/// The reaction to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    Silence,
    /// Send this packet to the peer.
    Reply(Vec<u8>),
    /// Make a connection, which sends this packet to the peer.
    Accept(Parameters, Vec<u8>),
}

/// The handshakes of a listener.
pub struct Acceptor {
    config: Config,
    key: [u8; 32],
    started: Instant,
    /// How many ids were given out.
    ids: u64,
    answers: HashMap<Request, Stored>,
}

/// The identity of a request that is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Request {
    peer: SocketAddr,
    id: u32,
    initial: u32,
}

struct Stored {
    id: u32,
    packet: Vec<u8>,
    /// When the answer can be forgotten, if its connection has ended.
    until: Option<Instant>,
}

impl Acceptor {
    /// `key` must be random and secret: cookies and ids are made with it.
    pub fn new(config: Config, key: [u8; 32], now: Instant) -> Self {
        Self { config, key, started: now, ids: 0, answers: HashMap::new() }
    }

    /// Answers a handshake for id 0. `has_room` is whether another connection may be made.
    pub fn handle(&mut self, now: Instant, peer: SocketAddr, packet: &Control<'_>, has_room: bool) -> Answer {
        let Body::Handshake(request) = packet.body else { return Answer::Silence };
        let period = now.saturating_duration_since(self.started).as_secs() / COOKIE_PERIOD.as_secs();
        if request.request == REQUEST_COOKIE {
            let cookie = self.cookie(peer, &request, period);
            return Answer::Reply(print(packet.info, request.id, Handshake { cookie, ..request }));
        }
        let mut periods = [Some(period), period.checked_sub(1)].into_iter().flatten();
        if !periods.any(|period| self.cookie(peer, &request, period) == request.cookie) {
            return Answer::Silence;
        }
        let key = Request { peer, id: request.id, initial: request.initial.get() };
        if let Some(stored) = self.answers.get(&key) {
            return Answer::Reply(stored.packet.clone());
        }
        self.forget(now);
        let of_address = self.answers.keys().filter(|known| known.peer.ip() == peer.ip()).count();
        let has_room = has_room && of_address < MOST_OF_ADDRESS;
        let ropewalk = packet.info == ROPEWALK_REQUEST;
        let valid = request.version == VERSION && request.socket_type == STREAM && has_room;
        let agreed = Parameters::agree(self.config.mss(), self.next_id(), &request, ropewalk);
        let Some(parameters) = agreed.filter(|_| valid) else {
            return Answer::Reply(print(0, request.id, Handshake { request: REFUSED, ..request }));
        };
        let answer = Handshake {
            mss: parameters.mss,
            window: self.config.window(),
            request: CONFIRM,
            id: parameters.id,
            ..request
        };
        let answer = print(if ropewalk { ROPEWALK_ANSWER } else { 0 }, request.id, answer);
        let stored = Stored { id: parameters.id, packet: answer.clone(), until: None };
        self.answers.insert(key, stored);
        Answer::Accept(parameters, answer)
    }

    /// Notes that the connection with this id has ended: its answer is forgotten after some time.
    pub fn ended(&mut self, now: Instant, id: u32) {
        self.forget(now);
        for stored in self.answers.values_mut().filter(|stored| stored.id == id) {
            stored.until = Some(now + ANSWER_KEPT);
        }
    }

    fn forget(&mut self, now: Instant) {
        self.answers.retain(|_, stored| stored.until.is_none_or(|until| now < until));
    }

    fn cookie(&self, peer: SocketAddr, request: &Handshake, period: u64) -> u32 {
        let mut hash = blake3::Hasher::new_keyed(&self.key);
        match peer {
            SocketAddr::V4(peer) => hash.update(&peer.ip().octets()),
            SocketAddr::V6(peer) => hash.update(&peer.ip().octets()),
        };
        hash.update(&peer.port().to_be_bytes());
        hash.update(&request.id.to_be_bytes());
        hash.update(&request.initial.get().to_be_bytes());
        hash.update(&period.to_be_bytes());
        let [a, b, c, d, ..] = *hash.finalize().as_bytes();
        u32::from_be_bytes([a, b, c, d])
    }

    /// An id that a third party cannot guess.
    fn next_id(&mut self) -> u32 {
        loop {
            self.ids += 1;
            let id = random_number(&self.key, self.ids) >> 2;
            if id != 0 && self.answers.values().all(|stored| stored.id != id) {
                return id;
            }
        }
    }
}

/// The `n`-th number that is made of a secret.
pub(crate) fn random_number(key: &[u8; 32], n: u64) -> u32 {
    let mut hash = blake3::Hasher::new_keyed(key);
    hash.update(b"number").update(&n.to_be_bytes());
    let [a, b, c, d, ..] = *hash.finalize().as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

pub(crate) fn print(info: u32, destination: u32, handshake: Handshake) -> Vec<u8> {
    let mut packet = Vec::new();
    Control::new(destination, info, Body::Handshake(handshake)).print(&mut packet);
    packet
}
