//! Observes the connections of a MODE E sender, so that its last blocks can be sent again on other
//! streams ([`ropewalk_protocol::mode_e::Sender::allow_resend`]).
//!
//! Threads of streams that have nothing else to send observe the connections of all streams, also
//! of those whose threads are blocked in a write. One thread does so at a time, and no more often
//! than every [`INTERVAL`]. A connection without exact statistics is not observed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_protocol::mode_e::{Backlog, Rate, Sender, StreamId};
use ropewalk_transport::{ConnectionHandle, PathStats};

use crate::pace::{Pace, SPAN};
use crate::wire::Wire;

/// The time between two observations.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
/// A connection that sends more than one packet in so many again is lossy.
const LOSSY: u64 = 50;
/// A connection that is slower than before by this factor may have stalled.
const SLOWED: f64 = 2.0;

/// See the module.
#[derive(Default)]
pub(crate) struct Backlogs(Mutex<Observed>);

#[derive(Default)]
struct Observed {
    last: Option<Instant>,
    connections: Vec<Observable>,
}

struct Observable {
    id: StreamId,
    handle: Arc<dyn ConnectionHandle>,
    /// Bytes that went through the connection, and how many of them before this transfer.
    moved: Arc<AtomicU64>,
    before: u64,
    /// When the owner of the stream has measured last, and the bytes that were acknowledged.
    since: Option<(Instant, u64)>,
    /// It had made too little progress when it was observed first.
    blocked: bool,
    /// Made at the first observation, from the rate that the stream had until then.
    pace: Option<Pace>,
}

impl Backlogs {
    /// The stream `id` starts to send over `wire`.
    pub(crate) fn add(&self, id: StreamId, wire: &Wire) {
        let moved = wire.listed.counter();
        let before = moved.load(Ordering::Relaxed);
        let handle = wire.connection.handle();
        self.0.lock().connections.push(Observable {
            id,
            handle,
            moved,
            before,
            since: None,
            blocked: false,
            pace: None,
        });
    }

    /// Reports the backlogs of all streams to `sender`, if the last time was long enough ago. A
    /// caller that meets another one waits for it, because it decides by what that one finds.
    pub(crate) fn observe(&self, sender: &Mutex<Sender>) {
        let mut observed = self.0.lock();
        if observed.last.is_none_or(|last| last.elapsed() >= INTERVAL) {
            observed.observe(sender);
        }
    }

    /// Reports what the owner of the stream `id` has measured.
    pub(crate) fn report(&self, id: StreamId, stats: &PathStats, sender: &Mutex<Sender>) {
        let mut observed = self.0.lock();
        let found = observed.connections.iter_mut().find(|connection| connection.id == id);
        let Some(connection) = found else { return };
        connection.since = stats.delivered.map(|delivered| (Instant::now(), delivered));
        // The caller owns the stream, so nothing has moved since it took the statistics.
        if let Some(backlog) = connection.backlog(connection.moved(), stats) {
            sender.lock().set_backlog(id, backlog);
        }
    }
}

impl Observed {
    fn observe(&mut self, sender: &Mutex<Sender>) {
        for connection in &mut self.connections {
            // Bytes that are written meanwhile count as unacknowledged only.
            let moved = connection.moved();
            let Some(stats) = connection.handle.stats() else {
                // A stream that has left is closed once the receiver has read its end.
                sender.lock().set_closed(connection.id);
                continue;
            };
            if connection.pace.is_none() {
                let span = stats.rtt.unwrap_or_default().max(SPAN);
                let rate = sender.lock().rate(connection.id);
                connection.blocked = connection.since.is_some_and(|(at, before)| {
                    let delivered = stats.delivered.map_or(0, |delivered| delivered.saturating_sub(before));
                    is_blocked(at.elapsed(), span, delivered, rate)
                });
            }
            let Some(backlog) = connection.backlog(moved, &stats) else { continue };
            let (id, since, blocked) = (connection.id, connection.since, connection.blocked);
            let mut sender = sender.lock();
            let pace =
                connection.pace.get_or_insert_with(|| Pace::of(sender.rate(id), since.filter(|_| blocked)));
            let now = Instant::now();
            if stats.unacknowledged == Some(0) {
                // A connection with nothing to send has no rate.
                pace.restart();
            } else if pace.is_due(now) {
                pace.learn(&stats, now);
            }
            if let rate @ Rate::Measured(_) = pace.rate() {
                sender.set_rate(id, rate);
            }
            sender.set_backlog(id, backlog);
        }
        self.last = Some(Instant::now());
    }
}

