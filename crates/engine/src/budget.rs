//! Memory for data on its way, and the pipes that `splice` needs.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use ropewalk_storage::Pages;

use crate::pipe::Pipe;

/// The smallest buffer that is given out, in bytes.
pub const MIN_BUFFER: usize = 64 << 10;
const MAX_BUFFER: usize = 4 << 20;
/// The bytes that are copied through a buffer at a time. They stay in a core's cache between being
/// read and being written, which takes 10-20 % less time a byte than 1 MiB does.
pub(crate) const COPY_CHUNK: usize = 256 << 10;
/// Sizes are 64 KiB times powers of two.
const CLASSES: usize = (MAX_BUFFER / MIN_BUFFER).trailing_zeros() as usize + 1;
/// Idle pipes that are kept. One costs two descriptors and, while it is empty, a few KiB.
const IDLE_PIPES: usize = 32;

/// Gaps that all transfers of a process have account kept of at a time, beyond what each may have
/// anyway: 256 MiB.
pub(crate) const MOST_GAPS: usize = 1 << 20;

/// A limit on the memory that all transfers of a process use for buffers.
///
/// [`BufferBudget::take`] never waits: the more is in use, the smaller are the buffers that it
/// gives, down to 64 KiB each even when the budget is used up. So the bound is: the budget, plus 64
/// KiB for every further buffer (and for each up to a page in which none of its bytes are). A
/// stream has at most two buffers at a time, the second one (of 64 KiB) for what it has read ahead;
/// one that writes behind has two more.
pub struct BufferBudget {
    total: usize,
    /// Which are accounted for ([`MOST_GAPS`]).
    gaps: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of buffers that are out.
    used: usize,
    peak: usize,
    /// Bytes in `free`.
    kept: usize,
    free: [Vec<Pages>; CLASSES],
    pipes: Vec<Pipe>,
}

impl BufferBudget {
    /// A budget of `total` bytes.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, gaps: AtomicUsize::new(0), state: Mutex::default() })
    }

    /// A buffer of at least 64 KiB and, as far as the budget allows, of `want` bytes (at most 4
    /// MiB), rounded down to 64 KiB times a power of two. Its contents are whatever its last user
    /// left there.
    pub fn take(self: &Arc<Self>, want: usize) -> Buffer {
        let mut state = self.state.lock();
        // Something is left for later callers: each gets at most a quarter of the rest.
        let share = self.total.saturating_sub(state.used) / 4;
        let size = want.min(share).clamp(MIN_BUFFER, MAX_BUFFER);
        let class = (size / MIN_BUFFER).ilog2() as usize;
        let size = MIN_BUFFER << class;
        state.used += size;
        state.peak = state.peak.max(state.used);
        let memory = state.free[class].pop();
        if memory.is_some() {
            state.kept -= size;
        }
        drop(state);
        Buffer { memory: Some(memory.unwrap_or_else(|| Pages::new(size))), budget: Arc::clone(self) }
    }

    /// Accounts for bytes that are kept elsewhere; `false` where the budget has no room for them.
    pub(crate) fn reserve(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let fits = state.used + bytes <= self.total;
        if fits {
            state.used += bytes;
            state.peak = state.peak.max(state.used);
        }
        fits
    }

    /// Gives back what was [reserved](Self::reserve).
    pub(crate) fn release(&self, bytes: usize) {
        self.state.lock().used -= bytes;
    }

    /// Accounts for `more` gaps between what came; `false` where there are too many. They are
    /// dropped with the transfer.
    pub(crate) fn add_gaps(&self, more: usize) -> bool {
        let add = |gaps: usize| gaps.checked_add(more).filter(|gaps| *gaps <= MOST_GAPS);
        self.gaps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Gives back what was [added](Self::add_gaps).
    pub(crate) fn remove_gaps(&self, gaps: usize) {
        self.gaps.fetch_sub(gaps, Ordering::Relaxed);
    }

    /// The bytes of the budget.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Bytes of the buffers that are out.
    pub fn used(&self) -> usize {
        self.state.lock().used
    }

    /// The most that was out at a time.
    pub fn peak(&self) -> usize {
        self.state.lock().peak
    }

    /// An empty pipe of at least `size` bytes; `None` where the system does not give one.
    pub(crate) fn pipe(&self, size: usize) -> Option<Pipe> {
        let pipe = self.state.lock().pipes.pop();
        pipe.or_else(|| Pipe::new(size))
    }

    /// Takes a pipe back, to be used again if it is empty.
    pub(crate) fn return_pipe(&self, pipe: Pipe) {
        if pipe.is_empty() {
            let mut state = self.state.lock();
            if state.pipes.len() < IDLE_PIPES {
                state.pipes.push(pipe);
            }
        }
    }

    fn give_back(&self, memory: Pages) {
        let mut state = self.state.lock();
        let size = memory.len();
        state.used -= size;
        // Some memory is kept so that the next file causes no page faults; not all that a burst has
        // needed.
        if state.kept + size <= self.total / 4 {
            state.kept += size;
            state.free[(size / MIN_BUFFER).ilog2() as usize].push(memory);
        }
    }
}

/// Bytes from a [`BufferBudget`], which go back to it when this is dropped. Page-aligned.
pub struct Buffer {
    memory: Option<Pages>,
    budget: Arc<BufferBudget>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |pages| pages)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |pages| pages)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.budget.give_back(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_is_wanted_while_there_is_plenty() {
        let budget = BufferBudget::new(64 << 20);
        let buffer = budget.take(1 << 20);
        assert_eq!(buffer.len(), 1 << 20);
        assert_eq!(buffer.as_ptr().addr() % 4096, 0);
        assert_eq!(budget.take(300_000).len(), 256 << 10);
        assert_eq!(budget.take(1).len(), MIN_BUFFER);
        assert_eq!(budget.take(usize::MAX).len(), MAX_BUFFER);
        assert_eq!(budget.used(), 1 << 20);
        drop(buffer);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn keeps_its_bound_with_many_users() {
        let total = 8 << 20;
        let budget = BufferBudget::new(total);
        let buffers: Vec<Buffer> = (0..1000).map(|_| budget.take(1 << 20)).collect();
        assert_eq!(buffers[0].len(), 1 << 20);
        assert_eq!(buffers[999].len(), MIN_BUFFER);
        assert!(budget.used() <= total + buffers.len() * MIN_BUFFER);
        drop(buffers);
        assert_eq!(budget.used(), 0);
        assert!(budget.state.lock().kept <= total / 4);
    }

    #[test]
    fn memory_is_used_again() {
        let budget = BufferBudget::new(64 << 20);
        let mut buffer = budget.take(1 << 20);
        buffer[5] = 77;
        let at = buffer.as_ptr();
        drop(buffer);
        let buffer = budget.take(1 << 20);
        assert_eq!(buffer.as_ptr(), at);
        assert_eq!(buffer[5], 77);
    }
}
