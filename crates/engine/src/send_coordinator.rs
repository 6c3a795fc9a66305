//! The coordinating thread of a MODE E sender.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ropewalk_protocol::mode_e::{Block, Descriptor, Header, Next, StreamId};
use ropewalk_storage::checksum::Pieces;
use ropewalk_transport::{Interest, Readiness};

use crate::Stage;
use crate::backlog::INTERVAL;
use crate::block_reader::{BlockReader, WaitPolicy};
use crate::error::{Error, Result};
use crate::job::Sent;
use crate::pool::Scope;
use crate::send_shared::{Done, Message, Shared, merged, send_one};
use crate::watch::Watch;
use crate::wire::Wire;

/// A file of so many blocks is not worth a second thread.
const FEW_BLOCKS: u64 = 2;
/// No receiver lets so many bytes come before it reads: it has begun the transfer.
const RECEIVER_READS: u64 = 64 << 20;
/// Connections whose streams have left are looked at so often.
const LINGER: Duration = Duration::from_millis(10);

/// The coordinating thread's part: it serves the first stream, gives others to threads, and ends
/// those that got none.
pub(crate) struct Coordinator<'h, 's, 'e, 'a, 'w, 'v> {
    shared: &'e Shared<'a>,
    scope: &'h Scope<'s, 'e>,
    watch: &'w mut Watch<'v>,
    /// Lent out while this coordinator does the waiting for it.
    reader: Option<BlockReader<'e>>,
    /// The checksums of other streams.
    pieces: Option<Pieces>,
    /// Streams without a thread: they only get their end.
    idle: Vec<Stream>,
    /// Threads that make a connection, and that serve a stream.
    connecting: usize,
    serving: usize,
    /// The version of the number of streams that was seen last, and whether connections may be
    /// missing for it.
    seen: u32,
    missing: bool,
    /// No further connections are made before so many bytes have gone through sockets, unless the
    /// receiver is known to be ready.
    gate: Option<u64>,
    /// Connections that peers have made, and are to make.
    accepted: usize,
    promised: usize,
    /// Connections that peers make beyond those are accepted.
    listening: bool,
    deadline: Instant,
    /// Connections whose streams have left, until the receiver has closed them.
    leaving: Vec<Wire>,
    looked_after: Instant,
    /// The most streams that were wanted at a time: the receiver may not have more of them.
    most: u64,
    done: Vec<Wire>,
    bytes: u64,
    /// The stream that this thread serves.
    first: Option<StreamId>,
}

struct Stream {
    wire: Wire,
    id: StreamId,
    /// It is one too many: close it after this transfer.
    retire: bool,
}

impl<'h, 's, 'e, 'a, 'w, 'v> Coordinator<'h, 's, 'e, 'a, 'w, 'v> {
    pub(crate) fn new(shared: &'e Shared<'a>, scope: &'h Scope<'s, 'e>, watch: &'w mut Watch<'v>) -> Self {
        Self {
            shared,
            scope,
            watch,
            reader: None,
            pieces: None,
            idle: Vec::new(),
            connecting: 0,
            serving: 0,
            seen: 0,
            missing: true,
            gate: None,
            accepted: 0,
            promised: 0,
            listening: true,
            deadline: Instant::now() + shared.core.settings.connect_timeout,
            leaving: Vec::new(),
            looked_after: Instant::now(),
            most: 0,
            done: Vec::new(),
            bytes: 0,
            first: None,
        }
    }

    pub(crate) fn run(&mut self, wires: Vec<Wire>, reused: bool) -> Result<()> {
        self.run_all(wires, reused).map_err(|e| self.cause(e))
    }

