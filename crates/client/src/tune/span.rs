//! Measurements between two decisions.

use std::time::{Duration, Instant};

use ropewalk_engine::{Flows, Progress, Stage};
use ropewalk_protocol::marker::{LimitedBy, PathMarker};
use ropewalk_tuning::tuner::{Chunk, Pressure, Progress as Mark};

/// Interval of rates for the tuner while data arrives.
const MARK: Duration = Duration::from_millis(1000);
/// If nothing arrives for this long, the tuner is informed.
const SILENCE: Duration = Duration::from_secs(5);
/// A span ends after this time, whatever has arrived.
const LONGEST: Duration = Duration::from_secs(120);

/// Sums over all transfers of a path, from their start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// Bytes that have arrived at the other end of the path.
    pub(super) delivered: u64,
    /// Present data connections.
    pub(super) streams: u32,
    /// Over connections with known figures: mean of the smoothed round trip, and the minimum, in
    /// seconds.
    pub(super) rtt: Option<f64>,
    pub(super) min_rtt: Option<f64>,
    /// Segments sent, and segments retransmitted.
    pub(super) sent: u64,
    pub(super) resent: u64,
    /// Segments received, and segments received out of order.
    pub(super) received: u64,
    pub(super) disordered: u64,
    /// Seconds that streams waited for the storage of this host.
    pub(super) storage: f64,
    /// Seconds that our streams waited for the peer's windows.
    pub(super) closed: f64,
    /// Markers of sending servers, those that report that there was nothing to send, and those that
    /// report a limit by the receiver's window.
    pub(super) markers: u32,
    pub(super) idle: u32,
    pub(super) closed_markers: u32,
    /// Samples of this host's reader of the data, and those in which it did not wait for any.
    pub(super) looks: u32,
    pub(super) behind: u32,
    /// Seconds that the bytes moved by this process take at the limit on its rate; `None` without a
    /// limit.
    pub(super) used: Option<f64>,
}

impl Totals {
    /// Adds the reports of a transfer's sender, which sees more of the path than a receiver.
    pub(super) fn hear(&mut self, heard: &Heard) {
        self.markers = self.markers.saturating_add(heard.markers);
        self.idle = self.idle.saturating_add(heard.idle);
        self.closed_markers = self.closed_markers.saturating_add(heard.closed);
        let (sent, resent) = heard.last.map_or((0, 0), |last| (last.sent, last.retransmitted));
        self.sent = self.sent.saturating_add(heard.sent).saturating_add(sent);
        self.resent = self.resent.saturating_add(heard.resent).saturating_add(resent);
        if let Some(last) = heard.last {
            self.rtt = Some(last.rtt.as_secs_f64());
            let least = last.min_rtt.as_secs_f64();
            self.min_rtt = Some(self.min_rtt.map_or(least, |known| known.min(least)));
        }
    }

    /// Adds the counters of a worker that has left.
    pub(super) fn keep(&mut self, gone: &Self) {
        self.sent = self.sent.saturating_add(gone.sent);
        self.resent = self.resent.saturating_add(gone.resent);
        self.received = self.received.saturating_add(gone.received);
        self.disordered = self.disordered.saturating_add(gone.disordered);
        self.storage += gone.storage;
        self.markers = self.markers.saturating_add(gone.markers);
        self.idle = self.idle.saturating_add(gone.idle);
        self.closed += gone.closed;
        self.closed_markers = self.closed_markers.saturating_add(gone.closed_markers);
        self.looks = self.looks.saturating_add(gone.looks);
        self.behind = self.behind.saturating_add(gone.behind);
    }

