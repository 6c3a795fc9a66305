//! A netlink socket.

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
/// The kernel's answers come in pieces of at most 32 KiB.
const BUFFER: usize = 64 << 10;

/// A netlink socket. It stays in the network namespace in which it was made.
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Whether a list is consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// It is.
    Whole,
    /// Something changed while it was made; parts may be missing.
    Interrupted,
}

impl Netlink {
    /// For interfaces, addresses and routes of the calling thread's network namespace.
    ///
    /// # Errors
    /// A filter of system calls forbids it.
    pub fn route() -> io::Result<Self> {
        Self::open(None, SocketFlags::CLOEXEC)
    }

    /// For the state of sockets, sock_diag(7). The same.
    ///
    /// # Errors
    /// A filter of system calls forbids it.
    pub fn diagnostics() -> io::Result<Self> {
        Self::open(Some(netlink::SOCK_DIAG), SocketFlags::CLOEXEC)
    }

    /// What the kernel tells about sockets without being asked, by groups (a bit mask). Reads never wait.
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
    /// What the kernel answers.
    pub fn ask(&mut self, request: Request) -> io::Result<()> {
        self.send(request, NLM_F_ACK)?;
        self.receive(|_, _| ()).map(drop)
    }

    /// Sends a request for a list; `each` gets the type and body of every entry.
    ///
    /// # Errors
    /// What the kernel answers.
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
                // Left over from a list that an error cut short.
                if sequence != self.sequence {
                    continue;
                }
                if flags & NLM_F_DUMP_INTR != 0 {
                    list = List::Interrupted;
                }
                match kind {
                    // An error that cuts a list short comes with its end.
                    NLMSG_DONE | NLMSG_ERROR => match u32_at(body, 0).unwrap_or(0) as i32 {
                        0.. => return Ok(list),
                        code => return Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    },
                    kind => each(kind, body),
                }
            }
        }
    }

    /// Takes what has come since, without waiting. `Interrupted` if some was lost.
    ///
    /// # Errors
    /// What the kernel answers.
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

    /// A piece with an entry and the message that ends the list, as a kernel sends it.
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
    fn the_end_of_a_list_may_be_an_error() {
        let enoent = (-2_i32).to_ne_bytes();
        for end in [NLMSG_DONE, NLMSG_ERROR] {
            assert_eq!(answer(end, 0, &[0; 4]).unwrap(), (List::Whole, 1));
            assert_eq!(answer(end, 0, &enoent).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(answer(end, 0, &i32::MIN.to_ne_bytes()).is_err());
        }
        // Older kernels may say nothing at the end, or how much there was.
        assert_eq!(answer(NLMSG_DONE, 0, &[]).unwrap(), (List::Whole, 1));
        assert_eq!(answer(NLMSG_DONE, 0, &20_i32.to_ne_bytes()).unwrap(), (List::Whole, 1));
        assert_eq!(answer(NLMSG_DONE, NLM_F_DUMP_INTR, &[0; 4]).unwrap(), (List::Interrupted, 1));
    }
}
