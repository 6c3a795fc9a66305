//! The scenario to simulate: groups of connections and their bottleneck.

use thiserror::Error;

use ropewalk_tuning::model::{BANDWIDTHS, ParameterError, RTTS, WINDOWS, within};

/// Maximum of steps times groups of a run: minutes of work.
const MOST_WORK: f64 = 5e9;

/// Maximum of step times rate of a loop. The fourth-order method diverges from 2.79 on.
const STABLE: f64 = 2.0;

/// Maximum number of windows in the history: 512 MiB.
const MOST_HISTORY: f64 = (64 << 20) as f64;

/// A group of equal connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Number of connections; a real number.
    pub connections: f64,
    /// Round-trip time without queueing, milliseconds.
    pub delay_ms: f64,
    /// Maximum window of each connection, packets.
    pub window_limit: f64,
    /// Initial window of each connection, packets.
    pub window: f64,
}

/// Random early detection with the gentle slope: loss rises from 0 at `min` to `max_loss` at `max`,
/// and further to 1 at twice `max`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Average queue at which loss starts, packets.
    pub min: f64,
    /// Average queue with loss [`max_loss`](Self::max_loss), packets.
    pub max: f64,
    /// Loss at [`max`](Self::max).
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

    /// Rate at which the average follows the queue, per millisecond: -ln(1-weight) B.
    pub(super) fn gain(&self, bandwidth: f64) -> f64 {
        -(-self.weight).ln_1p() * bandwidth
    }
}

/// Which packets the bottleneck drops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drop {
    /// Packets that arrive at a full queue.
    Tail,
    /// Some packets, depending on the average queue; and packets that arrive at a full queue.
    Red(Red),
}

/// Which packets fill the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// All sent packets, as in the paper, whether they are lost or not: q' = lambda - B. In
    /// equilibrium Eqs (6) and (7) hold. Needs [`Drop::Red`].
    Paper,
    /// Packets that are not lost: q' = lambda (1-p) - B. In equilibrium
    /// [`ropewalk_tuning::model::physical`] holds.
    Physical,
}

/// A bottleneck and the groups whose packets pass it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Bandwidth of the bottleneck, packets per millisecond.
    pub bandwidth: f64,
    /// The sending groups.
    pub groups: Vec<Group>,
    /// Maximum length of the queue, packets.
    pub queue_limit: f64,
    /// Which packets are dropped.
    pub drop: Drop,
    /// Which packets fill the queue.
    pub coupling: Coupling,
    /// Length of a step in milliseconds (at most the shortest delay is used), or `None` for the
    /// default of [`step`](Self::step).
    pub step_ms: Option<f64>,
}

/// Why a scenario cannot be simulated.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum FluidError {
    /// A number is outside its limits.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// A number of a group is outside its limits.
    #[error("group {group}: {error}")]
    Group {
        /// Number of the group, from 1.
        group: usize,
        /// The error.
        error: ParameterError,
    },
    /// There are no groups.
    #[error("there are no groups of connections: expected at least one")]
    Empty,
    /// With the paper's queue, Eq (1) has no loss without RED.
    #[error(
        "the paper's coupling needs a RED queue: its queue does not know losses, so that a full one would mean nothing"
    )]
    PaperNeedsRed,
    /// RED's lower threshold is not below the upper one.
    #[error(
        "RED begins at {min} packets and has its largest loss at {max}: expected the second above the first"
    )]
    Thresholds {
        /// Average queue at which loss starts, packets.
        min: f64,
        /// Average queue with the maximum loss, packets.
        max: f64,
    },
    /// The run needs too many steps.
    #[error(
        "{ms} ms in steps of {step} ms with {groups} groups are too much work: expected at most {most} steps times groups"
    )]
    TooLong {
        /// Simulated time, milliseconds.
        ms: f64,
        /// Length of a step, milliseconds.
        step: f64,
        /// Number of groups.
        groups: usize,
        /// Maximum of steps times groups.
        most: f64,
    },
    /// The history needs too much memory.
    #[error("round trips up to {rtt} ms in steps of {step} ms with {groups} groups are too much to remember")]
    TooMuchHistory {
        /// Longest round-trip time, milliseconds.
        rtt: f64,
        /// Length of a step, milliseconds.
        step: f64,
        /// Number of groups.
        groups: usize,
    },
}

impl Scenario {
    /// Checks all numbers.
    ///
    /// # Errors
    /// A number is not positive, not finite or absurd, or the parts are not compatible.
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

    /// The length of a step in milliseconds: the requested one, but at most the shortest delay and
    /// the stability limit of the Runge-Kutta method. Without a request it is up to a millisecond
    /// and up to a tenth of the shortest delay, and short enough for the fastest loops.
    pub fn step(&self) -> f64 {
        let shortest = self.groups.iter().map(|group| group.delay_ms).fold(f64::INFINITY, f64::min);
        match self.step_ms {
            // A stage must not read windows beyond the known steps.
            Some(step) => step.min(shortest).min(STABLE / self.fastest()),
            None => 1.0_f64.min(shortest / 10.0).min(1.0 / self.fastest()),
        }
    }

    /// The rate of the fastest loop, per millisecond: RED's average, or the loop of loss and window
    /// at a full queue, in which a group's window falls at a rate of w/R.
    fn fastest(&self) -> f64 {
        let gain = match self.drop {
            Drop::Red(red) => red.gain(self.bandwidth),
            Drop::Tail => 0.0,
        };
        // Windows that fill the link are about B R / connections, and at most the limit.
        let connections: f64 = self.groups.iter().map(|group| group.connections).sum();
        let of_window = |group: &Group| {
            (group.window_limit.max(group.window) / group.delay_ms).min(self.bandwidth / connections)
        };
        self.groups.iter().map(of_window).fold(gain, f64::max).max(1e-9)
    }

    /// The longest round-trip time: with a full queue.
    pub(super) fn longest_rtt(&self) -> f64 {
        let delay = self.groups.iter().map(|group| group.delay_ms).fold(0.0, f64::max);
        delay + self.queue_limit / self.bandwidth
    }

    /// The number of windows of each group that the history must keep.
    pub(super) fn remembered(&self) -> Result<usize, FluidError> {
        let (step, groups) = (self.step(), self.groups.len());
        let length = self.longest_rtt() / step + 4.0;
        if length * groups as f64 > MOST_HISTORY {
            return Err(FluidError::TooMuchHistory { rtt: self.longest_rtt(), step, groups });
        }
        Ok((length as usize).next_power_of_two())
    }

    /// Checks that a run of `ms` milliseconds is feasible.
    ///
    /// # Errors
    /// `ms` is not a usable time, or the run would take more than minutes of work.
    pub fn check_length(&self, ms: f64) -> Result<(), FluidError> {
        self.check_work(ms, MOST_WORK)
    }

    /// Checks that a run of `ms` milliseconds needs at most `most` steps times groups. A core
    /// computes some millions of them per second.
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
