//! Computes the equilibrium of a scenario algebraically.

use super::scenario::{Coupling, Drop, FluidError, Scenario};
use ropewalk_tuning::model::window_of_loss;

/// An equilibrium. A run does not necessarily reach it: with steep RED slopes it oscillates around
/// it.
#[derive(Clone, Debug, PartialEq)]
pub struct Equilibrium {
    /// Mean window of a connection of each group, packets.
    pub windows: Vec<f64>,
    /// Packets in the queue.
    pub queue: f64,
    /// Fraction of packets that are lost.
    pub loss: f64,
    /// Total goodput, packets per millisecond.
    pub goodput: f64,
}

/// Returns the equilibrium of `scenario`; `None` if the paper's coupling has none, because its
/// queue is too short for the required loss.
///
/// # Errors
/// The scenario is not valid.
pub fn equilibrium(scenario: &Scenario) -> Result<Option<Equilibrium>, FluidError> {
    scenario.check()?;
    let bandwidth = scenario.bandwidth;
    let windows = |loss: f64| -> Vec<f64> {
        let free = window_of_loss(loss).unwrap_or(f64::INFINITY);
        scenario.groups.iter().map(|group| free.clamp(1.0, group.window_limit)).collect()
    };
    let sent = |windows: &[f64], queue: f64| -> f64 {
        let groups = scenario.groups.iter().zip(windows);
        groups.map(|(group, w)| group.connections * w / (group.delay_ms + queue / bandwidth)).sum()
    };
    let red_loss = |queue: f64| match scenario.drop {
        Drop::Tail => 0.0,
        Drop::Red(red) => red.loss(queue),
    };
    let fills = |queue: f64, loss: f64| {
        let sent = sent(&windows(loss), queue);
        let arriving = if scenario.coupling == Coupling::Physical { sent * (1.0 - loss) } else { sent };
        arriving > bandwidth
    };
    let rest = |queue: f64, loss: f64| {
        let windows = windows(loss);
        let delivered = sent(&windows, queue) * (1.0 - loss);
        Some(Equilibrium { goodput: delivered.min(bandwidth), windows, queue, loss })
    };
    if !fills(0.0, red_loss(0.0)) {
        return Ok(rest(0.0, red_loss(0.0)));
    }
    if !fills(scenario.queue_limit, red_loss(scenario.queue_limit)) {
        let queue = bisect(0.0, scenario.queue_limit, |queue| fills(queue, red_loss(queue)));
        return Ok(rest(queue, red_loss(queue)));
    }
    if scenario.coupling == Coupling::Paper {
        return Ok(None);
    }
    let queue = scenario.queue_limit;
    Ok(rest(queue, bisect(red_loss(queue), 1.0, |loss| fills(queue, loss))))
}

/// The point between `low` and `high` from which on `before` is false.
fn bisect(mut low: f64, mut high: f64, before: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if before(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}
