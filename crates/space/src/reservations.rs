//! Reservations: bytes that are held for later files of a user.
//!
//! A reservation is charged to its accounts with what is left of it. An open file that draws on it
//! takes over the charge byte by byte, so that the accounts do not change; what a file gives up
//! while it is open returns. So the accounts hold the files and what is left of all reservations,
//! at any time. A reservation gives nothing after its end, and is charged until
//! [`Book::expire`] removes it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::book::{AccountId, Accounts, Book};
use crate::limits::Refusal;

/// The name of a reservation.
pub type Token = Arc<str>;

/// Bytes that are held for a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub token: Token,
    pub user: String,
    pub accounts: Accounts,
    /// The directory of the host for which the bytes were reserved.
    pub directory: String,
    /// The device of the directory.
    pub device: u64,
    pub bytes: u64,
    /// The bytes that no file has drawn.
    pub left: u64,
    /// In seconds since 1970.
    pub end: u64,
}

/// The bytes that an open file has drawn on a reservation.
pub(crate) struct Drawing {
    pub(crate) token: Token,
    pub(crate) bytes: u64,
}

#[derive(Default)]
pub(crate) struct Reservations {
    all: HashMap<Token, Reservation>,
    changed: BTreeSet<Token>,
}

impl Reservations {
    pub(crate) fn is_there(&self, token: &str) -> bool {
        self.all.contains_key(token)
    }

    /// The drawing of a file that counts in `accounts`.
    pub(crate) fn drawing(&self, token: &str, accounts: &[AccountId]) -> Option<Drawing> {
        let reservation = self.all.get(token)?;
        let same = reservation.accounts.len() == accounts.len()
            && accounts.iter().all(|id| reservation.accounts.contains(id));
        same.then(|| Drawing { token: Arc::clone(&reservation.token), bytes: 0 })
    }

    /// The bytes, at most `wanted`, that a file would get.
    pub(crate) fn can_give(&self, drawing: Option<&Drawing>, wanted: u64, now: u64) -> u64 {
        let reservation = drawing.and_then(|drawing| self.all.get(&drawing.token));
        reservation
            .filter(|reservation| now < reservation.end)
            .map_or(0, |reservation| reservation.left.min(wanted))
    }

    /// As [`Self::can_give`], and gives them.
    pub(crate) fn give(&mut self, drawing: Option<&mut Drawing>, wanted: u64, now: u64) -> u64 {
        let given = self.can_give(drawing.as_deref(), wanted, now);
        if let Some(drawing) = drawing.filter(|_| given > 0)
            && let Some(reservation) = self.all.get_mut(&drawing.token)
        {
            reservation.left -= given;
            drawing.bytes += given;
            self.changed.insert(Arc::clone(&drawing.token));
        }
        given
    }

    /// A file gives up bytes, and those that it has drawn return. The result is their number.
    pub(crate) fn take_back(&mut self, drawing: Option<&mut Drawing>, bytes: u64) -> u64 {
        let Some(drawing) = drawing else { return 0 };
        let Some(reservation) = self.all.get_mut(&drawing.token) else { return 0 };
        let returned = drawing.bytes.min(bytes);
        drawing.bytes -= returned;
        reservation.left += returned;
        self.changed.insert(Arc::clone(&drawing.token));
        returned
    }

    /// The bytes that are left in all reservations of an account.
    pub(crate) fn left_in(&self, id: AccountId) -> u64 {
        let concerned = self.all.values().filter(|reservation| reservation.accounts.contains(&id));
        concerned.fold(0, |sum, reservation| sum.saturating_add(reservation.left))
    }
}

impl Book {
    /// Charges the accounts of a reservation for all of its bytes. No other one has its token.
    ///
    /// # Errors
    /// They do not fit.
    pub fn reserve(&mut self, reservation: Reservation, now: u64) -> Result<(), Refusal> {
        self.check(&reservation.accounts, reservation.left, 0, now)?;
        self.add(&Arc::clone(&reservation.accounts), reservation.left, 0, now);
        self.reservations.changed.insert(Arc::clone(&reservation.token));
        self.restore_reservation(reservation);
        Ok(())
    }

    /// Enters a reservation that was made before a restart: its accounts are charged already.
    pub fn restore_reservation(&mut self, reservation: Reservation) {
        self.reservations.all.insert(Arc::clone(&reservation.token), reservation);
    }

    /// Moves the end of a reservation, in seconds since 1970, and returns it.
    pub fn extend(&mut self, token: &str, end: u64) -> Option<Reservation> {
        let reservation = self.reservations.all.get_mut(token)?;
        reservation.end = end;
        self.reservations.changed.insert(Arc::clone(&reservation.token));
        Some(reservation.clone())
    }

    /// Ends a reservation, and returns it. Files keep what they have drawn.
    pub fn release(&mut self, token: &str, now: u64) -> Option<Reservation> {
        let reservation = self.reservations.all.remove(token)?;
        self.subtract(&reservation.accounts, reservation.left, 0, now);
        self.reservations.changed.insert(Arc::clone(&reservation.token));
        Some(reservation)
    }

    /// Ends the reservations whose time is over, and returns them.
    pub fn expire(&mut self, now: u64) -> Vec<Reservation> {
        let over = self.reservations().filter(|reservation| reservation.end <= now);
        let over: Vec<_> = over.map(|reservation| Arc::clone(&reservation.token)).collect();
        over.iter().filter_map(|token| self.release(token, now)).collect()
    }

    pub fn reservation(&self, token: &str) -> Option<&Reservation> {
        self.reservations.all.get(token)
    }

    /// All reservations.
    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.reservations.all.values()
    }

    /// Takes the reservations that have changed since the last call, each once: `None` if it has
    /// ended.
    pub fn take_changed_reservations(&mut self) -> Vec<(Token, Option<Reservation>)> {
        let changed = std::mem::take(&mut self.reservations.changed);
        let state = |token: Token| {
            let reservation = self.reservation(&token).cloned();
            (token, reservation)
        };
        changed.into_iter().map(state).collect()
    }
}
