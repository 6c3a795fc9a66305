//! Senders that send the last blocks of a stalled stream again on others.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_engine::{ChannelSettings, DataChannel, Error, Nobody, Progress, ReceiveJob, SendJob};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_transport::testing::Memory;
use ropewalk_transport::{
    Breaker, Connection, ConnectionHandle, Driver, Endpoint, Interest, Listener, Options, Readiness, Signal,
    Tuning, Wait,
};
use rustix::event::PollFlags;

use crate::common::*;

const SIZE: usize = 16 << 20;
/// Bytes per second that a connection lets through.
const RATE: f64 = 8e6;
/// A stalled connection lets through so many bytes.
const STALLS_AFTER: u64 = 512 << 10;
/// The others of its file let through so many until it has stalled for so long: a sender helps a
/// stream only if it has seen that it is late.
const HELD_AT: u64 = 1 << 20;
const HELD: Duration = Duration::from_millis(500);

/// The bytes that all connections may still let through.
type Allowance = Arc<AtomicU64>;

/// When a connection of each file has stalled. A file has four connections.
type Stalls = Arc<Mutex<HashMap<u64, Instant>>>;

/// Makes connections slow to read, and lets some of them stall.
struct Slow {
    asked: AtomicU64,
    /// Whether the connection with this number stalls.
    stalls: fn(u64) -> bool,
    allowance: Allowance,
    /// The other connections of a file wait for these.
    stalled: Option<Stalls>,
    /// The files of which the sender has closed a connection, before the receiver has let go of it.
    parted: Arc<Mutex<HashSet<u64>>>,
}

impl Slow {
    /// The number of the next connection.
    fn number(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed)
    }

    fn wrap(&self, number: u64, inner: Box<dyn Connection>) -> io::Result<Box<dyn Connection>> {
        let stalls = (self.stalls)(number);
        Ok(Box::new(SlowConnection {
            inner,
            gate: Arc::default(),
            began: Instant::now(),
            taken: 0,
            most: if stalls { STALLS_AFTER } else { u64::MAX },
            file: number / 4,
            stalled: self.stalled.clone(),
            finished: false,
            parted: Arc::clone(&self.parted),
            never: Signal::new()?,
            limit: None,
            nonblocking: true,
            allowance: Arc::clone(&self.allowance),
        }))
    }
}

/// Connects with connections that are slow.
struct SlowDriver {
    inner: Net,
    slow: Slow,
    /// The last of four connections takes so long, as if its first packet was lost.
    late: Duration,
}

impl Driver for SlowDriver {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        self.inner.listen(address, options)
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let number = self.slow.number();
        if let Some(before) = (number / 4).checked_sub(1) {
            // Otherwise the sender may take the connection for one of the file before.
            assert!(self.slow.parted.lock().contains(&before), "connection {number} is made too early");
        }
        if number % 4 == 3 {
            let never = Signal::new()?;
            wait.wait(never.readiness().0, PollFlags::IN, Instant::now() + self.late)?;
        }
        self.slow.wrap(number, self.inner.connect_waiting(address, options, timeout, wait)?)
    }
}

/// A listener whose connections are slow.
struct SlowListener {
    inner: Box<dyn Listener>,
    slow: Slow,
}

impl Listener for SlowListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner.local_addr()
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        self.inner.accept(deadline)?.map(|inner| self.slow.wrap(self.slow.number(), inner)).transpose()
    }

    fn turn_away(&self) -> Vec<Box<dyn Connection>> {
        // They take no part in a file, and are not counted.
        self.inner.turn_away()
    }

    fn readiness(&self) -> Readiness<'_> {
        self.inner.readiness()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner.breaker()
    }
}

/// Whether the connection is broken off.
#[derive(Default)]
struct Gate {
    broken: Mutex<bool>,
    changed: Condvar,
}

struct SlowConnection {
    inner: Box<dyn Connection>,
    gate: Arc<Gate>,
    began: Instant,
    taken: u64,
    most: u64,
    file: u64,
    stalled: Option<Stalls>,
    finished: bool,
    parted: Arc<Mutex<HashSet<u64>>>,
    never: Signal,
    limit: Option<Duration>,
    nonblocking: bool,
    allowance: Allowance,
}

impl SlowConnection {
    /// How many bytes may be read until another connection has stalled.
    fn most(&self) -> u64 {
        let Some(stalled) = self.stalled.as_ref().filter(|_| self.most == u64::MAX) else { return self.most };
        let since = stalled.lock().get(&self.file).copied();
        if since.is_some_and(|since| since.elapsed() >= HELD) { self.most } else { HELD_AT }
    }

    /// How many bytes may be read now.
    fn room(&self) -> usize {
        let earned = (self.began.elapsed().as_secs_f64() * RATE) as u64;
        earned.min(self.most()).saturating_sub(self.taken) as usize
    }

    fn took(&mut self, n: usize) {
        self.taken += n as u64;
        if let Some(stalled) = self.stalled.as_ref().filter(|_| self.taken == self.most) {
            stalled.lock().entry(self.file).or_insert_with(Instant::now);
        }
    }
}

