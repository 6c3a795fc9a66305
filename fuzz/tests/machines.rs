//! The state machines: control connections of both sides, MODE E of both sides.

#![allow(clippy::unwrap_used)]

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use bstr::ByteSlice;
use ropewalk_fuzz::{Decisions, ITERATIONS, soup};
use ropewalk_protocol::client::{self, Limits};
use ropewalk_protocol::command::Command;
use ropewalk_protocol::facts::{Entry, EntryKind};
use ropewalk_protocol::mode_e::{Descriptor, Header, Next, Receiver, Sender, StreamId, StreamReceiver, Want};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::{ParserLimits, ReplyParser};
use ropewalk_protocol::server::{self, Action, Failure, Operation, Outcome, SessionConfig};
use ropewalk_protocol::slots::{ReservedSlots, SlotsCommand};
use ropewalk_protocol::space::{ReservedSpace, SpaceCommand};
use ropewalk_protocol::upload::UploadStep;
use ropewalk_protocol::usage::Usage;

const SERVER_WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\r\n",
    b"\r\n",
    b"USER u\r\nPASS p\r\n",
    b"PASV\r\n",
    b"EPSV\r\n",
    b"SPAS\r\n",
    b"PORT 127,0,0,1,4,5\r\n",
    b"SPOR 127,0,0,1,4,5 127,0,0,1,4,6\r\n",
    b"RETR f\r\n",
    b"STOR f\r\n",
    b"APPE f\r\n",
    b"ERET P 1 2 f\r\n",
    b"ESTO A 5 f\r\n",
    b"LIST\r\n",
    b"NLST d\r\n",
    b"MLSD\r\n",
    b"MLSR\r\n",
    b"MLSC\r\n",
    b"MLST f\r\n",
    b"STAT f\r\n",
    b"REST 0-5\r\n",
    b"REST 7\r\n",
    b"MODE E\r\n",
    b"MODE S\r\n",
    b"TYPE I\r\n",
    b"OPTS PASV AllowDelayed=1;\r\n",
    b"OPTS RETR Parallelism=2,2,2;\r\n",
    b"OPTS RETR Checksum=CRC32C;\r\n",
    b"OPTS RETR markers=1;PathInfo=1;Nodes=2;\r\n",
    b"OPTS RETR Congestion=bbr;\r\n",
    b"ABUF 5\r\n",
    b"SITE STREAMS 4\r\n",
    b"SITE ONEPORT\r\n",
    b"SITE STREAMS x\r\n",
    b"ABOR\r\n",
    b"\xff\xf4\xff\xf2ABOR\r\n",
    b"QUIT\r\n",
    b"RNFR a\r\n",
    b"RNTO b\r\n",
    b"CKSM MD5 0 -1 f\r\n",
    b"SCKS MD5 00\r\n",
    b"SITE RANGES f\r\n",
    b"SITE USAGE TOKEN t f\r\n",
    b"SITE UPLOAD BEGIN a size=5;resume=1; f\r\n",
    b"SITE UPLOAD RANGES a\r\n",
    b"SITE UPLOAD COMMIT a holes=1;\r\n",
    b"SITE UPLOAD SUSPEND a\r\n",
    b"SITE UPLOAD DISCARD a\r\n",
    b"ESTO U 0 a\r\n",
    b"SITE SYMLINKFROM a\r\n",
    b"SITE SYMLINKTO b\r\n",
    b"SITE CHROOT /d\r\n",
    b"SITE RESTRICT /d\r\n",
    b"SITE STORATTR modify=20010203040506;\r\n",
    b"CWD d\r\n",
    b"MKD d\r\n",
    b"FEAT\r\n",
    b"HELP\r\n",
    b"ALLO 5\r\n",
    b"DCAU N\r\n",
    b"PROT C\r\n",
    b"SITE ",
    b" ",
    b"\xff",
];

