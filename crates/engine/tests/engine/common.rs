//! Two ends of a data channel in one process, and handles whose fast paths can be turned off.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_engine::{
    Attendant, BufferBudget, ChannelSettings, DataChannel, Error, Nobody, Pool, Progress, ReceiveJob,
    Received, SendJob, Sent,
};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{DiskFile, Kind, Lock, Metadata, ReadHandle, WriteHandle};
use ropewalk_transport::testing::Memory;
use ropewalk_transport::{Driver, Endpoint, Listener, Options, Tcp};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn settings(mode: Mode, parallelism: u32) -> ChannelSettings {
    ChannelSettings {
        bandwidth: None,
        granted: None,
        mode,
        representation: RepresentationType::Image,
        parallelism,
        block_size: 256 << 10,
        options: Options::default(),
        connect_timeout: PATIENCE,
        stall_timeout: Some(PATIENCE),
        max_streams: 300,
        only_from: None,
    }
}

/// The driver that a test runs on.
pub(crate) type Net = Arc<dyn Driver>;

pub(crate) fn tcp() -> Net {
    Arc::new(Tcp)
}

pub(crate) fn memory() -> Net {
    Arc::new(Memory::default())
}

/// Runs each of these tests over TCP, and over the memory of the process.
macro_rules! over_every_driver {
    ($($test:ident),* $(,)?) => {
        mod over_tcp {
            $(#[test]
            fn $test() {
                super::$test(&crate::common::tcp());
            })*
        }

        mod over_memory {
            $(#[test]
            fn $test() {
                super::$test(&crate::common::memory());
            })*
        }
    };
}

pub(crate) fn listen(net: &Net) -> (Box<dyn Listener>, SocketAddr) {
    let listener = net.listen((Ipv4Addr::LOCALHOST, 0).into(), &Options::default()).unwrap();
    let address = listener.local_addr().unwrap().socket().unwrap();
    (listener, address)
}

pub(crate) fn pool() -> Arc<Pool> {
    Arc::new(Pool::new("test", 600))
}

pub(crate) fn budget() -> Arc<BufferBudget> {
    BufferBudget::new(64 << 20)
}

/// A sending and a receiving channel, the latter listening.
pub(crate) fn channels(net: &Net, mode: Mode, parallelism: u32) -> (DataChannel, DataChannel) {
    channels_with(net, settings(mode, parallelism), settings(mode, parallelism), false)
}

/// `sender_listens`: the other way round.
pub(crate) fn channels_with(
    net: &Net,
    sending: ChannelSettings,
    receiving: ChannelSettings,
    sender_listens: bool,
) -> (DataChannel, DataChannel) {
    // An endpoint that is no internet address does as well.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("channel {}", NEXT.fetch_add(1, Ordering::Relaxed));
    let opaque = net.listen(Endpoint::Opaque(name.into_bytes().into()), &receiving.options);
    let listener = opaque.or_else(|_| net.listen((Ipv4Addr::LOCALHOST, 0).into(), &receiving.options));
    let listener = listener.unwrap();
    let endpoint = listener.local_addr().unwrap();
    let (pool, budget) = (pool(), budget());
    let (passive, active) = if sender_listens { (sending, receiving) } else { (receiving, sending) };
    let passive = DataChannel::passive(listener, passive, Arc::clone(&pool), Arc::clone(&budget));
    let active = DataChannel::active(Arc::clone(net), vec![endpoint], active, pool, budget);
    if sender_listens { (passive, active) } else { (active, passive) }
}

pub(crate) fn data(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut data = vec![0; length];
    for chunk in data.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bytes = (state >> 8).to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    data
}

/// A file of a test: with a descriptor for `sendfile` and `splice`, or without.
pub(crate) struct TestFile {
    pub(crate) file: File,
    pub(crate) plain: bool,
}

impl TestFile {
    pub(crate) fn new(contents: &[u8], plain: bool) -> Arc<Self> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(contents, 0).unwrap();
        Arc::new(Self { file, plain })
    }

    pub(crate) fn contents(&self) -> Vec<u8> {
        let mut contents = vec![0; self.file.metadata().unwrap().len() as usize];
        self.file.read_exact_at(&mut contents, 0).unwrap();
        contents
    }

    fn meta(&self) -> Metadata {
        Metadata {
            kind: Kind::File,
            size: self.file.metadata().unwrap().len(),
            modified: (0, 0),
            changed: (0, 0),
            mode: 0o644,
            uid: 0,
            gid: 0,
            device: 0,
            inode: 0,
            links: 1,
            blocks: 0,
            target: None,
            readable: true,
            writable: true,
            searchable: false,
        }
    }

    fn error(e: &io::Error) -> ropewalk_storage::Error {
        ropewalk_storage::Error::from_io(e, "test", "file")
    }
}

