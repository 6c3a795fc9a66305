//! Bytes that the library made or is to read.

use std::ptr;

use super::library::{Library, RawBuffer};

/// Bytes of ours for a call that only reads them, although C's type does not say so: names, and what is wrapped.
pub(super) fn lend(bytes: &[u8]) -> RawBuffer {
    RawBuffer { length: bytes.len(), value: bytes.as_ptr().cast_mut().cast() }
}

/// Bytes of ours for a call that may change them: MIT's library turns a token's parts into order where it lies.
pub(super) fn give(bytes: &mut [u8]) -> RawBuffer {
    RawBuffer { length: bytes.len(), value: bytes.as_mut_ptr().cast() }
}

/// Bytes of the library's, released with their owner.
pub(super) struct Buffer {
    raw: RawBuffer,
    library: &'static Library,
}

impl Buffer {
    pub(super) fn empty(library: &'static Library) -> Self {
        Self { raw: RawBuffer { length: 0, value: ptr::null_mut() }, library }
    }

    /// For the library to fill, once.
    pub(super) fn as_mut(&mut self) -> *mut RawBuffer {
        &raw mut self.raw
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.raw.value.is_null() {
            return &[];
        }
        // SAFETY: the library said that there are so many bytes, and they are ours until we release them.
        unsafe { std::slice::from_raw_parts(self.raw.value.cast::<u8>(), self.raw.length) }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut minor = 0;
        // SAFETY: it is empty or the library made it, and nobody else has it.
        unsafe { (self.library.gss_release_buffer)(&raw mut minor, &raw mut self.raw) };
    }
}
