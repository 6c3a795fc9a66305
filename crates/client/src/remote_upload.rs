//! A file that a server receives: the ranges that it has, and those that are still missing. Uploads
//! and third-party transfers have one each, which all sessions that work on the file share.

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

/// The reply about an upload that has ended.
const UPLOAD_ENDED: u16 = 503;

pub(crate) struct RemoteUpload {
    pub task: Task,
    /// Where the data waits at the server until the file is complete.
    pub staging: Staging,
    /// Where the data goes on the server, or the name that it gets there.
    pub path: BString,
    /// Bytes that were there when it began.
    pub resumed: u64,
    pub piece: Piece,
    /// The server knows the checksum of the data before it comes.
    pub is_expected: bool,
    /// An interrupted transfer of it starts again from the beginning.
    pub restarts: bool,
    tries: Tries,
    /// Failed tries after which the server was asked last what it has.
    asked: AtomicU32,
    /// Permissions of the file that it will replace.
    replaced: OnceLock<u32>,
    /// Its journal is left to other runs once no session can write to the part any more.
    let_go: OnceLock<LetGo>,
    state: Mutex<State>,
}

struct State {
    /// Its beginning waits to be sent once more (see [`LATE_BLOCK`]).
    beginning: bool,
    ledger: Ledger,
}

impl RemoteUpload {
    /// The data of devices and windows goes to the final name, whatever `staging` says.
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

