//! Which way past the cache is the better one on a disk: both are tried, in turns, while files are written.
//!
//! How fast either is depends on the disk and on how fast the processors copy, and no property of the machine tells it: on one,
//! direct writes take a third more time, on another a third less. A file that is worth writing past the cache is large enough
//! to find out: a few hundred MiB of it are written in turns, after which all files on that file system go the better way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Bytes of a turn that count, and those before them that do not: writes of the turn before are still under way then.
const TURN: u64 = 96 << 20;
const SETTLING: u64 = 16 << 20;
/// Each way has two, so that a disk that drifts does not decide.
const TURNS: usize = 4;
/// A turn that has shown so much is broken off where it is slower than the other way by this factor.
const ENOUGH: u64 = 32 << 20;
const SLOWER: f64 = 1.6;
/// After a pause a turn begins anew: nothing was there to be written.
const PAUSE: Duration = Duration::from_millis(250);
/// What was found holds for so long.
const LASTS: Duration = Duration::from_secs(600);
/// Direct writes are chosen if they are faster by this factor; or if they are about as fast, take at most this part of the
/// processor's time, and uncached ones take so much of it (processors) that it matters. Turns of this length of equal ways
/// differ by up to a sixth.
const FASTER: f64 = 1.1;
const AS_FAST: f64 = 0.85;
const CHEAPER: f64 = 0.5;
const BUSY: f64 = 0.25;

/// A way past the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Uncached,
    Direct,
}

/// What one way did in its turns.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: u64,
    wall: Duration,
    cpu: Duration,
}

impl Sum {
    /// Bytes a second.
    fn rate(self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64().max(1e-6)
    }

    /// Processors that are busy with writing.
    fn busy(self) -> f64 {
        self.cpu.as_secs_f64() / self.wall.as_secs_f64().max(1e-6)
    }

    fn cost(self) -> f64 {
        self.cpu.as_secs_f64() / self.bytes.max(1) as f64
    }

    fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.wall += other.wall;
        self.cpu += other.cpu;
    }
}

/// The turn that is under way.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Written in it, those that do not count included.
    bytes: u64,
    /// From where on it counts.
    counts: Option<Instant>,
    sum: Sum,
    last: Instant,
}

impl Turn {
    fn new(now: Instant) -> Self {
        Self { bytes: 0, counts: None, sum: Sum::default(), last: now }
    }
}

#[derive(Debug, Default)]
struct State {
    number: usize,
    turn: Option<Turn>,
    /// Bytes that could not be written directly when they were to be.
    missed: u64,
    sums: [Sum; 2],
    chosen: Option<Instant>,
}

/// The trial on one file system.
#[derive(Debug, Default)]
pub(super) struct Trial {
    directly: AtomicBool,
    /// Nothing is measured any more.
    over: AtomicBool,
    state: Mutex<State>,
}

impl Trial {
    /// The one on the file system with this device number.
    pub(super) fn of(device: u64) -> Arc<Self> {
        static ALL: LazyLock<Mutex<HashMap<u64, Arc<Trial>>>> = LazyLock::new(Mutex::default);
        Arc::clone(ALL.lock().entry(device).or_default())
    }

    /// How to write now.
    pub(super) fn way(&self) -> Way {
        if self.directly.load(Ordering::Relaxed) { Way::Direct } else { Way::Uncached }
    }

    /// Whether writes are to be told.
    pub(super) fn is_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// A file is to be written, at this time; `true` where it may be done directly. What was found long ago is tried again.
    pub(super) fn begin(&self, now: Instant) -> bool {
        let mut state = self.state();
        if state.chosen.is_some_and(|at| now.saturating_duration_since(at) > LASTS) {
            *state = State::default();
            self.directly.store(false, Ordering::Relaxed);
            self.over.store(false, Ordering::Relaxed);
        }
        state.chosen.is_none() || self.way() == Way::Direct
    }

    /// So many bytes were written in this way, from `began` to `now`, for which a thread took so much of a processor.
    pub(super) fn wrote(&self, way: Way, bytes: u64, cpu: Duration, began: Instant, now: Instant) {
        let mut state = self.state();
        if state.chosen.is_some() {
            return;
        }
        if way != self.way() {
            // Some are still under way when a turn ends. More than that are pieces too small, or a disk that does not do it.
            state.missed += if way == Way::Uncached { bytes } else { 0 };
            if state.missed > SETTLING + ENOUGH {
                self.choose(&mut state, Way::Uncached, now);
            }
            return;
        }
        let before = state.turn.filter(|turn| began.saturating_duration_since(turn.last) < PAUSE);
        let mut turn = before.unwrap_or_else(|| Turn::new(now));
        turn.last = now;
        turn.bytes += bytes;
        match turn.counts {
            None if turn.bytes >= SETTLING => turn.counts = Some(now),
            None => {}
            Some(from) => {
                turn.sum.bytes += bytes;
                turn.sum.cpu += cpu;
                turn.sum.wall = now.saturating_duration_since(from);
            }
        }
        state.turn = Some(turn);
        let other = state.sums[1 - way as usize];
        let hopeless = other.bytes > 0 && turn.sum.bytes >= ENOUGH && SLOWER * turn.sum.rate() < other.rate();
        if hopeless || turn.sum.bytes >= TURN {
            state.sums[way as usize].add(turn.sum);
            state.number += 1;
            state.turn = None;
            state.missed = 0;
            if hopeless || state.number >= TURNS {
                let [uncached, direct] = [Way::Uncached, Way::Direct].map(|way| state.sums[way as usize]);
                self.choose(&mut state, better(uncached, direct), now);
            } else {
                self.directly.store(way == Way::Uncached, Ordering::Relaxed);
            }
        }
    }

