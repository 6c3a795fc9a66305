//! Peers who send what they should not, or end where they should not.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_engine::{ChannelSettings, DataChannel, Error, Nobody, Progress, ReceiveJob};
use ropewalk_protocol::mode_e::ReceiveError;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_transport::{Breaker, Connection, Driver, Endpoint, Listener, Readiness, Tcp};

use crate::common::*;
use crate::peers::*;

#[test]
fn every_form_of_the_end_is_understood() {
    for scripts in [
        // EOF alone, first; EOD with payload; EOF on another connection than the last EOD.
        vec![([header(0x40, 0, 1), block(0, b"abc"), eod()].concat(), false)],
        vec![([header(0x08, 3, 0), b"abc".to_vec()].concat(), false), (eof(2), false)],
        vec![(eod(), false), ([block(0, b"a"), block(1, b"bc"), eod()].concat(), false), (eof(3), false)],
        // Empty blocks; closing connections; EOR.
        vec![([block(0, b""), block(2, b"c"), block(0, b"ab"), header(0x4c, 0, 1)].concat(), true)],
        vec![([header(0x80, 3, 0), b"abc".to_vec(), eof(1)].concat(), true)],
    ] {
        let (result, contents) = received(&scripts);
        assert_eq!(result.unwrap().bytes, 3);
        assert_eq!(contents, b"abc");
    }
}

#[test]
fn closing_connections_are_not_kept() {
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let _open = play(address, &[([block(0, b"x"), header(0x0c, 0, 0)].concat(), false), (eof(2), false)]);
    receive(&mut channel, RangeSet::from_range(0..10)).0.unwrap();
    assert_eq!(channel.cached(), 1);
}

#[test]
fn a_kept_connection_can_be_retired() {
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let mut open = play(address, &[(eod(), false), (eof(2), false)]);
    receive(&mut channel, RangeSet::from_range(0..10)).0.unwrap();
    assert_eq!(channel.cached(), 2);
    open[0].write_all(&header(0x04, 0, 0)).unwrap();
    open[1].write_all(&[block(0, b"hello"), eof(1)].concat()).unwrap();
    let (result, contents) = receive(&mut channel, RangeSet::from_range(0..10));
    result.unwrap();
    assert_eq!(contents, b"hello");
    assert_eq!(channel.cached(), 1);
    // Closing the last one without a word leaves nothing to wait for.
    drop(open);
    let error = receive(&mut channel, RangeSet::from_range(0..10)).0.unwrap_err();
    assert!(matches!(error, Error::PeerClosed { .. }), "{error}");
}

#[test]
fn an_end_before_eod_is_an_error() {
    let large = data(300_000);
    for script in [
        block(0, b"abc"),
        block(0, &large),
        block(0, &large)[..100_000].to_vec(),
        block(0, b"abc")[..19].to_vec(),
        block(0, b"abc")[..5].to_vec(),
    ] {
        let (result, _) = received(&[(script.clone(), true)]);
        let error = result.unwrap_err();
        assert!(matches!(error, Error::PeerClosed { .. }), "{error} after {} bytes", script.len());
    }
}

#[test]
fn what_came_before_the_end_is_kept() {
    let contents = data(700_000);
    for plain in [true, false] {
        let (mut channel, address) = receiver(Mode::ExtendedBlock);
        let _open = play(address, &[(block(1000, &contents)[..600_017].to_vec(), true)]);
        let sink = TestFile::new(b"", plain);
        let progress = Progress::new();
        let error = channel.receive(&receive_job(&sink), &mut Nobody, &progress).unwrap_err();
        assert!(matches!(error, Error::PeerClosed { bytes: 600_000, left: 100_000, .. }), "{error}");
        assert_eq!(progress.received(), RangeSet::from_range(1000..601_000));
        assert_eq!(progress.bytes(), 600_000);
        assert!(sink.contents()[1000..] == contents[..600_000]);
    }
}

