//! The packets of UDT, each one the payload of a UDP datagram.
//!
//! Parsing borrows from the datagram. It accepts all that libudt sends, also the forms that the
//! draft does not have: short ACKs, control packets with padding. Printing writes packets exactly
//! as libudt does. No input causes a panic; a packet that cannot be used is `None`.

use crate::Seq;
use crate::handshake::Handshake;
use crate::loss_list::LossList;

/// The length of the header of each packet.
pub const HEADER: usize = 16;
/// The headers of IP and UDP, as an MSS counts them, and that of UDT. libudt counts 28 bytes for IP
/// and UDP also on IPv6.
pub const OVERHEAD: usize = 28 + HEADER;

/// The first bit of a control packet.
const CONTROL: u32 = 1 << 31;

const HANDSHAKE: u16 = 0;
const KEEP_ALIVE: u16 = 1;
const ACK: u16 = 2;
const NAK: u16 = 3;
const CONGESTION_WARNING: u16 = 4;
const SHUTDOWN: u16 = 5;
const ACK2: u16 = 6;
const MESSAGE_DROP: u16 = 7;
const PEER_ERROR: u16 = 8;

/// A data or control packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    Control(Control<'a>),
    Data(Data<'a>),
}

impl<'a> Packet<'a> {
    /// Returns `None` if `datagram` is no packet of UDT.
    pub fn parse(datagram: &'a [u8]) -> Option<Self> {
        let (header, body) = datagram.split_first_chunk::<HEADER>()?;
        let [first, second, timestamp, destination] = words(header);
        if first & CONTROL == 0 {
            let seq = Seq::new(first);
            return Some(Self::Data(Data { seq, message: second, timestamp, destination, payload: body }));
        }
        let [kind, extended] = [first >> 16 & 0x7fff, first & 0xffff].map(|half| half as u16);
        let body = Body::parse(kind, body)?;
        Some(Self::Control(Control { extended, info: second, timestamp, destination, body }))
    }

    /// Appends the packet.
    pub fn print(&self, out: &mut Vec<u8>) {
        match self {
            Self::Control(control) => control.print(out),
            Self::Data(data) => {
                out.extend_from_slice(&data.header());
                out.extend_from_slice(data.payload);
            }
        }
    }

    /// The id of the connection that the packet is for; 0 in a request for a connection.
    pub fn destination(&self) -> u32 {
        match self {
            Self::Control(control) => control.destination,
            Self::Data(data) => data.destination,
        }
    }
}

/// A part of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data<'a> {
    pub seq: Seq,
    /// The boundary, order and number of a message; without a meaning in streams.
    pub message: u32,
    /// Microseconds since the sender's socket was opened.
    pub timestamp: u32,
    pub destination: u32,
    pub payload: &'a [u8],
}

impl Data<'_> {
    pub(crate) fn header(&self) -> [u8; HEADER] {
        header(self.seq.get(), self.message, self.timestamp, self.destination)
    }
}

/// A packet that carries no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control<'a> {
    pub extended: u16,
    /// The additional info. In an ACK, ACK2, message drop and peer error it belongs to the body.
    pub info: u32,
    pub timestamp: u32,
    pub destination: u32,
    pub body: Body<'a>,
}

impl<'a> Control<'a> {
    /// A packet with the fields that libudt leaves at 0.
    pub fn new(destination: u32, info: u32, body: Body<'a>) -> Self {
        Self { extended: 0, info, timestamp: 0, destination, body }
    }

    /// Appends the packet.
    pub fn print(&self, out: &mut Vec<u8>) {
        let kind = CONTROL | u32::from(self.body.kind()) << 16 | u32::from(self.extended);
        out.extend_from_slice(&header(kind, self.info, self.timestamp, self.destination));
        self.body.print(out);
    }
}

