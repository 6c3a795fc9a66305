//! Writing behind: one stream's writes on a thread of their own, so that the next bytes are opened
//! meanwhile.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_storage::checksum::{Algorithm, block_sum};
use ropewalk_storage::{Error as StoreError, WriteHandle};

use crate::Pool;
use crate::budget::Buffer;
use crate::error::{Error, Result};

/// Buffers that are being written or wait for it; the stream fills one more.
const MOST: usize = 2;
/// Holes are multiples of this, at multiples of it.
const GRANULE: u64 = 4096;

/// How a stream's bytes are stored.
#[derive(Clone)]
pub(crate) struct Storing {
    pub(crate) sink: Arc<dyn WriteHandle>,
    pub(crate) sparse: bool,
    /// Sums that are wanted of each block.
    pub(crate) checksum: Option<Algorithm>,
}

/// The result of writing a block.
pub(crate) struct Stored {
    pub(crate) sum: Option<u32>,
    pub(crate) summing: Duration,
    pub(crate) writing: Duration,
}

impl Storing {
    /// Writes `data` at `at`.
    pub(crate) fn store(&self, data: &[u8], at: u64) -> ropewalk_storage::Result<Stored> {
        let began = Instant::now();
        let sum = self.checksum.map(|algorithm| block_sum(algorithm, data));
        let summed = if sum.is_some() { Instant::now() } else { began };
        if self.sparse {
            write_sparse(&*self.sink, data, at)?;
        } else {
            self.sink.write_at(data, at)?;
        }
        Ok(Stored { sum, summing: summed - began, writing: summed.elapsed() })
    }
}

/// A block that goes to the other thread, and comes back.
struct Block {
    buffer: Buffer,
    range: Range<u64>,
}

struct Done {
    block: Block,
    result: ropewalk_storage::Result<Stored>,
}

/// The other thread. Blocks are written in the order in which they were given.
pub(crate) struct Behind {
    /// `None` once it shall end.
    work: Option<SyncSender<Block>>,
    done: Receiver<Done>,
    under_way: usize,
    failure: Arc<Failure>,
}

/// Why a block could not be written, until nothing that was given after it is under way any more.
type Failure = Mutex<Option<StoreError>>;

impl Behind {
    /// `None` where there is no thread for it, or where `streams` keep all processors busy without.
    pub(crate) fn begin(pool: &Pool, storing: &Storing, streams: u32) -> Option<Self> {
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        let processors = *PROCESSORS.get_or_init(|| available_parallelism().map_or(1, Into::into));
        if streams as usize >= processors {
            return None;
        }
        let (work, blocks) = sync_channel(MOST);
        let (finished, done) = channel();
        let storing = storing.clone();
        let failure = Arc::<Failure>::default();
        let failed = Arc::clone(&failure);
        pool.try_spawn(move || write_all(&storing, &failed, &blocks, &finished)).ok()?;
        Some(Self { work: Some(work), done, under_way: 0, failure })
    }

    /// Has the beginning of `buffer` written as `range` of the file. Blocks that were written
    /// before are reported to `written`, and one of their buffers is returned to be filled, if
    /// there is one.
    pub(crate) fn write(
        &mut self,
        buffer: Buffer,
        range: Range<u64>,
        mut written: impl FnMut(Range<u64>, Stored) -> Result<()>,
    ) -> Result<Option<Buffer>> {
        let mut free = None;
        while self.under_way > 0 {
            let done = if self.under_way < MOST {
                match self.done.try_recv() {
                    Err(TryRecvError::Empty) => break,
                    done => done.ok(),
                }
            } else {
                self.done.recv().ok()
            };
            free = Some(self.take(done, &mut written)?);
        }
        let work = self.work.as_ref().ok_or_else(panicked)?;
        work.send(Block { buffer, range }).map_err(|_| panicked())?;
        self.under_way += 1;
        Ok(free)
    }

    /// Waits until all is written. Where something was not, what was given after it is not written
    /// either.
    pub(crate) fn settle(&mut self, mut written: impl FnMut(Range<u64>, Stored) -> Result<()>) -> Result<()> {
        let mut result = Ok(());
        while self.under_way > 0 {
            let done = self.done.recv().ok();
            result = result.and(self.take(done, &mut written).map(drop));
        }
        result
    }

