//! The emulator's thread: it waits for packets, deadlines and commands, and moves packets between
//! the interfaces and the links.
//!
//! One thread serves both directions. So an acknowledgement does not have to wait for a second
//! thread to wake up, and the other cores are free for the programs under test. [`super::handle`]
//! starts the thread and sends it commands.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::OwnedFd;
use rustix::time::ClockId;

use super::change::Change;
use super::config::Path;
use super::handle::{Command, ControlError, Options};
use super::lane::{Drained, Lane, Schedule, Work};
use super::link::Nanos;
use super::stats::{Report, Sample, Snapshot, Timing};
use super::steps::Steps;
use super::sys;
use super::tun::Tun;

/// Packets that are read from one side before the other side, deadlines and commands are served.
const BUDGET: usize = 16;
/// The kernel stops a real-time thread that never sleeps for 50 ms in each second, so that other
/// threads can run (sched_rt_runtime_us, or the fair server of newer kernels). The thread avoids
/// this by taking short breaks itself.
const LONGEST_RUN: Nanos = 2_000_000;
const BREAK: Duration = Duration::from_micros(150);
/// The step by which one wake-up changes the estimate of the wake-up latency, and the upper limit
/// of the estimate.
const LEARN: Nanos = 1_000;
const MOST_LATENCY: Nanos = 100_000;
/// The upper limit by which the arrival time of a packet is moved back to account for the wake-up
/// latency.
const MOST_EARLIER: Nanos = 50_000;
/// Error messages of failed changes that are kept.
const MOST_PROBLEMS: usize = 100;

/// The parameters with which the thread starts.
pub(super) struct Driver {
    path: Path,
    schedule: Schedule<Change>,
    seed: u64,
    sample: Nanos,
    hold: Nanos,
    spin: Nanos,
    realtime: Option<u8>,
    /// The left and the right interface.
    tuns: [Tun; 2],
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
}

/// The state of the running thread.
struct Running {
    start: Instant,
    path: Path,
    schedule: Schedule<Change>,
    tuns: [Tun; 2],
    gone: [bool; 2],
    /// Lane 0 goes from left to right.
    lanes: [Lane; 2],
    work: Work,
    wakeups: u64,
    /// Estimate of the time that the kernel takes to wake the thread; alarms are set earlier by
    /// this time.
    latency: Nanos,
    /// Estimated arrival time of the packet that ended the last wait.
    woken: Option<Nanos>,
    /// When the thread last slept.
    rested: Nanos,
    realtime: bool,
    series: Steps,
    sampled: Nanos,
    problems: Vec<String>,
}

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Driver {
    pub(super) fn new(
        options: &Options,
        left: Tun,
        right: Tun,
        commands: Receiver<Command>,
        wake: Arc<OwnedFd>,
    ) -> Self {
        let mut schedule = Schedule::new();
        for change in &options.schedule {
            schedule.insert(nanos(change.at), change.clone());
        }
        Self {
            path: options.path.clone(),
            schedule,
            seed: options.seed,
            sample: nanos(options.sample).max(1_000_000),
            hold: nanos(options.coalesce),
            spin: nanos(options.spin),
            realtime: options.realtime,
            tuns: [left, right],
            commands,
            wake,
        }
    }

    /// Runs until it receives [`Command::Stop`].
    pub(super) fn run(self) -> Report {
        // The default timer slack would delay the timers of an ordinary thread by 50 us.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let realtime = self.realtime.is_some_and(|priority| sys::set_realtime(i32::from(priority)).is_ok());
        let lanes = [(&self.path.forward, 1), (&self.path.backward, 2)].map(|(direction, which)| {
            Lane::new(direction.clone(), self.seed.wrapping_mul(2).wrapping_add(which))
        });
        let mut running = Running {
            start: Instant::now(),
            path: self.path,
            schedule: self.schedule,
            tuns: self.tuns,
            gone: [false; 2],
            lanes,
            work: Work::default(),
            wakeups: 0,
            latency: 0,
            woken: None,
            rested: 0,
            realtime,
            series: Steps::default(),
            sampled: 0,
            problems: Vec::new(),
        };
        let mut readable = [true; 2];
        loop {
            let now = running.now();
            for (lane, tun) in running.lanes.iter_mut().zip([&running.tuns[1], &running.tuns[0]]) {
                lane.deliver(tun, now, self.hold, &mut running.work);
            }
            while let Some(change) = running.schedule.take(now) {
                if let Err(error) = running.change(&change)
                    && running.problems.len() < MOST_PROBLEMS
                {
                    running.problems.push(format!("change at {:?}: {error}", change.at));
                }
            }
            if now >= running.sampled + self.sample {
                running.sample(now);
            }
            running.read(&mut readable);
            let next = [
                running.lanes[0].next_deadline(self.hold).map(|at| at.saturating_sub(self.spin)),
                running.lanes[1].next_deadline(self.hold).map(|at| at.saturating_sub(self.spin)),
                running.schedule.next(),
                Some(running.sampled + self.sample),
            ];
            let next = next.into_iter().flatten().min().unwrap_or(0);
            if running.wait(&self.wake, next, &mut readable) && running.obey(&self.commands) {
                return running.report();
            }
        }
    }
}

impl Running {
    fn now(&self) -> Nanos {
        nanos(self.start.elapsed())
    }

