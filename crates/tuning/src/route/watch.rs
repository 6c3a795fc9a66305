//! Watches the path that a copy uses, and decides when the rest of the copy takes another one.
//!
//! The watch gets the bytes that have arrived, with the time, and failures. If the rate stays low
//! for some seconds it reports a [`Doubt`]: its caller estimates the hops again, and the watch
//! decides with these estimates and with the rates that it has measured. If a path does not reach
//! the estimate of the model, the estimates of the model for the others are lowered by as much:
//! the disk or the unknown link that limits it may limit all of them. A path that was left is
//! taken to be as it was for some minutes, longer each time; and doubts that change nothing become
//! rarer. So neither noise nor wrong estimates make a copy alternate between paths.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Choice, Estimate, Graph, Known, Reason};

/// The rate of the moment is that of the last seconds.
const WINDOW: Duration = Duration::from_secs(4);
/// The usual rate of a path is the best one over this time, which noise hardly changes.
const LONG: Duration = Duration::from_secs(20);
/// The rate has to be low for so long.
const LOW: Duration = Duration::from_secs(4);
/// The first seconds of a path do not count: connections start slowly.
const START: Duration = Duration::from_secs(4);
/// A rate below this part of the usual one, or of the low end of the estimate, is low.
const FALLEN: f64 = 0.5;
/// A copy that ends within this time stays on its path.
const SOON: Duration = Duration::from_secs(10);
/// After a look that changed nothing there is no doubt for this time, which doubles up to a limit.
const HOLD: (Duration, Duration) = (Duration::from_secs(15), Duration::from_mins(5));
/// The time between two looks because of failures.
const FAILURE_HOLD: Duration = Duration::from_secs(2);
/// A path fails if this many failures follow each other without a byte that arrives.
const FAILURES: u32 = 2;
/// The rate of a path that was left is believed for this time, which doubles each time.
const MEMORY: Duration = Duration::from_mins(2);
/// The time doubles at most so many times.
const DOUBLINGS: u32 = 5;

/// Why the hops are to be estimated again. Rates are bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Doubt {
    /// The rate has fallen to less than half of the usual one on this path.
    Fell { rate: f64, usual: f64 },
    /// The rate is less than half of the low end of the estimate.
    BelowEstimate { rate: f64, low: f64 },
    /// Another path is estimated to be clearly wider than the rate of the last 20 seconds.
    BelowOther { rate: f64 },
    /// Transfers fail.
    Failed,
}

/// See the description of the module. Times are those since any fixed moment.
#[derive(Clone, Debug)]
pub struct RouteWatch {
    relays: usize,
    graph: Graph,
    in_use: Vec<usize>,
    /// The estimate of the path in use, until a look has confirmed its rate.
    expected: Option<Estimate>,
    /// The arrival of the first byte on this path.
    began: Option<Duration>,
    /// Times and bytes, the oldest first.
    arrived: VecDeque<(Duration, u64)>,
    usual: f64,
    /// The part of the estimates of the model that transfers reach.
    reached: f64,
    /// The rate of the last doubt.
    doubted: Option<f64>,
    low_since: Option<Duration>,
    quiet_until: Duration,
    hold: Duration,
    failures: u32,
    failures_quiet_until: Duration,
    left: Vec<Left>,
}

/// A path that was used before.
#[derive(Clone, Debug)]
struct Left {
    nodes: Vec<usize>,
    rate: Option<Estimate>,
    until: Duration,
    times: u32,
}

impl RouteWatch {
    /// `in_use` is a path in the graph, with at most `relays` relays.
    pub fn new(graph: Graph, in_use: &[usize], relays: usize) -> Self {
        let expected = graph.route(in_use).map(|route| route.estimate).filter(is_reliable);
        Self {
            relays,
            graph,
            in_use: in_use.to_vec(),
            expected,
            began: None,
            arrived: VecDeque::new(),
            usual: 0.0,
            reached: 1.0,
            doubted: None,
            low_since: None,
            quiet_until: Duration::ZERO,
            hold: HOLD.0,
            failures: 0,
            failures_quiet_until: Duration::ZERO,
            left: Vec::new(),
        }
    }

