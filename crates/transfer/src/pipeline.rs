//! Files in flight over a session, or over a pair of sessions.

use std::collections::VecDeque;
use std::sync::Arc;

use bstr::ByteSlice;
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::reply::Reply;

use crate::slot::{Phase, Repeat};
use crate::{Checks, Failure, File, Moved, Purpose, Side, Sides, Slot, Submission};

/// The reply that a server gives to the commands behind an ABOR (RFC 959 section 4.1.3).
const ABORTED: u16 = 426;

/// Which ends are servers. An end that is no server is this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// From a server to here.
    Download,
    /// From here to a server.
    Upload,
    /// From one server to another; the data does not pass here.
    ThirdParty,
}

impl Route {
    /// Whether this end is a server.
    pub fn has(self, side: Side) -> bool {
        match side {
            Side::Source => self != Self::Upload,
            Side::Destination => self != Self::Download,
        }
    }

    /// Whether the data passes through this program.
    pub fn moves_here(self) -> bool {
        self != Self::ThirdParty
    }
}

/// The sessions of a pipeline, as far as commands depend on them.
pub trait Site<F: File, O> {
    /// How the file of this range, of which all has arrived, is to be verified. Commands that have
    /// been sent together with the transfer are not among them.
    fn checks(&self, slot: &Slot<F, O>) -> Checks;

    /// The commands that give a file its attributes and its name; none if the destination is here.
    fn naming(&self, file: &F) -> Vec<(Purpose, Command)>;
}

/// A command to be sent.
#[derive(Debug)]
pub struct Outgoing {
    /// The range that it is for.
    pub id: u64,
    pub side: Side,
    pub purpose: Purpose,
    pub command: Command,
}

/// A consequence of a reply that the driver has to act on.
#[derive(Debug)]
pub enum Heard {
    Nothing,
    /// A side has finished the transfer.
    Ended,
    /// An attribute was not set.
    NotPreserved {
        id: u64,
        reply: Reply,
    },
    /// The server does not report the size of the file.
    NotCompared {
        id: u64,
    },
}

/// The end of a range, or of the sessions.
pub enum Outcome<F: File, O> {
    /// It is done, and with it its file if [`Slot::is_last`].
    Finished(Slot<F, O>),
    /// It has failed; what is behind it goes on.
    Failed(Slot<F, O>),
    /// This range has failed, and nothing is known of the data behind it. The files before it may
    /// be finished with [`Pipeline::poll_before`]; then the sessions have to be closed.
    Desynchronized(u64),
}

/// The work that is left on a range whose session was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: it has arrived.
    Nothing,
    /// The file has arrived; whether it has its name is not known.
    Confirmation,
    /// It has to be moved again.
    Range,
}

/// A range whose session was lost.
pub struct Lost<F: File, O> {
    pub slot: Slot<F, O>,
    pub left: Left,
    /// Why it has failed; `None` if it is not to blame.
    pub error: Option<F::Error>,
    pub behind: Behind,
}

/// The files whose data may be in the place of a range whose session was lost: those before it. A
/// server that refuses a file takes its data for that of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// All have arrived: its data is where it belongs.
    Confirmed,
    /// One has not been confirmed. Until the server is through with the session, it may write wrong
    /// data in this file's place.
    Unconfirmed,
    /// One was refused: the data in this file's place may be that of another one.
    Refused,
}

/// See the description of the crate.
pub struct Pipeline<F: File, O> {
    route: Route,
    slots: VecDeque<Slot<F, O>>,
    /// The number of the first range.
    first: u64,
    /// Commands that have no final reply yet, by range.
    asks: Sides<VecDeque<(u64, Purpose)>>,
    outgoing: VecDeque<Outgoing>,
}

impl<F: File, O> Pipeline<F, O> {
    pub fn new(route: Route) -> Self {
        Self { route, slots: VecDeque::new(), first: 0, asks: Sides::default(), outgoing: VecDeque::new() }
    }

