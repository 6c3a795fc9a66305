//! What a link needs, as numbers.

use super::Goal;

/// TCP cannot announce a larger window (RFC 7323 section 2.2: 16 bits shifted by at most 14).
const LARGEST_WINDOW: u64 = 1 << 30;

/// Numbers that hold for a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Third value of net.ipv4.tcp_rmem and tcp_wmem, in bytes.
    pub autotune: u64,
    /// net.core.rmem_max and wmem_max, in bytes.
    pub setsockopt: u64,
    /// net.core.netdev_max_backlog, in packets; below 10 Gbit/s the kernel's own does.
    pub backlog: Option<u64>,
    /// Packets in front of the interface.
    pub queue_length: u64,
    /// net.core.optmem_max, in bytes, where MSG_ZEROCOPY is worth it.
    pub option_memory: Option<u64>,
}

impl Wanted {
    /// The published tables have one row for each kind of host; they follow a rule, which is used here between the
    /// rows too: a buffer's limit is the power of two that holds the bandwidth-delay product, at least 32 MiB for 10,
    /// 64 MiB for 25 and 40, 1 GiB for 100 Gbit/s; programs may ask for twice of it. So one stream that uses all of
    /// the buffer for data fills the link, and two streams do in any case (the kernel's bookkeeping takes up to
    /// half).
    pub fn of(goal: &Goal) -> Self {
        let gigabits = goal.bits() / 1e9;
        // A link that is sold as 10 Gbit/s is meant by 9.9 as well.
        let at_least = |rate: f64| gigabits >= rate * 0.95;
        let least = match () {
            () if at_least(100.0) => LARGEST_WINDOW,
            () if at_least(25.0) => 64 << 20,
            () if at_least(10.0) => 32 << 20,
            () => 16 << 20,
        };
        // Beyond 2^53 the cast would be inexact, but the window's limit is far below.
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
            // An int in the kernel.
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

    /// Streams that are needed although nothing is wrong, since no window is larger than 1 GiB.
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
    fn the_published_rows() {
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
    fn small_and_absurd_links() {
        assert_eq!(wanted(0.1, 10.0), (16 << 20, 32 << 20, None));
        assert_eq!(wanted(1.0, 300.0).0, 64 << 20);
        assert_eq!(wanted(1e12, 1e9).0, 1 << 30);
        let long = Goal { rate: 12.5e9, rtt: 0.2 };
        assert_eq!((Wanted::streams(&long), Wanted::of(&long).option_memory), (3, Some(1 << 20)));
    }
}
