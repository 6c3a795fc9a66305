//! Reservations of transfer slots and of a rate, each for a window of time.
//!
//! A reservation counts for the whole of its window from the moment it is made, so that the sum of
//! overlapping ones is never above the capacity. Until its user keeps it for good, it has a short
//! lease: one that is not extended ends, and leaves its window to others. Times are seconds since
//! 1970 by one clock, which the caller reads. The clock may jump: windows stay as they were made.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// More reservations of all users together are refused.
const MOST: usize = 10_000;

/// Slots and a rate that are reserved for a user during a window.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Booking {
    pub token: String,
    pub user: String,
    /// Transfers at a time.
    pub slots: u32,
    /// Bytes per second.
    pub rate: u64,
    /// The begin of the window.
    pub from: u64,
    /// The end of the window.
    pub until: u64,
    /// The end of the lease, at most that of the window.
    pub lease: u64,
}

impl Booking {
    /// Whether it has not ended.
    fn is_there(&self, now: u64) -> bool {
        now < self.until.min(self.lease)
    }

    /// Whether its window has begun, and it has not ended.
    pub fn is_in_force(&self, now: u64) -> bool {
        self.from <= now && self.is_there(now)
    }
}

/// The time until the next of these windows begins, or a reservation ends. `clock` is the time
/// since 1970. `None`: all have ended.
pub fn next_change(bookings: &[Booking], clock: Duration) -> Option<Duration> {
    let times = bookings.iter().flat_map(|booking| [booking.from, booking.until.min(booking.lease)]);
    let left = times.filter_map(|time| Duration::from_secs(time).checked_sub(clock));
    left.filter(|left| !left.is_zero()).min()
}

/// The most that can be reserved at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Transfers at a time, of all users.
    pub slots: u32,
    /// Bytes per second, of all users.
    pub rate: u64,
    /// Bytes per second that the limits of the user let through; `None`: all.
    pub user_rate: Option<u64>,
    /// Reservations of the user.
    pub reservations: u32,
}

/// The reason for which nothing is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("The window ends before it begins.")]
    Reversed,
    #[error("The window is over.")]
    Past,
    #[error("You have {has} reservations, and may have {most}.")]
    TooMany { has: usize, most: u32 },
    #[error("The server has too many reservations.")]
    Full,
    #[error("{left} of {most} slots can be reserved in this window, and {wanted} are needed.")]
    Slots { left: u64, most: u32, wanted: u32 },
    #[error("{left} of {most} bytes/s can be reserved in this window, and {wanted} are needed.")]
    Rate { left: u64, most: u64, wanted: u64 },
    #[error("Your limit lets {left} of {most} bytes/s be reserved in this window, and {wanted} are needed.")]
    UserRate { left: u64, most: u64, wanted: u64 },
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    bookings: Vec<Booking>,
}

impl Calendar {
    /// Adds a reservation. Its lease is shortened to its window. Those that have ended are removed:
    /// they must not be there again beside it if the clock is set back.
    ///
    /// # Errors
    /// The window makes no sense, or what is reserved in it leaves too little.
    pub fn reserve(&mut self, booking: Booking, capacity: &Capacity, now: u64) -> Result<(), Refusal> {
        if booking.until <= booking.from {
            return Err(Refusal::Reversed);
        }
        if booking.until <= now {
            return Err(Refusal::Past);
        }
        self.expire(now);
        let has = self.bookings.iter().filter(|other| other.user == booking.user).count();
        if has >= capacity.reservations as usize {
            return Err(Refusal::TooMany { has, most: capacity.reservations });
        }
        if self.bookings.len() >= MOST {
            return Err(Refusal::Full);
        }
        let Booking { slots, rate, .. } = booking;
        let (reserved_slots, reserved_rate) = self.peak(&booking, |_| true);
        let left = u64::from(capacity.slots).saturating_sub(reserved_slots);
        if u64::from(slots) > left {
            return Err(Refusal::Slots { left, most: capacity.slots, wanted: slots });
        }
        let left = capacity.rate.saturating_sub(reserved_rate);
        if rate > left {
            return Err(Refusal::Rate { left, most: capacity.rate, wanted: rate });
        }
        if let Some(most) = capacity.user_rate {
            let (_, own) = self.peak(&booking, |other| other.user == booking.user);
            let left = most.saturating_sub(own);
            if rate > left {
                return Err(Refusal::UserRate { left, most, wanted: rate });
            }
        }
        let lease = booking.lease.min(booking.until);
        self.bookings.push(Booking { lease, ..booking });
        Ok(())
    }

    /// Adds a reservation that was made before.
    pub fn restore(&mut self, booking: Booking) {
        self.bookings.push(booking);
    }

    /// Moves the end of a lease, at most to the end of the window. `None`: the user has no such
    /// reservation, or it has ended.
    pub fn extend(&mut self, token: &str, user: &str, lease: u64, now: u64) -> Option<&Booking> {
        let of_user = |booking: &&mut Booking| booking.token == token && booking.user == user;
        let booking = self.bookings.iter_mut().find(of_user).filter(|booking| booking.is_there(now))?;
        booking.lease = lease.min(booking.until);
        Some(booking)
    }

    /// Ends a reservation of a user. Returns `None` if it has none with this token.
    pub fn release(&mut self, token: &str, user: &str) -> Option<Booking> {
        let of_user = |booking: &Booking| booking.token == token && booking.user == user;
        let at = self.bookings.iter().position(of_user)?;
        Some(self.bookings.remove(at))
    }

    /// Removes those that have ended.
    pub fn expire(&mut self, now: u64) -> Vec<Booking> {
        self.bookings.extract_if(.., |booking| !booking.is_there(now)).collect()
    }

    /// A reservation of a user that has not ended.
    pub fn get(&self, token: &str, user: &str, now: u64) -> Option<&Booking> {
        let of_user = |booking: &&Booking| booking.token == token && booking.user == user;
        self.bookings.iter().find(of_user).filter(|booking| booking.is_there(now))
    }

    /// All of them, also those that have ended and were not removed.
    pub fn bookings(&self) -> &[Booking] {
        &self.bookings
    }

    /// The most slots, and the highest rate, that those of `which` reserve at any moment of a
    /// window.
    fn peak(&self, window: &Booking, which: impl Fn(&Booking) -> bool) -> (u64, u64) {
        let overlaps =
            |other: &&Booking| other.from < window.until && window.from < other.until && which(other);
        // A sum grows only where a reservation begins.
        let mut changes: Vec<(u64, bool, &Booking)> = self
            .bookings
            .iter()
            .filter(overlaps)
            .flat_map(|other| [(other.from.max(window.from), true, other), (other.until, false, other)])
            .collect();
        // At the same time, those that end come first.
        changes.sort_unstable_by_key(|(time, begins, _)| (*time, *begins));
        let (mut slots, mut rate, mut most_slots, mut most_rate) = (0_u64, 0_u128, 0, 0);
        for (_, begins, other) in changes {
            if begins {
                slots += u64::from(other.slots);
                rate += u128::from(other.rate);
            } else {
                slots -= u64::from(other.slots);
                rate -= u128::from(other.rate);
            }
            (most_slots, most_rate) = (slots.max(most_slots), rate.max(most_rate));
        }
        (most_slots, u64::try_from(most_rate).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
