//! The thread of a UDP socket: it moves datagrams between the network and the connections.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{ConnectionHandle, DatagramEvent, Endpoint, Incoming, Transmit};
use ropewalk_udp::{Datagrams, EcnCodepoint, Inbox, Queue, Route, UdpSocket, Waker};

use crate::entry::Entry;
use crate::link::{Link, Queues, QuicConnection};
use crate::settings::{self, Settings, canonical};

/// How many calls receive datagrams before others are sent, and how many batches one connection
/// sends before others are received: ACKs must not wait for long.
const RECEIVES: usize = 4;
const BATCHES: usize = 8;
/// With so many connections in their handshake, a peer must prove its address first, so that forged
/// addresses cost little.
const UNPROVEN: usize = 16;
/// The name that TLS requires of a server, which no side looks at.
const SERVER: &str = "ropewalk";

pub(crate) struct Worker {
    socket: UdpSocket,
    waker: Arc<Waker>,
    endpoint: Endpoint,
    connections: HashMap<ConnectionHandle, Entry>,
    listening: Option<Listening>,
    /// Datagrams to send.
    buffer: Vec<u8>,
}

/// The part of a worker that accepts connections.
struct Listening {
    settings: Settings,
    queue: Arc<Queue>,
}

impl Worker {
    /// Makes the thread of a listener.
    pub(crate) fn listening(
        socket: UdpSocket,
        waker: Arc<Waker>,
        settings: Settings,
        queue: Arc<Queue>,
    ) -> Self {
        // Each connection has its own settings; these only make the endpoint accept some.
        let anyone = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let server = Arc::new(settings.server(&Arc::default(), anyone));
        let endpoint = Endpoint::new(settings::endpoint(), Some(server), !socket.may_fragment(), None);
        let listening = Some(Listening { settings, queue });
        Self { socket, waker, endpoint, connections: HashMap::new(), listening, buffer: Vec::new() }
    }

