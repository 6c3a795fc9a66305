//! A data connection with what has been read ahead from it.

use std::io::{self, IoSliceMut, Read};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_protocol::mode_e::Rate;
use ropewalk_transport::{Connection, Endpoint, Interest, PathStats, Readiness, Tuning};

use crate::budget::{Buffer, BufferBudget, MIN_BUFFER};
use crate::control::{Control, Registration};
use crate::error::{Error, Result};
use crate::flow::{Flows, Listed};
use crate::pace::Pace;

/// No thread is blocked in a socket longer than this before it looks around.
pub(crate) const TIME_LIMIT: Duration = Duration::from_millis(200);
/// One packet in so many may be sent again without a loss of rate below a limit.
const REPEATS_SHARE: u64 = 10;

/// Bytes that come after a file's end belong to the next file: they stay here until it is asked
/// for.
pub(crate) struct Wire {
    /// Dropped first: the connection is open as long as it is listed.
    pub(crate) listed: Listed,
    pub(crate) connection: Box<dyn Connection>,
    pub(crate) peer: Endpoint,
    /// Which of the channel's addresses it leads to.
    pub(crate) address: usize,
    budget: Arc<BufferBudget>,
    ahead: Option<Buffer>,
    start: usize,
    end: usize,
    /// The connection's time limit is set.
    limited: bool,
    blocking: Option<Registration>,
    /// The connection's sealing time as it was last asked for.
    sealed: Duration,
    /// The most bytes per second that it sends itself.
    most_rate: u64,
    /// `None` for a connection within the host, which has nothing to gain from it, and for one that
    /// is not measured.
    pace: Option<Pace>,
    /// The statistics from which the rate was measured last, until they are taken.
    measured: Option<Box<PathStats>>,
}

impl Wire {
    pub(crate) fn new(
        mut connection: Box<dyn Connection>,
        address: usize,
        budget: &Arc<BufferBudget>,
        flows: &Flows,
    ) -> io::Result<Self> {
        let peer = connection.peer_addr()?;
        let within_host = connection.local_addr()?.ip() == peer.ip();
        connection.set_nonblocking(true)?;
        Ok(Self {
            listed: flows.register(connection.handle(), peer.clone()),
            connection,
            peer,
            address,
            budget: Arc::clone(budget),
            ahead: None,
            start: 0,
            end: 0,
            limited: false,
            blocking: None,
            sealed: Duration::ZERO,
            most_rate: u64::MAX,
            pace: (!within_host).then(Pace::default),
            measured: None,
        })
    }

    /// For a thread of its own: calls wait, but not longer than [`TIME_LIMIT`], and the transfer's
    /// end breaks them off.
    pub(crate) fn set_blocking(&mut self, control: &Arc<Control>) -> io::Result<()> {
        if self.blocking.is_none() {
            if !self.limited {
                self.connection.set_time_limit(TIME_LIMIT)?;
                self.limited = true;
            }
            self.connection.set_nonblocking(false)?;
            self.blocking = Some(control.register(self.connection.breaker()?));
        }
        Ok(())
    }

    /// For the coordinating thread, which waits with `poll` for several things at once: no call
    /// waits. A new wire is so, and nothing but its owner breaks it off.
    pub(crate) fn set_nonblocking(&mut self) -> io::Result<()> {
        if self.blocking.take().is_some() {
            self.connection.set_nonblocking(true)?;
        }
        Ok(())
    }

    /// The time that protecting the bytes took since the last call.
    pub(crate) fn take_sealing(&mut self) -> Duration {
        let all = self.connection.sealing();
        all.saturating_sub(std::mem::replace(&mut self.sealed, all))
    }

    /// Makes the connection itself keep to the limit on the rate of all streams, with some room for
    /// packets that it sends again: the streams move many bytes at a time, and its congestion
    /// control would send them at the rate of the path.
    pub(crate) fn keep_to(&mut self, limit: Option<u64>) {
        let most = limit.map_or(u64::MAX, |limit| limit.saturating_add(limit / REPEATS_SHARE));
        if std::mem::replace(&mut self.most_rate, most) != most {
            self.connection.tune(&Tuning { most_rate: Some(most), ..Tuning::default() });
        }
    }

    /// A transfer that sends over this connection starts.
    pub(crate) fn restart_pace(&mut self) {
        if let Some(pace) = &mut self.pace {
            pace.restart();
        }
    }

