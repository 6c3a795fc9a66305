//! Peers who stall or vanish, and transfers that are broken off.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_engine::{Attendant, DataChannel, Error, Nobody, Progress, ReceiveJob, SendJob};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::ErrorKind;
use ropewalk_transport::{Driver, Tcp};

use crate::common::*;
use crate::peers::*;

over_every_driver! {
    a_source_of_another_size_than_expected_never_looks_whole,
    an_attendant_ends_it,
    an_attendant_that_cannot_begin_ends_it,
    a_full_disk_is_named,
    a_source_that_takes_its_time_is_no_stall,
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
        assert!(script.begun.lock().is_empty());
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
    // Sending to a peer that does not read.
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 3)] {
        for plain in [true, false] {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let mut settings = settings(mode, streams);
            settings.stall_timeout = Some(SHORT);
            let mut channel = DataChannel::active(Arc::new(Tcp), vec![address], settings, pool(), budget());
            let source = TestFile::new(&data(8_000_000), plain);
            let error = channel.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::Stalled { .. }), "{error}");
            assert_eq!(channel.cached(), 0);
        }
    }
}

/// Over a slow connection a chunk takes seconds, in which its rate is measured.
#[test]
fn what_has_left_of_a_chunk_is_told() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        for plain in [true, false] {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 20_000).unwrap();
            let address = listener.local_addr().unwrap();
            let mut settings = settings(mode, 1);
            settings.stall_timeout = Some(SHORT);
            settings.options.tuning.send_buffer = Some(20_000);
            let mut channel = DataChannel::active(Arc::new(Tcp), vec![address], settings, pool(), budget());
            let (source, progress) = (TestFile::new(&data(1_000_000), plain), Progress::new());
            let error = channel.send(&send_job(&source), &mut Nobody, &progress).unwrap_err();
            assert!(matches!(error, Error::Stalled { .. }), "{error}");
            assert!((1..256 << 10).contains(&progress.bytes()), "{}", progress.bytes());
        }
    }
}

#[test]
fn slow_peers_are_no_stall_and_attendants_get_their_ticks() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        let mut settings = settings(mode, 1);
        settings.stall_timeout = Some(2 * SHORT);
        settings.options.tuning.send_buffer = Some(20_000);
        let listener = Tcp.listen((Ipv4Addr::LOCALHOST, 0).into(), &settings.options).unwrap();
        let address = listener.local_addr().unwrap().socket().unwrap();
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
        assert!(*script.longest.lock() < Duration::from_millis(400));
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

fn a_source_of_another_size_than_expected_never_looks_whole(net: &Net) {
    for size in [1000, 3_000_000] {
        for mode in [Mode::Stream, Mode::ExtendedBlock] {
            let mut settings = settings(mode, 3);
            settings.connect_timeout = SHORT;
            let (mut sender, mut receiver) = channels_with(net, settings.clone(), settings, false);
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

fn an_attendant_ends_it(net: &Net) {
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 4)] {
        let (mut sender, mut receiver) = channels(net, mode, streams);
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

fn an_attendant_that_cannot_begin_ends_it(net: &Net) {
    struct Gone;
    impl Attendant for Gone {
        fn begun(&mut self, _: bool) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn tick(&mut self, _: &Progress) -> ControlFlow<()> {
            ControlFlow::Continue(())
        }
    }
    let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, 1);
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
            // A truncated stream in MODE S must not look like a whole file.
            assert!(reading.join().unwrap().is_err() || mode == Mode::ExtendedBlock);
        });
    }
}

fn a_full_disk_is_named(net: &Net) {
    let refuses = |_: std::ops::Range<u64>, _: Option<u32>| {
        Err(ropewalk_storage::Error::new(ErrorKind::NoSpace, "write", "/journal"))
    };
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 3)] {
        let (mut sender, mut receiver) = channels(net, mode, streams);
        let (source, sink) = (TestFile::new(&data(30_000_000), true), TestFile::new(b"", true));
        let job = ReceiveJob { written: &refuses, ..receive_job(&sink) };
        let (sent, received) = transfer(&mut sender, &send_job(&source), &mut receiver, &job);
        let error = received.unwrap_err();
        assert!(matches!(&error, Error::Store(e) if e.kind() == ErrorKind::NoSpace), "{error}");
        assert!(matches!(sent.unwrap_err(), Error::Io { .. }));
    }
    // A failure of `splice` is reported as an ordinary write reports it.
    let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, 1);
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
            let source = TestFile::new(&data(8_000_000), plain);
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

