//! Computes the settings that a link needs.

use super::Goal;

/// The largest window that TCP can announce (RFC 7323 section 2.2: 16 bits shifted by at most 14).
const LARGEST_WINDOW: u64 = 1 << 30;

/// Values of settings for a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Third value of net.ipv4.tcp_rmem and tcp_wmem, in bytes.
    pub autotune: u64,
    /// net.core.rmem_max and wmem_max, in bytes.
    pub setsockopt: u64,
    /// net.core.netdev_max_backlog, in packets; `None` below 10 Gbit/s, where the kernel's default
    /// is enough.
    pub backlog: Option<u64>,
    /// Length of the interface's transmit queue, in packets.
    pub queue_length: u64,
    /// net.core.optmem_max, in bytes, if MSG_ZEROCOPY is worth it at this rate.
    pub option_memory: Option<u64>,
}

impl Wanted {
    /// The published tables have one row for each kind of host. They follow a rule, which is used
    /// here between the rows too: the limit of a buffer is the power of two that holds the
    /// bandwidth-delay product, at least 32 MiB for 10 Gbit/s, 64 MiB for 25 and 40, and 1 GiB for
    /// 100; programs may ask for twice that. So one stream fills the link if it can use the whole
    /// buffer for data, and two streams fill it in any case, because the kernel's bookkeeping takes
    /// up to half of a buffer.
    pub fn of(goal: &Goal) -> Self {
        let gigabits = goal.bits() / 1e9;
        // A user who writes 9.9 also means a link that is sold as 10 Gbit/s.
        let at_least = |rate: f64| gigabits >= rate * 0.95;
        let least = match () {
            () if at_least(100.0) => LARGEST_WINDOW,
            () if at_least(25.0) => 64 << 20,
            () if at_least(10.0) => 32 << 20,
            () => 16 << 20,
        };
        // Beyond 2^53 the cast would be inexact, but the limit of the window is far below.
        let product = goal.bdp().clamp(0.0, LARGEST_WINDOW as f64).ceil() as u64;
        let autotune = product.next_power_of_two().max(least).min(LARGEST_WINDOW);
        let backlogs = [
            (400.0, 1_000_000),
            (200.0, 750_000),
            (100.0, 500_000),
            (40.0, 400_000),
            (25.0, 300_000),
            (10.0, 250_000),
        ];
        Self {
            autotune,
            // The kernel keeps this value in an int.
            setsockopt: (autotune * 2).min(i32::MAX as u64),
            backlog: backlogs.iter().find(|&&(rate, _)| at_least(rate)).map(|&(_, packets)| packets),
            queue_length: if at_least(100.0) {
                25_000
            } else if at_least(10.0) {
                10_000
            } else {
                1000
            },
            option_memory: at_least(100.0).then_some(1 << 20),
        }
    }

    /// The number of streams that even a perfect host needs, because no window is larger than 1
    /// GiB.
    pub fn streams(goal: &Goal) -> u64 {
        (goal.bdp() / LARGEST_WINDOW as f64).ceil().max(1.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(gigabits: f64, milliseconds: f64) -> (u64, u64, Option<u64>) {
        let wanted = Wanted::of(&Goal { rate: gigabits * 1e9 / 8.0, rtt: milliseconds / 1e3 });
        (wanted.autotune, wanted.setsockopt, wanted.backlog)
    }

    #[test]
    fn wanted_follows_the_published_rows() {
        for (gigabits, milliseconds, autotune, setsockopt, backlog) in [
            (10.0, 25.0, 33_554_432, 67_108_864, 250_000),
            (10.0, 80.0, 134_217_728, 268_435_456, 250_000),
            (10.0, 100.0, 134_217_728, 268_435_456, 250_000),
            (10.0, 200.0, 268_435_456, 536_870_912, 250_000),
            (40.0, 10.0, 67_108_864, 134_217_728, 400_000),
            (40.0, 50.0, 268_435_456, 536_870_912, 400_000),
            (100.0, 1.0, 1_073_741_824, 2_147_483_647, 500_000),
            (100.0, 200.0, 1_073_741_824, 2_147_483_647, 500_000),
            (400.0, 1.0, 1_073_741_824, 2_147_483_647, 1_000_000),
        ] {
            assert_eq!(
                wanted(gigabits, milliseconds),
                (autotune, setsockopt, Some(backlog)),
                "{gigabits} {milliseconds}"
            );
        }
    }

    #[test]
    fn wanted_when_link_is_small_or_absurd_is_bounded() {
        assert_eq!(wanted(0.1, 10.0), (16 << 20, 32 << 20, None));
        assert_eq!(wanted(1.0, 300.0).0, 64 << 20);
        assert_eq!(wanted(1e12, 1e9).0, 1 << 30);
        let long = Goal { rate: 12.5e9, rtt: 0.2 };
        assert_eq!((Wanted::streams(&long), Wanted::of(&long).option_memory), (3, Some(1 << 20)));
    }
}
