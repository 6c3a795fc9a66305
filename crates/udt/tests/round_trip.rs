//! A printed packet is parsed to the same packet.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use ropewalk_udt::{
    Ack, Arrivals, Body, Control, Data, Handshake, LossList, Packet, Rates, ReceiverState, Seq,
};

fn seq() -> impl Strategy<Value = Seq> {
    any::<u32>().prop_map(Seq::new)
}

fn ack() -> impl Strategy<Value = Body<'static>> {
    let arrivals = (seq(), any::<u32>()).prop_map(|(highest, count)| Arrivals { highest, count });
    let rates = (any::<i32>(), any::<i32>(), proptest::option::of(arrivals))
        .prop_map(|(speed, capacity, arrivals)| Rates { speed, capacity, arrivals });
    let state = (any::<[u32; 3]>(), proptest::option::of(rates))
        .prop_map(|([rtt, rtt_variance, window], rates)| ReceiverState { rtt, rtt_variance, window, rates });
    (seq(), proptest::option::of(state)).prop_map(|(next, receiver)| Body::Ack(Ack { next, receiver }))
}

fn handshake() -> impl Strategy<Value = Body<'static>> {
    (any::<[u32; 6]>(), seq(), any::<i32>(), any::<[u8; 16]>()).prop_map(
        |(words, initial, request, address)| {
            let [version, socket_type, mss, window, id, cookie] = words;
            Body::Handshake(Handshake {
                version,
                socket_type,
                initial,
                mss,
                window,
                request,
                id,
                cookie,
                address,
            })
        },
    )
}

fn body() -> impl Strategy<Value = Body<'static>> {
    prop_oneof![
        ack(),
        handshake(),
        Just(Body::Ack2),
        Just(Body::CongestionWarning),
        Just(Body::KeepAlive),
        Just(Body::Nak(LossList::new(&[0, 0, 0, 5, 0x80, 0, 0, 9, 0, 0, 1, 0]))),
        Just(Body::PeerError),
        Just(Body::Shutdown),
        any::<[u32; 2]>().prop_map(|[first, last]| Body::MessageDrop { first, last }),
        (9_u16..0x8000).prop_map(|kind| Body::Unknown { kind, body: b"anything" }),
    ]
}

fn assert_round_trip(packet: Packet<'_>) {
    let mut printed = Vec::new();
    packet.print(&mut printed);
    assert_eq!(Packet::parse(&printed), Some(packet));
}

proptest! {
    #[test]
    fn control_packet_printed_and_parsed_is_the_same(
        body in body(), extended in any::<u16>(), [info, timestamp, destination] in any::<[u32; 3]>(),
    ) {
        assert_round_trip(Packet::Control(Control { extended, info, timestamp, destination, body }));
    }

    #[test]
    fn data_packet_printed_and_parsed_is_the_same(
        seq in seq(), [message, timestamp, destination] in any::<[u32; 3]>(), payload in any::<Vec<u8>>(),
    ) {
        assert_round_trip(Packet::Data(Data { seq, message, timestamp, destination, payload: &payload }));
    }

    #[test]
    fn loss_list_printed_and_parsed_is_the_same(losses in proptest::collection::vec((seq(), 0..3_u64), 0..20)) {
        let losses: Vec<_> = losses.into_iter().map(|(first, more)| (first, first.add(more))).collect();
        let mut body = Vec::new();
        for (first, last) in &losses {
            LossList::push(&mut body, *first, *last);
        }
        assert_eq!(LossList::new(&body).collect::<Vec<_>>(), losses);
    }

    /// A packet that was parsed and printed is the start of the datagram, padding apart.
    #[test]
    fn any_datagram_is_parsed_without_a_panic(datagram in any::<Vec<u8>>()) {
        if let Some(packet) = Packet::parse(&datagram) {
            assert_round_trip(packet);
        }
    }
}
