//! Peers who lie, stall or vanish, and transfers that are broken off.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_engine::{Attendant, DataChannel, Error, Nobody, Progress, ReceiveJob, Received, SendJob};
use ropewalk_protocol::mode_e::{Descriptor, Header, ReceiveError};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::ErrorKind;
use ropewalk_transport::{Driver, Tcp};

use crate::common::*;

const SHORT: Duration = Duration::from_millis(300);

/// A listening receiver, and where it listens.
fn receiver(mode: Mode) -> (DataChannel, SocketAddr) {
    receiver_with(settings(mode, 1))
}

fn receiver_with(settings: ropewalk_engine::ChannelSettings) -> (DataChannel, SocketAddr) {
    let (listener, address) = listen();
    (DataChannel::passive(listener, settings, pool(), budget()), address)
}

/// A connecting sender, and the listener that it will connect to.
fn sender(mode: Mode, streams: u32) -> (DataChannel, std::net::TcpListener) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let settings = settings(mode, streams);
    (DataChannel::active(Arc::new(Tcp), vec![address], settings, pool(), budget()), listener)
}

/// Connections that send the given bytes and are then closed, or are left open.
fn play(address: SocketAddr, scripts: &[(Vec<u8>, bool)]) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for (bytes, close) in scripts {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        if *close {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        open.push(stream);
    }
    open
}

fn receive(channel: &mut DataChannel, accept: RangeSet) -> (Result<Received, Error>, Vec<u8>) {
    let sink = TestFile::new(b"", true);
    let job = ReceiveJob { accept, ..receive_job(&sink) };
    let result = channel.receive(&job, &mut Nobody, &Progress::new());
    (result, sink.contents())
}

/// What comes of peers that send these bytes.
fn received(scripts: &[(Vec<u8>, bool)]) -> (Result<Received, Error>, Vec<u8>) {
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let _open = play(address, scripts);
    let result = receive(&mut channel, RangeSet::from_range(0..1_000_000));
    if result.0.is_err() {
        assert_eq!(channel.cached(), 0);
    }
    result
}

fn block(offset: u64, data: &[u8]) -> Vec<u8> {
    [&Header::data(offset, data.len() as u64).to_bytes()[..], data].concat()
}

fn eod() -> Vec<u8> {
    Header::end_of_data().to_bytes().to_vec()
}

fn eof(streams: u64) -> Vec<u8> {
    Header::end_of_file(streams).to_bytes().to_vec()
}

fn header(bits: u8, count: u64, offset: u64) -> Vec<u8> {
    Header { descriptor: Descriptor::from_bits(bits), count, offset }.to_bytes().to_vec()
}

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
        // GCT ignores the count of an EOF header.
        vec![([block(0, b"abc"), header(0x48, 77, 1)].concat(), false)],
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
fn too_many_streams_end_the_transfer() {
    let mut settings = settings(Mode::ExtendedBlock, 1);
    settings.max_streams = 3;
    let (mut channel, address) = receiver_with(settings);
    let _open = play(address, &vec![(block(0, b"abc"), false); 4]);
    let error = receive(&mut channel, RangeSet::from_range(0..10)).0.unwrap_err();
    assert!(matches!(error, Error::TooManyStreams { limit: 3, .. }), "{error}");
}

#[test]
fn passers_by_do_no_harm() {
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
            let idle = TcpStream::connect(address).unwrap();
            real.write_all(&[block(3, b"def"), eof(1)].concat()).unwrap();
            drop(idle);
        });
        let (result, contents) = receive(&mut channel, RangeSet::from_range(0..10));
        assert_eq!(result.unwrap().streams, 1);
        assert_eq!(contents, b"abcdef");
    });
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
            ropewalk_transport::SocketOptions { bind: Some(SocketAddr::ip(&local)), ..Default::default() };
        let mut friend = Tcp.connect(address, &options, PATIENCE).unwrap();
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
fn a_stream_that_does_not_end_where_it_should() {
    let (mut channel, address) = receiver(Mode::Stream);
    let _open = play(address, &[(b"0123456789x".to_vec(), true)]);
    let (result, contents) = receive(&mut channel, RangeSet::from_range(0..10));
    let error = result.unwrap_err();
    assert!(matches!(error, Error::TooMuch { expected: 10, .. }), "{error}");
    assert_eq!(contents, b"0123456789");
}

