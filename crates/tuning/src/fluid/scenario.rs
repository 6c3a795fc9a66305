//! What is simulated.

use thiserror::Error;

use crate::model::{BANDWIDTHS, ParameterError, RTTS, WINDOWS, within};

/// Most steps times groups of a run: minutes of work.
const MOST_WORK: f64 = 5e9;

/// Steps times rate of a loop that the fourth-order method stands: it diverges from 2.79 on.
const STABLE: f64 = 2.0;

/// Most remembered windows: 512 MiB.
const MOST_HISTORY: f64 = (64 << 20) as f64;

/// Equal connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// How many; a real number.
    pub connections: f64,
    /// Round-trip time without queueing, milliseconds.
    pub delay_ms: f64,
    /// Largest window of each, packets.
    pub window_limit: f64,
    /// Window of each at the start, packets.
    pub window: f64,
}

/// Random early detection with the gentle slope: loss rises from 0 at `min` to `max_loss` at `max` and on to 1 at twice
/// `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Average queue at which loss begins, packets.
    pub min: f64,
    /// Average queue with loss [`max_loss`](Self::max_loss), packets.
    pub max: f64,
    /// Loss there.
    pub max_loss: f64,
    /// Weight of a packet in the average.
    pub weight: f64,
}

impl Red {
    /// Loss at an average queue of `average` packets.
    pub fn loss(&self, average: f64) -> f64 {
        if average <= self.min {
            0.0
        } else if average < self.max {
            self.max_loss * (average - self.min) / (self.max - self.min)
        } else {
            (self.max_loss + (1.0 - self.max_loss) * (average - self.max) / self.max).min(1.0)
        }
    }

    /// How fast the average follows the queue, a millisecond: -ln(1-weight) B.
    pub(super) fn gain(&self, bandwidth: f64) -> f64 {
        -(-self.weight).ln_1p() * bandwidth
    }
}

/// Which packets the bottleneck drops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drop {
    /// Those that find the queue full.
    Tail,
    /// Some, by the average queue; and those that find it full.
    Red(Red),
}

/// What the queue is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// With everything that is sent, as in the paper, lost or not: q' = lambda - B. In equilibrium Eqs (6) and (7) hold.
    /// Needs [`Drop::Red`].
    Paper,
    /// With what was not lost: q' = lambda (1-p) - B. In equilibrium [`crate::model::physical`] holds.
    Physical,
}

/// A bottleneck and the groups through it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Packets a millisecond.
    pub bandwidth: f64,
    /// Who sends.
    pub groups: Vec<Group>,
    /// Packets that the queue holds.
    pub queue_limit: f64,
    /// Which packets are dropped.
    pub drop: Drop,
    /// What fills the queue.
    pub coupling: Coupling,
    /// Milliseconds a step (at most the shortest delay is used), or `None` for [`step`](Self::step)'s choice.
    pub step_ms: Option<f64>,
}

/// Why a scenario cannot be simulated.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum FluidError {
    /// A number is not usable.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A number of a group is not usable.
    #[error("group {group}: {error}")]
    Group {
        /// From 1.
        group: usize,
        /// What is wrong.
        error: ParameterError,
    },
    /// Nobody sends.
    #[error("there are no groups of connections: expected at least one")]
    Empty,
    /// Eq (1) with the paper's queue has no loss without RED.
    #[error(
        "the paper's coupling needs a RED queue: its queue does not know losses, so that a full one would mean nothing"
    )]
    PaperNeedsRed,
    /// RED's thresholds are the wrong way round.
    #[error(
        "RED begins at {min} packets and has its largest loss at {max}: expected the second above the first"
    )]
    Thresholds {
        /// Where loss begins, packets.
        min: f64,
        /// Where it is largest, packets.
        max: f64,
    },
    /// Too much work.
    #[error(
        "{ms} ms in steps of {step} ms with {groups} groups are too much work: expected at most {most} steps times groups"
    )]
    TooLong {
        /// Simulated time.
        ms: f64,
        /// Of a step.
        step: f64,
        /// How many.
        groups: usize,
        /// Steps times groups.
        most: f64,
    },
    /// Too much memory.
    #[error("round trips up to {rtt} ms in steps of {step} ms with {groups} groups are too much to remember")]
    TooMuchHistory {
        /// Longest round trip, milliseconds.
        rtt: f64,
        /// Of a step, milliseconds.
        step: f64,
        /// How many.
        groups: usize,
    },
}

