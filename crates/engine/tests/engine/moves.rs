//! Whole transfers between two engines.

use std::io::Read;
use std::net::TcpStream;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::thread;

use crate::common::*;
use parking_lot::Mutex;
use proptest::prelude::*;
use ropewalk_engine::{DataChannel, Error, Feed, Nobody, Progress, ReceiveJob, SendJob, Stage};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{DiskFile, Lock, Metadata, WriteHandle};

over_every_driver! {
    every_way_and_size,
    checksums_of_what_passes,
    what_is_best_written_at_a_time_may_change_on_the_way,
    no_pieces_for_checksums_that_do_not_combine,
    zeros_are_left_out_where_holes_will_do,
    one_set_of_connections_serves_many_files,
    a_sender_may_be_many_files_ahead,
    attendants_hear_whether_connections_are_reused,
    ranges_and_origins,
    ranges_that_come_while_a_file_is_sent_arrive_in_any_order,
    a_stream_fills_the_ranges_in_order,
    a_range_before_the_origin_is_refused_before_anything_moves,
    the_receiver_may_be_the_one_that_connects,
    small_files_need_one_connection_only_and_large_ones_get_more_later,
    connections_come_and_go_with_the_parallelism,
    readers_and_writers,
    a_writer_gets_the_blocks_of_many_streams_in_order,
    progress_adds_up,
}

const MODES: [(Mode, u32); 5] = [
    (Mode::Stream, 1),
    (Mode::ExtendedBlock, 1),
    (Mode::ExtendedBlock, 2),
    (Mode::ExtendedBlock, 4),
    (Mode::ExtendedBlock, 16),
];

fn every_way_and_size(net: &Net) {
    for (mode, streams) in MODES {
        for plain in [true, false] {
            for size in [0, 1, 17, 65_535, 65_536, 65_537, 262_144, 1_000_003, 5_000_000] {
                let (mut sender, mut receiver) = channels(net, mode, streams);
                roundtrip(&mut sender, &mut receiver, &data(size), plain);
            }
        }
    }
}

fn checksums_of_what_passes(net: &Net) {
    let contents = data(3_000_001);
    for (mode, streams) in MODES {
        for algorithm in [Algorithm::Crc32c, Algorithm::Adler32] {
            let (mut sender, mut receiver) = channels(net, mode, streams);
            let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
            let told = Mutex::new(RangeSet::new());
            let written = |range: Range<u64>, sum: Option<u32>| {
                assert!(sum.is_some());
                told.lock().insert(range);
                Ok(())
            };
            let sending = SendJob { checksum: Some(algorithm), ..send_job(&source) };
            let receiving = ReceiveJob { checksum: Some(algorithm), written: &written, ..receive_job(&sink) };
            let (sent, received) = transfer(&mut sender, &sending, &mut receiver, &receiving);
            let expected = Some(sum_of(algorithm, &contents));
            assert_eq!(sent.unwrap().pieces.unwrap().total(0..3_000_001), expected);
            assert_eq!(received.unwrap().pieces.unwrap().total(0..3_000_001), expected);
            assert!(sink.contents() == contents);
            assert_eq!(told.into_inner(), RangeSet::from_range(0..3_000_001));
        }
    }
}

/// A store in which whole MiB are best written at a time now and then: a disk that direct writes
/// are tried on.
struct Turning {
    file: Arc<TestFile>,
    /// Bytes of each write.
    writes: Mutex<Vec<usize>>,
}

impl Lock for Turning {}

impl DiskFile for Turning {
    fn chunk(&self) -> Option<usize> {
        (self.writes.lock().len() % 8 >= 4).then_some(1 << 20)
    }
}