    /// Adds a transfer, except for its streams. `sends`: we are the sender, and bytes that the
    /// kernel still holds have not arrived.
    pub(super) fn add(&mut self, progress: &Progress, counter: &mut Counter, sends: bool) {
        self.storage += waited(progress);
        let path = progress.path();
        let seconds = |time: Duration| time.as_secs_f64();
        let smaller = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        self.rtt = match (self.rtt, path.rtt.map(seconds)) {
            // Several transfers on one path see about the same.
            (Some(a), Some(b)) => Some(0.5 * (a + b)),
            (a, b) => a.or(b),
        };
        self.min_rtt = smaller(self.min_rtt, path.min_rtt.map(seconds));
        let counted = counter.look(progress);
        self.received = self.received.saturating_add(counted.received);
        self.disordered = self.disordered.saturating_add(counted.disordered);
        if sends {
            self.sent = self.sent.saturating_add(counted.sent);
            self.resent = self.resent.saturating_add(counted.resent);
            self.closed += counted.closed.as_secs_f64();
            let waiting = progress.flows().into_iter().map(|flow| flow.stats.in_flight + flow.stats.not_sent);
            self.delivered = self.delivered.saturating_sub(waiting.sum());
        }
    }
}

/// Counters of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    sent: u64,
    resent: u64,
    received: u64,
    disordered: u64,
    /// Time for which the peer's windows limited them.
    closed: Duration,
}

impl Count {
    fn of(channel: &Flows) -> Self {
        let path = channel.path();
        Self {
            sent: path.segments_sent,
            resent: path.retransmitted,
            received: path.segments_received,
            disordered: path.out_of_order,
            closed: path.receive_window_limited,
        }
    }
}

/// Segment counters over all data channels of a participant. Those of each channel start from zero,
/// and continue over all transfers that use it.
#[derive(Debug, Default)]
pub(super) struct Counter {
    channel: Option<Flows>,
    /// The channel's counters at the last call.
    seen: Count,
    sum: Count,
}

impl Counter {
    /// The sums so far.
    fn look(&mut self, progress: &Progress) -> Count {
        if let Some(channel) = progress.channel_flows() {
            if let Some(before) = self.channel.take_if(|before| !before.is(&channel)) {
                self.count(Count::of(&before));
                self.seen = Count::default();
            }
            self.count(Count::of(&channel));
            self.channel = Some(channel);
        }
        self.sum
    }

    fn count(&mut self, now: Count) {
        let Count { sent, resent, received, disordered, closed } = &mut self.sum;
        let add = |sum: &mut u64, now: u64, seen| *sum = sum.saturating_add(now.saturating_sub(seen));
        add(sent, now.sent, self.seen.sent);
        add(resent, now.resent, self.seen.resent);
        add(received, now.received, self.seen.received);
        add(disordered, now.disordered, self.seen.disordered);
        *closed = closed.saturating_add(now.closed.saturating_sub(self.seen.closed));
        self.seen = now;
    }
}

/// Seconds that streams of a transfer have waited for the storage of this host.
pub(super) fn waited(progress: &Progress) -> f64 {
    (progress.time(Stage::Source) + progress.time(Stage::Destination)).as_secs_f64()
}

/// The path reports of a sending server, over all transfers of a participant.
#[derive(Debug, Default)]
pub(super) struct Heard {
    last: Option<PathMarker>,
    /// Of finished transfers.
    sent: u64,
    resent: u64,
    markers: u32,
    /// Markers that reported that there was nothing to send, and markers that reported closed
    /// windows.
    idle: u32,
    closed: u32,
}

impl Heard {
    /// Another transfer starts: its counters start from zero.
    pub(super) fn begin(&mut self) {
        if let Some(last) = self.last.take() {
            self.sent = self.sent.saturating_add(last.sent);
            self.resent = self.resent.saturating_add(last.retransmitted);
        }
    }

    /// Connections of the transfer, once they are reported.
    pub(super) fn streams(&self) -> Option<u32> {
        self.last.map(|last| last.streams)
    }

    pub(super) fn add(&mut self, marker: PathMarker) {
        self.markers = self.markers.saturating_add(1);
        self.idle = self.idle.saturating_add(u32::from(marker.limited == LimitedBy::Application));
        self.closed = self.closed.saturating_add(u32::from(marker.limited == LimitedBy::ReceiveWindow));
        self.last = Some(marker);
    }
}

