//! Checks of a path that its types cannot express.

use std::time::Duration;

use ropewalk_units::print::exact_duration;

use super::{ConfigError, Direction, Loss, Path, Queue, wrong};

/// Longer delays are taken for mistakes; the longest path in use, over satellites, takes less than
/// 1 s.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// A longer queue would take gigabytes of memory.
pub(super) const MAX_QUEUE: u32 = 10_000_000;

impl Path {
    /// Checks the bounds of all values.
    ///
    /// # Errors
    /// The MTU is not within 576 to 65535 bytes, or a direction is not valid.
    pub fn validate(&self) -> Result<(), ConfigError> {
        check_mtu(self.mtu)?;
        self.forward.validate().map_err(|e| e.within("forward"))?;
        self.backward.validate().map_err(|e| e.within("backward"))
    }
}

pub(in crate::emulator) fn check_mtu(mtu: u32) -> Result<(), ConfigError> {
    // IPv4 hosts must accept 576 bytes (RFC 791). IPv6 needs 1280 (RFC 8200), which the scenario
    // checks.
    if (576..=65_535).contains(&mtu) { Ok(()) } else { Err(wrong("mtu", "576 to 65535 bytes", mtu)) }
}

fn check_share(field: &str, p: f64) -> Result<(), ConfigError> {
    if (0.0..=1.0).contains(&p) { Ok(()) } else { Err(wrong(field, "0 to 1", p)) }
}

fn check_limit(field: &str, packets: u32) -> Result<(), ConfigError> {
    if (1..=MAX_QUEUE).contains(&packets) {
        Ok(())
    } else {
        Err(wrong(field, format_args!("1 to {MAX_QUEUE} packets"), packets))
    }
}

impl Direction {
    /// Checks the bounds of all values.
    ///
    /// # Errors
    /// A delay is above 60 s, the jitter is above the delay, a probability is not within 0 to 1, or
    /// the overhead or the queue is out of its bounds.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let most = exact_duration(MAX_DELAY);
        if self.delay > MAX_DELAY {
            return Err(wrong("delay", format_args!("at most {most}"), exact_duration(self.delay)));
        }
        if self.jitter > self.delay {
            let expected = format!("at most the delay, {}", exact_duration(self.delay));
            return Err(wrong("jitter", expected, exact_duration(self.jitter)));
        }
        if let Some(reorder) = self.reorder {
            check_share("reorder.probability", reorder.probability)?;
            if reorder.by > MAX_DELAY {
                let found = exact_duration(reorder.by);
                return Err(wrong("reorder.by", format_args!("at most {most}"), found));
            }
        }
        if self.overhead > 10_000 {
            return Err(wrong("overhead", "at most 10000 bytes", self.overhead));
        }
        self.loss.validate().map_err(|e| e.within("loss"))?;
        self.queue.validate().map_err(|e| e.within("queue"))
    }
}

impl Loss {
    fn validate(&self) -> Result<(), ConfigError> {
        match *self {
            Self::None => Ok(()),
            Self::Bernoulli { p } => check_share("p", p),
            Self::GilbertElliott { enter, leave, good, bad } => {
                check_share("enter", enter)?;
                check_share("leave", leave)?;
                check_share("good", good)?;
                check_share("bad", bad)
            }
        }
    }
}

impl Queue {
    fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::DropTail { packets } => check_limit("packets", *packets),
            Self::Red(red) => {
                if !(red.min > 0.0 && red.min.is_finite()) {
                    return Err(wrong("min", "more than 0 packets", red.min));
                }
                if !(red.max > red.min && red.max.is_finite()) {
                    return Err(wrong("max", format_args!("more than min, {}", red.min), red.max));
                }
                if !(red.weight > 0.0 && red.weight <= 1.0) {
                    return Err(wrong("weight", "more than 0, at most 1", red.weight));
                }
                check_share("max_p", red.max_p)?;
                check_limit("limit", red.limit)
            }
            Self::Codel(codel) => {
                if codel.target.is_zero() || codel.target > MAX_DELAY {
                    let found = exact_duration(codel.target);
                    return Err(wrong("target", "more than 0, at most 60s", found));
                }
                if codel.interval < codel.target || codel.interval > MAX_DELAY {
                    let expected = format!("target, {}, to 60s", exact_duration(codel.target));
                    return Err(wrong("interval", expected, exact_duration(codel.interval)));
                }
                check_limit("limit", codel.limit)
            }
        }
    }
}
