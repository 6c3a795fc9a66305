//! The error of a transfer whose streams fail one after the other is that of the first.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use parking_lot::{Condvar, Mutex};
use ropewalk_engine::{Attendant, Error, Progress, SendJob};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;

use crate::common::*;
use crate::peers::*;

/// Fails in other threads once the first reads its second block, which it gets when all
/// connections are closed.
struct Failing {
    file: Arc<TestFile>,
    first: ThreadId,
    /// Blocks that the first thread has begun to read, and whether the connections are closed.
    state: Mutex<(u32, bool)>,
    /// Set if the others fail only when the first stream waits.
    replies: bool,
    waits: AtomicBool,
    changed: Condvar,
}

impl ropewalk_storage::Lock for Failing {}
impl ropewalk_storage::ReadHandle for Failing {
    fn metadata(&self) -> ropewalk_storage::Result<ropewalk_storage::Metadata> {
        ropewalk_storage::ReadHandle::metadata(&*self.file)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> ropewalk_storage::Result<usize> {
        let mut state = self.state.lock();
        if thread::current().id() != self.first {
            let early =
                |state: &(u32, bool)| state.0 < 2 || self.replies && !self.waits.load(Ordering::SeqCst);
            self.changed.wait_while(&mut state, |state| early(state));
            let failure = io::Error::from_raw_os_error(5);
            return Err(ropewalk_storage::Error::from_io(&failure, "read", "file"));
        }
        state.0 += 1;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| !self.replies && state.0 >= 2 && !state.1);
        drop(state);
        ropewalk_storage::ReadHandle::read_at(&*self.file, buffer, offset)
    }

    fn data_ranges(&self, start: u64, end: u64) -> ropewalk_storage::Result<RangeSet> {
        Ok(RangeSet::from_range(start..end))
    }
}

/// Ends the transfer once the receiver has noticed the failure.
struct Replies(Arc<Failing>);
impl Attendant for Replies {
    fn begun(&mut self, _: bool) -> io::Result<()> {
        Ok(())
    }

    fn tick(&mut self, _: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn waits(&mut self) -> ControlFlow<()> {
        let source = &self.0;
        let mut state = source.state.lock();
        if !source.replies || state.0 < 2 {
            return ControlFlow::Continue(());
        }
        source.waits.store(true, Ordering::SeqCst);
        source.changed.notify_all();
        source.changed.wait_while(&mut state, |state| !state.1);
        ControlFlow::Break(())
    }
}

/// The receiver that loses one stream closes the others, and says so: what they run into is not
/// why.
#[test]
fn the_stream_that_failed_first_tells_why() {
    for replies in [false, true] {
        failing_first(replies);
    }
}

/// `replies`: the attendant hears of the failure while the first stream waits, and ends the
/// transfer before that stream has noticed anything.
fn failing_first(replies: bool) {
    let (mut channel, listener) = sender(Mode::ExtendedBlock, 2);
    let file = TestFile::new(&data(100 << 20), false);
    let source = Arc::new(Failing {
        file: Arc::clone(&file),
        first: thread::current().id(),
        state: Mutex::default(),
        replies,
        waits: AtomicBool::new(false),
        changed: Condvar::new(),
    });
    let job = SendJob { source: Arc::clone(&source) as _, ..send_job(&file) };
    thread::scope(|scope| {
        let kept = scope.spawn(|| {
            let first = listener.accept().unwrap().0;
            let mut second = listener.accept().unwrap().0;
            // It brings nothing before it is closed, while the first has brought bytes that are not
            // read: the end is a reset.
            assert_eq!(second.read_to_end(&mut Vec::new()).unwrap(), 0);
            assert_eq!(first.peek(&mut [0]).unwrap(), 1);
            let first = replies.then_some(first);
            source.state.lock().1 = true;
            source.changed.notify_all();
            first
        });
        let mut attendant = Replies(source.clone());
        let error = channel.send(&job, &mut attendant, &Progress::new()).unwrap_err();
        assert!(matches!(error, Error::Store(_)), "{error}");
        drop(kept.join().unwrap());
    });
}