    pub fn route(&self) -> Route {
        self.route
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The ranges in flight, in the order in which they were submitted.
    pub fn slots(&self) -> impl DoubleEndedIterator<Item = &Slot<F, O>> {
        self.slots.iter()
    }

    pub fn front(&self) -> Option<&Slot<F, O>> {
        self.slots.front()
    }

    pub fn slot(&self, id: u64) -> Option<&Slot<F, O>> {
        self.slots.get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    pub fn slot_mut(&mut self, id: u64) -> Option<&mut Slot<F, O>> {
        self.slots.get_mut(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// The number of the first range in flight, or of the next one.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Puts a range at the end of the pipeline. Returns its number.
    pub fn submit(&mut self, submission: Submission<F, O>) -> u64 {
        self.push(submission, false)
    }

    /// Has the source compute the checksum of a file whose data others move.
    pub fn submit_checksum(&mut self, submission: Submission<F, O>) -> u64 {
        self.push(submission, true)
    }

    fn push(&mut self, submission: Submission<F, O>, checksum_only: bool) -> u64 {
        let id = self.first + self.slots.len() as u64;
        let (slot, commands) = Slot::new(submission, checksum_only);
        self.slots.push_back(slot);
        for (side, commands) in [(Side::Destination, commands.destination), (Side::Source, commands.source)] {
            for (purpose, command) in commands {
                self.ask(id, side, purpose, command);
            }
        }
        id
    }

    fn ask(&mut self, id: u64, side: Side, purpose: Purpose, command: Command) {
        self.asks[side].push_back((id, purpose));
        self.outgoing.push_back(Outgoing { id, side, purpose, command });
        let Some(slot) = self.slot_mut(id) else { return };
        let answers = &mut slot.answers[side];
        answers.due += 1;
        match purpose {
            Purpose::Checksum => answers.asked_checksum = true,
            Purpose::Version => answers.asked_version = true,
            _ => {}
        }
    }

    /// The next command to be sent.
    pub fn next_command(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    /// The oldest command of a side that has no final reply.
    pub fn oldest(&self, side: Side) -> Option<(u64, Purpose)> {
        self.asks[side].front().copied()
    }

    /// Commands without a final reply, of both sides.
    pub fn pending(&self) -> usize {
        self.asks.source.len() + self.asks.destination.len()
    }

    /// The first range whose data has not passed through this program.
    pub fn next_to_move(&self) -> Option<u64> {
        let at = self.slots.iter().position(|slot| slot.moved.is_none() && slot.error.is_none())?;
        Some(self.first + at as u64)
    }

    /// A file before this range was refused, so that nothing is known of its data.
    pub fn is_behind_refusal(&self, id: u64) -> bool {
        let before = usize::try_from(id.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.slots.iter().take(before).any(Slot::entangles)
    }

    /// A file has failed so that nothing may be sent behind it.
    pub fn is_entangled(&self) -> bool {
        self.slots.iter().any(Slot::entangles)
    }

    /// Replies are due for ranges before this one.
    pub fn is_due_before(&self, id: u64) -> bool {
        (self.first..id).zip(&self.slots).any(|(_, slot)| slot.due() > 0)
    }

    /// The data of a range has passed through this program.
    pub fn moved(&mut self, id: u64, moved: Moved) {
        if let Some(slot) = self.slot_mut(id) {
            slot.moved = Some(moved);
        }
    }

    /// A range has failed.
    pub fn fail(&mut self, id: u64, error: F::Error) {
        if let Some(slot) = self.slot_mut(id) {
            slot.error = Some(error);
        }
    }

    /// Failures do not count: the sessions are closed for another reason, and all is tried again.
    pub fn forgive(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.error = None);
    }

    /// A preliminary reply or a marker for the oldest command of a side. Returns the range, if it
    /// is about its transfer.
    pub fn preliminary(&mut self, side: Side) -> Option<u64> {
        let (id, purpose) = self.oldest(side)?;
        let slot = self.slot_mut(id).filter(|_| purpose == Purpose::Transfer)?;
        slot.answers[side].begun = true;
        Some(id)
    }

    /// The final reply to the oldest command of a side.
    pub fn reply(&mut self, side: Side, reply: Reply) -> Heard {
        let Some((id, purpose)) = self.asks[side].pop_front() else { return Heard::Nothing };
        let Some(slot) = self.slot_mut(id) else { return Heard::Nothing };
        slot.answers[side].due = slot.answers[side].due.saturating_sub(1);
        if reply.is_failure() {
            return Self::refused(slot, id, side, purpose, reply);
        }
        match purpose {
            Purpose::Replaced => slot.file.replaces(&reply),
            Purpose::Transfer => {
                let sum = answer::inline_checksum(&reply).map(|(_, sum)| sum);
                slot.answers[side].ended = Some(sum);
                return Heard::Ended;
            }
            Purpose::Checksum | Purpose::Size => {
                slot.reported[side] = Some(reply.text().to_str_lossy().into_owned());
            }
            Purpose::Version => {
                if let Err(error) = slot.file.is_source(&reply) {
                    slot.error.get_or_insert(error);
                }
            }
            Purpose::Hint
            | Purpose::Expect
            | Purpose::Begin
            | Purpose::Restart
            | Purpose::RenameFrom
            | Purpose::RenameTo
            | Purpose::Commit
            | Purpose::Attribute => {}
        }
        Heard::Nothing
    }

    fn refused(slot: &mut Slot<F, O>, id: u64, side: Side, purpose: Purpose, reply: Reply) -> Heard {
        let of_destination = side == Side::Destination;
        match purpose {
            // The source was there a moment ago, and all of it has come.
            Purpose::Hint | Purpose::Replaced | Purpose::Version => {}
            Purpose::Expect if reply.is_unknown_command() => slot.expectation_unknown = true,
            Purpose::Checksum
            | Purpose::Size
            | Purpose::RenameFrom
            | Purpose::RenameTo
            | Purpose::Commit
            | Purpose::Attribute
                if of_destination && reply.code() == ABORTED && slot.repeat == Repeat::Possible =>
            {
                slot.repeat = Repeat::Due;
            }
            Purpose::Attribute => return Heard::NotPreserved { id, reply },
            Purpose::Size if slot.file.is_in_place() => return Heard::NotCompared { id },
            Purpose::Size
            | Purpose::Checksum
            | Purpose::Expect
            | Purpose::Begin
            | Purpose::Restart
            | Purpose::Transfer
            | Purpose::RenameFrom
            | Purpose::RenameTo
            | Purpose::Commit => {
                slot.begin_refused |= purpose == Purpose::Begin;
                let error = slot.file.refused(side, purpose, reply);
                slot.error.get_or_insert(error);
            }
        }
        Heard::Nothing
    }

    /// Takes every range as far as the replies allow. Returns what has become of the next one that
    /// has come to an end; `None` if more replies or data are needed. To be called until it is
    /// `None`; commands may have come up each time.
    pub fn poll(&mut self, site: &impl Site<F, O>) -> Option<Outcome<F, O>> {
        for at in 0..self.slots.len() {
            self.advance(at, site);
            // Of downloads nothing is entangled with a range that is not at the front: its data has
            // not come yet, or was kept apart.
            if !self.slots[at].entangles() || self.route == Route::Download && at > 0 {
                continue;
            }
            return match self.isolation(at) {
                Isolation::Lost => Some(Outcome::Desynchronized(self.first + at as u64)),
                Isolation::Waits => None,
                Isolation::Alone => self.pop().map(Outcome::Failed),
            };
        }
        self.poll_front()
    }

    /// As [`Self::poll`], for the ranges before one that was refused.
    pub fn poll_before(&mut self, refused: u64, site: &impl Site<F, O>) -> Option<Outcome<F, O>> {
        let before = usize::try_from(refused.saturating_sub(self.first)).unwrap_or(usize::MAX);
        if before == 0 {
            return None;
        }
        for at in 0..self.slots.len().min(before) {
            self.advance(at, site);
        }
        self.poll_front()
    }

    /// Whether a reply may still finish the first range, if it stands before one that was refused.
    pub fn awaits_before(&self, refused: u64) -> bool {
        self.first < refused
            && self.front().is_some_and(|slot| slot.is_counted() && !slot.entangles() && slot.due() > 0)
    }

    fn poll_front(&mut self) -> Option<Outcome<F, O>> {
        let slot = self.slots.front()?;
        if slot.error.is_some() {
            let over = slot.is_counted() && slot.due() == 0 && !slot.entangles();
            return if over { self.pop().map(Outcome::Failed) } else { None };
        }
        if slot.is_over() { self.pop().map(Outcome::Finished) } else { None }
    }

    fn pop(&mut self) -> Option<Slot<F, O>> {
        let slot = self.slots.pop_front()?;
        self.first += 1;
        Some(slot)
    }

    /// Whether what is behind a failed range can go on.
    fn isolation(&self, at: usize) -> Isolation {
        let slot = &self.slots[at];
        let alone = self.slots.len() == 1;
        let lost = match self.route {
            Route::Download => {
                let breaks = slot.error.as_ref().is_some_and(Failure::breaks_session);
                // Something before the transfer was refused, and the data is on its way.
                let on_its_way =
                    slot.has_begun(Side::Source) && !slot.has_moved() && !slot.has_ended(Side::Source);
                breaks || on_its_way && !(alone && self.pending() == 0)
            }
            // A refused command stood before the transfer: the server waits for data.
            Route::Upload => {
                let waits = !slot.has_ended(Side::Destination) && !slot.has_moved() && !slot.begin_refused;
                !alone || slot.due() > 0 && waits
            }
            // One server may still wait for the other one.
            Route::ThirdParty => {
                !alone || !slot.has_ended(Side::Source) || !slot.has_ended(Side::Destination)
            }
        };
        if lost {
            Isolation::Lost
        } else if slot.due() > 0 {
            Isolation::Waits
        } else {
            Isolation::Alone
        }
    }

    /// The next commands of a range that has arrived.
    fn advance(&mut self, at: usize, site: &impl Site<F, O>) {
        let id = self.first + at as u64;
        let slot = &mut self.slots[at];
        if slot.error.is_some() || !slot.has_arrived(self.route) {
            return;
        }
        if slot.repeat == Repeat::Due {
            if slot.due() > 0 {
                return;
            }
            slot.repeat = Repeat::Done;
            if slot.phase == Phase::Committing {
                return self.commit(at, site);
            }
            let checks = site.checks(slot);
            let of_destination = Sides { source: None, destination: checks.checksums.destination };
            return self.verify(id, Checks { version: None, checksums: of_destination, size: checks.size });
        }
        if slot.phase == Phase::Moving {
            slot.phase = Phase::Arrived;
            if self.route == Route::Download && slot.file.has_failed() {
                return;
            }
            match slot.file.arrived(&slot.arrival()) {
                Ok(true) => slot.phase = Phase::Verifying,
                Ok(false) => return,
                Err(error) => {
                    slot.error = Some(error);
                    return;
                }
            }
            let checks = site.checks(slot);
            self.verify(id, checks);
        }
        let slot = &mut self.slots[at];
        if slot.phase == Phase::Verifying && slot.due() == 0 {
            match slot.file.compare(&slot.reported) {
                Ok(()) => self.commit(at, site),
                Err(error) => slot.error = Some(error),
            }
        }
    }

    fn verify(&mut self, id: u64, checks: Checks) {
        let Checks { version, checksums, size } = checks;
        let commands = [
            (Side::Source, Purpose::Version, version),
            (Side::Source, Purpose::Checksum, checksums.source),
            (Side::Destination, Purpose::Checksum, checksums.destination),
            (Side::Destination, Purpose::Size, size),
        ];
        for (side, purpose, command) in commands {
            if let Some(command) = command {
                self.ask(id, side, purpose, command);
            }
        }
    }

    fn commit(&mut self, at: usize, site: &impl Site<F, O>) {
        let id = self.first + at as u64;
        let slot = &mut self.slots[at];
        slot.phase = Phase::Committing;
        for (purpose, command) in site.naming(&slot.file) {
            self.ask(id, Side::Destination, purpose, command);
        }
    }

    /// The sessions are lost. `error` is why, unless a range had failed before; `blamed` is the
    /// range whose command failed, otherwise the oldest one that waits for a reply.
    pub fn lost(self, error: Option<F::Error>, blamed: Option<u64>) -> Vec<Lost<F, O>> {
        let Self { route, slots, first, asks, .. } = self;
        let waiting = |side: Side| asks[side].front().map(|(id, _)| *id);
        let oldest = match route {
            Route::Download => waiting(Side::Source),
            Route::Upload => waiting(Side::Destination),
            Route::ThirdParty => None,
        };
        let blamed = blamed.or(oldest).unwrap_or(first);
        // A refused file would have cost the session anyway, and pays for it.
        let refusal = slots.iter().any(Slot::entangles) && route != Route::Download;
        let mut error = error.filter(|_| !refusal);
        let (mut refused, mut unconfirmed): (Vec<Arc<F>>, Vec<Arc<F>>) = Default::default();
        let in_flight: Vec<_> =
            slots.iter().filter(|slot| !slot.is_counted()).map(|slot| slot.file.clone()).collect();
        let mut reported = false;
        let lost = (first..).zip(slots).map(|(id, mut slot)| {
            let behind = match route {
                Route::Download => Behind::Confirmed,
                // Ranges of one file do each other no harm: their blocks say where they belong.
                Route::Upload if has_other(&refused, &slot.file) => Behind::Refused,
                Route::ThirdParty if !refused.is_empty() => Behind::Refused,
                _ if has_other(&unconfirmed, &slot.file) => Behind::Unconfirmed,
                // If the source refused it, the destination takes the next file's data for it.
                Route::ThirdParty if has_other(&in_flight, &slot.file) => Behind::Unconfirmed,
                _ => Behind::Confirmed,
            };
            if !slot.is_counted() {
                unconfirmed.push(slot.file.clone());
            }
            let own = slot.error.take();
            let left = match (slot.is_last(), slot.is_counted()) {
                (true, _) => Left::Confirmation,
                (false, true) if own.is_none() => Left::Nothing,
                (false, _) => Left::Range,
            };
            if own.is_some() {
                refused.push(slot.file.clone());
            }
            // The end of the session is the answer to all that was asked, and costs one file a try.
            let counts = |own: &F::Error| {
                !(route == Route::Download && own.breaks_session() && std::mem::replace(&mut reported, true))
            };
            let own = own.filter(|_| behind != Behind::Refused).filter(counts);
            let error = own.or_else(|| error.take_if(|_| id == blamed && left != Left::Nothing));
            Lost { slot, left, error, behind }
        });
        lost.collect()
    }
}

/// The effect of a failed range on the ranges behind it.
enum Isolation {
    /// The sessions cannot be used any more.
    Lost,
    /// Replies are due that belong to it.
    Waits,
    Alone,
}

fn has_other<F>(files: &[Arc<F>], file: &Arc<F>) -> bool {
    files.iter().any(|other| !Arc::ptr_eq(other, file))
}
