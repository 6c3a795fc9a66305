//! Buffers that the library allocated or reads.

use std::ptr;

use super::library::{Library, RawBuffer};

/// Passes bytes to a call that only reads them, although C's type does not say so: names, and plain
/// text to wrap.
pub(super) fn lend(bytes: &[u8]) -> RawBuffer {
    RawBuffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// Passes bytes to a call that may change them: MIT's library decrypts and rearranges a token in
/// place.
pub(super) fn give(bytes: &mut [u8]) -> RawBuffer {
    RawBuffer { length: bytes.len(), value: bytes.as_mut_ptr().cast() }
}

/// A buffer that the library allocated; released when dropped.
pub(super) struct Buffer {
    raw: RawBuffer,
    library: &'static Library,
}

impl Buffer {
    pub(super) fn empty(library: &'static Library) -> Self {
        Self { raw: RawBuffer { length: 0, value: ptr::null_mut() }, library }
    }

    /// Pointer for the library to fill, once.
    pub(super) fn as_mut(&mut self) -> *mut RawBuffer {
        &raw mut self.raw
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.raw.value.is_null() {
            return &[];
        }
        // SAFETY: the library set this length, and the bytes are ours until we release them.
        unsafe { std::slice::from_raw_parts(self.raw.value.cast::<u8>(), self.raw.length) }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: the buffer is empty or was allocated by the library, and has no other owner.
        unsafe { (self.library.gss_release_buffer)(&raw mut minor, &raw mut self.raw) };
    }
}
