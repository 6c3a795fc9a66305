//! The state at a server of a file that the server receives: the ranges that it has, and those that
//! are still missing.
//!
//! Uploads and third-party transfers have one [`RemoteUpload`] each, in an `Arc` that all sessions
//! that work on the file share; its fields are atomic or locked. When it has failed, the sessions
//! skip its remaining ranges.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bstr::BString;
use parking_lot::Mutex;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::Kind;

use crate::model::entry::from_status;
use crate::model::tries::{Tried, Tries};
use crate::path_defaults::SMALL;
use crate::piece::Piece;
use crate::session::Session;
use crate::staging::{Staging, UploadProof};
use crate::state::LetGo;
use crate::task::{Task, There};
use crate::verify::{Check, said_size};
use crate::{Preserve, RemoteError};
use ropewalk_protocol::feature::Features;
use ropewalk_storage::checksum::{Algorithm, Pieces};
use ropewalk_transfer::{Ledger, Purpose, Side};

/// In place of a number of failed tries: a session was lost in mid-file without a failure.
const INTERRUPTED: u32 = u32::MAX;
/// The code of a reply about an upload that has ended.
const UPLOAD_ENDED: u16 = 503;

pub(crate) struct RemoteUpload {
    pub task: Task,
    /// The place of the data at the server until the file is complete.
    pub staging: Staging,
    /// The path at the server to which the data is sent, or the name that it gets there.
    pub path: BString,
    /// The number of bytes that were present when the transfer started.
    pub resumed: u64,
    pub piece: Piece,
    /// The server knows the checksum of the data before the data arrives.
    pub is_expected: bool,
    /// An interrupted transfer is restarted from the beginning.
    pub restarts: bool,
    tries: Tries,
    /// The number of failed tries at the time when the server last reported its ranges.
    asked: AtomicU32,
    /// The permission bits of the file that will be replaced.
    replaced: OnceLock<u32>,
    /// Releases the journal to other runs when no session can write to the part file any more.
    let_go: OnceLock<LetGo>,
    state: Mutex<State>,
}

struct State {
    /// The beginning is queued to be sent again (see [`LATE_BLOCK`]).
    beginning: bool,
    ledger: Ledger,
}

impl RemoteUpload {
    /// The data of devices and windows goes to the final name, whatever `staging` is.
    pub(crate) fn new(task: Task, staging: Staging, present: RangeSet, check: Check) -> Self {
        let direct = task.is_to_device() || task.window.is_some();
        let staging = if direct { Staging::Direct } else { staging };
        let path = staging.path(&task);
        let resumed = present.len();
        let sums = check.in_passing().map(Pieces::new);
        let state = State { beginning: false, ledger: Ledger::new(present, sums) };
        Self {
            tries: Tries::new(*task.tries, resumed),
            asked: AtomicU32::new(task.tries.total),
            replaced: OnceLock::new(),
            let_go: OnceLock::new(),
            task,
            staging,
            path,
            resumed,
            piece: Piece::default(),
            is_expected: false,
            restarts: false,
            state: Mutex::new(state),
        }
    }

