//! Senders that send the last blocks of a stalled stream again on others.

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
    Breaker, Connection, ConnectionHandle, Endpoint, Interest, Listener, Options, Readiness, Signal, Tuning,
};

use crate::common::*;

const SIZE: usize = 16 << 20;
/// Bytes per second that a connection lets through.
const RATE: f64 = 8e6;
/// The stalled connection lets through so many bytes.
const STALLS_AFTER: u64 = 1 << 20;

/// The bytes that all connections of a listener may still let through.
type Allowance = Arc<AtomicU64>;

/// A listener whose connections are slow to read, and whose first ones stall.
struct Slow {
    inner: Box<dyn Listener>,
    accepted: AtomicU64,
    stalled: u64,
    allowance: Allowance,
}

impl Listener for Slow {
    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner.local_addr()
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        let Some(inner) = self.inner.accept(deadline)? else { return Ok(None) };
        let stalls = self.accepted.fetch_add(1, Ordering::Relaxed) < self.stalled;
        Ok(Some(Box::new(SlowConnection {
            inner,
            gate: Arc::default(),
            began: Instant::now(),
            taken: 0,
            most: if stalls { STALLS_AFTER } else { u64::MAX },
            never: Signal::new()?,
            limit: None,
            nonblocking: true,
            allowance: Arc::clone(&self.allowance),
        })))
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
    never: Signal,
    limit: Option<Duration>,
    nonblocking: bool,
    allowance: Allowance,
}

impl SlowConnection {
    /// How many bytes may be read now.
    fn room(&self) -> usize {
        let earned = (self.began.elapsed().as_secs_f64() * RATE) as u64;
        (earned.min(self.most) - self.taken) as usize
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
                self.taken += n as u64;
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
        if self.taken == self.most { self.never.readiness() } else { self.inner.readiness(interest) }
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

/// A sender and a receiver with four streams, of which so many stall, and which get so many bytes
/// through.
fn channels(stalled: u64, most: u64) -> (DataChannel, DataChannel, Allowance) {
    let net: Net = Arc::new(Memory::default());
    let tuning = Tuning { send_buffer: Some(32_768), receive_buffer: Some(32_768), ..Tuning::default() };
    // Another address: connections within a host are not measured.
    let options = Options { tuning, bind: Some(Ipv4Addr::new(127, 0, 0, 2).into()), ..Options::default() };
    let settings = ChannelSettings { block_size: 64 << 10, options, ..settings(Mode::ExtendedBlock, 4) };
    let inner = net.listen((Ipv4Addr::LOCALHOST, 0).into(), &settings.options).unwrap();
    let address = inner.local_addr().unwrap();
    let allowance = Arc::new(AtomicU64::new(most));
    let listener = Slow { inner, accepted: AtomicU64::new(0), stalled, allowance: Arc::clone(&allowance) };
    let (pool, budget) = (pool(), budget());
    let mut receiver =
        DataChannel::passive(Box::new(listener), settings.clone(), Arc::clone(&pool), Arc::clone(&budget));
    receiver.set_resend(true);
    let sender = DataChannel::active(net, vec![address], settings, pool, budget);
    (sender, receiver, allowance)
}

#[test]
fn transfer_with_stalled_stream_ends_without_it() {
    let (mut sender, mut receiver, _) = channels(1, u64::MAX);
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
    let (mut sender, mut receiver, _) = channels(1, u64::MAX);
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
    let (mut sender, mut receiver, allowance) = channels(1, (SIZE - (60 << 10)) as u64);
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
