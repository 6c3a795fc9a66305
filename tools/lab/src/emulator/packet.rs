//! Packets and super-packets, as a TUN interface with a virtio header delivers them.
//!
//! With offload the kernel passes up to 64 KiB of a TCP stream under one header (segments of RFC
//! 793 of the size `gso_size`, not yet cut), or a train of UDP datagrams. The checksum of such a
//! super-packet covers only the pseudo-header. The layout of the header is `struct virtio_net_hdr`
//! of the Virtual I/O Device specification, section 5.1.6.

use super::checksum::{fold, sum};

/// Length of the virtio header.
pub const VIRTIO_HEADER: usize = 10;
/// Upper limit of the IP and transport headers of a super-packet: IPv6 with a few extension
/// headers, or IPv4 with all options.
const MOST_HEADERS: usize = 256;
/// Size of the scratch buffer of [`Packet::rewrite`].
pub const SCRATCH: usize = VIRTIO_HEADER + MOST_HEADERS;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The smallest segment that Linux' TCP makes (`TCP_MIN_GSO_SIZE`); only an attacker would send
/// smaller ones.
const LEAST_SEGMENT: usize = 8;
/// The most datagrams that Linux puts into one UDP train (`UDP_MAX_SEGMENTS`).
const MOST_DATAGRAMS: usize = 128;

/// The bytes are not a packet, or the headers contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed packet: {0}")]
pub struct Malformed(&'static str);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// How a super-packet is cut into segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    tcp: bool,
    /// Offset of the transport header in the IP packet.
    transport: usize,
    /// Offset of the payload in the IP packet.
    headers: usize,
    /// Payload bytes of each segment except the last.
    size: usize,
    count: usize,
}

/// A packet or super-packet with its parsed properties.
#[derive(Debug)]
pub struct Packet {
    /// The virtio header and the IP packet.
    data: Vec<u8>,
    version: Version,
    ecn: bool,
    cut: Option<Cut>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn ne16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]))
}

fn put_ne16(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
}

impl Packet {
    /// Checks the bytes read from an interface: a virtio header and an IP packet. On failure it
    /// returns the buffer with the error.
    ///
    /// # Errors
    /// A header is missing or contradicts the length, the packet is neither IPv4 nor IPv6, or it is
    /// a super-packet of an unknown kind.
    pub fn parse(data: Vec<u8>) -> Result<Self, (Malformed, Vec<u8>)> {
        match examine(&data) {
            Ok((version, ecn, cut)) => Ok(Self { data, version, ecn, cut }),
            Err(error) => Err((error, data)),
        }
    }

    /// Returns the buffer, so that it can be reused for another packet.
    pub fn into_buffer(self) -> Vec<u8> {
        self.data
    }

    /// Number of IP packets on the wire: the segments of a super-packet, else 1.
    pub fn segments(&self) -> usize {
        self.cut.map_or(1, |cut| cut.count)
    }

    /// Length in bytes of the IP packet number `index` on the wire.
    pub fn segment_bytes(&self, index: usize) -> u32 {
        let ip = self.data.len() - VIRTIO_HEADER;
        self.cut.map_or(ip, |cut| {
            let payload = ip - cut.headers;
            cut.headers + payload.saturating_sub(index * cut.size).min(cut.size)
        }) as u32
    }

    /// Whether the packet may be marked "congestion experienced" instead of being dropped (RFC 3168
    /// section 5).
    pub fn ecn_capable(&self) -> bool {
        self.ecn
    }

