//! The connection of the transport interface, as its owner uses it.

use std::io::{self, IoSlice, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ropewalk_transport::{
    Breaker, Connection, ConnectionHandle, Endpoint, Interest, PathStats, Readiness, Tuning,
};

use crate::driver::ceiling;
use crate::link::Link;

pub(crate) struct UdtConnection {
    owner: Arc<Owner>,
    time_limit: Option<Duration>,
    nonblocking: bool,
}

/// The application's hold on a connection, which handles share only weakly. After the application
/// has dropped it, the thread of the socket delivers the bytes that were written.
struct Owner {
    link: Arc<Link>,
    resets: AtomicBool,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let resets = self.resets.load(Ordering::Relaxed);
        self.link.act(|connection, now| if resets { connection.abort(now) } else { connection.close(now) });
    }
}

impl UdtConnection {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        let owner = Arc::new(Owner { link, resets: AtomicBool::new(false) });
        Self { owner, time_limit: Some(Duration::MAX), nonblocking: false }
    }

    /// `None` is not to wait at all.
    fn limit(&self) -> Option<Duration> {
        self.time_limit.filter(|_| !self.nonblocking)
    }
}

impl Read for UdtConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.owner.link.wait(self.limit(), |connection, now| connection.read(now, buffer).transpose())
    }
}

impl Write for UdtConnection {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(data)])
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        if data.iter().all(|part| part.is_empty()) {
            return Ok(0);
        }
        self.owner.link.wait(self.limit(), |connection, now| {
            let mut written = 0;
            for part in data {
                match connection.write(now, part) {
                    Ok(n) => written += n,
                    Err(error) => return Some(Err(error)),
                }
            }
            (written > 0).then_some(Ok(written))
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for UdtConnection {
    fn readiness(&self, interest: Interest) -> Readiness<'_> {
        self.owner.link.readiness(interest)
    }

    fn peer_closed(&self) -> bool {
        self.owner.link.act(|connection, _| connection.peer_finished())
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.time_limit = Some(limit);
        Ok(())
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.nonblocking = on;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.owner.link.act(|connection, now| connection.finish(now));
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
                owner.link.act(|connection, now| connection.abort(now));
            }
        }))
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.owner.link.local.into())
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        Ok(self.owner.link.peer.into())
    }

    fn handle(&self) -> Arc<dyn ConnectionHandle> {
        Arc::new(UdtHandle(Arc::downgrade(&self.owner)))
    }
}

struct UdtHandle(Weak<Owner>);

impl ConnectionHandle for UdtHandle {
    fn stats(&self) -> Option<PathStats> {
        let stats = self.0.upgrade()?.link.act(|connection, _| connection.stats());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "conversions saturate")]
        let whole = |value: f64| value as u64;
        let window = |bytes: u64| Some(u32::try_from(bytes).unwrap_or(u32::MAX));
        Some(PathStats {
            rtt: stats.min_rtt.map(|_| stats.rtt),
            min_rtt: stats.min_rtt,
            congestion_window: whole(stats.congestion_window * stats.payload as f64),
            sent: stats.sent,
            retransmitted: stats.retransmitted,
            received: stats.received,
            out_of_order: stats.out_of_order,
            delivered: Some(stats.acknowledged_bytes),
            delivery_rate: Some(whole(stats.delivery_rate)).filter(|rate| *rate > 0),
            in_flight: stats.in_flight_bytes,
            not_sent: stats.unsent_bytes,
            send_window: window(stats.send_window_bytes),
            receive_window: window(stats.receive_window_bytes),
            send_buffer: Some(stats.send_buffer),
            receive_buffer: Some(stats.receive_buffer),
            ..PathStats::default()
        })
    }

    /// The sizes of the buffers are part of the handshake, and the congestion control is UDT's.
    fn tune(&self, tuning: &Tuning) {
        if let Some(owner) = self.0.upgrade()
            && tuning.most_rate.is_some()
        {
            owner.link.act(|connection, _| connection.set_ceiling(ceiling(tuning)));
        }
    }
}
