//! Whether to set a data connection's socket buffer, and to what: for ABUF (GFD.20) and the like.
//!
//! Setting SO_SNDBUF or SO_RCVBUF turns the kernel's autotuning of that buffer off, so it is done only where autotuning
//! cannot get far enough. The measure is the bandwidth-delay product (BDP), the bytes that a path holds: with less than
//! that in flight a connection cannot fill it.
//!
//! A rate that was seen while a buffer was too small is the buffer's rate and not the path's: BDP is then the buffer
//! itself. The margins see to it that such a rate leads to a larger buffer the next time, until the rate no longer grows.

use std::fmt;
use std::time::Duration;

/// Autotuning has to reach the BDP with this much to spare: 5/4.
const MARGIN: (u64, u64) = (5, 4);
/// A fixed buffer is so many times the BDP: a queue as long as the path may stand in front of the bottleneck, and what is
/// sent again stays in the buffer meanwhile.
const FIXED: u64 = 2;
/// Autotuning counts the kernel's bookkeeping, of which there is about as much as of data (tcp(7), tcp_adv_win_scale);
/// SO_SNDBUF and SO_RCVBUF do not: the kernel doubles them (socket(7)).
const BOOKKEEPING: u64 = 2;

/// What is known of the path of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Round-trip time without queues: the least that was seen.
    pub rtt: Option<Duration>,
    /// Bytes per second that one connection moved.
    pub rate: Option<u64>,
}

impl Path {
    /// Bytes that fill the path; `None` where it is not known well enough.
    pub fn bdp(&self) -> Option<u64> {
        let bytes = u128::from(self.rate?) * self.rtt?.as_micros() / 1_000_000;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX)).filter(|bytes| *bytes > 0)
    }
}

/// Which buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Send,
    Receive,
}

impl Side {
    /// The sysctl whose third value limits autotuning.
    pub fn autotune_sysctl(self) -> &'static str {
        match self {
            Self::Send => "net.ipv4.tcp_wmem",
            Self::Receive => "net.ipv4.tcp_rmem",
        }
    }

    /// The sysctl that limits SO_SNDBUF or SO_RCVBUF.
    pub fn setsockopt_sysctl(self) -> &'static str {
        match self {
            Self::Send => "net.core.wmem_max",
            Self::Receive => "net.core.rmem_max",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "send",
            Self::Receive => "receive",
        })
    }
}

/// Limits of the kernel for the buffers of one side, in bytes, as its sysctls have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub side: Side,
    pub autotune_max: u64,
    /// What SO_SNDBUF or SO_RCVBUF makes of any smaller size.
    pub setsockopt_min: u64,
    pub setsockopt_max: u64,
}

impl Kernel {
    /// Data that fits into the largest buffer of autotuning.
    fn autotuned_data(&self) -> u64 {
        self.autotune_max / BOOKKEEPING
    }
}

/// What to do with a buffer. `Display` says why, for logs and people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Leave it to autotuning.
    Leave { reason: Leave },
    /// SO_SNDBUF or SO_RCVBUF of so many bytes.
    Set { bytes: u64, reason: Set },
    /// Leave it to autotuning, which is too small for the path, since a fixed buffer would be smaller still: the host's
    /// limits have to be raised.
    CeilingTooLow {
        /// The least for that third value.
        want: u64,
        /// The third value of `sysctl` as it is.
        have: u64,
        sysctl: &'static str,
        bdp: u64,
    },
}

/// Why a buffer is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// Nothing has been moved yet, or no round-trip time is known.
    Unknown,
    /// Autotuning reaches what the path needs.
    Suffices { side: Side, autotune_max: u64, bdp: u64 },
    /// Autotuning gets as far as the session's ceiling allows, or further than a fixed buffer within it would.
    CeilingReached { side: Side, ceiling: u64, bdp: u64 },
}

/// Why a buffer is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Autotuning does not get there.
    AutotuningTooLow { side: Side, autotune_max: u64, bdp: u64, held_by: Option<HeldBy> },
    /// The session wants no larger one, and autotuning would make one.
    Ceiling { side: Side, bdp: u64 },
    /// The session wants a smaller one than the kernel makes.
    Least { side: Side, bdp: u64 },
}