/// A listener whose queue is full: connecting to it takes for ever.
fn full_listener() -> (rustix::fd::OwnedFd, std::net::SocketAddr, Vec<rustix::fd::OwnedFd>) {
    use rustix::net::{
        AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
    };
    let new = || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    let listener = new();
    bind(&listener, &std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    listen(&listener, 0).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
    let waiting = (0..4)
        .map(|_| {
            let socket = new();
            let _ = connect(&socket, &address);
            socket
        })
        .collect();
    (listener, address, waiting)
}

#[test]
fn connecting_takes_no_longer_than_it_may() {
    for mode in [Mode::Stream, Mode::ExtendedBlock] {
        let (_listener, address, _waiting) = full_listener();
        let source = TestFile::new(b"abc", true);
        let mut settings = settings(mode, 1);
        settings.connect_timeout = SHORT;
        let mut channel =
            DataChannel::active(Arc::new(Tcp), vec![address], settings.clone(), pool(), budget());
        let script = Script::default();
        let error = channel.send(&send_job(&source), &mut &script, &Progress::new()).unwrap_err();
        assert!(
            matches!(&error, Error::Connect { source, .. } if source.kind() == io::ErrorKind::TimedOut),
            "{error}"
        );
        assert!(script.ticks.load(Ordering::SeqCst) > 0);
        // It can be broken off from both sides.
        settings.connect_timeout = PATIENCE;
        let mut channel = DataChannel::active(Arc::new(Tcp), vec![address], settings, pool(), budget());
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(b"A").unwrap();
        let error = channel.send(&send_job(&source), &mut Watcher(near), &Progress::new()).unwrap_err();
        assert!(matches!(error, Error::Aborted), "{error}");
        let breaker = channel.breaker();
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(SHORT / 10);
                breaker.break_off();
            });
            let error = channel.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap_err();
            assert!(matches!(error, Error::Aborted), "{error}");
        });
        assert!(began.elapsed() < PATIENCE / 2);
    }
}

/// A sender waits for its source: only if the network is at fault has the transfer stalled.
fn a_source_that_takes_its_time_is_no_stall(net: &Net) {
    struct Late<'s> {
        script: &'s Script,
        from: Option<UnixStream>,
        left: bool,
    }
    impl Read for Late<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if let Some(from) = &mut self.from {
                return from.read(buffer);
            }
            // Several times as long as a stall may last.
            if self.script.ticks.load(Ordering::SeqCst) < 8 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            buffer[..3].copy_from_slice(b"abc");
            Ok(if std::mem::take(&mut self.left) { 3 } else { 0 })
        }
    }
    for (polled, patient) in [(false, true), (true, true), (true, false)] {
        let mut sending = settings(Mode::Stream, 1);
        sending.stall_timeout = Some(SHORT);
        let (mut sender, mut receiver) = channels_with(net, sending, settings(Mode::Stream, 1), false);
        sender.set_patient(patient);
        let script = Script::default();
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let descriptor = theirs.try_clone().unwrap();
        let mut source = Late { script: &script, from: polled.then_some(theirs), left: true };
        let mut sink = Vec::new();
        thread::scope(|scope| {
            let script = &script;
            let received = scope.spawn(|| receiver.receive_writer(&mut sink, &mut Nobody, &Progress::new()));
            scope.spawn(move || {
                while patient && script.ticks.load(Ordering::SeqCst) < 8 {
                    thread::yield_now();
                }
                // Otherwise it is open until the other side gives up.
                let _ = if patient { ours.write(b"abc") } else { ours.read(&mut [0]) };
            });
            let (attendant, progress) = (&mut &*script, Progress::new());
            let sent = if polled {
                sender.send_polled(&mut source, descriptor.as_fd(), attendant, &progress)
            } else {
                sender.send_reader(&mut source, attendant, &progress)
            };
            drop((source, descriptor));
            match sent {
                Ok(_) if patient => drop(received.join().unwrap().unwrap()),
                Err(Error::Stalled { .. }) if !patient => assert!(received.join().unwrap().is_err()),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(sink, if patient { &b"abc"[..] } else { b"" });
    }
}