/// A random outcome of an operation, which may or may not be of the right kind.
fn outcome(operation: &Operation, choose: &mut Decisions<'_>) -> Result<Outcome, Failure> {
    let addresses = || vec!["127.0.0.1:5".parse().unwrap(); 2];
    match choose.below(8) {
        0 => Err(Failure::System { errno: i32::from(choose.byte()), action: "open".to_owned() }),
        1 => Err(Failure::DataBroken("x\r\ny".to_owned())),
        2 => Err(Failure::Aborted),
        3 => Err(Failure::Busy("x".to_owned())),
        4 => Err(Failure::NotAllowed),
        _ => Ok(match operation {
            Operation::Login { .. } => {
                let message = (choose.below(2) == 0).then(|| "a\nb".to_owned());
                Outcome::LoggedIn { local_user: "u".to_owned(), home: VirtualPath::root(), message }
            }
            Operation::Listen(_) => Outcome::Addresses(addresses()),
            Operation::AdviseBuffers { .. } => Outcome::Advice("x\r\n200 y".to_owned()),
            Operation::Transfer(_) | Operation::List(_) => Outcome::Transferred { checksum: None },
            Operation::Stat { .. } => {
                Outcome::Entry { entry: Box::new(Entry::new("f\r\n200 x", EntryKind::File)), now: 0 }
            }
            Operation::Size(_) => Outcome::Size(5),
            Operation::Checksum { .. } => Outcome::Checksum("00".to_owned()),
            Operation::Upload(request) => match request.step {
                UploadStep::Begin(_) => Outcome::UploadBegun { bytes: 5, started_over: None },
                UploadStep::Ranges => Outcome::Ranges(RangeSet::from_range(0..5)),
                UploadStep::Commit(_) => Outcome::Size(5),
                UploadStep::Suspend | UploadStep::Discard => Outcome::Done,
            },
            Operation::Ranges(_) => Outcome::Ranges(RangeSet::from_range(0..5)),
            Operation::Usage { .. } => Outcome::Usage(Usage { used: 1, free: 2, total: 3 }),
            Operation::Slots(SlotsCommand::Reserve(_) | SlotsCommand::List) => {
                let token = "t".into();
                Outcome::ReservedSlots(vec![ReservedSlots {
                    token,
                    slots: 3,
                    rate: 2,
                    from: 1,
                    until: 9,
                    lease: 5,
                }])
            }
            Operation::Space(SpaceCommand::Reserve { .. } | SpaceCommand::List) => {
                Outcome::Reserved(vec![ReservedSpace { token: "t".into(), bytes: 3, left: 2, end: 1 }])
            }
            _ => Outcome::Done,
        }),
    }
}

fn event(choose: &mut Decisions<'_>) -> server::Event {
    match choose.below(5) {
        0 => server::Event::Listening(vec!["[::1]:5".parse().unwrap()]),
        1 => server::Event::Begun { reused: choose.below(2) == 0 },
        2 => server::Event::Perf { timestamp: 1, stripe: 0, stripes: 1, bytes: 2 },
        3 => server::Event::Received(RangeSet::from_range(0..2)),
        _ => server::Event::Entries(vec![Entry::new("x", EntryKind::File)]),
    }
}

/// Only one operation runs at a time; a client can parse every reply; nothing follows the end of
/// the session; there are never more final replies than lines.
#[test]
fn server_session() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let config =
            SessionConfig { max_queue: 10, max_line: 2000, max_streams: 32, ..SessionConfig::default() };
        let mut session = server::Session::new(Arc::new(config));
        let mut running: Option<Operation> = None;
        let mut client = ReplyParser::default();
        let (mut lines, mut answered, mut closed) = (0, 0, false);
        if choose.below(4) != 0 {
            session.input(b"USER u\r\nPASS p\r\n");
            lines += 2;
        }
        while !choose.is_empty() {
            match choose.below(4) {
                0 | 1 => {
                    let n = choose.below(12);
                    let text = soup(&choose.bytes(n), SERVER_WORDS);
                    lines += text.iter().filter(|b| **b == b'\n').count();
                    session.input(&text);
                }
                2 => session.event(event(&mut choose)),
                _ => {
                    if let Some(operation) = running.take() {
                        session.completed(outcome(&operation, &mut choose));
                    }
                }
            }
            while let Some(action) = session.poll() {
                assert!(!closed, "{action:?} after the end");
                match action {
                    Action::Send(reply) => {
                        let bytes = reply.to_bytes();
                        let read: Vec<_> =
                            bytes.lines().filter_map(|line| client.line(line).unwrap()).collect();
                        assert_eq!(read, std::slice::from_ref(&reply));
                        answered += usize::from(!reply.is_preliminary());
                    }
                    Action::Perform(operation) => {
                        assert!(running.is_none(), "{operation:?} beside {running:?}");
                        running = Some(operation);
                    }
                    Action::Abort => {}
                    Action::Protect => {}
                    Action::Streams(n) => assert!((1..=32).contains(&n)),
                    Action::Close => closed = true,
                }
            }
            // One more reply may say why the session was closed.
            assert!(answered <= lines + 1, "{answered} replies to {lines} lines");
            // The limit applies while an operation runs; one input has up to 36 lines.
            assert!(session.queued() <= 10 + 36);
        }
    });
}