impl WriteHandle for Turning {
    fn metadata(&self) -> ropewalk_storage::Result<Metadata> {
        WriteHandle::metadata(&*self.file)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> ropewalk_storage::Result<()> {
        self.writes.lock().push(data.len());
        self.file.write_at(data, offset)
    }

    fn disk(&self) -> Option<&dyn DiskFile> {
        Some(self)
    }

    fn set_len(&self, length: u64) -> ropewalk_storage::Result<()> {
        self.file.set_len(length)
    }

    fn sync(&self) -> ropewalk_storage::Result<()> {
        self.file.sync()
    }
}

fn what_is_best_written_at_a_time_may_change_on_the_way(net: &Net) {
    let contents = data(24_000_001);
    for (mode, streams) in MODES {
        for checksum in [None, Some(Algorithm::Crc32c)] {
            let (mut sender, mut receiver) = channels(net, mode, streams);
            let (source, file) = (TestFile::new(&contents, true), TestFile::new(b"", false));
            let sink = Arc::new(Turning { file: Arc::clone(&file), writes: Mutex::default() });
            let told = Mutex::new(RangeSet::new());
            let written = |range: Range<u64>, _: Option<u32>| {
                told.lock().insert(range);
                Ok(())
            };
            let sending = SendJob { checksum, ..send_job(&source) };
            let store = Arc::clone(&sink) as Arc<dyn WriteHandle>;
            let receiving = ReceiveJob { sink: store, checksum, written: &written, ..receive_job(&file) };
            let (sent, received) = transfer(&mut sender, &sending, &mut receiver, &receiving);
            sent.unwrap();
            let pieces = received.unwrap().pieces;
            let expected = checksum.map(|algorithm| sum_of(algorithm, &contents));
            assert_eq!(pieces.and_then(|pieces| pieces.total(0..24_000_001)), expected);
            assert!(file.contents() == contents, "{mode:?} {streams}");
            assert_eq!(told.into_inner(), RangeSet::from_range(0..24_000_001));
            // In MODE E pieces end with blocks.
            if mode == Mode::Stream {
                let writes = sink.writes.lock();
                assert!(writes.contains(&(1 << 20)) && writes.contains(&(256 << 10)), "{writes:?}");
            }
        }
    }
}

fn no_pieces_for_checksums_that_do_not_combine(net: &Net) {
    let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, 2);
    let (source, sink) = (TestFile::new(&data(1000), true), TestFile::new(b"", true));
    let sending = SendJob { checksum: Some(Algorithm::Sha256), ..send_job(&source) };
    let receiving = ReceiveJob { checksum: Some(Algorithm::Sha256), ..receive_job(&sink) };
    let (sent, received) = transfer(&mut sender, &sending, &mut receiver, &receiving);
    assert!(sent.unwrap().pieces.is_none());
    assert!(received.unwrap().pieces.is_none());
}

fn zeros_are_left_out_where_holes_will_do(net: &Net) {
    let mut contents = vec![0; 6 << 20];
    contents[0] = 1;
    contents[(2 << 20) - 1] = 2;
    contents[5_000_000..5_000_100].fill(7);
    for (mode, streams) in MODES {
        let (mut sender, mut receiver) = channels(net, mode, streams);
        let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
        let receiving = ReceiveJob { sparse: true, ..receive_job(&sink) };
        let (_, received) = transfer(&mut sender, &send_job(&source), &mut receiver, &receiving);
        assert_eq!(received.unwrap().bytes, contents.len() as u64);
        sink.file.set_len(contents.len() as u64).unwrap();
        assert!(sink.contents() == contents);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&sink.file.metadata().unwrap());
        assert!(blocks * 512 < 64 << 10, "{blocks} blocks in use");
    }
}

fn one_set_of_connections_serves_many_files(net: &Net) {
    for streams in [1, 3] {
        let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, streams);
        let mut made = 0;
        for (n, size) in [4_000_000, 10, 0, 3_000_000, 65_000, 1, 2_000_000].into_iter().enumerate() {
            let (sent, received) = roundtrip(&mut sender, &mut receiver, &data(size), n % 2 == 0);
            assert_eq!(sent.streams, received.streams);
            assert_eq!(sender.cached(), receiver.cached());
            made = made.max(sender.cached());
            assert_eq!(sender.cached(), made);
        }
        assert_eq!(made, streams as usize);
    }
}

