//! Both roles of the handshake, with each other and with the answers that libudt gives.

#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use ropewalk_udt::{
    Acceptor, Answer, Body, CONFIRM, Config, ConnectError, Connector, Control, Handshake, Packet, Parameters,
    REFUSED, REQUEST_COOKIE,
};

const CONNECTOR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4000);

struct Pair {
    now: Instant,
    acceptor: Acceptor,
    connector: Connector,
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let acceptor = Acceptor::new(Config::default(), [7; 32], now);
        let connector = Connector::new(Config::default(), [8; 32], CONNECTOR.ip(), now);
        Self { now, acceptor, connector }
    }

    fn request(&mut self) -> Vec<u8> {
        self.connector.poll_transmit(self.now).unwrap()
    }

    fn answer(&mut self, request: &[u8]) -> Answer {
        self.acceptor.handle(self.now, CONNECTOR, &control(request), true)
    }

    fn confirmed(&mut self) -> Vec<u8> {
        let request = self.request();
        let Answer::Reply(cookie) = self.answer(&request) else { panic!() };
        self.connector.handle(self.now, &cookie);
        self.request()
    }
}

fn control(packet: &[u8]) -> Control<'_> {
    match Packet::parse(packet) {
        Some(Packet::Control(control)) => control,
        other => panic!("{other:?}"),
    }
}

fn handshake(packet: &[u8]) -> Handshake {
    match control(packet).body {
        Body::Handshake(handshake) => handshake,
        other => panic!("{other:?}"),
    }
}

fn changed(packet: &[u8], info: u32, change: impl FnOnce(&mut Handshake)) -> Vec<u8> {
    let mut fields = handshake(packet);
    change(&mut fields);
    let destination = control(packet).destination;
    let mut changed = Vec::new();
    Control::new(destination, info, Body::Handshake(fields)).print(&mut changed);
    changed
}

#[test]
fn connector_and_acceptor_agree_on_the_parameters() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    let Answer::Accept(theirs, answer) = pair.answer(&confirm) else { panic!() };
    pair.connector.handle(pair.now, &answer);
    let ours = pair.connector.outcome().unwrap().unwrap();
    assert_eq!(theirs, Parameters { id: ours.peer_id, peer_id: ours.id, ..ours });
    assert!(ours.ropewalk && ours.peer_window > 8192 && ours.payload() == 1456);
}

#[test]
fn acceptor_answers_are_no_longer_than_requests() {
    let mut pair = Pair::new();
    let request = pair.request();
    let Answer::Reply(cookie) = pair.answer(&request) else { panic!() };
    assert_eq!((request.len(), cookie.len()), (64, 64));
    assert_eq!(handshake(&cookie).request, REQUEST_COOKIE);
    let confirm = pair.confirmed_after(&cookie);
    let Answer::Accept(_, answer) = pair.answer(&confirm) else { panic!() };
    assert_eq!(answer.len(), 64);
}

impl Pair {
    fn confirmed_after(&mut self, cookie: &[u8]) -> Vec<u8> {
        self.connector.handle(self.now, cookie);
        self.request()
    }
}

#[test]
fn acceptor_given_a_repeated_request_repeats_its_answer() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    let Answer::Accept(parameters, answer) = pair.answer(&confirm) else { panic!() };
    assert_eq!(pair.answer(&confirm), Answer::Reply(answer.clone()));
    pair.acceptor.ended(pair.now, parameters.id);
    pair.now += Duration::from_secs(5);
    assert_eq!(pair.answer(&confirm), Answer::Reply(answer));
}

#[test]
fn acceptor_limits_the_connections_of_an_address() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    // Each is another request of the same address, with a cookie of its own.
    let mut attempt = |id: u32, now: Instant, peer: SocketAddr| {
        let first = changed(&confirm, 0, |fields| {
            (fields.id, fields.request, fields.cookie) = (id, REQUEST_COOKIE, 0);
        });
        let Answer::Reply(reply) = pair.acceptor.handle(now, peer, &control(&first), true) else { panic!() };
        let cookie = handshake(&reply).cookie;
        let second = changed(&confirm, 0, |fields| (fields.id, fields.cookie) = (id, cookie));
        match pair.acceptor.handle(now, peer, &control(&second), true) {
            Answer::Accept(parameters, _) => {
                pair.acceptor.ended(now, parameters.id);
                true
            }
            Answer::Reply(reply) => handshake(&reply).request != REFUSED,
            Answer::Silence => panic!(),
        }
    };
    let now = pair.now;
    let accepted = (1..=1000).filter(|id| attempt(*id, now, CONNECTOR)).count();
    assert_eq!(accepted, 256);
    let other = SocketAddr::from(([127, 0, 0, 2], 4000));
    assert!(attempt(5000, now, other), "another address is not limited by this one");
    assert!(attempt(6000, now + Duration::from_secs(11), CONNECTOR), "ended connections do not count later");
}

