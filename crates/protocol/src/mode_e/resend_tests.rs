#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::range::RangeSet;

const TICK: f64 = 0.01;
const BLOCK: u64 = 256 << 10;

/// A connection in virtual time.
#[derive(Clone, Debug)]
struct Path {
    /// Bytes per second.
    rate: f64,
    round_trip: f64,
    /// Nothing passes from the first to the second time, in seconds.
    stall: (f64, f64),
    lossy: bool,
    /// From this second on the stream is one too many.
    leaves: f64,
}

struct Connection {
    path: Path,
    id: StreamId,
    stream: StreamReceiver,
    /// Bytes that the sender has written and the path has not yet carried, with the position in the
    /// file of each range of payload.
    queue: VecDeque<(Vec<u8>, bool)>,
    written: u64,
    carried: f64,
    /// When the path had carried how much, for the acknowledgements.
    history: VecDeque<(f64, u64)>,
    measured: Option<f64>,
    copies: Vec<(u64, Vec<u8>)>,
    done: bool,
}

struct Outcome {
    time: f64,
    resent: u64,
    abandoned: usize,
}

/// Sends `size` bytes over these paths, and checks that each byte is stored once.
fn simulate(size: u64, paths: &[Path], resend: bool) -> Outcome {
    let content: Vec<u8> = (0..size).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect();
    let mut sender = Sender::new(RangeSet::from_range(0..size), 0, BLOCK).unwrap();
    if resend {
        sender.allow_resend();
    }
    let mut receiver = Receiver::new(RangeSet::from_range(0..size), 0, 64).with_resend();
    let mut connections: Vec<Connection> = paths
        .iter()
        .map(|path| Connection {
            path: path.clone(),
            id: sender.add_stream().unwrap(),
            stream: receiver.add_stream().unwrap(),
            queue: VecDeque::new(),
            written: 0,
            carried: 0.0,
            history: VecDeque::new(),
            measured: None,
            copies: Vec::new(),
            done: false,
        })
        .collect();
    let mut file: Vec<Option<u8>> = vec![None; size as usize];
    let mut resent = 0;
    let mut now = 0.0;
    while !receiver.is_complete() {
        assert!(now < 3600.0, "the transfer does not end");
        now += TICK;
        for connection in &mut connections {
            let Connection { path, stream, queue, carried, history, measured, copies, .. } = connection;
            let before = *carried;
            if !(path.stall.0..path.stall.1).contains(&now) {
                let waiting: usize = queue.iter().map(|(bytes, _)| bytes.len()).sum();
                *carried += (path.rate * TICK).min(waiting as f64 - carried.fract());
            }
            let mut whole = carried.floor() as u64 - before.floor() as u64;
            if carried.floor() as u64 > 0 && !queue.is_empty() {
                let rate = (*carried - before) / TICK;
                let old = measured.unwrap_or(rate);
                *measured = Some(old + 0.1 * (rate - old));
            }
            while whole > 0 {
                let (bytes, _) = queue.front_mut().unwrap();
                let n = (whole as usize).min(bytes.len());
                let mut part: Vec<u8> = bytes.drain(..n).collect();
                if bytes.is_empty() {
                    queue.pop_front();
                }
                whole -= n as u64;
                while !part.is_empty() {
                    match stream.want() {
                        Want::Header { .. } => {
                            let taken = stream.header_bytes(&part, &mut receiver).unwrap();
                            part.drain(..taken);
                        }
                        Want::Payload { file_offset, left, .. } => {
                            let n = part.len().min(left as usize);
                            let data: Vec<u8> = part.drain(..n).collect();
                            if stream.is_resent() {
                                copies.push((file_offset, data));
                            } else {
                                for (at, byte) in data.into_iter().enumerate() {
                                    let place = &mut file[file_offset as usize + at];
                                    assert_eq!(place.replace(byte), None, "byte stored twice");
                                }
                            }
                            stream.payload(n as u64, &mut receiver).unwrap();
                        }
                        Want::Nothing(_) => panic!("bytes behind the end"),
                    }
                }
            }
            history.push_back((now, carried.floor() as u64));
        }
        for connection in &mut connections {
            let known = now - connection.path.round_trip;
            while connection.history.len() > 1 && connection.history[1].0 <= known {
                connection.history.pop_front();
            }
            let acknowledged = connection.history.front().filter(|(at, _)| *at <= known);
            if let Some(rate) = connection.measured {
                sender.set_rate(connection.id, Rate::Measured(rate as u64));
            } else {
                sender.set_rate(connection.id, Rate::Pending);
            }
            sender.set_backlog(
                connection.id,
                Backlog {
                    acknowledged: acknowledged.map_or(0, |(_, bytes)| *bytes),
                    round_trip: Duration::from_secs_f64(connection.path.round_trip),
                    doubtful: connection.path.lossy,
                },
            );
        }
        for connection in &mut connections {
            // A connection takes what it sends in 200 ms, and one block.
            let waiting = connection.queue.iter().map(|(bytes, _)| bytes.len() as f64).sum::<f64>();
            if connection.done || waiting > connection.path.rate * 0.2 {
                continue;
            }
            if now >= connection.path.leaves
                && let Some(header) = sender.leave(connection.id)
            {
                connection.queue.push_back((header.to_bytes().to_vec(), false));
                connection.done = true;
                continue;
            }
            match sender.next(connection.id) {
                Some(Next::Block(Block { header, file_offset })) => {
                    let range = file_offset as usize..(file_offset + header.count) as usize;
                    let bytes = [&header.to_bytes()[..], &content[range]].concat();
                    resent += if header.is_resent() { header.count } else { 0 };
                    connection.written += bytes.len() as u64;
                    connection.queue.push_back((bytes, header.is_resent()));
                }
                Some(Next::Header(header)) => connection.queue.push_back((header.to_bytes().to_vec(), false)),
                Some(Next::End(header)) => {
                    connection.queue.push_back((header.to_bytes().to_vec(), false));
                    connection.done = true;
                }
                Some(Next::Wait) => {}
                None => connection.done = true,
            }
        }
    }
    for (start, copy) in connections.iter().flat_map(|connection| &connection.copies) {
        for (at, byte) in copy.iter().enumerate() {
            file[*start as usize + at].get_or_insert(*byte);
        }
    }
    assert!(file.iter().zip(&content).all(|(found, byte)| *found == Some(*byte)), "wrong or missing bytes");
    let abandoned = connections.iter().filter(|connection| sender.is_abandoned(connection.id)).count();
    Outcome { time: now, resent, abandoned }
}