    fn take(
        &mut self,
        done: Option<Done>,
        written: &mut impl FnMut(Range<u64>, Stored) -> Result<()>,
    ) -> Result<Buffer> {
        let Some(Done { block, result }) = done else {
            self.under_way = 0;
            return Err(panicked());
        };
        self.under_way -= 1;
        if self.under_way == 0 {
            *self.failure.lock() = None;
        }
        written(block.range, result?)?;
        Ok(block.buffer)
    }
}

impl Drop for Behind {
    /// Nothing is written after the transfer's end.
    fn drop(&mut self) {
        self.work = None;
        while self.done.recv().is_ok() {}
    }
}

/// Leaves out what is zero: the file is new, so holes read the same.
fn write_sparse(sink: &dyn WriteHandle, data: &[u8], at: u64) -> ropewalk_storage::Result<()> {
    let is_zero = |part: &[u8]| part.first() == Some(&0) && part[1..] == part[..part.len() - 1];
    let settle = |zero: bool, run: Range<usize>| {
        let start = at + run.start as u64;
        if zero {
            if let Some(disk) = sink.disk() {
                disk.leave_zero(start, run.len() as u64);
            }
            Ok(())
        } else {
            sink.write_at(&data[run], start)
        }
    };
    // The bytes in `run` are all zero or all data, and not settled yet.
    let (mut run, mut zero) = (0..0, false);
    while run.end < data.len() {
        let granule = GRANULE - (at + run.end as u64) % GRANULE;
        let end = data.len().min(run.end + granule as usize);
        let now = is_zero(&data[run.end..end]);
        if now != zero && !run.is_empty() {
            settle(zero, run.clone())?;
            run.start = run.end;
        }
        (run.end, zero) = (end, now);
    }
    if run.is_empty() { Ok(()) } else { settle(zero, run) }
}

fn write_all(storing: &Storing, failure: &Failure, blocks: &Receiver<Block>, done: &Sender<Done>) {
    for block in blocks {
        let length = (block.range.end - block.range.start) as usize;
        // A file that is written in order is as long as what is there: no block comes behind one
        // that is missing.
        let failed = failure.lock().clone();
        let result = failed.map_or_else(
            || storing.store(&block.buffer[..length.min(block.buffer.len())], block.range.start),
            Err,
        );
        if let Err(error) = &result {
            *failure.lock() = Some(error.clone());
        }
        if done.send(Done { block, result }).is_err() {
            return;
        }
    }
}

