//! Lists TCP connections, through sock_diag(7).

use std::io;
use std::net::{IpAddr, SocketAddr};

use ropewalk_transport::TcpInfo;

use crate::message::{Attributes, Request, u32_at};
use crate::socket::{List, Netlink};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
const WANTED: u8 = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1) | 1 << (INET_DIAG_SKMEMINFO - 1);
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `idiag_timer` of a socket in TIME-WAIT, or in FIN-WAIT-2 after every process has closed it: the
/// kernel keeps only a reduced form of it.
const TIMER_REMNANT: u8 = 3;
/// Length of `struct inet_diag_msg`.
const FIXED: usize = 72;
/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY` of linux/sock_diag.h.
const DESTROYED: u32 = 1 | 1 << 2;

/// A set of TCP states (RFC 9293, section 3.3.2): a bit for each, as numbered in
/// linux/tcp_states.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States(u32);

impl States {
    pub const LISTEN: Self = Self(1 << 10);
    /// ESTABLISHED, FIN-WAIT-1, FIN-WAIT-2 (which still receives), CLOSE-WAIT, LAST-ACK and
    /// CLOSING: the states in which data may still have to be transferred.
    pub const MOVING: Self = Self(1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11);
    /// All states from ESTABLISHED up to but not including TIME-WAIT.
    pub const CONNECTED: Self = Self::MOVING;
}

/// The state of a connection at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The kernel's identifier of the socket. A later socket with the same addresses has another
    /// one.
    pub cookie: u64,
    /// The inode that /proc/PID/fd shows; 0 after every process has closed the socket.
    pub inode: u32,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Congestion control algorithm.
    pub congestion: String,
    /// Bytes that arrived in order and were not yet read (`idiag_rqueue`).
    pub unread: u32,
    pub memory: Option<Memory>,
    pub info: TcpInfo,
}

/// The memory that the kernel charges for a socket, in bytes of payload and bookkeeping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub receive_queue: u32,
    pub receive_buffer: u32,
    pub send_buffer: u32,
    pub send_queue: u32,
}

/// Lists the connections of a network namespace.
pub struct Connections(Netlink);

impl Connections {
    /// Opens a list of the connections in the calling thread's network namespace. This needs no
    /// privilege.
    ///
    /// # Errors
    /// The kernel has no sock_diag(7), or a filter of system calls forbids it.
    pub fn open() -> io::Result<Self> {
        Netlink::diagnostics().map(Self)
    }

    /// Lists all sockets that are in one of `states`. Closed sockets, which the kernel keeps in
    /// order to answer late segments, are left out.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn list(&mut self, states: States, mut each: impl FnMut(Seen)) -> io::Result<List> {
        let mut list = List::Whole;
        let mut entry = |_, body: &[u8]| {
            if body.get(2) != Some(&TIMER_REMNANT) {
                read(body).into_iter().for_each(&mut each);
            }
        };
        for family in [AF_INET, AF_INET6] {
            match self.0.list(request(family, states), &mut entry) {
                Ok(List::Whole) => {}
                Ok(List::Interrupted) => list = List::Interrupted,
                // The kernel has no IPv6.
                Err(error) if family == AF_INET6 && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(list)
    }

    /// Whether a socket listens on this port.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn listens(&mut self, port: u16) -> io::Result<bool> {
        let mut found = false;
        self.list(States::LISTEN, |seen| found |= seen.local.port() == port)?;
        Ok(found)
    }
}

/// Reports sockets that were destroyed.
pub struct Destroyed(Netlink);

impl Destroyed {
    /// Begins to report the sockets that are destroyed in the calling thread's network namespace.
    ///
    /// # Errors
    /// The caller has no `CAP_NET_ADMIN`.
    pub fn open() -> io::Result<Self> {
        Netlink::diagnostics_of(DESTROYED).map(Self)
    }

    /// Reports the sockets that were destroyed since the last call, with their last state. Returns
    /// `Interrupted` if some were missed.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn drain(&mut self, mut each: impl FnMut(Seen)) -> io::Result<List> {
        self.0.drain(|kind, body| {
            if kind == SOCK_DIAG_BY_FAMILY {
                read(body).into_iter().for_each(&mut each);
            }
        })
    }
}

/// Builds a `struct inet_diag_req_v2`.
fn request(family: u8, States(states): States) -> Request {
    let mut fixed = vec![family, IPPROTO_TCP, WANTED, 0];
    fixed.extend(states.to_ne_bytes());
    fixed.resize(56, 0);
    Request::new(SOCK_DIAG_BY_FAMILY, 0, &fixed)
}

/// Parses a `struct inet_diag_msg` and its attributes.
fn read(body: &[u8]) -> Option<Seen> {
    let fixed: &[u8; FIXED] = body.get(..FIXED)?.try_into().ok()?;
    let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = fixed[at..at + 16].try_into().ok()?;
        match fixed[0] {
            AF_INET => Some(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])),
            // A socket for both families may have an IPv4 connection.
            AF_INET6 => Some(IpAddr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    let mut seen = Seen {
        // The cookie consists of two words, of which the lower one is first on every machine.
        cookie: u64::from(u32_at(fixed, 44)?) | u64::from(u32_at(fixed, 48)?) << 32,
        inode: u32_at(fixed, 68)?,
        local: SocketAddr::new(address(8)?, port(4)),
        remote: SocketAddr::new(address(24)?, port(6)),
        congestion: String::new(),
        unread: u32_at(fixed, 56)?,
        memory: None,
        info: TcpInfo::read(&[]),
    };
    for (kind, value) in Attributes(&body[FIXED..]) {
        match kind {
            INET_DIAG_INFO => seen.info = TcpInfo::read(value),
            INET_DIAG_CONG => {
                let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
                seen.congestion = String::from_utf8_lossy(name).into_owned();
            }
            INET_DIAG_SKMEMINFO => {
                let word = |at| u32_at(value, at).unwrap_or(0);
                seen.memory = Some(Memory {
                    receive_queue: word(0),
                    receive_buffer: word(4),
                    send_buffer: word(12),
                    send_queue: word(20),
                });
            }
            _ => {}
        }
    }
    Some(seen)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::*;
    use crate::message::messages;

    /// A message that a kernel may send.
    fn entry(cookie: u64) -> Vec<u8> {
        let mut bytes = vec![AF_INET, 1, 0, 0];
        bytes.extend([0x1f, 0x90, 0, 80]);
        bytes.resize(FIXED, 0);
        bytes[8..12].copy_from_slice(&[127, 0, 0, 1]);
        bytes[44..48].copy_from_slice(&(cookie as u32).to_ne_bytes());
        bytes[48..52].copy_from_slice(&((cookie >> 32) as u32).to_ne_bytes());
        bytes[68..72].copy_from_slice(&77_u32.to_ne_bytes());
        bytes.extend([10, 0, 4, 0]);
        bytes.extend(b"cubic\0\0\0");
        bytes.extend([12, 0, 7, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        bytes
    }

    #[test]
    fn entry_with_attributes_is_parsed() {
        let cookie = 7 << 32 | 5;
        let seen = read(&entry(cookie)).unwrap();
        assert_eq!((seen.cookie, seen.inode, seen.congestion.as_str()), (cookie, 77, "cubic"));
        assert_eq!((seen.local, seen.remote.port()), ("127.0.0.1:8080".parse().unwrap(), 80));
        let memory = seen.memory.unwrap();
        assert_eq!((memory.receive_queue, memory.receive_buffer, memory.send_buffer), (1, 2, 0));
        assert_eq!(seen.info, TcpInfo::read(&[]));
    }

    #[test]
    fn list_of_own_connections_matches_socket_options() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        // The data has arrived when it can be peeked at.
        assert_eq!(server.peek(&mut [0; 1000]).unwrap(), 1000);
        let mut kernel = Connections::open().unwrap();
        assert!(kernel.listens(listener.local_addr().unwrap().port()).unwrap());
        let mut found = Vec::new();
        kernel.list(States::MOVING, |seen| found.push(seen)).unwrap();
        let of = |local| found.iter().find(|seen| seen.local == local).unwrap();
        // The listener on the same port is not connected, so it is not in the list.
        let receiver = of(server.local_addr().unwrap());
        assert_eq!((receiver.remote, receiver.unread), (client.local_addr().unwrap(), 1000));
        assert_eq!(receiver.info.bytes_received, Some(1000));
        let sender = of(client.local_addr().unwrap());
        let own = TcpInfo::of(client.as_fd()).unwrap();
        assert_eq!(
            (sender.info.mss, sender.info.congestion_window, sender.info.segments_sent),
            (own.mss, own.congestion_window, own.segments_sent)
        );
        assert_eq!(
            (sender.info.min_rtt, sender.info.send_window, sender.info.receive_window_limited),
            (own.min_rtt, own.send_window, own.receive_window_limited)
        );
        assert!(sender.memory.unwrap().send_buffer > 0 && !sender.congestion.is_empty());
        assert_eq!(sender.cookie, rustix::net::sockopt::socket_cookie(&client).unwrap());
    }

    #[test]
    fn list_in_fin_wait_2_includes_socket_until_closed() {
        const FIN_WAIT_2: States = States(1 << 5);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_server, _) = listener.accept().unwrap();
        let local = client.local_addr().unwrap();
        let mut kernel = Connections::open().unwrap();
        let mut is_seen = |states| {
            let mut found = false;
            kernel.list(states, |seen| found |= seen.local == local).unwrap();
            found
        };
        client.shutdown(Shutdown::Write).unwrap();
        // The acknowledgement of the other side may be delayed.
        while !is_seen(FIN_WAIT_2) {
            std::thread::yield_now();
        }
        assert!(is_seen(States::MOVING) && is_seen(States::CONNECTED));
        drop(client);
        assert!(!is_seen(States::MOVING) && !is_seen(FIN_WAIT_2));
    }

    proptest! {
        #[test]
        fn parsers_on_any_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            for message in messages(&bytes) {
                let _ = read(message.body);
            }
            let _ = read(&bytes);
            prop_assert!(Attributes(&bytes).count() <= bytes.len());
        }

        #[test]
        fn read_on_malformed_entry_does_not_panic(at in 0_usize..100, byte: u8, length in 0_usize..100) {
            let mut bytes = entry(1);
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(length);
            let _ = read(&bytes);
        }
    }
}