    /// The data goes to the final name.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self.staging, Staging::Direct | Staging::InPlace)
    }

    /// Data that goes to a final name without its checksum must not share the pipeline: if another
    /// file were refused, it would get that one's data.
    pub(crate) fn must_be_alone(&self) -> bool {
        self.is_direct() && !self.is_expected
    }

    /// The data of a whole file goes to the final name, and no server keeps it apart.
    pub(crate) fn is_in_place(&self) -> bool {
        matches!(self.staging, Staging::InPlace)
    }

    /// The client asks for the entry at its place before it replaces it, unless the server looks.
    pub(crate) fn asks_for_place(&self, can: &Features, preserve: Preserve) -> Option<Command> {
        let asks = can.facts
            && matches!(self.staging, Staging::Part(_))
            && self.task.there != There::Nothing
            && !preserve.modes
            && self.replaced.get().is_none();
        asks.then(|| Command::Mlst(Some(self.task.destination.path())))
    }

    /// What the server says is at its place.
    pub(crate) fn replaces(&self, reply: &Reply) {
        if let Some(mode) =
            from_status(reply).filter(|there| there.kind == Kind::File).and_then(|there| there.mode)
        {
            let _ = self.replaced.set(mode & 0o777);
        }
    }

    /// What it is to keep of its source, or else of the file that it replaces.
    pub(crate) fn keeping(&self, preserve: Preserve) -> (Cow<'_, Task>, Preserve) {
        match self.replaced.get() {
            Some(&mode) if !preserve.modes => {
                let task = Task { mode: Some(mode), ..self.task.clone() };
                (Cow::Owned(task), Preserve { modes: true, ..preserve })
            }
            _ => (Cow::Borrowed(&self.task), preserve),
        }
    }

    /// The commands that give it its attributes and its name. `sent`: its size, if that was not known
    /// before.
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

    /// CKSM of what has arrived: of the whole file, or of the window, which has so many bytes from
    /// this offset on.
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
            // Another upload of the file has taken the place of this one.
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

    /// Compares the size that the destination has `said` with the one that it should have.
    pub(crate) fn compare_size(&self, said: &str, expected: u64) -> Result<(), RemoteError> {
        let Some(there) = said_size(&self.task.destination, said)? else { return Ok(()) };
        let fits = if self.task.window.is_some() { there >= expected } else { there == expected };
        let path = || self.task.destination.path();
        if fits { Ok(()) } else { Err(RemoteError::SizeMismatch { path: path(), expected, there }) }
    }

    /// An interrupted transfer of it can be gone on with.
    pub(crate) fn is_resumable(&self) -> bool {
        !self.is_direct()
            && !self.restarts
            && !self.task.apart
            && self.task.size.is_some_and(|size| size > SMALL)
    }

    /// A try of it failed since it was begun: what is present has to be asked for.
    pub(crate) fn was_tried(&self) -> bool {
        self.is_resumable() && self.tries.total() > self.task.tries.total
    }

    /// The server has told all that it has, since the last try failed: no range has to ask once more.
    pub(crate) fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) == self.tries.total()
    }

    /// What the server has of all of it, and of `range` of that where other sessions may write meanwhile. Gives by how much
    /// that is more, or less, than was known.
    pub(crate) fn was_told(&self, session: &Session, range: Range<u64>, found: &RangeSet) -> i64 {
        if !session.can.ranges || self.staging.upload().is_some() {
            return self.set_present(range, found);
        }
        // Nobody writes to it, or it would not have told.
        self.asked.store(self.tries.total(), Ordering::Relaxed);
        self.set_present(0..u64::MAX, found)
    }

    /// The server keeps the data.
    pub(crate) fn is_kept(&self) -> bool {
        !self.device()
    }

    /// The destination is a device of the server.
    pub(crate) fn device(&self) -> bool {
        self.task.is_to_device()
    }

    pub(crate) fn present(&self) -> RangeSet {
        self.state.lock().ledger.present().clone()
    }

    /// The receiver says that it has this; all that it has now comes back.
    pub(crate) fn add_present(&self, more: &RangeSet) -> RangeSet {
        let ledger = &mut self.state.lock().ledger;
        ledger.add_present(more);
        ledger.present().clone()
    }

    /// What the server has of `range`, asked again after a failure. Gives by how much that is more, or less, than was known.
    pub(crate) fn set_present(&self, range: Range<u64>, found: &RangeSet) -> i64 {
        self.state.lock().ledger.set_present(range, found)
    }

    /// What is there is not to be counted on: it is sent again. Gives how many bytes that were.
    pub(crate) fn forget_present(&self) -> u64 {
        self.state.lock().ledger.forget_present()
    }

    /// Its beginning waits to be sent once more from now on; `true` where it did already.
    pub(crate) fn beginning_waits(&self) -> bool {
        std::mem::replace(&mut self.state.lock().beginning, true)
    }

    /// A range of it is about to be sent.
    pub(crate) fn is_begun(&self, range: &Range<u64>) {
        if range.start == 0 {
            self.state.lock().beginning = false;
        }
    }

    /// There will be `more` ranges besides the ones that are known of.
    pub(crate) fn expect(&self, more: u32) {
        self.state.lock().ledger.expect(more);
    }

    /// Whoever still has a range of it when it has failed for good keeps its journal, too.
    pub(crate) fn let_go_at_last(&self, let_go: Option<LetGo>) {
        if let Some(let_go) = let_go {
            let _ = self.let_go.set(let_go);
        }
    }

    /// The file failed for good, or begins anew: whoever has a range of it need not begin. `true` for the first to say so.
    pub(crate) fn give_up(&self) -> bool {
        self.state.lock().ledger.fail()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().ledger.has_failed()
    }

    /// `pause`: after the first try that fails.
    /// `no_use`: what arrived has to come again, so that it brought nothing on.
    pub(crate) fn count_try(&self, pause: Duration, no_use: bool) -> Tried {
        let present = if no_use { 0 } else { self.state.lock().ledger.present().len() };
        self.tries.count(pause, present)
    }

    /// The sums of what has arrived are known besides.
    pub(crate) fn add_sums(&self, sums: &Pieces) {
        self.state.lock().ledger.add_sums(sums);
    }

    /// The sums of what has arrived in this run, if they can be computed in passing.
    pub(crate) fn sums(&self) -> Option<Pieces> {
        self.state.lock().ledger.sums().cloned()
    }

    /// Both sides have the same sum of this.
    pub(crate) fn prove(&self, ranges: &RangeSet) {
        self.state.lock().ledger.prove(ranges);
    }

    pub(crate) fn proved(&self) -> RangeSet {
        self.state.lock().ledger.proved().clone()
    }

    /// A range is done, and `arrived` is at the server. `true` when it was the last one.
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
