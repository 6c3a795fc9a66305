#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::range::RangeSet;

#[test]
fn sender_that_is_kept_open_waits_for_ranges_until_it_is_closed() {
    let mut sender = Sender::new(RangeSet::from_range(5..6), 5, 4).unwrap();
    sender.keep_open();
    let (one, other) = (sender.add_stream().unwrap(), sender.add_stream().unwrap());
    assert!(matches!(sender.next(one), Some(Next::Block(_))));
    assert_eq!((sender.next(one), sender.next(other)), (Some(Next::Wait), Some(Next::Wait)));
    assert!(sender.end_with_block(one).is_none());
    assert!(sender.extend(4..6).is_err());
    sender.extend(20..26).unwrap();
    let Some(Next::Block(block)) = sender.next(other) else { panic!("no block") };
    assert_eq!((block.file_offset, block.header.offset, block.header.count), (20, 15, 4));
    assert!(sender.leave(one).is_some(), "a stream may leave while another waits");
    sender.close();
    assert!(matches!(sender.next(other), Some(Next::Block(_))));
    assert!(matches!(sender.next(other), Some(Next::End(_))) && sender.is_finished());
}

pub(super) fn everything() -> RangeSet {
    RangeSet::from_range(0..u64::MAX)
}

pub(super) fn header(bits: u8, count: u64, offset: u64) -> [u8; Header::LEN] {
    Header { descriptor: Descriptor::from_bits(bits), count, offset }.to_bytes()
}

pub(super) fn feed(
    stream: &mut StreamReceiver,
    transfer: &mut Receiver,
    header: [u8; Header::LEN],
) -> Result<Want, ReceiveError> {
    stream.header_bytes(&header, transfer)?;
    Ok(stream.want())
}

#[test]
fn sender_with_one_stream_ends_blocks_at_block_boundaries() {
    let mut sender = Sender::new([0..5, 7..12].into_iter().collect(), 0, 4).unwrap();
    let s = sender.add_stream().unwrap();
    let mut blocks = Vec::new();
    while let Some(Next::Block(block)) = sender.next(s) {
        assert_eq!(block.file_offset, block.header.offset);
        blocks.push(block.header.offset..block.header.offset + block.header.count);
    }
    // Blocks end at multiples of the block size.
    assert_eq!(blocks, [0..4, 4..5, 7..8, 8..12]);
    assert!(sender.is_finished() && sender.next(s).is_none());
    assert_eq!(sender.add_stream(), Err(SendError::Finished { streams: 1 }));
}

#[test]
fn sender_near_end_of_file_shrinks_blocks() {
    const K: u64 = 1 << 10;
    let size = 8192 * K + 100;
    let deal = |streams: usize| {
        let mut sender = Sender::new(RangeSet::from_range(0..size), 0, 1024 * K).unwrap();
        let ids: Vec<_> = (0..streams).map(|_| sender.add_stream().unwrap()).collect();
        let mut blocks = Vec::new();
        for id in ids.iter().cycle() {
            match sender.next(*id) {
                Some(Next::Block(block)) => blocks.push(block.header.count),
                Some(_) => {}
                None => break,
            }
        }
        assert_eq!(blocks.iter().sum::<u64>(), size);
        blocks
    };
    assert_eq!(deal(1), [vec![1024 * K; 8], vec![100]].concat());
    let two = deal(2);
    assert_eq!(two[..3], [1024 * K, 896 * K, 128 * K]);
    assert!(two[3..].iter().all(|count| *count <= 768 * K));
    assert_eq!(two.iter().rev().take(2).collect::<Vec<_>>(), [&100, &(64 * K)]);
    // Each stream gets several blocks.
    assert!(deal(16).iter().all(|count| *count <= 128 * K));
}

