//! The state that the threads of a MODE E receiver share, and the work of a thread that serves one
//! stream. The coordinating thread ([`crate::receive_coordinator`]) starts these threads and takes
//! their messages. A thread that fails or panics reports this as its last message.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::Pieces;

use crate::Progress;
use crate::block_writer::BlockWriter;
use crate::connect::{self, Core};
use crate::error::{Error, Result};
use crate::job::ReceiveJob;
use crate::stream_reader::{Step, StreamReader, Transfer};
use crate::wire::Wire;

/// The shared state of a transfer.
pub(crate) struct Shared<'a> {
    pub(crate) core: &'a Core,
    pub(crate) job: &'a ReceiveJob<'a>,
    pub(crate) progress: &'a Progress,
    pub(crate) transfer: Transfer,
    messages: Mutex<Vec<Message<'a>>>,
    arrived: Mutex<Arrived>,
}

/// The bytes that are in the store and were reported.
pub(crate) struct Arrived {
    pub(crate) ranges: RangeSet,
    pub(crate) pieces: Option<Pieces>,
}

/// A report of a thread to the coordinating thread.
pub(crate) enum Message<'a> {
    /// `further`: the transfer did not start with it.
    Connected {
        wire: Result<Wire>,
        further: bool,
    },
    Ended(Box<StreamReader<'a>>, Result<Step>),
    Panicked,
}

impl<'a> Shared<'a> {
    pub(crate) fn new(core: &'a Core, job: &'a ReceiveJob<'a>, progress: &'a Progress) -> Self {
        // The store takes offsets up to 2^63 - 1.
        let accept = job.accept.intersection(0..i64::MAX as u64);
        Self {
            core,
            job,
            progress,
            transfer: Mutex::new(core.receiver(accept, job.origin)),
            messages: Mutex::default(),
            arrived: Mutex::new(Arrived {
                ranges: RangeSet::new(),
                pieces: job.checksum.filter(|a| a.is_combinable()).map(Pieces::new),
            }),
        }
    }

    fn post(&self, message: Message<'a>) {
        self.messages.lock().push(message);
        self.core.control.wake();
    }

    pub(crate) fn take_messages(&self) -> Vec<Message<'a>> {
        std::mem::take(&mut *self.messages.lock())
    }

    /// Adds the bytes that a stream has reported to those of the others.
    pub(crate) fn gather(&self, writer: &mut BlockWriter<'a>) {
        let mut arrived = self.arrived.lock();
        arrived.ranges.union(&std::mem::take(&mut writer.ranges));
        if let (Some(all), Some(some)) = (&mut arrived.pieces, &mut writer.pieces) {
            let fresh = Pieces::new(some.algorithm());
            all.merge(&std::mem::replace(some, fresh));
        }
    }

    /// Returns the ranges that all streams have reported.
    pub(crate) fn stored(&self) -> RangeSet {
        self.arrived.lock().ranges.clone()
    }

    /// Returns the bytes that all streams have reported.
    pub(crate) fn take_arrived(&self) -> Arrived {
        let mut arrived = self.arrived.lock();
        Arrived { ranges: std::mem::take(&mut arrived.ranges), pieces: arrived.pieces.take() }
    }

    /// The work of a thread that makes a connection.
    pub(crate) fn connect(&self, further: bool) {
        let wait = &mut connect::Stoppable(&self.core.control);
        let connect = || self.core.connect_waiting(0, Duration::MAX, wait);
        let connected = catch_unwind(AssertUnwindSafe(connect));
        self.post(connected.map_or(Message::Panicked, |wire| Message::Connected { wire, further }));
    }

    /// The work of a thread that serves a stream.
    pub(crate) fn serve(&self, mut reader: StreamReader<'a>) {
        let served = catch_unwind(AssertUnwindSafe(move || {
            let result = self.drive(&mut reader);
            let settled = reader.writer.settle();
            let result = result.and_then(|step| settled.map(|()| step));
            (reader, result)
        }));
        self.post(match served {
            Ok((reader, result)) => Message::Ended(Box::new(reader), result),
            Err(_) => Message::Panicked,
        });
    }

    fn drive(&self, reader: &mut StreamReader<'a>) -> Result<Step> {
        reader.wire.set_blocking(&self.core.control).map_err(Error::io(&reader.wire.peer))?;
        loop {
            let step = reader.step(&self.transfer)?;
            if reader.completes {
                // The end of another stream, which would wake it, may never come.
                self.core.control.wake();
            }
            match step {
                Step::Moved if reader.writer.is_scattered() => self.gather(&mut reader.writer),
                Step::Moved | Step::Blocked if self.core.control.stopping() => return Err(Error::Aborted),
                Step::Moved | Step::Blocked => {}
                ended => return Ok(ended),
            }
        }
    }
}