    /// How fast the connection sends, for the next block; bounds what waits unsent in the kernel.
    pub(crate) fn sending_rate(&mut self) -> Rate {
        let Some(pace) = &mut self.pace else { return Rate::Unmeasured };
        let now = Instant::now();
        if pace.is_due(now) {
            match self.connection.stats() {
                Some(stats) if stats.delivered.is_some() => {
                    let unsent_limit = pace.learn(&stats, now);
                    if unsent_limit.is_some() {
                        self.connection.tune(&Tuning { unsent_limit, ..Tuning::default() });
                    }
                    self.measured = Some(Box::new(stats));
                }
                _ => self.pace = None,
            }
        }
        self.pace.as_ref().map_or(Rate::Unmeasured, Pace::rate)
    }

    /// The statistics behind [`Self::sending_rate`], if they are new.
    pub(crate) fn take_measured(&mut self) -> Option<Box<PathStats>> {
        self.measured.take()
    }

    /// Whether the rate of the connection can be measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.pace.is_some()
    }

    pub(crate) fn readiness(&self, interest: Interest) -> Readiness<'_> {
        self.connection.readiness(interest)
    }

    /// Ends a connection of MODE S. After a failure, its end must not look like that of a whole
    /// file.
    pub(crate) fn close(mut self, result: Result<()>) -> Result<()> {
        let peer = &self.peer;
        match result {
            Ok(()) => self.connection.finish().map_err(Error::io(peer)),
            Err(e) => {
                if let Err(failure) = self.connection.reset_on_drop() {
                    tracing::warn!(%peer, error = %failure, "cannot reset a connection");
                }
                Err(e)
            }
        }
    }

    /// True where reading gives something although `poll` does not say so.
    pub(crate) fn is_buffered(&self) -> bool {
        self.connection.buffered() > 0
    }

    /// Bytes that have been read and not consumed.
    pub(crate) fn ahead(&self) -> &[u8] {
        self.ahead.as_ref().map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    pub(crate) fn consume(&mut self, n: usize) {
        self.start = (self.start + n).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Gives the buffer back if nothing is in it, while the connection is idle.
    pub(crate) fn release(&mut self) {
        if self.start == self.end {
            self.ahead = None;
        }
    }

    /// Reads up to `most` bytes behind those that are there already; 0 is the end.
    pub(crate) fn read_ahead(&mut self, most: usize) -> io::Result<usize> {
        self.make_room(most);
        let Self { connection, ahead: Some(ahead), end, .. } = self else { return Ok(0) };
        let space = &mut ahead[*end..];
        let most = most.min(space.len());
        let n = retry(|| connection.read(&mut space[..most]))?;
        *end += n;
        self.listed.moved(n);
        Ok(n)
    }

    /// Reads into `buffer`, and up to `beyond` bytes that follow into the buffer ahead, which has
    /// to be empty. Returns the bytes that went to `buffer`; 0 is the end.
    pub(crate) fn read_into(&mut self, buffer: &mut [u8], beyond: usize) -> io::Result<usize> {
        if beyond == 0 {
            let n = retry(|| self.connection.read(buffer))?;
            self.listed.moved(n);
            return Ok(n);
        }
        self.make_room(beyond);
        let Self { connection, ahead: Some(ahead), end, .. } = self else { return Ok(0) };
        let rest = &mut ahead[*end..];
        let beyond = beyond.min(rest.len());
        let length = buffer.len();
        let n = retry(|| {
            connection
                .read_vectored(&mut [IoSliceMut::new(&mut *buffer), IoSliceMut::new(&mut rest[..beyond])])
        })?;
        *end += n.saturating_sub(length);
        self.listed.moved(n);
        Ok(n.min(length))
    }

    /// Room for `wanted` more bytes, as far as the buffer is large enough.
    fn make_room(&mut self, wanted: usize) {
        let buffer = self.ahead.get_or_insert_with(|| self.budget.take(MIN_BUFFER));
        if buffer.len() - self.end < wanted && self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    pub(crate) fn ahead_capacity() -> usize {
        MIN_BUFFER
    }
}

/// Whether a connection from `peer` is wanted.
pub(crate) fn is_welcome(peer: &Endpoint, only_from: Option<IpAddr>) -> bool {
    only_from.is_none_or(|ip| peer.ip() == Some(ip.to_canonical()))
}

/// Again where a signal interrupted.
pub(crate) fn retry<T>(mut f: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match f() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