fn path(rate: f64) -> Path {
    Path { rate, round_trip: 0.05, stall: (0.0, 0.0), lossy: false, leaves: f64::INFINITY }
}

#[test]
fn sender_without_slow_stream_resends_nothing() {
    let outcome = simulate(8 << 20, &vec![path(1e6); 4], true);
    assert_eq!((outcome.resent, outcome.abandoned), (0, 0));
}

#[test]
fn sender_with_stalled_stream_ends_without_it() {
    let mut paths = vec![path(1e6); 4];
    paths[2] = Path { stall: (1.9, 60.0), lossy: true, ..path(1e6) };
    let size = 8 << 20;
    let [without, with] = [false, true].map(|resend| simulate(size, &paths, resend));
    assert!(without.time > 60.0 && with.time < 6.0, "{} s and {} s", without.time, with.time);
    assert_eq!((with.abandoned, without.resent), (1, 0));
    assert!(with.resent > 0 && with.resent <= size / 20, "{} bytes", with.resent);
}

#[test]
fn sender_with_stalled_stream_that_has_left_ends_without_it() {
    let mut paths = vec![path(1e6); 4];
    paths[2] = Path { stall: (1.0, 60.0), lossy: true, leaves: 0.9, ..path(1e6) };
    let outcome = simulate(8 << 20, &paths, true);
    assert!(outcome.time < 6.0, "{} s", outcome.time);
    assert_eq!(outcome.abandoned, 1);
}

