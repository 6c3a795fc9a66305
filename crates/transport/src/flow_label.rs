//! Flow labels of IPv6 connections (RFC 6437), which the connecting side sets.
//!
//! The kernel sends a label on all packets from the SYN on if IPV6_FLOWINFO_SEND was set before and
//! the address in connect(2) has the label. An accepting side cannot choose a label. A connection
//! whose label the kernel refuses is made without it: a label is never a reason to fail.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use socket2::Socket;

/// The length of a label.
const LABEL_BITS: u32 = 0xf_ffff;

/// Socket options of linux/in6.h that no crate has.
const IPV6_FLOWLABEL_MGR: libc::c_int = 32;
const IPV6_FLOWINFO_SEND: libc::c_int = 33;
const GET: u8 = 0;
/// An exclusive lease would keep other processes from using the label.
const SHARED_WITH_ANY: u8 = 255;
const CREATE: u16 = 1;

/// The flow label of the connections of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLabel {
    /// The bits that all connections have in common.
    pub bits: u32,
    /// The mask of the bits that each connection chooses at random, so that routers spread parallel
    /// connections over paths of equal cost.
    pub random: u32,
}

impl FlowLabel {
    fn choose(self) -> u32 {
        (self.bits & !self.random | fastrand::u32(..) & self.random) & LABEL_BITS
    }
}

/// Starts to connect a socket, with the label if the address is one of IPv6.
pub(crate) fn connect(socket: &Socket, address: SocketAddr, label: Option<FlowLabel>) -> io::Result<()> {
    if let (SocketAddr::V6(address), Some(label)) = (address, label)
        && address.ip().to_ipv4_mapped().is_none()
        && let Some(result) = connect_labelled(socket, address, label.choose())
    {
        return result;
    }
    socket.connect(&address.into())
}

/// Returns `None` if the kernel refuses the label.
fn connect_labelled(socket: &Socket, address: SocketAddrV6, label: u32) -> Option<io::Result<()>> {
    let refused = |error: &io::Error| tracing::debug!(%error, label, "cannot set a flow label");
    set_option(socket, IPV6_FLOWINFO_SEND, &1i32).map_err(|error| refused(&error)).ok()?;
    // The field is in network order.
    let labelled = SocketAddrV6::new(*address.ip(), address.port(), label.to_be(), address.scope_id());
    let labelled = SocketAddr::V6(labelled).into();
    let is_refusal = |result: &io::Result<()>| matches!(result, Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()));
    let first = socket.connect(&labelled);
    if !is_refusal(&first) {
        return Some(first);
    }
    // If a process of the network namespace has an exclusive lease, each label needs a lease.
    let lease = LeaseRequest::new(*address.ip(), label);
    set_option(socket, IPV6_FLOWLABEL_MGR, &lease).map_err(|error| refused(&error)).ok()?;
    Some(socket.connect(&labelled)).filter(|result| !is_refusal(result))
}

/// `struct in6_flowlabel_req`.
#[repr(C)]
struct LeaseRequest {
    destination: [u8; 16],
    /// In network order.
    label: u32,
    action: u8,
    share: u8,
    flags: u16,
    expires: u16,
    linger: u16,
    padding: u32,
}

impl LeaseRequest {
    fn new(destination: Ipv6Addr, label: u32) -> Self {
        Self {
            destination: destination.octets(),
            label: label.to_be(),
            action: GET,
            share: SHARED_WITH_ANY,
            flags: CREATE,
            expires: 0,
            linger: 0,
            padding: 0,
        }
    }
}

/// A value that the kernel may read byte by byte: it is made of integers without padding between.
trait Plain {}

impl Plain for i32 {}
impl Plain for LeaseRequest {}

fn set_option<T: Plain>(socket: &Socket, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of `value`, which has that size and no
    // padding, and keeps no reference to it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IPV6,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use socket2::{Domain, Type};

    use super::*;

    #[test]
    fn chosen_label_keeps_its_common_bits() {
        let label = FlowLabel { bits: 0x1003c, random: 0xc0103 };
        let chosen: Vec<_> = (0..100).map(|_| label.choose()).collect();
        assert!(chosen.iter().all(|chosen| chosen & 0x3fefc == 0x1003c && *chosen <= LABEL_BITS));
        assert!(chosen.iter().any(|other| *other != chosen[0]));
    }

    #[test]
    fn lease_request_has_the_layout_of_the_kernel() {
        assert_eq!(size_of::<LeaseRequest>(), 32);
        assert_eq!(std::mem::offset_of!(LeaseRequest, flags), 22);
    }

    #[test]
    fn connected_socket_has_the_label() {
        let Ok(listener) = TcpListener::bind("[::1]:0") else {
            eprintln!("skipped: this host has no IPv6");
            return;
        };
        let socket = Socket::new(Domain::IPV6, Type::STREAM, None).unwrap();
        let label = FlowLabel { bits: 0x1003c, random: 0 };
        connect(&socket, listener.local_addr().unwrap(), Some(label)).unwrap();
        let peer = socket.peer_addr().unwrap().as_socket_ipv6().unwrap();
        assert_eq!(u32::from_be(peer.flowinfo()), 0x1003c);
    }

    #[test]
    fn address_of_ipv4_is_connected_without_label() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let label = FlowLabel { bits: 1, random: 0 };
        connect(&socket, listener.local_addr().unwrap(), Some(label)).unwrap();
    }
}
