//! Streams that come and go while a file moves.

use std::io::Read as _;
use std::net::{Ipv4Addr, TcpStream};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use proptest::prelude::*;
use ropewalk_engine::{
    Attendant, ChannelSettings, DataChannel, Error, Nobody, Parallelism, Pool, Progress, ReceiveJob,
    Received, Sent,
};
use ropewalk_protocol::mode_e::{Descriptor, Header};
use ropewalk_protocol::server::Mode;
use ropewalk_transport::{Options, Tcp, Tuning};

use crate::common::*;

over_every_driver! {
    a_sender_that_connects_follows_the_number,
    a_sender_that_listens_follows_the_number,
    further_connections_that_no_peer_makes_are_no_error,
    further_connections_that_no_sender_serves_are_no_error,
    what_cannot_be_had_is_done_without,
    a_storm_of_changes,
    what_is_told_of_is_recorded_already,
}

pub(crate) const BLOCK: usize = 64 << 10;

fn small_blocks(parallelism: u32) -> ChannelSettings {
    // Small buffers: the sender cannot be far ahead of the receiver.
    let tuning = Tuning { send_buffer: Some(32_768), receive_buffer: Some(32_768), ..Tuning::default() };
    let options = Options { tuning, ..Options::default() };
    ChannelSettings { block_size: BLOCK, options, ..settings(Mode::ExtendedBlock, parallelism) }
}

/// Lets the receiver store so many bytes.
#[derive(Default)]
pub(crate) struct Quota {
    left: Mutex<u64>,
    more: Condvar,
}

impl Quota {
    pub(crate) fn take(&self, n: u64) {
        let mut left = self.left.lock();
        self.more.wait_while_for(&mut left, |left| *left < n, PATIENCE);
        *left = left.saturating_sub(n);
    }

    pub(crate) fn add(&self, n: u64) {
        let mut left = self.left.lock();
        *left = left.saturating_add(n);
        self.more.notify_all();
    }

    /// Lets data flow until `reached`.
    pub(crate) fn until(&self, what: &str, reached: impl Fn() -> bool) {
        let began = Instant::now();
        while !reached() {
            assert!(began.elapsed() < PATIENCE, "{what}");
            let mut left = self.left.lock();
            if *left < BLOCK as u64 {
                *left += BLOCK as u64;
                self.more.notify_all();
            }
            // The bytes that were let through need a moment.
            self.more.wait_for(&mut left, Duration::from_millis(2));
        }
    }
}

/// A transfer that `steer` watches, and whose data flows only as it lets it.
fn steered(
    sender: &mut DataChannel,
    receiver: &mut DataChannel,
    length: usize,
    steer: impl FnOnce(&Quota, &Progress, &Progress) + Send,
) -> (Sent, Received) {
    let contents = data(length);
    let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", false));
    let (sending, receiving, quota) = (Progress::new(), Progress::new(), Quota::default());
    let written = |range: Range<u64>, _: Option<u32>| {
        quota.take(range.end - range.start);
        Ok(())
    };
    let job = ReceiveJob { written: &written, ..receive_job(&sink) };
    let (sent, received) = thread::scope(|scope| {
        let sent = scope.spawn(|| sender.send(&send_job(&source), &mut Nobody, &sending).unwrap());
        scope.spawn(|| {
            steer(&quota, &sending, &receiving);
            quota.add(u64::MAX);
        });
        let received = receiver.receive(&job, &mut Nobody, &receiving).unwrap();
        (sent.join().unwrap(), received)
    });
    assert!(sink.contents() == contents);
    assert_eq!(sent.streams, received.streams);
    (sent, received)
}

/// All connections that are there belong to the cache.
fn assert_tidy(channels: [&DataChannel; 2]) {
    for channel in channels {
        assert_eq!(channel.flows().sample().len(), channel.cached());
    }
}

fn a_sender_that_connects_follows_the_number(net: &Net) {
    let (mut sender, mut receiver) = channels_with(net, small_blocks(2), small_blocks(1), false);
    let parallelism = sender.parallelism();
    let (sent, _) = steered(&mut sender, &mut receiver, 30_000_000, |quota, sending, receiving| {
        for n in [2, 6, 3, 1, 4, 5] {
            parallelism.set(n);
            quota.until("streams of the sender", || sending.streams() == n);
            quota.until("streams of the receiver", || receiving.streams() == n);
            quota.until("connections", || sending.flows().len() == n as usize);
        }
    });
    // 2, 4 more, then 3 and 1 more.
    assert_eq!(sent.streams, 10);
    assert_eq!((sender.cached(), receiver.cached()), (5, 5));
    assert_tidy([&sender, &receiver]);
    // The next transfer begins with those, and with the number as it is now.
    parallelism.set(3);
    let (sent, _) = roundtrip(&mut sender, &mut receiver, &data(3_000_000), true);
    assert_eq!((sent.streams, sender.cached(), receiver.cached()), (5, 3, 3));
    assert_eq!(parallelism.get(), 3);
}

