//! The connection, as its owner uses it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ropewalk_transport::{
    Breaker, Connection, ConnectionHandle, Endpoint, Interest, PathStats, Readiness, Tuning, Wait,
};
use ropewalk_udp::{Failure, Wish};

use crate::link::Link;

/// A connection over the rings of its [`Link`].
pub(crate) struct UcxConnection {
    owner: Arc<Owner>,
    time_limit: Duration,
    nonblocking: bool,
}

/// The application's hold on a connection, which handles share only weakly. After the application
/// has dropped it, the thread delivers the bytes that were written.
struct Owner {
    link: Arc<Link>,
    resets: AtomicBool,
}

impl Owner {
    fn wish(&self, wish: Wish) {
        self.link.ask(|state| {
            state.wish = state.wish.max(wish);
            if wish == Wish::Abort {
                let text = "the UCX connection was aborted here";
                state.fail(Failure::new(io::ErrorKind::ConnectionAborted, text));
            }
        });
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let resets = self.resets.load(Ordering::Relaxed);
        self.wish(if resets { Wish::Abort } else { Wish::Close });
    }
}

impl UcxConnection {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let owner = Arc::new(Owner { link, resets: AtomicBool::new(false) });
        Self { owner, time_limit: Duration::MAX, nonblocking: false }
    }

    /// # Errors
    /// The peer refuses, or does not answer in time.
    pub(crate) fn wait_until_connected(&self, timeout: Duration, wait: &mut dyn Wait) -> io::Result<()> {
        let deadline = Instant::now() + timeout;
        let (fd, events) = self.owner.link.connected();
        if !wait.wait(fd, events, deadline)? {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not answer over UCX"));
        }
        let failure = self.owner.link.look(|state| state.failure.clone());
        failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    fn addresses(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let addresses = self.owner.link.look(|state| state.addresses);
        addresses.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// `None` is not to wait at all.
    fn limit(&self) -> Option<Duration> {
        (!self.nonblocking).then_some(self.time_limit)
    }
}

impl Read for UcxConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.owner.link.read(self.limit(), buffers)
    }
}

impl Write for UcxConnection {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        if data.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        self.owner.link.write(self.limit(), data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for UcxConnection {
    fn readiness(&self, interest: Interest) -> Readiness<'_> {
        self.owner.link.readiness(interest)
    }

    fn peer_closed(&self) -> bool {
        self.owner.link.look(|state| state.end.is_some() || state.failure.is_some())
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.time_limit = limit;
        Ok(())
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.nonblocking = on;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.owner.wish(Wish::Finish);
        Ok(())
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.owner.resets.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let owner = Arc::downgrade(&self.owner);
        Ok(Breaker::new(move || {
            if let Some(owner) = Weak::upgrade(&owner) {
                owner.wish(Wish::Abort);
            }
        }))
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.addresses()?.0.into())
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        Ok(self.addresses()?.1.into())
    }

    fn handle(&self) -> Arc<dyn ConnectionHandle> {
        Arc::new(Handle(Arc::downgrade(&self.owner)))
    }
}

struct Handle(Weak<Owner>);

impl ConnectionHandle for Handle {
    fn stats(&self) -> Option<PathStats> {
        Some(self.0.upgrade()?.link.stats())
    }

    /// UCX has its own congestion control, and the size of the rings is fixed from the start.
    fn tune(&self, _: &Tuning) {}
}
