//! A netlink socket: sends requests and receives the kernel's replies.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::message::{Message, Request, messages, u32_at};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_DUMP: u16 = 0x300;
/// Size of the receive buffer: the kernel sends messages in chunks of at most 32 KiB.
const BUFFER: usize = 64 << 10;

/// A netlink socket. It belongs to the network namespace in which it was created.
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Whether a list is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// The list is complete and consistent.
    Whole,
    /// Entries changed while the kernel produced the list, so entries may be missing.
    Interrupted,
}

impl Netlink {
    /// Opens a socket for interfaces, addresses and routes of the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// A filter of system calls forbids it.
    pub fn route() -> io::Result<Self> {
        Self::open(None, SocketFlags::CLOEXEC)
    }

    /// Opens a socket for the state of sockets, sock_diag(7), in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// A filter of system calls forbids it.
    pub fn diagnostics() -> io::Result<Self> {
        Self::open(Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC)
    }

    /// Opens a socket for the kernel's notifications about sockets, selected by `groups` (a bit
    /// mask). Reads do not block.
    ///
    /// # Errors
    /// The caller has no `CAP_NET_ADMIN`.
    pub fn diagnostics_of(groups: u32) -> io::Result<Self> {
        let own = Self::open(Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&own.socket, 8 << 20)?;
        rustix::net::bind(&own.socket, &SocketAddrNetlink::new(0, groups))?;
        Ok(own)
    }

    fn open(protocol: Option<Protocol>, flags: SocketFlags) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Sends a request and waits for its acknowledgement.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn ask(&mut self, request: Request) -> io::Result<()> {
        self.send(request, NLM_F_ACK)?;
        self.receive(|_, _| ()).map(drop)
    }

    /// Sends a request for a list, and calls `each` with the type and the body of every entry.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn list(&mut self, request: Request, each: impl FnMut(u16, &[u8])) -> io::Result<List> {
        self.send(request, NLM_F_DUMP)?;
        self.receive(each)
    }

    fn send(&mut self, request: Request, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.finish(flags, self.sequence);
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        Ok(())
    }

    fn receive(&mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<List> {
        let mut list = List::Whole;
        loop {
            let length = match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for Message { kind, flags, sequence, body } in messages(&self.buffer[..length]) {
                // This message is left over from a list that an error ended early.
                if sequence != self.sequence {
                    continue;
                }
                if flags & NLM_F_DUMP_INTR != 0 {
                    list = List::Interrupted;
                }
                match kind {
                    // If an error ends a list early, the error code is in the last message.
                    NLMSG_DONE | NLMSG_ERROR => match u32_at(body, 0).unwrap_or(0) as i32 {
                        0.. => return Ok(list),
                        code => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    },
                    kind => each(kind, body),
                }
            }
        }
    }

    /// Receives the notifications that have arrived, without waiting. Returns `Interrupted` if some
    /// were lost.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn drain(&mut self, mut each: impl FnMut(u16, &[u8])) -> io::Result<List> {
        let mut list = List::Whole;
        loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((length, _)) => {
                    messages(&self.buffer[..length]).for_each(|message| each(message.kind, message.body));
                }
                Err(Errno::AGAIN) => return Ok(list),
                Err(Errno::NOBUFS) => list = List::Interrupted,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::net::UnixDatagram;

    use super::*;

    const ENTRY: u16 = 20;

    /// Receives a chunk with one entry and the message that ends the list, in the form that a
    /// kernel sends.
    fn answer(end: u16, flags: u16, body: &[u8]) -> io::Result<(List, usize)> {
        let (kernel, ours) = UnixDatagram::pair().unwrap();
        let mut piece = Request::new(ENTRY, flags, &[0; 4]).finish(0, 0);
        piece.extend(Request::new(end, 0, body).finish(0, 0));
        kernel.send(&piece).unwrap();
        let mut netlink = Netlink { socket: ours.into(), sequence: 0, buffer: vec![0; BUFFER] };
        let mut entries = 0;
        let list = netlink.receive(|kind, _| entries += usize::from(kind == ENTRY))?;
        Ok((list, entries))
    }

    #[test]
    fn list_when_its_end_has_an_error_fails() {
        let enoent = (-2_i32).to_ne_bytes();
        for end in [NLMSG_DONE, NLMSG_ERROR] {
            assert_eq!(answer(end, 0, &[0; 4]).unwrap(), (List::Whole, 1));
            assert_eq!(answer(end, 0, &enoent).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(answer(end, 0, &i32::MIN.to_ne_bytes()).is_err());
        }
        // Older kernels may end a list with an empty message, or with its length.
        assert_eq!(answer(NLMSG_DONE, 0, &[]).unwrap(), (List::Whole, 1));
        assert_eq!(answer(NLMSG_DONE, 0, &20_i32.to_ne_bytes()).unwrap(), (List::Whole, 1));
        assert_eq!(answer(NLMSG_DONE, NLM_F_DUMP_INTR, &[0; 4]).unwrap(), (List::Interrupted, 1));
    }
}
