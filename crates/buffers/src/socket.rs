//! Access to the sockets of other programs and their buffers.

use std::os::fd::{AsFd, OwnedFd};
use std::{io, process};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::flow::{Direction, Owner};
use crate::sys;

/// A socket cannot be reached, or its buffer cannot be set.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The socket was closed or passed to another process after it was listed.
    #[error("the socket is gone from process {pid}")]
    Gone { pid: u32 },
    #[error(
        "process {pid} may not be looked into: expected root (CAP_SYS_PTRACE), or the same user with \
         kernel.yama.ptrace_scope = 0, and no container filter against pidfd_getfd"
    )]
    Forbidden { pid: u32 },
    #[error("the kernel or a container filter has no pidfd_getfd: expected Linux 5.6 or later")]
    Unsupported,
    #[error("{call} on a socket of process {pid}: {source}")]
    Call { call: &'static str, pid: u32, source: io::Error },
    #[error(
        "a buffer of process {pid} had {was} bytes, and is given no more than {bytes} again: expected root (CAP_NET_ADMIN), \
         or net.core.wmem_max and rmem_max of half as much as it had"
    )]
    Short { pid: u32, was: u64, bytes: u64 },
}

/// The state of a buffer before it was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// The size, as the kernel counts.
    pub kernel_bytes: u64,
    /// Whether the size had been set, which turned autotuning off. `None` if the kernel cannot
    /// report this (before 5.14).
    pub locked: Option<bool>,
}

/// A buffer that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    pub before: Before,
    /// The requested size in payload.
    pub asked_bytes: u64,
    /// The resulting size, as the kernel counts, read back after the call.
    pub kernel_bytes: u64,
    /// The size exceeds net.core.wmem_max or rmem_max, which CAP_NET_ADMIN allows.
    pub forced: bool,
    /// The kernel granted less than requested: the limit is net.core.wmem_max or rmem_max.
    pub clamped: bool,
}

/// The extent to which a buffer was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// Completely.
    Whole,
    /// The size is restored, but the kernel is too old to resume autotuning.
    WithoutAutotuning,
}

/// A duplicate of a socket of another process.
#[derive(Debug)]
pub struct Taken {
    socket: OwnedFd,
    pid: u32,
}