/// Why a buffer that is set is smaller than it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    Session,
    /// net.core.wmem_max or rmem_max.
    Setsockopt,
}

impl Advice {
    /// Bytes for SO_SNDBUF or SO_RCVBUF; `None` leaves it to autotuning.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Set { bytes, .. } => Some(*bytes),
            Self::Leave { .. } | Self::CeilingTooLow { .. } => None,
        }
    }
}

/// What to do with one buffer of connections over `path`; `ceiling`: the most bytes that the session wants for SO_SNDBUF or
/// SO_RCVBUF.
pub fn advise(path: Path, kernel: Kernel, ceiling: u64) -> Advice {
    let Some(bdp) = path.bdp() else {
        return Advice::Leave { reason: Leave::Unknown };
    };
    let Kernel { side, autotune_max, setsockopt_min, setsockopt_max } = kernel;
    let needed = bdp.saturating_mul(MARGIN.0) / MARGIN.1;
    let reached = kernel.autotuned_data();
    if ceiling < needed {
        // Autotuning would go beyond what the session wants.
        return if ceiling < reached && ceiling <= setsockopt_max {
            let below = ceiling < setsockopt_min;
            let reason = if below { Set::Least { side, bdp } } else { Set::Ceiling { side, bdp } };
            Advice::Set { bytes: ceiling.max(setsockopt_min), reason }
        } else if reached < ceiling.min(setsockopt_max) {
            let bytes = ceiling.min(setsockopt_max);
            let held_by = Some(if ceiling <= setsockopt_max { HeldBy::Session } else { HeldBy::Setsockopt });
            Advice::Set { bytes, reason: Set::AutotuningTooLow { side, autotune_max, bdp, held_by } }
        } else {
            Advice::Leave { reason: Leave::CeilingReached { side, ceiling, bdp } }
        };
    }
    if reached >= needed {
        return Advice::Leave { reason: Leave::Suffices { side, autotune_max, bdp } };
    }
    let wanted = bdp.saturating_mul(FIXED);
    let bytes = wanted.min(ceiling).min(setsockopt_max);
    if bytes <= reached {
        // Only the kernel's limit can be that low: the ceiling is at least what is needed.
        let want = needed.saturating_mul(BOOKKEEPING);
        return Advice::CeilingTooLow { want, have: autotune_max, sysctl: side.autotune_sysctl(), bdp };
    }
    let held_by = match bytes {
        all if all == wanted => None,
        held if held == setsockopt_max => Some(HeldBy::Setsockopt),
        _ => Some(HeldBy::Session),
    };
    Advice::Set { bytes, reason: Set::AutotuningTooLow { side, autotune_max, bdp, held_by } }
}

/// Bytes for people: `1.2 MiB`.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let mut amount = self.0 as f64;
        let mut unit = "bytes";
        for larger in UNITS {
            if amount < 1024.0 {
                break;
            }
            (amount, unit) = (amount / 1024.0, larger);
        }
        let text = format!("{amount:.1}");
        write!(f, "{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leave { reason } => reason.fmt(f),
            Self::Set { bytes, reason } => match reason {
                Set::Ceiling { side, bdp } => {
                    write!(f, "{side} buffer set to {}, the ceiling that was asked for; ", Size(*bytes))?;
                    write!(f, "the path needs {}", Size(*bdp))
                }
                Set::Least { side, bdp } => {
                    write!(
                        f,
                        "{side} buffer set to {}, the least that the kernel makes, instead of ",
                        Size(*bytes)
                    )?;
                    write!(f, "the ceiling that was asked for; the path needs {}", Size(*bdp))
                }
                Set::AutotuningTooLow { side, autotune_max, bdp, held_by } => {
                    let sysctl = side.autotune_sysctl();
                    write!(
                        f,
                        "{side} buffer set to {}; {sysctl}'s third value, {}, limits autotuning to ",
                        Size(*bytes),
                        Size(*autotune_max)
                    )?;
                    let data = *autotune_max / BOOKKEEPING;
                    write!(f, "{} of data, the path needs {} or more", Size(data), Size(*bdp))?;
                    match held_by {
                        None => Ok(()),
                        Some(HeldBy::Session) => f.write_str("; more than the ceiling was not asked for"),
                        Some(HeldBy::Setsockopt) => {
                            write!(f, "; {} does not allow more", side.setsockopt_sysctl())
                        }
                    }
                }
            },
            Self::CeilingTooLow { want, have, sysctl, bdp } => {
                write!(
                    f,
                    "left to kernel autotuning, which is too small: the path needs {} or more, ",
                    Size(*bdp)
                )?;
                write!(f, "{sysctl}'s third value is {} and should be {}", Size(*have), Size(*want))
            }
        }
    }
}

