//! How many streams a data channel is to use: changed by anybody at any time.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::control::Control;

/// The number of streams that a data channel is to use, in MODE E: a handle that may be cloned and
/// kept, and that keeps nothing open.
///
/// While a transfer runs, streams come and go with it. A sender that connects makes further
/// connections, each on a thread of its own from the channel's pool; a sender that listens accepts
/// them; a receiver that connects makes them. Surplus streams end with EOD and CLOSE (GFD.20
/// section 3.4) after the block that they are sending, except the first one. The number is a
/// target: it is not reached if no thread is free, if a connection cannot be made, or if the file
/// has fewer blocks left.
///
/// If the receiver connects, both ends have to know the number. The receiver should get a lower
/// number first: as long as it wants more streams than it has, it makes a new connection for each
/// that leaves.
#[derive(Clone)]
pub struct Parallelism(Arc<Target>);

struct Target {
    /// How often it was changed, and the number of streams in the lower half: to be read at once.
    state: AtomicU64,
    control: Weak<Control>,
}

impl Parallelism {
    pub(crate) fn new(n: u32, control: &Arc<Control>) -> Self {
        Self(Arc::new(Target { state: AtomicU64::new(n.max(1).into()), control: Arc::downgrade(control) }))
    }

    /// A number for a data channel in another process. A change wakes no transfer.
    pub fn detached(n: u32) -> Self {
        Self(Arc::new(Target { state: AtomicU64::new(n.max(1).into()), control: Weak::new() }))
    }

    /// From any thread. 0 is taken as 1.
    pub fn set(&self, n: u32) {
        let n = u64::from(n.max(1));
        let change = |state: u64| {
            let changes = (state >> 32).wrapping_add(1);
            (state & u64::from(u32::MAX) != n).then_some(changes << 32 | n)
        };
        let changed = self.0.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        if let (Ok(_), Some(control)) = (changed, self.0.control.upgrade()) {
            control.wake();
        }
    }

    pub fn get(&self) -> u32 {
        self.state().1
    }

    /// A number that is another one after each change, and the number of streams.
    pub(crate) fn state(&self) -> (u32, u32) {
        let state = self.0.state.load(Ordering::SeqCst);
        ((state >> 32) as u32, state as u32)
    }
}

impl fmt::Debug for Parallelism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parallelism").field(&self.get()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted_and_wake() {
        let control = Arc::new(Control::default());
        let parallelism = Parallelism::new(0, &control);
        assert_eq!(parallelism.state(), (0, 1));
        let other = parallelism.clone();
        other.set(1);
        assert!(!control.wake_event().is_set());
        other.set(u32::MAX);
        assert_eq!(parallelism.state(), (1, u32::MAX));
        assert!(control.wake_event().is_set());
        // Back again: that there was a change must not be missed.
        parallelism.set(0);
        assert_eq!(other.state(), (2, 1));
        drop(control);
        parallelism.set(7);
        assert_eq!(other.get(), 7);
    }
}