impl Taken {
    /// Duplicates the socket of `owner`, if it still has this cookie. Drop the duplicate soon: as
    /// long as it exists, a close(2) by the program does not end the connection.
    ///
    /// # Errors
    /// The process or its socket no longer exists, its number was reused, or the kernel forbids the
    /// access.
    pub fn new(owner: &Owner, cookie: u64) -> Result<Self, SocketError> {
        let pid = owner.pid;
        let gone = SocketError::Gone { pid };
        let fail = |call, error: Errno| match error {
            Errno::SRCH | Errno::BADF | Errno::NOTSOCK => SocketError::Gone { pid },
            Errno::PERM | Errno::ACCESS => SocketError::Forbidden { pid },
            Errno::NOSYS => SocketError::Unsupported,
            error => SocketError::Call { call, pid, source: error.into() },
        };
        let socket = if pid == process::id() {
            // This is allowed everywhere, even if a container filter forbids pidfd_getfd.
            sys::duplicate(owner.descriptor).map_err(|error| fail("fcntl", error))?
        } else {
            let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Err(gone) };
            let process =
                pidfd_open(number, PidfdFlags::empty()).map_err(|error| fail("pidfd_open", error))?;
            pidfd_getfd(&process, owner.descriptor, PidfdGetfdFlags::empty())
                .map_err(|error| fail("pidfd_getfd", error))?
        };
        // The number of the process or of the descriptor may have been reused.
        match sockopt::socket_cookie(&socket) {
            Ok(found) if found == cookie => Ok(Self { socket, pid }),
            Ok(_) => Err(gone),
            Err(error) => Err(fail("SO_COOKIE", error)),
        }
    }

    /// Returns the current state of the buffer.
    ///
    /// # Errors
    /// The kernel refuses the call.
    pub fn look(&self, direction: Direction) -> Result<Before, SocketError> {
        Ok(Before {
            kernel_bytes: self.size(direction)?,
            locked: sys::locks(self.socket.as_fd()).ok().map(|locks| locks & bit(direction) != 0),
        })
    }

    /// Sets the buffer to `bytes` of payload. This turns the kernel's autotuning off until
    /// [`give_back`](Self::give_back). With the privilege, the size may exceed the limits of the
    /// kernel.
    ///
    /// # Errors
    /// The kernel refuses the call.
    pub fn set(&self, direction: Direction, bytes: u64) -> Result<Applied, SocketError> {
        let before = self.look(direction)?;
        self.request(direction, bytes, false)?;
        let mut applied = Applied {
            before,
            asked_bytes: bytes,
            kernel_bytes: self.size(direction)?,
            forced: false,
            clamped: false,
        };
        if applied.kernel_bytes < bytes.saturating_mul(2) {
            applied.forced = self.request(direction, bytes, true).is_ok();
            applied.kernel_bytes = self.size(direction)?;
            applied.clamped = applied.kernel_bytes < bytes.saturating_mul(2);
        }
        Ok(applied)
    }

    /// Restores the buffer to its earlier state, and turns autotuning on if it was on.
    ///
    /// # Errors
    /// The kernel refuses the call, or grants a smaller size.
    pub fn give_back(&self, direction: Direction, before: Before) -> Result<GiveBack, SocketError> {
        let bytes = before.kernel_bytes / 2;
        if self.request(direction, bytes, true).is_err() {
            self.request(direction, bytes, false)?;
        }
        let now = self.size(direction)?;
        // If autotuning was on, a smaller size does not matter, because the kernel will tune it
        // again.
        if now < 2 * bytes && before.locked != Some(false) {
            return Err(SocketError::Short { pid: self.pid, was: before.kernel_bytes, bytes: now });
        }
        match before.locked {
            Some(true) => Ok(GiveBack::Whole),
            Some(false) => {
                let fail = |source| SocketError::Call { call: "SO_BUF_LOCK", pid: self.pid, source };
                let locks = sys::locks(self.socket.as_fd()).map_err(fail)?;
                sys::set_locks(self.socket.as_fd(), locks & !bit(direction)).map_err(fail)?;
                Ok(GiveBack::Whole)
            }
            None => Ok(GiveBack::WithoutAutotuning),
        }
    }

    fn size(&self, direction: Direction) -> Result<u64, SocketError> {
        let (call, size) = match direction {
            Direction::Out => ("SO_SNDBUF", sockopt::socket_send_buffer_size(&self.socket)),
            Direction::In => ("SO_RCVBUF", sockopt::socket_recv_buffer_size(&self.socket)),
        };
        size.map(|size| size as u64).map_err(|error| self.failed(call, error))
    }

    fn request(&self, direction: Direction, bytes: u64, force: bool) -> Result<(), SocketError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(i32::MAX as usize / 2);
        let (call, result) = match (direction, force) {
            (Direction::Out, false) => {
                ("SO_SNDBUF", sockopt::set_socket_send_buffer_size(&self.socket, bytes))
            }
            (Direction::In, false) => {
                ("SO_RCVBUF", sockopt::set_socket_recv_buffer_size(&self.socket, bytes))
            }
            (Direction::Out, true) => {
                ("SO_SNDBUFFORCE", sockopt::set_socket_send_buffer_size_force(&self.socket, bytes))
            }
            (Direction::In, true) => {
                ("SO_RCVBUFFORCE", sockopt::set_socket_recv_buffer_size_force(&self.socket, bytes))
            }
        };
        result.map_err(|error| self.failed(call, error))
    }

    fn failed(&self, call: &'static str, error: Errno) -> SocketError {
        SocketError::Call { call, pid: self.pid, source: error.into() }
    }
}

/// The bit of SOCK_SNDBUF_LOCK or SOCK_RCVBUF_LOCK in linux/socket.h.
fn bit(direction: Direction) -> u32 {
    match direction {
        Direction::Out => 1,
        Direction::In => 2,
    }
}
