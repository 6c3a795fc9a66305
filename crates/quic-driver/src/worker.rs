//! The thread of a UDP socket: it moves datagrams between the network and the connections.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{ConnectionHandle, DatagramEvent, Endpoint, Incoming, Transmit};
use ropewalk_udp::{Datagrams, EcnCodepoint, Inbox, Route, UdpSocket, Waker};

use crate::entry::Entry;
use crate::link::{Link, Queues};
use crate::port::{Channel, Channels};
use crate::settings::{self, Settings, canonical};
use crate::tls::Tls;

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

/// The channels whose connections a worker accepts.
pub(crate) enum Listening {
    One(Channel),
    /// Those of a shared port.
    Many(Arc<Channels>, Tls),
}

impl Listening {
    fn channel(&self, incoming: &Incoming) -> Option<Channel> {
        match self {
            Self::One(channel) => Some(channel.clone()),
            Self::Many(channels, _) => channels.of(incoming.orig_dst_cid()),
        }
    }

    /// Whether no more connections can come.
    fn is_over(&self) -> bool {
        match self {
            Self::One(channel) => channel.queue.is_broken(),
            Self::Many(channels, _) => channels.is_closed(),
        }
    }

    fn tls(&self) -> &Tls {
        match self {
            Self::One(channel) => channel.settings.tls(),
            Self::Many(_, tls) => tls,
        }
    }
}

impl Worker {
    /// Makes the thread of a socket that accepts connections.
    pub(crate) fn listening(socket: UdpSocket, waker: Arc<Waker>, listening: Listening) -> Self {
        // Each connection has its own settings; these only make the endpoint accept some.
        let server = Some(Arc::new(settings::endpoint_server(listening.tls())));
        let endpoint = Endpoint::new(settings::endpoint(), server, !socket.may_fragment(), None);
        let listening = Some(listening);
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
        !self.connections.is_empty() || self.listening.as_ref().is_some_and(|listening| !listening.is_over())
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
        let coming = || connections.values().filter(|entry| entry.is_new());
        let channel = listening.channel(&incoming).filter(|channel| {
            let same = coming().filter(|entry| entry.is_for(&channel.queue));
            channel.queue.has_room(same.count())
        });
        let Some(channel) = channel else {
            // The answer is shorter than the question, and nothing is kept of it.
            let answer = endpoint.refuse(incoming, buffer);
            return send(socket, &answer, buffer, |_| {});
        };
        if coming().count() >= UNPROVEN && incoming.may_retry() {
            if let Ok(answer) = endpoint.retry(incoming, buffer) {
                send(socket, &answer, buffer, |_| {});
            }
            return;
        }
        let counters = Arc::default();
        let config = Arc::new(channel.settings.server(&counters, route.peer));
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
                let windows = channel.settings.windows();
                let entry = Entry::accepting(connection, link, counters, windows, now);
                connections.insert(handle, entry.for_queue(channel.queue));
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
        let Self { socket, endpoint, connections, buffer, .. } = self;
        let most = socket.most_segments();
        for (handle, entry) in connections {
            let now = Instant::now();
            let touched = entry.link.take_touched();
            if !touched && entry.next.is_none_or(|next| next > now) {
                continue;
            }
            if entry.serve(now, endpoint, *handle) {
                entry.hand_over();
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, UdpSocket as StdSocket};
    use std::time::Duration;

    use ropewalk_transport::{ChannelToken, Options};
    use ropewalk_udp::Fragments;

    use super::*;
    use crate::settings::endpoint;

    /// The first datagram of a real connection whose first connection ID is this.
    fn first_datagram(id: [u8; 20], to: SocketAddr) -> Vec<u8> {
        let token = ChannelToken(*id.first_chunk().unwrap());
        let options = Options { token: Some(token), ..Options::default() };
        let settings = Settings::new(&options, Duration::from_secs(30), Tls::of_this_process().unwrap());
        let mut connecting = Endpoint::new(endpoint(), None, true, None);
        let now = Instant::now();
        let config = settings.client(&Arc::default(), to);
        let (_, mut connection) = connecting.connect(now, config, to, SERVER).unwrap();
        let mut datagram = Vec::new();
        let transmit = connection.poll_transmit(now, 1, &mut datagram).unwrap();
        datagram.truncate(transmit.size);
        datagram
    }

    #[test]
    fn datagrams_without_a_channel_leave_nothing_behind() {
        const GARBAGE: u32 = 100_000;
        const HANDSHAKES: u32 = 2000;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = UdpSocket::bind(local, Fragments::Forbidden).unwrap();
        let to = socket.local_addr().unwrap();
        let listening = Listening::Many(Arc::default(), Tls::of_this_process().unwrap());
        let mut worker = Worker::listening(socket, Waker::new().unwrap(), listening);
        let mut inbox = Inbox::new();
        let stranger = StdSocket::bind(local).unwrap();
        stranger.set_nonblocking(true).unwrap();
        let mut answers = 0_usize;
        let mut exchange = |worker: &mut Worker, datagram: &[u8]| {
            stranger.send_to(datagram, to).unwrap();
            worker.receive(&mut inbox);
            worker.serve();
            let mut answer = [0; 2000];
            while let Ok(length) = stranger.recv(&mut answer) {
                // A stranger with a forged address must not make this host send more than it does.
                assert!(length <= datagram.len(), "{length} for {}", datagram.len());
                answers += 1;
            }
        };
        let mut random = 1_u64;
        for number in 0..GARBAGE {
            let starts = [&[0xc0, 0, 0, 0, 1, 20][..], &[0xc0, 1, 2, 3, 4, 8], &[0x40], &[]];
            let mut datagram: Vec<u8> = (0..number % 1472)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random.to_le_bytes()[0]
                })
                .collect();
            let start = starts[number as usize % starts.len()];
            datagram.iter_mut().zip(start).for_each(|(byte, first)| *byte = *first);
            exchange(&mut worker, &datagram);
        }
        for number in 0..HANDSHAKES {
            let mut id = [7; 20];
            id[..4].copy_from_slice(&number.to_be_bytes());
            exchange(&mut worker, &first_datagram(id, to));
        }
        assert!(worker.connections.is_empty());
        assert_eq!(worker.endpoint.open_connections(), 0);
        assert_eq!(worker.endpoint.incoming_buffer_bytes(), 0);
        // The refusals of handshakes, at least, have come.
        assert!(answers >= HANDSHAKES as usize, "{answers}");
    }
}