impl Scenario {
    /// Looks at every number.
    ///
    /// # Errors
    /// When one is not positive, not finite or absurd, or when the parts do not fit together.
    pub fn check(&self) -> Result<(), FluidError> {
        within("bandwidth", self.bandwidth, BANDWIDTHS, " packets/ms")?;
        within("queue", self.queue_limit, (0.0, 1e12), " packets")?;
        if let Some(step) = self.step_ms {
            within("step", step, (1e-6, 1e3), " ms")?;
        }
        if self.groups.is_empty() {
            return Err(FluidError::Empty);
        }
        for (index, group) in self.groups.iter().enumerate() {
            group.check().map_err(|error| FluidError::Group { group: index + 1, error })?;
        }
        match self.drop {
            Drop::Tail if self.coupling == Coupling::Paper => Err(FluidError::PaperNeedsRed),
            Drop::Tail => Ok(()),
            Drop::Red(red) => red.check(),
        }
    }

    /// Milliseconds a step: what was asked for, but at most the shortest delay and what the method of Runge and Kutta stands; else
    /// at most a millisecond, a tenth of the shortest delay, and short enough for the fastest loops.
    pub fn step(&self) -> f64 {
        let shortest = self.groups.iter().map(|group| group.delay_ms).fold(f64::INFINITY, f64::min);
        match self.step_ms {
            // A stage must not look beyond what is known.
            Some(step) => step.min(shortest).min(STABLE / self.fastest()),
            None => 1.0_f64.min(shortest / 10.0).min(1.0 / self.fastest()),
        }
    }

    /// Of the fastest loop, per millisecond: RED's average; or loss and window at a full queue, where a group's window falls at a
    /// rate of w/R.
    fn fastest(&self) -> f64 {
        let gain = match self.drop {
            Drop::Red(red) => red.gain(self.bandwidth),
            Drop::Tail => 0.0,
        };
        // Windows that fill the link are about B R / connections, none above its limit.
        let connections: f64 = self.groups.iter().map(|group| group.connections).sum();
        let of_window = |group: &Group| {
            (group.window_limit.max(group.window) / group.delay_ms).min(self.bandwidth / connections)
        };
        self.groups.iter().map(of_window).fold(gain, f64::max).max(1e-9)
    }

    /// Longest round trip: with a full queue.
    pub(super) fn longest_rtt(&self) -> f64 {
        let delay = self.groups.iter().map(|group| group.delay_ms).fold(0.0, f64::max);
        delay + self.queue_limit / self.bandwidth
    }

    /// How many windows of each group have to be remembered.
    pub(super) fn remembered(&self) -> Result<usize, FluidError> {
        let (step, groups) = (self.step(), self.groups.len());
        let length = self.longest_rtt() / step + 4.0;
        if length * groups as f64 > MOST_HISTORY {
            return Err(FluidError::TooMuchHistory { rtt: self.longest_rtt(), step, groups });
        }
        Ok((length as usize).next_power_of_two())
    }

    /// Looks whether a run of `ms` milliseconds can be done.
    ///
    /// # Errors
    /// When that is no usable time, or more than minutes of work.
    pub fn check_length(&self, ms: f64) -> Result<(), FluidError> {
        self.check_work(ms, MOST_WORK)
    }

    /// Looks whether a run of `ms` milliseconds takes no more than `most` steps times groups, of which a core does some millions
    /// a second.
    ///
    /// # Errors
    /// As [`Self::check_length`].
    pub fn check_work(&self, ms: f64, most: f64) -> Result<(), FluidError> {
        within("time", ms, (0.0, 1e12), " ms")?;
        let (step, groups) = (self.step(), self.groups.len());
        if ms / step * groups as f64 > most {
            return Err(FluidError::TooLong { ms, step, groups, most });
        }
        Ok(())
    }
}

impl Group {
    fn check(&self) -> Result<(), ParameterError> {
        within("number of connections", self.connections, (1e-6, 1e9), "")?;
        within("delay", self.delay_ms, RTTS, " ms")?;
        within("largest window", self.window_limit, (1.0, WINDOWS.1), " packets")?;
        within("first window", self.window, (1.0, self.window_limit), " packets")?;
        Ok(())
    }
}

impl Red {
    fn check(&self) -> Result<(), FluidError> {
        within("RED's lower threshold", self.min, (0.0, 1e12), " packets")?;
        within("RED's upper threshold", self.max, (1e-6, 1e12), " packets")?;
        within("RED's largest loss", self.max_loss, (1e-9, 1.0), "")?;
        within("RED's weight", self.weight, (1e-9, 0.999_999), "")?;
        if self.min >= self.max {
            return Err(FluidError::Thresholds { min: self.min, max: self.max });
        }
        Ok(())
    }
}
