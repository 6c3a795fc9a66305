//! A file on its way from one server to another, perhaps over several pairs of sessions at once.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bstr::BString;
use ropewalk_protocol::range::RangeSet;

use crate::RemoteError;
use crate::auto::SMALL;
use crate::task::Task;
use crate::upload::{is_device, part_path};
use crate::verify::{Check, same};

pub(crate) struct Relay {
    pub task: Task,
    pub check: Check,
    /// Where the data goes on the destination server.
    pub path: BString,
    /// It goes to its final name at once.
    pub direct: bool,
    pub tries: AtomicU32,
    state: Mutex<State>,
}

struct State {
    left: u32,
    failed: bool,
    /// At the destination, offsets of the source's file.
    present: RangeSet,
    proved: RangeSet,
    proof: Option<String>,
}

impl Relay {
    pub(crate) fn begin(task: Task, check: Check, present: RangeSet) -> Arc<Self> {
        let target = task.destination.path();
        let direct = is_device(&target) || task.window.is_some();
        let check = if is_device(&target) { Check::Size } else { check };
        let path = if direct { target } else { part_path(&target) };
        let state = State { left: 1, failed: false, present, proved: RangeSet::new(), proof: None };
        Arc::new(Self {
            tries: AtomicU32::new(task.tries),
            task,
            check,
            path,
            direct,
            state: Mutex::new(state),
        })
    }

    /// The bytes of the source that are wanted; the end is open where the size is not known.
    pub(crate) fn whole(&self) -> Range<u64> {
        let start = self.task.offset();
        start..self.task.length().map_or(u64::MAX, |length| start + length)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.task.length().unwrap_or_else(|| self.lock().present.len())
    }

    /// An interrupted transfer of it can be gone on with.
    pub(crate) fn is_resumable(&self) -> bool {
        !self.direct && self.task.size.is_some_and(|size| size > SMALL)
    }

    pub(crate) fn device(&self) -> bool {
        is_device(&self.task.destination.path())
    }

    pub(crate) fn present(&self) -> RangeSet {
        self.lock().present.clone()
    }

    /// The destination has this; all that it has now comes back.
    pub(crate) fn add_present(&self, more: &RangeSet) -> RangeSet {
        let mut state = self.lock();
        state.present.union(more);
        state.present.clone()
    }

    /// What the server has of `range`, asked again after a failure.
    pub(crate) fn set_present(&self, range: Range<u64>, found: &RangeSet) {
        let mut state = self.lock();
        state.present.remove(range.clone());
        state.present.union(&found.intersection(range));
    }

    /// What is there is not to be counted on: it is sent again. `true` where there was something.
    pub(crate) fn forget_present(&self) -> bool {
        !std::mem::take(&mut self.lock().present).is_empty()
    }

    pub(crate) fn expect(&self, more: u32) {
        self.lock().left += more;
    }

    pub(crate) fn give_up(&self) -> bool {
        !std::mem::replace(&mut self.lock().failed, true)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    pub(crate) fn count_try(&self) -> u32 {
        self.tries.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A range has arrived; the sums of what moved are the source's and the destination's. `true` when it was the last.
    pub(crate) fn arrived(
        &self,
        range: &RangeSet,
        source: Option<&str>,
        destination: Option<&str>,
    ) -> Result<bool, RemoteError> {
        if let (Some(source), Some(destination)) = (source, destination) {
            self.compare(source, destination)?;
            self.lock().proved.union(range);
        }
        let mut state = self.lock();
        if self.task.size.is_some() {
            state.present.union(range);
        }
        state.left = state.left.saturating_sub(1);
        Ok(state.left == 0)
    }

    pub(crate) fn needs_sum(&self) -> bool {
        match self.check {
            Check::Size => false,
            Check::Asked(_) => true,
            Check::Inline(_) => !self.lock().proved.contains(self.whole()),
        }
    }

    pub(crate) fn compare(&self, source: &str, destination: &str) -> Result<(), RemoteError> {
        let Some(algorithm) = self.check.algorithm() else { return Ok(()) };
        if same(source, destination) {
            self.lock().proof = Some(source.trim().to_ascii_lowercase());
            return Ok(());
        }
        Err(RemoteError::ChecksumMismatch {
            path: self.task.destination.path(),
            algorithm,
            ours: source.to_owned(),
            theirs: destination.to_owned(),
        })
    }

    pub(crate) fn proof(&self) -> Option<String> {
        let algorithm = self.check.algorithm()?;
        let sum = self.lock().proof.clone().unwrap_or_default();
        Some(format!("{}:{sum}", algorithm.name().to_ascii_lowercase()))
    }

    pub(crate) fn began(&self) -> Instant {
        self.task.began.unwrap_or_else(Instant::now)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
