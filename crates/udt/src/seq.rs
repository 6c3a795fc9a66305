//! Packet numbers: 31 bits that wrap around (draft-gg-udt-03, section 3).

/// The number of different packet numbers.
const MODULUS: u32 = 1 << 31;

/// A packet number on the network. The first bit is never set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seq(u32);

impl Seq {
    /// Takes the lower 31 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number % MODULUS)
    }

    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that is `n` packets later.
    #[must_use]
    pub const fn add(self, n: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a number modulo 2^31 fits")]
        Self::new(self.0.wrapping_add((n % MODULUS as u64) as u32))
    }

    /// How many packets `self` is after `earlier`; negative if it is before it. The numbers must
    /// be less than 2^30 packets apart.
    pub const fn since(self, earlier: Self) -> i32 {
        (self.0.wrapping_sub(earlier.0) << 1).cast_signed() >> 1
    }

    /// The position, counted from the packet with the number `initial`, that `self` stands for.
    /// `near` is a position close to it. `None` if `self` is a number before `initial`.
    pub fn position(self, initial: Self, near: u64) -> Option<u64> {
        near.checked_add_signed(self.since(initial.add(near)).into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn add_beyond_the_last_number_wraps() {
        assert_eq!(Seq::new(0x7fff_ffff).add(1), Seq::new(0));
        assert_eq!(Seq::new(5).add(1 << 31), Seq::new(5));
    }

    #[test]
    fn since_across_the_wrap_is_the_distance() {
        let (before, after) = (Seq::new(0x7fff_fff0), Seq::new(0x10));
        assert_eq!((after.since(before), before.since(after)), (0x20, -0x20));
    }

    #[test]
    fn position_near_the_wrap_is_found_on_both_sides() {
        let initial = Seq::new(0x7fff_fff0);
        for near in [0, 5, (1 << 31) + 3, 7 << 31] {
            for offset in [-3_i64, 0, 40, 100_000] {
                let wanted = i64::try_from(near).unwrap() + offset;
                let seq = initial.add(u64::try_from(wanted.rem_euclid(1 << 31)).unwrap());
                assert_eq!(seq.position(initial, near), u64::try_from(wanted).ok());
            }
        }
    }
}
