//! Changes of a path while it is emulated. A [`Patch`] has new values for one direction, and a
//! [`Change`] has patches for both, with the time at which they apply. Changes come from the
//! schedule of a scenario or from the control socket. The resulting path is checked before anything
//! changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{ConfigError, Direction, Loss, Path, Queue, Reorder, check_mtu};
use super::units::{self, Rate};

/// The new values of one direction; a field that is `None` leaves the value as it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Patch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    #[serde(with = "units::duration::option", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    #[serde(with = "units::duration::option", skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Duration>,
    /// A probability of 0 turns reordering off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reorder: Option<Reorder>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<Loss>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<u32>,
}

impl Patch {
    /// Writes the fields that are set into `direction`, without checking the result.
    pub fn apply(&self, direction: &mut Direction) {
        fn set<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                *to = value.clone();
            }
        }
        set(&mut direction.rate, &self.rate);
        set(&mut direction.delay, &self.delay);
        set(&mut direction.jitter, &self.jitter);
        if let Some(reorder) = self.reorder {
            direction.reorder = Some(reorder).filter(|reorder| reorder.probability > 0.0);
        }
        set(&mut direction.loss, &self.loss);
        set(&mut direction.queue, &self.queue);
        set(&mut direction.overhead, &self.overhead);
    }
}

/// A step of a schedule, or a request of the control socket.
///
/// ```toml
/// [[change]]
/// at = "30s"
/// both = { loss = "0.1%" }
/// forward = { rate = "50Mbit/s" }
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    /// Time since the start of the emulator; a change whose time has passed is applied at once.
    #[serde(with = "units::duration")]
    pub at: Duration,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Applied to both directions, before `forward` and `backward`.
    pub both: Patch,
    pub forward: Patch,
    pub backward: Patch,
}

impl Change {
    /// Returns `path` with this change applied, after checking it.
    ///
    /// # Errors
    /// The new path is not valid, see [`Path::validate`].
    pub fn applied_to(&self, path: &Path) -> Result<Path, ConfigError> {
        let mut new = path.clone();
        if let Some(mtu) = self.mtu {
            check_mtu(mtu)?;
            new.mtu = mtu;
        }
        for (direction, own) in [(&mut new.forward, &self.forward), (&mut new.backward, &self.backward)] {
            self.both.apply(direction);
            own.apply(direction);
        }
        new.validate()?;
        Ok(new)
    }
}

/// Checks a whole schedule against the path that it starts from: each step must lead to a valid
/// path after the steps before it. Steps are applied in the order of their times, steps of the same
/// time in the order of the list.
///
/// # Errors
/// A step leads to a path that is not valid; the error names the step as `change[index]`.
pub fn check_schedule(path: &Path, schedule: &[Change]) -> Result<(), ConfigError> {
    let mut steps: Vec<(usize, &Change)> = schedule.iter().enumerate().collect();
    steps.sort_by_key(|(_, change)| change.at);
    let mut path = path.clone();
    for (index, change) in steps {
        path = change.applied_to(&path).map_err(|e| e.within(&format!("change[{index}]")))?;
    }
    Ok(())
}