    /// Makes the thread of a connection to `peer`.
    ///
    /// # Errors
    /// `peer` is no address of a peer.
    pub(crate) fn connecting(
        socket: UdpSocket,
        waker: Arc<Waker>,
        settings: &Settings,
        peer: SocketAddr,
        link: Arc<Link>,
    ) -> io::Result<Self> {
        let mut endpoint = Endpoint::new(settings::endpoint(), None, !socket.may_fragment(), None);
        let counters = Arc::default();
        let (handle, connection) = endpoint
            .connect(Instant::now(), settings.client(&counters, peer), peer, SERVER)
            .map_err(io::Error::other)?;
        let entry = Entry::connecting(connection, link, counters, settings.windows());
        let connections = HashMap::from([(handle, entry)]);
        Ok(Self { socket, waker, endpoint, connections, listening: None, buffer: Vec::new() })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(mut self) -> io::Result<()> {
        thread::Builder::new().name("quic".to_owned()).spawn(move || self.run()).map(drop)
    }

    fn run(&mut self) {
        let mut inbox = Inbox::new();
        loop {
            self.receive(&mut inbox);
            self.serve();
            self.connections.retain(|_, entry| !entry.is_gone());
            // A listener that is dropped from now on wakes this thread.
            if !self.is_needed() {
                return;
            }
            let next = self.connections.values().filter_map(|entry| entry.next).min();
            self.waker.wait(&self.socket, next);
        }
    }

    fn is_needed(&self) -> bool {
        !self.connections.is_empty()
            || self.listening.as_ref().is_some_and(|listening| !listening.queue.is_broken())
    }

    fn receive(&mut self, inbox: &mut Inbox) {
        for _ in 0..RECEIVES {
            let now = Instant::now();
            let mut incoming = Vec::new();
            let Self { socket, endpoint, connections, buffer, .. } = self;
            let received = inbox.receive(socket, |route, datagrams| {
                let ecn = datagrams.ecn.and_then(|ecn| quinn_proto::EcnCodepoint::from_bits(ecn as u8));
                let mut all = BytesMut::from(datagrams.bytes);
                while !all.is_empty() {
                    let one = all.split_to(datagrams.segment.min(all.len()));
                    buffer.clear();
                    match endpoint.handle(now, route.peer, route.local, ecn, one, buffer) {
                        Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                            if let Some(entry) = connections.get_mut(&handle) {
                                entry.handle(event);
                            }
                        }
                        Some(DatagramEvent::NewConnection(one)) => incoming.push((one, *route)),
                        Some(DatagramEvent::Response(transmit)) => send(socket, &transmit, buffer, |_| {}),
                        None => {}
                    }
                }
            });
            for (one, route) in incoming {
                self.accept(now, one, route);
            }
            match received {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    tracing::debug!(%error, "cannot receive QUIC datagrams");
                    if error.kind() == io::ErrorKind::ConnectionRefused {
                        self.connections.values_mut().for_each(|entry| entry.is_unreachable(now));
                    }
                    break;
                }
            }
        }
    }

    /// Accepts a connection, or refuses it.
    fn accept(&mut self, now: Instant, incoming: Incoming, route: Route) {
        let Self { socket, endpoint, connections, listening, buffer, waker } = self;
        let Some(listening) = listening else { return endpoint.ignore(incoming) };
        buffer.clear();
        let coming = connections.values().filter(|entry| entry.is_new()).count();
        if !listening.queue.has_room(coming) {
            let answer = endpoint.refuse(incoming, buffer);
            return send(socket, &answer, buffer, |_| {});
        }
        if coming >= UNPROVEN && incoming.may_retry() {
            if let Ok(answer) = endpoint.retry(incoming, buffer) {
                send(socket, &answer, buffer, |_| {});
            }
            return;
        }
        let counters = Arc::default();
        let config = Arc::new(listening.settings.server(&counters, route.peer));
        let (handle, connection) = match endpoint.accept(incoming, now, buffer, Some(config)) {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(answer) = error.response {
                    send(socket, &answer, buffer, |_| {});
                }
                return;
            }
        };
        let link = socket.local_addr().and_then(|mut local| {
            if let Some(ip) = route.local {
                local.set_ip(ip);
            }
            let addresses = (canonical(local), canonical(route.peer));
            Link::new(Arc::clone(waker), Queues::new(), Some(addresses))
        });
        match link {
            Ok(link) => {
                let windows = listening.settings.windows();
                connections.insert(handle, Entry::accepting(connection, link, counters, windows, now));
            }
            Err(error) => {
                // The endpoint forgets the connection with this event; the peer times out.
                tracing::warn!(%error, "cannot accept a QUIC connection");
                endpoint.handle_event(handle, quinn_proto::EndpointEvent::drained());
            }
        }
    }

    /// Serves the connections that have something to do, and sends their datagrams.
    fn serve(&mut self) {
        let Self { socket, endpoint, connections, listening, buffer, .. } = self;
        let most = socket.most_segments();
        for (handle, entry) in connections {
            let now = Instant::now();
            let touched = entry.link.take_touched();
            if !touched && entry.next.is_none_or(|next| next > now) {
                continue;
            }
            if entry.serve(now, endpoint, *handle)
                && let Some(listening) = listening
            {
                listening.queue.push(Box::new(QuicConnection::new(Arc::clone(&entry.link))));
            }
            let mut sends = true;
            for _ in 0..BATCHES {
                let Some(transmit) = entry.transmit(now, most, buffer) else {
                    sends = false;
                    break;
                };
                send(socket, &transmit, buffer, |error| {
                    if error.kind() == io::ErrorKind::ConnectionRefused {
                        entry.is_unreachable(now);
                    }
                });
            }
            entry.plan(endpoint, *handle);
            if sends {
                entry.next = Some(now);
            }
        }
    }
}

fn send(socket: &UdpSocket, transmit: &Transmit, buffer: &[u8], failed: impl FnOnce(&io::Error)) {
    let ecn = transmit.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
    let bytes = &buffer[..transmit.size];
    let segment = transmit.segment_size.unwrap_or(transmit.size);
    let route = Route { peer: transmit.destination, local: transmit.src_ip };
    if let Err(error) = socket.send(&Datagrams { bytes, segment, ecn }, &route) {
        tracing::debug!(%error, "cannot send QUIC datagrams");
        failed(&error);
    }
}
