//! The streams of a channel to a striped server, which has several addresses.

use crate::{Auto, TuningOptions};

/// How a number of streams becomes one for each address of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    addresses: u32,
    /// The number is of all addresses together, as those of a tuner are.
    divided: bool,
    /// Most streams to each address, if the number is of each.
    most: u32,
}

impl Spread {
    /// `tuned`: the number is that of a tuner.
    pub(crate) fn of(options: &TuningOptions, tuned: bool, addresses: u32) -> Self {
        match options.streams {
            Auto::Set(_) => Self::fixed(addresses),
            Auto::Auto if tuned => Self::tuned(addresses),
            Auto::Auto => Self::untuned(addresses, options.max_streams),
        }
    }

    /// The number that the user has set is of each address.
    pub(crate) fn fixed(addresses: u32) -> Self {
        Self { addresses: addresses.max(1), divided: false, most: u32::MAX }
    }

    /// The default of a path is of each address, as far as all together are at most `most`.
    pub(crate) fn untuned(addresses: u32, most: u32) -> Self {
        let addresses = addresses.max(1);
        Self { addresses, divided: false, most: (most / addresses).max(1) }
    }

    /// A tuner's number is of all addresses together.
    pub(crate) fn tuned(addresses: u32) -> Self {
        Self { divided: true, ..Self::fixed(addresses) }
    }

    pub(crate) fn addresses(self) -> u32 {
        self.addresses
    }

    /// Streams to each address: at least one, because each host of a striped server waits for an
    /// end of file.
    pub(crate) fn each(self, streams: u32) -> u32 {
        let each = if self.divided { streams / self.addresses } else { streams.min(self.most) };
        each.max(1)
    }

    /// The connections of a channel with `each` streams to each address.
    pub(crate) fn all(self, each: u32) -> u32 {
        each.saturating_mul(self.addresses)
    }

    /// The connections that a channel has for this number of streams.
    pub(crate) fn connections(self, streams: u32) -> u32 {
        self.all(self.each(streams))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_streams_hold_for_all_addresses_together() {
        assert_eq!([128, 127, 5, 3, 0].map(|n| Spread::tuned(4).connections(n)), [128, 124, 4, 4, 4]);
        // Each address needs a connection, also if fewer are allowed.
        assert_eq!([16, 8, 4, 3].map(|most| Spread::untuned(4, most).connections(8)), [16, 8, 4, 4]);
        assert_eq!(Spread::untuned(4, 128).connections(8), 32);
        // The number that the user has set is of each address.
        assert_eq!(Spread::fixed(4).connections(8), 32);
        for one in [Spread::fixed(1), Spread::untuned(1, 128), Spread::tuned(1)] {
            assert_eq!((one.each(8), one.connections(8), one.connections(0)), (8, 8, 1));
        }
    }
}
