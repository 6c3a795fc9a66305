//! Decides whether to set the socket buffer of a data connection, and to which size: for ABUF
//! (GFD.20) and similar commands.
//!
//! Setting SO_SNDBUF or SO_RCVBUF disables the kernel's autotuning of that buffer, so this is done
//! only if autotuning cannot reach the required size. The required size is the bandwidth-delay
//! product (BDP), the number of bytes that a path holds: a connection with fewer bytes in flight
//! cannot fill the path.
//!
//! A rate that was measured with a buffer that is too small is limited by the buffer and not by the
//! path; the computed BDP then equals the buffer. The margins ensure that such a rate leads to a
//! larger buffer the next time, until the rate no longer grows.

use std::fmt;
use std::time::Duration;

/// Autotuning must be able to reach this multiple of the BDP: 5/4.
const MARGIN: (u64, u64) = (5, 4);
/// The size of a fixed buffer in multiples of the BDP: the queue before the bottleneck may be as
/// long as the path, and retransmitted data stays in the buffer meanwhile.
const FIXED: u64 = 2;
/// The limit of autotuning includes the kernel's bookkeeping, which takes about as much memory as
/// the data (tcp(7), tcp_adv_win_scale). SO_SNDBUF and SO_RCVBUF do not include it: the kernel
/// doubles them (socket(7)).
const BOOKKEEPING: u64 = 2;

/// The measured properties of one connection's path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Round-trip time without queues: the smallest that was measured.
    pub rtt: Option<Duration>,
    /// Bytes per second that one connection transferred.
    pub rate: Option<u64>,
}

impl Path {
    /// The number of bytes that fill the path; `None` if a measurement is missing.
    pub fn bdp(&self) -> Option<u64> {
        let bytes = u128::from(self.rate?) * self.rtt?.as_micros() / 1_000_000;
        Some(u64::try_from(bytes).unwrap_or(u64::MAX)).filter(|bytes| *bytes > 0)
    }
}

/// The send or the receive buffer.
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

/// The kernel's limits for the buffers of one side, in bytes, as the sysctls state them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    pub side: Side,
    pub autotune_max: u64,
    /// The size that SO_SNDBUF or SO_RCVBUF sets if a smaller one is requested.
    pub setsockopt_min: u64,
    pub setsockopt_max: u64,
}

impl Kernel {
    /// The amount of data that fits into the largest buffer of autotuning.
    fn autotuned_data(&self) -> u64 {
        self.autotune_max / BOOKKEEPING
    }
}

/// The advice for one buffer. `Display` explains it, for logs and users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Leave the size to autotuning.
    Leave { reason: Leave },
    /// Set SO_SNDBUF or SO_RCVBUF to `bytes`.
    Set { bytes: u64, reason: Set },
    /// Leave the size to autotuning. Its limit is too small for the path, but a fixed buffer would
    /// be even smaller: the administrator has to raise the limits of the host.
    CeilingTooLow {
        /// The smallest sufficient third value of `sysctl`.
        want: u64,
        /// The current third value of `sysctl`.
        have: u64,
        sysctl: &'static str,
        bdp: u64,
    },
}

/// Why autotuning is left enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// No data has been transferred yet, or the round-trip time is unknown.
    Unknown,
    /// Autotuning can reach the required size.
    Suffices { side: Side, autotune_max: u64, bdp: u64 },
    /// Autotuning reaches the session's ceiling, or more than a fixed buffer below the ceiling
    /// would.
    CeilingReached { side: Side, ceiling: u64, bdp: u64 },
}

/// Why a fixed size is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Autotuning cannot reach the required size.
    AutotuningTooLow { side: Side, autotune_max: u64, bdp: u64, held_by: Option<HeldBy> },
    /// The session does not want a larger buffer, and autotuning would exceed the ceiling.
    Ceiling { side: Side, bdp: u64 },
    /// The session's ceiling is below the smallest buffer that the kernel makes.
    Least { side: Side, bdp: u64 },
}

/// The limit because of which a fixed buffer is smaller than wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    Session,
    /// The sysctl net.core.wmem_max or rmem_max.
    Setsockopt,
}

impl Advice {
    /// The size for SO_SNDBUF or SO_RCVBUF in bytes; `None` to leave it to autotuning.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            Self::Set { bytes, .. } => Some(*bytes),
            Self::Leave { .. } | Self::CeilingTooLow { .. } => None,
        }
    }
}