    fn run_all(&mut self, wires: Vec<Wire>, reused: bool) -> Result<()> {
        let shared = self.shared;
        let (version, parallelism) = shared.core.parallelism.state();
        self.seen = version;
        let mut room = vec![parallelism as usize; shared.core.receivers()];
        let active = shared.core.listener().is_none();
        self.accepted = wires.len();
        if !active {
            // A peer that connects opens as many connections as were agreed on, once.
            self.promised =
                if reused { wires.len() } else { shared.core.settings.parallelism.max(1) as usize };
            shared.sender().promise_streams(self.promised as u64);
        }
        let mut streams = Vec::new();
        for (n, wire) in wires.into_iter().enumerate() {
            let id = shared.sender().add_stream_to(wire.address)?;
            let room = &mut room[wire.address];
            streams.push(Stream { wire, id, retire: n > 0 && *room == 0 });
            *room = room.saturating_sub(1);
        }
        let mut streams = streams.into_iter();
        let Some(first) = streams.next() else { return Ok(()) };
        // Those that are too many first: otherwise the others would take themselves for it.
        let (surplus, streams): (Vec<_>, Vec<_>) = streams.partition(|stream| stream.retire);
        for stream in surplus.into_iter().chain(streams) {
            self.start(stream);
        }
        self.gate = (active && reused).then(|| shared.core.control.moved() + RECEIVER_READS);
        self.steer()?;
        self.serve(first)?;
        while !self.is_finished() {
            self.end_idle()?;
            self.turn_away();
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
        let left = shared.blocks_left(&shared.sender());
        let worthwhile = left > FEW_BLOCKS && (1 + self.serving as u64) < left && !stream.retire;
        if !worthwhile {
            self.set_aside(stream);
            return;
        }
        shared.core.control.expect_wakes();
        match self.scope.try_spawn(stream, move |stream| shared.serve(stream.wire, stream.id)) {
            Ok(()) => self.serving += 1,
            Err(stream) => self.set_aside(stream),
        }
        self.count_streams();
    }

    fn set_aside(&mut self, stream: Stream) {
        self.idle.push(stream);
        self.shared.idle.store(self.idle.len() as u32, Ordering::SeqCst);
    }

    fn take_idle(&mut self) -> Option<Stream> {
        let stream = self.idle.pop();
        self.shared.idle.store(self.idle.len() as u32, Ordering::SeqCst);
        stream
    }

    /// Follows the number of streams that is wanted. Streams with a thread see for themselves
    /// whether they are too many.
    fn steer(&mut self) -> Result<()> {
        let (version, wanted) = self.shared.core.parallelism.state();
        let wanted = self.shared.all_receivers(wanted);
        self.missing |= std::mem::replace(&mut self.seen, version) != version;
        if !self.missing {
            return Ok(());
        }
        // Not once all is dealt out: the first stream, which counts the others, may have ended
        // then.
        while let Some(end) = self.surplus(wanted) {
            let Some(Stream { mut wire, .. }) = self.take_idle() else { break };
            self.send(&mut wire, None, Some(end))?;
            self.see_off(wire);
        }
        self.count_streams();
        if let Some(at) = self.gate
            && self.shared.core.control.moved() < at
            && !self.watch.receiver_ready()
        {
            return Ok(());
        }
        self.gate = None;
        self.missing = !self.connect_more(wanted);
        Ok(())
    }

    /// A connection whose stream has left: it counts until the receiver knows that, too.
    fn see_off(&mut self, mut wire: Wire) {
        // Fails only where the receiver is gone already.
        if wire.connection.finish().is_ok() && wire.set_nonblocking().is_ok() {
            self.leaving.push(wire);
        }
    }

    /// The end of the last idle stream, where there are too many.
    fn surplus(&self, wanted: u32) -> Option<Header> {
        let mut sender = self.shared.sender();
        let last = self.idle.last().filter(|_| sender.active() > wanted.into())?;
        sender.leave(last.id)
    }

    /// Makes further connections, each on the thread that will serve it, after streams without a
    /// thread have got one. False where some have to wait until others are gone.
    fn connect_more(&mut self, wanted: u32) -> bool {
        let shared = self.shared;
        let (left, joined) = {
            let sender = shared.sender();
            let joined = sender.active() + u64::from(shared.joining.load(Ordering::SeqCst));
            (shared.blocks_left(&sender), joined)
        };
        if left <= FEW_BLOCKS {
            return true;
        }
        for stream in std::mem::take(&mut self.idle) {
            self.start(stream);
        }
        shared.idle.store(self.idle.len() as u32, Ordering::SeqCst);
        if shared.core.listener().is_some() {
            return true;
        }
        self.leaving.retain(|wire| !wire.connection.peer_closed());
        self.most = self.most.max(wanted.into()).max(joined);
        let most = self.most.saturating_sub(self.leaving.len() as u64);
        let wanted = left.min(wanted.into());
        for at in joined..wanted.min(most) {
            // Each receiver has one connection before others are made.
            let address = at as usize % shared.core.receivers();
            shared.core.control.expect_wakes();
            if !shared.sender().expect_stream(address) {
                continue;
            }
            shared.joining.fetch_add(1, Ordering::SeqCst);
            if self.scope.try_spawn((), move |()| shared.connect_and_serve(address)).is_err() {
                shared.sender().end_expectation(address);
                shared.joining.fetch_sub(1, Ordering::SeqCst);
                return true;
            }
            self.connecting += 1;
        }
        wanted <= most
    }

    /// True where a peer's further connection is of use. The peer makes it when it likes, or not at
    /// all.
    fn wants_more(&self) -> bool {
        let sender = self.shared.sender();
        let expected = sender.active() + self.promised.saturating_sub(self.accepted) as u64;
        let left = self.shared.blocks_left(&sender);
        self.listening && left > FEW_BLOCKS && expected < left.min(self.shared.wanted().into())
    }

    fn accept_more(&mut self) -> Result<()> {
        while self.wants_more() {
            match self.shared.core.accept() {
                // It may be left over from an earlier transfer.
                Ok(Some(wire)) if wire.connection.peer_closed() => {}
                Ok(Some(wire)) => {
                    let id = self.shared.sender().add_stream()?;
                    self.start(Stream { wire, id, retire: false });
                }
                Ok(None) => break,
                Err(e) => {
                    tracing::warn!(error = %e, "no further data connections are accepted");
                    self.listening = false;
                }
            }
        }
        Ok(())
    }

    /// Serves the first stream until its end.
    fn serve(&mut self, mut first: Stream) -> Result<()> {
        self.shared.begin(&mut first.wire, first.id);
        self.first = Some(first.id);
        loop {
            // While a connection is being made this stream does not end, so that it can be the one
            // that counts it.
            while self.is_assigned() && self.connecting > 0 {
                self.look(None, true)?;
            }
            let (block, header, ends) = match self.shared.next(&mut first.wire, first.id) {
                Some(Next::Block(block)) => {
                    let mut end = None;
                    if self.is_assigned() && self.connecting == 0 {
                        self.end_idle()?;
                        end = self.shared.end_with_block(first.id);
                    }
                    (Some(block), end, end.is_some())
                }
                Some(Next::Header(header)) => (None, Some(header), false),
                Some(Next::End(end)) => {
                    self.end_idle()?;
                    (None, Some(end), true)
                }
                Some(Next::Wait) => {
                    if self.shared.is_released(&first.wire, first.id) {
                        break;
                    }
                    self.turn_away();
                    self.look(None, false)?;
                    let began = Instant::now();
                    if self.shared.is_fed() {
                        self.watch.excuse();
                    }
                    self.watch.wait(&[], Some(began + INTERVAL), &mut Vec::new())?;
                    if self.shared.is_fed() {
                        self.shared.progress.add_time(Stage::Source, began.elapsed());
                    }
                    continue;
                }
                None => break,
            };
            match self.send(&mut first.wire, block, header) {
                Err(e) if !self.shared.forgives(&e, first.id) => return Err(e),
                Err(_) => break,
                Ok(()) if ends => break,
                Ok(()) => {}
            }
        }
        self.first = None;
        self.done.push(first.wire);
        self.count_streams();
        Ok(())
    }

    fn send(&mut self, wire: &mut Wire, block: Option<Block>, end: Option<Header>) -> Result<()> {
        let mut reader = self.reader.take().unwrap_or_else(|| self.shared.reader());
        let result = send_one(&mut reader, wire, block, end, self);
        self.reader = Some(reader);
        result.map_err(|e| self.cause(e))
    }

    /// Why a stream of this thread has failed: where another one has failed at our end, the
    /// receiver may have closed all.
    fn cause(&self, error: Error) -> Error {
        // The messages of streams that have ended well stay: a receiver that has all bytes closes
        // all connections, and then this stream may fail before they were heard.
        let follows = error.is_network() || matches!(error, Error::Aborted);
        if follows { self.shared.take_failure().unwrap_or(error) } else { error }
    }

    /// Closes connections that a receiver has made and that are of no use any more. After a
    /// transfer that has sent bytes again, it makes none for the next one before this end has
    /// closed those of this one. After another, it has those of this one, and does without.
    fn turn_away(&self) {
        if self.accepted >= self.promised && self.is_assigned() {
            self.shared.core.turn_away();
        }
    }

    /// Whether all that is to be sent is assigned to streams.
    fn is_assigned(&self) -> bool {
        let sender = self.shared.sender();
        sender.remaining() == 0 && !sender.is_open()
    }

    /// Ends the streams without a thread, once there is nothing left for them to carry.
    fn end_idle(&mut self) -> Result<()> {
        if !self.is_assigned() {
            return Ok(());
        }
        while let Some(stream) = self.take_idle() {
            let next = self.shared.sender().next(stream.id);
            let mut end = match next {
                Some(Next::End(end)) => end,
                // Another connection to its receiver is being made.
                Some(Next::Wait) => {
                    self.set_aside(stream);
                    return Ok(());
                }
                _ => continue,
            };
            let Stream { mut wire, retire, id } = stream;
            if retire {
                end.descriptor = end.descriptor.union(Descriptor::CLOSE);
            }
            match self.send(&mut wire, None, Some(end)) {
                Err(e) if !self.shared.forgives(&e, id) => return Err(e),
                _ if retire => {}
                _ => self.done.push(wire),
            }
        }
        Ok(())
    }

    /// Sees to everything but the data: messages of threads, connections that peers make, the
    /// attendant.
    fn look(&mut self, wire: Option<&Wire>, wait: bool) -> Result<()> {
        let mut news = false;
        for message in self.shared.take_messages() {
            self.hear(message)?;
            news = true;
        }
        // It may be what the caller waits for; the next would come with the clock only.
        let wait = wait && !(news && wire.is_none());
        if !self.leaving.is_empty() && self.looked_after.elapsed() >= LINGER {
            self.looked_after = Instant::now();
            self.leaving.retain(|wire| !wire.connection.peer_closed());
        }
        self.steer()?;
        self.stop_expecting();
        let core = self.shared.core;
        let expecting = self.accepted < self.promised;
        let listener = core.open_listener().filter(|_| expecting || self.wants_more());
        let listening = listener.is_some();
        let mut interests: Vec<Readiness<'_>> = Vec::with_capacity(2);
        interests.extend(wire.map(|wire| wire.readiness(Interest::Write)));
        interests.extend(listener.map(|listener| listener.readiness()));
        let mut ready = Vec::new();
        if wait {
            self.watch.wait(&interests, expecting.then_some(self.deadline), &mut ready)?;
        } else if listening {
            self.watch.check(&interests[interests.len() - 1..], &mut ready)?;
        } else {
            self.watch.check(&[], &mut ready)?;
        }
        if expecting {
            while self.accepted < self.promised
                && let Some(wire) = core.accept()?
            {
                if wire.connection.peer_closed() {
                    // It is left over from an earlier transfer.
                    continue;
                }
                self.accepted += 1;
                let id = self.shared.sender().add_stream()?;
                self.start(Stream { wire, id, retire: false });
            }
            if self.accepted < self.promised && Instant::now() >= self.deadline {
                return Err(core.missing(self.accepted, self.promised, core.settings.connect_timeout));
            }
        } else if listening && ready.contains(&if wait { interests.len() - 1 } else { 0 }) {
            self.accept_more()?;
        }
        Ok(())
    }

    /// Once bytes are sent again, the receiver may end the transfer without the connections that it
    /// was to make, and those that come then are for the next one.
    fn stop_expecting(&mut self) {
        let mut sender = self.shared.sender();
        if self.accepted < self.promised && sender.has_resent() {
            self.promised = self.accepted;
            sender.promise_streams(0);
        }
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
                if !matches!(e, Error::Aborted) {
                    tracing::warn!(error = %e, "a further data connection could not be made");
                }
            }
            Message::Ended(done) => {
                self.serving -= 1;
                let Done { mut wire, left, bytes, pieces } = *done?;
                self.bytes += bytes;
                self.pieces = merged(self.pieces.take(), pieces);
                if left {
                    self.see_off(wire);
                } else if wire.set_nonblocking().is_ok() {
                    self.done.push(wire);
                }
            }
        }
        self.count_streams();
        Ok(())
    }

    fn count_streams(&self) {
        let sender = self.shared.sender();
        self.shared.progress.set_streams((sender.streams() - sender.left()) as u32);
    }

    pub(crate) fn finish(mut self) -> (Sent, Vec<Wire>) {
        let mut reader = self.reader.take().unwrap_or_else(|| self.shared.reader());
        let sent = Sent {
            bytes: self.bytes + reader.bytes,
            streams: self.shared.sender().streams() as u32,
            pieces: merged(reader.pieces.take(), self.pieces.take()),
        };
        self.turn_away();
        if self.shared.sender().has_resent() {
            self.shared.core.linger(std::mem::take(&mut self.done));
        }
        (sent, self.done)
    }
}

impl WaitPolicy for Coordinator<'_, '_, '_, '_, '_, '_> {
    fn blocked(&mut self, wire: &Wire) -> Result<()> {
        let began = Instant::now();
        let result = self.look(Some(wire), true);
        self.shared.progress.add_time(Stage::Network, began.elapsed());
        result
    }

    fn between(&mut self) -> Result<()> {
        self.look(None, false)
    }

    fn is_abandoned(&self) -> bool {
        self.first.is_some_and(|id| self.shared.is_abandoned(id))
    }
}
