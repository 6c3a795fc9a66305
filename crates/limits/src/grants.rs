//! Bytes of a limit that another process may move: the payer has the limit, the spender moves.
//!
//! The payer charges chunks in the name of the spender and grants them when they are paid; the
//! spender never moves more than it was granted, and asks when half of its window is used up. All
//! messages carry running totals, so that one that is late, lost or repeated does no harm. A
//! spender that moves nothing returns what it has not used. An epoch counts how often a limit came
//! into force or was lifted: messages of an earlier epoch change no totals.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::division::Mark;

/// A chunk is paid at once: the bytes of this time at the share of the spender.
const CHUNK: f64 = 0.05;
/// The least chunk in bytes, also for rates that move it in more time.
const LEAST: u64 = 1 << 10;
/// A spender has at most this many chunks that are charged and not spent.
const WINDOW: u64 = 4;
/// A thread takes at most this part of the window at a time, so that others get some.
const PIECES: u64 = 8;
/// A spender that has moved nothing for this many looks returns what it has.
const IDLE: u32 = 5;

/// Totals are no larger, so that sums of them fit.
const MOST: u64 = u64::MAX / 2;

/// The message of the payer: the bytes that the spender may have moved since the beginning.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Grant {
    pub epoch: u32,
    /// `None`: no limit holds.
    pub total: Option<u64>,
    /// The spender asks for more when it has less than half of these bytes.
    pub window: u64,
}

/// The message of the spender.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Spent {
    /// The epoch and the total that the spender knows.
    pub epoch: u32,
    pub known: u64,
    /// The bytes that it has moved or returned since the beginning.
    pub spent: u64,
    /// Those of them that it has returned.
    pub returned: u64,
    /// It wants to move more.
    pub wants: bool,
}

/// The flow of a division that pays for a spender.
pub trait Purse {
    /// The rate at which it pays, in bytes per second; `None`: no limit holds at present.
    fn share(&self) -> Option<u64>;
    /// Adds to its debt. `None`: it is paid already.
    fn charge(&self, bytes: u64) -> Option<Mark>;
    /// The time until a debt is paid, if nothing changes; `None`: it is paid.
    fn due(&self, mark: Mark) -> Option<Duration>;
    /// Bytes that were charged will not be moved.
    fn refund(&self, bytes: u64);
}

/// The payer's side of one spender.
#[derive(Debug)]
pub struct Account {
    epoch: u32,
    limited: bool,
    /// Totals of the spender's reports.
    spent: u64,
    returned: u64,
    wants: bool,
    /// Running totals; what is charged and not granted is in `pending`.
    granted: u64,
    charged: u64,
    pending: VecDeque<(u64, Option<Mark>)>,
    /// The bytes that were spent while no limit held are not known yet.
    lifted: bool,
    /// The spender has not got the grant as it is now.
    changed: bool,
}

impl Default for Account {
    fn default() -> Self {
        Self::new()
    }
}

impl Account {
    /// For a spender that has nothing.
    pub fn new() -> Self {
        Self {
            epoch: 0,
            limited: true,
            spent: 0,
            returned: 0,
            wants: false,
            granted: 0,
            charged: 0,
            pending: VecDeque::new(),
            lifted: false,
            changed: false,
        }
    }

    /// Takes a report of the spender.
    pub fn report(&mut self, report: &Spent, purse: &(impl Purse + ?Sized)) {
        let late = report.spent < self.spent || report.returned < self.returned;
        self.spent = self.spent.max(report.spent.min(MOST));
        let mut returned = report.returned.saturating_sub(self.returned);
        self.returned = self.returned.max(report.returned);
        if report.epoch != self.epoch {
            self.changed |= report.epoch < self.epoch;
            return;
        }
        self.changed |= self.limited && report.known < self.granted;
        if !self.limited {
            return;
        }
        if std::mem::take(&mut self.lifted) {
            // It was moved while no limit held, and what was returned belongs to the time before.
            returned = 0;
            self.granted = self.granted.max(self.spent);
            self.charged = self.charged.max(self.spent);
        }
        if returned > 0 {
            purse.refund(returned);
        }
        if !late {
            self.wants = report.wants;
        }
        if !self.wants {
            self.cancel(purse);
        }
    }

    /// Charges and grants what is due. Returns the grant that the spender has to get, and the time
    /// after which there is more to do.
    pub fn settle(&mut self, purse: &(impl Purse + ?Sized)) -> (Option<Grant>, Option<Duration>) {
        let share = purse.share();
        if share.is_some() != self.limited {
            self.cancel(purse);
            self.limited = share.is_some();
            self.lifted = self.limited;
            (self.granted, self.charged) = (self.spent, self.spent);
            self.epoch += 1;
            self.changed = true;
        }
        let Some(share) = share else {
            let grant = Grant { epoch: self.epoch, total: None, window: 0 };
            return (std::mem::take(&mut self.changed).then_some(grant), None);
        };
        let chunk = ((share as f64 * CHUNK) as u64).max(LEAST);
        let window = chunk.saturating_mul(WINDOW);
        // A spender that had no limit reports first.
        while self.wants && !self.lifted && self.charged.saturating_sub(self.spent) < window {
            // Bytes that were read ahead of the grant are charged at once.
            let chunk = chunk.max(self.spent.saturating_sub(self.charged));
            self.charged = self.charged.saturating_add(chunk);
            self.pending.push_back((self.charged, purse.charge(chunk)));
        }
        let mut next = None;
        while let Some((total, mark)) = self.pending.front() {
            if let Some(due) = mark.and_then(|mark| purse.due(mark)) {
                next = Some(due);
                break;
            }
            self.granted = *total;
            self.changed = true;
            self.pending.pop_front();
        }
        let grant = Grant { epoch: self.epoch, total: Some(self.granted), window };
        (std::mem::take(&mut self.changed).then_some(grant), next)
    }

