#![allow(clippy::unwrap_used)]
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
struct Shape {
    v4: bool,
    tcp: bool,
    options: usize,
    payload: usize,
    size: usize,
    flags: u8,
}

const ID: u16 = 0xfffe;
const SEQUENCE: u32 = 0xffff_fff0;

/// A super-packet as Linux makes it.
fn build(shape: Shape) -> Vec<u8> {
    let Shape { v4, tcp, options, payload, size, flags } = shape;
    let transport = if v4 { 20 } else { 40 };
    let headers = transport + if tcp { 20 + options } else { 8 };
    let mut ip = vec![0; headers + payload];
    if v4 {
        ip[0] = 0x45;
        ip[1] = 0x02;
        let length = ip.len() as u16;
        put16(&mut ip, 2, length);
        put16(&mut ip, 4, ID);
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = if tcp { TCP } else { UDP };
        ip[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        restore_checksum(&mut ip);
    } else {
        ip[0] = 0x60;
        ip[1] = 0x20;
        let length = (ip.len() - 40) as u16;
        put16(&mut ip, 4, length);
        ip[6] = if tcp { TCP } else { UDP };
        ip[8..40].copy_from_slice(&std::array::from_fn::<u8, 32, _>(|i| 0xa0 + i as u8));
    }
    put16(&mut ip, transport, 5001);
    put16(&mut ip, transport + 2, 5002);
    if tcp {
        ip[transport + 4..transport + 8].copy_from_slice(&SEQUENCE.to_be_bytes());
        ip[transport + 12] = (((20 + options) / 4) << 4) as u8;
        ip[transport + 13] = flags;
    }
    for (i, byte) in ip[headers..].iter_mut().enumerate() {
        *byte = (i * 7 + i / 256) as u8;
    }
    let length = ip.len() - transport;
    if !tcp {
        put16(&mut ip, transport + 4, length as u16);
    }
    let version = if v4 { Version::V4 } else { Version::V6 };
    let pseudo = pseudo_header(version, &ip, tcp, length);
    put16(&mut ip, transport + if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM }, pseudo);
    let mut data = vec![0; VIRTIO_HEADER];
    data[0] = NEEDS_CHECKSUM;
    data[1] = match (tcp, v4) {
        (true, true) => GSO_TCP4,
        (true, false) => GSO_TCP6,
        _ => GSO_UDP,
    };
    put_ne16(&mut data, 2, headers);
    put_ne16(&mut data, 4, size);
    put_ne16(&mut data, 6, transport);
    put_ne16(&mut data, 8, if tcp { TCP_CHECKSUM } else { UDP_CHECKSUM });
    data.extend(ip);
    data
}

/// Fills in the checksum as a network card does for this virtio header, and returns the IP packet.
fn complete(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[0] & NEEDS_CHECKSUM != 0 {
        let (start, offset) = (VIRTIO_HEADER + ne16(&frame, 6), ne16(&frame, 8));
        let checksum = !fold(sum(&frame[start..], 0));
        put16(&mut frame, start + offset, checksum);
    }
    frame.split_off(VIRTIO_HEADER)
}

fn written(packet: &Packet, first: usize, count: usize, marked: bool) -> Vec<u8> {
    let mut scratch = [0xee; SCRATCH];
    let (head, tail) = packet.rewrite(first, count, marked, &mut scratch);
    [head, tail].concat()
}

/// Checks a finished packet as the receiving host does: lengths and both checksums.
fn check_host(ip: &[u8]) {
    let (transport, protocol, pseudo) = if ip[0] >> 4 == 4 {
        assert_eq!(usize::from(be16(ip, 2).unwrap()), ip.len());
        assert_eq!(fold(sum(&ip[..20], 0)), 0xffff, "IPv4 checksum");
        (20, ip[9], sum(&ip[12..20], 0))
    } else {
        assert_eq!(usize::from(be16(ip, 4).unwrap()) + 40, ip.len());
        (40, ip[6], sum(&ip[8..40], 0))
    };
    let body = &ip[transport..];
    let total = sum(body, pseudo + u64::from(protocol) + body.len() as u64);
    assert_eq!(fold(total), 0xffff, "transport checksum");
    if protocol == UDP {
        assert_eq!(usize::from(be16(body, 4).unwrap()), body.len());
    }
}

