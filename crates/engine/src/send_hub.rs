//! The coordinating thread of a MODE E sender.

use std::time::Instant;

use ropewalk_protocol::mode_e::{Block, Descriptor, Header, Next, StreamId};
use ropewalk_storage::checksum::Pieces;
use rustix::event::PollFlags;

use crate::error::Result;
use crate::outlet::{Outlet, Patience};
use crate::pool::Scope;
use crate::send_blocks::{Done, Message, Shared, end_if_last, merged, send_one};
use crate::watch::{Interest, Watch};
use crate::wire::Wire;
use crate::{Sent, Stage};

/// A file of so many blocks is not worth a second thread.
const FEW_BLOCKS: u64 = 2;
/// No receiver lets so many bytes come before it reads: it has begun the transfer.
const RECEIVER_READS: u64 = 64 << 20;

/// The coordinating thread's part: it serves the first stream, gives others to threads, and ends those that got none.
pub(crate) struct Hub<'h, 's, 'e, 'a, 'w, 'v> {
    shared: &'e Shared<'a>,
    scope: &'h Scope<'s, 'e>,
    watch: &'w mut Watch<'v>,
    /// Lent out while this hub does the waiting for it.
    outlet: Option<Outlet<'e>>,
    /// The checksums of other streams.
    pieces: Option<Pieces>,
    /// Streams without a thread: they only get their end.
    idle: Vec<Stream>,
    /// Threads that make a connection, and that serve a stream.
    connecting: usize,
    serving: usize,
    /// Connections to make once so many bytes have gone through sockets.
    further: Option<(u32, u64)>,
    /// Connections that peers have made, and are to make.
    accepted: usize,
    promised: usize,
    deadline: Instant,
    done: Vec<Wire>,
    bytes: u64,
}

struct Stream {
    wire: Wire,
    id: StreamId,
    /// It is one too many: close it after this transfer.
    retire: bool,
}

impl<'h, 's, 'e, 'a, 'w, 'v> Hub<'h, 's, 'e, 'a, 'w, 'v> {
    pub(crate) fn new(shared: &'e Shared<'a>, scope: &'h Scope<'s, 'e>, watch: &'w mut Watch<'v>) -> Self {
        Self {
            shared,
            scope,
            watch,
            outlet: None,
            pieces: None,
            idle: Vec::new(),
            connecting: 0,
            serving: 0,
            further: None,
            accepted: 0,
            promised: 0,
            deadline: Instant::now() + shared.core.settings.connect_timeout,
            done: Vec::new(),
            bytes: 0,
        }
    }

    pub(crate) fn run(&mut self, wires: Vec<Wire>, reused: bool) -> Result<()> {
        let shared = self.shared;
        let parallelism = shared.core.settings.parallelism.max(1) as usize;
        let active = shared.core.listener().is_none();
        self.accepted = wires.len();
        if !active {
            // Who connects to us opens as many connections as it was told, once.
            self.promised = if reused { wires.len() } else { parallelism };
            shared.sender().promise_streams(self.promised as u64);
        }
        let mut streams = Vec::new();
        for (n, wire) in wires.into_iter().enumerate() {
            let id = shared.sender().add_stream()?;
            streams.push(Stream { wire, id, retire: active && n >= parallelism });
        }
        let mut streams = streams.into_iter();
        let Some(first) = streams.next() else { return Ok(()) };
        let missing = (parallelism as u32).saturating_sub(1 + streams.len() as u32);
        for stream in streams {
            self.start(stream);
        }
        if active && missing > 0 && shared.blocks > FEW_BLOCKS {
            if reused && !self.watch.receiver_ready() {
                self.further = Some((missing, shared.core.control.moved() + RECEIVER_READS));
            } else {
                self.connect_more(missing);
            }
        }
        self.serve(first)?;
        while !self.is_finished() {
            self.end_idle()?;
            if !self.is_finished() {
                self.look(None, true)?;
            }
        }
        Ok(())
    }

    fn is_finished(&self) -> bool {
        self.connecting == 0
            && self.serving == 0
            && self.idle.is_empty()
            && self.shared.sender().is_finished()
    }

    /// Gives a stream to a thread, where that is worth it and there is one.
    fn start(&mut self, stream: Stream) {
        let shared = self.shared;
        let worthwhile = shared.blocks > FEW_BLOCKS
            && (1 + self.serving as u64) < shared.blocks
            && shared.sender().remaining() > 0
            && !stream.retire;
        if !worthwhile {
            self.idle.push(stream);
            return;
        }
        shared.core.control.expect_wakes();
        match self.scope.try_spawn(stream, move |stream| shared.serve(stream.wire, stream.id)) {
            Ok(()) => self.serving += 1,
            Err(stream) => self.idle.push(stream),
        }
        self.count_streams();
    }

    /// Makes further connections, each on the thread that will serve it.
    fn connect_more(&mut self, missing: u32) {
        let shared = self.shared;
        shared.core.control.expect_wakes();
        for _ in 0..u64::from(missing).min(shared.blocks - 1) {
            if self.scope.try_spawn((), move |()| shared.connect_and_serve()).is_err() {
                break;
            }
            self.connecting += 1;
        }
    }

