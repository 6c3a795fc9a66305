//! A UDP socket that sends and receives many datagrams with one system call, if the kernel can.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use ropewalk_transport::{Wait, WaitAlone};
use ropewalk_udt::Batch;
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

pub(crate) struct UdpSocket {
    socket: Socket,
    state: UdpSocketState,
    /// Whether answers must name the address that a request was sent to.
    is_unspecified: bool,
}

/// Where a datagram came from, and the address of this host that it was sent to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) peer: SocketAddr,
    pub(crate) local: Option<IpAddr>,
}

impl UdpSocket {
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            socket.set_only_v6(false)?;
        }
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        socket.set_send_buffer_size(SEND_BUFFER)?;
        socket.bind(&address.into())?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // UDT does not discover the MTU of its path; routers fragment larger packets on IPv4, as
        // they do those of libudt. The option also counts for the IPv4 peers of an IPv6 socket.
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DONT)?;
        Ok(Self { socket, state, is_unspecified: address.ip().is_unspecified() })
    }

    /// Makes a socket for one peer, at `local` or any port.
    pub(crate) fn connect(peer: SocketAddr, bind: Option<IpAddr>, port: u16) -> io::Result<Self> {
        let any = if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let mut socket = Self::bind(SocketAddr::new(bind.unwrap_or(any), port))?;
        socket.socket.connect(&peer.into())?;
        socket.is_unspecified = false;
        Ok(socket)
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.socket.local_addr()?.as_socket();
        address.ok_or_else(|| io::Error::other("a UDP socket without an internet address"))
    }

    /// Sends all datagrams of a batch.
    pub(crate) fn send(&self, batch: &Batch, route: &Route) -> io::Result<()> {
        let most = self.state.max_gso_segments().max(1) * batch.segment.max(1);
        for contents in batch.bytes.chunks(most) {
            let transmit = Transmit {
                destination: route.peer,
                ecn: None,
                contents,
                segment_size: Some(batch.segment),
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
pub(crate) struct Inbox {
    buffers: Vec<u8>,
    meta: [RecvMeta; BATCH_SIZE],
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self { buffers: vec![0; RECEIVE * BATCH_SIZE], meta: [RecvMeta::default(); BATCH_SIZE] }
    }

    /// Passes the datagrams that one call returns to `take`. Returns false if there are none.
    pub(crate) fn receive(
        &mut self,
        socket: &UdpSocket,
        mut take: impl FnMut(&Route, &[u8]),
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
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                take(&route, datagram);
            }
        }
        Ok(true)
    }
}