/// Assigns `size` bytes to streams with these rates (bytes per second), each of which asks for
/// another block when it has sent one. Returns the time at which each stream finished, in seconds.
fn ends_of_streams(size: u64, rates: &[u64], told: bool) -> Vec<f64> {
    let mut sender = Sender::new(RangeSet::from_range(0..size), 0, 1 << 20).unwrap();
    let ids: Vec<_> = rates.iter().map(|_| sender.add_stream().unwrap()).collect();
    for (id, rate) in ids.iter().zip(rates).filter(|_| told) {
        sender.set_rate(*id, Rate::Measured(*rate));
    }
    let mut free_at = vec![0.0_f64; rates.len()];
    let mut busy: Vec<usize> = (0..rates.len()).collect();
    let mut dealt = 0;
    while let Some(&at) = busy.iter().min_by(|a, b| free_at[**a].total_cmp(&free_at[**b])) {
        match sender.next(ids[at]) {
            Some(Next::Block(block)) => {
                dealt += block.header.count;
                free_at[at] += block.header.count as f64 / rates[at] as f64;
            }
            _ => busy.retain(|other| *other != at),
        }
    }
    assert_eq!(dealt, size);
    free_at
}

#[test]
fn sender_with_known_rates_ends_all_streams_together() {
    let slow = 30_000;
    let rates = [slow, 2_000_000, 500_000, 250_000, 1_000_000, 700_000];
    let size = 60 << 20;
    let ideal = size as f64 / rates.iter().sum::<u64>() as f64;
    let end = |told| ends_of_streams(size, &rates, told).into_iter().fold(0.0, f64::max);
    // The smallest block takes the slowest stream half a second.
    assert!(end(true) < ideal + 0.6, "{} of {ideal}", end(true));
    assert!(end(false) > ideal + 1.5);
}

