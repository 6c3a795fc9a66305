//! Receiving into a store that keeps nothing.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::common::*;
use ropewalk_engine::{Error, ReceiveJob, SendJob};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_storage::{Lock, Metadata, Positions, Result, WriteHandle};

over_every_driver! {
    more_than_was_asked_for_is_told_all_the_same,
}

/// Like /dev/null; counts the bytes that it is given nevertheless.
struct Nothing(Arc<TestFile>, AtomicUsize);

impl Lock for Nothing {}

impl WriteHandle for Nothing {
    fn metadata(&self) -> Result<Metadata> {
        WriteHandle::metadata(&*self.0)
    }

    fn write_at(&self, data: &[u8], _offset: u64) -> Result<()> {
        self.1.fetch_add(data.len(), Ordering::Relaxed);
        Ok(())
    }

    fn positions(&self) -> Positions {
        Positions::Ignored
    }

    fn discards(&self) -> bool {
        true
    }

    fn set_len(&self, _length: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

const SIZE: usize = 8_000_001;

#[test]
fn what_nobody_keeps_is_counted_and_not_read() {
    let contents = data(SIZE);
    let source = TestFile::new(&contents, true);
    let file = TestFile::new(b"", false);
    for (mode, streams) in [(Mode::Stream, 1), (Mode::ExtendedBlock, 1), (Mode::ExtendedBlock, 4)] {
        for checksum in [None, Some(Algorithm::Crc32c)] {
            let (mut sender, mut receiver) = channels(&tcp(), mode, streams);
            let sink = Arc::new(Nothing(Arc::clone(&file), AtomicUsize::new(0)));
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
            let received = received.unwrap();
            let all = RangeSet::from_range(0..SIZE as u64);
            assert_eq!(received.bytes, SIZE as u64);
            assert_eq!((&received.ranges, &told.into_inner()), (&all, &all));
            let given = sink.1.load(Ordering::Relaxed);
            match checksum {
                // These bytes came together with a header.
                None => assert!(given < SIZE / 4, "{mode:?}, {streams}: {given} bytes were read"),
                Some(algorithm) => {
                    assert_eq!(given, SIZE);
                    let sum = received.pieces.unwrap().total(0..SIZE as u64);
                    assert_eq!(sum, Some(sum_of(algorithm, &contents)));
                }
            }
        }
    }
}

fn more_than_was_asked_for_is_told_all_the_same(net: &Net) {
    let source = TestFile::new(&data(SIZE), true);
    let file = TestFile::new(b"", false);
    let (mut sender, mut receiver) = channels(net, Mode::Stream, 1);
    let sink = Arc::new(Nothing(Arc::clone(&file), AtomicUsize::new(0)));
    let accept = RangeSet::from_range(0..SIZE as u64 - 1);
    let receiving = ReceiveJob { sink, accept, ..receive_job(&file) };
    let (_, received) = transfer(&mut sender, &send_job(&source), &mut receiver, &receiving);
    assert!(matches!(received.unwrap_err(), Error::TooMuch { .. }));
}