#[test]
fn acceptor_given_a_wrong_cookie_is_silent() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    let forged = changed(&confirm, 0, |fields| fields.cookie ^= 1);
    assert_eq!(pair.answer(&forged), Answer::Silence);
    let elsewhere = SocketAddr::new(CONNECTOR.ip(), CONNECTOR.port() + 1);
    let answer = pair.acceptor.handle(pair.now, elsewhere, &control(&confirm), true);
    assert_eq!(answer, Answer::Silence);
}

#[test]
fn cookie_is_valid_in_the_next_minute_but_not_later() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    pair.now += Duration::from_secs(119);
    assert!(matches!(pair.answer(&confirm), Answer::Accept(..)));
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    pair.now += Duration::from_secs(120);
    assert_eq!(pair.answer(&confirm), Answer::Silence);
}

#[test]
fn acceptor_refuses_values_that_cannot_work() {
    type Change = fn(&mut Handshake);
    let changes: [Change; 6] = [
        |fields| fields.mss = 44,
        |fields| fields.mss = 91,
        |fields| fields.window = 0,
        |fields| fields.window = u32::MAX,
        |fields| fields.version = 3,
        |fields| fields.socket_type = 2,
    ];
    for change in changes {
        let mut pair = Pair::new();
        let confirm = changed(&pair.confirmed(), 0, change);
        let Answer::Reply(answer) = pair.answer(&confirm) else { panic!() };
        assert_eq!(handshake(&answer).request, REFUSED);
        pair.connector.handle(pair.now, &answer);
        assert_eq!(pair.connector.outcome(), Some(Err(ConnectError::Refused)));
    }
}

#[test]
fn acceptor_without_room_refuses() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    let Answer::Reply(answer) = pair.acceptor.handle(pair.now, CONNECTOR, &control(&confirm), false) else {
        panic!()
    };
    assert_eq!(handshake(&answer).request, REFUSED);
}

#[test]
fn connector_of_a_libudt_listener_trusts_no_window_beyond_libudts() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    let Answer::Accept(_, answer) = pair.answer(&confirm) else { panic!() };
    // libudt returns the info of the request in a repeated answer, with another window.
    let repeated = changed(&answer, control(&confirm).info, |fields| {
        (fields.version, fields.socket_type, fields.window) = (0, 0, 25600);
    });
    pair.connector.handle(pair.now, &repeated);
    let parameters = pair.connector.outcome().unwrap().unwrap();
    assert_eq!((parameters.ropewalk, parameters.peer_window), (false, 8192));
}

#[test]
fn connector_ignores_answers_for_another_connection() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    let Answer::Accept(_, answer) = pair.answer(&confirm) else { panic!() };
    let other = changed(&answer, 0, |fields| fields.initial = fields.initial.add(1));
    pair.connector.handle(pair.now, &other);
    let unusable = changed(&answer, 0, |fields| fields.id = 0);
    pair.connector.handle(pair.now, &unusable);
    assert_eq!(pair.connector.outcome(), None);
}

#[test]
fn connector_without_an_answer_to_its_cookie_asks_for_another() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    assert_eq!(handshake(&confirm).request, CONFIRM);
    pair.now += Duration::from_millis(600);
    assert_eq!(handshake(&pair.request()).request, REQUEST_COOKIE);
}

#[test]
fn connector_without_any_answer_times_out() {
    let mut pair = Pair::new();
    let mut requests = 0;
    while let Some(timeout) = pair.connector.timeout() {
        pair.now = timeout.max(pair.now);
        requests += usize::from(pair.connector.poll_transmit(pair.now).is_some());
    }
    assert_eq!(pair.connector.outcome(), Some(Err(ConnectError::TimedOut)));
    assert!((30..60).contains(&requests), "{requests}");
}

#[test]
fn connector_keeps_packets_that_overtake_the_answer() {
    let mut pair = Pair::new();
    let confirm = pair.confirmed();
    let Answer::Accept(parameters, answer) = pair.answer(&confirm) else { panic!() };
    let mut early = Vec::new();
    Control::new(parameters.peer_id, 0, Body::KeepAlive).print(&mut early);
    pair.connector.handle(pair.now, &early);
    pair.connector.handle(pair.now, &answer);
    assert!(pair.connector.outcome().unwrap().is_ok());
    assert_eq!(pair.connector.into_early(), [early]);
}
