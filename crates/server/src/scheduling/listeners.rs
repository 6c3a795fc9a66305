//! The sockets that listen for control connections.
//!
//! The reactor owns them and accepts on its thread. Errors that concern one connection are skipped.
//! If there are no descriptors, a reserved one serves to refuse clients with a reply; after other
//! errors accepting pauses.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Error, Result};

/// The tokens of sessions are their numbers, which begin at 1. The tokens of listeners count up
/// from here.
pub(crate) const FIRST_LISTENER: usize = usize::MAX / 2;
const BACKLOG: i32 = 1024;
/// Connections that are accepted before other events are handled.
const AT_ONCE: usize = 64;
/// Pause after an error that will not be gone at once, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The least time between two log messages about connections that cannot be accepted.
const QUIET: Duration = Duration::from_secs(60);
/// The reply to clients for which there is no descriptor.
const FULL: &[u8] =
    b"421 Service busy: too many connections. Please try again later. Closing control connection.\r\n";

pub(crate) struct Listeners {
    open: Vec<Listener>,
    retry_at: Option<Instant>,
    /// A descriptor that is released to accept a client and refuse it with a reply.
    reserve: Option<File>,
}

struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    /// TLS starts at once.
    implicit: bool,
    ready: bool,
    /// The time of the last log message about connections that cannot be accepted.
    failed: Option<Instant>,
}

impl Listener {
    /// Logs the error, but not too often.
    fn fails(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.failed.is_none_or(|since| now.duration_since(since) >= QUIET) {
            self.failed = Some(now);
            tracing::error!(%error, address = %self.address, "cannot accept connections");
        }
    }
}

impl Listeners {
    /// `implicit` are the addresses with implicit TLS.
    pub(crate) fn bind(addresses: &[SocketAddr], implicit: &[SocketAddr]) -> Result<Self> {
        let all = addresses.iter().map(|address| (address, false));
        let all = all.chain(implicit.iter().map(|address| (address, true)));
        let open = all.map(|(&address, implicit)| {
            let failed = |source| Error::Listen { address, source };
            let socket = listen(address).map_err(failed)?;
            let address = socket.local_addr().map_err(failed)?;
            Ok(Listener { socket, address, implicit, ready: false, failed: None })
        });
        Ok(Self { open: open.collect::<Result<_>>()?, retry_at: None, reserve: reserve() })
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.open.iter().map(|listener| listener.address).collect()
    }

    pub(crate) fn register(&mut self, registry: &Registry) -> io::Result<()> {
        for (i, listener) in self.open.iter_mut().enumerate() {
            registry.register(&mut listener.socket, Token(FIRST_LISTENER + i), Interest::READABLE)?;
        }
        Ok(())
    }

    pub(crate) fn ready(&mut self, index: usize) {
        if let Some(listener) = self.open.get_mut(index) {
            listener.ready = true;
        }
    }

    pub(crate) fn close(&mut self) {
        self.open.clear();
        self.retry_at = None;
    }

    /// The time at which to accept again without an event: the poller only reports new connections.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Accepts the waiting connections. The last argument of `accepted` says whether TLS starts at
    /// once.
    pub(crate) fn accept(&mut self, mut accepted: impl FnMut(TcpStream, SocketAddr, bool)) {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| at > now) {
            return;
        }
        self.retry_at = None;
        self.reserve = self.reserve.take().or_else(reserve);
        for listener in self.open.iter_mut().filter(|listener| listener.ready) {
            for turn in 0.. {
                if turn == AT_ONCE {
                    self.retry_at = Some(now);
                    break;
                }
                match listener.socket.accept() {
                    Ok((stream, peer)) => accepted(stream, peer, listener.implicit),
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        listener.ready = false;
                        break;
                    }
                    Err(e) if is_of_the_connection(&e) => {}
                    // This error is also returned if no client waits.
                    Err(error) if is_of_descriptors(&error) && self.reserve.take().is_some() => {
                        let accepted = listener.socket.accept();
                        let again = match accepted {
                            Ok((mut stream, _)) => {
                                listener.fails(&error);
                                if !listener.implicit {
                                    // The client may be gone; the server does not wait for it.
                                    let _ = stream.write(FULL);
                                }
                                true
                            }
                            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                                listener.ready = false;
                                false
                            }
                            Err(e) if is_of_the_connection(&e) => true,
                            // Another thread has taken the descriptor.
                            Err(_) => {
                                self.retry_at = Some(now + PAUSE);
                                false
                            }
                        };
                        self.reserve = reserve();
                        if !again {
                            break;
                        }
                    }
                    Err(error) => {
                        listener.fails(&error);
                        self.retry_at = Some(now + PAUSE);
                        break;
                    }
                }
            }
        }
    }
}

fn reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

fn is_of_descriptors(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// The connection was gone before it was accepted; the next one may be usable.
fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind as K;
    matches!(error.kind(), K::ConnectionAborted | K::ConnectionReset | K::Interrupted | K::ConnectionRefused)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // `[::]` includes IPv4.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from_std(socket.into()))
}