impl Read for SlowConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = self.limit.map(|limit| Instant::now() + limit);
        loop {
            let mut broken = self.gate.broken.lock();
            let mut room = self.room().min(buffer.len());
            if *broken {
                return Ok(0);
            }
            let take = |left: u64| {
                room = room.min(left as usize);
                Some(left - room as u64)
            };
            let _ = self.allowance.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
            if room > 0 {
                drop(broken);
                let result = self.inner.read(&mut buffer[..room]);
                let n = *result.as_ref().unwrap_or(&0);
                self.took(n);
                self.allowance.fetch_add((room - n) as u64, Ordering::SeqCst);
                return result;
            }
            if self.nonblocking || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.gate.changed.wait_for(&mut broken, Duration::from_millis(2));
        }
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read(&mut buffers[0])
    }
}

impl Write for SlowConnection {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.inner.write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.inner.write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl Connection for SlowConnection {
    fn readiness(&self, interest: Interest) -> Readiness<'_> {
        if self.taken >= self.most() { self.never.readiness() } else { self.inner.readiness(interest) }
    }

    fn peer_closed(&self) -> bool {
        self.inner.peer_closed()
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.limit = Some(limit);
        self.inner.set_time_limit(limit)
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.nonblocking = on;
        self.inner.set_nonblocking(on)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.finished = true;
        self.inner.finish()
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.inner.reset_on_drop()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let (gate, inner) = (Arc::downgrade(&self.gate), self.inner.breaker()?);
        Ok(Breaker::new(move || {
            inner.break_off();
            if let Some(gate) = gate.upgrade() {
                *gate.broken.lock() = true;
                gate.changed.notify_all();
            }
        }))
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        self.inner.peer_addr()
    }

    fn handle(&self) -> Arc<dyn ConnectionHandle> {
        self.inner.handle()
    }
}

impl Drop for SlowConnection {
    fn drop(&mut self) {
        if self.finished && self.inner.peer_closed() {
            self.parted.lock().insert(self.file);
        }
    }
}

/// The end that makes the connections.
#[derive(Clone, Copy)]
enum Connects {
    Sender,
    /// See [`SlowDriver::late`].
    Receiver {
        late: Duration,
    },
}

/// A sender and a receiver with four streams. Some of the connections stall, and together they let
/// so many bytes through.
fn channels(stalls: fn(u64) -> bool, most: u64, connects: Connects) -> (DataChannel, DataChannel, Allowance) {
    channels_with(stalls, most, connects, None)
}

fn channels_with(
    stalls: fn(u64) -> bool,
    most: u64,
    connects: Connects,
    stalled: Option<Stalls>,
) -> (DataChannel, DataChannel, Allowance) {
    let net: Net = Arc::new(Memory::default());
    let tuning = Tuning { send_buffer: Some(32_768), receive_buffer: Some(32_768), ..Tuning::default() };
    // Another address: connections within a host are not measured.
    let options = Options { tuning, bind: Some(Ipv4Addr::new(127, 0, 0, 2).into()), ..Options::default() };
    let settings = ChannelSettings { block_size: 64 << 10, options, ..settings(Mode::ExtendedBlock, 4) };
    let listener = net.listen((Ipv4Addr::LOCALHOST, 0).into(), &settings.options).unwrap();
    let address = vec![listener.local_addr().unwrap()];
    let allowance = Arc::new(AtomicU64::new(most));
    let slow = Slow {
        asked: AtomicU64::new(0),
        stalls,
        allowance: Arc::clone(&allowance),
        stalled,
        parted: Arc::default(),
    };
    let (pool, budget) = (pool(), budget());
    let passive =
        |listener| DataChannel::passive(listener, settings.clone(), Arc::clone(&pool), Arc::clone(&budget));
    let active = |driver: Net| {
        DataChannel::active(driver, address, settings.clone(), Arc::clone(&pool), Arc::clone(&budget))
    };
    let (sender, mut receiver) = if let Connects::Receiver { late } = connects {
        (passive(listener), active(Arc::new(SlowDriver { inner: net, slow, late })))
    } else {
        (active(net), passive(Box::new(SlowListener { inner: listener, slow })))
    };
    receiver.set_resend(true);
    (sender, receiver, allowance)
}

/// Sends files one after the other, as a client does that does not wait for the end of one before
/// it asks for the next. One of the four connections of each file stalls.
fn send_files_that_follow_one_another(connects: Connects) {
    let (mut sender, mut receiver, _) =
        channels_with(|made| made % 4 == 1, u64::MAX, connects, Some(Arc::default()));
    let files: Vec<Vec<u8>> =
        (0..4).map(|n| data(8 << 20).into_iter().map(|byte| byte ^ n).collect()).collect();
    let sources: Vec<_> = files.iter().map(|contents| TestFile::new(contents, true)).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            for source in &sources {
                let job = SendJob { resend: true, ..send_job(source) };
                sender.send(&job, &mut Nobody, &Progress::new()).unwrap();
            }
        });
        for contents in &files {
            let sink = TestFile::new(b"", true);
            let received = receiver.receive(&receive_job(&sink), &mut Nobody, &Progress::new()).unwrap();
            assert_eq!(received.bytes, contents.len() as u64);
            assert!(sink.contents() == *contents);
        }
    });
}