fn a_sender_may_be_many_files_ahead(net: &Net) {
    let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, 1);
    let files: Vec<Vec<u8>> = (0..200).map(|n| data(n * 37 % 3000)).collect();
    let (first, later) = files.split_first().unwrap();
    roundtrip(&mut sender, &mut receiver, first, false);
    // All fit in the socket's buffers.
    for contents in later {
        let job = send_job(&TestFile::new(contents, false));
        sender.send(&job, &mut Nobody, &Progress::new()).unwrap();
    }
    for contents in later {
        let sink = TestFile::new(b"", true);
        let progress = Progress::new();
        let received = receiver.receive(&receive_job(&sink), &mut Nobody, &progress).unwrap();
        assert_eq!(received.bytes, contents.len() as u64);
        assert_eq!(progress.bytes(), received.bytes);
        assert!(sink.contents() == *contents);
    }
}

fn attendants_hear_whether_connections_are_reused(net: &Net) {
    let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, 2);
    let (sending, receiving) = (Script::default(), Script::default());
    for _ in 0..2 {
        let (source, sink) = (TestFile::new(&data(1000), true), TestFile::new(b"", true));
        thread::scope(|scope| {
            scope.spawn(|| sender.send(&send_job(&source), &mut &sending, &Progress::new()).unwrap());
            receiver.receive(&receive_job(&sink), &mut &receiving, &Progress::new()).unwrap();
        });
    }
    assert_eq!(*sending.begun.lock(), [false, true]);
    assert_eq!(*receiving.begun.lock(), [false, true]);
}

fn ranges_and_origins(net: &Net) {
    let contents = data(2_000_000);
    let wanted: RangeSet = [100_000..100_001, 500_000..1_200_000, 1_999_000..2_000_000].into_iter().collect();
    for streams in [1, 4] {
        let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, streams);
        let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
        let sending = SendJob { ranges: wanted.clone(), origin: 100_000, ..send_job(&source) };
        let receiving = ReceiveJob {
            origin: 7,
            accept: wanted.shift_down(100_000).shift_up(7).unwrap(),
            ..receive_job(&sink)
        };
        let (sent, received) = transfer(&mut sender, &sending, &mut receiver, &receiving);
        assert_eq!(sent.unwrap().bytes, wanted.len());
        let received = received.unwrap();
        assert_eq!(received.ranges, wanted.shift_down(100_000).shift_up(7).unwrap());
        let arrived = sink.contents();
        for range in wanted.iter() {
            let (from, to) = (range.start as usize, range.end as usize);
            assert!(arrived[from - 99_993..to - 99_993] == contents[from..to]);
        }
    }
}

fn ranges_that_come_while_a_file_is_sent_arrive_in_any_order(net: &Net) {
    let contents = data(6_000_001);
    for streams in [1, 4] {
        let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, streams);
        let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
        // Two files over the same connections; the second has no bytes.
        for ranges in [vec![4_000_000..6_000_001, 0..1, 1..4_000_000], Vec::new()] {
            let feed = Arc::new(Feed::default());
            let sending = SendJob { ranges: RangeSet::new(), feed: Some(feed.clone()), ..send_job(&source) };
            let receiving = receive_job(&sink);
            let (sent, received) = thread::scope(|scope| {
                let all = ranges.iter().cloned().collect::<RangeSet>();
                let feeding = scope.spawn(|| {
                    for range in ranges {
                        feed.add(range);
                        thread::yield_now();
                    }
                    feed.end();
                });
                let results = transfer(&mut sender, &sending, &mut receiver, &receiving);
                feeding.join().unwrap();
                assert_eq!(results.1.as_ref().unwrap().ranges, all);
                results
            });
            assert_eq!(sent.unwrap().bytes, received.unwrap().bytes);
        }
        assert!(sink.contents() == contents, "{streams} streams");
    }
}