/// The result of a sample.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) mark: Option<Mark>,
    /// The planned bytes have arrived.
    pub(super) full: bool,
}

#[derive(Debug)]
pub(super) struct Span {
    began: Instant,
    shortest: Duration,
    first: Totals,
    last: Totals,
    /// When `last.delivered` was first seen: servers report arrivals only once a second.
    arrived: Instant,
    marked: Instant,
    marked_bytes: u64,
    /// Streams at each sample.
    streams: Vec<u32>,
    rtts: (f64, u32),
}

impl Span {
    /// `shortest`: the span does not end earlier.
    pub(super) fn new(now: Instant, totals: Totals, shortest: Duration) -> Self {
        Self {
            began: now,
            shortest,
            first: totals,
            last: totals,
            arrived: now,
            marked: now,
            marked_bytes: totals.delivered,
            streams: Vec::new(),
            rtts: (0.0, 0),
        }
    }

    /// Adds a sample. `bytes`: the span is full with this many.
    pub(super) fn look(&mut self, now: Instant, totals: Totals, bytes: u64) -> Look {
        let more = totals.delivered > self.last.delivered;
        // Delivered bytes never decrease, but a connection that ended takes its figures along.
        let delivered = totals.delivered.max(self.last.delivered);
        self.last = Totals { delivered, ..totals };
        self.streams.push(totals.streams);
        if let Some(rtt) = totals.rtt {
            self.rtts = (self.rtts.0 + rtt, self.rtts.1 + 1);
        }
        if more {
            self.arrived = now;
        }
        let long_enough = now.duration_since(self.began) >= self.shortest;
        let mut look =
            Look { mark: None, full: delivered - self.first.delivered >= bytes && more && long_enough };
        let silent = now.duration_since(self.marked) >= SILENCE && self.arrived <= self.marked;
        let at = if silent { now } else { self.arrived };
        let since = at.saturating_duration_since(self.marked);
        if (more && since >= MARK) || silent {
            let rate = (delivered - self.marked_bytes) as f64 / since.as_secs_f64();
            (self.marked, self.marked_bytes) = (at, delivered);
            look.mark = Some(Mark { elapsed: at.duration_since(self.began).as_secs_f64(), rate });
        }
        look.full |= now.duration_since(self.began) >= LONGEST;
        look
    }

    /// Whether a receiver saw no loss: after a loss, everything arrives out of order. It cannot
    /// tell how much was lost.
    fn all_in_order(&self) -> bool {
        let of = |last: u64, first: u64| last.checked_sub(first);
        of(self.last.received, self.first.received).is_some_and(|segments| segments >= 1000)
            && of(self.last.disordered, self.first.disordered) == Some(0)
    }

