//! Chooses the driver of a path's data connections: TCP, or another one if TCP cannot fill it.
//!
//! A path with loss but without a queue holds each TCP connection back, and another driver may not
//! mind. Whether it carries more is measured: the choice moves the path to the other driver for a
//! trial, and back unless the trial was clearly faster. A driver that cannot connect, or carries
//! less than TCP did, is given up for the rest of the run. Pure: the path's tuner reports rates and
//! failures, and the sessions ask for the driver whenever they make data connections.

use std::time::Duration;

use ropewalk_tuning::tuner::{Chunk, Reason};

/// Loss that TCP's windows suffer from over a long path.
const LOSS: f64 = 5e-4;
/// With so much loss a trial does not wait until the most streams that are allowed are in use.
const HEAVY_LOSS: f64 = 5e-3;
/// While a path is not full, the logarithm of the rate grows at least so much with that of the
/// number of streams.
const GROWING: f64 = 0.5;
/// A round trip that is longer by this factor, and by this time, shows a queue: the loss is due to
/// congestion.
const QUEUE: f64 = 1.25;
const QUEUE_TIME: Duration = Duration::from_millis(2);
/// Measurements in a row that show such loss: that of slow start is over after the first.
const LOSSY: u32 = 2;
/// A trial costs a log-in and a start: the data that is left should take much longer.
const WORTH: Duration = Duration::from_secs(20);
/// The other driver is kept if it carries so many times as much as TCP did.
const BETTER: f64 = 1.1;
/// A kept driver is given up if it carries less than this share of TCP's rate, so many times in a
/// row.
const WORSE: f64 = 0.7;
const WORSE_SPANS: u32 = 2;
/// A limit that is reached for this share of the time is the reason for the rate.
const LIMITED: f64 = 0.5;

/// The result of a comparison, for later runs. Rates are in bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Compared {
    /// The better one.
    pub(super) stack: String,
    pub(super) tcp_rate: f64,
    pub(super) other_rate: f64,
}

/// A change of the driver of a path, or the reason for which it stays.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StackChange {
    pub(crate) stack: &'static str,
    /// A fixed name.
    pub(crate) reason: &'static str,
    /// In words.
    pub(crate) why: String,
    /// The rate on which it is based, in bytes per second.
    pub(crate) rate: f64,
}

/// A measurement over TCP, and the state of the path's tuner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured<'m> {
    pub(super) chunk: &'m Chunk,
    /// The tuner's reason for the next number of streams.
    pub(super) reason: Reason,
    /// The sender uses BBR, which fills a lossy path.
    pub(super) bbr: bool,
    /// The bytes that are left to move, if they are known.
    pub(super) left: Option<u64>,
}

#[derive(Debug, Default)]
enum State {
    /// Over TCP, as long as its measurements do not show loss without a queue.
    #[default]
    Watching,
    Trying,
    /// The other driver is better; measurements in a row that say otherwise.
    Kept(u32),
    /// TCP, until the end of the run.
    Over,
}

#[derive(Debug, Default)]
pub(super) struct StackChoice {
    /// The driver that both ends have besides TCP.
    other: Option<&'static str>,
    state: State,
    lossy: u32,
    tcp_rate: f64,
    compared: Option<Compared>,
    remembered: Option<Compared>,
    change: Option<StackChange>,
    /// The last change in words, for the summary.
    why: Option<String>,
}

impl StackChoice {
    /// Starts with the result of an earlier run.
    pub(super) fn remember(&mut self, compared: Option<Compared>) {
        self.remembered = compared;
    }

    /// Both ends of the path have this driver.
    pub(super) fn offer(&mut self, other: &'static str) {
        if self.other.is_some() {
            return;
        }
        self.other = Some(other);
        let Some(before) = self.remembered.take() else { return };
        self.tcp_rate = before.tcp_rate;
        if before.stack == other {
            self.state = State::Kept(0);
            let why = format!(
                "an earlier run measured {} over {other} and {} over TCP",
                in_megabits(before.other_rate),
                in_megabits(before.tcp_rate)
            );
            self.changed("remembered", why, before.other_rate);
        } else {
            self.state = State::Over;
        }
    }