fn a_stream_fills_the_ranges_in_order(net: &Net) {
    let contents = data(1_000_000);
    let (mut sender, mut receiver) = channels(net, Mode::Stream, 1);
    let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
    let sending = SendJob { ranges: [0..10, 300_000..1_000_000].into_iter().collect(), ..send_job(&source) };
    let receiving =
        ReceiveJob { accept: [5..15, 2_000..u64::MAX].into_iter().collect(), ..receive_job(&sink) };
    let (sent, received) = transfer(&mut sender, &sending, &mut receiver, &receiving);
    assert_eq!(sent.unwrap().bytes, 700_010);
    assert_eq!(received.unwrap().ranges, [5..15, 2_000..702_000].into_iter().collect());
    let arrived = sink.contents();
    assert!(arrived[5..15] == contents[..10]);
    assert!(arrived[2_000..] == contents[300_000..]);
}

fn a_range_before_the_origin_is_refused_before_anything_moves(net: &Net) {
    let (mut sender, _receiver) = channels(net, Mode::ExtendedBlock, 1);
    let source = TestFile::new(&data(1000), true);
    let job = SendJob { origin: 10, ..send_job(&source) };
    let error = sender.send(&job, &mut Nobody, &Progress::new()).unwrap_err();
    assert!(matches!(error, Error::Send(_)), "{error}");
}

fn the_receiver_may_be_the_one_that_connects(net: &Net) {
    for (mode, streams) in MODES {
        let (mut sender, mut receiver) =
            channels_with(net, settings(mode, streams), settings(mode, streams), true);
        let (sent, received) = roundtrip(&mut sender, &mut receiver, &data(3_000_000), true);
        assert_eq!((sent.streams, received.streams), (streams, streams));
        if mode == Mode::ExtendedBlock {
            roundtrip(&mut sender, &mut receiver, &data(100), true);
            roundtrip(&mut sender, &mut receiver, &data(2_000_000), true);
            assert_eq!(receiver.cached(), streams as usize);
        }
    }
}

fn small_files_need_one_connection_only_and_large_ones_get_more_later(net: &Net) {
    let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, 4);
    let (sent, _) = roundtrip(&mut sender, &mut receiver, &data(1000), true);
    assert_eq!(sent.streams, 1);
    // A receiver that may be between two transfers would lose new connections.
    let (sent, _) = roundtrip(&mut sender, &mut receiver, &data(4_000_000), true);
    assert_eq!(sent.streams, 1);
    let (sent, _) = roundtrip(&mut sender, &mut receiver, &data(80_000_000), true);
    assert_eq!(sent.streams, 4);
    assert_eq!(receiver.cached(), 4);
}

/// Has seen the receiver's 125.
struct Ready;

impl ropewalk_engine::Attendant for Ready {
    fn begun(&mut self, _: bool) -> std::io::Result<()> {
        Ok(())
    }

    fn tick(&mut self, _: &Progress) -> std::ops::ControlFlow<()> {
        std::ops::ControlFlow::Continue(())
    }

    fn receiver_ready(&self) -> bool {
        true
    }
}

fn connections_come_and_go_with_the_parallelism(net: &Net) {
    let mut settings = settings(Mode::ExtendedBlock, 1);
    settings.options.tuning.send_buffer = Some(100_000);
    settings.options.tuning.receive_buffer = Some(100_000);
    let (mut sender, mut receiver) = channels_with(net, settings.clone(), settings, false);
    roundtrip(&mut sender, &mut receiver, &data(1000), true);
    for (parallelism, expected) in [(3, 3), (2, 2), (5, 5), (1, 1)] {
        sender.set_parallelism(parallelism);
        let contents = data(6_000_000);
        let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
        let progress = Progress::new();
        thread::scope(|scope| {
            let sent = scope.spawn(|| sender.send(&send_job(&source), &mut Ready, &progress).unwrap());
            // The sockets hold a part of the file: as long as the peer does not read, there is time
            // to connect.
            while progress.streams() < expected && !sent.is_finished() {
                thread::yield_now();
            }
            receiver.receive(&receive_job(&sink), &mut Nobody, &Progress::new()).unwrap();
        });
        assert!(sink.contents() == contents);
        assert_eq!((sender.cached(), receiver.cached()), (expected as usize, expected as usize));
    }
}

