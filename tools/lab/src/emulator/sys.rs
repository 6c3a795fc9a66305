//! System calls for which rustix has no safe function.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// An interface name in the form of the kernel: at most 15 bytes, terminated by a zero.
#[derive(Clone, Copy)]
pub(super) struct InterfaceName([libc::c_char; libc::IFNAMSIZ]);

impl InterfaceName {
    /// `None` for a name that the kernel would reject or, like `%d`, interpret as a pattern.
    pub(super) fn new(name: &str) -> Option<Self> {
        let fits = (1..libc::IFNAMSIZ).contains(&name.len()) && name != "." && name != "..";
        if !fits || !name.bytes().all(|b| b.is_ascii_graphic() && !b"/%:".contains(&b)) {
            return None;
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Some(Self(bytes))
    }

    fn request(self, value: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
        libc::ifreq { ifr_name: self.0, ifr_ifru: value }
    }
}

fn ioctl(fd: BorrowedFd<'_>, code: libc::Ioctl, mut request: libc::ifreq) -> io::Result<()> {
    // SAFETY: the codes used in this file read or write one `ifreq`, which `request` is; it
    // outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), code, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// TUNSETIFF: makes `fd`, an open `/dev/net/tun`, the interface `name` of the calling thread's
/// namespace.
pub(super) fn attach(fd: BorrowedFd<'_>, name: InterfaceName) -> io::Result<()> {
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    ioctl(fd, libc::TUNSETIFF, name.request(libc::__c_anonymous_ifr_ifru { ifru_flags: flags as i16 }))
}

/// TUNSETOFFLOAD: the work that the kernel may leave to the reader (`TUN_F_...`).
pub(super) fn set_offload(fd: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    // SAFETY: this code takes its argument by value and touches no memory.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(flags)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// SIOCSIFMTU through `socket`, any socket of the interface's namespace.
pub(super) fn set_mtu(socket: BorrowedFd<'_>, name: InterfaceName, mtu: u32) -> io::Result<()> {
    let value = libc::__c_anonymous_ifr_ifru { ifru_mtu: i32::try_from(mtu).unwrap_or(i32::MAX) };
    ioctl(socket, libc::SIOCSIFMTU, name.request(value))
}

/// SIOCSIFTXQLEN: how many packets (or super-packets) the kernel keeps until they are read.
pub(super) fn set_queue_length(socket: BorrowedFd<'_>, name: InterfaceName, packets: u16) -> io::Result<()> {
    // The field is `ifr_qlen`, an int in the same union.
    let value = libc::__c_anonymous_ifr_ifru { ifru_metric: i32::from(packets) };
    ioctl(socket, libc::SIOCSIFTXQLEN, name.request(value))
}

/// Sets the scheduling of the calling thread to SCHED_FIFO at `priority` (1 to 99).
pub(super) fn set_realtime(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the kernel reads one `sched_param`; thread 0 is the caller.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// SO_MAX_PACING_RATE, in bytes per second: TCP then paces itself, even without a queueing
/// discipline (`fq`) that does it.
pub(crate) fn set_pacing(socket: BorrowedFd<'_>, rate: u64) -> io::Result<()> {
    let length = size_of::<u64>() as libc::socklen_t;
    let (fd, rate) = (socket.as_raw_fd(), &raw const rate);
    // SAFETY: the kernel reads eight bytes, which `rate` has; it outlives the call.
    let result =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate.cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_name_with_invalid_characters_or_length_is_none() {
        for good in ["wan0", "fifteen-letters"] {
            assert!(InterfaceName::new(good).is_some(), "{good}");
        }
        for wrong in ["", ".", "..", "sixteen-letters-", "a/b", "a b", "tun%d", "a:1", "ä"] {
            assert!(InterfaceName::new(wrong).is_none(), "{wrong}");
        }
    }
}
