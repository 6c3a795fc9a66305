//! TCP connections of a network namespace, by sock_diag(7).

use super::tcp_info;
use crate::{
    netns::{Dump, Netlink, Request, attributes},
    results::TcpSample,
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const IPPROTO_TCP: u8 = 6;
const FAMILIES: [u8; 2] = [2, 10];
const LISTEN: u32 = 10;
/// All but LISTEN, CLOSE, TIME_WAIT, SYN_SENT and SYN_RECV: connections that have been established.
const CONNECTED: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11;
/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY` of linux/sock_diag.h.
const DESTROYED: u32 = 1 | 1 << 2;

/// Looks at the sockets of one network namespace.
pub(crate) struct Diagnostics {
    dump: Netlink,
    destroyed: Netlink,
}

/// A connection, as it was at a moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    /// The socket's own number: a later socket with the same addresses has another.
    pub(crate) cookie: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) congestion: String,
    pub(crate) sample: TcpSample,
}

impl Diagnostics {
    /// For the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { dump: Netlink::diagnostics()?, destroyed: Netlink::diagnostics_of(DESTROYED)? })
    }

    /// Ports at which something listens.
    pub(crate) fn listens(&mut self, port: u16) -> io::Result<bool> {
        let mut found = false;
        for family in FAMILIES {
            self.dump.dump(request(family, 1 << LISTEN, 0), |_, body| {
                found |= parse(body).is_some_and(|seen| seen.local.port() == port);
            })?;
        }
        Ok(found)
    }

    /// All connections that are there.
    pub(crate) fn connections(&mut self, mut each: impl FnMut(Seen)) -> io::Result<()> {
        for family in FAMILIES {
            let wanted = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1);
            self.dump.dump(request(family, CONNECTED, wanted), |_, body| {
                parse(body).into_iter().for_each(&mut each);
            })?;
        }
        Ok(())
    }

    /// Connections that have gone since the last call, as they were at their end. `Interrupted` if some were missed.
    pub(crate) fn gone(&mut self, mut each: impl FnMut(Seen)) -> io::Result<Dump> {
        self.destroyed.drain(|kind, body| {
            if kind == SOCK_DIAG_BY_FAMILY {
                parse(body).into_iter().for_each(&mut each);
            }
        })
    }
}

/// `struct inet_diag_req_v2`
fn request(family: u8, states: u32, extensions: u8) -> Request {
    let mut fixed = vec![family, IPPROTO_TCP, extensions, 0];
    fixed.extend(states.to_ne_bytes());
    fixed.resize(56, 0);
    Request::new(SOCK_DIAG_BY_FAMILY, 0, &fixed)
}

/// `struct inet_diag_msg` and its attributes.
fn parse(body: &[u8]) -> Option<Seen> {
    let fixed: &[u8; 72] = body.get(..72)?.try_into().ok()?;
    let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = fixed[at..at + 16].try_into().ok()?;
        // A socket for both families may carry an IPv4 connection.
        Some(match fixed[0] {
            2 => IpAddr::from([bytes[0], bytes[1], bytes[2], bytes[3]]),
            _ => IpAddr::from(bytes).to_canonical(),
        })
    };
    let local = SocketAddr::new(address(8)?, port(4));
    let remote = SocketAddr::new(address(24)?, port(6));
    let cookie = u64::from_ne_bytes(fixed[44..52].try_into().ok()?);
    let mut seen = Seen { cookie, local, remote, congestion: String::new(), sample: TcpSample::default() };
    for (kind, value) in attributes(&body[72..]) {
        match kind {
            INET_DIAG_INFO => seen.sample = tcp_info::parse(value),
            INET_DIAG_CONG => {
                seen.congestion = String::from_utf8_lossy(value).trim_end_matches('\0').to_owned();
            }
            _ => {}
        }
    }
    Some(seen)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    #[test]
    fn own_connections_are_seen() {
        // Needs no root: anybody may ask for sockets.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        let mut netlink =
            Diagnostics { dump: Netlink::diagnostics().unwrap(), destroyed: Netlink::diagnostics().unwrap() };
        assert!(netlink.listens(port).unwrap());
        let mut found = Vec::new();
        netlink.connections(|seen| found.push(seen)).unwrap();
        let seen = found.iter().find(|seen| seen.local == server.local_addr().unwrap()).unwrap();
        assert_eq!((seen.remote, seen.sample.received), (client.local_addr().unwrap(), 1000));
        assert!(!seen.congestion.is_empty() && seen.sample.mss > 0);
    }
}
