//! Limits on the payload bytes a second of all streams that share them.
//!
//! A [`Limiter`] has the clock and the lock around a [`Division`]; a [`Bandwidth`] is the part of
//! it that one flow has, such as the data channel of a session. A stream moves bytes, and continues
//! when the flow has paid for them. So streams take turns instead of waking together, and a
//! receiver that does not read lets the peer's window hold the sender back. Limits can change at
//! any time: a waiting stream looks again at the latest after [`LOOK_AGAIN`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use ropewalk_limits::{Booking, Division, FlowId, FlowSpec, LimitSpec, LocalTime, Mark, Purse, Timetable};

/// A stream moves at a time what the limit lets through in this time, within these bounds in bytes.
const AT_ONCE: f64 = 0.02;
const LEAST_AT_ONCE: usize = 16 << 10;
const MOST_AT_ONCE: usize = 1 << 20;
/// A waiting stream looks after this time whether it may continue earlier. Shorter than the time
/// that limits save.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Timetables and windows of reservations are looked at this often.
const TIMETABLES: Duration = Duration::from_secs(1);

/// Limits by name, and the flows that share them.
#[derive(Debug)]
pub struct Limiter {
    began: Instant,
    state: Mutex<State>,
    /// There are limits, perhaps with none in force at present.
    any: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    division: Division,
    /// The limits that change with the time of day.
    timetables: Vec<(String, Timetable)>,
    /// The reservations whose rates are guaranteed during their windows.
    bookings: Vec<Booking>,
    looked: Option<Instant>,
}

impl Default for Limiter {
    fn default() -> Self {
        Self { began: Instant::now(), state: Mutex::default(), any: AtomicBool::new(false) }
    }
}

impl Limiter {
    /// Sets whether flows have limits at all, and the timetables by which limits change.
    pub fn set_timetables(&self, any: bool, timetables: Vec<(String, Timetable)>) {
        let mut state = self.state.lock();
        state.timetables = timetables;
        state.looked = None;
        self.any.store(any, Ordering::Relaxed);
    }

    /// Sets the reservations. The token of one is the name of the guarantee of its flows.
    pub fn set_bookings(&self, bookings: Vec<Booking>) {
        let mut state = self.state.lock();
        state.bookings = bookings;
        state.look(self.began.elapsed());
    }

    /// A flow with these properties. All flows with the same ones share their part.
    pub fn join(self: &Arc<Self>, spec: &FlowSpec) -> Arc<Bandwidth> {
        let flow = self.state.lock().division.join(spec, self.began.elapsed());
        Arc::new(Bandwidth {
            limiter: Arc::clone(self),
            flow: Mutex::new(flow),
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
        })
    }

    /// The state with the rates of the present time of day, and the time since the beginning.
    fn at_present(&self) -> (MutexGuard<'_, State>, Duration) {
        let mut state = self.state.lock();
        let now = self.began.elapsed();
        state.follow_clock(now);
        (state, now)
    }
}

impl State {
    /// Applies the rates of the time of day, and the reservations whose windows have begun.
    fn follow_clock(&mut self, now: Duration) {
        let looks = !self.timetables.is_empty() || !self.bookings.is_empty();
        if looks && self.looked.is_none_or(|looked| looked.elapsed() >= TIMETABLES) {
            self.look(now);
        }
    }

    fn look(&mut self, now: Duration) {
        self.looked = Some(Instant::now());
        let time = SystemTime::now();
        let local = LocalTime::of(time);
        for (name, timetable) in &self.timetables {
            self.division.set_rate(name, timetable.rate(local), now);
        }
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let in_force =
            self.bookings.iter().filter(|booking| booking.rate > 0 && booking.is_in_force(seconds));
        let guarantees: BTreeMap<_, _> =
            in_force.map(|booking| (booking.token.clone(), booking.rate)).collect();
        self.division.set_guarantees(guarantees, now);
    }
}

/// The part of the limits that the streams of one flow share.
#[derive(Debug)]
pub struct Bandwidth {
    limiter: Arc<Limiter>,
    flow: Mutex<FlowId>,
    /// Nanoseconds that what has moved takes at the lowest limit.
    used: AtomicU64,
    /// Nanoseconds that streams waited, summed over them.
    held: AtomicU64,
}

impl Bandwidth {
    /// A limit of its own.
    pub fn new(rate: &Timetable) -> Self {
        let limiter = Arc::new(Limiter::default());
        let flow = limiter.state.lock().division.join(&FlowSpec::default(), Duration::ZERO);
        let (used, held) = (AtomicU64::new(0), AtomicU64::new(0));
        let this = Self { limiter, flow: Mutex::new(flow), used, held };
        this.set(rate);
        this
    }

    /// Gives a limit of its own another rate, also while streams wait.
    pub fn set(&self, rate: &Timetable) {
        let now = rate.rate(LocalTime::of(SystemTime::now()));
        let timetables = if rate.is_constant() { Vec::new() } else { vec![(String::new(), rate.clone())] };
        self.limiter.set_timetables(*rate != Timetable::always(None), timetables);
        let limits = vec![LimitSpec { name: String::new(), rate: now }];
        self.change(&FlowSpec { limits, ..FlowSpec::default() });
    }

    /// Whether there is a limit, perhaps with no rate in force at present.
    pub fn is_limited(&self) -> bool {
        self.limiter.any.load(Ordering::Relaxed)
    }

    /// Gives the flow other properties, also while streams wait.
    pub fn change(&self, spec: &FlowSpec) {
        let mut flow = self.flow.lock();
        let (mut state, now) = (self.limiter.state.lock(), self.limiter.began.elapsed());
        let joined = state.division.join(spec, now);
        state.division.leave(*flow, now);
        *flow = joined;
    }

