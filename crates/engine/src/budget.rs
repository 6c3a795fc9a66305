//! Memory for data on its way, and the pipes that `splice` needs.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pipe::Pipe;

/// The smallest buffer that is given out, in bytes.
pub const MIN_BUFFER: usize = 64 << 10;
const MAX_BUFFER: usize = 4 << 20;
/// Sizes are 64 KiB times powers of two.
const CLASSES: usize = (MAX_BUFFER / MIN_BUFFER).trailing_zeros() as usize + 1;
const PAGE: usize = 4096;
/// Idle pipes that are kept. One costs two descriptors and, while it is empty, a few KiB.
const IDLE_PIPES: usize = 32;

/// A limit on the memory that all transfers of a process use for buffers.
///
/// [`BufferBudget::take`] never waits: the more is in use, the smaller are the buffers that it gives, down to 64 KiB
/// each even when the budget is used up. So the bound is: the budget, plus 64 KiB for every further buffer. A stream
/// has at most two buffers at a time, the second one (of 64 KiB) for what it has read ahead; one that writes behind has two more.
pub struct BufferBudget {
    total: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bytes of buffers that are out.
    used: usize,
    peak: usize,
    /// Bytes in `free`.
    kept: usize,
    free: [Vec<Memory>; CLASSES],
    pipes: Vec<Pipe>,
}

impl BufferBudget {
    /// A budget of `total` bytes.
    pub fn new(total: usize) -> Arc<Self> {
        Arc::new(Self { total, state: Mutex::default() })
    }

    /// A buffer of at least 64 KiB and, as far as the budget allows, of `want` bytes (at most 4 MiB), rounded down to
    /// 64 KiB times a power of two. Its contents are whatever its last user left there.
    pub fn take(self: &Arc<Self>, want: usize) -> Buffer {
        let mut state = self.lock();
        // Leaves something for those that come later: nobody gets more than a quarter of what is left.
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
        Buffer { memory: Some(memory.unwrap_or_else(|| Memory::new(size))), budget: Arc::clone(self) }
    }

    /// Bytes of the buffers that are out.
    pub fn used(&self) -> usize {
        self.lock().used
    }

    /// The most that was out at a time.
    pub fn peak(&self) -> usize {
        self.lock().peak
    }

    /// An empty pipe of at least `size` bytes; `None` where the system does not give one.
    pub(crate) fn pipe(&self, size: usize) -> Option<Pipe> {
        let pipe = self.lock().pipes.pop();
        pipe.or_else(|| Pipe::new(size))
    }

    /// Takes a pipe back, to be used again if it is empty.
    pub(crate) fn return_pipe(&self, pipe: Pipe) {
        if pipe.is_empty() {
            let mut state = self.lock();
            if state.pipes.len() < IDLE_PIPES {
                state.pipes.push(pipe);
            }
        }
    }

    fn give_back(&self, memory: Memory) {
        let mut state = self.lock();
        let size = memory.layout.size();
        state.used -= size;
        // Some memory is kept so that the next file causes no page faults; not all that a burst has needed.
        if state.kept + size <= self.total / 4 {
            state.kept += size;
            state.free[(size / MIN_BUFFER).ilog2() as usize].push(memory);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes from a [`BufferBudget`], which go back to it when this is dropped. Page-aligned.
pub struct Buffer {
    memory: Option<Memory>,
    budget: Arc<BufferBudget>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], Memory::bytes)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], Memory::bytes_mut)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.budget.give_back(memory);
        }
    }
}

/// Page-aligned bytes.
struct Memory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: owns its bytes alone, like a Box<[u8]>.
unsafe impl Send for Memory {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Memory {}

impl Memory {
    /// `size` is not 0.
    fn new(size: usize) -> Self {
        let layout = Layout::from_size_align(size, PAGE).unwrap_or(Layout::new::<u8>());
        // SAFETY: the layout's size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) });
        let Some(start) = start else { handle_alloc_error(layout) };
        Self { start, layout }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is the start of `layout.size()` bytes, initialised, that live as long as self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`, and not used after.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
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
        assert_eq!(buffer.as_ptr().addr() % PAGE, 0);
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
        assert!(budget.lock().kept <= total / 4);
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
