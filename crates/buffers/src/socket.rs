//! Sockets of other programs, and their buffers.

use std::os::fd::{AsFd, OwnedFd};
use std::{io, process};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::flow::{Direction, Owner};
use crate::sys;

/// A socket could not be reached, or its buffer not set.
#[derive(Debug, Error)]
pub enum SocketError {
    /// It was closed, or given to another process, since it was seen.
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

/// A buffer as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// Its size, as the kernel counts.
    pub kernel_bytes: u64,
    /// Whether it had been set, so that autotuning left it alone. `None` where the kernel does not tell (before 5.14).
    pub locked: Option<bool>,
}

/// A buffer that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    pub before: Before,
    /// What was asked for, payload.
    pub asked_bytes: u64,
    /// What the kernel made of it, as it counts; read back.
    pub kernel_bytes: u64,
    /// Past net.core.wmem_max or rmem_max, as CAP_NET_ADMIN allows.
    pub forced: bool,
    /// The kernel gave less than was asked for: the limit is net.core.wmem_max or rmem_max.
    pub clamped: bool,
}

/// How far a buffer was given back to its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// It is as it was.
    Whole,
    /// It has its size again, but the kernel is too old to take up autotuning.
    WithoutAutotuning,
}

/// A socket that another process has open too.
#[derive(Debug)]
pub struct Taken {
    socket: OwnedFd,
    pid: u32,
}

impl Taken {
    /// A duplicate of `owner`'s socket, if it is (still) the one with this cookie. Drop it soon: while it is there, the
    /// program's close(2) does not end the connection.
    ///
    /// # Errors
    /// The process or its socket is gone, another has its number, or the kernel forbids it.
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
            // Allowed everywhere, whatever a container's filter says of the other way.
            sys::duplicate(owner.descriptor).map_err(|error| fail("fcntl", error))?
        } else {
            let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Err(gone) };
            let process =
                pidfd_open(number, PidfdFlags::empty()).map_err(|error| fail("pidfd_open", error))?;
            pidfd_getfd(&process, owner.descriptor, PidfdGetfdFlags::empty())
                .map_err(|error| fail("pidfd_getfd", error))?
        };
        // The pid or the descriptor may mean something else by now.
        match sockopt::socket_cookie(&socket) {
            Ok(found) if found == cookie => Ok(Self { socket, pid }),
            Ok(_) => Err(gone),
            Err(error) => Err(fail("SO_COOKIE", error)),
        }
    }

    /// The buffer now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn look(&self, direction: Direction) -> Result<Before, SocketError> {
        Ok(Before {
            kernel_bytes: self.size(direction)?,
            locked: sys::locks(self.socket.as_fd()).ok().map(|locks| locks & bit(direction) != 0),
        })
    }

    /// Sets the buffer to `bytes` of payload. The kernel's autotuning leaves it alone from then on, until
    /// [`give_back`](Self::give_back). Limits of the kernel are passed where the privilege is there.
    ///
    /// # Errors
    /// The kernel refuses.
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

    /// Makes the buffer what it was, and lets the kernel tune it again if it did.
    ///
    /// # Errors
    /// The kernel refuses, or gives less.
    pub fn give_back(&self, direction: Direction, before: Before) -> Result<GiveBack, SocketError> {
        let bytes = before.kernel_bytes / 2;
        if self.request(direction, bytes, true).is_err() {
            self.request(direction, bytes, false)?;
        }
        let now = self.size(direction)?;
        // Where it was tuned by the kernel, it will be again.
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

/// SOCK_SNDBUF_LOCK and SOCK_RCVBUF_LOCK of linux/socket.h.
fn bit(direction: Direction) -> u32 {
    match direction {
        Direction::Out => 1,
        Direction::In => 2,
    }
}