    /// A transfer begins: returns the grant with which the spender may start.
    pub fn begin(&mut self, purse: &(impl Purse + ?Sized)) -> Grant {
        self.wants = true;
        self.changed = true;
        let (grant, _) = self.settle(purse);
        grant.unwrap_or(Grant { epoch: self.epoch, total: Some(self.granted), window: 0 })
    }

    /// The spender is gone. It may have moved what it was granted and has not reported.
    pub fn close(&mut self, purse: &(impl Purse + ?Sized)) {
        self.wants = false;
        self.cancel(purse);
    }

    /// Charges no more, and takes back what is not granted yet.
    fn cancel(&mut self, purse: &(impl Purse + ?Sized)) {
        self.pending.clear();
        let refund = self.charged.saturating_sub(self.granted);
        self.charged -= refund;
        if refund > 0 {
            purse.refund(refund);
        }
        // A spender that reads ahead has moved a little more than it was granted.
        let owed = if self.limited && !self.lifted { self.spent.saturating_sub(self.charged) } else { 0 };
        if owed > 0 {
            self.granted += owed;
            self.charged += owed;
            let _ = purse.charge(owed);
        }
    }
}

/// The spender's side: the bytes that it may move.
#[derive(Debug)]
pub struct Allowance {
    epoch: u32,
    /// `None`: no limit holds.
    total: Option<u64>,
    window: u64,
    spent: u64,
    returned: u64,
    /// Taken by threads, and not moved yet.
    reserved: u64,
    /// A transfer is under way.
    active: bool,
    /// A thread has found nothing left.
    waits: bool,
    /// It has reported since the last grant.
    asked: bool,
    /// The looks since bytes have moved.
    idle: u32,
    looked_at: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        Self::new()
    }
}

impl Allowance {
    /// Of a spender that has got no grant yet.
    pub fn new() -> Self {
        Self {
            epoch: 0,
            total: Some(0),
            window: 0,
            spent: 0,
            returned: 0,
            reserved: 0,
            active: false,
            waits: false,
            asked: false,
            idle: 0,
            looked_at: 0,
        }
    }

    pub fn is_limited(&self) -> bool {
        self.total.is_some()
    }

    /// Takes up to `most` bytes, at least one. `None`: nothing is left.
    pub fn take(&mut self, most: u64) -> Option<u64> {
        if !std::mem::replace(&mut self.active, true) {
            self.asked = false;
        }
        let taken = match self.left() {
            None => most,
            Some(0) => {
                self.waits = true;
                return None;
            }
            Some(left) => most.min((self.window / PIECES).max(LEAST)).min(left),
        };
        self.reserved = self.reserved.saturating_add(taken);
        Some(taken)
    }

    /// A thread that has taken `taken` bytes has moved `moved`, which is more if it has read ahead.
    pub fn moved(&mut self, taken: u64, moved: u64) {
        self.reserved = self.reserved.saturating_sub(taken);
        self.spent = self.spent.saturating_add(moved);
    }

    pub fn grant(&mut self, grant: &Grant) {
        if grant.epoch < self.epoch {
            return;
        }
        let total = match (self.total, grant.total) {
            (Some(known), Some(total)) if grant.epoch == self.epoch => Some(total.max(known)),
            (_, total) => total,
        };
        self.asked &= grant.epoch == self.epoch && total == self.total;
        (self.epoch, self.total, self.window) = (grant.epoch, total, grant.window);
        self.waits &= self.left() == Some(0);
    }

    /// The report that is due because half of the window is used up, or because a limit has just
    /// come into force.
    pub fn report(&mut self) -> Option<Spent> {
        if !self.is_report_due() {
            return None;
        }
        self.asked = true;
        Some(self.spent())
    }

    /// Whether [`Self::report`] has one.
    pub fn is_report_due(&self) -> bool {
        !self.asked && self.left().is_some_and(|left| self.waits || left < self.window / 2)
    }

    /// To be called several times a second. Returns a report that is repeated, or with which unused
    /// bytes are returned.
    pub fn look(&mut self) -> Option<Spent> {
        let left = self.left()?;
        if self.waits {
            self.asked = true;
            return Some(self.spent());
        }
        if std::mem::replace(&mut self.looked_at, self.spent) != self.spent || left == 0 {
            self.idle = 0;
            return None;
        }
        self.idle += 1;
        (self.idle >= IDLE).then(|| self.give_up())
    }

    /// A transfer has ended: returns all bytes that are left.
    pub fn end(&mut self) -> Option<Spent> {
        let used = std::mem::take(&mut self.active) || self.left() > Some(0);
        self.waits = false;
        (used && self.is_limited()).then(|| self.give_up())
    }

    fn give_up(&mut self) -> Spent {
        let left = self.left().unwrap_or_default();
        self.spent += left;
        self.returned += left;
        (self.active, self.idle, self.asked) = (false, 0, true);
        self.spent()
    }

    fn spent(&self) -> Spent {
        let known = self.total.unwrap_or_default();
        let Self { epoch, spent, returned, active: wants, .. } = *self;
        Spent { epoch, known, spent, returned, wants }
    }

    /// The bytes that threads may take; `None`: no limit holds.
    fn left(&self) -> Option<u64> {
        self.total.map(|total| total.saturating_sub(self.spent).saturating_sub(self.reserved))
    }
}

#[cfg(test)]
mod tests;