    /// Returns the two parts that have to be written to the far interface for the `count` segments
    /// from `first` on: first bytes in `scratch` (the virtio header and the rewritten headers),
    /// then a range of this packet's own bytes. With `marked` the header of the segments has the
    /// ECN mark.
    pub fn rewrite<'a>(
        &'a self,
        first: usize,
        count: usize,
        marked: bool,
        scratch: &'a mut [u8; SCRATCH],
    ) -> (&'a [u8], &'a [u8]) {
        let Some(cut) = self.cut else { return self.whole(marked, scratch) };
        let ip = &self.data[VIRTIO_HEADER..];
        let from = (cut.headers + first * cut.size).min(ip.len());
        let to = (from + count * cut.size).min(ip.len());
        let (virtio, rest) = scratch.split_at_mut(VIRTIO_HEADER);
        let headers = &mut rest[..cut.headers];
        headers.copy_from_slice(&ip[..cut.headers]);
        let includes_last = first + count >= cut.count;

        let length = cut.headers + (to - from);
        match self.version {
            Version::V4 => {
                put16(headers, 2, length as u16);
                let id = u16::from_be_bytes([headers[4], headers[5]]);
                put16(headers, 4, id.wrapping_add(first as u16));
            }
            Version::V6 => put16(headers, 4, (length - 40) as u16),
        }
        if marked {
            mark(self.version, headers);
        }
        if self.version == Version::V4 {
            restore_checksum(headers);
        }

        let transport = &mut headers[cut.transport..];
        let mut gso = GSO_UDP;
        let checksum_at = if cut.tcp {
            let sequence = u32::from_be_bytes([transport[4], transport[5], transport[6], transport[7]]);
            let sequence = sequence.wrapping_add((first * cut.size) as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            if !includes_last {
                transport[13] &= !(FIN | PSH);
            }
            if first > 0 {
                transport[13] &= !CWR;
            }
            gso = if self.version == Version::V4 { GSO_TCP4 } else { GSO_TCP6 };
            if transport[13] & CWR != 0 {
                gso |= GSO_ECN;
            }
            TCP_CHECKSUM
        } else {
            put16(transport, 4, (length - cut.transport) as u16);
            UDP_CHECKSUM
        };
        let pseudo = pseudo_header(self.version, ip, cut.tcp, length - cut.transport);
        put16(transport, checksum_at, pseudo);

        virtio.fill(0);
        virtio[0] = NEEDS_CHECKSUM;
        put_ne16(virtio, 2, cut.headers);
        put_ne16(virtio, 6, cut.transport);
        put_ne16(virtio, 8, checksum_at);
        if to - from > cut.size {
            virtio[1] = gso;
            put_ne16(virtio, 4, cut.size);
        }
        let end = VIRTIO_HEADER + cut.headers;
        (&scratch[..end], &ip[from..to])
    }

    fn whole<'a>(&'a self, marked: bool, scratch: &'a mut [u8; SCRATCH]) -> (&'a [u8], &'a [u8]) {
        if !marked {
            return self.data.split_at(VIRTIO_HEADER);
        }
        let length = VIRTIO_HEADER + ip_header(self.version, &self.data[VIRTIO_HEADER..]);
        scratch[..length].copy_from_slice(&self.data[..length]);
        mark(self.version, &mut scratch[VIRTIO_HEADER..length]);
        if self.version == Version::V4 {
            restore_checksum(&mut scratch[VIRTIO_HEADER..length]);
        }
        (&scratch[..length], &self.data[length..])
    }
}

/// Length of the fixed IP header, for IPv4 with its options.
fn ip_header(version: Version, ip: &[u8]) -> usize {
    match version {
        Version::V4 => usize::from(ip[0] & 0x0f) * 4,
        Version::V6 => 40,
    }
}

/// Sets both ECN bits.
fn mark(version: Version, header: &mut [u8]) {
    match version {
        Version::V4 => header[1] |= 0x03,
        Version::V6 => header[1] |= 0x30,
    }
}

/// Computes the header checksum of IPv4 again.
fn restore_checksum(headers: &mut [u8]) {
    let length = usize::from(headers[0] & 0x0f) * 4;
    put16(headers, 10, 0);
    let checksum = !fold(sum(&headers[..length], 0));
    put16(headers, 10, checksum);
}

/// The sum over the pseudo-header (RFC 793 section 3.1, RFC 8200 section 8.1). The kernel expects
/// it in the checksum field of a packet whose checksum it has to complete.
fn pseudo_header(version: Version, ip: &[u8], tcp: bool, length: usize) -> u16 {
    let addresses = match version {
        Version::V4 => &ip[12..20],
        Version::V6 => &ip[8..40],
    };
    fold(sum(addresses, u64::from(if tcp { TCP } else { UDP }) + length as u64))
}

