//! Lists the TCP connections of all programs with sock_diag(7).

use std::io;
use std::net::SocketAddr;

use ropewalk_netlink::{Connections, States};

use crate::profile::ConnectionSample;

/// A connection at a moment; the time of the sample is 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    /// The kernel's number for the socket, which no later socket gets.
    pub(super) cookie: u64,
    /// The number by which /proc/PID/fd names the socket.
    pub(super) inode: u32,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) congestion: String,
    pub(super) sample: ConnectionSample,
}

/// A sock_diag socket.
pub(super) struct Diagnostics(Connections);

impl Diagnostics {
    /// Opens one for the network namespace of the calling thread.
    pub(super) fn open() -> io::Result<Self> {
        Connections::open().map(Self)
    }

    /// Calls `each` for all connections that may still have data to move.
    pub(super) fn connections(&mut self, mut each: impl FnMut(Seen)) -> io::Result<()> {
        self.0.list(States::MOVING, |seen| each(seen.into())).map(drop)
    }
}

impl From<ropewalk_netlink::Seen> for Seen {
    fn from(seen: ropewalk_netlink::Seen) -> Self {
        let sample = ConnectionSample {
            unread: Some(seen.unread.into()),
            receive_buffer: seen.memory.map(|memory| memory.receive_buffer.into()),
            send_buffer: seen.memory.map(|memory| memory.send_buffer.into()),
            queued: seen.memory.map(|memory| memory.send_queue.into()),
            ..ConnectionSample::of(0.0, &seen.info)
        };
        Self {
            cookie: seen.cookie,
            inode: seen.inode,
            local: seen.local,
            remote: seen.remote,
            congestion: seen.congestion,
            sample,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn connections_when_on_loopback_list_both_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        // The data has arrived once it can be peeked at.
        assert_eq!(server.peek(&mut [0; 1000]).unwrap(), 1000);
        let mut found = Vec::new();
        Diagnostics::open().unwrap().connections(|seen| found.push(seen)).unwrap();
        let of = |local| found.iter().find(|seen| seen.local == local).unwrap();
        let receiver = of(server.local_addr().unwrap());
        assert_eq!((receiver.remote, receiver.sample.unread), (client.local_addr().unwrap(), Some(1000)));
        assert_eq!(receiver.sample.received, Some(1000));
        let sender = of(client.local_addr().unwrap());
        assert!(sender.sample.send_buffer.unwrap() > 0 && !sender.congestion.is_empty());
    }
}