const CLIENT_WORDS: &[&[u8]] = &[
    b"\r\n",
    b"220 x\r\n",
    b"120 x\r\n",
    b"114 Streams 4\r\n",
    b"114 Streams refused: x\r\n",
    b"115 Path rtt=1 minrtt=1 retrans=0 sent=1 cwnd=1 streams=1 limited=app\r\n",
    b"150 x\r\n",
    b"226 x\r\n",
    b"426 x\r\n",
    b"225 x\r\n",
    b"200 x\r\n",
    b"331 x\r\n",
    b"230 x\r\n",
    b"550 x\r\n",
    b"421 x\r\n",
    b"211-x\r\n DCAU\r\n211 x\r\n",
    b"111 Range Marker 0-5\r\n",
    b"112-x\r\n Timestamp: 1\r\n112 x\r\n",
    b"250-",
    b"250 ",
    b"\xff",
    b"501 'TYPE L 8\r\n' unrecognized type.\r\n",
];

/// Every command finishes at most once, and as soon as it is no longer outstanding; a reply 421
/// finishes all commands, and limits are respected.
#[test]
fn client_session() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let reply = ParserLimits { lines: 10, bytes: 500, stray: 5 };
        let mut session = client::Session::new(Limits { line: 100, reply, unsolicited: 5 });
        let (mut waiting, mut sent, mut streams) = (HashSet::new(), 0, 0usize);
        while !choose.is_empty() {
            let ticket = match choose.below(7) {
                3 => {
                    streams += usize::from(session.set_streams(3).is_ok());
                    None
                }
                0 => session.submit(&Command::Stor("f".into())).ok(),
                1 => session.submit(&Command::Pwd).ok(),
                2 => session.abort().ok(),
                _ => {
                    let n = choose.below(12);
                    if session.input(&soup(&choose.bytes(n), CLIENT_WORDS)).is_err() {
                        return;
                    }
                    None
                }
            };
            if let Some(ticket) = ticket {
                assert!(waiting.insert(ticket));
            }
            sent += session.poll_transmit().map_or(0, |bytes| bytes.lines().count());
            while let Some(event) = session.poll_event() {
                match event {
                    client::Event::Finished { ticket, .. } | client::Event::Unanswered { ticket } => {
                        assert!(waiting.remove(&ticket), "{ticket:?} finished without reason");
                    }
                    client::Event::Streams(_) => {
                        streams = streams.checked_sub(1).expect("an answer without a question");
                    }
                    client::Event::Preliminary { reply, .. } => assert!(reply.is_preliminary()),
                    _ => {}
                }
            }
            assert!(waiting.len() <= session.outstanding() && session.outstanding() <= sent);
            if session.closing().is_some() {
                assert!(waiting.is_empty() && session.outstanding() == 0);
            }
        }
    });
}

/// A receiver wants only data within the ranges that it accepts, never takes more than it wants,
/// and ends: with the streams, or with the last byte if the sender has announced their number.
#[test]
fn mode_e_receiver() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let accept: RangeSet = [10..200, 300..u64::MAX].into_iter().collect();
        let mut transfer = Receiver::new(accept.clone(), u64::from(choose.byte()), 4).with_resend();
        let mut streams: Vec<StreamReceiver> = Vec::new();
        let mut came = RangeSet::new();
        while !choose.is_empty() {
            if streams.is_empty() || choose.below(8) == 0 {
                match transfer.add_stream() {
                    Ok(stream) => streams.push(stream),
                    Err(_) if streams.is_empty() => return,
                    Err(_) => {}
                }
            }
            let n = streams.len();
            let stream = &mut streams[choose.below(n)];
            let result = match stream.want() {
                Want::Header { missing } => {
                    let bytes = if choose.below(2) == 0 {
                        let n = choose.below(30);
                        choose.bytes(n)
                    } else {
                        let descriptor = Descriptor::from_bits(choose.byte() & 0x4c);
                        let (count, offset) = (u64::from(choose.byte()), u64::from(choose.byte()));
                        Header { descriptor, count, offset }.to_bytes().to_vec()
                    };
                    let taken = stream.header_bytes(&bytes, &mut transfer);
                    taken.map(|taken| assert!(taken <= missing && taken <= bytes.len()))
                }
                Want::Payload { file_offset, left, .. } => {
                    assert!(left > 0 && accept.contains(file_offset..file_offset + left));
                    let count = left.min(u64::from(choose.byte()) + 1);
                    came.insert(file_offset..file_offset + count);
                    stream.payload(count, &mut transfer)
                }
                Want::Nothing(_) => {
                    assert_eq!(stream.header_bytes(&[0x08; 20], &mut transfer), Ok(0));
                    assert_eq!(stream.disconnected(), Ok(()));
                    choose.byte();
                    Ok(())
                }
            };
            if result.is_err() {
                return;
            }
            let ended = streams.iter().filter(|s| matches!(s.want(), Want::Nothing(_))).count() as u64;
            assert!(
                transfer.ended() <= ended
                    && transfer.announced().is_none_or(|n| transfer.ended() <= n && n <= 4)
            );
            let all_ended = transfer.announced() == Some(transfer.ended());
            let complete = transfer.total().map_or(all_ended, |total| came.len() == total);
            assert_eq!(transfer.is_complete(), complete);
        }
    });
}

