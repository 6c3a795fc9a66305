//! A UDP socket that sends and receives many datagrams with one system call, if the kernel can.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use ropewalk_transport::ports::is_port_taken;
use ropewalk_transport::{Wait, WaitAlone};
use rustix::event::PollFlags;
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

/// The buffers of the socket, which the kernel may cut. Packets that arrive while the thread does
/// not run wait in the receive buffer.
const RECEIVE_BUFFER: usize = 8 << 20;
const SEND_BUFFER: usize = 2 << 20;
/// The largest sequence of datagrams that the kernel joins.
const RECEIVE: usize = 1 << 16;
/// How long a full send buffer is waited for. A network card empties it sooner.
const SEND_TIMEOUT: Duration = Duration::from_millis(100);

pub struct UdpSocket {
    socket: Socket,
    state: UdpSocketState,
    /// Whether answers must name the address that a request was sent to.
    is_unspecified: bool,
}

/// Whether routers may divide the datagrams of a socket (IPv4). A protocol that looks for the MTU
/// of its path forbids it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    Allowed,
    Forbidden,
}

/// Where a datagram came from, and the address of this host that it was sent to.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub peer: SocketAddr,
    pub local: Option<IpAddr>,
}

/// Datagrams to send to one peer, or received from one: all have `segment` bytes, but the last one
/// may have fewer.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams<'a> {
    pub bytes: &'a [u8],
    pub segment: usize,
    pub ecn: Option<EcnCodepoint>,
}

impl<'a> Datagrams<'a> {
    pub fn each(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks(self.segment.max(1))
    }
}

impl UdpSocket {
    /// # Errors
    /// The port is taken, `address` is not an address of this host, or the system cannot make a
    /// socket.
    pub fn bind(address: SocketAddr, fragments: Fragments) -> io::Result<Self> {
        Self::bind_as(address, fragments, false)
    }

    fn bind_as(address: SocketAddr, fragments: Fragments, shares: bool) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            socket.set_only_v6(false)?;
        }
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        socket.set_send_buffer_size(SEND_BUFFER)?;
        if shares {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        if fragments == Fragments::Allowed {
            // The option also counts for the IPv4 peers of an IPv6 socket. The other one is the
            // default of `UdpSocketState`.
            sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        }
        Ok(Self { socket, state, is_unspecified: address.ip().is_unspecified() })
    }

    /// Makes `count` sockets (at least one) with the same address, among which the kernel divides
    /// the peers: all datagrams of one address and port of a peer come to the same socket. Sockets
    /// of other programs cannot have the address at the same time, unless their user is this one
    /// and they ask for a share of it.
    ///
    /// # Errors
    /// As for [`UdpSocket::bind`].
    pub fn bind_group(address: SocketAddr, fragments: Fragments, count: usize) -> io::Result<Vec<Self>> {
        // The first one is made without a share, so that an address in use is an error.
        let first = Self::bind(address, fragments)?;
        first.socket.set_reuse_port(true)?;
        let address = first.local_addr()?;
        let mut group = vec![first];
        for _ in 1..count {
            group.push(Self::bind_as(address, fragments, true)?);
        }
        Ok(group)
    }

    /// Makes a socket for one peer, at `local` or any port.
    ///
    /// # Errors
    /// As for [`UdpSocket::bind`], or there is no route to the peer.
    pub fn connect(
        peer: SocketAddr,
        bind: Option<IpAddr>,
        port: u16,
        fragments: Fragments,
    ) -> io::Result<Self> {
        let any = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let mut socket = Self::bind(SocketAddr::new(bind.unwrap_or(any), port), fragments)?;
        socket.socket.connect(&peer.into())?;
        socket.is_unspecified = false;
        Ok(socket)
    }

    /// # Errors
    /// Those of getsockname(2).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?.as_socket();
        address.ok_or_else(|| io::Error::other("a UDP socket without an internet address"))
    }

    /// The most datagrams that one system call sends.
    pub fn most_segments(&self) -> usize {
        self.state.max_gso_segments().max(1)
    }

    /// Whether the system lets routers divide datagrams.
    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Sends datagrams to one peer.
    ///
    /// # Errors
    /// Those of sendmsg(2). Datagrams for which the send buffer has no room within 100 ms are
    /// lost, which is no error.
    pub fn send(&self, datagrams: &Datagrams<'_>, route: &Route) -> io::Result<()> {
        let most = self.most_segments() * datagrams.segment.max(1);
        for contents in datagrams.bytes.chunks(most) {
            let transmit = Transmit {
                destination: route.peer,
                ecn: datagrams.ecn,
                contents,
                segment_size: Some(datagrams.segment),
                src_ip: route.local.filter(|_| self.is_unspecified),
            };
            self.send_one(&transmit)?;
        }
        Ok(())
    }

    fn send_one(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let deadline = Instant::now() + SEND_TIMEOUT;
        loop {
            match self.state.try_send(UdpSockRef::from(&self.socket), transmit) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    if !WaitAlone.wait(self.as_fd(), PollFlags::OUT, deadline)? {
                        return Ok(());
                    }
                }
                result => return result,
            }
        }
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The memory for one call that receives datagrams.
pub struct Inbox {
    buffers: Vec<u8>,
    meta: [RecvMeta; BATCH_SIZE],
}

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Inbox {
    pub fn new() -> Self {
        Self { buffers: vec![0; RECEIVE * BATCH_SIZE], meta: [RecvMeta::default(); BATCH_SIZE] }
    }

    /// Passes the datagrams that one call returns to `take`. Returns false if there are none.
    ///
    /// # Errors
    /// Those of recvmsg(2), such as an ICMP message about a connected socket.
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        mut take: impl FnMut(&Route, &Datagrams<'_>),
    ) -> io::Result<bool> {
        let mut chunks = self.buffers.chunks_mut(RECEIVE);
        let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let received = socket.state.recv(UdpSockRef::from(&socket.socket), &mut buffers, &mut self.meta);
        let count = match received {
            Ok(count) => count,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        };
        for (buffer, meta) in buffers.iter().zip(&self.meta[..count]) {
            let route = Route { peer: meta.addr, local: meta.dst_ip };
            let bytes = &buffer[..meta.len];
            take(&route, &Datagrams { bytes, segment: meta.stride.max(1), ecn: meta.ecn });
        }
        Ok(true)
    }
}

/// The largest UDP payload that the system's route to a peer takes without fragments, as far as the
/// system knows it: the MTU of the interface, or of the path if a router has reported it.
///
/// # Errors
/// There is no route to the peer, or the system cannot make a socket.
pub fn largest_payload(peer: SocketAddr) -> io::Result<u16> {
    let socket = Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&peer.into())?;
    let (mtu, headers) = match peer {
        SocketAddr::V4(_) => (sockopt::ip_mtu(&socket)?, 28),
        SocketAddr::V6(_) => (sockopt::ipv6_mtu(&socket)?, 48),
    };
    Ok(u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX))
}

/// Makes a socket, or whatever else has a port, at the first of these ports that is free.
///
/// # Errors
/// No port is free, or the error of `make`.
pub fn first_free<T>(
    ports: impl Iterator<Item = u16>,
    mut make: impl FnMut(u16) -> io::Result<T>,
) -> io::Result<T> {
    let mut failure = io::ErrorKind::AddrInUse.into();
    for port in ports {
        match make(port) {
            Err(e) if is_port_taken(&e) => failure = e,
            result => return result,
        }
    }
    Err(failure)
}
