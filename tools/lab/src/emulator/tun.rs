//! TUN interfaces (the kernel's Documentation/networking/tuntap.rst). An interface belongs to the
//! network namespace of the thread that created it and can be read and written from any thread.
//! Reading never blocks. The kernel removes the interface when the [`Tun`] is dropped.

use std::fs::File;
use std::io::{self, IoSlice, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::sys::{self, InterfaceName};

// <linux/if_tun.h>
const TUN_F_CSUM: u32 = 0x01;
const TUN_F_TSO4: u32 = 0x02;
const TUN_F_TSO6: u32 = 0x04;
const TUN_F_TSO_ECN: u32 = 0x08;
const TUN_F_USO4: u32 = 0x20;
const TUN_F_USO6: u32 = 0x40;

/// Packets (or super-packets) that the kernel keeps while the emulator's thread does not run: 5 ms
/// of 1500-byte packets at 10 Gbit/s.
const KERNEL_QUEUE: u16 = 5000;

/// The reason why an interface could not be created or changed.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    #[error("`{0}` is no interface name: expected 1 to 15 ASCII letters, digits, dashes and the like")]
    Name(String),
    #[error("cannot {step} for interface {name}: {source}{}", hint(source))]
    Kernel { name: String, step: &'static str, source: io::Error },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (making interfaces needs root, or CAP_NET_ADMIN in the namespace)"
        }
        io::ErrorKind::NotFound => " (the kernel module tun is needed)",
        _ => "",
    }
}

/// A TUN interface in any namespace. The kernel removes the interface when this value is dropped.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    /// A socket of the namespace, through which the settings of the interface are changed.
    socket: OwnedFd,
    /// `/proc/thread-self/net/dev` of the namespace. An open file stays with its namespace,
    /// whichever thread reads it.
    counters: File,
    offload: bool,
}

impl Tun {
    /// Creates the interface `name` in the network namespace of the calling thread, down and
    /// without addresses.
    ///
    /// `mtu` is in bytes. With `offload`, TCP and UDP segments travel as super-packets of up to 64
    /// KiB without checksums, which takes a tenth of the CPU; the emulator still treats each
    /// segment separately.
    ///
    /// # Errors
    /// `name` is not an interface name, the kernel has no TUN interfaces or does not permit
    /// creating one, or it rejects a setting.
    pub fn open(name: &str, mtu: u32, offload: bool) -> Result<Self, TunError> {
        let checked = InterfaceName::new(name).ok_or_else(|| TunError::Name(name.to_owned()))?;
        let failed = |step| move |source: io::Error| TunError::Kernel { name: name.to_owned(), step, source };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|e| failed("open /dev/net/tun")(e.into()))?;
        sys::attach(fd.as_fd(), checked).map_err(failed("create it (TUNSETIFF)"))?;
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .map_err(|e| failed("open a socket")(e.into()))?;
        let counters =
            File::open("/proc/thread-self/net/dev").map_err(failed("open its counters in /proc"))?;
        let tun = Self { fd, name: name.to_owned(), socket, counters, offload };
        if offload {
            let tso = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
            // Linux has UDP segmentation since 6.2.
            sys::set_offload(tun.fd.as_fd(), tso | TUN_F_USO4 | TUN_F_USO6)
                .or_else(|_| sys::set_offload(tun.fd.as_fd(), tso))
                .map_err(failed("turn offload on"))?;
        } else {
            sys::set_offload(tun.fd.as_fd(), 0).map_err(failed("turn offload off"))?;
        }
        sys::set_queue_length(tun.socket.as_fd(), checked, KERNEL_QUEUE).map_err(failed("set the queue"))?;
        tun.set_mtu(mtu)?;
        Ok(tun)
    }

    /// The interface's name in its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the interface may deliver super-packets.
    pub fn offload(&self) -> bool {
        self.offload
    }

    /// Changes the MTU (bytes) while packets flow.
    ///
    /// # Errors
    /// The kernel rejects the value because it is out of bounds, or the interface no longer exists.
    pub fn set_mtu(&self, mtu: u32) -> Result<(), TunError> {
        let name = InterfaceName::new(&self.name).ok_or_else(|| TunError::Name(self.name.clone()))?;
        sys::set_mtu(self.socket.as_fd(), name, mtu).map_err(|source| TunError::Kernel {
            name: self.name.clone(),
            step: "set the MTU",
            source,
        })
    }

    /// Appends a packet with its virtio header to `buffer`, which must have room for it. Fails with
    /// `WouldBlock` if there is no packet.
    pub(super) fn read(&self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, spare_capacity(buffer))?)
    }

    /// Writes a packet with its virtio header to the kernel.
    pub(super) fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        rustix::io::writev(&self.fd, parts)?;
        Ok(())
    }

    /// Packets that the kernel dropped because its queue for this interface was full.
    pub(super) fn overrun(&self) -> u64 {
        let mut text = String::new();
        let mut file = &self.counters;
        let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
        if read.is_err() { 0 } else { transmit_drops(&text, &self.name).unwrap_or(0) }
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The column "drop" of "Transmit" in `/proc/net/dev`.
fn transmit_drops(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transmit_drops_of_an_interface_are_found_by_its_whole_name() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo\n    \
             lo:       0       0    0    0    0     0          0         0        0       0    0    0    0\n  \
             wan0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(transmit_drops(text, "wan0"), Some(12));
        assert_eq!(transmit_drops(text, "wan"), None);
    }
}
