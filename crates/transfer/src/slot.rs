//! One file, or one range of a file, in a pipeline.

use std::ops::Range;
use std::sync::Arc;

use ropewalk_protocol::command::Command;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::checksum::Pieces;

use crate::{Purpose, Route, Side, Sides};

/// Why a file, or a session, failed.
pub trait Failure {
    /// The data that arrived is wrong or missing: the whole file has to be sent again.
    fn invalidates_data(&self) -> bool;

    /// The control connection cannot be used after it.
    fn breaks_session(&self) -> bool;
}

/// A file that pipelines move.
pub trait File {
    type Error: Failure;

    /// The file has failed, or is sent again as a whole: no range of it need be moved.
    fn has_failed(&self) -> bool;

    /// The destination writes it under its final name. Wrong data then has to be removed before
    /// anything else is tried.
    fn is_in_place(&self) -> bool;

    /// Enters what has arrived. Returns whether this was the last range that the file waited for.
    ///
    /// # Errors
    /// The bytes that arrived are not those that were sent, or the source has changed.
    fn arrived(&self, arrival: &Arrival<'_>) -> Result<bool, Self::Error>;

    /// Compares the sums or the size that the servers reported of the whole file. A side that was
    /// not asked has reported nothing.
    ///
    /// # Errors
    /// They differ, or are no sums.
    fn compare(&self, reported: &Sides<Option<String>>) -> Result<(), Self::Error>;

    /// The server's status of the source after all of it has come.
    ///
    /// # Errors
    /// It is not the file that was to be copied.
    fn is_source(&self, status: &Reply) -> Result<(), Self::Error>;

    /// The server's status of the file that this one will replace.
    fn replaces(&self, status: &Reply);

    /// The error for a refused command.
    fn refused(&self, side: Side, purpose: Purpose, reply: Reply) -> Self::Error;
}

/// A range that has arrived.
#[derive(Debug)]
pub struct Arrival<'a> {
    pub range: &'a Range<u64>,
    /// The bytes of it that moved now.
    pub moved: &'a RangeSet,
    /// Their sums, if they passed through this program.
    pub sums: Option<&'a Pieces>,
    /// Sums that the servers reported with the last reply of the transfer.
    pub in_passing: Sides<Option<&'a str>>,
    /// The source's sum of the whole file, if that is all that was asked for
    /// ([`crate::Pipeline::submit_checksum`]).
    pub ahead: Option<&'a str>,
}

/// Data that passed through this program.
#[derive(Debug)]
pub struct Moved {
    /// `None`: the data of the slot, all of it.
    pub ranges: Option<RangeSet>,
    pub sums: Option<Pieces>,
}

/// Commands that verify a file after all of it has arrived.
#[derive(Debug, Default)]
pub struct Checks {
    /// MLST of the source.
    pub version: Option<Command>,
    /// CKSM for either side.
    pub checksums: Sides<Option<Command>>,
    /// SIZE of what has arrived.
    pub size: Option<Command>,
}

/// A range that is to be moved, and the commands for it.
pub struct Submission<F: File, O> {
    pub file: Arc<F>,
    pub range: Range<u64>,
    /// The bytes of the range to move.
    pub data: RangeSet,
    /// Offset in the file = offset on the wire + this.
    pub origin: u64,
    /// The driver's own data about it.
    pub own: O,
    pub commands: Sides<Vec<(Purpose, Command)>>,
}

/// How far a range has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its data moves, or waits for its turn.
    Moving,
    /// It has arrived. Other ranges of the file are still due.
    Arrived,
    /// The file is complete; sums, size or the status of the source are asked for.
    Verifying,
    /// The file is right and gets its name.
    Committing,
}

/// Whether commands that failed because of an ABOR for a later transfer are sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    Possible,
    Due,
    Done,
}

/// The answers of one side.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Final replies that are due.
    pub(crate) due: u32,
    /// The transfer has begun.
    pub(crate) begun: bool,
    /// The transfer has succeeded; with the sum that the server reported, if any.
    pub(crate) ended: Option<Option<String>>,
    pub(crate) asked_checksum: bool,
    pub(crate) asked_version: bool,
}

/// One range in flight.
pub struct Slot<F: File, O> {
    pub file: Arc<F>,
    pub range: Range<u64>,
    /// The bytes of the range to move.
    pub data: RangeSet,
    /// Offset in the file = offset on the wire + this.
    pub origin: u64,
    /// The driver's own data about it.
    pub own: O,
    pub error: Option<F::Error>,
    pub(crate) answers: Sides<Answers>,
    /// Sums or the size that the servers reported when they were asked.
    pub(crate) reported: Sides<Option<String>>,
    pub(crate) moved: Option<Moved>,
    pub(crate) phase: Phase,
    pub(crate) repeat: Repeat,
    /// The server does not know SCKS.
    pub(crate) expectation_unknown: bool,
    /// The server has refused the upload, and will refuse the transfer into it.
    pub(crate) begin_refused: bool,
    /// No data belongs to it: the source computes the checksum of the whole file.
    pub(crate) checksum_only: bool,
}

