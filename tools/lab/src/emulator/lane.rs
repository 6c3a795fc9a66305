//! One direction with its interfaces. It cuts the super-packets that it reads into segments for the
//! link, and joins the segments again before it writes them. The emulator's thread owns both lanes;
//! they share read buffers. Data that is not a valid packet, and packets that the far kernel does
//! not accept, are counted and dropped.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::time::Duration;

use super::histogram::Histogram;
use super::link::{Link, Nanos};
use super::packet::{Packet, SCRATCH};
use super::stats::{Counters, Step};
use super::tun::Tun;

/// Room for a virtio header and the largest IP packet, rounded up.
const BUFFER: usize = 66 * 1024;
/// Packets longer than this keep the buffer that they were read into; shorter ones are copied to an
/// allocation of their size.
const KEEP: usize = 24 * 1024;
/// Number of buffers kept for reuse.
const SPARE: usize = 32;

/// One segment of a packet.
struct Segment {
    packet: Rc<Packet>,
    index: u32,
}

/// Consecutive segments of one packet that are written together.
struct Run {
    packet: Rc<Packet>,
    first: usize,
    count: usize,
    marked: bool,
}

/// The system calls of both directions, and how late the packets were written.
#[derive(Default)]
pub(super) struct Work {
    pub(super) reads: u64,
    pub(super) writes: u64,
    pub(super) lateness: Histogram,
    spare: Vec<Vec<u8>>,
}

/// The result of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    Empty,
    /// There may be more packets.
    Partly,
    /// The interface no longer exists.
    Gone,
}

pub(super) struct Lane {
    link: Link<Segment>,
    malformed: u64,
    refused: u64,
    /// The counters at the last step of the time series.
    before: Counters,
}

impl Lane {
    pub(super) fn new(link: super::config::Direction, seed: u64) -> Self {
        Self { link: Link::new(link, seed), malformed: 0, refused: 0, before: Counters::default() }
    }

    pub(super) fn set(&mut self, now: Nanos, config: super::config::Direction) {
        self.link.set(now, config);
    }

    pub(super) fn next_deadline(&self, hold: Nanos) -> Option<Nanos> {
        self.link.next_deadline(hold)
    }

    /// Reads at most `budget` packets and offers them to the link; `clock` returns the arrival time
    /// of each.
    pub(super) fn fill(
        &mut self,
        tun: &Tun,
        budget: usize,
        work: &mut Work,
        mut clock: impl FnMut() -> Nanos,
    ) -> Drained {
        for _ in 0..budget {
            let mut buffer = work.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.reserve(BUFFER);
            match tun.read(&mut buffer) {
                Ok(_) => {}
                Err(error) => {
                    work.spare.push(buffer);
                    return match error.kind() {
                        io::ErrorKind::WouldBlock => Drained::Empty,
                        io::ErrorKind::Interrupted => Drained::Partly,
                        _ => Drained::Gone,
                    };
                }
            }
            work.reads += 1;
            let data = if buffer.len() > KEEP {
                buffer
            } else {
                let copy = buffer.clone();
                work.spare.push(buffer);
                copy
            };
            match Packet::parse(data) {
                Ok(packet) => self.offer(clock(), packet),
                Err(_) => self.malformed += 1,
            }
        }
        Drained::Partly
    }

    fn offer(&mut self, now: Nanos, packet: Packet) {
        let (segments, ecn) = (packet.segments(), packet.ecn_capable());
        let packet = Rc::new(packet);
        for index in 0..segments {
            let segment = Segment { packet: packet.clone(), index: index as u32 };
            self.link.offer(now, packet.segment_bytes(index), ecn, segment);
        }
    }

    /// Writes the packets that have arrived at the far end by `now`.
    pub(super) fn deliver(&mut self, tun: &Tun, now: Nanos, hold: Nanos, work: &mut Work) {
        self.link.advance(now);
        let Some(planned) = self.link.next_deadline(hold).filter(|planned| *planned <= now) else { return };
        let mut run: Option<Run> = None;
        while let Some(arrived) = self.link.take(now) {
            work.lateness.add(Duration::from_nanos(now - planned.max(arrived.due)));
            let Segment { packet, index } = arrived.payload;
            match &mut run {
                Some(run)
                    if Rc::ptr_eq(&run.packet, &packet)
                        && run.first + run.count == index as usize
                        && run.marked == arrived.marked =>
                {
                    run.count += 1;
                }
                _ => {
                    let next = Run { packet, first: index as usize, count: 1, marked: arrived.marked };
                    if let Some(run) = run.replace(next) {
                        self.write(tun, run, work);
                    }
                }
            }
        }
        if let Some(run) = run {
            self.write(tun, run, work);
        }
    }

    fn write(&mut self, tun: &Tun, run: Run, work: &mut Work) {
        let mut scratch = [0; SCRATCH];
        let (head, tail) = run.packet.rewrite(run.first, run.count, run.marked, &mut scratch);
        work.writes += 1;
        if tun.write(&[IoSlice::new(head), IoSlice::new(tail)]).is_err() {
            self.refused += run.count as u64;
        }
        if let Some(packet) = Rc::into_inner(run.packet) {
            let buffer = packet.into_buffer();
            if buffer.capacity() >= BUFFER && work.spare.len() < SPARE {
                work.spare.push(buffer);
            }
        }
    }

    pub(super) fn counters(&mut self, now: Nanos) -> Counters {
        self.link.advance(now);
        Counters { malformed: self.malformed, refused: self.refused, ..self.link.counters() }
    }

    /// Ends a step of the time series, which was `seconds` long.
    pub(super) fn step(&mut self, now: Nanos, seconds: f64) -> Step {
        let counters = self.counters(now);
        let before = std::mem::replace(&mut self.before, counters);
        let window = self.link.window();
        let rate = |bytes: u64| if seconds > 0.0 { bytes as f64 * 8.0 / seconds } else { 0.0 };
        Step {
            offered: rate(counters.bytes_in - before.bytes_in),
            rate: rate(counters.bytes_out - before.bytes_out),
            packets: counters.packets_out - before.packets_out,
            queue: counters.waiting,
            queue_max: window.queue_max,
            queue_delay: window.waited as f64 / window.served.max(1) as f64 / 1e9,
            queue_delay_max: window.waited_max as f64 / 1e9,
            queue_average: self.link.queue_average(),
            lost: counters.lost - before.lost,
            dropped: counters.dropped() - before.dropped(),
            marked: counters.marked - before.marked,
        }
    }
}

/// Changes that are still to come, in the order of their times.
pub(super) struct Schedule<T>(VecDeque<(Nanos, T)>);

impl<T> Schedule<T> {
    pub(super) fn new() -> Self {
        Self(VecDeque::new())
    }

    /// Inserts a change after those of the same time.
    pub(super) fn insert(&mut self, at: Nanos, change: T) {
        let place = self.0.partition_point(|(other, _)| *other <= at);
        self.0.insert(place, (at, change));
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.0.front().map(|(at, _)| *at)
    }

    pub(super) fn take(&mut self, now: Nanos) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.0.pop_front().map(|(_, change)| change)
    }
}
