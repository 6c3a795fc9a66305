//! Finds out which way past the cache is better on a disk. Both ways are tried in turns while files
//! are written.
//!
//! The speed of each way depends on the disk and on how fast the processors copy, and cannot be
//! derived from any property of the machine: on one, direct writes take a third more time, on
//! another a third less. A file that is worth writing past the cache is large enough to find out: a
//! few hundred MiB of it are written in turns. After that, all files on that file system use the
//! better way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Bytes of a turn that count, and bytes before them that do not, because writes of the previous
/// turn are still in progress then.
const TURN: u64 = 96 << 20;
const SETTLING: u64 = 16 << 20;
/// Each way gets two turns, so that a disk whose speed drifts does not decide.
const TURNS: usize = 4;
/// A turn is stopped early after this many bytes if it is slower than the other way by this factor.
const ENOUGH: u64 = 32 << 20;
const SLOWER: f64 = 1.6;
/// After a pause the turn starts again, because there was nothing to write.
const PAUSE: Duration = Duration::from_millis(250);
/// How long a result is used.
const LASTS: Duration = Duration::from_secs(600);
/// Direct writes are chosen if they are faster by `FASTER`. They are also chosen if they are at
/// least `AS_FAST` times as fast, take at most `CHEAPER` times the processor time, and uncached
/// ones keep more than `BUSY` processors busy, so that it matters. Turns of this length differ by
/// up to a sixth even if both ways are equal.
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

/// The measurements of one way.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: u64,
    wall: Duration,
    cpu: Duration,
}

impl Sum {
    /// Bytes per second.
    fn rate(self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64().max(1e-6)
    }

    /// The number of processors that writing keeps busy.
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

/// The current turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Bytes written in it, including those that do not count.
    bytes: u64,
    /// The time from which on it counts.
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
    /// Bytes that could not be written directly although they should have been.
    missed: u64,
    sums: [Sum; 2],
    chosen: Option<Instant>,
}

/// The trial on one file system.
#[derive(Debug, Default)]
pub(super) struct Trial {
    directly: AtomicBool,
    /// Whether the measurements are complete.
    over: AtomicBool,
    state: Mutex<State>,
}

impl Trial {
    /// The trial on the file system with this device number.
    pub(super) fn of(device: u64) -> Arc<Self> {
        static ALL: LazyLock<Mutex<HashMap<u64, Arc<Trial>>>> = LazyLock::new(Mutex::default);
        Arc::clone(ALL.lock().entry(device).or_default())
    }

    /// The way to write now.
    pub(super) fn way(&self) -> Way {
        if self.directly.load(Ordering::Relaxed) { Way::Direct } else { Way::Uncached }
    }

    /// Whether writes must be reported with `wrote`.
    pub(super) fn is_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    /// Announces that a file is written. Returns `true` if direct writes are possible. An old
    /// result is discarded and the trial repeated.
    pub(super) fn begin(&self, now: Instant) -> bool {
        let mut state = self.state();
        if state.chosen.is_some_and(|at| now.saturating_duration_since(at) > LASTS) {
            *state = State::default();
            self.directly.store(false, Ordering::Relaxed);
            self.over.store(false, Ordering::Relaxed);
        }
        state.chosen.is_none() || self.way() == Way::Direct
    }

    /// Reports that `bytes` bytes were written in this way from `began` to `now`, with `cpu` of
    /// processor time.
    pub(super) fn wrote(&self, way: Way, bytes: u64, cpu: Duration, began: Instant, now: Instant) {
        let mut state = self.state();
        if state.chosen.is_some() {
            return;
        }
        if way != self.way() {
            // Some writes are still in progress when a turn ends. More than that means that the
            // writes are too small, or that the disk does not support direct writes.
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

    /// A simulated disk and processors: MiB/s, and CPU seconds per GiB, of either way, uncached
    /// first.
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

        /// Writes `mib` MiB; returns how many of them were direct.
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
    fn trial_chooses_the_faster_way() {
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
    fn trial_stops_a_much_slower_way_early() {
        let mut machine = Machine::new([2000.0, 150.0], [0.4, 0.1]);
        assert_eq!(machine.write(4096), (SETTLING + ENOUGH) / MIB);
        let mut machine = Machine::new([250.0, 1100.0], [4.0, 0.1]);
        let uncached = 2048 - machine.write(2048);
        assert!(uncached <= (2 * SETTLING + TURN + ENOUGH) / MIB, "{uncached}");
    }

    #[test]
    fn trial_of_equal_speed_saves_processor_time_if_busy() {
        let mut machine = Machine::new([1000.0, 970.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Direct);
        let mut machine = Machine::new([1000.0, 880.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Direct);
        let mut machine = Machine::new([1000.0, 830.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Uncached);
        // The network is the limit, and the processor is idle anyway.
        let mut machine = Machine::new([100.0, 99.0], [0.5, 0.1]);
        machine.write(512);
        assert_eq!(machine.trial.way(), Way::Uncached);
    }

    #[test]
    fn trial_ignores_pauses_between_files() {
        let mut machine = Machine::new([900.0, 1200.0], [1.5, 0.2]);
        for _ in 0..10 {
            machine.write(150);
            machine.now += Duration::from_secs(5);
        }
        assert!(!machine.trial.is_on());
        assert_eq!(machine.trial.way(), Way::Direct);
    }

    #[test]
    fn trial_works_on_slow_disks() {
        let mut machine = Machine::new([2.0, 3.0], [0.4, 0.1]);
        machine.write(512);
        assert!(!machine.trial.is_on());
        assert_eq!(machine.trial.way(), Way::Direct);
    }

    #[test]
    fn trial_ends_if_direct_writes_fail() {
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
    fn trial_is_repeated_after_some_time() {
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