fn a_sender_that_listens_follows_the_number(net: &Net) {
    let (mut sender, mut receiver) = channels_with(net, small_blocks(2), small_blocks(2), true);
    let numbers = [sender.parallelism(), receiver.parallelism()];
    let (sent, _) = steered(&mut sender, &mut receiver, 30_000_000, |quota, sending, receiving| {
        for n in [2, 6, 3, 1, 4, 5] {
            // The receiver first: it makes a new connection for one that leaves while it wants as
            // many as before.
            numbers[1].set(n);
            numbers[0].set(n);
            quota.until("streams of the sender", || sending.streams() == n);
            quota.until("streams of the receiver", || receiving.streams() == n);
        }
    });
    assert_eq!(sent.streams, 10);
    assert_eq!((sender.cached(), receiver.cached()), (5, 5));
    assert_tidy([&sender, &receiver]);
    roundtrip(&mut sender, &mut receiver, &data(3_000_000), true);
    assert_eq!((sender.cached(), receiver.cached()), (5, 5));
}

fn further_connections_that_no_peer_makes_are_no_error(net: &Net) {
    let (mut sender, mut receiver) = channels_with(net, small_blocks(2), small_blocks(2), true);
    let parallelism = sender.parallelism();
    let (sent, _) = steered(&mut sender, &mut receiver, 8_000_000, |quota, sending, _| {
        quota.until("the transfer's begin", || sending.bytes() > 0);
        parallelism.set(9);
    });
    assert_eq!((sent.streams, sender.cached()), (2, 2));
}

fn further_connections_that_no_sender_serves_are_no_error(net: &Net) {
    let (mut sender, mut receiver) = channels_with(net, small_blocks(2), small_blocks(2), true);
    let parallelism = receiver.parallelism();
    for _ in 0..2 {
        let (sent, _) = steered(&mut sender, &mut receiver, 8_000_000, |quota, _, receiving| {
            quota.until("the transfer's begin", || receiving.bytes() > 0);
            parallelism.set(4);
            quota.until("connections", || receiving.streams() == 4);
        });
        assert_eq!((sent.streams, sender.cached(), receiver.cached()), (2, 2, 2));
        assert_tidy([&sender, &receiver]);
    }
    // The sender may find those that are closed by now, and takes none of them.
    sender.set_parallelism(4);
    receiver.set_parallelism(2);
    let (sent, _) = steered(&mut sender, &mut receiver, 8_000_000, |_, _, _| {});
    assert_eq!((sent.streams, sender.cached()), (2, 2));
}

fn what_cannot_be_had_is_done_without(net: &Net) {
    // No thread is free.
    let (listener, address) = listen(net);
    let mut receiver = DataChannel::passive(listener, small_blocks(1), pool(), budget());
    let few = Arc::new(Pool::new("few", 2));
    let mut sender =
        DataChannel::active(Arc::clone(net), vec![address], small_blocks(1), Arc::clone(&few), budget());
    let parallelism = sender.parallelism();
    let (sent, _) = steered(&mut sender, &mut receiver, 8_000_000, |quota, sending, _| {
        parallelism.set(20);
        quota.until("streams", || sending.streams() == 3);
    });
    assert_eq!(sent.streams, 3);
    // Nor are there more streams than blocks.
    let (mut sender, mut receiver) = channels_with(net, small_blocks(1), small_blocks(1), false);
    let parallelism = sender.parallelism();
    parallelism.set(100);
    let (sent, _) = steered(&mut sender, &mut receiver, 5 * BLOCK, |_, _, _| {});
    assert!(sent.streams <= 5, "{}", sent.streams);
}