    /// Whether the data goes to the final name.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.staging, Staging::Direct | Staging::InPlace)
    }

    /// Whether the data must not share the pipeline: it goes to the final name without an announced
    /// checksum, and if another file were refused, it could get that file's data.
    pub(crate) fn must_be_alone(&self) -> bool {
        self.is_direct() && !self.is_expected
    }

    /// Whether the data of a whole file goes to the final name, and the server does not store it
    /// separately.
    pub(crate) fn is_in_place(&self) -> bool {
        matches!(self.staging, Staging::InPlace)
    }

    /// The command that asks for the entry to be replaced, whose mode the new file gets; `None` if
    /// that is not needed.
    pub(crate) fn asks_for_place(&self, can: &Features, preserve: Preserve) -> Option<Command> {
        let asks = can.facts
            && matches!(self.staging, Staging::Part(_))
            && self.task.there != There::Nothing
            && !preserve.modes
            && self.replaced.get().is_none();
        asks.then(|| Command::Mlst(Some(self.task.destination.path())))
    }

    /// Records the entry to be replaced, as the server reported it.
    pub(crate) fn replaces(&self, reply: &Reply) {
        if let Some(mode) =
            from_status(reply).filter(|there| there.kind == Kind::File).and_then(|there| there.mode)
        {
            let _ = self.replaced.set(mode & 0o777);
        }
    }

    /// The attributes to preserve: those of the source, or else the mode of the file that is
    /// replaced.
    pub(crate) fn keeping(&self, preserve: Preserve) -> (Cow<'_, Task>, Preserve) {
        match self.replaced.get() {
            Some(&mode) if !preserve.modes => {
                let task = Task { mode: Some(mode), ..self.task.clone() };
                (Cow::Owned(task), Preserve { modes: true, ..preserve })
            }
            _ => (Cow::Borrowed(&self.task), preserve),
        }
    }

    /// The commands that set the attributes and the name of the file. `sent` is its size if that
    /// was not known before.
    pub(crate) fn naming(
        &self,
        session: &Session,
        preserve: Preserve,
        sent: Option<u64>,
        proof: UploadProof,
    ) -> Vec<(Purpose, Command)> {
        let (task, preserve) = self.keeping(preserve);
        self.staging.naming(session, &task, preserve, sent, proof)
    }

    /// The CKSM command for the data that has arrived: for the whole file, or for the window, which
    /// has `bytes` bytes starting at `offset`.
    pub(crate) fn checksum_command(&self, algorithm: Algorithm, offset: u64, bytes: Option<u64>) -> Command {
        Command::Cksm {
            algorithm,
            offset,
            length: bytes.filter(|_| self.task.window.is_some()),
            path: self.path.clone(),
        }
    }

    /// The error for a command that one of the servers refused.
    pub(crate) fn refused(&self, side: Side, purpose: Purpose, reply: Reply) -> RemoteError {
        let place = if side == Side::Source { &self.task.source } else { &self.task.destination };
        let (peer, verb) = (place.display(), purpose.verb(side));
        let ended = reply.code() == UPLOAD_ENDED && self.staging.upload().is_some();
        let of_part = match purpose {
            // Another upload of the file has replaced this one.
            Purpose::Transfer | Purpose::Commit if side == Side::Destination && ended => {
                return RemoteError::PartVanished { peer, path: self.path.clone(), reply };
            }
            Purpose::RenameFrom | Purpose::RenameTo => true,
            Purpose::Checksum | Purpose::Size => side == Side::Destination && !self.is_direct(),
            _ => false,
        };
        if of_part {
            return RemoteError::of_part(peer, verb, &self.path, reply);
        }
        RemoteError::Refused { peer, command: verb.to_owned(), reply }
    }

    /// Compares the size that the destination has reported with the expected one.
    pub(crate) fn compare_size(&self, said: &str, expected: u64) -> Result<(), RemoteError> {
        let Some(there) = said_size(&self.task.destination, said)? else { return Ok(()) };
        let fits = if self.task.window.is_some() { there >= expected } else { there == expected };
        let path = || self.task.destination.path();
        if fits { Ok(()) } else { Err(RemoteError::SizeMismatch { path: path(), expected, there }) }
    }

    /// Whether an interrupted transfer can be resumed.
    pub(crate) fn is_resumable(&self) -> bool {
        !self.is_direct()
            && !self.restarts
            && !self.task.apart
            && self.task.size.is_some_and(|size| size > SMALL)
    }

    /// Whether a try has failed or was interrupted since the start, so that the server has to be
    /// asked for its ranges.
    pub(crate) fn was_tried(&self) -> bool {
        let interrupted = self.asked.load(Ordering::Relaxed) == INTERRUPTED;
        self.is_resumable() && (interrupted || self.tries.total() > self.task.tries.total)
    }

    /// Records that a session was lost while data of the file moved: the server may have more than
    /// its markers have reported.
    pub(crate) fn was_interrupted(&self) {
        self.asked.store(INTERRUPTED, Ordering::Relaxed);
    }

    /// Whether the server has reported all of its ranges since the last failed try, so that no
    /// session has to ask again.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) == self.tries.total()
    }

    /// Records the ranges that the server has reported: for the whole file, or only for `range` if
    /// other sessions may write in the meantime. Returns the change of the number of known bytes.
    pub(crate) fn was_told(&self, session: &Session, range: Range<u64>, found: &RangeSet) -> i64 {
        if !session.can.ranges || self.staging.upload().is_some() {
            return self.set_present(range, found);
        }
        // No session writes to the file, or the server would not have reported its ranges.
        self.asked.store(self.tries.total(), Ordering::Relaxed);
        self.set_present(0..u64::MAX, found)
    }

    /// Whether the server keeps the data.
    pub(crate) fn is_kept(&self) -> bool {
        !self.device()
    }

    /// Whether the destination is a device of the server.
    pub(crate) fn device(&self) -> bool {
        self.task.is_to_device()
    }

    pub(crate) fn present(&self) -> RangeSet {
        self.state.lock().ledger.present().clone()
    }

    /// Adds ranges that the receiver has reported. Returns all ranges that it is known to have.
    pub(crate) fn add_present(&self, more: &RangeSet) -> RangeSet {
        let ledger = &mut self.state.lock().ledger;
        ledger.add_present(more);
        ledger.present().clone()
    }

    /// Records which parts of `range` the server has, as it reported after a failure. Returns the
    /// change of the number of known bytes.
    pub(crate) fn set_present(&self, range: Range<u64>, found: &RangeSet) -> i64 {
        self.state.lock().ledger.set_present(range, found)
    }

    /// Forgets the ranges that are present, because they cannot be trusted and are sent again.
    /// Returns their number of bytes.
    pub(crate) fn forget_present(&self) -> u64 {
        self.state.lock().ledger.forget_present()
    }

    /// Records that the beginning is queued to be sent again. Returns `true` if it was queued
    /// before.
    pub(crate) fn beginning_waits(&self) -> bool {
        std::mem::replace(&mut self.state.lock().beginning, true)
    }

    /// Records that a range is about to be sent.
    pub(crate) fn is_begun(&self, range: &Range<u64>) {
        if range.start == 0 {
            self.state.lock().beginning = false;
        }
    }

    /// Announces `more` ranges in addition to the known ones.
    pub(crate) fn expect(&self, more: u32) {
        self.state.lock().ledger.expect(more);
    }

    /// Keeps the journal locked after the final failure, until the last session that has a range of
    /// the file drops it.
    pub(crate) fn let_go_at_last(&self, let_go: Option<LetGo>) {
        if let Some(let_go) = let_go {
            let _ = self.let_go.set(let_go);
        }
    }

    /// Marks the file as failed for good or restarted, so that the holders of its ranges do not
    /// start them. Returns `true` at the first call.
    pub(crate) fn give_up(&self) -> bool {
        self.state.lock().ledger.fail()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().ledger.has_failed()
    }

    /// Counts a failed try. `pause` is the pause after the first failed try. `no_use` means that
    /// the data that arrived has to be sent again, so the try made no progress.
    pub(crate) fn count_try(&self, pause: Duration, no_use: bool) -> Tried {
        let present = if no_use { 0 } else { self.state.lock().ledger.present().len() };
        self.tries.count(pause, present)
    }

    /// Adds checksums of ranges that have arrived.
    pub(crate) fn add_sums(&self, sums: &Pieces) {
        self.state.lock().ledger.add_sums(sums);
    }

    /// The checksums of the ranges that have arrived in this run, if they can be computed in
    /// passing.
    pub(crate) fn sums(&self) -> Option<Pieces> {
        self.state.lock().ledger.sums().cloned()
    }

    /// Records that both sides have the same checksum of these ranges.
    pub(crate) fn prove(&self, ranges: &RangeSet) {
        self.state.lock().ledger.prove(ranges);
    }

    pub(crate) fn proved(&self) -> RangeSet {
        self.state.lock().ledger.proved().clone()
    }

    /// Records that a range is done, and that the server has `arrived`. Returns `true` for the last
    /// range.
    pub(crate) fn range_done(&self, arrived: &RangeSet) -> bool {
        self.state.lock().ledger.range_done(arrived)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_protocol::path::VirtualPath;

    use super::*;
    use crate::place::Place;

    #[test]
    fn keeps_the_books_of_ranges() {
        let place = |p: &[u8]| Place::Local(VirtualPath::parse(p).unwrap());
        let part = || Staging::Part("/.b".into());
        let task = Task { size: Some(SMALL + 10), ..Task::new(0, place(b"/a"), place(b"/b")) };
        let remote_upload = RemoteUpload::new(task.clone(), part(), RangeSet::from_range(0..10), Check::Size);
        assert!(remote_upload.is_resumable() && !remote_upload.was_tried());
        let interrupted = RemoteUpload::new(task.clone(), part(), RangeSet::new(), Check::Size);
        assert!(interrupted.was_asked());
        interrupted.was_interrupted();
        assert!(interrupted.was_tried() && !interrupted.was_asked());
        assert_eq!(
            (remote_upload.count_try(Duration::ZERO, false).failed, remote_upload.was_tried()),
            (1, true)
        );
        remote_upload.expect(1);
        assert!(!remote_upload.range_done(&RangeSet::from_range(10..20)));
        assert_eq!(remote_upload.set_present(0..20, &RangeSet::from_range(0..5)), -15);
        assert!(remote_upload.range_done(&RangeSet::from_range(5..30)));
        assert_eq!((remote_upload.forget_present(), remote_upload.forget_present()), (30, 0));
        assert!(remote_upload.give_up() && !remote_upload.give_up());
        assert!(
            !RemoteUpload::new(Task { apart: true, ..task }, part(), RangeSet::new(), Check::Size)
                .is_resumable()
        );
    }
}