#[test]
fn text_is_converted_both_ways() {
    let text = b"one\ntwo\r\n\nthree".repeat(50_000);
    let wire = String::from_utf8(text.clone()).unwrap().replace('\n', "\r\n").into_bytes();
    for (mode, streams) in MODES {
        let mut settings = settings(mode, streams);
        settings.representation = RepresentationType::Ascii;
        let (mut sender, mut receiver) = channels_with(&tcp(), settings.clone(), settings, false);
        roundtrip(&mut sender, &mut receiver, &text, true);
        roundtrip(&mut sender, &mut receiver, b"", true);
    }
    // The bytes as they are sent.
    let (listener, address) = listen(&tcp());
    let mut settings = settings(Mode::Stream, 1);
    settings.representation = RepresentationType::Ascii;
    let mut sender = DataChannel::passive(listener, settings, pool(), budget());
    thread::scope(|scope| {
        let source = TestFile::new(&text, true);
        let sent =
            scope.spawn(move || sender.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap());
        let mut all = Vec::new();
        TcpStream::connect(address).unwrap().read_to_end(&mut all).unwrap();
        assert!(all == wire);
        assert_eq!(sent.join().unwrap().bytes, text.len() as u64);
    });
}

fn readers_and_writers(net: &Net) {
    let contents = data(3_000_000);
    for (mode, streams) in MODES {
        for sender_listens in [false, true] {
            let settings = settings(mode, streams);
            let (mut sender, mut receiver) = channels_with(net, settings.clone(), settings, sender_listens);
            for part in [&contents[..], &contents[..10], b"", &contents[..600_000]] {
                let mut sink = Vec::new();
                thread::scope(|scope| {
                    scope
                        .spawn(|| sender.send_reader(&mut &part[..], &mut Nobody, &Progress::new()).unwrap());
                    receiver.receive_writer(&mut sink, &mut Nobody, &Progress::new()).unwrap();
                });
                assert!(sink == part);
            }
            if mode == Mode::ExtendedBlock {
                roundtrip(&mut sender, &mut receiver, &contents, true);
            }
        }
    }
}

fn a_writer_gets_the_blocks_of_many_streams_in_order(net: &Net) {
    let contents = data(20_000_000);
    for streams in [2, 8] {
        let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, streams);
        for _ in 0..2 {
            let source = TestFile::new(&contents, true);
            let mut sink = Vec::new();
            thread::scope(|scope| {
                scope.spawn(|| sender.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap());
                receiver.receive_writer(&mut sink, &mut Nobody, &Progress::new()).unwrap();
            });
            assert!(sink == contents);
        }
    }
}