#[test]
fn sender_with_too_long_a_backlog_resends_nothing() {
    let mut paths = vec![path(1e6); 2];
    paths[1].stall = (0.1, 20.0);
    // A twentieth of the file is less than one block.
    let outcome = simulate(1 << 20, &paths, true);
    assert_eq!(outcome.resent, 0);
}

fn any_path() -> impl Strategy<Value = Path> {
    let leaves = prop::option::of(0.1..8.0);
    (1e5..3e6, 0.0..0.3, 0.0..8.0, prop::option::of(0.1..30.0), any::<bool>(), leaves).prop_map(
        |(rate, round_trip, stalls_at, stall, lossy, leaves)| Path {
            rate,
            leaves: leaves.unwrap_or(f64::INFINITY),
            round_trip,
            stall: (stalls_at, stall.map_or(0.0, |length: f64| stalls_at + length)),
            lossy,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn transfer_with_any_delays_stores_each_byte_once(
        size in 1u64..10 << 20,
        paths in prop::collection::vec(any_path(), 1..7),
    ) {
        let outcome = simulate(size, &paths, true);
        prop_assert!(outcome.resent <= size / 20);
        prop_assert!(outcome.abandoned < paths.len());
    }
}

#[test]
fn receiver_with_bytes_sent_again_ends_once_all_have_come() {
    let mut receiver = Receiver::new(RangeSet::from_range(0..100), 0, 8).with_resend();
    let [mut slow, mut free] = [(); 2].map(|()| receiver.add_stream().unwrap());
    let header = |stream: &mut StreamReceiver, header: Header, receiver: &mut Receiver| {
        stream.header_bytes(&header.to_bytes(), receiver).unwrap();
    };
    header(&mut slow, Header::data(0, 100), &mut receiver);
    slow.payload(60, &mut receiver).unwrap();
    header(&mut free, Header::total(100), &mut receiver);
    header(&mut free, Header::resent(50, 50), &mut receiver);
    assert!(free.is_resent() && !slow.is_resent() && !receiver.is_complete());
    free.payload(49, &mut receiver).unwrap();
    assert!(!receiver.is_complete());
    free.payload(1, &mut receiver).unwrap();
    assert!(receiver.is_complete() && receiver.ended() == 0);
}

#[test]
fn receiver_with_eods_but_missing_bytes_is_not_complete() {
    let mut receiver = Receiver::new(RangeSet::from_range(0..100), 0, 8).with_resend();
    let mut stream = receiver.add_stream().unwrap();
    for header in [Header::total(100), Header::end_of_file(1)] {
        stream.header_bytes(&header.to_bytes(), &mut receiver).unwrap();
    }
    assert!(!receiver.is_complete());
    assert_eq!(receiver.shortfall(), Some((0, 100)));
}

#[test]
fn receiver_refuses_contradictory_totals_and_too_many_resent_bytes() {
    let mut receiver = Receiver::new(RangeSet::from_range(0..u64::MAX), 0, 8).with_resend();
    let mut stream = receiver.add_stream().unwrap();
    stream.header_bytes(&Header::total(100).to_bytes(), &mut receiver).unwrap();
    let error = stream.header_bytes(&Header::total(99).to_bytes(), &mut receiver).unwrap_err();
    assert_eq!(error, ReceiveError::InconsistentTotal { announced: 99, before: 100 });
    let mut stream = receiver.add_stream().unwrap();
    let error = stream.header_bytes(&Header::resent(0, 17 << 20).to_bytes(), &mut receiver).unwrap_err();
    assert_eq!(error, ReceiveError::TooMuchResent { most: 16 << 20 });
}

#[test]
fn bit_of_resent_blocks_has_no_meaning_in_a_transfer_without_resends() {
    let mut receiver = Receiver::new(RangeSet::from_range(0..100), 0, 8);
    let mut stream = receiver.add_stream().unwrap();
    for header in [Header::total(100), Header::resent(0, 10)] {
        assert_eq!(stream.header_bytes(&header.to_bytes(), &mut receiver), Ok(Header::LEN));
    }
    assert_eq!((stream.is_resent(), receiver.total()), (false, None));
}