    /// The driver for data connections that are made now; `None`: TCP.
    pub(super) fn driver(&self) -> Option<&'static str> {
        self.other.filter(|_| matches!(self.state, State::Trying | State::Kept(_)))
    }

    /// Adds a measurement over TCP.
    pub(super) fn over_tcp(&mut self, measured: Measured<'_>) {
        let Measured { chunk, reason, bbr, left } = measured;
        let Some(other) = self.other.filter(|_| matches!(self.state, State::Watching)) else { return };
        let rate = if chunk.seconds > 0.0 { chunk.rate() } else { 0.0 };
        let loss = chunk.loss.unwrap_or_default();
        let is_lossy = loss >= LOSS && !has_queue(chunk) && !is_limited(chunk) && !bbr && chunk.bytes > 0;
        self.lossy = if is_lossy { self.lossy + 1 } else { 0 };
        // Where more streams gain nothing, TCP fills the path, and overflows a short queue.
        let is_open = match reason {
            Reason::Growing { elasticity } => loss >= HEAVY_LOSS && elasticity >= GROWING,
            Reason::Capped { .. } => true,
            _ => false,
        };
        let pays = left.is_none_or(|left| left as f64 > rate * WORTH.as_secs_f64());
        if self.lossy < LOSSY || !is_open || !pays {
            return;
        }
        self.tcp_rate = rate;
        self.state = State::Trying;
        let why = format!(
            "TCP carries {} with {:.2} % loss and no queue: trying {other}",
            in_megabits(rate),
            100.0 * loss
        );
        self.changed("lossy", why, rate);
    }

    /// Adds the rate of a measurement over the other driver, in bytes per second.
    pub(super) fn over_other(&mut self, rate: f64) {
        let Some(other) = self.other else { return };
        let tcp = self.tcp_rate;
        let rates = format!("{} over {other}, {} over TCP", in_megabits(rate), in_megabits(tcp));
        match self.state {
            State::Trying if rate >= BETTER * tcp => {
                self.state = State::Kept(0);
                self.compare(other, rate);
                self.changed("better", rates, rate);
            }
            State::Trying => {
                self.state = State::Over;
                self.compare("tcp", rate);
                self.changed("not-better", rates, rate);
            }
            State::Kept(worse) if rate < WORSE * tcp => {
                self.state = State::Kept(worse + 1);
                if worse + 1 >= WORSE_SPANS {
                    self.state = State::Over;
                    self.compare("tcp", rate);
                    self.changed("worse", rates, rate);
                }
            }
            State::Kept(_) => self.state = State::Kept(0),
            State::Watching | State::Over => {}
        }
    }

    /// The other driver does not work: it cannot connect, or its connections broke.
    pub(super) fn failed(&mut self, why: &str) {
        let Some(other) = self.driver() else { return };
        self.state = State::Over;
        self.compared = None;
        self.changed("failed", format!("{other} does not work: {why}"), 0.0);
    }

    /// The last change that was not reported yet.
    pub(super) fn take_change(&mut self) -> Option<StackChange> {
        self.change.take()
    }

    /// The last change in words.
    pub(super) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The result for later runs.
    pub(super) fn compared(&self) -> Option<&Compared> {
        self.compared.as_ref()
    }

    fn compare(&mut self, better: &str, other_rate: f64) {
        self.compared = Some(Compared { stack: better.to_owned(), tcp_rate: self.tcp_rate, other_rate });
    }

    fn changed(&mut self, reason: &'static str, why: String, rate: f64) {
        let stack = self.driver().unwrap_or("tcp");
        self.why = Some(format!("over {stack}: {why}"));
        self.change = Some(StackChange { stack, reason, why, rate });
    }
}