impl Lock for TestFile {}

impl ReadHandle for TestFile {
    fn metadata(&self) -> ropewalk_storage::Result<Metadata> {
        Ok(self.meta())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> ropewalk_storage::Result<usize> {
        self.file.read_at(buffer, offset).map_err(|e| Self::error(&e))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.plain.then(|| self.file.as_fd())
    }

    fn data_ranges(&self, start: u64, end: u64) -> ropewalk_storage::Result<RangeSet> {
        Ok(RangeSet::from_range(start..end))
    }
}

impl DiskFile for TestFile {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.plain.then(|| self.file.as_fd())
    }
}

impl WriteHandle for TestFile {
    fn metadata(&self) -> ropewalk_storage::Result<Metadata> {
        Ok(self.meta())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> ropewalk_storage::Result<()> {
        self.file.write_all_at(data, offset).map_err(|e| Self::error(&e))
    }

    fn disk(&self) -> Option<&dyn DiskFile> {
        Some(self)
    }

    fn set_len(&self, length: u64) -> ropewalk_storage::Result<()> {
        self.file.set_len(length).map_err(|e| Self::error(&e))
    }

    fn sync(&self) -> ropewalk_storage::Result<()> {
        Ok(())
    }
}

pub(crate) fn send_job(source: &Arc<TestFile>) -> SendJob {
    let size = source.file.metadata().unwrap().len();
    SendJob {
        source: Arc::clone(source) as Arc<dyn ReadHandle>,
        ranges: RangeSet::from_range(0..size),
        origin: 0,
        checksum: None,
        expected_size: Some(size),
        resend: false,
        feed: None,
    }
}

pub(crate) fn nothing_written(_: Range<u64>, _: Option<u32>) -> ropewalk_storage::Result<()> {
    Ok(())
}

pub(crate) fn receive_job(sink: &Arc<TestFile>) -> ReceiveJob<'static> {
    ReceiveJob {
        sink: Arc::clone(sink) as Arc<dyn WriteHandle>,
        origin: 0,
        accept: RangeSet::from_range(0..u64::MAX),
        checksum: None,
        sparse: false,
        written: &nothing_written,
    }
}

/// Runs both ends at once.
pub(crate) fn transfer(
    sender: &mut DataChannel,
    sending: &SendJob,
    receiver: &mut DataChannel,
    receiving: &ReceiveJob<'_>,
) -> (Result<Sent, Error>, Result<Received, Error>) {
    thread::scope(|scope| {
        let sent = scope.spawn(|| sender.send(sending, &mut Nobody, &Progress::new()));
        let received = receiver.receive(receiving, &mut Nobody, &Progress::new());
        (sent.join().unwrap(), received)
    })
}

/// Sends `contents` to a fresh file and checks what arrived.
pub(crate) fn roundtrip(
    sender: &mut DataChannel,
    receiver: &mut DataChannel,
    contents: &[u8],
    plain: bool,
) -> (Sent, Received) {
    let (source, sink) = (TestFile::new(contents, plain), TestFile::new(b"", plain));
    let (sent, received) = transfer(sender, &send_job(&source), receiver, &receive_job(&sink));
    let (sent, received) = (sent.unwrap(), received.unwrap());
    assert_eq!(sent.bytes, contents.len() as u64);
    assert_eq!(received.bytes, contents.len() as u64);
    assert_eq!(received.ranges, RangeSet::from_range(0..contents.len() as u64));
    assert!(sink.contents() == contents);
    (sent, received)
}

pub(crate) fn sum_of(algorithm: Algorithm, data: &[u8]) -> String {
    format!("{:08x}", ropewalk_storage::checksum::block_sum(algorithm, data))
}

/// Aborts the transfer at a given time or byte, and counts its calls.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) begun: Mutex<Vec<bool>>,
    pub(crate) ticks: AtomicU64,
    pub(crate) last: Mutex<Option<Instant>>,
    pub(crate) longest: Mutex<Duration>,
    /// Break off at the next tick.
    pub(crate) stop: AtomicBool,
    /// Break off at the first tick at which so many bytes have moved.
    pub(crate) stop_at: Option<u64>,
}

impl Attendant for &Script {
    fn begun(&mut self, reused: bool) -> io::Result<()> {
        self.begun.lock().push(reused);
        *self.last.lock() = Some(Instant::now());
        Ok(())
    }

    fn tick(&mut self, progress: &Progress) -> ControlFlow<()> {
        self.ticks.fetch_add(1, Ordering::SeqCst);
        let now = Instant::now();
        if let Some(last) = self.last.lock().replace(now) {
            let mut longest = self.longest.lock();
            *longest = longest.max(now - last);
        }
        if self.stop.load(Ordering::SeqCst) || self.stop_at.is_some_and(|n| progress.bytes() >= n) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}