#[test]
fn sender_without_measured_rate_assigns_average_share() {
    let mut sender = Sender::new(RangeSet::from_range(0..64 << 20), 0, 1 << 20).unwrap();
    let [a, b, c] = [(); 3].map(|()| sender.add_stream().unwrap());
    sender.set_rate(a, Rate::Measured(100_000_000));
    sender.set_rate(b, Rate::Pending);
    let mut block = |id| match sender.next(id) {
        Some(Next::Block(block)) => block.header.count,
        _ => 0,
    };
    assert_eq!([block(a), block(b), block(c)], [1 << 20, 256 << 10, 768 << 10]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn sender_with_any_rates_ends_all_streams_together(
        rates in proptest::collection::vec(20_000_u64..5_000_000, 1..40),
        size in 0_u64..100 << 20,
    ) {
        let slowest = *rates.iter().min().unwrap_or(&1);
        let last = ends_of_streams(size, &rates, true).into_iter().fold(0.0, f64::max);
        let ideal = size as f64 / rates.iter().sum::<u64>() as f64;
        // A single stream gets blocks of full size; of several streams, the slowest may have one
        // smallest block more than its share.
        let block = if rates.len() == 1 { 0.0 } else { (32 << 10) as f64 / slowest as f64 };
        prop_assert!(last <= ideal * 1.02 + block, "{last} instead of {ideal}");
    }
}

#[test]
fn sender_of_empty_file_ends_all_streams() {
    let mut sender = Sender::new(RangeSet::new(), 0, 1 << 20).unwrap();
    let streams: Vec<_> = (0..4).map(|_| sender.add_stream().unwrap()).collect();
    let ends: Vec<_> = streams.iter().map(|s| sender.next(*s).unwrap()).collect();
    let mut expected = vec![Next::End(Header::end_of_data()); 3];
    expected.push(Next::End(Header::end_of_file(4)));
    assert_eq!(ends, expected);
}

#[test]
fn sender_with_origin_sends_relative_offsets() {
    let mut sender = Sender::new(RangeSet::from_range(100..105), 100, 4).unwrap();
    let s = sender.add_stream().unwrap();
    assert_eq!(sender.next(s), Some(Next::Block(Block { header: Header::data(0, 4), file_offset: 100 })));
    assert_eq!((sender.remaining(), sender.streams()), (1, 1));
    let error = Sender::new(RangeSet::from_range(99..105), 100, 4).unwrap_err();
    assert_eq!(error, SendError::BeforeOrigin { start: 99, end: 105, origin: 100 });
    let end = RangeSet::from_range(u64::MAX - 5..u64::MAX);
    let mut sender = Sender::new(end, 0, u64::MAX).unwrap();
    let s = sender.add_stream().unwrap();
    assert_eq!(
        sender.next(s),
        Some(Next::Block(Block { header: Header::data(u64::MAX - 5, 5), file_offset: u64::MAX - 5 }))
    );
}

#[test]
fn sender_when_stream_is_lost_reassigns_its_block() {
    let mut sender = Sender::new(RangeSet::from_range(0..6), 0, 4).unwrap();
    let (a, b) = (sender.add_stream().unwrap(), sender.add_stream().unwrap());
    let first = sender.next(a).unwrap();
    sender.next(b).unwrap();
    assert_eq!(sender.remaining(), 0);
    sender.remove_stream(a).unwrap();
    assert_eq!((sender.remaining(), sender.streams()), (4, 1));
    assert_eq!(sender.next(a), None);
    assert_eq!(sender.next(b), Some(first));
    // It is unknown whether the earlier block of `b` has arrived.
    assert_eq!(sender.remove_stream(b), Err(SendError::Lost { bytes: 2 }));
    assert_eq!(sender.next(b), Some(Next::End(Header::end_of_file(1))));
}

#[test]
fn sender_when_last_stream_is_lost_needs_another() {
    let mut sender = Sender::new(RangeSet::from_range(0..4), 0, 4).unwrap();
    let (a, b) = (sender.add_stream().unwrap(), sender.add_stream().unwrap());
    sender.next(a).unwrap();
    assert_eq!(sender.next(b), Some(Next::End(Header::end_of_data())));
    sender.remove_stream(a).unwrap();
    assert!(sender.needs_stream());
    let c = sender.add_stream().unwrap();
    assert!(matches!(sender.next(c), Some(Next::Block(_))));
    assert_eq!(sender.next(c), Some(Next::End(Header::end_of_file(2))));
    assert!(!sender.needs_stream());
}

#[test]
fn sender_stream_may_leave_while_others_stay() {
    let mut sender = Sender::new(RangeSet::from_range(0..12), 0, 4).unwrap();
    let a = sender.add_stream().unwrap();
    assert_eq!(sender.leave(a), None);
    let b = sender.add_stream().unwrap();
    sender.next(b).unwrap();
    let left = sender.leave(b).unwrap();
    assert!(left.is_end_of_data() && left.is_close() && !left.is_end_of_file());
    assert_eq!((sender.leave(b), sender.next(b)), (None, None));
    assert_eq!((sender.active(), sender.left(), sender.streams()), (1, 1, 2));
    // `a` is the only stream left, so it cannot leave.
    assert_eq!(sender.leave(a), None);
    let c = sender.add_stream().unwrap();
    sender.next(c).unwrap();
    sender.next(a).unwrap();
    // All data is assigned: both streams end as usual.
    assert_eq!(sender.leave(c), None);
    assert_eq!(sender.next(c), Some(Next::End(Header::end_of_data())));
    assert_eq!(sender.next(a), Some(Next::End(Header::end_of_file(3))));
}

#[test]
fn receiver_when_streams_left_accepts_others() {
    let mut transfer = Receiver::new(everything(), 0, 2);
    let _stays = transfer.add_stream().unwrap();
    for _ in 0..10 {
        let mut passing = transfer.add_stream().unwrap();
        assert!(transfer.add_stream().is_err());
        feed(&mut passing, &mut transfer, header(0x0c, 0, 0)).unwrap();
    }
    let mut last = transfer.add_stream().unwrap();
    assert!(matches!(
        feed(&mut last, &mut transfer, header(0x48, 0, 13)),
        Err(ReceiveError::TooManyAnnounced { announced: 13, most: 2 })
    ));
    let mut last = Receiver::new(everything(), 0, 2).add_stream().unwrap();
    feed(&mut last, &mut transfer, header(0x48, 0, 12)).unwrap();
    assert_eq!((transfer.announced(), transfer.ended()), (Some(12), 11));
}

#[test]
fn sender_waits_for_promised_streams() {
    let mut sender = Sender::new(RangeSet::new(), 0, 4).unwrap();
    sender.promise_streams(2);
    let a = sender.add_stream().unwrap();
    assert_eq!(sender.next(a), Some(Next::End(Header::end_of_data())));
    assert!(!sender.is_finished() && sender.needs_stream());
    let b = sender.add_stream().unwrap();
    assert_eq!(sender.next(b), Some(Next::End(Header::end_of_file(2))));
}

#[test]
fn receiver_accepts_ends_in_any_order() {
    // The headers are: EOF alone before everything else, EOD with payload, EOD with CLOSE, and
    // flags without meaning.
    let mut transfer = Receiver::new(everything(), 0, 8);
    let (mut a, mut b) = (transfer.add_stream().unwrap(), transfer.add_stream().unwrap());
    assert_eq!(feed(&mut a, &mut transfer, header(0x40, 0, 2)), Ok(Want::Header { missing: 17 }));
    assert_eq!(transfer.announced(), Some(2));
    let payload = feed(&mut a, &mut transfer, header(0x80 | 0x20 | 0x10 | 0x08, 3, 5)).unwrap();
    assert_eq!(payload, Want::Payload { file_offset: 5, left: 3, last: true });
    a.payload(2, &mut transfer).unwrap();
    assert_eq!(transfer.ended(), 0);
    a.payload(1, &mut transfer).unwrap();
    assert_eq!((a.want(), transfer.ended()), (Want::Nothing(End::Reusable), 1));
    assert!(!transfer.is_complete());
    assert_eq!(feed(&mut b, &mut transfer, header(0, 0, u64::MAX)), Ok(Want::Header { missing: 17 }));
    assert_eq!(feed(&mut b, &mut transfer, header(0x4c, 0, 2)), Ok(Want::Nothing(End::Closing)));
    assert!(transfer.is_complete());
    assert_eq!((a.disconnected(), b.disconnected()), (Ok(()), Ok(())));
    // Further bytes belong to the next transfer.
    assert_eq!(a.header_bytes(&[0; 17], &mut transfer), Ok(0));
}

#[test]
fn receiver_when_streams_are_removed_accepts_others() {
    let mut transfer = Receiver::new(everything(), 0, 2);
    for _ in 0..5 {
        let passer_by = transfer.add_stream().unwrap();
        assert!(passer_by.is_untouched());
        transfer.remove_stream(&passer_by);
    }
    let mut ended = transfer.add_stream().unwrap();
    feed(&mut ended, &mut transfer, header(8, 0, 0)).unwrap();
    // The connection may serve the next transfer, so it still counts.
    transfer.remove_stream(&ended);
    transfer.add_stream().unwrap();
    assert_eq!(transfer.add_stream().unwrap_err(), ReceiveError::TooManyStreams { most: 2 });
}

#[test]
fn receiver_on_leading_close_retires_stream() {
    let mut transfer = Receiver::new(everything(), 0, 1);
    let mut a = transfer.add_stream().unwrap();
    assert_eq!(transfer.add_stream().unwrap_err(), ReceiveError::TooManyStreams { most: 1 });
    assert!(a.is_untouched());
    assert_eq!(feed(&mut a, &mut transfer, Header::close().to_bytes()), Ok(Want::Nothing(End::Retired)));
    assert!(!a.is_untouched() && transfer.ended() == 0);
    // Another stream takes its place.
    let mut b = transfer.add_stream().unwrap();
    feed(&mut b, &mut transfer, header(0, 0, 0)).unwrap();
    assert_eq!(feed(&mut b, &mut transfer, Header::close().to_bytes()), Ok(Want::Header { missing: 17 }));
    assert_eq!(
        feed(&mut b, &mut transfer, Header::end_of_file(1).to_bytes()),
        Ok(Want::Nothing(End::Closing))
    );
}

#[test]
fn receiver_on_invalid_header_fails() {
    let lie = |headers: &[[u8; Header::LEN]]| {
        let mut transfer = Receiver::new([10..20, 30..40].into_iter().collect(), 10, 4);
        for h in headers {
            let mut stream = transfer.add_stream().unwrap();
            if let Err(error) = feed(&mut stream, &mut transfer, *h) {
                return error;
            }
        }
        panic!("no error");
    };
    let outside = |offset, count, nearest| ReceiveError::OutsideAccepted {
        offset,
        count,
        origin: 10,
        nearest: Some(nearest),
    };
    assert_eq!(lie(&[header(0, 11, 0)]), outside(0, 11, 10..20));
    assert_eq!(lie(&[header(0, 1, 10)]), outside(10, 1, 10..20));
    assert_eq!(lie(&[header(0, 1, 30)]), outside(30, 1, 30..40));
    assert_eq!(lie(&[header(0, 30, 0)]), outside(0, 30, 10..20));
    assert_eq!(
        lie(&[header(0, u64::MAX, 1)]),
        ReceiveError::Overflow { offset: 1, count: u64::MAX, origin: 10 }
    );
    assert_eq!(
        lie(&[header(0, 1, u64::MAX)]),
        ReceiveError::Overflow { offset: u64::MAX, count: 1, origin: 10 }
    );
    assert_eq!(lie(&[header(0x40, 0, 0)]), ReceiveError::NoStreams);
    assert_eq!(lie(&[header(0x48, 3, 1)]), ReceiveError::EndWithPayload { count: 3 });
    assert_eq!(lie(&[header(0x48, 0, 5)]), ReceiveError::TooManyAnnounced { announced: 5, most: 4 });
    assert_eq!(
        lie(&[header(0x48, 0, 2), header(0x48, 0, 3)]),
        ReceiveError::Inconsistent { announced: 3, before: 2 }
    );
    assert_eq!(
        lie(&[header(0x48, 0, 1), header(0x08, 0, 0)]),
        ReceiveError::TooManyEnded { ended: 2, announced: 1 }
    );
    assert_eq!(
        lie(&[header(0x08, 0, 0), header(0x08, 0, 0), header(0x40, 0, 1)]),
        ReceiveError::TooManyEnded { ended: 2, announced: 1 }
    );
    let text = lie(&[header(0, 11, 0)]).to_string();
    assert!(text.contains("11 bytes at offset 0") && text.contains("10-20"), "{text}");
    let nothing = Receiver::new(RangeSet::new(), 0, 1);
    let mut transfer = nothing;
    let mut stream = transfer.add_stream().unwrap();
    let error = feed(&mut stream, &mut transfer, header(0, 1, 0)).unwrap_err();
    assert!(error.to_string().ends_with("none"), "{error}");
}

#[test]
fn receiver_when_connection_is_lost_reports_missing_bytes() {
    let mut transfer = Receiver::new(everything(), 0, 4);
    let mut stream = transfer.add_stream().unwrap();
    assert_eq!(stream.disconnected(), Err(ReceiveError::Lost { left: 0, header: 17 }));
    stream.header_bytes(&[0; 5], &mut transfer).unwrap();
    assert!(!stream.is_untouched());
    assert_eq!(stream.disconnected(), Err(ReceiveError::Lost { left: 0, header: 12 }));
    stream = transfer.add_stream().unwrap();
    feed(&mut stream, &mut transfer, header(0, 9, 0)).unwrap();
    stream.payload(4, &mut transfer).unwrap();
    assert_eq!(stream.disconnected(), Err(ReceiveError::Lost { left: 5, header: 0 }));
}

#[test]
#[should_panic(expected = "where 3 were wanted")]
fn receiver_with_more_payload_than_wanted_panics() {
    let mut transfer = Receiver::new(everything(), 0, 4);
    let mut stream = transfer.add_stream().unwrap();
    feed(&mut stream, &mut transfer, header(0, 3, 0)).unwrap();
    let _ = stream.payload(4, &mut transfer);
}

/// A connection that sent no complete header is not a peer of the transfer, however its bytes are
/// split.
#[test]
fn receiver_with_partial_header_has_no_header() {
    let mut transfer = Receiver::new(RangeSet::from_range(0..100), 0, 4);
    let mut stream = transfer.add_stream().unwrap();
    assert_eq!(stream.header_bytes(b"GET /", &mut transfer).unwrap(), 5);
    assert!(!stream.is_untouched() && stream.has_no_header());
    assert!(stream.header_bytes(b" HTTP/1.1\r\nHo", &mut transfer).is_err());
}
