//! A byte queue that reuses its memory.

/// Bytes that were appended at one end and not yet removed at the other.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// `start..end` is waiting. The bytes after `end` are stale.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Queue {
    /// Space for at least `least` bytes after the waiting ones; [`Queue::filled`] sets how many
    /// were written.
    pub(crate) fn space(&mut self, least: usize) -> &mut [u8] {
        if self.bytes.len() - self.end < least {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.bytes.len() - self.end < least {
                self.bytes.resize(self.end + least, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.filled(bytes.len());
    }

    /// Lets `f` append to the queue as to a vector.
    pub(crate) fn append<R>(&mut self, f: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.bytes.truncate(self.end);
        let result = f(&mut self.bytes);
        self.end = self.bytes.len();
        result
    }

    pub(crate) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(crate) fn waiting_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    /// Removes the first `count` waiting bytes.
    pub(crate) fn taken(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Frees the memory if no bytes are waiting.
    pub(crate) fn shrink(&mut self) {
        if self.start == self.end {
            *self = Self::default();
        }
    }
}