#[test]
fn files_that_follow_one_another_stay_apart() {
    send_files_that_follow_one_another(Connects::Sender);
}

#[test]
fn files_that_follow_one_another_from_a_listening_sender_stay_apart() {
    send_files_that_follow_one_another(Connects::Receiver { late: Duration::ZERO });
}

#[test]
fn late_connections_belong_to_the_file_for_which_they_were_made() {
    send_files_that_follow_one_another(Connects::Receiver { late: Duration::from_secs(15) });
}

#[test]
fn transfer_with_stalled_stream_ends_without_it() {
    let (mut sender, mut receiver, _) = channels(|made| made == 0, u64::MAX, Connects::Sender);
    let contents = data(SIZE);
    let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
    let reported = Mutex::new(RangeSet::new());
    let written = |range: std::ops::Range<u64>, _| {
        let mut reported = reported.lock();
        assert!(reported.intersection(range.clone()).is_empty(), "{range:?} is reported twice");
        reported.insert(range);
        Ok(())
    };
    let algorithm = Some(Algorithm::Crc32c);
    let sending = SendJob { resend: true, checksum: algorithm, ..send_job(&source) };
    let receiving = ReceiveJob { written: &written, checksum: algorithm, ..receive_job(&sink) };
    let (from, to) = (Progress::new(), Progress::new());
    let (sent, received) = thread::scope(|scope| {
        let sent = scope.spawn(|| sender.send(&sending, &mut Nobody, &from));
        let received = receiver.receive(&receiving, &mut Nobody, &to);
        (sent.join().unwrap().unwrap(), received.unwrap())
    });
    let all = RangeSet::from_range(0..SIZE as u64);
    assert!(sink.contents() == contents);
    assert_eq!((sent.bytes, received.bytes), (SIZE as u64, SIZE as u64));
    assert_eq!((from.bytes(), to.bytes()), (SIZE as u64, SIZE as u64));
    assert_eq!(
        (received.ranges, to.received(), reported.into_inner()),
        (all.clone(), all.clone(), all.clone())
    );
    let sum = Some(sum_of(Algorithm::Crc32c, &contents));
    assert_eq!(sent.pieces.unwrap().total_of(&all), sum);
    assert_eq!(received.pieces.unwrap().total_of(&all), sum);
    assert_eq!((sender.cached(), receiver.cached()), (0, 0));
    // The next file takes new connections.
    roundtrip(&mut sender, &mut receiver, &contents[..SIZE / 4], true);
    assert_eq!((sender.cached(), receiver.cached()), (4, 4));
}

#[test]
fn ordered_receiver_with_stalled_stream_gets_each_byte_once() {
    let (mut sender, mut receiver, _) = channels(|made| made == 0, u64::MAX, Connects::Sender);
    let contents = data(SIZE);
    let source = TestFile::new(&contents, false);
    let sending = SendJob { resend: true, ..send_job(&source) };
    let mut taken = Vec::new();
    let (sent, received) = thread::scope(|scope| {
        let sent = scope.spawn(|| sender.send(&sending, &mut Nobody, &Progress::new()));
        let received = receiver.receive_writer(&mut taken, &mut Nobody, &Progress::new());
        (sent.join().unwrap().unwrap(), received.unwrap())
    });
    assert!(taken == contents);
    assert_eq!((sent.bytes, received.bytes), (SIZE as u64, SIZE as u64));
    assert_eq!((sender.cached(), receiver.cached()), (0, 0));
}

#[test]
fn receiver_that_ends_before_all_copies_have_come_fails() {
    // More is still missing by then of the bytes that the stalled stream was given.
    let (mut sender, mut receiver, allowance) =
        channels(|made| made == 0, (SIZE - (60 << 10)) as u64, Connects::Sender);
    let source = TestFile::new(&data(SIZE), true);
    let sink = TestFile::new(b"", true);
    let sending = SendJob { resend: true, ..send_job(&source) };
    let breaker = receiver.breaker();
    let progress = Progress::new();
    let received = thread::scope(|scope| {
        // The sender may have written all: only the receiver knows that some did not arrive.
        scope.spawn(|| drop(sender.send(&sending, &mut Nobody, &Progress::new())));
        scope.spawn(|| {
            let began = Instant::now();
            while allowance.load(Ordering::SeqCst) > 0 && began.elapsed() < PATIENCE {
                thread::yield_now();
            }
            breaker.break_off();
        });
        receiver.receive(&receive_job(&sink), &mut Nobody, &progress)
    });
    assert!(matches!(received, Err(Error::Aborted)), "{received:?}");
    assert!(progress.received().len() < SIZE as u64);
}