    fn choose(&self, state: &mut State, way: Way, now: Instant) {
        state.chosen = Some(now);
        self.directly.store(way == Way::Direct, Ordering::Relaxed);
        self.over.store(true, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn better(uncached: Sum, direct: Sum) -> Way {
    let gain = direct.rate() / uncached.rate();
    let saves = uncached.busy() > BUSY && direct.cost() < CHEAPER * uncached.cost();
    if gain > FASTER || gain > AS_FAST && saves { Way::Direct } else { Way::Uncached }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A disk and processors: MiB/s and CPU seconds a GiB of either way, uncached first.
    struct Machine {
        trial: Trial,
        now: Instant,
        rates: [f64; 2],
        costs: [f64; 2],
    }

    impl Machine {
        fn new(rates: [f64; 2], costs: [f64; 2]) -> Self {
            Self { trial: Trial::default(), now: Instant::now(), rates, costs }
        }

        /// Writes so many MiB; how many of them directly.
        fn write(&mut self, mib: u64) -> u64 {
            let mut directly = 0;
            for _ in 0..mib {
                let way = self.trial.way();
                let began = self.now;
                self.now += Duration::from_secs_f64(1.0 / self.rates[way as usize]);
                let cpu = Duration::from_secs_f64(self.costs[way as usize] / 1024.0);
                self.trial.wrote(way, MIB, cpu, began, self.now);
                directly += u64::from(way == Way::Direct);
            }
            directly
        }
    }

    #[test]
    fn the_faster_way_is_found() {
        let mut machine = Machine::new([900.0, 1200.0], [1.5, 0.2]);
        machine.write(512);
        assert!(!machine.trial.is_on());
        assert_eq!(machine.write(100), 100);
        let mut machine = Machine::new([2400.0, 1640.0], [0.4, 0.1]);
        machine.write(512);
        assert!(!machine.trial.is_on());
        assert_eq!(machine.write(100), 0);
    }

    #[test]
    fn a_much_slower_way_is_left_soon() {
        let mut machine = Machine::new([2000.0, 150.0], [0.4, 0.1]);
        assert_eq!(machine.write(4096), (SETTLING + ENOUGH) / MIB);
        let mut machine = Machine::new([250.0, 1100.0], [4.0, 0.1]);
        let uncached = 2048 - machine.write(2048);
        assert!(uncached <= (2 * SETTLING + TURN + ENOUGH) / MIB, "{uncached}");
    }

    #[test]
    fn where_both_are_as_fast_the_processor_decides_if_it_is_busy() {
        let mut machine = Machine::new([1000.0, 970.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Direct);
        let mut machine = Machine::new([1000.0, 880.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Direct);
        let mut machine = Machine::new([1000.0, 830.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Uncached);
        // The network is the limit: nobody needs the processor.
        let mut machine = Machine::new([100.0, 99.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Uncached);
    }

    #[test]
    fn a_pause_between_files_does_not_count() {
        let mut machine = Machine::new([900.0, 1200.0], [1.5, 0.2]);
        for _ in 0..10 {
            machine.write(150);
            machine.now += Duration::from_secs(5);
        }
        assert!(!machine.trial.is_on());
        assert_eq!(machine.trial.way(), Way::Direct);
    }

    #[test]
    fn a_disk_on_which_a_write_takes_long_is_tried_all_the_same() {
        let mut machine = Machine::new([2.0, 3.0], [0.4, 0.1]);
        machine.write(512);
        assert!(!machine.trial.is_on());
        assert_eq!(machine.trial.way(), Way::Direct);
    }

    #[test]
    fn what_cannot_be_written_directly_ends_the_trial() {
        let mut machine = Machine::new([900.0, 1200.0], [1.5, 0.2]);
        machine.write((SETTLING + TURN) / MIB);
        assert_eq!(machine.trial.way(), Way::Direct);
        for _ in 0..=(SETTLING + ENOUGH) / MIB {
            assert!(machine.trial.is_on());
            machine.trial.wrote(Way::Uncached, MIB, Duration::ZERO, machine.now, machine.now);
        }
        assert!(!machine.trial.is_on());
        assert_eq!(machine.trial.way(), Way::Uncached);
    }

    #[test]
    fn what_was_found_is_tried_again_after_some_time() {
        let mut machine = Machine::new([2400.0, 800.0], [0.4, 0.1]);
        machine.write(512);
        assert!(!machine.trial.begin(machine.now + LASTS / 2));
        assert!(machine.trial.begin(machine.now + 2 * LASTS) && machine.trial.is_on());
        machine.rates = [400.0, 800.0];
        machine.write(512);
        assert!(machine.trial.begin(machine.now) && !machine.trial.is_on());
        assert_eq!(machine.trial.way(), Way::Direct);
    }
}