fn progress_adds_up(net: &Net) {
    for plain in [true, false] {
        let (mut sender, mut receiver) = channels(net, Mode::ExtendedBlock, 4);
        let contents = data(10_000_000);
        let (source, sink) = (TestFile::new(&contents, plain), TestFile::new(b"", plain));
        let (sending, receiving) = (Progress::new(), Progress::new());
        thread::scope(|scope| {
            scope.spawn(|| sender.send(&send_job(&source), &mut Nobody, &sending).unwrap());
            receiver.receive(&receive_job(&sink), &mut Nobody, &receiving).unwrap();
        });
        assert_eq!((sending.bytes(), receiving.bytes()), (10_000_000, 10_000_000));
        assert_eq!(receiving.received(), RangeSet::from_range(0..10_000_000));
        assert!(receiving.time(ropewalk_engine::Stage::Destination) > std::time::Duration::ZERO);
        assert!(sending.time(ropewalk_engine::Stage::Network) > std::time::Duration::ZERO);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn any_ranges_arrive(
        over_memory: bool,
        cuts in prop::collection::btree_set(0u64..700_000, 0..24),
        streams in 1u32..6,
        block_size in 1000usize..200_000,
        plain: bool,
    ) {
        let net = if over_memory { memory() } else { tcp() };
        let contents = data(700_000);
        let cuts: Vec<u64> = cuts.into_iter().collect();
        let wanted: RangeSet = cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
        let mut settings = settings(Mode::ExtendedBlock, streams);
        settings.block_size = block_size;
        let (mut sender, mut receiver) = channels_with(&net, settings.clone(), settings, false);
        let (source, sink) = (TestFile::new(&contents, plain), TestFile::new(b"", plain));
        let sending = SendJob { ranges: wanted.clone(), ..send_job(&source) };
        let receiving = ReceiveJob { accept: wanted.clone(), ..receive_job(&sink) };
        let (sent, received) = transfer(&mut sender, &sending, &mut receiver, &receiving);
        prop_assert_eq!(sent.unwrap().bytes, wanted.len());
        prop_assert_eq!(received.unwrap().ranges, wanted.clone());
        let arrived = sink.contents();
        for range in wanted.iter() {
            let range = range.start as usize..range.end as usize;
            prop_assert!(arrived[range.clone()] == contents[range]);
        }
    }

    #[test]
    fn holes_change_nothing(
        over_memory: bool,
        runs in prop::collection::vec((any::<bool>(), 1usize..20_000), 0..30),
        offset in 0u64..10_000,
        block_size in 1000usize..100_000,
    ) {
        let net = if over_memory { memory() } else { tcp() };
        let contents: Vec<u8> =
            runs.iter().flat_map(|&(zero, length)| std::iter::repeat_n(if zero { 0 } else { 9 }, length)).collect();
        let size = contents.len() as u64;
        let mut settings = settings(Mode::ExtendedBlock, 2);
        settings.block_size = block_size;
        let (mut sender, mut receiver) = channels_with(&net, settings.clone(), settings, false);
        let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
        let receiving = ReceiveJob { sparse: true, origin: offset, ..receive_job(&sink) };
        let (_, received) = transfer(&mut sender, &send_job(&source), &mut receiver, &receiving);
        prop_assert_eq!(received.unwrap().bytes, size);
        sink.file.set_len(offset + size).unwrap();
        prop_assert!(sink.contents()[offset as usize..] == contents);
    }
}

/// With `sendfile`, reading and sending are one.
#[test]
fn waiting_for_the_disk_is_told_from_the_network() {
    let contents = data(24 << 20);
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 3)] {
        // Not in /tmp, which may be memory.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let source = Arc::new(TestFile { file, plain: true });
        source.file.write_all_at(&contents, 0).unwrap();
        let send = || {
            let (mut sender, mut receiver) = channels(&tcp(), mode, streams);
            let (sink, progress) = (TestFile::new(b"", true), Progress::new());
            thread::scope(|scope| {
                let sending = scope.spawn(|| sender.send(&send_job(&source), &mut Nobody, &progress));
                receiver.receive(&receive_job(&sink), &mut Nobody, &Progress::new()).unwrap();
                sending.join().unwrap().unwrap();
            });
            assert!(sink.contents() == contents);
            progress.time(Stage::Source)
        };
        source.file.sync_all().unwrap();
        rustix::fs::fadvise(&source.file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut byte = [0];
        let slices = &mut [std::io::IoSliceMut::new(&mut byte)];
        let there = rustix::io::preadv2(&source.file, slices, 5 << 20, rustix::io::ReadWriteFlags::NOWAIT);
        if there != Err(rustix::io::Errno::AGAIN) {
            eprintln!("SKIPPED: this file system forgets nothing, or does not say so: {there:?}");
            continue;
        }
        assert!(!send().is_zero(), "it came from the disk");
    }
}