impl<F: File, O> Slot<F, O> {
    pub(crate) fn new(
        submission: Submission<F, O>,
        checksum_only: bool,
    ) -> (Self, Sides<Vec<(Purpose, Command)>>) {
        let Submission { file, range, data, origin, own, commands } = submission;
        let mut answers = Sides::<Answers>::default();
        let mut moved = None;
        if checksum_only {
            moved = Some(Moved { ranges: None, sums: None });
            answers.source.ended = Some(None);
        }
        let slot = Self {
            file,
            range,
            data,
            origin,
            own,
            error: None,
            answers,
            reported: Sides::default(),
            moved,
            phase: Phase::Moving,
            repeat: Repeat::Possible,
            expectation_unknown: false,
            begin_refused: false,
            checksum_only,
        };
        (slot, commands)
    }

    /// Its data has passed through this program.
    pub fn has_moved(&self) -> bool {
        self.moved.is_some()
    }

    /// The transfer has begun at this side.
    pub fn has_begun(&self, side: Side) -> bool {
        self.answers[side].begun
    }

    /// The transfer has succeeded at this side.
    pub fn has_ended(&self, side: Side) -> bool {
        self.answers[side].ended.is_some()
    }

    /// The range has been entered in the file's ledger.
    pub fn is_counted(&self) -> bool {
        self.phase != Phase::Moving
    }

    /// It was the last range: the file is being verified, or gets its name.
    pub fn is_last(&self) -> bool {
        matches!(self.phase, Phase::Verifying | Phase::Committing)
    }

    /// No data belongs to it.
    pub fn is_checksum_only(&self) -> bool {
        self.checksum_only
    }

    /// The server does not know SCKS, so that it has not compared the sum.
    pub fn is_expectation_unknown(&self) -> bool {
        self.expectation_unknown
    }

    /// The server has refused the upload, and its refusal of the transfer is still due.
    pub fn awaits_refusal(&self) -> bool {
        self.begin_refused && self.due() > 0
    }

    /// The source was asked for its checksum of the file.
    pub fn has_asked_checksum(&self) -> bool {
        self.answers.source.asked_checksum
    }

    /// The source was asked for its status.
    pub fn has_asked_version(&self) -> bool {
        self.answers.source.asked_version
    }

    /// The sum that the source reported when it was asked.
    pub fn checksum_of_source(&self) -> Option<&str> {
        self.reported.source.as_deref()
    }

    /// Final replies that are due, of both sides.
    pub fn due(&self) -> u32 {
        self.answers.source.due + self.answers.destination.due
    }

    /// Its failure is no concern of the files behind it: all of its data is where it belongs.
    pub fn fails_alone(&self) -> bool {
        let wrong = self.file.is_in_place() && self.error.as_ref().is_some_and(Failure::invalidates_data);
        self.is_last() && !wrong
    }

    /// It has failed, and nothing is known of the data behind it.
    pub(crate) fn entangles(&self) -> bool {
        self.error.is_some() && !self.fails_alone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_counted() && self.phase != Phase::Verifying && self.due() == 0 && self.repeat != Repeat::Due
    }

    /// All of its data is where it belongs, as both sides say.
    pub(crate) fn has_arrived(&self, route: Route) -> bool {
        if self.checksum_only {
            return self.due() == 0;
        }
        let sides = [Side::Source, Side::Destination];
        sides.into_iter().filter(|side| route.has(*side)).all(|side| self.has_ended(side))
            && (self.moved.is_some() || !route.moves_here())
    }

    pub(crate) fn arrival(&self) -> Arrival<'_> {
        let in_passing = |side: Side| self.answers[side].ended.as_ref().and_then(|sum| sum.as_deref());
        Arrival {
            range: &self.range,
            moved: self.moved.as_ref().and_then(|moved| moved.ranges.as_ref()).unwrap_or(&self.data),
            sums: self.moved.as_ref().and_then(|moved| moved.sums.as_ref()),
            in_passing: Sides {
                source: in_passing(Side::Source),
                destination: in_passing(Side::Destination),
            },
            ahead: self.reported.source.as_deref().filter(|_| self.checksum_only),
        }
    }
}