/// The kind of a control packet, and what follows its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// The additional info is the number of the ACK.
    Ack(Ack),
    /// The additional info is the number of the ACK that is answered.
    Ack2,
    CongestionWarning,
    Handshake(Handshake),
    KeepAlive,
    MessageDrop {
        first: u32,
        last: u32,
    },
    Nak(LossList<'a>),
    PeerError,
    Shutdown,
    /// A packet of an unknown kind, which only shows that the peer is alive.
    Unknown {
        kind: u16,
        body: &'a [u8],
    },
}

impl<'a> Body<'a> {
    fn parse(kind: u16, body: &'a [u8]) -> Option<Self> {
        Some(match kind {
            HANDSHAKE => Self::Handshake(Handshake::parse(body)?),
            KEEP_ALIVE => Self::KeepAlive,
            ACK => Self::Ack(Ack::parse(body)?),
            NAK => Self::Nak(LossList::new(body)),
            CONGESTION_WARNING => Self::CongestionWarning,
            SHUTDOWN => Self::Shutdown,
            ACK2 => Self::Ack2,
            MESSAGE_DROP => {
                let [first, last] = words(body.first_chunk::<8>()?);
                Self::MessageDrop { first, last }
            }
            PEER_ERROR => Self::PeerError,
            kind => Self::Unknown { kind, body },
        })
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Ack(_) => ACK,
            Self::Ack2 => ACK2,
            Self::CongestionWarning => CONGESTION_WARNING,
            Self::Handshake(_) => HANDSHAKE,
            Self::KeepAlive => KEEP_ALIVE,
            Self::MessageDrop { .. } => MESSAGE_DROP,
            Self::Nak(_) => NAK,
            Self::PeerError => PEER_ERROR,
            Self::Shutdown => SHUTDOWN,
            Self::Unknown { kind, .. } => *kind,
        }
    }

    fn print(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ack(ack) => ack.print(out),
            // libudt has four bytes of padding here.
            Self::Ack2 | Self::CongestionWarning | Self::KeepAlive | Self::PeerError | Self::Shutdown => {
                out.extend_from_slice(&[0; 4]);
            }
            Self::Handshake(handshake) => handshake.print(out),
            Self::MessageDrop { first, last } => {
                out.extend_from_slice(&first.to_be_bytes());
                out.extend_from_slice(&last.to_be_bytes());
            }
            Self::Nak(losses) => out.extend_from_slice(losses.bytes()),
            Self::Unknown { body, .. } => out.extend_from_slice(body),
        }
    }
}

/// The body of an ACK. libudt sends three forms: with `next` alone (a light ACK, every 64 packets),
/// with the state of the receiver, and with the rates as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// All packets before this one have been received.
    pub next: Seq,
    pub receiver: Option<ReceiverState>,
}

/// The state of a receiver in an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverState {
    /// In microseconds, as the receiver measures it from ACK to ACK2.
    pub rtt: u32,
    pub rtt_variance: u32,
    /// Free space in packets, counted from [`Ack::next`].
    pub window: u32,
    pub rates: Option<Rates>,
}

/// The measurements of the receiver, in packets per second; without a meaning if not positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    pub speed: i32,
    pub capacity: i32,
    pub arrivals: Option<Arrivals>,
}

/// The packets that have arrived, also those after a gap. Only programs of Ropewalk send this to
/// each other; libudt ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// The packet after the highest one that has arrived.
    pub highest: Seq,
    /// How many packets have arrived, each counted once, modulo 2^32.
    pub count: u32,
}

impl Ack {
    /// Returns `None` for the lengths that stand for no form. libudt reads beyond such a body.
    fn parse(body: &[u8]) -> Option<Self> {
        let (next, rest) = body.split_first_chunk::<4>()?;
        let next = Seq::new(u32::from_be_bytes(*next));
        if rest.is_empty() {
            return Some(Self { next, receiver: None });
        }
        let (state, rest) = rest.split_first_chunk::<12>()?;
        let [rtt, rtt_variance, window] = words(state);
        let rates = rest.split_first_chunk::<8>().map(|(rates, rest)| {
            let [speed, capacity] = words(rates).map(u32::cast_signed);
            let arrivals = rest.first_chunk::<8>().map(|arrivals| {
                let [highest, count] = words(arrivals);
                Arrivals { highest: Seq::new(highest), count }
            });
            Rates { speed, capacity, arrivals }
        });
        Some(Self { next, receiver: Some(ReceiverState { rtt, rtt_variance, window, rates }) })
    }