    pub fn in_use(&self) -> &[usize] {
        &self.in_use
    }

    /// `bytes` have arrived so far, and `left` are missing, if that is known. Call it about twice a
    /// second.
    pub fn progress(&mut self, now: Duration, bytes: u64, left: Option<u64>) -> Option<Doubt> {
        let last = self.arrived.back().map(|(_, bytes)| *bytes);
        match last {
            // A file was begun again.
            Some(last) if bytes < last => self.pause(),
            Some(last) if bytes > last => {
                self.failures = 0;
                self.began.get_or_insert(now);
            }
            _ => {}
        }
        self.arrived.push_back((now, bytes));
        while self.arrived.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= LONG) {
            self.arrived.pop_front();
        }
        let began = self.began?;
        if now < began + START + WINDOW {
            return None;
        }
        let rate = self.rate(WINDOW)?;
        let soon = left.is_some_and(|left| left as f64 <= rate * SOON.as_secs_f64());
        let doubt = if soon { None } else { self.judge(now, rate) };
        self.usual = match self.rate(LONG) {
            Some(long) => self.usual.max(long),
            None => self.usual.max(rate.min(self.average())),
        };
        self.calibrate();
        let Some((doubt, rate)) = doubt else {
            self.low_since = None;
            return None;
        };
        let since = *self.low_since.get_or_insert(now);
        if now < self.quiet_until || now < since + LOW {
            return None;
        }
        self.quiet_until = now + self.hold;
        self.doubted = Some(rate);
        Some(doubt)
    }

    /// Nothing moves for a reason that is not the path, such as a place in a queue.
    pub fn pause(&mut self) {
        self.arrived.clear();
        self.began = None;
        self.low_since = None;
    }

    /// A transfer or a connection has failed, and the client tries again. `bytes` are those that
    /// have arrived so far.
    pub fn failed(&mut self, now: Duration, bytes: u64) -> Option<Doubt> {
        if self.arrived.back().is_some_and(|(_, last)| bytes > *last) {
            self.failures = 0;
        }
        self.failures += 1;
        self.doubted = None;
        if now < self.failures_quiet_until {
            return None;
        }
        self.failures_quiet_until = now + FAILURE_HOLD;
        Some(Doubt::Failed)
    }

    /// The client has ended its tries on this path.
    pub fn gave_up(&mut self) {
        self.failures = self.failures.max(FAILURES);
    }

    /// Chooses a path by new estimates and by what was measured. Returns it if it is another one
    /// than before; it counts as being in use from now on.
    pub fn decide(&mut self, now: Duration, graph: Graph) -> Option<Choice> {
        self.graph = graph;
        let rate = self.doubted.take().or_else(|| self.rate(LONG));
        let known = self.known(now, rate);
        let graph = self.graph.calibrated(self.reached);
        let choice = graph.choose_knowing(&self.in_use, self.relays, &known);
        let Some(choice) = choice.filter(|choice| choice.route.nodes != self.in_use) else {
            self.stay(now);
            return None;
        };
        self.leave(now, rate.filter(|_| choice.reason != Reason::OnlyUsable));
        self.in_use.clone_from(&choice.route.nodes);
        self.expected = Some(choice.route.estimate).filter(is_reliable);
        self.pause();
        self.usual = 0.0;
        self.hold = HOLD.0;
        self.quiet_until = now + HOLD.0;
        self.failures = 0;
        self.failures_quiet_until = now + FAILURE_HOLD;
        Some(choice)
    }

    /// Learns from the path in use what the estimates of the model are worth.
    fn calibrate(&mut self) {
        let route = self.graph.route(&self.in_use);
        if let Some(estimate) = route.map(|route| route.estimate).filter(|rate| rate.is_modelled()) {
            self.reached = (self.usual / estimate.likely()).min(1.0);
        }
    }

    /// The path is as good as it is now: what it gave before does not count.
    fn stay(&mut self, now: Duration) {
        self.usual = self.rate(WINDOW).unwrap_or_default();
        self.arrived = self.arrived.back().copied().into_iter().collect();
        self.expected = None;
        self.low_since = None;
        self.quiet_until = now + self.hold;
        if self.failures >= FAILURES {
            self.failures_quiet_until = now + self.hold;
        }
        self.hold = (self.hold * 2).min(HOLD.1);
    }

    /// The rate of the last seconds; `None` if less time is known.
    fn rate(&self, window: Duration) -> Option<f64> {
        let (end, after) = self.arrived.back()?;
        let begin = self.arrived.iter().rev().find(|(at, _)| end.saturating_sub(*at) >= window);
        begin.map(|(at, before)| after.saturating_sub(*before) as f64 / end.saturating_sub(*at).as_secs_f64())
    }

    /// The rate of all the time that is known.
    fn average(&self) -> f64 {
        let (Some((begin, before)), Some((end, after))) = (self.arrived.front(), self.arrived.back()) else {
            return 0.0;
        };
        let seconds = end.saturating_sub(*begin).as_secs_f64();
        if seconds > 0.0 { after.saturating_sub(*before) as f64 / seconds } else { 0.0 }
    }

    /// The reason to doubt the path, and its rate. `rate` is that of the moment.
    fn judge(&self, now: Duration, rate: f64) -> Option<(Doubt, f64)> {
        if rate < FALLEN * self.usual {
            return Some((Doubt::Fell { rate, usual: self.usual }, rate));
        }
        if let Some(low) = self.expected.map(Estimate::low).filter(|low| rate < FALLEN * low) {
            return Some((Doubt::BelowEstimate { rate, low }, rate));
        }
        let rate = self.rate(LONG)?;
        let known = self.known(now, Some(rate));
        let graph = self.graph.calibrated(self.reached);
        let choice = graph.choose_knowing(&self.in_use, self.relays, &known)?;
        (choice.reason == Reason::ClearlyWider).then_some((Doubt::BelowOther { rate }, rate))
    }

    /// The paths whose rate is known at this time. `rate` is that of the path in use.
    fn known(&self, now: Duration, rate: Option<f64>) -> Vec<Known> {
        let believed = self.left.iter().filter(|left| now < left.until && left.nodes != self.in_use);
        let mut known: Vec<Known> = believed.map(|left| (left.nodes.clone(), left.rate)).collect();
        if self.failures >= FAILURES {
            known.push((self.in_use.clone(), None));
        } else if rate.is_some() {
            known.push((self.in_use.clone(), rate.map(measured)));
        }
        known
    }

    /// Remembers the path in use, which is left.
    fn leave(&mut self, now: Duration, rate: Option<f64>) {
        let found = self.left.iter().position(|left| left.nodes == self.in_use);
        let times = found.map_or(0, |at| self.left.swap_remove(at).times) + 1;
        let until = now + MEMORY * 2u32.pow((times - 1).min(DOUBLINGS));
        let rate = rate.map(measured);
        self.left.push(Left { nodes: self.in_use.clone(), rate, until, times });
    }
}