fn shapes() -> impl Strategy<Value = Shape> {
    (any::<bool>(), any::<bool>(), 0usize..=10, 1usize..20_000, 200usize..9000, any::<u8>()).prop_map(
        |(v4, tcp, options, payload, size, flags)| Shape {
            v4,
            tcp,
            options: options * 4,
            payload,
            size,
            flags,
        },
    )
}

#[test]
fn rewrite_of_single_segments_cuts_as_a_network_card_does() {
    let shape =
        Shape { v4: true, tcp: true, options: 12, payload: 3500, size: 1448, flags: FIN | PSH | CWR | 0x10 };
    let packet = Packet::parse(build(shape)).unwrap();
    assert_eq!(packet.segments(), 3);
    assert!(packet.ecn_capable());
    assert_eq!((0..3).map(|i| packet.segment_bytes(i)).collect::<Vec<_>>(), [1500, 1500, 656]);
    for (index, id, sequence, flags) in [
        (0, 0xfffe, SEQUENCE, CWR | 0x10),
        (1, 0xffff, SEQUENCE.wrapping_add(1448), 0x10),
        (2, 0x0000, SEQUENCE.wrapping_add(2896), FIN | PSH | 0x10),
    ] {
        let ip = complete(written(&packet, index, 1, false));
        check_host(&ip);
        assert_eq!(be16(&ip, 4), Some(id));
        assert_eq!(u32::from_be_bytes(ip[24..28].try_into().unwrap()), sequence);
        assert_eq!(ip[33], flags);
        assert_eq!(ip[1], 0x02);
    }
    // The last two segments together are a super-packet again.
    let frame = written(&packet, 1, 2, false);
    assert_eq!((frame[1], ne16(&frame, 4), frame[VIRTIO_HEADER + 33]), (GSO_TCP4, 1448, FIN | PSH | 0x10));
    check_host(&complete(frame));
    // If only the first segment has CWR, the kernel needs the flag `GSO_ECN`.
    assert_eq!(written(&packet, 0, 2, false)[1], GSO_TCP4 | GSO_ECN);
}

#[test]
fn rewrite_of_a_single_packet_marks_it_and_leaves_the_rest() {
    for v4 in [true, false] {
        let mut frame = build(Shape { v4, tcp: true, options: 0, payload: 10, size: 100, flags: 0 });
        frame[1] = GSO_NONE;
        let packet = Packet::parse(frame.clone()).unwrap();
        assert_eq!(written(&packet, 0, 1, false), frame);
        let ip = complete(written(&packet, 0, 1, true));
        check_host(&ip);
        assert_eq!(ip[1] & if v4 { 0x03 } else { 0x30 }, if v4 { 0x03 } else { 0x30 });
        assert_eq!(ip[40..], complete(frame)[40..], "the rest is untouched");
    }
}

#[test]
fn parse_of_contradicting_headers_returns_malformed() {
    let good = build(Shape { v4: true, tcp: true, options: 0, payload: 3000, size: 1000, flags: 0 });
    let ip = VIRTIO_HEADER;
    let cases: &[(&str, &[(usize, u8)])] = &[
        ("neither", &[(ip, 0x25)]),
        ("IPv4 lengths", &[(ip, 0x44)]),
        ("IPv4 lengths", &[(ip + 2, 0xff)]),
        ("length of the super-packet", &[(ip + 2, 0x01)]),
        ("fragment", &[(ip + 6, 0x20)]),
        ("protocol", &[(ip + 9, UDP)]),
        ("place", &[(6, 21)]),
        ("length of the transport", &[(ip + 32, 0x40)]),
        ("size", &[(4, 1), (5, 0)]),
        ("kind", &[(1, GSO_TCP6)]),
        ("kind", &[(1, 3)]),
        ("with its checksum", &[(0, 0)]),
        ("beyond", &[(7, 0xff)]),
        ("number of datagrams", &[(1, GSO_UDP), (ip + 9, UDP), (4, 2), (5, 0)]),
    ];
    for (expected, edits) in cases {
        let mut data = good.clone();
        for (at, value) in *edits {
            data[*at] = *value;
        }
        let (error, returned) = Packet::parse(data.clone()).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        assert_eq!(returned, data);
    }
    for length in 0..VIRTIO_HEADER + 20 {
        assert!(Packet::parse(good[..length].to_vec()).is_err());
    }
}