#[test]
fn lies_are_found() {
    let protocol = |scripts: &[(Vec<u8>, bool)]| match received(scripts).0 {
        Err(Error::Protocol { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    // Outside of what was asked for, even if far outside.
    for offset in [999_999, 1_000_000, u64::MAX - 1, i64::MAX as u64 - 1] {
        let found = protocol(&[(block(offset, b"abc"), false)]);
        assert!(
            matches!(found, ReceiveError::OutsideAccepted { .. } | ReceiveError::Overflow { .. }),
            "{found}"
        );
    }
    let with_payload = [block(0, b"abc"), header(0x48, 77, 1)].concat();
    assert!(matches!(protocol(&[(with_payload, false)]), ReceiveError::EndWithPayload { count: 77 }));
    assert!(matches!(protocol(&[(eof(0), false)]), ReceiveError::NoStreams));
    assert!(matches!(protocol(&[(eof(10_000), false)]), ReceiveError::TooManyAnnounced { .. }));
    let twice = [header(0x40, 0, 2), header(0x40, 0, 3)].concat();
    assert!(matches!(protocol(&[(twice, false)]), ReceiveError::Inconsistent { .. }));
    // Fewer streams than there are.
    let (result, _) = received(&[(block(0, b"abc"), false), ([block(3, b"d"), eof(1)].concat(), false)]);
    let error = result.unwrap_err();
    assert!(matches!(error, Error::ExtraStream { announced: 1, .. }), "{error}");
}

#[test]
fn more_streams_than_come_are_waited_for_but_not_for_ever() {
    let mut settings = settings(Mode::ExtendedBlock, 1);
    settings.connect_timeout = SHORT;
    let (mut channel, address) = receiver_with(settings);
    let _open = play(address, &[([block(0, b"abc"), eof(2)].concat(), false)]);
    let error = receive(&mut channel, RangeSet::from_range(0..10)).0.unwrap_err();
    assert!(matches!(error, Error::NoConnection { made: 1, wanted: 2, .. }), "{error}");
}

#[test]
fn too_many_connections_end_the_transfer() {
    let mut settings = settings(Mode::ExtendedBlock, 1);
    settings.max_streams = 3;
    let (mut channel, address) = receiver_with(settings);
    let _open = play(address, &vec![(block(0, b"abc"), false); 129]);
    let error = receive(&mut channel, RangeSet::from_range(0..10)).0.unwrap_err();
    assert!(matches!(error, Error::TooManyStreams { limit: 128, .. }), "{error}");
}

/// Which of them bring something, and in what order they are accepted, is not known beforehand.
#[test]
fn streams_beyond_the_limit_wait_for_others() {
    const ALL: usize = 7;
    for reused in [false, true] {
        let mut settings = settings(Mode::ExtendedBlock, 1);
        settings.max_streams = 2;
        let (mut channel, address) = receiver_with(settings);
        let mut open = Vec::new();
        if reused {
            let ends = (0..ALL).map(|n| (if n == 3 { eof(ALL as u64) } else { eod() }, false));
            open = play(address, &ends.collect::<Vec<_>>());
            receive(&mut channel, RangeSet::from_range(0..1)).0.unwrap();
            assert_eq!(channel.cached(), ALL);
        }
        let contents = data(ALL * 300_000);
        let idle = 2;
        let scripts = (0..ALL).map(|n| {
            let at = n * 300_000;
            let end = if n == ALL - 1 { eof(ALL as u64) } else { eod() };
            let bytes = block(at as u64, &contents[at..at + 300_000]);
            ([if n < idle { Vec::new() } else { bytes }, end].concat(), false)
        });
        let scripts: Vec<_> = scripts.collect();
        if open.is_empty() {
            open = (0..ALL).map(|_| TcpStream::connect(address).unwrap()).collect();
        }
        thread::scope(|scope| {
            // Those that have nothing to bring say so last, as a sender does that is busy with
            // another one meanwhile.
            let (last, first) = scripts.split_at(idle);
            let (quiet, busy) = open.split_at_mut(idle);
            scope.spawn(move || {
                thread::scope(|scope| {
                    for (stream, (bytes, _)) in busy.iter_mut().zip(first) {
                        scope.spawn(move || stream.write_all(bytes).unwrap());
                    }
                });
                quiet.iter_mut().zip(last).for_each(|(stream, (bytes, _))| stream.write_all(bytes).unwrap());
            });
            let (result, found) = receive(&mut channel, RangeSet::from_range(0..contents.len() as u64));
            assert_eq!(result.unwrap().streams, ALL as u32);
            assert!(found[idle * 300_000..] == contents[idle * 300_000..]);
        });
        assert_eq!(channel.cached(), ALL);
    }
}

/// As GCT's server: it waits for those streams, too, that wait for others.
#[test]
fn a_sender_that_ends_no_stream_before_all_blocks_are_out_is_let_in() {
    const ALL: usize = 4;
    // More than the kernel keeps of a connection.
    const EACH: usize = 12_000_000;
    let mut settings = settings(Mode::ExtendedBlock, 1);
    settings.max_streams = 2;
    let (mut channel, address) = receiver_with(settings);
    let contents = data(ALL * EACH);
    let mut open: Vec<TcpStream> = (0..ALL).map(|_| TcpStream::connect(address).unwrap()).collect();
    thread::scope(|scope| {
        let blocks = contents.chunks(EACH).enumerate();
        let blocks: Vec<_> = blocks.map(|(n, part)| block((n * EACH) as u64, part)).collect();
        scope.spawn(move || {
            thread::scope(|scope| {
                for (stream, bytes) in open.iter_mut().zip(&blocks) {
                    scope.spawn(move || stream.write_all(bytes).unwrap());
                }
            });
            for (n, stream) in open.iter_mut().enumerate() {
                stream.write_all(&if n == 0 { eof(ALL as u64) } else { eod() }).unwrap();
            }
        });
        let (result, found) = receive(&mut channel, RangeSet::from_range(0..contents.len() as u64));
        assert_eq!(result.unwrap().streams, ALL as u32);
        assert!(found == contents);
    });
}

#[test]
fn fewer_streams_than_a_sender_has_are_enough() {
    let contents = data(20_000_000);
    for (streams, most) in [(8, 3), (16, 1)] {
        let receiving = ChannelSettings { max_streams: most, ..settings(Mode::ExtendedBlock, 1) };
        let (mut sender, mut receiver) =
            channels_with(&tcp(), settings(Mode::ExtendedBlock, streams), receiving, false);
        for length in [contents.len(), 10, 700_000, contents.len()] {
            for plain in [true, false] {
                roundtrip(&mut sender, &mut receiver, &contents[..length], plain);
            }
        }
    }
}

/// The gaps between the blocks of each stream are more than those between all blocks.
#[test]
fn streams_with_many_gaps_between_their_blocks() {
    const BLOCKS: u64 = 10_000;
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let script = |first: u64| {
        let blocks = (first..BLOCKS).step_by(2).flat_map(|n| block(n, &[n as u8]));
        (blocks.chain(if first == 0 { eod() } else { eof(2) }).collect::<Vec<u8>>(), false)
    };
    let scripts = [script(0), script(1)];
    let sink = TestFile::new(b"", true);
    let job = ReceiveJob { checksum: Some(Algorithm::Crc32c), ..receive_job(&sink) };
    let received = thread::scope(|scope| {
        let playing = scope.spawn(|| play(address, &scripts));
        let received = channel.receive(&job, &mut Nobody, &Progress::new()).unwrap();
        playing.join().unwrap();
        received
    });
    let contents: Vec<u8> = (0..BLOCKS).map(|n| n as u8).collect();
    assert_eq!(received.ranges, RangeSet::from_range(0..BLOCKS));
    assert_eq!(received.pieces.unwrap().total(0..BLOCKS), Some(sum_of(Algorithm::Crc32c, &contents)));
    assert!(sink.contents() == contents);
}

#[test]
fn passers_by_do_no_harm() {
    for ordered in [false, true] {
        let (mut channel, address) = receiver(Mode::ExtendedBlock);
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(TcpStream::connect(address).unwrap());
                let mut real = TcpStream::connect(address).unwrap();
                real.write_all(&block(0, b"abc")).unwrap();
                drop(TcpStream::connect(address).unwrap());
                let mut web = TcpStream::connect(address).unwrap();
                web.write_all(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n").unwrap();
                // The nonsense is closed, and nothing else is.
                assert!(!matches!(web.read(&mut [0; 10]), Ok(n) if n > 0));
                // Less than a header.
                let mut probe = TcpStream::connect(address).unwrap();
                probe.write_all(b"\r\n\r\n").unwrap();
                probe.shutdown(Shutdown::Write).unwrap();
                assert!(!matches!(probe.read(&mut [0; 10]), Ok(n) if n > 0));
                let mut slow = TcpStream::connect(address).unwrap();
                slow.write_all(b"\r\n").unwrap();
                let idle = TcpStream::connect(address).unwrap();
                real.write_all(&[block(3, b"def"), eof(1)].concat()).unwrap();
                drop((slow, idle));
            });
            let contents = if ordered {
                let mut contents = Vec::new();
                let received = channel.receive_writer(&mut contents, &mut Nobody, &Progress::new());
                assert_eq!(received.unwrap().streams, 1);
                contents
            } else {
                let (result, contents) = receive(&mut channel, RangeSet::from_range(0..10));
                assert_eq!(result.unwrap().streams, 1);
                contents
            };
            assert_eq!(contents, b"abcdef");
        });
    }
}