fn panicked() -> Error {
    let source = io::Error::other("the thread that writes the file panicked");
    Error::System { action: "receive", source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc;

    use ropewalk_storage::{ErrorKind, Lock, Metadata, Result as StoreResult};

    use super::*;
    use crate::BufferBudget;

    /// Takes bytes when it is let.
    struct Slow {
        gate: Mutex<mpsc::Receiver<StoreResult<()>>>,
        bytes: Mutex<Vec<(u64, Vec<u8>)>>,
    }

    impl Lock for Slow {}

    impl WriteHandle for Slow {
        fn metadata(&self) -> StoreResult<Metadata> {
            Err(failure())
        }
        fn write_at(&self, data: &[u8], offset: u64) -> StoreResult<()> {
            // The gate is open if its sender is gone.
            self.gate.lock().recv().unwrap_or(Ok(()))?;
            self.bytes.lock().push((offset, data.to_vec()));
            Ok(())
        }
        fn set_len(&self, _: u64) -> StoreResult<()> {
            Ok(())
        }
        fn sync(&self) -> StoreResult<()> {
            Ok(())
        }
    }

    fn failure() -> StoreError {
        StoreError::new(ErrorKind::NoSpace, "write", "/file")
    }

    struct Bench {
        pool: Pool,
        budget: Arc<BufferBudget>,
        sink: Arc<Slow>,
        gate: Option<mpsc::Sender<StoreResult<()>>>,
        storing: Storing,
        told: Vec<(Range<u64>, Option<u32>)>,
    }

    impl Bench {
        fn new() -> Self {
            let (gate, receiver) = mpsc::channel();
            let sink = Arc::new(Slow { gate: Mutex::new(receiver), bytes: Mutex::default() });
            let storing = Storing {
                sink: Arc::clone(&sink) as Arc<dyn WriteHandle>,
                sparse: false,
                checksum: Some(Algorithm::Crc32c),
            };
            let (pool, budget) = (Pool::new("test", 2), BufferBudget::new(64 << 20));
            Self { pool, budget, sink, gate: Some(gate), storing, told: Vec::new() }
        }

        fn begin(&self) -> Behind {
            Behind::begin(&self.pool, &self.storing, 0).unwrap()
        }

        fn write(&mut self, behind: &mut Behind, number: u8) -> Result<Option<Buffer>> {
            let mut buffer = self.budget.take(1);
            buffer.fill(number);
            let at = u64::from(number) * 1000;
            let told = &mut self.told;
            behind.write(buffer, at..at + 1000, |range, stored| {
                told.push((range, stored.sum));
                Ok(())
            })
        }

        fn settle(&mut self, behind: &mut Behind) -> Result<()> {
            let told = &mut self.told;
            behind.settle(|range, stored| {
                told.push((range, stored.sum));
                Ok(())
            })
        }
    }

    #[test]
    fn blocks_are_written_in_order_and_told_with_their_sums() {
        let mut bench = Bench::new();
        let mut behind = bench.begin();
        assert!(bench.write(&mut behind, 0).unwrap().is_none());
        assert!(bench.write(&mut behind, 1).unwrap().is_none());
        assert!(bench.told.is_empty());
        bench.gate = None;
        // There are never more than two: the third waits, and gets the first one's buffer.
        assert!(bench.write(&mut behind, 2).unwrap().is_some());
        bench.settle(&mut behind).unwrap();
        let sums: Vec<_> = (0..3u8)
            .map(|n| {
                (
                    u64::from(n) * 1000..u64::from(n) * 1000 + 1000,
                    Some(block_sum(Algorithm::Crc32c, &[n; 1000])),
                )
            })
            .collect();
        assert_eq!(bench.told, sums);
        let bytes = bench.sink.bytes.lock();
        assert_eq!(*bytes, (0..3u8).map(|n| (u64::from(n) * 1000, vec![n; 1000])).collect::<Vec<_>>());
    }

    #[test]
    fn a_block_that_is_not_written_is_not_told() {
        let mut bench = Bench::new();
        let mut behind = bench.begin();
        let gate = bench.gate.take().unwrap();
        gate.send(Err(failure())).unwrap();
        bench.write(&mut behind, 0).unwrap();
        assert!(matches!(bench.settle(&mut behind), Err(Error::Store(_))));
        assert!(bench.told.is_empty());
        // Later blocks are written: bytes that have come are useful.
        drop(gate);
        bench.write(&mut behind, 1).unwrap();
        bench.settle(&mut behind).unwrap();
        assert_eq!(bench.told.len(), 1);
        assert_eq!(bench.told[0].0, 1000..2000);
    }

    #[test]
    fn nothing_is_written_behind_what_could_not_be() {
        let mut bench = Bench::new();
        let mut behind = bench.begin();
        let gate = bench.gate.take().unwrap();
        bench.write(&mut behind, 0).unwrap();
        bench.write(&mut behind, 1).unwrap();
        gate.send(Err(failure())).unwrap();
        gate.send(Ok(())).unwrap();
        assert!(matches!(bench.settle(&mut behind), Err(Error::Store(_))));
        assert!(bench.told.is_empty());
        assert!(bench.sink.bytes.lock().is_empty());
    }

    #[test]
    fn nothing_is_written_once_it_is_gone() {
        let mut bench = Bench::new();
        let mut behind = bench.begin();
        bench.write(&mut behind, 0).unwrap();
        bench.write(&mut behind, 1).unwrap();
        bench.gate = None;
        drop(behind);
        assert_eq!(bench.sink.bytes.lock().len(), 2);
    }

    #[test]
    fn no_thread_where_streams_keep_the_processors_busy() {
        let bench = Bench::new();
        assert!(Behind::begin(&bench.pool, &bench.storing, u32::MAX).is_none());
    }
}
