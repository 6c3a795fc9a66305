//! What a polite transfer yields to: a queue and loss over what the path has by itself.
//!
//! Both are the least that was seen lately, as in LEDBAT (RFC 6817): a route may get longer, and a path begin to lose packets. Then
//! the least of the whole transfer would be exceeded for ever.

use super::super::sample::Chunk;

/// A queue of this part of the round trip, and at least of this many seconds, is a sign of congestion.
pub(super) const QUEUE: f64 = 0.15;
pub(super) const LEAST_QUEUE: f64 = 0.005;
/// Round trips no farther apart than this (logarithm) are of the same queue, or of the same route.
pub(super) const SAME: f64 = 0.12;
/// So is this much loss, over what the path always has, and a part of that: at least this, at most as much again, and in
/// standard deviations of what chance makes of it.
const LOSS: f64 = 3e-4;
const LEAST_PART: f64 = 0.25;
const LOSS_DEVIATIONS: f64 = 4.0;
/// Of a packet, in bytes, to tell how many a chunk had.
const PACKET: f64 = 1500.0;
/// For so long a least counts, in seconds; as long as Linux keeps the least round trip of a connection.
const LATELY: f64 = 300.0;
/// After so many seconds without a queue at a longer round trip the route is a longer one.
const ANOTHER_ROUTE: f64 = 60.0;

/// The least of what was measured lately.
#[derive(Clone, Debug, Default)]
struct Least(
    /// The older the less.
    Vec<Seen>,
);

#[derive(Clone, Copy, Debug)]
struct Seen {
    age: f64,
    value: f64,
    /// Of ours, at that time.
    streams: u32,
}

impl Least {
    /// Time in which nothing is measured makes nothing older.
    fn add(&mut self, value: Option<f64>, streams: u32, seconds: f64) {
        let Some(value) = value else { return };
        for seen in &mut self.0 {
            seen.age += seconds;
        }
        self.0.retain(|seen| seen.value < value && seen.age <= LATELY);
        self.0.push(Seen { age: 0.0, value, streams });
    }

    /// The same where more streams of ours make more of it: then what they see is not the path's own, however long they see it.
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

/// What the path has by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Calm {
    rtt: Least,
    loss: Least,
    /// A longer round trip without a queue, and for how many seconds it has been that.
    longer: Option<(f64, f64)>,
}

/// A queue in seconds over the round trip without one, and loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Congestion {
    pub(super) queueing: f64,
    pub(super) loss: f64,
}

/// The queue that is a sign of congestion where the round trip without one is `least`.
pub(super) fn queue(least: f64) -> f64 {
    LEAST_QUEUE.max(QUEUE * least)
}

impl Calm {
    /// The congestion that a chunk met.
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

    /// Where even the least round trip is a longer one, with hardly more in the mean, no queue explains it: queues grow and drain.
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

    /// Chunks until no congestion is seen any more.
    fn lasts(calm: &mut Calm, chunk: &Chunk) -> Option<usize> {
        (0..100).position(|_| calm.congestion(chunk).is_none())
    }

    #[test]
    fn a_longer_route_is_one_after_a_minute() {
        let mut calm = Calm::default();
        assert_eq!(calm.congestion(&chunk(0.052, 0.05, 0.0)), None);
        assert_eq!(lasts(&mut calm, &chunk(0.067, 0.065, 0.0)), Some(5));
        // And a shorter one at once.
        assert_eq!(calm.congestion(&chunk(0.045, 0.045, 0.0)), None);
        assert!(calm.congestion(&chunk(0.065, 0.045, 0.0)).is_some());
    }

    #[test]
    fn a_queue_is_not_the_route() {
        let mut calm = Calm::default();
        assert_eq!(calm.congestion(&chunk(0.05, 0.05, 0.0)), None);
        // It drains now and then; or it does not, but grows.
        for (rtt, min_rtt) in [(0.1, 0.05), (0.1, 0.07)] {
            let queue = chunk(rtt, min_rtt, 0.0);
            assert!((0..25).all(|_| calm.congestion(&queue).is_some()), "{rtt}");
        }
    }

    #[test]
    fn loss_is_the_path_s_own_after_some_minutes() {
        let mut calm = Calm::default();
        assert_eq!(calm.congestion(&chunk(0.05, 0.05, 0.0)), None);
        assert_eq!(lasts(&mut calm, &chunk(0.05, 0.05, 1e-3)), Some(30));
        assert!(calm.congestion(&chunk(0.05, 0.05, 5e-3)).is_some());
        // What tells nothing of loss tells nothing new.
        let unknown = Chunk { loss: None, ..chunk(0.05, 0.05, 0.0) };
        assert!((0..60).all(|_| calm.congestion(&unknown).is_none()));
        assert!(calm.congestion(&chunk(0.05, 0.05, 5e-3)).is_some());
    }
}