/// As a stranger's first header it would be waited for in vain.
#[test]
fn an_end_too_many_is_no_passer_by() {
    for ordered in [false, true] {
        let (mut channel, address) = receiver(Mode::ExtendedBlock);
        let _open = play(address, &[([block(0, b"abc"), eod()].concat(), false), (eof(1), false)]);
        let error = if ordered {
            channel.receive_writer(&mut Vec::new(), &mut Nobody, &Progress::new()).unwrap_err()
        } else {
            receive(&mut channel, RangeSet::from_range(0..10)).0.unwrap_err()
        };
        assert!(error.to_string().contains("2 streams have ended, but EOF announced 1"), "{error}");
    }
}

/// A listener at a host that has no descriptor left, so many times.
struct Short(Box<dyn Listener>, AtomicU32);

impl Listener for Short {
    fn local_addr(&self) -> io::Result<Endpoint> {
        self.0.local_addr()
    }
    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        let left = self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() { Err(rustix::io::Errno::MFILE.into()) } else { self.0.accept(deadline) }
    }
    fn readiness(&self) -> Readiness<'_> {
        self.0.readiness()
    }
    fn breaker(&self) -> io::Result<Breaker> {
        self.0.breaker()
    }
}

#[test]
fn connections_wait_for_descriptors() {
    for ordered in [false, true] {
        let (listener, address) = listen(&tcp());
        let short = Box::new(Short(listener, AtomicU32::new(2)));
        let settings = settings(Mode::ExtendedBlock, 1);
        let mut channel = DataChannel::passive(short, settings, pool(), budget());
        let _open = play(address, &[([block(0, b"abc"), eof(1)].concat(), false)]);
        if ordered {
            let mut contents = Vec::new();
            channel.receive_writer(&mut contents, &mut Nobody, &Progress::new()).unwrap();
            assert_eq!(contents, b"abc");
        } else {
            let (result, contents) = receive(&mut channel, RangeSet::from_range(0..10));
            result.unwrap();
            assert_eq!(contents, b"abc");
        }
    }
    // If the shortage lasts, it is the error.
    let (listener, address) = listen(&tcp());
    let short = Box::new(Short(listener, AtomicU32::new(u32::MAX)));
    let settings = ChannelSettings { connect_timeout: SHORT, ..settings(Mode::ExtendedBlock, 1) };
    let mut channel = DataChannel::passive(short, settings, pool(), budget());
    let _open = TcpStream::connect(address).unwrap();
    let error = channel.receive_writer(&mut Vec::new(), &mut Nobody, &Progress::new()).unwrap_err();
    assert!(matches!(error, Error::Accept(_)), "{error}");
}