#[test]
fn nobody_comes() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        let mut settings = settings(mode, 1);
        settings.connect_timeout = Duration::from_millis(50);
        let (mut channel, _) = receiver_with(settings.clone());
        let script = Script::default();
        let sink = TestFile::new(b"", true);
        let error = channel.receive(&receive_job(&sink), &mut &script, &Progress::new()).unwrap_err();
        assert!(matches!(error, Error::NoConnection { made: 0, wanted: 1, .. }), "{error}");
        assert!(script.begun.lock().unwrap().is_empty());
        // A sender that was promised three connections and gets one.
        if mode == Mode::ExtendedBlock {
            settings.parallelism = 3;
            let (mut channel, address) = receiver_with(settings);
            let _one = TcpStream::connect(address).unwrap();
            let source = TestFile::new(b"abc", true);
            let error = channel.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::NoConnection { made: 1, wanted: 3, .. }), "{error}");
        }
    }
}

#[test]
fn nobody_listens() {
    let (mut channel, listener) = sender(Mode::ExtendedBlock, 2);
    drop(listener);
    let source = TestFile::new(b"abc", true);
    let error = channel.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && error.is_network(), "{error}");
}

#[test]
fn stalls_are_found() {
    let large = data(300_000);
    // Receiving: nothing at all, half a block, everything but the end.
    for script in [vec![], block(0, &large)[..200_000].to_vec(), block(0, b"abc")] {
        let mut settings = settings(Mode::ExtendedBlock, 1);
        settings.stall_timeout = Some(SHORT);
        let (mut channel, address) = receiver_with(settings);
        let _open = play(address, &[(script, false)]);
        let began = Instant::now();
        let error = receive(&mut channel, RangeSet::from_range(0..1_000_000)).0.unwrap_err();
        assert!(matches!(error, Error::Stalled { .. }), "{error}");
        assert!(began.elapsed() >= SHORT && began.elapsed() < PATIENCE / 2);
    }
    // Sending to somebody who does not read.
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 3)] {
        for plain in [true, false] {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let mut settings = settings(mode, streams);
            settings.stall_timeout = Some(SHORT);
            let mut channel = DataChannel::active(Arc::new(Tcp), vec![address], settings, pool(), budget());
            let source = TestFile::new(&data(30_000_000), plain);
            let error = channel.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::Stalled { .. }), "{error}");
            assert_eq!(channel.cached(), 0);
        }
    }
}

#[test]
fn slow_peers_are_no_stall_and_attendants_get_their_ticks() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        let mut settings = settings(mode, 1);
        settings.stall_timeout = Some(2 * SHORT);
        settings.socket.send_buffer = Some(20_000);
        let listener = Tcp.listen((Ipv4Addr::LOCALHOST, 0).into(), &settings.socket).unwrap();
        let address = listener.local_addr().unwrap();
        let channel = DataChannel::passive(listener, settings, pool(), budget());
        let source = TestFile::new(&data(2_000_000), true);
        let script = Script::default();
        let mut all = Vec::new();
        thread::scope(|scope| {
            let sent = scope.spawn(|| {
                // With its connections, at whose end the reader stops.
                let mut channel = channel;
                channel.send(&send_job(&source), &mut &script, &Progress::new())
            });
            let mut stream = TcpStream::connect(address).unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 20_000).unwrap();
            let mut buffer = [0; 20_000];
            for _ in 0..15 {
                thread::sleep(Duration::from_millis(60));
                let n = stream.read(&mut buffer).unwrap();
                all.extend_from_slice(&buffer[..n]);
            }
            stream.read_to_end(&mut all).unwrap();
            sent.join().unwrap().unwrap();
        });
        assert!(all.len() >= 2_000_000);
        assert!(script.ticks.load(Ordering::SeqCst) >= 3);
        assert!(*script.longest.lock().unwrap() < Duration::from_millis(400));
    }
}

/// A reader of MODE S must see that what it got is not whole.
#[test]
fn a_source_that_shrinks_never_looks_whole() {
    for plain in [true, false] {
        for mode in [Mode::Stream, Mode::ExtendedBlock] {
            let (mut channel, listener) = sender(mode, 1);
            let source = TestFile::new(&data(3_000_000), plain);
            let job = SendJob { ranges: RangeSet::from_range(0..3_000_001), ..send_job(&source) };
            thread::scope(|scope| {
                let reading = scope.spawn(|| {
                    let mut all = Vec::new();
                    let result = listener.accept().unwrap().0.read_to_end(&mut all);
                    (result, all)
                });
                let error = channel.send(&job, &mut Nobody, &Progress::new()).unwrap_err();
                assert!(matches!(error, Error::SourceChanged { .. }), "{error}");
                let (result, all) = reading.join().unwrap();
                if mode == Mode::Stream {
                    assert!(result.is_err());
                } else {
                    let end = eof(1);
                    assert!(!all.windows(17).any(|window| window == end));
                }
            });
        }
    }
}

