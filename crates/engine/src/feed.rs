//! Ranges of a file that become ready while the file is sent.
//!
//! A [`Feed`] belongs to the caller of [`DataChannel::send`](crate::DataChannel::send), which adds
//! ranges from any thread in any order, and ends it. The threads of the transfer take them and wait
//! for more; the coordinating thread is woken through its [`Control`]. A transfer that has failed
//! takes no more.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use ropewalk_protocol::range::RangeSet;

use crate::control::Control;

/// See the description of the module.
#[derive(Default)]
pub struct Feed {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: RangeSet,
    ended: bool,
    /// That of the transfer which takes the ranges.
    control: Weak<Control>,
}

impl Feed {
    /// A range of the file can be read now.
    pub fn add(&self, range: Range<u64>) {
        self.change(|state| state.ready.insert(range));
    }

    /// No more ranges come.
    pub fn end(&self) {
        self.change(|state| state.ended = true);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let control = {
            let mut state = self.state.lock();
            change(&mut state);
            state.control.upgrade()
        };
        self.changed.notify_all();
        if let Some(control) = control {
            control.wake();
        }
    }

    pub(crate) fn attach(&self, control: &Arc<Control>) {
        control.expect_wakes();
        self.state.lock().control = Arc::downgrade(control);
    }

    /// Takes what is ready. The second value says that no more comes after it.
    pub(crate) fn take(&self) -> (RangeSet, bool) {
        let mut state = self.state.lock();
        (std::mem::take(&mut state.ready), state.ended)
    }

    /// Waits until something is ready, at most for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut state = self.state.lock();
        if state.ready.is_empty() && !state.ended {
            self.changed.wait_for(&mut state, limit);
        }
    }
}
