//! Packets that libudt has sent are parsed, and printed to the same bytes.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ropewalk_udt::{
    Ack, Body, CONFIRM, Control, Data, Handshake, LossList, Packet, REFUSED, REQUEST_COOKIE, STREAM, Seq,
    VERSION, address_bytes,
};

/// A captured packet.
struct Line {
    scenario: String,
    from_connector: bool,
    lost: bool,
    bytes: Vec<u8>,
}

fn capture(name: &str) -> Vec<Line> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let mut scenario = String::new();
    let mut lines = Vec::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        if let Some(title) = line.strip_prefix('#') {
            title.trim().clone_into(&mut scenario);
            continue;
        }
        let [direction, _, hex] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let byte = |index| u8::from_str_radix(&hex[index..index + 2], 16).unwrap();
        lines.push(Line {
            scenario: scenario.clone(),
            from_connector: direction.starts_with('>'),
            lost: direction.ends_with('x'),
            bytes: (0..hex.len()).step_by(2).map(byte).collect(),
        });
    }
    lines
}

fn control(packet: Packet<'_>) -> Option<Control<'_>> {
    match packet {
        Packet::Control(control) => Some(control),
        Packet::Data(_) => None,
    }
}

fn data(packet: Packet<'_>) -> Option<Data<'_>> {
    match packet {
        Packet::Data(data) => Some(data),
        Packet::Control(_) => None,
    }
}

fn handshake(packet: Packet<'_>) -> Option<Handshake> {
    match control(packet)?.body {
        Body::Handshake(handshake) => Some(handshake),
        _ => None,
    }
}

#[test]
fn packets_of_libudt_print_to_the_same_bytes() {
    let files = ["ack-forms.txt", "gct-udt-get.txt", "handshake.txt", "loss.txt", "small-transfer.txt"];
    for line in files.iter().flat_map(|file| capture(file)) {
        let packet = Packet::parse(&line.bytes).unwrap();
        let mut printed = Vec::new();
        packet.print(&mut printed);
        assert_eq!(printed, line.bytes, "{}: {packet:?}", line.scenario);
        assert!(!matches!(packet, Packet::Control(Control { body: Body::Unknown { .. }, .. })), "{packet:?}");
    }
}

#[test]
fn handshake_of_libudt_has_the_negotiated_values() {
    let lines = capture("handshake.txt");
    let packets: Vec<_> = lines.iter().map(|line| Packet::parse(&line.bytes).unwrap()).collect();
    let first = handshake(packets[0]).unwrap();
    let mut expected = Handshake {
        version: VERSION,
        socket_type: STREAM,
        initial: Seq::new(0x20b5_5afd),
        mss: 1500,
        window: 8192,
        request: REQUEST_COOKIE,
        id: 0x1cc0_7c52,
        cookie: 0,
        address: address_bytes(Ipv4Addr::LOCALHOST.into()),
    };
    assert_eq!((packets[0].destination(), first), (0, expected));
    expected.cookie = 0x388a_6652;
    assert_eq!((packets[1].destination(), handshake(packets[1]).unwrap()), (expected.id, expected));
    expected.request = CONFIRM;
    assert_eq!(handshake(packets[2]).unwrap(), expected);
    expected.id = 0x1564_25d1;
    assert_eq!((packets[3].destination(), handshake(packets[3]).unwrap()), (0x1cc0_7c52, expected));
    let of = |number: &str| {
        let lines = lines.iter().filter(|line| line.scenario.starts_with(number));
        lines.filter_map(|line| handshake(Packet::parse(&line.bytes).unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(of("4.").last().unwrap().request, REFUSED);
    assert_eq!(of("5.").last().map(|answer| (answer.mss, answer.window)), Some((576, 8192)));
    assert_eq!(of("8.")[0].address, address_bytes(Ipv6Addr::LOCALHOST.into()));
}

#[test]
fn repeated_answer_of_libudt_has_another_window() {
    let lines = capture("handshake.txt");
    let answers = lines.iter().filter(|line| line.scenario.starts_with("3.") && !line.from_connector);
    let windows: Vec<_> = answers
        .filter_map(|line| Some((line.lost, handshake(Packet::parse(&line.bytes)?)?)))
        .filter(|(_, answer)| answer.request == CONFIRM)
        .map(|(lost, answer)| (lost, answer.window))
        .collect();
    assert_eq!(windows, [(true, 8192), (false, 25600)]);
}

#[test]
fn data_of_libudt_put_together_is_the_stream() {
    let lines = capture("small-transfer.txt");
    for from_connector in [true, false] {
        let lines = lines.iter().filter(|line| line.from_connector == from_connector);
        let stream: Vec<_> = lines
            .filter_map(|line| data(Packet::parse(&line.bytes)?))
            .flat_map(|data| data.payload)
            .collect();
        assert_eq!(stream.len(), 20_000);
        let expected = |index: usize| u8::try_from(((7 * index) >> 3) & 255).unwrap();
        assert!(stream.iter().enumerate().all(|(index, byte)| **byte == expected(index)));
    }
}

/// The light form is in no capture.
#[test]
fn acks_of_libudt_have_both_numbered_forms() {
    let (mut with_rates, mut without) = (0, 0);
    for line in ["ack-forms.txt", "small-transfer.txt"].iter().flat_map(|file| capture(file)) {
        let Some(Control { info, body: Body::Ack(Ack { receiver, .. }), .. }) =
            control(Packet::parse(&line.bytes).unwrap())
        else {
            continue;
        };
        assert!(info > 0);
        match receiver.unwrap().rates {
            Some(rates) => with_rates += usize::from(rates.capacity > 0),
            None => without += 1,
        }
    }
    assert!(with_rates > 0 && without > 0, "{with_rates} {without}");
}

#[test]
fn naks_of_libudt_report_single_packets_and_ranges() {
    let lines = capture("loss.txt");
    let losses = |line: &Line| match control(Packet::parse(&line.bytes).unwrap())?.body {
        Body::Nak(losses) => Some(losses.collect::<Vec<_>>()),
        _ => None,
    };
    let naks: Vec<_> = lines.iter().filter_map(losses).collect();
    assert!(naks.iter().all(|nak| nak.len() == 1));
    let lengths: Vec<_> = naks.iter().map(|nak| nak[0].1.since(nak[0].0) + 1).collect();
    assert!(lengths.contains(&1) && lengths.iter().any(|length| *length > 1), "{lengths:?}");
    assert_eq!(LossList::new(&[]).next(), None);
}