#[test]
fn a_source_of_another_size_than_expected_never_looks_whole() {
    for size in [1000, 3_000_000] {
        for mode in [Mode::Stream, Mode::ExtendedBlock] {
            let mut settings = settings(mode, 3);
            settings.connect_timeout = SHORT;
            let (mut sender, mut receiver) = channels_with(settings.clone(), settings, false);
            let (source, sink) = (TestFile::new(&data(size), true), TestFile::new(b"", true));
            source.file.write_all_at(b"more", size as u64).unwrap();
            let job = SendJob {
                ranges: RangeSet::from_range(0..size as u64),
                expected_size: Some(size as u64),
                ..send_job(&source)
            };
            let (sent, received) = transfer(&mut sender, &job, &mut receiver, &receive_job(&sink));
            let error = sent.unwrap_err();
            assert!(matches!(error, Error::SourceChanged { .. }), "{error}");
            received.unwrap_err();
            assert_eq!((sender.cached(), receiver.cached()), (0, 0));
        }
    }
}

#[test]
fn an_attendant_ends_it() {
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 4)] {
        let (mut sender, mut receiver) = channels(mode, streams);
        let source = TestFile::new(&data(1_000_000), true);
        let job = SendJob { expected_size: None, ..send_job(&source) };
        source.file.set_len(1 << 40).unwrap();
        let job = SendJob { ranges: RangeSet::from_range(0..1 << 40), ..job };
        let sink = TestFile::new(b"", true);
        let script = Script { stop_at: Some(1), ..Script::default() };
        let began = Instant::now();
        thread::scope(|scope| {
            let sent = scope.spawn(|| sender.send(&job, &mut &script, &Progress::new()));
            // Holes all over: nothing of it has to be written.
            let receiving = ReceiveJob { sparse: true, ..receive_job(&sink) };
            let received = receiver.receive(&receiving, &mut Nobody, &Progress::new());
            let error = sent.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Aborted), "{error}");
            received.unwrap_err();
        });
        assert!(began.elapsed() < PATIENCE / 2);
    }
}

/// Watches a descriptor, as a server does its control connection.
struct Watcher(UnixStream);

impl Attendant for Watcher {
    fn begun(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn tick(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn watch(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn readable(&mut self) -> ControlFlow<()> {
        let mut line = [0; 1];
        self.0.read_exact(&mut line).unwrap();
        if line == *b"A" { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn input_on_the_watched_descriptor_ends_it() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        // While waiting for a connection, and while waiting for data.
        for connected in [false, true] {
            let (mut channel, address) = receiver(mode);
            let _open = if connected { play(address, &[(vec![], false)]) } else { vec![] };
            let (near, mut far) = UnixStream::pair().unwrap();
            far.write_all(b"..A").unwrap();
            let sink = TestFile::new(b"", true);
            let began = Instant::now();
            let error =
                channel.receive(&receive_job(&sink), &mut Watcher(near), &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::Aborted), "{error}");
            assert!(began.elapsed() < PATIENCE / 2);
        }
    }
    // While blocked in sending.
    let (mut channel, _listener) = sender(Mode::ExtendedBlock, 2);
    let (near, mut far) = UnixStream::pair().unwrap();
    let source = TestFile::new(&data(30_000_000), true);
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(SHORT / 10);
            far.write_all(b"A").unwrap();
        });
        let error = channel.send(&send_job(&source), &mut Watcher(near), &Progress::new()).unwrap_err();
        assert!(matches!(error, Error::Aborted), "{error}");
    });
}

#[test]
fn an_attendant_that_cannot_begin_ends_it() {
    struct Gone;
    impl Attendant for Gone {
        fn begun(&mut self, _: bool) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn tick(&mut self, _: &Progress) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }
    let (mut sender, mut receiver) = channels(Mode::ExtendedBlock, 1);
    let (source, sink) = (TestFile::new(&data(10), true), TestFile::new(b"", true));
    thread::scope(|scope| {
        scope.spawn(|| {
            let error = sender.send(&send_job(&source), &mut Gone, &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::Attendant(_)), "{error}");
        });
        let error = receiver.receive(&receive_job(&sink), &mut Gone, &Progress::new()).unwrap_err();
        assert!(matches!(error, Error::Attendant(_)), "{error}");
    });
}