/// Whether a stream makes too little progress for its rate to be believed. It has `delivered` so
/// many bytes in the time `elapsed` since it was measured last, when it had this `rate`. A stream
/// with a thread that still runs is measured once in a `span`; one that stalls may have been
/// measured just before, so that its rate says that it will finish soon.
fn is_blocked(elapsed: Duration, span: Duration, delivered: u64, rate: Rate) -> bool {
    let slower = matches!(rate, Rate::Measured(rate) if delivered as f64 * SLOWED < rate as f64 * elapsed.as_secs_f64());
    elapsed >= span * 2 || elapsed >= span && slower
}

impl Observable {
    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed) - self.before
    }

    /// `moved` is what went through the connection before `stats` were taken.
    fn backlog(&self, moved: u64, stats: &PathStats) -> Option<Backlog> {
        Some(Backlog {
            acknowledged: moved.saturating_sub(stats.unacknowledged?),
            round_trip: stats.rtt.unwrap_or_default(),
            doubtful: self.blocked || stats.retransmitted.saturating_mul(LOSSY) > stats.sent,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use ropewalk_protocol::mode_e::Next;
    use ropewalk_protocol::range::RangeSet;
    use ropewalk_transport::Tuning;

    use super::*;

    /// The handle of a connection that is closed.
    struct Closed;

    impl ConnectionHandle for Closed {
        fn stats(&self) -> Option<PathStats> {
            None
        }

        fn tune(&self, _: &Tuning) {}
    }

    #[test]
    fn stream_is_blocked_once_it_is_seen_to_be_slower_than_its_rate() {
        let (span, millis) = (Duration::from_millis(100), Duration::from_millis);
        let rate = Rate::Measured(4_000_000);
        // It has stalled after a tenth of a second, and would have been found after two.
        assert!(is_blocked(millis(170), span, 100_000, rate));
        assert!(is_blocked(millis(100), span, 0, rate));
        // It may have been given nothing meanwhile.
        assert!(!is_blocked(millis(99), span, 0, rate));
        assert!(!is_blocked(millis(199), span, 400_000, rate));
        assert!(!is_blocked(millis(199), span, 0, Rate::Pending));
        assert!(is_blocked(millis(200), span, 800_000, rate));
    }

    #[test]
    fn closed_connection_of_a_stream_that_has_left_delays_nothing() {
        let mut sender = Sender::new(RangeSet::from_range(0..8 << 20), 0, 256 << 10).unwrap();
        sender.allow_resend();
        let [stays, leaves] = [(); 2].map(|()| sender.add_stream().unwrap());
        for stream in [stays, leaves] {
            sender.set_rate(stream, Rate::Measured(100 << 20));
            assert!(matches!(sender.next(stream), Some(Next::Block(_))));
        }
        // The last that is known of the stream is that it was lossy and had bytes on their way.
        let round_trip = Duration::from_millis(20);
        sender.set_backlog(leaves, Backlog { acknowledged: 0, round_trip, doubtful: true });
        assert!(sender.leave(leaves).is_some());
        while matches!(sender.next(stays), Some(Next::Block(_))) {}
        assert_eq!(sender.next(stays), Some(Next::Wait));

        let backlogs = Backlogs::default();
        backlogs.0.lock().connections.push(Observable {
            id: leaves,
            handle: Arc::new(Closed),
            moved: Arc::default(),
            before: 0,
            since: None,
            blocked: false,
            pace: None,
        });
        let sender = Mutex::new(sender);
        backlogs.observe(&sender);
        assert!(matches!(sender.lock().next(stays), Some(Next::End(_))));
    }
}
