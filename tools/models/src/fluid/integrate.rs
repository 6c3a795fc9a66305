//! The integrator: fourth-order Runge-Kutta with delayed windows.

use super::history::History;
use super::scenario::{Coupling, Drop, FluidError, Group, Red, Scenario};

/// The state at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Milliseconds since the start.
    pub time_ms: f64,
    /// Mean window of a connection of each group, packets.
    pub windows: Vec<f64>,
    /// Packets in the queue.
    pub queue: f64,
    /// Fraction of packets that are lost.
    pub loss: f64,
    /// Total goodput, packets per millisecond.
    pub goodput: f64,
    /// Total sending rate, packets per millisecond.
    pub sent: f64,
}

/// A run of the simulation. [`advance`](Self::advance) integrates up to a time,
/// [`state`](Self::state) returns the current state.
#[derive(Debug)]
pub struct Fluid {
    scenario: Scenario,
    red: Option<Red>,
    gain: f64,
    step_ms: f64,
    steps: usize,
    groups: Groups,
    windows: Vec<f64>,
    queue: f64,
    average: f64,
    history: History,
    scratch: Scratch,
}

/// The constants of the groups, one array for each: the loops run over thousands of groups.
#[derive(Debug)]
struct Groups {
    connections: Vec<f64>,
    delays: Vec<f64>,
    limits: Vec<f64>,
}

/// Arrays for one step, kept to avoid allocations.
#[derive(Debug, Default)]
struct Scratch {
    /// Windows at the current stage.
    stage: Vec<f64>,
    /// Windows one round-trip time earlier.
    past: Vec<f64>,
    per_rtt: Vec<f64>,
    slope: Vec<f64>,
    /// Weighted sum of the slopes of the stages.
    sum: Vec<f64>,
}

/// Slopes of the variables that are not windows.
#[derive(Clone, Copy, Default)]
struct Slopes {
    queue: f64,
    average: f64,
}

impl Fluid {
    /// Creates a run at time 0 with the initial windows and an empty queue.
    ///
    /// # Errors
    /// The scenario is not valid, or its history needs too much memory.
    pub fn new(scenario: Scenario) -> Result<Self, FluidError> {
        scenario.check()?;
        let length = scenario.remembered()?;
        let windows: Vec<f64> = scenario.groups.iter().map(|group| group.window).collect();
        let red = match scenario.drop {
            Drop::Tail => None,
            Drop::Red(red) => Some(red),
        };
        let zeros = vec![0.0; windows.len()];
        let each = |of: fn(&Group) -> f64| scenario.groups.iter().map(of).collect();
        Ok(Self {
            red,
            gain: red.map_or(0.0, |red| red.gain(scenario.bandwidth)),
            step_ms: scenario.step(),
            steps: 0,
            groups: Groups {
                connections: each(|group| group.connections),
                delays: each(|group| group.delay_ms),
                limits: each(|group| group.window_limit),
            },
            history: History::new(&windows, length),
            scratch: Scratch {
                stage: zeros.clone(),
                past: zeros.clone(),
                per_rtt: zeros.clone(),
                slope: zeros.clone(),
                sum: zeros,
            },
            windows,
            queue: 0.0,
            average: 0.0,
            scenario,
        })
    }

    /// The simulated scenario.
    pub fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    /// Length of a step in milliseconds.
    pub fn step_ms(&self) -> f64 {
        self.step_ms
    }

    /// Milliseconds since the start.
    pub fn time_ms(&self) -> f64 {
        self.steps as f64 * self.step_ms
    }

    /// Integrates up to the step nearest to `time_ms` (milliseconds since the start); a time in the
    /// past changes nothing.
    ///
    /// # Errors
    /// The run needs too many steps, or `time_ms` is not a usable number.
    pub fn advance(&mut self, time_ms: f64) -> Result<(), FluidError> {
        self.scenario.check_length(time_ms)?;
        let last = (time_ms / self.step_ms).round() as usize;
        while self.steps < last {
            self.step();
        }
        Ok(())
    }

    /// The state at the time that the run has reached.
    pub fn state(&self) -> State {
        let bandwidth = self.scenario.bandwidth;
        let wait = self.queue / bandwidth;
        let groups = self.scenario.groups.iter().zip(&self.windows);
        let sent = groups.map(|(group, window)| group.connections * window / (group.delay_ms + wait)).sum();
        let loss = self.loss(self.queue, self.average, sent);
        // While there is a queue, the link is busy at any sending rate.
        let goodput = match self.scenario.coupling {
            Coupling::Paper if self.queue > 0.0 => bandwidth * (1.0 - loss),
            Coupling::Paper => sent.min(bandwidth) * (1.0 - loss),
            Coupling::Physical if self.queue > 0.0 => bandwidth,
            Coupling::Physical => (sent * (1.0 - loss)).min(bandwidth),
        };
        State {
            time_ms: self.time_ms(),
            windows: self.windows.clone(),
            queue: self.queue,
            loss,
            goodput,
            sent,
        }
    }

