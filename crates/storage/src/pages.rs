//! Memory that begins at a page boundary.

use std::ops::{Deref, DerefMut};

const PAGE: usize = 4096;

/// Bytes that begin at a page boundary, initially zeros.
///
/// For large sizes, allocators return addresses a few bytes after a page boundary. Some processors
/// (AMD's with a fast `rep movsb`) take six times as long to copy from a file's pages to such an
/// address: they compare addresses within a page and detect a false overlap. Direct reads and
/// writes require whole pages, too.
#[derive(Debug)]
pub struct Pages {
    bytes: Vec<u8>,
    start: usize,
    size: usize,
}

impl Pages {
    /// Allocates `size` bytes.
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
    fn pages_begin_at_a_page_boundary() {
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