    fn print(&self, out: &mut Vec<u8>) {
        let mut word = |word: u32| out.extend_from_slice(&word.to_be_bytes());
        word(self.next.get());
        let Some(state) = self.receiver else { return };
        word(state.rtt);
        word(state.rtt_variance);
        word(state.window);
        let Some(rates) = state.rates else { return };
        word(rates.speed.cast_unsigned());
        word(rates.capacity.cast_unsigned());
        if let Some(arrivals) = rates.arrivals {
            word(arrivals.highest.get());
            word(arrivals.count);
        }
    }
}

fn header(first: u32, second: u32, timestamp: u32, destination: u32) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    for (place, word) in header.chunks_mut(4).zip([first, second, timestamp, destination]) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    header
}

/// The words of a part whose length is four times their number.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::handshake;

    fn parse_ack(length: usize) -> Option<Ack> {
        let mut packet = vec![0; HEADER + length];
        packet[..2].copy_from_slice(&[0x80, 2]);
        match Packet::parse(&packet)? {
            Packet::Control(Control { body: Body::Ack(ack), .. }) => Some(ack),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ack_of_a_length_that_no_form_has_is_no_packet() {
        for length in [0, 3, 8, 12] {
            assert_eq!(parse_ack(length), None, "{length}");
        }
        assert_eq!(parse_ack(4).unwrap().receiver, None);
        assert_eq!(parse_ack(16).unwrap().receiver.unwrap().rates, None);
        assert_eq!(parse_ack(24).unwrap().receiver.unwrap().rates.unwrap().arrivals, None);
        assert!(parse_ack(40).unwrap().receiver.unwrap().rates.unwrap().arrivals.is_some());
    }

    #[test]
    fn control_packets_without_padding_are_accepted() {
        for (kind, body) in [(1, Body::KeepAlive), (5, Body::Shutdown), (6, Body::Ack2)] {
            let mut packet = [0; HEADER];
            packet[..2].copy_from_slice(&[0x80, kind]);
            let Some(Packet::Control(control)) = Packet::parse(&packet) else { panic!() };
            assert_eq!(control.body, body);
        }
    }

    #[test]
    fn handshake_of_another_length_is_no_packet() {
        let mut packet = vec![0; HEADER + 48];
        packet[0] = 0x80;
        assert!(Packet::parse(&packet).is_some());
        assert!(Packet::parse(&packet[..HEADER + 44]).is_none());
        packet.extend([0; 4]);
        assert!(Packet::parse(&packet).is_none());
    }

    #[test]
    fn loss_list_with_a_range_without_end_stops_before_it() {
        let body = [0, 0, 0, 1, 0x80, 0, 0, 5, 0, 0, 0, 9, 0x80, 0, 0, 7];
        let losses: Vec<_> = LossList::new(&body).map(|(a, b)| (a.get(), b.get())).collect();
        assert_eq!(losses, [(1, 1), (5, 9)]);
    }

    #[test]
    fn short_datagram_is_no_packet() {
        for length in 0..HEADER {
            assert_eq!(Packet::parse(&[0x80; HEADER][..length]), None);
        }
    }

    #[test]
    fn handshake_length_is_that_of_libudt() {
        let mut out = Vec::new();
        let mut packet = [0; HEADER + handshake::LENGTH];
        packet[0] = 0x80;
        Packet::parse(&packet).unwrap().print(&mut out);
        assert_eq!(out, packet);
    }
}
