//! Bytes on their way through, in one piece of memory that is used again and again.

/// What was put in at one end and not taken out at the other yet.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// `start..end` is waiting. What is behind it is old and may be anything.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Queue {
    /// Room for at least so many bytes behind those that wait; [`Queue::filled`] says how many were put there.
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

    /// `f` appends to a vector.
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

    /// The first so many bytes that wait are done with.
    pub(crate) fn taken(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Gives the memory back where nothing waits.
    pub(crate) fn shrink(&mut self) {
        if self.start == self.end {
            *self = Self::default();
        }
    }
}
