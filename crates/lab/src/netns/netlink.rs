//! Netlink (RFC 3549): requests to the kernel about interfaces, addresses, routes and sockets.

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType,
    netdevice::name_to_index,
    netlink::{self, SocketAddrNetlink},
    recv, sendto, socket_with,
};
use std::{io, os::fd::OwnedFd};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLM_F_REPLACE: u16 = 0x100;
pub(super) const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const IFF_UP: u32 = 1;
const HEADER: usize = 16;

/// A netlink socket. It stays in the network namespace in which it was made.
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Whether a dump is consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dump {
    /// It is.
    Whole,
    /// Something changed while it was made; parts may be missing.
    Interrupted,
}

/// A request under construction.
pub(crate) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A request with its fixed part.
    pub(crate) fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(fixed);
        let mut request = Self { bytes };
        request.pad();
        request
    }

    /// Appends an attribute.
    pub(crate) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        self.bytes.extend((value.len() as u16 + 4).to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
        self
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self, flags: u16, sequence: u32) -> Vec<u8> {
        let length = self.bytes.len() as u32;
        let flags = flags | u16_at(&self.bytes, 6);
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }
}

impl Netlink {
    /// For interfaces, addresses and routes.
    pub(crate) fn route() -> io::Result<Self> {
        Self::open(None, SocketFlags::CLOEXEC)
    }

    /// For the state of sockets.
    pub(crate) fn diagnostics() -> io::Result<Self> {
        Self::open(Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC)
    }

    /// Gets messages of groups (a bit mask). Reads never wait.
    pub(crate) fn diagnostics_of(groups: u32) -> io::Result<Self> {
        let own = Self::open(Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&own.socket, 8 << 20)?;
        rustix::net::bind(&own.socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(own)
    }

    fn open(protocol: Option<Protocol>, flags: SocketFlags) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; 64 << 10] })
    }

    /// Sends a request and waits for its acknowledgement.
    pub(crate) fn ask(&mut self, request: Request) -> io::Result<()> {
        self.send(request, NLM_F_ACK)?;
        self.receive(|_, _| ()).map(drop)
    }

    /// Sends a request for a list; `each` gets the type and body of every entry.
    pub(crate) fn dump(&mut self, request: Request, each: impl FnMut(u16, &[u8])) -> io::Result<Dump> {
        self.send(request, NLM_F_DUMP)?;
        self.receive(each)
    }

    fn send(&mut self, request: Request, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(flags, self.sequence);
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn receive(&mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<Dump> {
        let mut dump = Dump::Whole;
        loop {
            let (length, _) = recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
            for message in messages(&self.buffer[..length]) {
                if message.sequence != self.sequence {
                    continue;
                }
                if message.flags & NLM_F_DUMP_INTR != 0 {
                    dump = Dump::Interrupted;
                }
                match message.kind {
                    NLMSG_DONE => return Ok(dump),
                    NLMSG_ERROR => match i32_at(message.body, 0) {
                        0 => return Ok(dump),
                        code => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    },
                    kind => each(kind, message.body),
                }
            }
        }
    }

    /// Takes what has come since, without waiting. `Interrupted` if some was lost.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<Dump> {
        let mut dump = Dump::Whole;
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => {
                    messages(&self.buffer[..length]).for_each(|message| each(message.kind, message.body));
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(dump),
                Err(rustix::io::Errno::NOBUFS) => dump = Dump::Interrupted,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Index of an interface.
    pub(super) fn index(&self, interface: &str) -> io::Result<u32> {
        // Any socket will do.
        Ok(name_to_index(&self.socket, interface)?)
    }

    /// Switches an interface on.
    pub(super) fn set_up(&mut self, interface: &str) -> io::Result<()> {
        let mut fixed = vec![0; 4];
        fixed.extend(self.index(interface)?.to_ne_bytes());
        fixed.extend(IFF_UP.to_ne_bytes());
        fixed.extend(IFF_UP.to_ne_bytes());
        self.ask(Request::new(RTM_NEWLINK, 0, &fixed))
    }
}

struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    body: &'a [u8],
}

fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        if bytes.len() < HEADER {
            return None;
        }
        let length = i32_at(bytes, 0) as usize;
        if !(HEADER..=bytes.len()).contains(&length) {
            return None;
        }
        let message = Message {
            kind: u16_at(bytes, 4),
            flags: u16_at(bytes, 6),
            sequence: i32_at(bytes, 8) as u32,
            body: &bytes[HEADER..length],
        };
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some(message)
    })
}

/// The attributes of a message: type and value.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        if bytes.len() < 4 {
            return None;
        }
        let length = usize::from(u16_at(bytes, 0));
        if !(4..=bytes.len()).contains(&length) {
            return None;
        }
        let attribute = (u16_at(bytes, 2) & 0x3fff, &bytes[4..length]);
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some(attribute)
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

fn i32_at(bytes: &[u8], at: usize) -> i32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_built_reads_back() {
        let bytes =
            Request::new(20, NLM_F_CREATE, &[1, 2, 3, 4]).with(1, &[9; 5]).with(2, b"ab").finish(4, 7);
        let mut all = messages(&bytes);
        let message = all.next().unwrap();
        assert_eq!((message.kind, message.flags, message.sequence), (20, NLM_F_CREATE | 5, 7));
        assert_eq!(message.body[..4], [1, 2, 3, 4]);
        let found: Vec<_> = attributes(&message.body[4..]).collect();
        assert_eq!(found, [(1, &[9; 5][..]), (2, b"ab")]);
        assert!(all.next().is_none());
    }

    #[test]
    fn broken_messages_end_the_list() {
        assert_eq!(messages(&[1, 0, 0, 0]).count(), 0);
        assert_eq!(messages(&[255; 32]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0);
    }
}