#[test]
fn the_kernel_is_asked_about_every_connection() {
    let (mut sender, mut receiver) = channels_with(&tcp(), small_blocks(3), small_blocks(1), false);
    let flows = sender.flows();
    assert_eq!((flows.sample().len(), Progress::new().flows().len()), (0, 0));
    let parallelism = sender.parallelism();
    let (sent, _) = steered(&mut sender, &mut receiver, 20_000_000, |quota, sending, receiving| {
        quota.until("streams", || sending.streams() == 3 && receiving.streams() == 3);
        quota.until("data", || sending.bytes() > 2_000_000);
        // The kernel counts it in ticks of its clock, of which a stream within a host may need none
        // for a long time.
        quota.until("time", || sending.path().busy > Duration::ZERO);
        let (there, path) = (sending.flows(), sending.path());
        assert_eq!((there.len(), path.streams), (3, 3));
        assert!(there.iter().all(|flow| flow.bytes > 0 && flow.stats.congestion_window > 0));
        assert!(there.iter().all(|flow| flow.stats.send_buffer == Some(65_536)));
        assert!(path.rtt.is_some() && path.min_rtt <= path.rtt && path.segments_sent > 0);
        assert!(path.bytes > 2_000_000);
        let theirs = receiving.path();
        assert!(theirs.streams == 3 && theirs.receive_buffer > 0);
        // While nothing is let through a window may be closed.
        let open = || receiving.path().smallest_receive_window.is_some_and(|window| window > 0);
        quota.until("windows", || open() && receiving.path().rtt.is_some());
        parallelism.set(1);
        quota.until("the others' end", || sending.flows().len() == 1);
        let later = sending.path();
        assert!(later.bytes >= path.bytes && later.segments_sent >= path.segments_sent);
        assert!(later.busy >= path.busy);
    });
    // Totals include those that have ended.
    let headers = flows.path().bytes - sent.bytes;
    assert!(headers > 0 && headers < 17 * 1000, "{headers}");
    assert_eq!(flows.path().streams, 1);
}

#[test]
fn a_congestion_control_is_for_connections_to_come() {
    let (mut sender, mut receiver) = channels(&tcp(), Mode::ExtendedBlock, 1);
    sender.set_congestion(Some("reno".into()));
    receiver.set_congestion(Some("no-such".into()));
    assert_eq!(sender.congestion().get().as_deref(), Some("reno"));
    roundtrip(&mut sender, &mut receiver, &data(1000), true);
    roundtrip(&mut sender, &mut receiver, &data(3_000_000), true);
}

/// Knows the receiver to be there.
struct Ready;

impl Attendant for Ready {
    fn begun(&mut self, _: bool) -> std::io::Result<()> {
        Ok(())
    }

