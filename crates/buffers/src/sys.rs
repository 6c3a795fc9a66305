//! System calls without a wrapper in rustix: SO_BUF_LOCK, and the duplication of descriptors that
//! are known only by their number.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// Available since Linux 5.14. The number is the same on all architectures but PA-RISC and SPARC,
/// which use another number and return ENOPROTOOPT for this one.
const SO_BUF_LOCK: libc::c_int = 72;

/// Returns the buffers whose size was set, so that the kernel's autotuning is off for them. Bit 1:
/// send, bit 2: receive.
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

/// Selects the buffers for which autotuning is off.
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

/// Duplicates a descriptor of this process. Another thread may close or replace the descriptor at
/// any time.
///
/// # Errors
/// EBADF: the descriptor is closed. EMFILE: too many descriptors are open.
pub(crate) fn duplicate(descriptor: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: fcntl(2) accepts any number, and returns an error if it is not a descriptor.
    let new = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if new < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::BADF));
    }
    // SAFETY: the kernel has just created the descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(new) })
}
