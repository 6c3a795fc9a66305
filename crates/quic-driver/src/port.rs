//! One UDP port for the channels of a process, which differ by their tokens.
//!
//! The connecting side begins its first destination connection ID (RFC 9000, section 7.2) with the
//! token of the channel. So a thread of the port knows the channel before it keeps anything of the
//! connection, and refuses connections without a living channel with one stateless datagram. Each
//! address of the port has a few sockets with a thread each, among which the kernel divides peers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Instant;

use parking_lot::Mutex;
use ropewalk_transport::{Breaker, ChannelToken, Connection, Endpoint, Listener, Readiness};
use ropewalk_udp::{Fragments, Queue, QueueListener, UdpSocket, Waker};

use crate::settings::Settings;
use crate::tls::Tls;
use crate::worker::{Listening, Worker};

/// The most sockets and threads of one address. One thread encrypts several Gbit/s.
const MOST_THREADS: usize = 4;

/// A port that is open until the last clone is dropped. Connections live on.
#[derive(Clone)]
pub struct SharedPort(Arc<Open>);

struct Open {
    doors: Vec<Door>,
    channels: Arc<Channels>,
}

/// One address of the port.
struct Door {
    address: SocketAddr,
    wakers: Vec<Arc<Waker>>,
}

/// The channels of a port.
#[derive(Default)]
pub(crate) struct Channels(Mutex<State>);

#[derive(Default)]
struct State {
    open: HashMap<ChannelToken, Channel>,
    is_closed: bool,
}

/// A channel that takes connections.
#[derive(Clone)]
pub(crate) struct Channel {
    pub(crate) settings: Settings,
    pub(crate) queue: Arc<Queue>,
}

impl Channels {
    /// The channel that a connection with this first destination connection ID asks for.
    pub(crate) fn of(&self, id: &[u8]) -> Option<Channel> {
        let token = ChannelToken(*id.first_chunk()?);
        self.0.lock().open.get(&token).cloned()
    }

    /// Whether there will be no more channels.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().is_closed
    }
}

impl SharedPort {
    /// Opens the port at each of these addresses.
    ///
    /// # Errors
    /// The port is taken, an address is not one of this host, or the system cannot make a socket or
    /// a thread.
    pub fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let threads = available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let tls = Tls::of_this_process().map_err(io::Error::other)?;
        let mut open = Open { doors: Vec::new(), channels: Arc::default() };
        let mut workers = Vec::new();
        for address in addresses {
            let sockets = UdpSocket::bind_group(*address, Fragments::Forbidden, threads)?;
            let mut door = Door { address: *address, wakers: Vec::new() };
            for socket in sockets {
                door.address = socket.local_addr()?;
                let waker = Waker::new()?;
                door.wakers.push(Arc::clone(&waker));
                let listening = Listening::Many(Arc::clone(&open.channels), tls.clone());
                workers.push(Worker::listening(socket, waker, listening));
            }
            open.doors.push(door);
        }
        // If one of them cannot start, the others end with `open`.
        workers.into_iter().try_for_each(Worker::start)?;
        Ok(Self(Arc::new(open)))
    }

    /// The addresses of the port, in the order in which they were given.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.doors.iter().map(|door| door.address)
    }

    /// Makes the listener of a channel.
    ///
    /// # Errors
    /// The port is not open at `ip`, or no descriptor is left.
    pub(crate) fn listen(
        &self,
        token: ChannelToken,
        ip: IpAddr,
        settings: Settings,
    ) -> io::Result<Box<dyn Listener>> {
        let Open { doors, channels } = &*self.0;
        let is_at = |door: &&Door| {
            let own = door.address.ip();
            own == ip || own.is_unspecified() && (own.is_ipv6() || ip.is_ipv4())
        };
        let door = doors.iter().find(is_at).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let waker = door.wakers.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let queue = Queue::new()?;
        let channel = Channel { settings, queue: Arc::clone(&queue) };
        channels.0.lock().open.insert(token, channel);
        let address = SocketAddr::new(ip, door.address.port());
        Ok(Box::new(ChannelListener {
            inner: QueueListener::new(queue, Arc::clone(waker), address),
            channels: Arc::clone(channels),
            token,
        }))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.channels.0.lock().is_closed = true;
        self.doors.iter().flat_map(|door| &door.wakers).for_each(|waker| waker.wake());
    }
}

/// Accepts the connections of one channel, which ends when the listener is dropped.
struct ChannelListener {
    inner: QueueListener,
    channels: Arc<Channels>,
    token: ChannelToken,
}

impl Listener for ChannelListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner.local_addr()
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        self.inner.accept(deadline)
    }

    fn readiness(&self) -> Readiness<'_> {
        self.inner.readiness()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner.breaker()
    }
}

impl Drop for ChannelListener {
    fn drop(&mut self) {
        self.channels.0.lock().open.remove(&self.token);
    }
}
