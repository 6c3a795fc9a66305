//! TCP connections of all programs, by sock_diag(7).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use crate::profile::ConnectionSample;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_SKMEMINFO: u16 = 7;
const IPPROTO_TCP: u8 = 6;
const FAMILIES: [u8; 2] = [2, 10];
/// ESTABLISHED, FIN_WAIT1, CLOSE_WAIT, LAST_ACK and CLOSING: those that may still have data to move.
const CONNECTED: u32 = 1 << 1 | 1 << 4 | 1 << 8 | 1 << 9 | 1 << 11;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const FLAGS: u16 = 0x301;
const HEADER: usize = 16;
const FIXED: usize = 72;

/// A connection at a moment; the sample's time is 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    /// The socket's own number, which no later one has.
    pub(super) cookie: u64,
    /// By which /proc/PID/fd names it.
    pub(super) inode: u32,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) congestion: String,
    pub(super) sample: ConnectionSample,
}

/// Asks the kernel.
pub(super) struct Diagnostics {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

impl Diagnostics {
    /// For the calling thread's network namespace.
    pub(super) fn open() -> io::Result<Self> {
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        // The kernel's answers come in pieces of at most 32 KiB.
        Ok(Self { socket, buffer: vec![0; 64 << 10], sequence: 0 })
    }

    /// All connections.
    pub(super) fn connections(&mut self, mut each: impl FnMut(Seen)) -> io::Result<()> {
        for family in FAMILIES {
            match self.dump(family, &mut each) {
                // A kernel without IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound && family != FAMILIES[0] => {}
                result => result?,
            }
        }
        Ok(())
    }