fn has_queue(chunk: &Chunk) -> bool {
    let Some((rtt, least)) = chunk.rtt.zip(chunk.min_rtt) else { return true };
    rtt > QUEUE * least + QUEUE_TIME.as_secs_f64()
}

/// One of the ends limits the rate, or the user does.
fn is_limited(chunk: &Chunk) -> bool {
    let pressure = &chunk.pressure;
    [pressure.disk, pressure.peer, pressure.window, pressure.limit]
        .into_iter()
        .flatten()
        .any(|part| part >= LIMITED)
        || pressure.cpu.is_some_and(|busy| busy >= 0.85)
}

fn in_megabits(rate: f64) -> String {
    format!("{:.0} Mbit/s", 8e-6 * rate)
}

#[cfg(test)]
mod tests {
    use ropewalk_tuning::tuner::Pressure;

    use super::*;

    fn offered() -> StackChoice {
        let mut choice = StackChoice::default();
        choice.offer("udt");
        choice
    }

    fn lossy() -> Chunk {
        Chunk { rtt: Some(0.061), min_rtt: Some(0.06), loss: Some(0.01), ..Chunk::new(8, 10_000_000, 4.0) }
    }

    /// The driver after so many measurements of this kind.
    fn after(count: u32, chunk: &Chunk, change: fn(&mut Measured<'_>)) -> StackChoice {
        let mut choice = offered();
        for _ in 0..count {
            let mut measured =
                Measured { chunk, reason: Reason::Growing { elasticity: 0.9 }, bbr: false, left: None };
            change(&mut measured);
            choice.over_tcp(measured);
        }
        choice
    }

    fn trying() -> StackChoice {
        let choice = after(2, &lossy(), |_| {});
        assert_eq!(choice.driver(), Some("udt"));
        choice
    }

    #[test]
    fn path_with_loss_and_no_queue_tries_the_other_driver() {
        assert_eq!(after(1, &lossy(), |_| {}).driver(), None);
        let mut choice = trying();
        let change = choice.take_change();
        assert_eq!(change.as_ref().map(|change| (change.stack, change.reason)), Some(("udt", "lossy")));
        assert_eq!(choice.take_change(), None);
        let mut nowhere = StackChoice::default();
        let chunk = lossy();
        for _ in 0..5 {
            nowhere.over_tcp(Measured {
                chunk: &chunk,
                reason: Reason::Growing { elasticity: 0.9 },
                bbr: false,
                left: None,
            });
        }
        assert_eq!(nowhere.driver(), None);
    }

    #[test]
    fn path_with_little_loss_waits_for_the_most_streams() {
        let chunk = Chunk { loss: Some(0.001), ..lossy() };
        assert_eq!(after(20, &chunk, |_| {}).driver(), None);
        let capped = |measured: &mut Measured<'_>| measured.reason = Reason::Capped { cap: 128 };
        assert_eq!(after(2, &chunk, capped).driver(), Some("udt"));
    }

    #[test]
    fn path_that_more_streams_do_not_fill_better_stays_with_tcp() {
        // Loss at a queue of a few packets shows in no round trip.
        let full = |measured: &mut Measured<'_>| measured.reason = Reason::Growing { elasticity: 0.2 };
        assert_eq!(after(20, &lossy(), full).driver(), None);
        assert_eq!(after(20, &lossy(), |measured| measured.reason = Reason::Holding).driver(), None);
    }

    #[test]
    fn path_with_a_queue_stays_with_tcp() {
        for chunk in [
            Chunk { rtt: Some(0.09), ..lossy() },
            Chunk { rtt: None, ..lossy() },
            Chunk { loss: Some(1e-5), ..lossy() },
            Chunk { loss: None, ..lossy() },
        ] {
            assert_eq!(
                after(20, &chunk, |measured| measured.reason = Reason::Growing { elasticity: 1.0 }).driver(),
                None,
                "{chunk:?}"
            );
        }
    }

    #[test]
    fn path_that_an_end_or_a_limit_holds_back_stays_with_tcp() {
        let of = |pressure| Chunk { pressure, ..lossy() };
        for chunk in [
            of(Pressure { disk: Some(0.9), ..Pressure::default() }),
            of(Pressure { limit: Some(0.97), ..Pressure::default() }),
            of(Pressure { cpu: Some(0.99), ..Pressure::default() }),
        ] {
            assert_eq!(
                after(20, &chunk, |measured| measured.reason = Reason::Growing { elasticity: 1.0 }).driver(),
                None,
                "{chunk:?}"
            );
        }
    }

    #[test]
    fn path_with_bbr_at_the_sender_stays_with_tcp() {
        assert_eq!(after(20, &lossy(), |measured| measured.bbr = true).driver(), None);
    }

    #[test]
    fn little_data_is_not_worth_a_trial() {
        assert_eq!(after(20, &lossy(), |measured| measured.left = Some(40_000_000)).driver(), None);
        assert_eq!(after(20, &lossy(), |measured| measured.left = Some(60_000_000)).driver(), Some("udt"));
    }

    #[test]
    fn faster_driver_is_kept_until_it_is_slow_twice() {
        let mut choice = trying();
        choice.over_other(10e6);
        assert_eq!(choice.take_change().map(|change| change.reason), Some("better"));
        assert_eq!(choice.compared().map(|compared| compared.stack.as_str()), Some("udt"));
        for rate in [1e6, 10e6, 1e6] {
            choice.over_other(rate);
            assert_eq!(choice.driver(), Some("udt"));
        }
        choice.over_other(0.0);
        assert_eq!(
            (choice.driver(), choice.take_change().map(|change| change.reason)),
            (None, Some("worse"))
        );
        assert_eq!(choice.compared().map(|compared| compared.stack.as_str()), Some("tcp"));
    }

    #[test]
    fn driver_that_is_not_clearly_faster_is_left_for_good() {
        let mut choice = trying();
        choice.over_other(2.6e6);
        assert_eq!(
            (choice.driver(), choice.take_change().map(|change| change.reason)),
            (None, Some("not-better"))
        );
        let chunk = lossy();
        for _ in 0..20 {
            choice.over_tcp(Measured {
                chunk: &chunk,
                reason: Reason::Growing { elasticity: 0.9 },
                bbr: false,
                left: None,
            });
        }
        assert_eq!(choice.driver(), None);
    }

    #[test]
    fn driver_that_cannot_connect_is_left_once_and_not_remembered() {
        let mut choice = trying();
        choice.failed("no connection within 5 s");
        assert_eq!((choice.driver(), choice.compared()), (None, None));
        assert_eq!(choice.take_change().map(|change| change.reason), Some("failed"));
        choice.failed("again");
        assert_eq!(choice.take_change(), None);
        let chunk = lossy();
        choice.over_tcp(Measured {
            chunk: &chunk,
            reason: Reason::Growing { elasticity: 0.9 },
            bbr: false,
            left: None,
        });
        choice.over_tcp(Measured {
            chunk: &chunk,
            reason: Reason::Growing { elasticity: 0.9 },
            bbr: false,
            left: None,
        });
        assert_eq!(choice.driver(), None);
    }

    #[test]
    fn earlier_comparison_is_followed_if_the_driver_is_there() {
        let compared = |stack: &str| Compared { stack: stack.into(), tcp_rate: 1e6, other_rate: 9e6 };
        let with = |stack| {
            let mut choice = StackChoice::default();
            choice.remember(Some(compared(stack)));
            assert_eq!(choice.driver(), None);
            choice.offer("udt");
            choice
        };
        let mut choice = with("udt");
        assert_eq!(choice.driver(), Some("udt"));
        assert_eq!(choice.take_change().map(|change| change.reason), Some("remembered"));
        choice.over_other(0.5e6);
        choice.over_other(0.5e6);
        assert_eq!(choice.driver(), None);
        for other in ["tcp", "quic"] {
            assert_eq!(with(other).driver(), None);
        }
    }
}