fn examine(data: &[u8]) -> Result<(Version, bool, Option<Cut>), Malformed> {
    let (virtio, ip) = data.split_at_checked(VIRTIO_HEADER).ok_or(Malformed("no virtio header"))?;
    let (version, ecn) = examine_ip(ip)?;
    let gso = virtio[1] & !GSO_ECN;
    let needs_checksum = virtio[0] & NEEDS_CHECKSUM != 0;
    let (start, offset) = (ne16(virtio, 6), ne16(virtio, 8));
    if needs_checksum && start + offset + 2 > ip.len() {
        return Err(Malformed("checksum beyond the packet's end"));
    }
    if gso == GSO_NONE {
        return Ok((version, ecn, None));
    }
    if !needs_checksum {
        return Err(Malformed("super-packet with its checksum"));
    }
    Ok((version, ecn, Some(examine_gso(ip, version, gso, ne16(virtio, 4), start)?)))
}

fn examine_ip(ip: &[u8]) -> Result<(Version, bool), Malformed> {
    match ip.first().map(|b| b >> 4) {
        Some(4) => {
            let header = usize::from(ip[0] & 0x0f) * 4;
            let length = be16(ip, 2).map_or(0, usize::from);
            if header < 20 || header > ip.len() || length < header || length > ip.len() {
                return Err(Malformed("IPv4 lengths"));
            }
            Ok((Version::V4, ip[1] & 0x03 != 0))
        }
        Some(6) => {
            let payload = be16(ip, 4).map_or(0, usize::from);
            if ip.len() < 40 || payload + 40 > ip.len() {
                return Err(Malformed("IPv6 lengths"));
            }
            Ok((Version::V6, ip[1] & 0x30 != 0))
        }
        _ => Err(Malformed("neither IPv4 nor IPv6")),
    }
}

fn examine_gso(
    ip: &[u8],
    version: Version,
    gso: u8,
    size: usize,
    transport: usize,
) -> Result<Cut, Malformed> {
    let tcp = match (gso, version) {
        (GSO_TCP4, Version::V4) | (GSO_TCP6, Version::V6) => true,
        (GSO_UDP, _) => false,
        _ => return Err(Malformed("unknown kind of super-packet")),
    };
    let header = ip_header(version, ip);
    if transport < header || (version == Version::V4 && transport > header) {
        return Err(Malformed("place of the transport header"));
    }
    let (declared, fragment, protocol) = match version {
        Version::V4 => (be16(ip, 2).map_or(0, usize::from), be16(ip, 6).unwrap_or(0) & 0x3fff, Some(ip[9])),
        // With extension headers, the kind in the virtio header determines the protocol.
        Version::V6 => (be16(ip, 4).map_or(0, usize::from) + 40, 0, (transport == 40).then_some(ip[6])),
    };
    if declared != ip.len() {
        return Err(Malformed("length of the super-packet"));
    }
    if fragment != 0 {
        return Err(Malformed("fragment of a super-packet"));
    }
    if protocol.is_some_and(|p| p != if tcp { TCP } else { UDP }) {
        return Err(Malformed("protocol of the super-packet"));
    }
    let length = if tcp {
        let words = ip.get(transport + 12).ok_or(Malformed("TCP header beyond the end"))? >> 4;
        usize::from(words) * 4
    } else {
        8
    };
    let headers = transport + length;
    if (tcp && length < 20) || headers > ip.len() || headers > MOST_HEADERS {
        return Err(Malformed("length of the transport header"));
    }
    let payload = ip.len() - headers;
    if payload == 0 {
        return Err(Malformed("empty super-packet"));
    }
    if size < if tcp { LEAST_SEGMENT } else { 1 } {
        return Err(Malformed("size of the segments"));
    }
    let count = payload.div_ceil(size);
    if !tcp && count > MOST_DATAGRAMS {
        return Err(Malformed("number of datagrams"));
    }
    Ok(Cut { tcp, transport, headers, size, count })
}

#[cfg(test)]
mod tests;