impl fmt::Display for Leave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("left to kernel autotuning, nothing is known of the path yet"),
            Self::Suffices { side: _, autotune_max, bdp } => write!(
                f,
                "kernel autotuning suffices (ceiling {}, path needs {})",
                Size(*autotune_max),
                Size(*bdp)
            ),
            Self::CeilingReached { side: _, ceiling, bdp } => write!(
                f,
                "left to kernel autotuning, which gets as far as the ceiling of {} allows; the path needs {}",
                Size(*ceiling),
                Size(*bdp)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A path that needs so many bytes.
    fn path(bdp: u64) -> Path {
        Path { rtt: Some(Duration::from_millis(100)), rate: Some(bdp * 10) }
    }

    fn kernel(autotune_max: u64, setsockopt_max: u64) -> Kernel {
        Kernel { side: Side::Send, autotune_max, setsockopt_min: 0, setsockopt_max }
    }

    #[test]
    fn nothing_known_nothing_done() {
        for path in [
            Path::default(),
            Path { rtt: Some(Duration::from_millis(40)), rate: None },
            Path { rtt: None, rate: Some(MIB) },
            Path { rtt: Some(Duration::ZERO), rate: Some(MIB) },
        ] {
            assert_eq!(advise(path, kernel(4 * MIB, 4 * MIB), MIB), Advice::Leave { reason: Leave::Unknown });
        }
    }

    #[test]
    fn autotuning_that_suffices_is_left_alone() {
        let advice = advise(path(6 * MIB / 5), kernel(6 * MIB, 212_992), 64 * MIB);
        assert_eq!(advice.bytes(), None);
        assert_eq!(advice.to_string(), "kernel autotuning suffices (ceiling 6 MiB, path needs 1.2 MiB)");
        // 40 ms at 1 Gbit/s needs 4.8 MiB: half of 12 MiB, with a quarter to spare.
        let gigabit = Path { rtt: Some(Duration::from_millis(40)), rate: Some(125_000_000) };
        assert_eq!(advise(gigabit, kernel(12 * MIB, 64 * MIB), 64 * MIB).bytes(), None);
        assert_eq!(advise(gigabit, kernel(11 * MIB, 64 * MIB), 64 * MIB).bytes(), Some(10_000_000));
    }

    #[test]
    fn too_small_autotuning_is_replaced() {
        let advice = advise(path(10 * MIB), kernel(4 * MIB, 64 * MIB), 64 * MIB);
        assert_eq!(advice.bytes(), Some(20 * MIB));
        assert_eq!(
            advice.to_string(),
            "send buffer set to 20 MiB; net.ipv4.tcp_wmem's third value, 4 MiB, limits autotuning to 2 MiB of data, the path needs \
             10 MiB or more"
        );
        let held = advise(path(10 * MIB), kernel(4 * MIB, 16 * MIB), 64 * MIB);
        assert_eq!(held.bytes(), Some(16 * MIB));
        assert!(held.to_string().ends_with("; net.core.wmem_max does not allow more"), "{held}");
        let held = advise(path(10 * MIB), kernel(4 * MIB, 64 * MIB), 15 * MIB);
        assert_eq!(held.bytes(), Some(15 * MIB));
        assert!(held.to_string().ends_with("; more than the ceiling was not asked for"), "{held}");
        // What is asked for is below what the path needs, and still more than autotuning gives.
        assert_eq!(advise(path(10 * MIB), kernel(4 * MIB, 64 * MIB), 8 * MIB).bytes(), Some(8 * MIB));
    }

    #[test]
    fn a_smaller_buffer_than_autotunings_is_not_set() {
        let receive = Kernel { side: Side::Receive, ..kernel(4 * MIB, 212_992) };
        let advice = advise(path(10 * MIB), receive, 64 * MIB);
        let (want, have, sysctl) = (25 * MIB, 4 * MIB, "net.ipv4.tcp_rmem");
        assert_eq!(advice, Advice::CeilingTooLow { want, have, sysctl, bdp: 10 * MIB });
        assert_eq!(
            advice.to_string(),
            "left to kernel autotuning, which is too small: the path needs 10 MiB or more, net.ipv4.tcp_rmem's third value is 4 MiB \
             and should be 25 MiB"
        );
        // With the limit raised to what is said, autotuning does it.
        assert!(matches!(
            advise(path(10 * MIB), Kernel { autotune_max: want, ..receive }, 64 * MIB),
            Advice::Leave { reason: Leave::Suffices { .. } }
        ));
    }

    #[test]
    fn the_ceiling_holds() {
        let advice = advise(path(10 * MIB), kernel(64 * MIB, 64 * MIB), MIB);
        assert_eq!(
            (advice.bytes(), advice.to_string().as_str()),
            (Some(MIB), "send buffer set to 1 MiB, the ceiling that was asked for; the path needs 10 MiB")
        );
        let advice = advise(path(10 * MIB), kernel(4 * MIB, MIB), 3 * MIB);
        assert_eq!(advice.bytes(), None);
        assert!(advice.to_string().contains("gets as far as the ceiling of 3 MiB"), "{advice}");
    }

    #[test]
    fn what_is_told_is_what_the_kernel_makes() {
        let kernel = Kernel { setsockopt_min: 2304, ..kernel(64 * MIB, 64 * MIB) };
        let advice = advise(path(10 * MIB), kernel, 1);
        assert_eq!(advice.bytes(), Some(2304));
        assert_eq!(
            advice.to_string(),
            "send buffer set to 2.2 KiB, the least that the kernel makes, instead of the ceiling that was asked for; the path needs \
             10 MiB"
        );
        let advice = advise(path(10 * MIB), kernel, 2304);
        let Advice::Set { bytes: 2304, reason: Set::Ceiling { .. } } = advice else { panic!("{advice}") };
    }

    /// A rate that the buffer itself limits leads to a larger buffer, until the path is the limit.
    #[test]
    fn it_grows_to_the_path() {
        let rtt = Duration::from_millis(100);
        let (kernel, path) = (kernel(MIB, 256 * MIB), 20 * MIB);
        let mut data = kernel.autotuned_data();
        for _ in 0..10 {
            let seen = Path { rtt: Some(rtt), rate: Some(data.min(path) * 10) };
            data = advise(seen, kernel, 256 * MIB).bytes().unwrap_or(data);
        }
        assert_eq!(data, 2 * path);
    }

    proptest! {
        #[test]
        fn whatever_is_set_is_within_all_limits_and_worth_it(
            bdp in 0..1u64 << 40, autotune in 0..1u64 << 34, setsockopt in 0..1u64 << 34, ceiling in 1..1u64 << 34,
        ) {
            let advice = advise(path(bdp), kernel(autotune, setsockopt), ceiling);
            let _ = advice.to_string();
            if let Advice::Set { bytes, reason } = advice {
                prop_assert!(bytes <= ceiling && bytes <= setsockopt && bytes <= bdp * FIXED);
                match reason {
                    Set::Ceiling { .. } => prop_assert_eq!(bytes, ceiling),
                    Set::Least { .. } => prop_assert!(false, "no ceiling is below 0"),
                    Set::AutotuningTooLow { .. } => prop_assert!(bytes > autotune / BOOKKEEPING),
                }
            }
        }

        #[test]
        fn no_number_overflows(rtt: u64, rate: u64, autotune: u64, setsockopt: u64, ceiling: u64) {
            let path = Path { rtt: Some(Duration::from_micros(rtt)), rate: Some(rate) };
            let _ = advise(path, kernel(autotune, setsockopt), ceiling).to_string();
        }
    }
}