    fn tick(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn receiver_ready(&self) -> bool {
        true
    }
}

/// Returns when so many bytes have moved or the transfer has ended.
fn wait_for(bytes: u64, progress: &Progress, ended: &AtomicBool) {
    while progress.bytes() < bytes && !ended.load(Ordering::SeqCst) {
        thread::yield_now();
    }
}

/// Changes the numbers as the bytes pass the given marks.
fn wander(targets: &[(u32, u64)], numbers: &[Parallelism], progress: &Progress, ended: &AtomicBool) {
    for &(n, at) in targets {
        wait_for(at, progress, ended);
        for number in numbers {
            number.set(n);
        }
    }
}

/// The numbers change all the time, and far more connections come and go than there may be at a
/// time.
fn a_storm_of_changes(net: &Net) {
    for sender_listens in [false, true] {
        let mut limited = small_blocks(4);
        limited.max_streams = 9;
        let (mut sender, mut receiver) = channels_with(net, limited.clone(), limited, sender_listens);
        let numbers = [receiver.parallelism(), sender.parallelism()];
        for _ in 0..3 {
            let ended = AtomicBool::new(false);
            let contents = data(8_000_000);
            let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
            thread::scope(|scope| {
                scope.spawn(|| {
                    for n in (0..).map(|n| n * 5 % 9 + 1) {
                        numbers.iter().for_each(|number| number.set(n));
                        if ended.load(Ordering::SeqCst) {
                            break;
                        }
                        thread::yield_now();
                    }
                });
                let sent = scope.spawn(|| sender.send(&send_job(&source), &mut Ready, &Progress::new()));
                let received = receiver.receive(&receive_job(&sink), &mut Nobody, &Progress::new());
                let sent = sent.join().unwrap();
                ended.store(true, Ordering::SeqCst);
                assert_eq!(sent.unwrap().streams, received.unwrap().streams);
            });
            assert!(sink.contents() == contents);
            assert_tidy([&sender, &receiver]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_changes_at_any_time(
        over_memory: bool,
        sender_listens: bool,
        length in prop_oneof![0_usize..400_000, 400_000_usize..12_000_000],
        block in 10_000_usize..300_000,
        first in 1_u32..5,
        threads in prop_oneof![Just(300_usize), 1_usize..6],
        changes in prop::collection::vec((1_u32..9, 0_u64..=100), 0..25),
        one_side: bool,
        abort in prop::option::weighted(0.4, (any::<bool>(), 0_u64..=100)),
    ) {
        let net = if over_memory { memory() } else { tcp() };
        let contents = data(length);
        let mut settings = settings(Mode::ExtendedBlock, first);
        settings.block_size = block;
        // It would not come.
        settings.connect_timeout = Duration::from_secs(5);
        let (listener, address) = listen(&net);
        let passive = DataChannel::passive(listener, settings.clone(), Arc::new(Pool::new("a", threads)), budget());
        let active =
            DataChannel::active(Arc::clone(&net), vec![address], settings, Arc::new(Pool::new("b", threads)), budget());
        let (mut sender, mut receiver) = if sender_listens { (passive, active) } else { (active, passive) };
        let mut numbers = vec![sender.parallelism()];
        if !one_side {
            numbers.push(receiver.parallelism());
        }
        let mut targets: Vec<(u32, u64)> =
            changes.iter().map(|(n, part)| (*n, length as u64 * part / 100)).collect();
        targets.sort_by_key(|(_, at)| *at);
        for round in 0..2 {
            let (source, sink) = (TestFile::new(&contents, round == 0), TestFile::new(b"", true));
            let (sending, receiving, ended) = (Progress::new(), Progress::new(), AtomicBool::new(false));
            let breaker = abort.filter(|_| round == 1).map(|(which, part)| {
                let channel = if which { &sender } else { &receiver };
                (channel.breaker(), length as u64 * part / 100)
            });
            let (sent, received): (Result<Sent, Error>, Result<Received, Error>) = thread::scope(|scope| {
                scope.spawn(|| wander(&targets, &numbers, &sending, &ended));
                if let Some((breaker, at)) = &breaker {
                    scope.spawn(|| {
                        wait_for(*at, &sending, &ended);
                        breaker.break_off();
                    });
                }
                let sent = scope.spawn(|| {
                    let sent = sender.send(&send_job(&source), &mut Ready, &sending);
                    ended.store(true, Ordering::SeqCst);
                    sent
                });
                let received = receiver.receive(&receive_job(&sink), &mut Nobody, &receiving);
                (sent.join().unwrap(), received)
            });
            assert_tidy([&sender, &receiver]);
            if breaker.is_some() && (sent.is_err() || received.is_err()) {
                break;
            }
            let (sent, received) = (sent.unwrap(), received.unwrap());
            prop_assert!(sink.contents() == contents);
            prop_assert_eq!(sent.bytes, length as u64);
            prop_assert_eq!(sent.streams, received.streams);
            prop_assert_eq!(sender.cached(), receiver.cached());
        }
    }
}

/// Reads a connection of MODE E up to its end of data.
fn read_stream(stream: &mut TcpStream) {
    loop {
        let mut header = [0; 17];
        stream.read_exact(&mut header).unwrap();
        let header = Header::from_bytes(header);
        std::io::copy(&mut stream.take(header.count), &mut std::io::sink()).unwrap();
        if header.descriptor.contains(Descriptor::END_OF_DATA) {
            return;
        }
    }
}

/// The thread that coordinates, and serves the first stream, is not the last to end; nothing else
/// wakes it then.
#[test]
fn a_transfer_ends_with_its_last_stream() {
    let mut late = Duration::ZERO;
    for _ in 0..10 {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 20_000).unwrap();
        let address = listener.local_addr().unwrap();
        let mut settings = small_blocks(2);
        settings.options.tuning.send_buffer = Some(20_000);
        let mut sender = DataChannel::active(Arc::new(Tcp), vec![address], settings, pool(), budget());
        let source = TestFile::new(&data(2_000_000), true);
        thread::scope(|scope| {
            let sent = scope.spawn(|| sender.send(&send_job(&source), &mut Nobody, &Progress::new()));
            let [mut first, mut second] = std::array::from_fn(|_| listener.accept().unwrap().0);
            read_stream(&mut first);
            read_stream(&mut second);
            let read = Instant::now();
            assert_eq!(sent.join().unwrap().unwrap().streams, 2);
            late += read.elapsed();
        });
    }
    // A tick is 200 ms: on average half of it was lost each time.
    assert!(late < Duration::from_millis(500), "{late:?}");
}

/// A marker that tells of a range which its journal does not have would promise too much.
fn what_is_told_of_is_recorded_already(net: &Net) {
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 3)] {
        for plain in [true, false] {
            let (mut sender, mut receiver) = channels(net, mode, streams);
            let (source, sink) = (TestFile::new(&data(3_000_000), plain), TestFile::new(b"", plain));
            let progress = Progress::new();
            let written = |range: Range<u64>, _: Option<u32>| {
                let told = progress.received();
                assert!(told.intersection(range.clone()).is_empty(), "{range:?} of {told}");
                Ok(())
            };
            let job = ReceiveJob { written: &written, ..receive_job(&sink) };
            thread::scope(|scope| {
                let sent = scope.spawn(|| sender.send(&send_job(&source), &mut Nobody, &Progress::new()));
                let received = receiver.receive(&job, &mut Nobody, &progress).unwrap();
                assert_eq!(progress.received(), received.ranges);
                sent.join().unwrap().unwrap();
            });
        }
    }
}
