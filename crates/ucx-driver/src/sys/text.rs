//! Texts that UCX prints for people.

use std::io;
use std::ptr;

/// The text that `print` writes to a file.
///
/// # Errors
/// The system has no memory left.
pub(super) fn printed(print: impl FnOnce(*mut libc::FILE)) -> io::Result<String> {
    let (mut text, mut length) = (ptr::null_mut(), 0);
    // SAFETY: the pointers are valid for writes until the file is closed.
    let file = unsafe { libc::open_memstream(&raw mut text, &raw mut length) };
    if file.is_null() {
        return Err(io::Error::last_os_error());
    }
    print(file);
    // SAFETY: the file is open and not used any more.
    let closed = unsafe { libc::fclose(file) };
    let error = io::Error::last_os_error();
    if text.is_null() {
        return Err(error);
    }
    // SAFETY: `text` has at least `length` bytes, which nothing changes any more.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    let result = String::from_utf8_lossy(bytes).into_owned();
    // SAFETY: `open_memstream` has allocated the text, and nothing refers to it any more.
    unsafe { libc::free(text.cast()) };
    if closed == 0 { Ok(result) } else { Err(error) }
}
