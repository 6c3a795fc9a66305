//! The files that a job finished in earlier runs, so that it does not send them again.
//!
//! They are kept in memory for the life of the job, unlike those of [`crate::finished`], which
//! outlive the program. Source and destination are not checked again: a job that had not been
//! paused, or moved to another path, would not have checked them either.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::place::Place;
use crate::task::Task;

/// The files that earlier runs of a copy have finished, for
/// [`Client::copy_on`](crate::Client::copy_on).
#[derive(Clone, Default)]
pub struct EarlierRuns(pub(crate) Arc<DoneFiles>);

/// One hash for each file: a job may have millions.
#[derive(Default)]
pub(crate) struct DoneFiles {
    state: RandomState,
    done: Mutex<HashSet<u64>>,
}

impl DoneFiles {
    pub(crate) fn add(&self, task: &Task) {
        self.done.lock().insert(self.hash(task));
    }

    pub(crate) fn has(&self, task: &Task) -> bool {
        self.done.lock().contains(&self.hash(task))
    }

    fn hash(&self, task: &Task) -> u64 {
        let name = |place: &Place| (place.user(), place.far_key());
        let window = task.window.map(|window| (window.offset, window.length));
        self.state.hash_one((name(&task.source), name(&task.destination), window))
    }
}