struct Pipe {
    id: StreamId,
    receiver: Option<StreamReceiver>,
    wire: VecDeque<(Header, u64)>,
    removed: bool,
}

/// With any schedule in which streams are added, removed and read, every byte arrives once, and the
/// transfer is complete exactly when everything has arrived.
#[test]
fn mode_e_both_sides() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let (length, origin) = (u64::from(choose.byte()) * 4, u64::from(choose.byte()));
        let mut todo = RangeSet::from_range(origin..origin + length);
        for _ in 0..choose.below(4) {
            let (a, b) = (u64::from(choose.byte()), u64::from(choose.byte()));
            todo.remove(origin + a..origin + b);
        }
        let accept = todo.shift_down(origin);
        let mut sender = Sender::new(todo, origin, u64::from(choose.byte())).unwrap();
        let mut transfer = Receiver::new(accept.clone(), 0, 1000);
        let mut pipes: Vec<Pipe> = Vec::new();
        let mut arrived = RangeSet::new();
        let mut bytes = 0;
        loop {
            // After the last decision, every stream gets its turn.
            let over = choose.is_empty();
            let finished = sender.is_finished();
            if pipes.is_empty() || sender.needs_stream() || (!finished && choose.below(12) == 1) {
                let pipe = Pipe {
                    id: sender.add_stream().unwrap(),
                    receiver: None,
                    wire: VecDeque::new(),
                    removed: false,
                };
                pipes.push(pipe);
            }
            let turns: Vec<usize> =
                if over { (0..pipes.len()).collect() } else { vec![choose.below(pipes.len())] };
            for at in turns {
                let pipe = &mut pipes[at];
                let what = if over { 0 } else { choose.below(4) };
                if what == 1
                    && pipe.receiver.is_none()
                    && !pipe.removed
                    && sender.remove_stream(pipe.id).is_ok()
                {
                    pipe.removed = true;
                }
                if what != 2 && !pipe.removed {
                    match sender.next(pipe.id) {
                        Some(Next::Block(block)) => {
                            assert_eq!(block.file_offset, block.header.offset + origin);
                            pipe.wire.push_back((block.header, block.header.count));
                        }
                        Some(Next::End(header)) => pipe.wire.push_back((header, 0)),
                        // Nothing is sent again here.
                        Some(Next::Header(_) | Next::Wait) | None => {}
                    }
                }
                if what == 3 || over {
                    receive(pipe, &mut transfer, &mut arrived, &mut bytes);
                }
            }
            let empty = pipes.iter().all(|p| p.removed || p.wire.is_empty());
            assert!(!transfer.is_complete() || (sender.is_finished() && empty));
            if over && sender.is_finished() && empty {
                break;
            }
        }
        assert!(transfer.is_complete());
        assert_eq!(transfer.ended(), sender.streams());
        assert_eq!((bytes, &arrived), (accept.len(), &accept));
    });
}

fn receive(pipe: &mut Pipe, transfer: &mut Receiver, arrived: &mut RangeSet, bytes: &mut u64) {
    if pipe.removed {
        return;
    }
    while let Some((header, left)) = pipe.wire.pop_front() {
        let stream = pipe.receiver.get_or_insert_with(|| transfer.add_stream().unwrap());
        assert_eq!(stream.header_bytes(&header.to_bytes(), transfer), Ok(Header::LEN));
        if left > 0 {
            let Want::Payload { file_offset, left: wanted, .. } = stream.want() else {
                panic!("payload is not wanted");
            };
            assert_eq!(wanted, left);
            arrived.insert(file_offset..file_offset + left);
            *bytes += left;
            stream.payload(left, transfer).unwrap();
        }
    }
}
