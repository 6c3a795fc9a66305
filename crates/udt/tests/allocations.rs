//! A connection in steady state takes no memory from the allocator.

#![allow(clippy::unwrap_used, unsafe_code)]

mod network;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use network::agree;
use ropewalk_udt::congestion::Congestion;
use ropewalk_udt::{Batch, Config, Connection};

/// Counts the allocations of each thread while it asks for that.
struct Counting;

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn note() {
    if COUNTS.get() {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    }
}

// SAFETY: all calls are passed on to the system's allocator. The counters have no destructors and
// are not allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer is one of the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the pointer is one of the system's allocator.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The calls of a connection, which are counted; those of the test itself are not.
fn counted<T>(call: impl FnOnce() -> T) -> T {
    COUNTS.set(true);
    let result = call();
    COUNTS.set(false);
    result
}

const DELAY: Duration = Duration::from_millis(10);
/// Bytes per second of the path, and the most that wait before it.
const RATE: f64 = 50e6;
const QUEUE: Duration = Duration::from_millis(20);

/// Two connections and the datagrams between them.
struct Path {
    now: Instant,
    ends: [Connection; 2],
    /// To each end, with the time of arrival.
    moving: [VecDeque<(Instant, Vec<u8>)>; 2],
    idle_at: [Instant; 2],
    batch: Batch,
    loss: f64,
    random: fastrand::Rng,
    data: Vec<u8>,
    buffer: Vec<u8>,
}

impl Path {
    fn new(congestion: Congestion, loss: f64) -> Self {
        let config = Config { congestion, ..Config::default() };
        let now = Instant::now();
        let ([near, far], answer) = agree(&config, now);
        let ends = [
            Connection::connected(near, &config, congestion.controller(&near, 1), now),
            Connection::accepted(far, &config, congestion.controller(&far, 2), answer, now),
        ];
        Self {
            now,
            ends,
            moving: [VecDeque::new(), VecDeque::new()],
            idle_at: [now; 2],
            batch: Batch { bytes: Vec::with_capacity(1 << 17), segment: 0 },
            loss,
            random: fastrand::Rng::with_seed(7),
            data: vec![5; 1 << 17],
            buffer: vec![0; 1 << 17],
        }
    }

    /// Sends until the receiver has so many packets.
    fn pump(&mut self, packets: u64) {
        let until = self.ends[1].stats().received + packets;
        while self.ends[1].stats().received < until {
            self.step();
        }
    }

    fn step(&mut self) {
        let Self { now, ends, moving, idle_at, batch, .. } = self;
        let at = *now;
        counted(|| {
            while ends[0].write(at, &self.data).unwrap() > 0 {}
            while ends[1].read(at, &mut self.buffer).unwrap().is_some() {}
        });
        for from in [0, 1] {
            while counted(|| ends[from].poll_transmit(at, batch)) {
                for datagram in batch.datagrams() {
                    let leaves = idle_at[from].max(at);
                    if self.random.f64() < self.loss || leaves > at + QUEUE {
                        continue;
                    }
                    idle_at[from] = leaves + Duration::from_secs_f64(datagram.len() as f64 / RATE);
                    moving[1 - from].push_back((idle_at[from] + DELAY, datagram.to_vec()));
                }
                batch.clear();
            }
        }
        let timers = ends.iter().filter_map(|end| end.timeout(at));
        let arrivals = moving.iter().filter_map(|queue| queue.front().map(|(at, _)| *at));
        *now = timers.chain(arrivals).min().unwrap().max(at);
        for to in [0, 1] {
            while moving[to].front().is_some_and(|(at, _)| at <= now) {
                let (_, datagram) = moving[to].pop_front().unwrap();
                counted(|| ends[to].handle(*now, &datagram));
            }
        }
    }
}

#[test]
fn connection_in_steady_state_allocates_nothing() {
    for congestion in [Congestion::Bbr, Congestion::Daimd] {
        for loss in [0.0, 0.01] {
            let mut path = Path::new(congestion, loss);
            path.pump(60_000);
            let (before, warm) = (ALLOCATIONS.get(), path.ends[0].stats());
            path.pump(100_000);
            let allocations = ALLOCATIONS.get() - before;
            let stats = path.ends[0].stats();
            assert_eq!(allocations, 0, "{congestion:?}, loss {loss}: {stats:?}");
            // Losses were found and mended meanwhile.
            assert!(loss == 0.0 || stats.retransmitted > warm.retransmitted + 500, "{stats:?}");
            // The start allocates its buffers, so the counter works.
            assert!(before > 100, "{before}");
        }
    }
}