    /// Seconds that what has moved so far takes at the limit.
    pub fn used(&self) -> f64 {
        Duration::from_nanos(self.used.load(Ordering::Relaxed)).as_secs_f64()
    }

    /// How long streams waited for it, summed over them.
    pub fn held(&self) -> Duration {
        Duration::from_nanos(self.held.load(Ordering::Relaxed))
    }

    /// The lowest limit that holds now, in bytes per second.
    pub(crate) fn limit(&self) -> Option<u64> {
        if !self.is_limited() {
            return None;
        }
        let flow = *self.flow.lock();
        self.limiter.state.lock().division.lowest_limit(flow)
    }

    /// Bytes that a stream should move at a time; `None`: no limit holds.
    pub(crate) fn at_once(&self) -> Option<usize> {
        let rate = self.limit()?;
        Some(((rate as f64 * AT_ONCE) as usize).clamp(LEAST_AT_ONCE, MOST_AT_ONCE))
    }

    /// A stream has moved `bytes`. Returns the mark for [`Self::due`] unless it may continue.
    pub(crate) fn charge(&self, bytes: u64) -> Option<Mark> {
        if !self.is_limited() {
            return None;
        }
        let flow = *self.flow.lock();
        let (mut state, now) = self.limiter.at_present();
        if let Some(rate) = state.division.lowest_limit(flow) {
            add(&self.used, Duration::try_from_secs_f64(bytes as f64 / rate as f64).unwrap_or(Duration::MAX));
        }
        state.division.charge(flow, bytes, now)
    }

    /// When a stream with this mark may continue; `None`: now.
    pub(crate) fn due(&self, mark: Mark) -> Option<Instant> {
        let (mut state, now) = self.limiter.at_present();
        let due = state.division.due(mark, now)?;
        // If the rate is so low that the clock ends first, the time is as late as it has to be.
        Some(self.limiter.began.checked_add(due).unwrap_or_else(|| Instant::now() + LOOK_AGAIN))
    }

    /// A stream has waited for it.
    pub(crate) fn add_held(&self, time: Duration) {
        add(&self.held, time);
    }
}

/// For bytes that another process moves.
impl Purse for Bandwidth {
    fn share(&self) -> Option<u64> {
        if !self.is_limited() {
            return None;
        }
        let flow = *self.flow.lock();
        let (mut state, now) = self.limiter.at_present();
        state.division.share(flow, now)
    }

    fn charge(&self, bytes: u64) -> Option<Mark> {
        Self::charge(self, bytes)
    }

    fn due(&self, mark: Mark) -> Option<Duration> {
        Self::due(self, mark).map(|due| due.saturating_duration_since(Instant::now()))
    }

    fn refund(&self, bytes: u64) {
        let flow = *self.flow.lock();
        self.limiter.state.lock().division.refund(flow, bytes, self.limiter.began.elapsed());
    }
}

impl Drop for Bandwidth {
    fn drop(&mut self) {
        self.limiter.state.lock().division.leave(*self.flow.get_mut(), self.limiter.began.elapsed());
    }
}

fn add(total: &AtomicU64, time: Duration) {
    total.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(rate: Option<u64>) -> FlowSpec {
        FlowSpec { limits: vec![LimitSpec { name: "all".into(), rate }], ..FlowSpec::default() }
    }

    #[test]
    fn flow_whose_limit_is_lifted_may_continue_at_once() {
        let limiter = Arc::new(Limiter::default());
        limiter.set_timetables(true, Vec::new());
        let bandwidth = limiter.join(&spec(Some(1)));
        let mark = bandwidth.charge(1 << 40);
        assert!(mark.and_then(|mark| bandwidth.due(mark)).is_some_and(|due| due > Instant::now()));
        assert_eq!(bandwidth.at_once(), Some(LEAST_AT_ONCE));
        bandwidth.change(&spec(None));
        assert_eq!(mark.and_then(|mark| bandwidth.due(mark)), None);
        assert_eq!((bandwidth.charge(1 << 40), bandwidth.at_once()), (None, None));
    }

    #[test]
    fn limit_of_its_own_when_set_again_holds_streams_that_wait_no_longer() {
        let bandwidth = Bandwidth::new(&Timetable::always(None));
        assert!(!bandwidth.is_limited());
        assert_eq!(bandwidth.charge(1 << 40), None);
        bandwidth.set(&Timetable::from(1));
        let mark = bandwidth.charge(1 << 40);
        assert!(mark.and_then(|mark| bandwidth.due(mark)).is_some_and(|due| due > Instant::now()));
        bandwidth.set(&Timetable::from(1 << 50));
        assert_eq!(mark.and_then(|mark| bandwidth.due(mark)), None);
        assert_eq!(bandwidth.at_once(), Some(MOST_AT_ONCE));
        // A rate in force by the time of day is that of the timetable.
        let whole_week: Result<Timetable, _> = "Mon-Sun 7B/s, else off".parse();
        bandwidth.set(&whole_week.unwrap_or(Timetable::always(None)));
        assert!(bandwidth.charge(70).and_then(|mark| bandwidth.due(mark)).is_some());
        bandwidth.set(&Timetable::always(None));
        assert_eq!((bandwidth.charge(1 << 40), bandwidth.at_once()), (None, None));
    }

    #[test]
    fn timetable_sets_the_rate_of_its_limit() {
        let limiter = Arc::new(Limiter::default());
        limiter.set_timetables(true, vec![("all".into(), Timetable::from(5))]);
        let bandwidth = limiter.join(&spec(None));
        assert!(bandwidth.charge(100).is_some());
        assert!(bandwidth.used() > 19.0);
        limiter.set_timetables(false, Vec::new());
        assert_eq!(bandwidth.charge(100), None);
    }
}
