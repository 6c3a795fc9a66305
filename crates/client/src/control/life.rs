//! Whether a peer that talks also gets on: replies that say nothing new do not keep a command alive for ever.

use std::time::{Duration, Instant};

use ropewalk_protocol::marker::Marker;

/// So many preliminary replies that are no markers a command may have: 125 or 150, and one in reserve.
const PRELIMINARY: u32 = 2;

/// So often a marker may say the same: a server that waits for its disk after the last byte sends one every five seconds or so.
const REPEATED: u32 = 120;

/// Who waits again no later than this has done nothing besides.
const AT_ONCE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Life {
    /// When anything came last, but for what says nothing new.
    heard: Instant,
    /// The last reply that says something new.
    sign: Instant,
    /// Since when an answer is waited for without one, and when something came last in that time.
    waiting: Option<(Instant, Instant)>,
    preliminary: u32,
    /// The last marker of each code, without its time.
    markers: [Option<Marker>; 3],
    repeated: u32,
}

impl Life {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            sign: now,
            waiting: None,
            preliminary: 0,
            markers: [None, None, None],
            repeated: 0,
        }
    }

    /// A command goes out, and nothing was due before it.
    pub(super) fn asks(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    /// Bytes came; what they say is not known yet.
    pub(super) fn hears(&mut self, now: Instant) {
        self.heard = now;
    }

    pub(super) fn quiet(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Since when the present answer is waited for, without what was done besides.
    pub(super) fn waits(&mut self, now: Instant) -> Instant {
        let at_once = |came: &Instant| now.saturating_duration_since(*came) < AT_ONCE;
        let waiting = self.waiting.filter(|(_, came)| at_once(came)).unwrap_or((now, now));
        self.waiting = Some(waiting);
        waiting.0
    }

    /// A command has its final reply.
    pub(super) fn ends(&mut self) {
        (self.preliminary, self.markers, self.repeated) = (0, [None, None, None], 0);
        self.lives();
    }

    pub(super) fn begins(&mut self) {
        self.preliminary = self.preliminary.saturating_add(1);
        if self.preliminary <= PRELIMINARY { self.lives() } else { self.talks() }
    }

    pub(super) fn tells(&mut self, marker: &Marker) {
        let (at, now) = match marker {
            Marker::Range(_) => (0, marker.clone()),
            Marker::Perf(perf) => {
                let mut perf = *perf;
                perf.timestamp = 0;
                (1, Marker::Perf(perf))
            }
            Marker::Status(status) => {
                let mut status = *status;
                status.timestamp = 0;
                (2, Marker::Status(status))
            }
            // What a path is like says nothing of what gets done.
            Marker::Path(_) => return self.talks(),
        };
        self.repeated = if self.markers[at].as_ref() == Some(&now) { self.repeated + 1 } else { 0 };
        if self.repeated > REPEATED {
            self.repeated = REPEATED;
            return self.talks();
        }
        self.markers[at] = Some(now);
        self.lives();
    }

    fn lives(&mut self) {
        let now = Instant::now();
        (self.heard, self.sign, self.waiting) = (now, now, None);
    }

    fn talks(&mut self) {
        self.heard = self.sign;
        if let Some((_, came)) = &mut self.waiting {
            *came = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_protocol::marker::PerfMarker;

    use super::*;

    #[test]
    fn what_says_nothing_new_is_no_sign_of_life() {
        let began = Instant::now();
        let mut life = Life::new(began);
        let perf = |timestamp, bytes| Marker::Perf(PerfMarker { timestamp, stripe: 0, bytes, stripes: 1 });
        let alive = |life: &mut Life, what: &dyn Fn(&mut Life)| {
            life.waits(began);
            what(life);
            life.waiting.is_none()
        };
        assert!(alive(&mut life, &|life| life.begins()) && alive(&mut life, &|life| life.begins()));
        assert!(!alive(&mut life, &|life| life.begins()));
        assert!(alive(&mut life, &|life| life.tells(&perf(1, 5))));
        assert!((0..REPEATED).all(|n| alive(&mut life, &|life| life.tells(&perf(2 + u64::from(n), 5)))));
        assert!(
            !alive(&mut life, &|life| life.tells(&perf(2, 5)))
                && !alive(&mut life, &|life| life.tells(&perf(9, 5)))
        );
        assert!(alive(&mut life, &|life| life.tells(&perf(3, 6))));
        assert!(alive(&mut life, &|life| life.ends()) && alive(&mut life, &|life| life.begins()));
        assert_eq!(life.waits(began), began);
    }
}
