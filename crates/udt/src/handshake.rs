//! The body of a handshake packet (draft-gg-udt-03 section 3.2; libudt 4.11 where it differs).

use std::net::IpAddr;

use crate::Seq;

/// The length of the body. libudt drops handshakes of any other length.
pub(crate) const LENGTH: usize = 48;

/// The only version of the protocol.
pub const VERSION: u32 = 4;
/// The socket type of a connection that carries a stream of bytes.
pub const STREAM: u32 = 1;

/// A request that has no cookie yet, and the answer that brings the cookie.
pub const REQUEST_COOKIE: i32 = 1;
/// A request that has a cookie, and the answer that accepts it.
pub const CONFIRM: i32 = -1;
/// The answer that refuses a connection.
pub const REFUSED: i32 = 1002;

/// A connection between two programs of Ropewalk is recognised by the additional info of the
/// header, which libudt ignores. libudt returns the value of a request in some of its answers, so
/// the value of an answer is another one.
pub(crate) const ROPEWALK_REQUEST: u32 = 0x5257_5131;
pub(crate) const ROPEWALK_ANSWER: u32 = 0x5257_4131;

/// The fields of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handshake {
    pub version: u32,
    pub socket_type: u32,
    pub initial: Seq,
    /// The size of an IP packet: the payload of a data packet and 44 bytes.
    pub mss: u32,
    /// The receive window in packets.
    pub window: u32,
    pub request: i32,
    pub id: u32,
    pub cookie: u32,
    /// The address of the peer, in the byte order of [`address_bytes`]; for information only.
    pub address: [u8; 16],
}

impl Handshake {
    /// Returns `None` if the body does not have the length of a handshake.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let body: &[u8; LENGTH] = body.try_into().ok()?;
        let (words, address) = body.split_at(32);
        let word =
            |index: usize| words[4 * index..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        Some(Self {
            version: word(0),
            socket_type: word(1),
            initial: Seq::new(word(2)),
            mss: word(3),
            window: word(4),
            request: word(5).cast_signed(),
            id: word(6),
            cookie: word(7),
            address: address.try_into().ok()?,
        })
    }

    pub(crate) fn print(&self, out: &mut Vec<u8>) {
        let Self { version, socket_type, initial, mss, window, request, id, cookie, address } = self;
        let request = request.cast_unsigned();
        for word in [*version, *socket_type, initial.get(), *mss, *window, request, *id, *cookie] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(address);
    }
}

/// An address as handshakes have it: each group of four bytes is reversed.
pub fn address_bytes(address: IpAddr) -> [u8; 16] {
    let mut bytes = match address.to_canonical() {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    };
    for group in bytes.chunks_mut(4) {
        group.reverse();
    }
    bytes
}