    /// Serves the first stream until its end.
    fn serve(&mut self, mut first: Stream) -> Result<()> {
        loop {
            // While a connection is being made this stream does not end, so that it can be the one that counts it.
            while self.shared.sender().remaining() == 0 && self.connecting > 0 {
                self.look(None, true)?;
            }
            let next = self.shared.sender().next(first.id);
            let block = match next {
                Some(Next::Block(block)) => Some(block),
                Some(Next::End(end)) => {
                    self.end_idle()?;
                    self.send(&mut first.wire, None, Some(end))?;
                    break;
                }
                None => break,
            };
            let mut end = None;
            if self.shared.sender().remaining() == 0 && self.connecting == 0 {
                self.end_idle()?;
                end = end_if_last(&mut self.shared.sender(), first.id);
            }
            self.send(&mut first.wire, block, end)?;
            if end.is_some() {
                break;
            }
        }
        self.done.push(first.wire);
        self.count_streams();
        Ok(())
    }

    fn send(&mut self, wire: &mut Wire, block: Option<Block>, end: Option<Header>) -> Result<()> {
        let mut outlet = self.outlet.take().unwrap_or_else(|| self.shared.outlet());
        let result = send_one(&mut outlet, wire, block, end, self);
        self.outlet = Some(outlet);
        result
    }

    /// Ends the streams that nobody serves, once there is nothing left for them to carry.
    fn end_idle(&mut self) -> Result<()> {
        if self.shared.sender().remaining() > 0 {
            return Ok(());
        }
        for Stream { mut wire, id, retire } in std::mem::take(&mut self.idle) {
            let Some(Next::End(mut end)) = self.shared.sender().next(id) else { continue };
            if retire {
                end.descriptor = end.descriptor.union(Descriptor::CLOSE);
            }
            self.send(&mut wire, None, Some(end))?;
            if !retire {
                self.done.push(wire);
            }
        }
        Ok(())
    }

    /// Sees to everything but the data: messages of threads, connections that peers make, the attendant.
    fn look(&mut self, wire: Option<&Wire>, wait: bool) -> Result<()> {
        for message in self.shared.take_messages() {
            self.hear(message)?;
        }
        // Not once all is dealt out: the first stream, which counts the others, may have ended then.
        if let Some((missing, at)) = self.further
            && self.shared.core.control.moved() >= at
            && self.shared.sender().remaining() > 0
        {
            self.further = None;
            self.connect_more(missing);
        }
        let core = self.shared.core;
        let expecting = self.accepted < self.promised;
        let listener = core.listener().filter(|_| expecting);
        let mut interests: Vec<Interest<'_>> = Vec::with_capacity(2);
        interests.extend(wire.map(|wire| (wire.poll_fd(), PollFlags::OUT)));
        interests.extend(listener.map(|listener| (listener.poll_fd(), PollFlags::IN)));
        let mut ready = Vec::new();
        if wait {
            self.watch.wait(&interests, expecting.then_some(self.deadline), &mut ready)?;
        } else if expecting {
            self.watch.check(&interests[interests.len() - 1..], &mut ready)?;
        } else {
            self.watch.check(&[], &mut ready)?;
        }
        if expecting {
            while self.accepted < self.promised
                && let Some(wire) = core.accept()?
            {
                self.accepted += 1;
                let id = self.shared.sender().add_stream()?;
                self.start(Stream { wire, id, retire: false });
            }
            if self.accepted < self.promised && Instant::now() >= self.deadline {
                return Err(core.missing(self.accepted, self.promised));
            }
        }
        Ok(())
    }

    fn hear(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Connected(Ok(())) => {
                self.connecting -= 1;
                self.serving += 1;
            }
            Message::Connected(Err(e)) => {
                // The others carry on without it.
                self.connecting -= 1;
                tracing::warn!(error = %e, "a further data connection could not be made");
            }
            Message::Ended(done) => {
                self.serving -= 1;
                let Done { mut wire, bytes, pieces } = done?;
                self.bytes += bytes;
                self.pieces = merged(self.pieces.take(), pieces);
                if wire.set_nonblocking().is_ok() {
                    self.done.push(wire);
                }
            }
        }
        self.count_streams();
        Ok(())
    }

    fn count_streams(&self) {
        self.shared.progress.set_streams(self.shared.sender().streams() as u32);
    }

    pub(crate) fn finish(mut self) -> (Sent, Vec<Wire>) {
        let mut outlet = self.outlet.take().unwrap_or_else(|| self.shared.outlet());
        let sent = Sent {
            bytes: self.bytes + outlet.bytes,
            streams: self.shared.sender().streams() as u32,
            pieces: merged(outlet.pieces.take(), self.pieces.take()),
        };
        (sent, self.done)
    }
}

impl Patience for Hub<'_, '_, '_, '_, '_, '_> {
    fn blocked(&mut self, wire: &Wire) -> Result<()> {
        let began = Instant::now();
        let result = self.look(Some(wire), true);
        self.shared.progress.add_time(Stage::Network, began.elapsed());
        result
    }

    fn between(&mut self) -> Result<()> {
        self.look(None, false)
    }
}
