//! Memory that begins with a page.

use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;

/// Bytes that begin with a page, zeros at first.
///
/// What an allocator gives for a large size begins a few bytes after a page does. Copies from a file's pages to such an address
/// take some processors (AMD's with a fast `rep movsb`) six times as long: they compare addresses within a page, and see
/// an overlap. Direct reads and writes want whole pages, too.
#[derive(Debug)]
pub struct Pages {
    bytes: Vec<u8>,
    start: usize,
    size: usize,
}

impl Pages {
    /// `size` bytes.
    pub fn new(size: usize) -> Self {
        let bytes = vec![0; size + PAGE - 1];
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE - 1);
        Self { bytes, start, size }
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.size]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begins_with_a_page() {
        for size in [0, 1, 4096, 128 << 10, 1 << 20] {
            let mut pages = Pages::new(size);
            assert_eq!((pages.len(), pages.as_ptr().addr() % PAGE), (size, 0));
            pages.fill(7);
            let moved = Box::new(pages);
            assert_eq!(moved.as_ptr().addr() % PAGE, 0);
            assert!(moved.iter().all(|&byte| byte == 7));
        }
    }
}