/// Returns the advice for one buffer of connections over `path`. `ceiling` is the largest size in
/// bytes that the session wants for SO_SNDBUF or SO_RCVBUF.
pub fn advise(path: Path, kernel: Kernel, ceiling: u64) -> Advice {
    let Some(bdp) = path.bdp() else {
        return Advice::Leave { reason: Leave::Unknown };
    };
    let Kernel { side, autotune_max, setsockopt_min, setsockopt_max } = kernel;
    let needed = bdp.saturating_mul(MARGIN.0) / MARGIN.1;
    let reached = kernel.autotuned_data();
    if ceiling < needed {
        // Autotuning would exceed the size that the session wants.
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
        // Only the kernel's limit can be that low, because the ceiling is at least the required
        // size.
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

/// A number of bytes for display: `1.2 MiB`.
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

    /// A path that needs `bdp` bytes.
    fn path(bdp: u64) -> Path {
        Path { rtt: Some(Duration::from_millis(100)), rate: Some(bdp * 10) }
    }

    fn kernel(autotune_max: u64, setsockopt_max: u64) -> Kernel {
        Kernel { side: Side::Send, autotune_max, setsockopt_min: 0, setsockopt_max }
    }

    #[test]
    fn advise_without_measurements_leaves_buffer() {
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
    fn advise_when_autotuning_suffices_leaves_buffer() {
        let advice = advise(path(6 * MIB / 5), kernel(6 * MIB, 212_992), 64 * MIB);
        assert_eq!(advice.bytes(), None);
        assert_eq!(advice.to_string(), "kernel autotuning suffices (ceiling 6 MiB, path needs 1.2 MiB)");
        // 40 ms at 1 Gbit/s need 4.8 MiB: half of 12 MiB, with a quarter to spare.
        let gigabit = Path { rtt: Some(Duration::from_millis(40)), rate: Some(125_000_000) };
        assert_eq!(advise(gigabit, kernel(12 * MIB, 64 * MIB), 64 * MIB).bytes(), None);
        assert_eq!(advise(gigabit, kernel(11 * MIB, 64 * MIB), 64 * MIB).bytes(), Some(10_000_000));
    }

    #[test]
    fn advise_when_autotuning_is_too_small_sets_buffer() {
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
        // The ceiling is below the requirement of the path, and still above the limit of
        // autotuning.
        assert_eq!(advise(path(10 * MIB), kernel(4 * MIB, 64 * MIB), 8 * MIB).bytes(), Some(8 * MIB));
    }

    #[test]
    fn advise_when_fixed_buffer_is_smaller_leaves_buffer() {
        let receive = Kernel { side: Side::Receive, ..kernel(4 * MIB, 212_992) };
        let advice = advise(path(10 * MIB), receive, 64 * MIB);
        let (want, have, sysctl) = (25 * MIB, 4 * MIB, "net.ipv4.tcp_rmem");
        assert_eq!(advice, Advice::CeilingTooLow { want, have, sysctl, bdp: 10 * MIB });
        assert_eq!(
            advice.to_string(),
            "left to kernel autotuning, which is too small: the path needs 10 MiB or more, net.ipv4.tcp_rmem's third value is 4 MiB \
             and should be 25 MiB"
        );
        // After the limit was raised as advised, autotuning suffices.
        assert!(matches!(
            advise(path(10 * MIB), Kernel { autotune_max: want, ..receive }, 64 * MIB),
            Advice::Leave { reason: Leave::Suffices { .. } }
        ));
    }

    #[test]
    fn advise_with_low_ceiling_respects_it() {
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
    fn advise_below_kernel_minimum_reports_real_size() {
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

    /// A rate that the buffer limits leads to a larger buffer, until the path is the limit.
    #[test]
    fn advise_repeatedly_grows_buffer_to_path() {
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
        fn advise_any_limits_respects_them(
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
        fn advise_extreme_numbers_never_overflows(rtt: u64, rate: u64, autotune: u64, setsockopt: u64, ceiling: u64) {
            let path = Path { rtt: Some(Duration::from_micros(rtt)), rate: Some(rate) };
            let _ = advise(path, kernel(autotune, setsockopt), ceiling).to_string();
        }
    }
}