/// Whether a rate below the range shows that something is wrong with the path.
fn is_reliable(estimate: &Estimate) -> bool {
    estimate.is_known() && !estimate.is_modelled()
}

fn measured(rate: f64) -> Estimate {
    Estimate::of_past_transfer(rate, 0.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DIRECT: [usize; 2] = [0, 3];
    const B: [usize; 3] = [0, 1, 3];
    const C: [usize; 3] = [0, 2, 3];
    const STEP: Duration = Duration::from_millis(500);
    const MIB: f64 = 1_048_576.0;

    /// A copy in virtual time: the direct path, and one relay each at B and C.
    struct Simulation<'r> {
        watch: RouteWatch,
        now: Duration,
        bytes: f64,
        left: Option<f64>,
        /// The rate of a path at a time in seconds; `None`: it fails.
        rate: &'r dyn Fn(&[usize], f64) -> Option<f64>,
        /// The estimates of the three paths.
        graph: Graph,
        looks: usize,
        switches: Vec<(f64, Vec<usize>)>,
    }

    /// Estimates of the direct path, of the path by B and of that by C.
    fn graph(direct: f64, b: f64, c: f64) -> Graph {
        let mut graph = Graph::new(4);
        for (from, to, rate) in [(0, 3, direct), (0, 1, b), (1, 3, b), (0, 2, c), (2, 3, c)] {
            graph.set(from, to, Estimate::of_past_transfer(rate * MIB, 0.0));
        }
        graph
    }

    impl<'r> Simulation<'r> {
        fn new(graph: Graph, rate: &'r dyn Fn(&[usize], f64) -> Option<f64>) -> Self {
            let in_use = graph.choose(&DIRECT, 8).unwrap().route.nodes;
            let watch = RouteWatch::new(graph.clone(), &in_use, 8);
            Self {
                watch,
                now: Duration::ZERO,
                bytes: 0.0,
                left: None,
                rate,
                graph,
                looks: 0,
                switches: Vec::new(),
            }
        }

        fn run(&mut self, seconds: u64) {
            let end = self.now + Duration::from_secs(seconds);
            while self.now < end {
                self.now += STEP;
                let doubt = match (self.rate)(self.watch.in_use(), self.now.as_secs_f64()) {
                    None => self.watch.failed(self.now, self.bytes as u64),
                    Some(rate) => {
                        self.bytes += rate * MIB * STEP.as_secs_f64();
                        let left = self.left.map(|all| (all - self.bytes).max(0.0) as u64);
                        self.watch.progress(self.now, self.bytes as u64, left)
                    }
                };
                if doubt.is_none() {
                    continue;
                }
                self.looks += 1;
                if let Some(choice) = self.watch.decide(self.now, self.graph.clone()) {
                    assert_eq!(choice.route.nodes, self.watch.in_use());
                    self.switches.push((self.now.as_secs_f64(), choice.route.nodes));
                }
            }
        }

        fn paths(&self) -> Vec<&[usize]> {
            self.switches.iter().map(|(_, nodes)| nodes.as_slice()).collect()
        }
    }

    #[test]
    fn relay_that_gets_slow_in_the_middle_is_left_once() {
        let rate = |nodes: &[usize], at: f64| {
            Some(match nodes {
                [0, 1, 3] if at < 30.0 => 50.0,
                [0, 1, 3] => 2.0,
                [0, 2, 3] => 40.0,
                _ => 5.0,
            })
        };
        let mut copy = Simulation::new(graph(5.0, 50.0, 40.0), &rate);
        assert_eq!(copy.watch.in_use(), B);
        copy.run(130);
        assert_eq!(copy.paths(), [C], "{:?}", copy.switches);
        let at = copy.switches[0].0;
        assert!((34.0..45.0).contains(&at), "{at}");
    }

    #[test]
    fn path_that_does_not_recover_is_tried_again_ever_more_rarely() {
        let rate = |nodes: &[usize], at: f64| {
            Some(match nodes {
                [0, 1, 3] if at < 30.0 => 50.0,
                [0, 1, 3] => 2.0,
                _ => 20.0,
            })
        };
        let mut copy = Simulation::new(graph(5.0, 50.0, 20.0), &rate);
        copy.run(3600);
        let tries: Vec<f64> = copy.switches.iter().filter(|(_, to)| to == &B).map(|(at, _)| *at).collect();
        let pauses: Vec<f64> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.windows(2).all(|pair| pair[1] > 1.5 * pair[0]), "{tries:?}");
        // Less than a tenth of the time is lost on it.
        assert!(copy.bytes > 0.9 * 20.0 * MIB * 3600.0, "{}", copy.bytes / MIB);
        // A path that has recovered is taken again, and kept.
        let recovered = |nodes: &[usize], at: f64| {
            Some(match nodes {
                [0, 1, 3] if (30.0..100.0).contains(&at) => 2.0,
                [0, 1, 3] => 50.0,
                _ => 20.0,
            })
        };
        let mut copy = Simulation::new(graph(5.0, 50.0, 20.0), &recovered);
        copy.run(1000);
        assert_eq!(copy.paths(), [&C[..], &B[..]], "{:?}", copy.switches);
    }

    #[test]
    fn noise_leaves_the_path_in_use() {
        // Between 30 and 170 % of the mean, each half second.
        let noise = |at: f64| 0.3 + 1.4 * ((at * 12.9898).sin() * 43_758.545_3).fract().abs();
        let rate = move |nodes: &[usize], at: f64| {
            Some(noise(at + nodes.len() as f64) * if nodes == B { 50.0 } else { 45.0 })
        };
        let mut copy = Simulation::new(graph(10.0, 50.0, 45.0), &rate);
        copy.run(3600);
        assert!(copy.switches.is_empty(), "{:?}", copy.switches);
        // A gap of three seconds each minute is none of a path.
        let gaps = |_: &[usize], at: f64| Some(if at % 60.0 < 3.0 { 0.0 } else { 50.0 });
        let mut copy = Simulation::new(graph(10.0, 50.0, 45.0), &gaps);
        copy.run(3600);
        assert!(copy.switches.is_empty(), "{:?}", copy.switches);
    }

    #[test]
    fn paths_that_change_all_the_time_do_not_make_the_copy_alternate() {
        // Each path is fast and slow for 20 seconds in turn, at different times.
        let rate = |nodes: &[usize], at: f64| {
            let phase = if nodes == B { 0.0 } else { 20.0 };
            Some(if (at + phase) % 40.0 < 20.0 { 50.0 } else { 5.0 })
        };
        let mut copy = Simulation::new(graph(1.0, 50.0, 50.0), &rate);
        copy.run(3600);
        assert!(copy.switches.len() <= 20, "{:?}", copy.switches);
        let gaps = copy.switches.windows(2).map(|pair| pair[1].0 - pair[0].0);
        assert!(gaps.fold(f64::INFINITY, f64::min) >= HOLD.0.as_secs_f64(), "{:?}", copy.switches);
    }

    #[test]
    fn slow_end_is_not_blamed_on_the_path_again_and_again() {
        // All paths give a tenth from the 30th second on.
        let rate = |nodes: &[usize], at: f64| {
            let full = if nodes == B { 50.0 } else { 40.0 };
            Some(if at < 30.0 { full } else { full / 10.0 })
        };
        let mut copy = Simulation::new(graph(38.0, 50.0, 40.0), &rate);
        copy.run(120);
        // Each path is tried once.
        assert!(copy.switches.len() <= 3, "{:?}", copy.switches);
        copy.run(3480);
        assert!(copy.switches.len() <= 20 && copy.looks <= 60, "{} {:?}", copy.looks, copy.switches);
    }

    #[test]
    fn estimate_that_is_not_reached_leads_to_the_next_path() {
        let rate = |nodes: &[usize], _: f64| Some(if nodes == B { 3.0 } else { 30.0 });
        let mut copy = Simulation::new(graph(10.0, 50.0, 30.0), &rate);
        copy.run(100);
        assert_eq!(copy.paths(), [C], "{:?}", copy.switches);
    }

    /// Estimates of the model for the direct path and the two others.
    fn modelled(ranges: [(f64, f64); 3]) -> Graph {
        let mut graph = Graph::new(4);
        let hops: [&[(usize, usize)]; 3] = [&[(0, 3)], &[(0, 1), (1, 3)], &[(0, 2), (2, 3)]];
        for (hops, (low, high)) in hops.into_iter().zip(ranges) {
            for (from, to) in hops {
                graph.set(*from, *to, Estimate::new(low * MIB, high * MIB).modelled());
            }
        }
        graph
    }

    #[test]
    fn rate_that_no_path_reaches_leaves_the_path_in_use() {
        // A disk limits the copy, and the model expects the rates of links.
        let disk = |_: &[usize], _: f64| Some(40.0);
        let mut copy = Simulation::new(modelled([(125.0, 1250.0), (120.0, 1250.0), (125.0, 1200.0)]), &disk);
        copy.run(3600);
        assert!(copy.switches.is_empty(), "{:?}", copy.switches);
    }

    #[test]
    fn path_for_which_the_model_expects_much_more_is_taken_all_the_same() {
        // Loss that was not seen: the direct path, which is longer, suffers more.
        let rate = |nodes: &[usize], _: f64| Some(if nodes == DIRECT { 1.0 } else { 12.0 });
        let mut copy = Simulation::new(modelled([(5.0, 50.0), (10.0, 100.0), (2.0, 20.0)]), &rate);
        assert_eq!(copy.watch.in_use(), DIRECT);
        copy.run(600);
        assert_eq!(copy.paths(), [B], "{:?}", copy.switches);
    }

    #[test]
    fn rest_that_is_soon_done_stays() {
        let rate = |_: &[usize], at: f64| Some(if at < 30.0 { 50.0 } else { 5.0 });
        let mut copy = Simulation::new(graph(10.0, 50.0, 45.0), &rate);
        copy.left = Some((30.0 * 50.0 + 40.0) * MIB);
        copy.run(120);
        assert!(copy.switches.is_empty(), "{:?}", copy.switches);
        // The end of the last file: its checksum is compared.
        let done = |_: &[usize], at: f64| Some(if at < 30.0 { 50.0 } else { 0.0 });
        let mut copy = Simulation::new(graph(10.0, 50.0, 45.0), &done);
        copy.left = Some(29.5 * 50.0 * MIB);
        copy.run(600);
        assert!(copy.switches.is_empty(), "{:?}", copy.switches);
    }

    #[test]
    fn path_that_fails_is_replaced_and_failures_everywhere_end_the_search() {
        let rate = |nodes: &[usize], at: f64| (at < 20.0 || nodes != B).then_some(20.0);
        let mut copy = Simulation::new(graph(10.0, 50.0, 20.0), &rate);
        copy.run(60);
        assert_eq!(copy.paths(), [C], "{:?}", copy.switches);
        assert!(copy.switches[0].0 < 25.0, "{:?}", copy.switches);
        let down = |_: &[usize], at: f64| (at < 20.0).then_some(20.0);
        let mut copy = Simulation::new(graph(10.0, 50.0, 20.0), &down);
        copy.run(100);
        assert_eq!(copy.paths(), [&C[..], &DIRECT[..]], "{:?}", copy.switches);
    }

    #[test]
    fn failures_of_a_path_that_works_are_no_reason() {
        let mut watch = RouteWatch::new(graph(10.0, 50.0, 45.0), &B, 8);
        for step in 1..200u32 {
            let now = STEP * step;
            assert_eq!(watch.progress(now, u64::from(step) * 25_000_000, None), None, "{now:?}");
        }
        // Other sessions move data.
        for step in 200..205u32 {
            watch.failed(STEP * step, u64::from(step) * 25_000_000);
            watch.progress(STEP * step, u64::from(step) * 25_000_000, None);
        }
        assert_eq!(watch.failed(STEP * 209, 209 * 25_000_000), Some(Doubt::Failed));
        assert_eq!(watch.decide(STEP * 209, graph(10.0, 50.0, 45.0)), None);
        // The estimates say that the path cannot be used any more.
        let mut gone = Graph::new(4);
        gone.set(0, 3, Estimate::UNKNOWN);
        assert_eq!(watch.failed(STEP * 214, 214 * 25_000_000), Some(Doubt::Failed));
        let choice = watch.decide(STEP * 214, gone).unwrap();
        assert_eq!((choice.route.nodes, choice.reason), (DIRECT.to_vec(), Reason::OnlyUsable));
    }
}
