//! Netlink (RFC 3549): a request to the kernel for a list, and its answer.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const HEADER: usize = 16;
/// The kernel's answers come in pieces of at most 32 KiB.
const BUFFER: usize = 64 << 10;
/// Lists that changed while they were made are asked for again so often.
const ATTEMPTS: usize = 3;

/// A sock_diag(7) socket.
pub(crate) struct SocketDiagnostics {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl SocketDiagnostics {
    /// Of the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Entries of the list for which a request of type `kind` with the body `fixed` asks.
    pub(crate) fn list<T>(
        &mut self,
        kind: u16,
        fixed: &[u8],
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut found = Vec::new();
        for _ in 0..ATTEMPTS {
            found.clear();
            self.send(kind, fixed)?;
            if self.receive(|message| found.extend(read(message)))? {
                break;
            }
        }
        Ok(found)
    }

    fn send(&mut self, kind: u16, fixed: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(HEADER + fixed.len());
        bytes.extend(((HEADER + fixed.len()) as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(fixed);
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    /// Whether the list is consistent.
    fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut whole = true;
        loop {
            let length = match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in messages(&self.buffer[..length]) {
                // Left over from a list that an error cut short.
                if message.sequence != self.sequence {
                    continue;
                }
                whole &= message.flags & NLM_F_DUMP_INTR == 0;
                match message.kind {
                    NLMSG_DONE => return Ok(whole),
                    NLMSG_ERROR => match u32_at(message.body, 0) as i32 {
                        0 => return Ok(whole),
                        code => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    },
                    _ => each(message.body),
                }
            }
        }
    }
}

pub(crate) struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    pub(crate) body: &'a [u8],
}

/// The messages of an answer, up to the first that is broken.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0) as usize;
        if !(HEADER..=bytes.len()).contains(&length) {
            return None;
        }
        let message = Message {
            kind: u16_at(bytes, 4),
            flags: u16_at(bytes, 6),
            sequence: u32_at(bytes, 8),
            body: &bytes[HEADER..length],
        };
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
        Some(message)
    })
}

/// The attributes of a message, type and value, up to the first that is broken.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
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

/// 0 where `bytes` is too short, as with all that newer kernels tell.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// The same.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_messages_end_the_list() {
        assert_eq!(messages(&[]).count(), 0);
        assert_eq!(messages(&[1, 0, 0, 0]).count(), 0);
        assert_eq!(messages(&[255; 32]).count(), 0);
        assert_eq!(attributes(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[200, 0, 1, 0, 5]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1, 0, 9, 0, 0, 0, 4, 0, 2, 0]).count(), 2);
    }
}
