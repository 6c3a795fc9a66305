//! TCP connections of a network namespace, by sock_diag(7).

use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::netlink::{SocketDiagnostics, attributes, u32_at, u64_at};
use crate::tcp_info::TcpInfo;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// ESTABLISHED, FIN_WAIT1, CLOSE_WAIT, LAST_ACK and CLOSING: those that may still have data to move.
const CONNECTED: u32 = 1 << 1 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 11;
const FIXED: usize = 72;

/// A connection, as it was at a moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// The socket's own number: a later socket with the same addresses has another.
    pub(crate) cookie: u64,
    /// 0 once no process has it open.
    pub(crate) inode: u32,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) congestion: String,
    pub(crate) info: TcpInfo,
    pub(crate) memory: Memory,
}

/// What the kernel charges for a socket, in its own bytes (payload and bookkeeping).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) receive_queue: u32,
    pub(crate) receive_buffer: u32,
    pub(crate) send_buffer: u32,
    pub(crate) send_queue: u32,
}

/// All connections, each once.
pub(crate) fn connections(netlink: &mut SocketDiagnostics) -> io::Result<Vec<Seen>> {
    let mut all = Vec::new();
    for family in [AF_INET, AF_INET6] {
        match netlink.list(SOCK_DIAG_BY_FAMILY, &request(family), read) {
            Ok(found) => all.extend(found),
            // A kernel without IPv6.
            Err(error) if family == AF_INET6 && error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    all.sort_by_key(|seen: &Seen| seen.cookie);
    all.dedup_by_key(|seen| seen.cookie);
    Ok(all)
}

/// `struct inet_diag_req_v2`
fn request(family: u8) -> Vec<u8> {
    let wanted: u8 =
        [INET_DIAG_INFO, INET_DIAG_CONG, INET_DIAG_SKMEMINFO].iter().map(|kind| 1 << (kind - 1)).sum();
    let mut fixed = vec![family, IPPROTO_TCP, wanted, 0];
    fixed.extend(CONNECTED.to_ne_bytes());
    fixed.resize(56, 0);
    fixed
}

/// `struct inet_diag_msg` and its attributes.
fn read(body: &[u8]) -> Option<Seen> {
    let fixed = body.get(..FIXED)?;
    let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = fixed[at..at + 16].try_into().ok()?;
        match fixed[0] {
            AF_INET => Some(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])),
            // A socket for both families may carry an IPv4 connection.
            AF_INET6 => Some(IpAddr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    let mut seen = Seen {
        cookie: u64_at(fixed, 44),
        inode: u32_at(fixed, 68),
        local: SocketAddr::new(address(8)?, port(4)),
        remote: SocketAddr::new(address(24)?, port(6)),
        congestion: String::new(),
        info: TcpInfo::default(),
        memory: Memory::default(),
    };
    for (kind, value) in attributes(&body[FIXED..]) {
        match kind {
            INET_DIAG_INFO => seen.info = TcpInfo::read(value),
            INET_DIAG_CONG => {
                let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
                seen.congestion = String::from_utf8_lossy(name).into_owned();
            }
            INET_DIAG_SKMEMINFO => {
                seen.memory = Memory {
                    receive_queue: u32_at(value, 0),
                    receive_buffer: u32_at(value, 4),
                    send_buffer: u32_at(value, 12),
                    send_queue: u32_at(value, 20),
                };
            }
            _ => {}
        }
    }
    Some(seen)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::messages;

    /// What a kernel may have sent.
    fn entry(cookie: u64) -> Vec<u8> {
        let mut bytes = vec![AF_INET, 1, 0, 0];
        bytes.extend([0x1f, 0x90, 0, 80]);
        bytes.resize(FIXED, 0);
        bytes[8..12].copy_from_slice(&[127, 0, 0, 1]);
        bytes[44..52].copy_from_slice(&cookie.to_ne_bytes());
        bytes[68..72].copy_from_slice(&77_u32.to_ne_bytes());
        bytes.extend([10, 0, 4, 0]);
        bytes.extend(b"cubic\0\0\0");
        bytes.extend([12, 0, 7, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        bytes
    }

    #[test]
    fn an_entry() {
        let seen = read(&entry(5)).unwrap();
        assert_eq!((seen.cookie, seen.inode, seen.congestion.as_str()), (5, 77, "cubic"));
        assert_eq!((seen.local, seen.remote.port()), ("127.0.0.1:8080".parse().unwrap(), 80));
        assert_eq!(
            (seen.memory.receive_queue, seen.memory.receive_buffer, seen.memory.send_buffer),
            (1, 2, 0)
        );
        assert_eq!(seen.info, TcpInfo::default());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            for message in messages(&bytes) {
                let _ = read(message.body);
            }
            let _ = read(&bytes);
        }

        #[test]
        fn broken_entries(at in 0_usize..100, byte: u8, length in 0_usize..100) {
            let mut bytes = entry(1);
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(length);
            let _ = read(&bytes);
        }
    }
}
