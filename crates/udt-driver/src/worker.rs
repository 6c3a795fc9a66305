//! The thread of a UDP socket: it moves datagrams between the network and the connections.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use ropewalk_udp::{Datagrams, Inbox, Queue, Route, UdpSocket, Waker};
use ropewalk_udt::{Acceptor, Answer, Batch, Config, Connection, Control, Packet, Parameters};

use crate::connection::UdtConnection;
use crate::link::Link;

/// How many calls receive datagrams before others are sent, and how many batches one connection
/// sends before others are received: ACKs must not wait for long.
const RECEIVES: usize = 4;
const BATCHES: usize = 8;

pub(crate) struct Worker {
    socket: UdpSocket,
    waker: Arc<Waker>,
    connections: HashMap<u32, Entry>,
    listening: Option<Listening>,
    batch: Batch,
}

struct Entry {
    link: Arc<Link>,
    /// When to look at the connection.
    next: Option<Instant>,
}

/// The part of a worker that accepts connections.
struct Listening {
    acceptor: Acceptor,
    config: Config,
    queue: Arc<Queue>,
}

impl Worker {
    pub(crate) fn new(socket: UdpSocket, waker: Arc<Waker>) -> Self {
        Self { socket, waker, connections: HashMap::new(), listening: None, batch: Batch::default() }
    }

    pub(crate) fn listen(&mut self, acceptor: Acceptor, config: Config, queue: Arc<Queue>) {
        self.listening = Some(Listening { acceptor, config, queue });
    }

    pub(crate) fn add(&mut self, id: u32, link: Arc<Link>) {
        self.connections.insert(id, Entry { link, next: Some(Instant::now()) });
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(mut self) -> io::Result<()> {
        thread::Builder::new().name("udt".to_owned()).spawn(move || self.run()).map(drop)
    }

    fn run(&mut self) {
        let mut inbox = Inbox::new();
        loop {
            self.receive(&mut inbox);
            let now = Instant::now();
            self.transmit(now);
            self.forget(now);
            // A listener that is dropped from now on wakes this thread.
            if !self.is_needed() {
                return;
            }
            self.wait();
        }
    }

    fn is_needed(&self) -> bool {
        !self.connections.is_empty()
            || self.listening.as_ref().is_some_and(|listening| !listening.queue.is_broken())
    }

    fn receive(&mut self, inbox: &mut Inbox) {
        for _ in 0..RECEIVES {
            let now = Instant::now();
            let Self { socket, connections, listening, waker, .. } = self;
            let received = inbox.receive(socket, |route, datagrams| {
                let mut datagrams = datagrams.each().peekable();
                while let Some(datagram) = datagrams.next() {
                    let Some(packet) = Packet::parse(datagram) else { continue };
                    let id = packet.destination();
                    if let (0, Packet::Control(control), Some(listening)) = (id, packet, listening.as_mut()) {
                        let accepted = listening.answer(now, route, &control, socket);
                        if let Some((parameters, answer)) = accepted
                            && let Some(link) =
                                listening.accept(now, parameters, answer, (waker, socket), route)
                        {
                            connections.insert(parameters.id, Entry { link, next: Some(now) });
                        }
                    } else if let Some(entry) = connections.get_mut(&id)
                        // A packet from another address is forged.
                        && entry.link.route.peer == route.peer
                    {
                        entry.link.receive(|connection| {
                            connection.handle(now, datagram);
                            while let Some(datagram) = datagrams.next_if(|next| is_for(id, next)) {
                                connection.handle(now, datagram);
                            }
                        });
                        entry.next = Some(now);
                    }
                }
            });
            match received {
                Ok(true) => {}
                Ok(false) => break,
                // An ICMP message, which anyone can forge; the timers of the protocol decide.
                Err(error) => {
                    tracing::debug!(%error, "cannot receive UDT datagrams");
                    break;
                }
            }
        }
    }

    fn transmit(&mut self, now: Instant) {
        let Self { socket, connections, batch, .. } = self;
        for entry in connections.values_mut() {
            let touched = entry.link.take_touched();
            if !touched && entry.next.is_none_or(|next| next > now) {
                continue;
            }
            for _ in 0..BATCHES {
                let mut sends = false;
                batch.clear();
                entry.next = entry.link.serve(now, |connection| sends = connection.poll_transmit(now, batch));
                if !sends {
                    break;
                }
                if let Err(error) = socket.send(&datagrams(batch), &entry.link.route) {
                    tracing::debug!(%error, "cannot send UDT datagrams");
                }
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        let Self { connections, listening, .. } = self;
        connections.retain(|id, entry| {
            if entry.next.is_some_and(|next| next > now) || !entry.link.act(|one, now| one.is_gone(now)) {
                return true;
            }
            if let Some(listening) = listening {
                listening.acceptor.ended(now, *id);
            }
            false
        });
    }

    fn wait(&self) {
        let next = self.connections.values().filter_map(|entry| entry.next).min();
        self.waker.wait(&self.socket, next);
    }
}

fn is_for(id: u32, datagram: &[u8]) -> bool {
    Packet::parse(datagram).is_some_and(|packet| packet.destination() == id)
}

impl Listening {
    /// Answers a handshake, or returns the parameters of a new connection and the answer for it.
    fn answer(
        &mut self,
        now: Instant,
        route: &Route,
        control: &Control<'_>,
        socket: &UdpSocket,
    ) -> Option<(Parameters, Vec<u8>)> {
        match self.acceptor.handle(now, route.peer, control, self.queue.has_room(0)) {
            Answer::Silence => None,
            Answer::Reply(reply) => {
                let reply = Datagrams { segment: reply.len(), bytes: &reply, ecn: None };
                if let Err(error) = socket.send(&reply, route) {
                    tracing::debug!(%error, "cannot answer a UDT handshake");
                }
                None
            }
            Answer::Accept(parameters, answer) => Some((parameters, answer)),
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        parameters: Parameters,
        answer: Vec<u8>,
        (waker, socket): (&Arc<Waker>, &UdpSocket),
        route: &Route,
    ) -> Option<Arc<Link>> {
        let controller = self.config.congestion.controller(&parameters, parameters.id.into());
        let connection = Connection::accepted(parameters, &self.config, controller, answer, now);
        let made = socket.local_addr().and_then(|mut local| {
            if let Some(ip) = route.local {
                local.set_ip(ip);
            }
            Link::new(connection, Arc::clone(waker), *route, local)
        });
        match made {
            Ok(link) => {
                self.queue.push(Box::new(UdtConnection::new(Arc::clone(&link))));
                Some(link)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a UDT connection");
                self.acceptor.ended(now, parameters.id);
                None
            }
        }
    }
}

fn datagrams(batch: &Batch) -> Datagrams<'_> {
    Datagrams { bytes: &batch.bytes, segment: batch.segment, ecn: None }
}