#[test]
fn only_the_expected_address_is_let_in() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        let mut settings = settings(mode, 1);
        settings.only_from = Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)));
        let (mut channel, address) = receiver_with(settings);
        let mut stranger = TcpStream::connect(address).unwrap();
        let local = (Ipv4Addr::new(127, 0, 0, 2), 0).into();
        let options =
            ropewalk_transport::Options { bind: Some(SocketAddr::ip(&local)), ..Default::default() };
        let mut friend = Tcp.connect(address.into(), &options, PATIENCE).unwrap();
        if mode == Mode::Stream {
            friend.write_all(b"abc").unwrap();
        } else {
            friend.write_all(&[block(0, b"abc"), eof(1)].concat()).unwrap();
        }
        friend.finish().unwrap();
        let (result, contents) = receive(&mut channel, RangeSet::from_range(0..10));
        result.unwrap();
        assert_eq!(contents, b"abc");
        assert_eq!(stranger.read(&mut [0; 10]).unwrap(), 0);
    }
}

#[test]
fn who_was_not_let_in_is_named() {
    let mut settings = settings(Mode::Stream, 1);
    settings.only_from = Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)));
    settings.connect_timeout = Duration::from_millis(300);
    let (mut channel, address) = receiver_with(settings);
    let mut stranger = TcpStream::connect(address).unwrap();
    let (result, _) = receive(&mut channel, RangeSet::from_range(0..10));
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("0 of 1 data connections came within 0.3 s; one from 127.0.0.1 was closed"),
        "{error}"
    );
    assert!(error.contains("taken from 127.0.0.2 alone"), "{error}");
    assert_eq!(stranger.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn a_stream_that_does_not_end_where_it_should() {
    let (mut channel, address) = receiver(Mode::Stream);
    let _open = play(address, &[(b"0123456789x".to_vec(), true)]);
    let (result, contents) = receive(&mut channel, RangeSet::from_range(0..10));
    let error = result.unwrap_err();
    assert!(matches!(error, Error::TooMuch { expected: 10, .. }), "{error}");
    assert_eq!(contents, b"0123456789");
}

/// Keeping a byte takes a hundred of them.
#[test]
fn many_small_blocks_out_of_order_are_not_kept() {
    const BLOCKS: u64 = 400_000;
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let blocks: Vec<u8> = (1..BLOCKS).flat_map(|n| block(2 * n, b"x")).collect();
    thread::scope(|scope| {
        // Which breaks off at some time.
        scope.spawn(|| TcpStream::connect(address).unwrap().write_all(&blocks));
        let error = channel.receive_writer(&mut Vec::new(), &mut Nobody, &Progress::new()).unwrap_err();
        let Error::OutOfOrder { missing: 0, held } = error else { panic!("{error}") };
        assert!(held < BLOCKS - 1);
    });
}
