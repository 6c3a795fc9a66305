//! SO_BUF_LOCK, for which rustix has no call, and descriptors that are known by their number only.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// Since Linux 5.14; the same number on every architecture but PA-RISC and SPARC, which have it elsewhere and answer
/// ENOPROTOOPT to this one.
const SO_BUF_LOCK: libc::c_int = 72;

/// Which buffers have a size that was set, so that the kernel's autotuning leaves them alone. Bits: 1 send, 2 receive.
pub(crate) fn locks(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, an integer, to `value`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_BUF_LOCK,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value as u32 & 3) } else { Err(io::Error::last_os_error()) }
}

/// Says which buffers autotuning leaves alone.
pub(crate) fn set_locks(socket: BorrowedFd<'_>, locks: u32) -> io::Result<()> {
    let value = (locks & 3) as libc::c_int;
    // SAFETY: the kernel reads an integer from `value`, whose size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_BUF_LOCK,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A duplicate of a descriptor of this process, which may be closed, or another, at any moment.
///
/// # Errors
/// EBADF: it is closed. EMFILE: there are too many.
pub(crate) fn duplicate(descriptor: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: fcntl(2) takes any number, and says so where it is none of a descriptor.
    let new = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if new < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::BADF));
    }
    // SAFETY: the kernel has just made it, for nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}