    /// The measurement for the tuner.
    pub(super) fn chunk(&self) -> Chunk {
        let bytes = self.last.delivered - self.first.delivered;
        let end = if bytes == 0 { self.began + LONGEST } else { self.arrived };
        let seconds = end.duration_since(self.began).as_secs_f64();
        // Streams that came or left in the first half do not characterize the span.
        let mut settled = self.streams[self.streams.len() / 2..].to_vec();
        settled.sort_unstable();
        let streams = settled.get(settled.len() / 2).copied().unwrap_or_default().max(1);
        // Counters that decreased belong to other connections.
        let sent = self.last.sent.checked_sub(self.first.sent);
        let lost = sent.zip(self.last.resent.checked_sub(self.first.resent));
        let disk = (self.last.storage - self.first.storage).max(0.0) / (seconds * f64::from(streams));
        // A server reports once a second.
        let markers = self.last.markers.saturating_sub(self.first.markers);
        let told = |last: u32, first: u32| {
            (markers >= 2).then(|| f64::from(last.saturating_sub(first).min(markers)) / f64::from(markers))
        };
        let peer = told(self.last.idle, self.first.idle);
        let closed =
            ((self.last.closed - self.first.closed) / (seconds * f64::from(streams))).clamp(0.0, 1.0);
        let window = told(self.last.closed_markers, self.first.closed_markers).unwrap_or(closed);
        let used = self.last.used.zip(self.first.used).map(|(last, first)| last - first);
        let limit = used.map(|used| (used / seconds).clamp(0.0, 1.0)).filter(|_| bytes > 0);
        Chunk {
            rtt: (self.rtts.1 > 0).then(|| self.rtts.0 / f64::from(self.rtts.1)),
            min_rtt: self.last.min_rtt,
            // A thousand packets are enough to measure a loss of a thousandth.
            loss: lost
                .filter(|(sent, _)| *sent >= 1000)
                .map(|(sent, resent)| resent as f64 / sent as f64)
                .or_else(|| self.all_in_order().then_some(0.0)),
            pressure: Pressure {
                disk: Some(disk.min(1.0)),
                peer,
                window: Some(window),
                limit,
                ..Pressure::default()
            },
            ..Chunk::new(streams, bytes, seconds)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(delivered: u64, streams: u32) -> Totals {
        Totals { delivered, streams, ..Totals::default() }
    }

    #[test]
    fn counts_from_arrival_to_arrival() {
        let began = Instant::now();
        let at = |tenths: u32| began + Duration::from_millis(100) * tenths;
        let mut span = Span::new(began, totals(1000, 2), Duration::ZERO);
        // Markers of a server: one each second.
        for tenths in 1..=30 {
            let arrived = 1000 + 500 * u64::from(tenths / 10);
            let streams = if tenths < 5 { 2 } else { 4 };
            let look = span.look(at(tenths), totals(arrived, streams), 1_000_000);
            assert_eq!(look.mark.is_some(), tenths % 10 == 0, "{tenths}");
            assert!(look.mark.is_none_or(|mark| (mark.rate - 500.0).abs() < 1e-6));
        }
        span.look(at(34), totals(2500, 4), 1_000_000);
        let chunk = span.chunk();
        assert_eq!((chunk.streams, chunk.bytes), (4, 1500));
        assert!((chunk.seconds - 3.0).abs() < 1e-9);
    }

    #[test]
    fn chunk_tells_how_much_of_a_limit_was_used() {
        let began = Instant::now();
        let of = |used: [Option<f64>; 2], delivered: u64| {
            let [first, last] = used.map(|used| Totals { used, ..totals(0, 1) });
            let mut span = Span::new(began, first, Duration::ZERO);
            span.look(began + Duration::from_secs(2), Totals { delivered, ..last }, 1);
            span.chunk().pressure.limit
        };
        assert_eq!(of([Some(1.0), Some(2.5)], 100), Some(0.75));
        // Credit saved earlier may exceed the time; and if nothing arrived, the limit was not the
        // reason.
        assert_eq!(of([Some(0.0), Some(2.1)], 100), Some(1.0));
        assert_eq!((of([Some(0.0), Some(2.1)], 0), of([None, None], 100)), (None, None));
    }

    #[test]
    fn is_full_when_enough_has_arrived_or_time_is_over() {
        let began = Instant::now();
        let mut span = Span::new(began, totals(0, 1), Duration::from_secs(2));
        assert!(!span.look(began + Duration::from_secs(1), totals(9, 1), 10).full);
        assert!(span.look(began + Duration::from_secs(2), totals(10, 1), 10).full);
        let mut dead = Span::new(began, totals(0, 1), Duration::from_secs(2));
        let look = dead.look(began + SILENCE, totals(0, 1), 10);
        assert_eq!(look.mark.map(|mark| mark.rate), Some(0.0));
        assert!(!look.full && dead.look(began + LONGEST, totals(0, 1), 10).full);
        assert_eq!(dead.chunk().bytes, 0);
        assert!(dead.chunk().checked().is_ok());
    }

    #[test]
    fn what_senders_tell_goes_on_over_transfers() {
        let marker = |sent, retransmitted, limited| PathMarker {
            rtt: Duration::from_millis(60),
            min_rtt: Duration::from_millis(50),
            retransmitted,
            sent,
            congestion_window: 1 << 20,
            streams: 2,
            limited,
        };
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut heard = Heard::default();
        let told = |heard: &Heard, delivered| {
            let mut totals = totals(delivered, 2);
            totals.hear(heard);
            totals
        };
        heard.add(marker(1000, 0, LimitedBy::CongestionWindow));
        let mut span = Span::new(began, told(&heard, 0), Duration::ZERO);
        heard.add(marker(3000, 20, LimitedBy::Application));
        span.look(at(1), told(&heard, 100), 1_000_000);
        // A second file.
        heard.begin();
        heard.begin();
        span.look(at(2), told(&heard, 150), 1_000_000);
        heard.add(marker(2000, 20, LimitedBy::ReceiveWindow));
        span.look(at(3), told(&heard, 200), 1_000_000);
        let chunk = span.chunk();
        assert_eq!(chunk.loss, Some(0.01));
        assert_eq!((chunk.min_rtt, chunk.pressure.peer), (Some(0.05), Some(0.5)));
        assert_eq!(chunk.pressure.window, Some(0.5));
    }

    #[test]
    fn windows_that_the_peer_closes_are_seen_where_we_send() {
        let began = Instant::now();
        let closed = |closed, delivered| Totals { closed, ..totals(delivered, 4) };
        let mut span = Span::new(began, closed(3.0, 0), Duration::ZERO);
        span.look(began + Duration::from_secs(5), closed(18.0, 100), 100);
        assert_eq!((span.chunk().pressure.window, span.chunk().pressure.peer), (Some(0.75), None));
    }

    #[test]
    fn a_receiver_knows_when_nothing_was_lost() {
        let began = Instant::now();
        let loss = |received, disordered| {
            let before = Totals { received: 500, disordered: 7, ..totals(100, 2) };
            let mut span = Span::new(began, before, Duration::ZERO);
            let now = Totals { received, disordered, ..totals(900, 2) };
            span.look(began + Duration::from_secs(1), now, 10_000);
            span.chunk().loss
        };
        assert_eq!(loss(5000, 7), Some(0.0));
        // The amount of loss is unknown to a receiver; so is any loss with few packets, or with
        // changed connections.
        assert_eq!([loss(5000, 8), loss(1200, 7), loss(400, 7), loss(5000, 0)], [None; 4]);
    }

    #[test]
    fn what_connections_take_along_does_not_count_backwards() {
        let began = Instant::now();
        let mut span = Span::new(began, Totals { sent: 5000, resent: 10, ..totals(100, 2) }, Duration::ZERO);
        span.look(began + Duration::from_secs(1), Totals { sent: 10, resent: 0, ..totals(90, 1) }, 10_000);
        let chunk = span.chunk();
        assert_eq!((chunk.bytes, chunk.loss), (0, None));
        let mut span = Span::new(began, Totals { sent: 5000, resent: 10, ..totals(100, 2) }, Duration::ZERO);
        span.look(began + Duration::from_secs(1), Totals { sent: 7000, resent: 0, ..totals(900, 1) }, 10_000);
        assert_eq!(span.chunk().loss, None);
    }

    #[test]
    fn segments_are_counted_over_channels_and_over_transfers_on_one() {
        let of = |sent, resent, closed| Count {
            sent,
            resent,
            closed: Duration::from_secs(closed),
            ..Count::default()
        };
        let mut counter = Counter::default();
        for now in [of(1000, 1, 0), of(3000, 5, 2)] {
            counter.count(now);
        }
        // Another transfer over the same channel, and one over another channel.
        counter.count(of(4000, 5, 3));
        counter.seen = Count::default();
        counter.count(of(500, 2, 1));
        assert_eq!(counter.sum, of(4500, 7, 4));
    }
}