proptest! {
    #[test]
    fn rewrite_of_any_packet_makes_valid_segments_with_the_whole_payload(shape in shapes(), marked: bool) {
        let frame = build(shape);
        let Ok(packet) = Packet::parse(frame.clone()) else {
            // The parser rejects only UDP trains that are too long.
            prop_assert!(!shape.tcp && shape.payload.div_ceil(shape.size) > MOST_DATAGRAMS);
            return Ok(());
        };
        prop_assert_eq!(packet.segments(), shape.payload.div_ceil(shape.size));
        let headers = frame.len() - VIRTIO_HEADER - shape.payload;
        let mut payload = Vec::new();
        for index in 0..packet.segments() {
            let ip = complete(written(&packet, index, 1, marked));
            prop_assert_eq!(ip.len() as u32, packet.segment_bytes(index));
            check_host(&ip);
            payload.extend_from_slice(&ip[headers..]);
        }
        prop_assert_eq!(&payload, &frame[VIRTIO_HEADER + headers..]);
        if !marked {
            // All segments together are the original packet.
            prop_assert_eq!(complete(written(&packet, 0, packet.segments(), false)), complete(frame));
        }
    }

    #[test]
    fn rewrite_of_a_run_cut_again_makes_the_same_segments(shape in shapes(), a in 0usize..100, b in 1usize..100, marked: bool) {
        if let Ok(packet) = Packet::parse(build(shape)) {
            let first = a % packet.segments();
            let count = 1 + b % (packet.segments() - first);
            let run = Packet::parse(written(&packet, first, count, marked)).unwrap();
            prop_assert_eq!(run.segments(), count);
            for i in 0..count {
                let direct = complete(written(&packet, first + i, 1, marked));
                prop_assert_eq!(complete(written(&run, i, 1, false)), direct);
            }
        }
    }

    #[test]
    fn parse_of_random_bytes_does_not_panic(mut frame in prop::collection::vec(any::<u8>(), 0..300), marked: bool) {
        exercise(frame.clone(), marked);
        if let Some(first) = frame.get_mut(VIRTIO_HEADER) {
            *first = *first & 0x0f | 0x40;
        }
        exercise(frame, marked);
    }

    #[test]
    fn parse_of_a_packet_with_random_edits_does_not_panic(
        shape in shapes(),
        edits in prop::collection::vec((0usize..120, any::<u8>()), 1..4),
        cut in 0usize..200,
        marked: bool,
    ) {
        let mut frame = build(Shape { payload: shape.payload % 600 + 1, ..shape });
        for (at, value) in edits {
            let at = at % frame.len();
            frame[at] = value;
        }
        frame.truncate(frame.len() - cut % 20);
        exercise(frame, marked);
    }
}

fn exercise(frame: Vec<u8>, marked: bool) {
    if let Ok(packet) = Packet::parse(frame) {
        for index in 0..packet.segments() {
            assert!(packet.segment_bytes(index) >= 20);
            let length = written(&packet, index, 1, marked).len() - VIRTIO_HEADER;
            assert_eq!(length as u32, packet.segment_bytes(index));
        }
        written(&packet, 0, packet.segments(), marked);
    }
}