    fn loss(&self, queue: f64, average: f64, sent: f64) -> f64 {
        let early = self.red.map_or(0.0, |red| red.loss(average));
        let full = self.scenario.coupling == Coupling::Physical && queue >= self.scenario.queue_limit;
        if full && sent > self.scenario.bandwidth {
            early.max(1.0 - self.scenario.bandwidth / sent)
        } else {
            early
        }
    }

    fn step(&mut self) {
        let h = self.step_ms;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.stage.copy_from_slice(&self.windows);
        let (mut queue, mut average) = (self.queue, self.average);
        let mut total = Slopes::default();
        // For each stage: its position in the step, how far its slopes carry to the next stage, and
        // its weight.
        let stages = [(0.0, 0.5, 1.0), (0.5, 0.5, 2.0), (0.5, 1.0, 2.0), (1.0, 0.0, 1.0)];
        for (stage, (part, next, weight)) in stages.into_iter().enumerate() {
            let slopes = self.slopes(part, queue, average, &mut scratch);
            total.queue += weight * slopes.queue;
            total.average += weight * slopes.average;
            if stage == 0 {
                scratch.sum.copy_from_slice(&scratch.slope);
            } else {
                for (sum, slope) in scratch.sum.iter_mut().zip(&scratch.slope) {
                    *sum += weight * slope;
                }
            }
            if stage < 3 {
                carry(&mut scratch.stage, &self.windows, &scratch.slope, next * h, &self.groups.limits);
                queue = (self.queue + next * h * slopes.queue).clamp(0.0, self.scenario.queue_limit);
                average = (self.average + next * h * slopes.average).max(0.0);
            }
        }
        carry(&mut scratch.stage, &self.windows, &scratch.sum, h / 6.0, &self.groups.limits);
        self.windows.copy_from_slice(&scratch.stage);
        self.queue = (self.queue + h / 6.0 * total.queue).clamp(0.0, self.scenario.queue_limit);
        self.average = (self.average + h / 6.0 * total.average).max(0.0);
        self.scratch = scratch;
        self.steps += 1;
        self.history.push(&self.windows);
    }

    /// Computes the slopes after `part` (0 to 1) of the step; those of the windows are in
    /// `scratch.slope`.
    fn slopes(&mut self, part: f64, queue: f64, average: f64, scratch: &mut Scratch) -> Slopes {
        let Groups { connections, delays, limits } = &self.groups;
        let wait = queue / self.scenario.bandwidth;
        for (per_rtt, delay) in scratch.per_rtt.iter_mut().zip(delays) {
            *per_rtt = 1.0 / (delay + wait);
        }
        let sent = sum_of_products(connections, &scratch.stage, &scratch.per_rtt);
        let loss = self.loss(queue, average, sent);
        let now = self.steps as f64 + part;
        let per_step = 1.0 / self.step_ms;
        self.history.look(delays.iter().map(|delay| now - (delay + wait) * per_step), &mut scratch.past);
        let past = scratch.past.iter().zip(&scratch.per_rtt);
        let windows = scratch.stage.iter().zip(limits);
        for ((slope, (past, per_rtt)), (&window, &limit)) in scratch.slope.iter_mut().zip(past).zip(windows) {
            let each = 1.0 / window;
            let timeout = (3.0 * each).min(1.0);
            let fall = 2.0 / 3.0 * window * (1.0 - timeout) + (4.0 / 3.0 * window - 1.0) * timeout;
            let free = past * per_rtt * ((1.0 - loss) * each - loss * fall);
            // At its limits a window stays constant. (This is the innermost loop, so it has no
            // branches.)
            let most = if window >= limit { 0.0 } else { f64::INFINITY };
            let least = if window <= 1.0 { 0.0 } else { f64::NEG_INFINITY };
            let cut = if free > most { most } else { free };
            *slope = if cut < least { least } else { cut };
        }
        let arriving = match self.scenario.coupling {
            Coupling::Paper => sent,
            Coupling::Physical => sent * (1.0 - loss),
        };
        let grows = arriving - self.scenario.bandwidth;
        let held = (queue <= 0.0 && grows < 0.0) || (queue >= self.scenario.queue_limit && grows > 0.0);
        Slopes { queue: if held { 0.0 } else { grows }, average: self.gain * (queue - average) }
    }
}

/// Sets `to` = `from` + `by` * `slopes`, between one packet and the limits.
fn carry(to: &mut [f64], from: &[f64], slopes: &[f64], by: f64, limits: &[f64]) {
    for (((to, from), slope), limit) in to.iter_mut().zip(from).zip(slopes).zip(limits) {
        *to = (from + by * slope).max(1.0).min(*limit);
    }
}

/// Adds up the products in four independent sums, so that the processor can compute them in
/// parallel.
fn sum_of_products(a: &[f64], b: &[f64], c: &[f64]) -> f64 {
    let (mut sums, chunks) = ([0.0; 4], a.chunks(4).zip(b.chunks(4)).zip(c.chunks(4)));
    for ((a, b), c) in chunks {
        for (sum, ((a, b), c)) in sums.iter_mut().zip(a.iter().zip(b).zip(c)) {
            *sum += a * b * c;
        }
    }
    sums.iter().sum()
}
