//! The driver for plain TCP, over IPv4 and IPv6. All socket options that affect the handshake are
//! set before it. Connections within this host use Reno, because pacing makes them slow.
//! Connections and listeners can be aborted from other threads with a breaker.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::ports::{is_port_taken, ports};
use crate::tcp_info::unacknowledged_bytes;
use crate::{
    Breaker, Connection, ConnectionHandle, Driver, Endpoint, FastPath, FlowLabel, Interest, Listener,
    Options, PathStats, Readiness, TcpInfo, Tuning, Wait, WaitAlone, congestion, flow_label, timespec,
};

/// How many connections may wait to be accepted. The kernel limits it to net.core.somaxconn.
const BACKLOG: i32 = 1024;

/// The TCP driver, over IPv4 and IPv6.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Tcp {
    /// Makes a data connection of a connected socket, whatever it was used for before. The window
    /// scale of its buffers is that of the socket's handshake.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn adopt(stream: TcpStream, tuning: &Tuning) -> io::Result<Box<dyn Connection>> {
        stream.set_nonblocking(false)?;
        let connection = TcpConnection::new(stream, has_automatic_buffers(tuning))?;
        connection.tune(tuning);
        Ok(Box::new(connection))
    }
}

impl Driver for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn read_option(&self, key: &str, value: &[u8], options: &mut Options) -> bool {
        // The options of the list do not affect the peer's address or the data of a transfer.
        matches!(key, "keepalive" | "nodelay" | "oobinline" | "reuse")
            || options.tuning.read_option(key, value)
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let address = address.socket()?;
        let mut failure = None;
        for port in ports(address.port(), options.ports) {
            let socket = new_socket(address, options, address.ip().to_canonical().is_loopback())?;
            if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
                socket.set_only_v6(false)?;
            }
            // Two sockets with SO_REUSEADDR may be bound to one port; only `listen` fails for the
            // second one.
            let address = SocketAddr::new(address.ip(), port);
            match socket.bind(&address.into()).and_then(|()| socket.listen(BACKLOG)) {
                Ok(()) => {
                    socket.set_nonblocking(true)?;
                    let automatic = has_automatic_buffers(&options.tuning);
                    return Ok(Box::new(TcpListener { socket: Arc::new(socket), automatic }));
                }
                Err(e) if is_port_taken(&e) => failure = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(failure.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let address = address.socket()?;
        let deadline = Instant::now() + timeout;
        let mut failure = None;
        let local = options.tuning.congestion.is_none() && is_this_host(address);
        for port in ports(0, options.ports) {
            let socket = new_socket(address, options, local)?;
            if port != 0 || options.bind.is_some() {
                let local = options.bind.unwrap_or(match address {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                });
                match socket.bind(&SocketAddr::new(local, port).into()) {
                    Ok(()) => {}
                    Err(e) if is_port_taken(&e) => {
                        failure = Some(e);
                        continue;
                    }
                    Err(e) => return Err(e),
                }
            }
            match connect(&socket, address, options.flow_label, deadline, wait) {
                Ok(()) => {
                    // A route with a congestion control of its own (ip-route(8), congctl) has
                    // replaced the one set before.
                    if let Some(name) = &options.tuning.congestion {
                        congestion::apply(socket.as_fd(), name);
                    }
                    let automatic = has_automatic_buffers(&options.tuning);
                    return Ok(Box::new(TcpConnection::new(socket.into(), automatic)?));
                }
                // The four-tuple of the connection is in use, perhaps in TIME_WAIT; another local
                // port may work.
                Err(e) if port != 0 && is_port_taken(&e) => failure = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(failure.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }
}

/// How many bytes are dropped at once.
const DISCARD: usize = 256 << 10;

/// The option is a C int, and the kernel reduces it to its limit. The cast to an int must not turn
/// 4 GiB into 0.
const LARGEST_BUFFER: usize = i32::MAX as usize;

/// SO_SNDBUF and SO_RCVBUF of connections within this host, in bytes, if the options name no
/// others. Small socket buffers stay in the processor's cache. They move up to 60 % more than
/// autotuned buffers, which grow to tens of MiB, and never less.
pub const LOCAL_BUFFER: usize = 512 << 10;

fn has_automatic_buffers(tuning: &Tuning) -> bool {
    tuning.send_buffer.is_none() && tuning.receive_buffer.is_none()
}

fn set_buffers(socket: impl AsFd, send: Option<usize>, receive: Option<usize>) -> io::Result<()> {
    if let Some(bytes) = send {
        sockopt::set_socket_send_buffer_size(&socket, bytes.min(LARGEST_BUFFER))?;
    }
    if let Some(bytes) = receive {
        sockopt::set_socket_recv_buffer_size(&socket, bytes.min(LARGEST_BUFFER))?;
    }
    Ok(())
}

/// The congestion control for connections within this host, where only the processor is congested.
/// The host's default may be BBR, whose timer-based pacing makes such connections up to three times
/// as slow. Reno is always available, and every process may choose it (tcp(7)).
const LOCAL_CONGESTION: &str = "reno";

/// Whether the route to `address` begins and ends at it. That is not so for secondary addresses of
/// an interface. No packet is sent.
fn is_this_host(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
        || local_address(address).is_ok_and(|local| local == address.ip())
}

/// Returns the address of this host from which `remote` is reached. No packet is sent.
///
/// # Errors
/// There is no route to `remote`, or no socket can be made.
pub fn local_address(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// Makes a socket with all options that must be set before the handshake: the window scale is
/// negotiated in it, and a congestion control that was active leaves its pacing to the next one.
/// `local` means that the socket is for connections within this host only.
fn new_socket(address: SocketAddr, options: &Options, local: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if let Some(name) = &options.interface {
        socket.bind_device(Some(name.as_bytes())).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot bind to the interface {name}: {error}"))
        })?;
    }
    let tuning = &options.tuning;
    set_buffers(&socket, tuning.send_buffer, tuning.receive_buffer)?;
    if let Some(bytes) = tuning.unsent_limit {
        socket.set_tcp_notsent_lowat(bytes)?;
    }
    let local = local.then_some(LOCAL_CONGESTION);
    if let Some(name) = tuning.congestion.as_deref().or(local) {
        congestion::apply(socket.as_fd(), name);
    }
    Ok(socket)
}

fn connect(
    socket: &Socket,
    address: SocketAddr,
    label: Option<FlowLabel>,
    deadline: Instant,
    wait: &mut dyn Wait,
) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match flow_label::connect(socket, address, label) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {
            // If the wait is aborted, the peer may already have accepted the connection. In MODE S,
            // an orderly end would then mean a complete, empty file.
            socket.set_linger(Some(Duration::ZERO))?;
            if !wait.wait(socket.as_fd(), PollFlags::OUT, deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if let Some(e) = socket.take_error()? {
                return Err(e);
            }
            socket.set_linger(None)?;
        }
        Err(e) => return Err(e),
    }
    socket.set_nonblocking(false)
}

/// Converts an IPv4-mapped IPv6 address, as a listener for both families reports it, to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

struct TcpListener {
    socket: Arc<Socket>,
    /// The options of its connections name no buffer sizes.
    automatic: bool,
}

impl Listener for TcpListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        socket_address(self.socket.local_addr()?).map(Endpoint::Socket)
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        loop {
            match rustix::net::accept_with(&*self.socket, rustix::net::SocketFlags::CLOEXEC) {
                Ok(fd) => return Ok(Some(Box::new(TcpConnection::new(fd.into(), self.automatic)?))),
                Err(Errno::AGAIN) => {
                    if !WaitAlone.wait(self.socket.as_fd(), PollFlags::IN, deadline)? {
                        return Ok(None);
                    }
                }
                // The peer closed the connection while it was queued; accept(2) says to try again.
                Err(
                    Errno::INTR
                    | Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::NETDOWN
                    | Errno::HOSTUNREACH
                    | Errno::NETUNREACH,
                ) => {}
                // After shutdown(2) the socket no longer listens.
                Err(Errno::INVAL) => return Err(io::ErrorKind::ConnectionAborted.into()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn readiness(&self) -> Readiness<'_> {
        (self.socket.as_fd(), PollFlags::IN)
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let socket = Arc::downgrade(&self.socket);
        Ok(Breaker::new(move || {
            if let Some(socket) = Weak::upgrade(&socket) {
                // This fails only if the socket was shut down before.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }))
    }
}

fn socket_address(address: socket2::SockAddr) -> io::Result<SocketAddr> {
    address.as_socket().map(canonical).ok_or_else(|| io::Error::other("not an internet address"))
}

struct TcpConnection {
    // Shared with breakers, which hold a weak reference so that they do not keep the connection
    // open.
    stream: Arc<TcpStream>,
    /// The buffer of [`Connection::discard`].
    untouched: Option<Vec<u8>>,
}

impl TcpConnection {
    /// `automatic`: the options name no buffer sizes.
    fn new(stream: TcpStream, automatic: bool) -> io::Result<Self> {
        // Blocks are written as a whole, so Nagle's algorithm could not merge anything.
        sockopt::set_tcp_nodelay(&stream, true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        let ip = |address: io::Result<SocketAddr>| address.ok().map(|address| canonical(address).ip());
        // The peer's address is missing if the connection has failed already.
        if automatic && ip(stream.local_addr()) == ip(stream.peer_addr()) {
            set_buffers(&stream, Some(LOCAL_BUFFER), Some(LOCAL_BUFFER))?;
        }
        Ok(Self { stream: Arc::new(stream), untouched: None })
    }
}

impl Read for TcpConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.stream).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self.stream).read_vectored(buffers)
    }
}

impl Write for TcpConnection {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (&*self.stream).write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        // writev(2) would raise SIGPIPE in a program that does not ignore it.
        let mut none = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&*self.stream, data, &mut none, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for TcpConnection {
    fn readiness(&self, interest: Interest) -> Readiness<'_> {
        let events = match interest {
            Interest::Read => PollFlags::IN,
            Interest::Write => PollFlags::OUT,
        };
        (self.stream.as_fd(), events)
    }

    fn peer_closed(&self) -> bool {
        let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&*self.stream, PollFlags::RDHUP)];
        let found = rustix::event::poll(&mut fds, Some(&timespec(Duration::ZERO)));
        found.is_ok() && fds[0].revents().intersects(closed)
    }

    fn fast_path(&self) -> FastPath<'_> {
        FastPath::Socket(self.stream.as_fd())
    }

    /// The kernel drops the bytes because of MSG_TRUNC (tcp(7)), and leaves the buffer alone.
    fn discard(&mut self, most: usize) -> io::Result<Option<usize>> {
        // Without a write to it, the buffer takes no memory.
        let buffer = self.untouched.get_or_insert_with(|| vec![0; DISCARD]);
        let most = most.min(buffer.len());
        match retry_on_intr(|| recv(&*self.stream, &mut buffer[..most], RecvFlags::TRUNC)) {
            Ok((n, _)) => Ok(Some(n)),
            Err(Errno::INVAL | Errno::NOSYS) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        // A limit of 0 would mean no limit.
        let limit = Some(limit.max(Duration::from_millis(1)));
        self.stream.set_read_timeout(limit)?;
        self.stream.set_write_timeout(limit)
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.stream.set_nonblocking(on)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(&*self.stream, Some(Duration::ZERO))?)
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let stream = Arc::downgrade(&self.stream);
        Ok(Breaker::new(move || {
            if let Some(stream) = Weak::upgrade(&stream) {
                // This fails if the peer has already closed the connection.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }))
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        self.stream.local_addr().map(|address| canonical(address).into())
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        self.stream.peer_addr().map(|address| canonical(address).into())
    }

    fn handle(&self) -> Arc<dyn ConnectionHandle> {
        Arc::new(TcpHandle(Arc::downgrade(&self.stream)))
    }
}

struct TcpHandle(Weak<TcpStream>);

impl ConnectionHandle for TcpHandle {
    fn stats(&self) -> Option<PathStats> {
        let stream = self.0.upgrade()?;
        let info = TcpInfo::of(stream.as_fd())?;
        Some(PathStats {
            send_buffer: sockopt::socket_send_buffer_size(&*stream).ok(),
            receive_buffer: sockopt::socket_recv_buffer_size(&*stream).ok(),
            unacknowledged: unacknowledged_bytes(stream.as_fd()),
            ..PathStats::from(&info)
        })
    }

    fn tune(&self, tuning: &Tuning) {
        let Some(stream) = self.0.upgrade() else { return };
        if let Err(error) = set_buffers(&*stream, tuning.send_buffer, tuning.receive_buffer) {
            tracing::debug!(%error, "cannot set the buffers of a connection");
        }
        if let Some(name) = &tuning.congestion {
            congestion::apply(stream.as_fd(), name);
        }
        if let Some(bytes) = tuning.unsent_limit
            // A kernel without the option keeps its default behaviour.
            && let Err(error) = SockRef::from(&*stream).set_tcp_notsent_lowat(bytes)
        {
            tracing::debug!(%error, "cannot bound the unsent bytes of a connection");
        }
    }
}