    fn dump(&mut self, family: u8, each: &mut impl FnMut(Seen)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(family, self.sequence);
        sendto(&self.socket, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        loop {
            let length = match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for (kind, sequence, body) in messages(&self.buffer[..length.min(self.buffer.len())]) {
                match kind {
                    // Left over from a list that an error cut short.
                    _ if sequence != self.sequence => {}
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => match u32_at(body, 0).unwrap_or(0) as i32 {
                        0 => return Ok(()),
                        code => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    },
                    _ => read(body).into_iter().for_each(&mut *each),
                }
            }
        }
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`
fn request(family: u8, sequence: u32) -> Vec<u8> {
    let wanted: u8 =
        [INET_DIAG_INFO, INET_DIAG_CONG, INET_DIAG_SKMEMINFO].iter().map(|kind| 1 << (kind - 1)).sum();
    let mut bytes = Vec::with_capacity(HEADER + 56);
    bytes.extend(((HEADER + 56) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(FLAGS.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, IPPROTO_TCP, wanted, 0]);
    bytes.extend(CONNECTED.to_ne_bytes());
    bytes.resize(HEADER + 56, 0);
    bytes
}

/// Kind, sequence number and body of each message, up to the first that is broken.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let message = (u16_at(bytes, 4)?, u32_at(bytes, 8)?, bytes.get(HEADER..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Attributes, type and value, up to the first that is broken.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let attribute = (u16_at(bytes, 2)? & 0x3fff, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

/// `struct inet_diag_msg` and its attributes.
fn read(body: &[u8]) -> Option<Seen> {
    let fixed: &[u8; FIXED] = body.get(..FIXED)?.try_into().ok()?;
    let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = fixed[at..at + 16].try_into().ok()?;
        match fixed[0] {
            2 => Some(IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]])),
            // A socket for both families may carry an IPv4 connection.
            10 => Some(IpAddr::from(bytes).to_canonical()),
            _ => None,
        }
    };
    let mut seen = Seen {
        cookie: u64::from_ne_bytes(fixed[44..52].try_into().ok()?),
        inode: u32_at(fixed, 68)?,
        local: SocketAddr::new(address(8)?, port(4)),
        remote: SocketAddr::new(address(24)?, port(6)),
        congestion: String::new(),
        sample: ConnectionSample::default(),
    };
    let mut memory: &[u8] = &[];
    for (kind, value) in attributes(&body[FIXED..]) {
        match kind {
            INET_DIAG_INFO => seen.sample = sample(value),
            INET_DIAG_CONG => {
                let name = value.split(|&byte| byte == 0).next().unwrap_or_default();
                seen.congestion = String::from_utf8_lossy(name).into_owned();
            }
            INET_DIAG_SKMEMINFO => memory = value,
            _ => {}
        }
    }
    // `idiag_rqueue`: what arrived in order and was not read.
    seen.sample.unread = u32_at(fixed, 56).map(u64::from);
    seen.sample.receive_buffer = u32_at(memory, 4).map(u64::from);
    seen.sample.send_buffer = u32_at(memory, 12).map(u64::from);
    seen.sample.queued = u32_at(memory, 20).map(u64::from);
    Some(seen)
}

/// `struct tcp_info` of linux/tcp.h as far as this kernel's goes.
fn sample(info: &[u8]) -> ConnectionSample {
    let micros = |value: u64| value as f64 / 1e6;
    let u32_of = |at: usize| u32_at(info, at).unwrap_or(0);
    ConnectionSample {
        time: 0.0,
        rtt: micros(u32_of(68).into()),
        // Its largest value stands for "none yet".
        min_rtt: u32_at(info, 148).filter(|&rtt| rtt != u32::MAX).map(|rtt| micros(rtt.into())),
        cwnd: u32_of(80),
        mss: u32_of(16),
        retransmitted: u32_of(100),
        segments_sent: u32_at(info, 156).map(u64::from),
        acknowledged: u64_at(info, 120),
        received: u64_at(info, 128),
        delivery_rate: u64_at(info, 160).map(|rate| rate as f64),
        application_limited: info.get(7).is_some_and(|bits| bits & 1 != 0),
        busy: u64_at(info, 168).map(micros),
        window_limited: u64_at(info, 176).map(micros),
        buffer_limited: u64_at(info, 184).map(micros),
        unsent: u32_at(info, 144).map(u64::from),
        queued: None,
        unread: None,
        send_window: u32_at(info, 228).map(u64::from),
        out_of_order: u32_at(info, 224).map(u64::from),
        send_buffer: None,
        receive_buffer: None,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use ropewalk_transport::TcpInfo;

    use super::*;

    #[test]
    fn own_connections_are_seen_as_the_socket_itself_says() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        // It has arrived once it can be looked at.
        assert_eq!(server.peek(&mut [0; 1000]).unwrap(), 1000);
        let mut found = Vec::new();
        Diagnostics::open().unwrap().connections(|seen| found.push(seen)).unwrap();
        let of = |local| found.iter().find(|seen| seen.local == local).unwrap();
        let receiver = of(server.local_addr().unwrap());
        // A listener on the same port is not connected.
        assert_eq!((receiver.remote, receiver.sample.unread), (client.local_addr().unwrap(), Some(1000)));
        assert_eq!(receiver.sample.received, Some(1000));
        let sender = of(client.local_addr().unwrap());
        let own = ConnectionSample::of(0.0, &TcpInfo::of(client.as_fd()).unwrap());
        assert_eq!((sender.sample.mss, sender.sample.cwnd), (own.mss, own.cwnd));
        assert_eq!((sender.sample.segments_sent, sender.sample.min_rtt), (own.segments_sent, own.min_rtt));
        assert_eq!(
            (sender.sample.send_window, sender.sample.window_limited),
            (own.send_window, own.window_limited)
        );
        assert!(sender.sample.send_buffer.unwrap() > 0 && !sender.congestion.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            for (_, _, body) in messages(&bytes) {
                let _ = read(body);
            }
            let _ = read(&bytes);
            prop_assert!(attributes(&bytes).count() <= bytes.len());
        }
    }
}
