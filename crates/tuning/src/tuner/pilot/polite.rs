//! Detects the congestion to which a polite transfer yields: a queue and loss beyond those that the
//! path always has.
//!
//! The values of the path itself are the minimum of recent measurements, as in LEDBAT (RFC 6817). A
//! minimum over the whole transfer would be exceeded for ever after a route became longer or a path
//! began to lose packets.

use super::super::sample::Chunk;

/// A queue above this fraction of the round-trip time, and above this many seconds, is a sign of
/// congestion.
pub(super) const QUEUE: f64 = 0.15;
pub(super) const LEAST_QUEUE: f64 = 0.005;
/// Round-trip times that differ by less than this (logarithm) belong to the same queue or route.
pub(super) const SAME: f64 = 0.12;
/// Loss is a sign of congestion if it exceeds the path's own loss by more than this, plus a
/// tolerance for chance. The tolerance is this number of standard deviations, but at least this
/// fraction of the path's own loss and at most all of it.
const LOSS: f64 = 3e-4;
const LEAST_PART: f64 = 0.25;
const LOSS_DEVIATIONS: f64 = 4.0;
/// Size of a packet in bytes, to compute the number of packets of a chunk.
const PACKET: f64 = 1500.0;
/// Time for which a minimum counts, in seconds; Linux keeps the minimum round-trip time of a
/// connection for the same time.
const LATELY: f64 = 300.0;
/// After this many seconds with a longer round-trip time and no queue, the route has become longer.
const ANOTHER_ROUTE: f64 = 60.0;

/// The minimum of recent measurements.
#[derive(Clone, Debug, Default)]
struct Least(
    /// Candidates, the oldest and smallest first.
    Vec<Seen>,
);

#[derive(Clone, Copy, Debug)]
struct Seen {
    age: f64,
    value: f64,
    /// Streams of this transfer at that time.
    streams: u32,
}

impl Least {
    /// Adds a measurement. Time without measurements does not age the others.
    fn add(&mut self, value: Option<f64>, streams: u32, seconds: f64) {
        let Some(value) = value else { return };
        for seen in &mut self.0 {
            seen.age += seconds;
        }
        self.0.retain(|seen| seen.value < value && seen.age <= LATELY);
        self.0.push(Seen { age: 0.0, value, streams });
    }

    /// The same for a value that grows with our own streams: a value measured with more streams
    /// than the minimum is not the path's own, however old the minimum is.
    fn add_own(&mut self, value: Option<f64>, streams: u32, seconds: f64) {
        match self.0.first_mut().zip(value) {
            Some((least, value))
                if least.age + seconds > LATELY && least.value < value && least.streams < streams =>
            {
                least.age += seconds;
            }
            _ => self.add(value, streams, seconds),
        }
    }

    fn get(&self) -> Option<f64> {
        self.0.first().map(|first| first.value)
    }
}

/// The round-trip time and loss of the path itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Calm {
    rtt: Least,
    loss: Least,
    /// A longer round-trip time without a queue, and the seconds for which it has been measured.
    longer: Option<(f64, f64)>,
}

/// Queueing delay in seconds, and loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Congestion {
    pub(super) queueing: f64,
    pub(super) loss: f64,
}

/// The queueing delay from which on there is congestion, if the round-trip time without a queue is
/// `least`.
pub(super) fn queue(least: f64) -> f64 {
    LEAST_QUEUE.max(QUEUE * least)
}

impl Calm {
    /// Returns the congestion during a chunk, if any.
    pub(super) fn congestion(&mut self, chunk: &Chunk) -> Option<Congestion> {
        self.rtt.add(chunk.min_rtt.or(chunk.rtt), chunk.streams, chunk.seconds);
        self.loss.add_own(chunk.loss, chunk.streams, chunk.seconds);
        self.follow_route(chunk);
        let least = self.rtt.get();
        let queueing = chunk.rtt.zip(least).map_or(0.0, |(rtt, least)| rtt - least);
        let loss = chunk.loss.unwrap_or(0.0);
        let own = self.loss.get().unwrap_or(0.0);
        let chance = LOSS_DEVIATIONS * (own * PACKET / chunk.bytes.max(1) as f64).sqrt();
        let lossy = loss > LOSS + own + chance.clamp(LEAST_PART * own, own);
        let congested = queueing > queue(least.unwrap_or(0.0)) || lossy;
        congested.then_some(Congestion { queueing, loss })
    }

    /// If even the minimum round-trip time is longer, and the mean is only slightly above it, there
    /// is no queue: queues grow and drain.
    fn follow_route(&mut self, chunk: &Chunk) {
        let longer = chunk.rtt.zip(chunk.min_rtt).zip(self.rtt.get()).and_then(|((rtt, now), least)| {
            (now > least + queue(least) && rtt <= now + queue(now)).then_some(now)
        });
        self.longer = longer.map(|now| match self.longer {
            Some((before, seconds)) if (now / before).ln().abs() < SAME => {
                (now.min(before), seconds + chunk.seconds)
            }
            _ => (now, chunk.seconds),
        });
        if let Some((rtt, _)) = self.longer.take_if(|longer| longer.1 >= ANOTHER_ROUTE) {
            self.rtt = Least(vec![Seen { age: 0.0, value: rtt, streams: chunk.streams }]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(rtt: f64, min_rtt: f64, loss: f64) -> Chunk {
        Chunk { rtt: Some(rtt), min_rtt: Some(min_rtt), loss: Some(loss), ..Chunk::new(8, 1 << 20, 10.0) }
    }

    /// Number of chunks until no congestion is detected any more.
    fn lasts(calm: &mut Calm, chunk: &Chunk) -> Option<usize> {
        (0..100).position(|_| calm.congestion(chunk).is_none())
    }

    #[test]
    fn congestion_on_longer_route_ends_after_a_minute() {
        let mut calm = Calm::default();
        assert_eq!(calm.congestion(&chunk(0.052, 0.05, 0.0)), None);
        assert_eq!(lasts(&mut calm, &chunk(0.067, 0.065, 0.0)), Some(5));
        // A shorter route is accepted at once.
        assert_eq!(calm.congestion(&chunk(0.045, 0.045, 0.0)), None);
        assert!(calm.congestion(&chunk(0.065, 0.045, 0.0)).is_some());
    }

    #[test]
    fn congestion_with_queue_does_not_end() {
        let mut calm = Calm::default();
        assert_eq!(calm.congestion(&chunk(0.05, 0.05, 0.0)), None);
        // The queue drains from time to time, or it only grows.
        for (rtt, min_rtt) in [(0.1, 0.05), (0.1, 0.07)] {
            let queue = chunk(rtt, min_rtt, 0.0);
            assert!((0..25).all(|_| calm.congestion(&queue).is_some()), "{rtt}");
        }
    }

    #[test]
    fn congestion_with_lasting_loss_ends_after_minutes() {
        let mut calm = Calm::default();
        assert_eq!(calm.congestion(&chunk(0.05, 0.05, 0.0)), None);
        assert_eq!(lasts(&mut calm, &chunk(0.05, 0.05, 1e-3)), Some(30));
        assert!(calm.congestion(&chunk(0.05, 0.05, 5e-3)).is_some());
        // A chunk without loss information changes nothing.
        let unknown = Chunk { loss: None, ..chunk(0.05, 0.05, 0.0) };
        assert!((0..60).all(|_| calm.congestion(&unknown).is_none()));
        assert!(calm.congestion(&chunk(0.05, 0.05, 5e-3)).is_some());
    }
}