#[test]
fn a_breaker_ends_whatever_goes_on() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        for connected in [false, true] {
            let (mut channel, address) = receiver(mode);
            let large = data(400_000);
            let script = if connected { block(0, &large)[..300_000].to_vec() } else { vec![] };
            let open =
                if connected { play(address, &[(script.clone(), false), (script, false)]) } else { vec![] };
            let breaker = channel.breaker();
            let began = Instant::now();
            thread::scope(|scope| {
                scope.spawn(move || {
                    thread::sleep(SHORT / 10);
                    breaker.break_off();
                });
                let error = receive(&mut channel, RangeSet::from_range(0..1_000_000)).0.unwrap_err();
                assert!(matches!(error, Error::Aborted), "{error}");
            });
            assert!(began.elapsed() < PATIENCE / 2);
            // For good.
            let error = receive(&mut channel, RangeSet::from_range(0..1_000_000)).0.unwrap_err();
            assert!(matches!(error, Error::Aborted), "{error}");
            drop(open);
        }
    }
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 4)] {
        let (mut channel, listener) = sender(mode, streams);
        let breaker = channel.breaker();
        let source = TestFile::new(&data(30_000_000), true);
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut stream = listener.accept().unwrap().0;
                breaker.break_off();
                stream.read_to_end(&mut Vec::new())
            });
            let error = channel.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::Aborted), "{error}");
            // What is cut off in MODE S must not look like a whole file.
            assert!(reading.join().unwrap().is_err() || mode == Mode::ExtendedBlock);
        });
    }
}

#[test]
fn a_full_disk_is_named() {
    let refuses = |_: std::ops::Range<u64>, _: Option<u32>| {
        Err(ropewalk_storage::Error::new(ErrorKind::NoSpace, "write", "/journal"))
    };
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 3)] {
        let (mut sender, mut receiver) = channels(mode, streams);
        let (source, sink) = (TestFile::new(&data(30_000_000), true), TestFile::new(b"", true));
        let job = ReceiveJob { written: &refuses, ..receive_job(&sink) };
        let (sent, received) = transfer(&mut sender, &send_job(&source), &mut receiver, &job);
        let error = received.unwrap_err();
        assert!(matches!(&error, Error::Store(e) if e.kind() == ErrorKind::NoSpace), "{error}");
        assert!(matches!(sent.unwrap_err(), Error::Io { .. }));
    }
    // What `splice` cannot write is reported as an ordinary write reports it.
    let (mut sender, mut receiver) = channels(Mode::ExtendedBlock, 1);
    let source = TestFile::new(&data(3_000_000), true);
    let file = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let sink = Arc::new(TestFile { file, plain: true });
    let (_, received) = transfer(&mut sender, &send_job(&source), &mut receiver, &receive_job(&sink));
    let error = received.unwrap_err();
    assert!(matches!(&error, Error::Store(e) if e.kind() == ErrorKind::NoSpace), "{error}");
}

#[test]
fn a_receiver_that_vanishes_is_noticed() {
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 3)] {
        for plain in [true, false] {
            let (mut channel, listener) = sender(mode, streams);
            let source = TestFile::new(&data(30_000_000), plain);
            thread::scope(|scope| {
                scope.spawn(move || {
                    let mut stream = listener.accept().unwrap().0;
                    stream.read_exact(&mut [0; 100_000]).unwrap();
                });
                let error = channel.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap_err();
                assert!(matches!(error, Error::Io { .. }) && error.is_network(), "{error}");
            });
        }
    }
}

#[test]
fn a_writer_that_fails_or_must_wait_too_long() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let _open = play(address, &[([block(0, b"abc"), eof(1)].concat(), false)]);
    let error = channel.receive_writer(&mut Full, &mut Nobody, &Progress::new()).unwrap_err();
    assert!(matches!(error, Error::Writer(_)), "{error}");
    // Byte 0 never comes.
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let _open = play(address, &[([block(1, b"abc"), eof(1)].concat(), false)]);
    let error = channel.receive_writer(&mut Vec::new(), &mut Nobody, &Progress::new()).unwrap_err();
    assert!(matches!(error, Error::OutOfOrder { missing: 0, held: 3 }), "{error}");
    // Nor while there is room to keep what comes.
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            while stream.write_all(&block(1 << 20, &[7; 1 << 20])).is_ok() {}
        });
        let error = channel.receive_writer(&mut Vec::new(), &mut Nobody, &Progress::new()).unwrap_err();
        assert!(matches!(error, Error::OutOfOrder { missing: 0, .. }), "{error}");
    });
}

#[test]
fn a_reader_that_fails_never_looks_whole() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::ErrorKind::Other.into());
            }
            self.0 -= 1;
            Ok(buffer.len().min(1000))
        }
    }
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        let (mut channel, listener) = sender(mode, 1);
        thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let mut all = Vec::new();
                (listener.accept().unwrap().0.read_to_end(&mut all), all)
            });
            let error = channel.send_reader(&mut Broken(1000), &mut Nobody, &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::Reader(_)), "{error}");
            let (result, all) = reading.join().unwrap();
            assert!(result.is_err() || mode == Mode::ExtendedBlock && !all.ends_with(&eof(1)));
        });
    }
}