    fn read(&mut self, readable: &mut [bool; 2]) {
        for (side, more) in readable.iter_mut().enumerate() {
            if !*more || self.gone[side] {
                continue;
            }
            let (start, mut woken) = (self.start, self.woken.take());
            let clock = || woken.take().unwrap_or_else(|| nanos(start.elapsed()));
            match self.lanes[side].fill(&self.tuns[side], BUDGET, &mut self.work, clock) {
                Drained::Empty => *more = false,
                Drained::Partly => {}
                Drained::Gone => {
                    self.gone[side] = true;
                    self.problems.push(format!("interface {} has gone", self.tuns[side].name()));
                }
            }
        }
    }

    /// Waits for packets, for commands or until the time `until`; it only polls if there are
    /// packets left to read. Returns whether there are commands.
    fn wait(&mut self, wake: &OwnedFd, until: Nanos, readable: &mut [bool; 2]) -> bool {
        let now = self.now();
        self.woken = None;
        let alarm = until.saturating_sub(self.latency);
        let left = if *readable == [false; 2] { alarm.saturating_sub(now) } else { 0 };
        if left == 0 && self.realtime && now > self.rested + LONGEST_RUN {
            std::thread::sleep(BREAK);
            self.rested = self.now();
        }
        let timeout =
            Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
        // `poll` would always report an interface that has gone as ready.
        let tun = |side: usize| match self.gone[side] {
            true => PollFd::new(wake, PollFlags::empty()),
            false => PollFd::new(&self.tuns[side], PollFlags::IN),
        };
        let mut fds = [PollFd::new(wake, PollFlags::IN), tun(0), tun(1)];
        let polled = rustix::event::poll(&mut fds, Some(&timeout));
        if left > 0 {
            self.wakeups += 1;
            self.rested = self.now();
        }
        let told = !fds[0].revents().is_empty();
        *readable = [1, 2].map(|place| !fds[place].revents().is_empty());
        match polled {
            Err(_) => *readable = [false; 2],
            Ok(0) if left > 0 => self.arrive(alarm, until),
            // The packet that ended the wait arrived when the wake-up began.
            Ok(_) if left > 0 => {
                let before = self.latency.min(MOST_EARLIER);
                self.woken = Some(now.max(self.now().saturating_sub(before)));
            }
            Ok(_) => {}
        }
        if told {
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
        told
    }

    /// Called after a wake-up by the clock, which was set to `alarm` in order to be on time at
    /// `until`. Updates the estimate of the wake-up latency, and waits actively for the time that
    /// is left.
    fn arrive(&mut self, alarm: Nanos, until: Nanos) {
        let now = self.now();
        // The estimate follows the median, which the outliers of a busy machine do not move.
        self.latency = if now > alarm + self.latency {
            (self.latency + LEARN).min(MOST_LATENCY)
        } else {
            self.latency.saturating_sub(LEARN)
        };
        while self.now() < until {
            std::hint::spin_loop();
        }
    }

    /// Executes the pending commands. Returns true if the thread has to stop.
    fn obey(&mut self, commands: &Receiver<Command>) -> bool {
        // Sending a reply fails if the caller no longer waits for it, which is not an error here.
        while let Ok(command) = commands.try_recv() {
            match command {
                Command::Apply(change, reply) => {
                    let _ = reply.send(self.apply(*change));
                }
                Command::Snapshot(reply) => {
                    let _ = reply.send(self.snapshot());
                }
                Command::Series(from, reply) => {
                    let _ = reply.send(self.series.since(from).to_vec());
                }
                Command::Keep(most) => self.series.keep(most),
                Command::Stop => return true,
            }
        }
        false
    }

    /// Applies a change, or puts it on the schedule if its time is still to come.
    fn apply(&mut self, change: Change) -> Result<Path, ControlError> {
        if nanos(change.at) <= self.now() {
            return self.change(&change);
        }
        change.applied_to(&self.path)?;
        self.schedule.insert(nanos(change.at), change);
        Ok(self.path.clone())
    }

    fn change(&mut self, change: &Change) -> Result<Path, ControlError> {
        let path = change.applied_to(&self.path)?;
        if path.mtu != self.path.mtu {
            for tun in &self.tuns {
                tun.set_mtu(path.mtu)?;
            }
        }
        let now = self.now();
        self.lanes[0].set(now, path.forward.clone());
        self.lanes[1].set(now, path.backward.clone());
        self.path = path.clone();
        Ok(path)
    }

    fn sample(&mut self, now: Nanos) {
        let step = (now - self.sampled) as f64 / 1e9;
        let [forward, backward] = &mut self.lanes;
        self.series.push(Sample {
            at: now as f64 / 1e9,
            step,
            forward: forward.step(now, step),
            backward: backward.step(now, step),
        });
        self.sampled = now;
    }

    fn snapshot(&mut self) -> Snapshot {
        let now = self.now();
        let [mut forward, mut backward] = [0, 1].map(|side| self.lanes[side].counters(now));
        forward.overrun = self.tuns[0].overrun();
        backward.overrun = self.tuns[1].overrun();
        let cpu = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        Snapshot {
            at: now as f64 / 1e9,
            path: self.path.clone(),
            forward,
            backward,
            timing: Timing {
                realtime: self.realtime,
                cpu: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
                wakeups: self.wakeups,
                reads: self.work.reads,
                writes: self.work.writes,
                lateness: self.work.lateness.spread(),
            },
            samples: self.series.count(),
            problems: self.problems.clone(),
        }
    }

    fn report(mut self) -> Report {
        self.sample(self.now());
        Report { end: self.snapshot(), series: self.series.into_samples() }
    }
}
