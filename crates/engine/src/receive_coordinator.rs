//! The coordinating thread of a MODE E receiver.

use std::time::{Duration, Instant};

use ropewalk_protocol::mode_e::End;
use ropewalk_transport::{Interest, Readiness};

use crate::Stage;
use crate::block_writer::BlockWriter;
use crate::error::{Error, Result};
use crate::job::Received;
use crate::pool::Scope;
use crate::receive_shared::{Arrived, Message, Shared};
use crate::shortage::{Shortage, wants_more};
use crate::stream_reader::{Step, StreamReader};
use crate::watch::Watch;
use crate::wire::Wire;

/// Steps of a stream that never has to wait, before the coordinating thread looks around.
const BURST: u32 = 8;
/// A file is not worth further connections before so many bytes of it have come.
const LITTLE: u64 = 1 << 20;

/// Where nothing moves for so long, those who send may be waiting for streams that wait here.
const STANDING: Duration = Duration::from_secs(1);

/// The coordinating thread's part: it accepts connections, serves those that bring little and one
/// that brings much, and gives further ones to threads of their own.
pub(crate) struct Coordinator<'h, 's, 'e, 'a> {
    shared: &'e Shared<'a>,
    scope: &'h Scope<'s, 'e>,
    /// Served here.
    local: Vec<StreamReader<'a>>,
    /// The stream of `local` that brings much.
    hot: Option<u32>,
    /// Threads that serve a stream, and threads that make a connection.
    serving: usize,
    connecting: usize,
    next_id: u32,
    /// The version of the number of streams that was seen last.
    seen: u32,
    /// How many further connections may be made: as many as were missing when the number was
    /// changed, and one for each that has left. Those that cannot be made are not tried for again
    /// and again.
    credit: u32,
    /// Where the count of bytes stood at the beginning.
    moved: u64,
    /// Streams that have ended with EOD as far as is known here, and those of them that can be used
    /// again.
    ended: u64,
    kept: Vec<(u32, Wire)>,
    shortage: Shortage,
    bytes: u64,
    /// Streams beyond the limit need not wait any more; how much had moved when they began to, and
    /// since when that is all.
    all_admitted: bool,
    standing: Option<(u64, Instant)>,
    /// Bytes that were sent again, with their positions in the file.
    copies: Vec<(u64, Vec<u8>)>,
    /// Why a stream failed that the sender may have replaced.
    failed: Option<Error>,
}

/// The state of a stream after [`Coordinator::serve`].
#[derive(PartialEq)]
enum Served {
    Busy,
    Idle,
    Gone,
}

impl<'h, 's, 'e, 'a> Coordinator<'h, 's, 'e, 'a> {
    pub(crate) fn new(shared: &'e Shared<'a>, scope: &'h Scope<'s, 'e>, reused: bool) -> Self {
        Self {
            shared,
            scope,
            local: Vec::new(),
            hot: None,
            serving: 0,
            connecting: 0,
            next_id: 0,
            seen: 0,
            credit: 0,
            moved: shared.core.control.moved(),
            ended: 0,
            kept: Vec::new(),
            shortage: Shortage::new(reused),
            bytes: 0,
            all_admitted: false,
            standing: None,
            copies: Vec::new(),
            failed: None,
        }
    }

    /// Runs the transfer until it is complete.
    pub(crate) fn run(
        &mut self,
        wires: impl Iterator<Item = Wire>,
        reused: bool,
        watch: &mut Watch<'_>,
    ) -> Result<()> {
        for wire in wires {
            self.join(wire)?;
        }
        let (version, wanted) = self.shared.core.parallelism.state();
        self.seen = version;
        if self.shared.core.listener().is_none() {
            if !reused {
                self.connect_more(watch)?;
            }
            self.credit = wanted.saturating_sub(self.alive() as u32);
        }
        // The bytes that have come already may be all there is: then the transfer waits for
        // nothing.
        let ids: Vec<u32> = self.local.iter().map(|reader| reader.id).collect();
        let mut ready = Vec::new();
        self.serve_all(&ids, watch)?;
        let mut hot_blocked = false;
        loop {
            for message in self.shared.take_messages() {
                self.hear(message)?;
            }
            if self.is_complete()? {
                return self.close_replaced(watch);
            }
            if self.alive() == 0 {
                self.check_shortfall()?;
            }
            self.steer();
            let (deadline, listening) = {
                let (core, alive, made) = (self.shared.core, self.alive(), self.next_id as usize);
                let transfer = self.shared.transfer.lock();
                (self.shortage.check(core, &transfer, alive, made)?, wants_more(core, &transfer, alive))
            };
            if self.hot.is_some() && !hot_blocked {
                for _ in 0..BURST {
                    let Some(at) = self.hot.and_then(|id| self.position(id)) else { break };
                    hot_blocked = self.serve(at)? == Served::Idle;
                    if hot_blocked {
                        break;
                    }
                    watch.pulse()?;
                }
                if self.hot.is_none() || self.is_complete()? {
                    continue;
                }
            }
            let deadline = deadline.into_iter().chain(self.admit_all_in_time()).min();
            let admitted = self.admitted();
            let interests = self.interests(listening, &admitted);
            let here = admitted.iter().map(|&at| &self.local[at]);
            let buffered: Vec<u32> =
                here.filter(|reader| reader.wire.is_buffered()).map(|reader| reader.id).collect();
            if self.hot.is_some() && !hot_blocked || !buffered.is_empty() {
                // There is something to do anyway.
                watch.check(&interests, &mut ready)?;
            } else {
                let began = Instant::now();
                watch.wait(&interests, deadline, &mut ready)?;
                // Where threads serve all that goes on, this one only waits for them.
                if self.hot.is_some() || self.serving == 0 {
                    watch.progress.add_time(Stage::Network, began.elapsed());
                }
            }
            drop(interests);
            let listener = usize::from(listening);
            let mut ids = buffered;
            ids.extend(
                ready.iter().filter(|&&at| at >= listener).map(|&at| self.local[admitted[at - listener]].id),
            );
            if listening && ready.contains(&0) {
                self.accept(watch)?;
            }
            if self.shared.transfer.lock().total().is_some() {
                // Parts of small blocks count from now on.
                ids = self.local.iter().map(|reader| reader.id).collect();
            }
            hot_blocked &= !self.hot.is_some_and(|hot| ids.contains(&hot));
            self.serve_all(&ids, watch)?;
        }
    }

    fn interests(&self, listening: bool, admitted: &[usize]) -> Vec<Readiness<'_>> {
        let listener = self.shared.core.listener().filter(|_| listening);
        let listener = listener.map(|listener| listener.readiness());
        listener
            .into_iter()
            .chain(admitted.iter().map(|&at| self.local[at].wire.readiness(Interest::Read)))
            .collect()
    }

    fn position(&self, id: u32) -> Option<usize> {
        self.local.iter().position(|reader| reader.id == id)
    }

    /// Whether as many streams bring data, or have begun to, as there may be. Further ones wait
    /// until others have ended, and with them their senders. (A sender deals its blocks out to the
    /// streams that take them, so it can wait, but it needs every connection that it has made. A
    /// sender that ends no stream before all its blocks are out, as GCT's server does, waits for
    /// those that wait here: then all are admitted.)
    fn is_full(&self) -> bool {
        if self.all_admitted {
            return false;
        }
        let most = self.shared.core.most_streams() as usize;
        self.local.len() + self.serving > most
            && self.local.iter().filter(|reader| !reader.is_untouched()).count() + self.serving >= most
    }

    /// Lets all streams in where nothing moves while some wait; gives the time when that may be
    /// known.
    fn admit_all_in_time(&mut self) -> Option<Instant> {
        if !self.is_full() {
            self.standing = None;
            return None;
        }
        let moved = self.shared.core.control.moved();
        let since = match self.standing {
            Some((before, since)) if before == moved => since,
            _ => Instant::now(),
        };
        self.standing = Some((moved, since));
        self.all_admitted = since.elapsed() >= STANDING;
        (!self.all_admitted).then_some(since + STANDING)
    }

    /// Which of the streams that are served here need not wait for others.
    fn admitted(&self) -> Vec<usize> {
        let full = self.is_full();
        (0..self.local.len()).filter(|&at| !full || !self.local[at].is_untouched()).collect()
    }

    /// Connections that take part or may yet.
    fn alive(&self) -> usize {
        self.local.len() + self.serving + self.connecting
    }

    fn join(&mut self, wire: Wire) -> Result<()> {
        let limit = self.shared.core.most_connections();
        let refused = Error::TooManyStreams { peer: wire.peer.clone(), limit };
        if self.alive() + self.kept.len() >= limit as usize {
            return Err(refused);
        }
        let stream = self.shared.transfer.lock().add_stream().map_err(|_| refused)?;
        let Shared { core, job, progress, .. } = *self.shared;
        let writer = BlockWriter::new(job, progress, core, &wire);
        self.local.push(StreamReader::new(wire, self.next_id, stream, writer));
        self.next_id += 1;
        progress.set_streams(self.alive() as u32);
        Ok(())
    }

    fn accept(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        // Once all has come, connections that wait are for the next transfer.
        while !self.shared.transfer.lock().is_complete()
            && let Some(wire) = self.shared.core.accept()?
        {
            let id = self.next_id;
            self.join(wire)?;
            self.serve_all(&[id], watch)?;
        }
        Ok(())
    }

    /// Makes the other connections of an active channel, all at once.
    fn connect_more(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let shared = self.shared;
        for _ in 1..shared.core.settings.parallelism {
            shared.core.control.expect_wakes();
            match self.scope.try_spawn((), move |()| shared.connect(false)) {
                Ok(()) => self.connecting += 1,
                Err(()) => self.join(shared.core.connect(0, Duration::MAX, watch)?)?,
            }
        }
        Ok(())
    }

    /// Follows the number of streams that is wanted, where it is us who connect. It is the sender
    /// that ends streams.
    fn steer(&mut self) {
        let shared = self.shared;
        if shared.core.listener().is_some() {
            return;
        }
        let (version, wanted) = shared.core.parallelism.state();
        let missing = wanted.min(shared.core.most_streams()).saturating_sub(self.alive() as u32);
        if std::mem::replace(&mut self.seen, version) != version {
            self.credit = self.credit.max(missing);
        }
        // Where a stream has ended and the connection has not, the file is ending.
        let little = shared.core.control.moved() - self.moved < LITTLE;
        if missing == 0 || self.credit == 0 || little || !self.kept.is_empty() {
            return;
        }
        let ending = {
            let transfer = shared.transfer.lock();
            transfer.announced().is_some() || transfer.total().is_some()
        };
        if ending {
            return;
        }
        for _ in 0..missing.min(self.credit) {
            shared.core.control.expect_wakes();
            self.credit -= 1;
            if self.scope.try_spawn((), move |()| shared.connect(true)).is_err() {
                self.credit = 0;
                break;
            }
            self.connecting += 1;
        }
    }

    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting > 0
    }

    fn hear(&mut self, message: Message<'a>) -> Result<()> {
        match message {
            Message::Connected { wire, further } => {
                self.connecting -= 1;
                match wire {
                    Err(e) if further => {
                        // The others carry on without it.
                        tracing::warn!(error = %e, "a further data connection could not be made");
                        self.credit = 0;
                        Ok(())
                    }
                    Ok(wire) if further => {
                        if let Err(e) = self.join(wire) {
                            tracing::warn!(error = %e, "closed a further data connection");
                        }
                        Ok(())
                    }
                    wire => self.join(wire?),
                }
            }
            Message::Ended(reader, result) => {
                self.serving -= 1;
                self.gone(*reader, result)
            }
            Message::Panicked => {
                let source = std::io::Error::other("a thread of the transfer panicked");
                Err(Error::System { action: "receive", source })
            }
        }
    }

    fn serve_all(&mut self, ids: &[u32], watch: &mut Watch<'_>) -> Result<()> {
        for &id in ids {
            for _ in 0..BURST {
                let Some(at) = self.position(id) else { break };
                if self.serve(at)? != Served::Busy || self.hot == Some(id) {
                    break;
                }
                watch.pulse()?;
            }
        }
        Ok(())
    }

    /// Lets one stream do a step.
    fn serve(&mut self, at: usize) -> Result<Served> {
        if self.local[at].is_untouched() && self.is_full() {
            return Ok(Served::Idle);
        }
        let reader = &mut self.local[at];
        match reader.step(&self.shared.transfer) {
            Ok(Step::Moved) => {
                if reader.writer.is_scattered() {
                    self.shared.gather(&mut reader.writer);
                }
                if reader.is_large() {
                    self.promote(at);
                }
                Ok(Served::Busy)
            }
            Ok(Step::Blocked) => Ok(Served::Idle),
            result => {
                let reader = self.local.swap_remove(at);
                self.hot = self.hot.filter(|hot| *hot != reader.id);
                self.gone(reader, result)?;
                Ok(Served::Gone)
            }
        }
    }

    /// A stream brings much: the first one is served here, others get threads, as far as there are
    /// threads.
    fn promote(&mut self, at: usize) {
        let id = self.local[at].id;
        if *self.hot.get_or_insert(id) == id {
            return;
        }
        let shared = self.shared;
        shared.core.control.expect_wakes();
        let reader = self.local.swap_remove(at);
        match self.scope.try_spawn(reader, move |reader| shared.serve(reader)) {
            Ok(()) => self.serving += 1,
            Err(reader) => self.local.push(reader),
        }
    }

    /// A stream takes no more part, for whatever reason.
    fn gone(&mut self, mut reader: StreamReader<'a>, result: Result<Step>) -> Result<()> {
        let end = match result {
            Ok(Step::Ended(end)) => Some(end),
            Ok(_) => None,
            // This is a stranger that found the port, if another peer knows the protocol.
            Err(e)
                if reader.nonsense
                    && (self.ended > 0
                        || self.serving > 0
                        || self.local.iter().any(|i| !i.is_untouched())) =>
            {
                ropewalk_transport::refused(&reader.wire.peer, e);
                reader.leave(&mut self.shared.transfer.lock());
                return Ok(());
            }
            Err(e) if e.is_network() && self.shared.transfer.lock().total().is_some() => {
                // Other streams may bring all that it was to bring.
                self.take_over(reader)?;
                self.failed.get_or_insert(e);
                return Ok(());
            }
            Err(e) => {
                // Bytes that have come are useful whatever happened.
                let _ = reader.writer.settle();
                return Err(e);
            }
        };
        if end.is_none() {
            reader.leave(&mut self.shared.transfer.lock());
        }
        self.copies.extend(reader.take_copies());
        let StreamReader { mut wire, id, mut writer, .. } = reader;
        self.bytes += writer.bytes;
        self.shared.gather(&mut writer);
        match end {
            Some(End::Reusable) => {
                self.ended += 1;
                wire.release();
                if wire.set_nonblocking().is_ok() {
                    self.kept.push((id, wire));
                }
            }
            Some(End::Closing) => {
                self.ended += 1;
                self.credit += 1;
            }
            Some(End::Retired) => {}
            None => {
                let error = Error::PeerClosed { peer: wire.peer.clone(), stream: id, bytes: 0, left: 0 };
                self.shortage.lost(error);
            }
        }
        self.shared.progress.set_streams(self.alive() as u32);
        Ok(())
    }

    /// All has come, and all who brought it have said so. If bytes were sent again, an end that
    /// made the connections needs one that has ended with EOD: with it, it finds out when the
    /// sender has closed those of this transfer. One stream at least does so, because the sender
    /// does not abandon all.
    fn is_complete(&self) -> Result<bool> {
        let (complete, ended) = {
            let transfer = self.shared.transfer.lock();
            if transfer.total().is_some() {
                let witnessed = !self.kept.is_empty() || self.alive() == 0;
                return Ok(transfer.is_complete() && (witnessed || self.shared.core.listener().is_some()));
            }
            (transfer.is_complete(), transfer.ended())
        };
        // Threads whose streams have ended report soon.
        if !complete || self.ended < ended {
            return Ok(false);
        }
        let extra = self.local.iter().find(|reader| !reader.has_no_header());
        match extra.map(|reader| reader.wire.peer.clone()) {
            None if self.serving == 0 => Ok(true),
            peer => Err(Error::ExtraStream { peer, announced: ended }),
        }
    }

    /// If the sender has sent bytes again: ends the streams that are still there, stores the bytes
    /// that none of them has brought the first time, and closes all connections.
    fn close_replaced(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let Some(total) = self.shared.transfer.lock().total() else { return Ok(()) };
        // Before the first is closed: from then on the sender makes connections for the next file,
        // or turns away those of this one that have come until then.
        self.shared.core.turn_away();
        self.shared.core.control.wind_up();
        while self.connecting > 0 {
            self.end_threads(watch)?;
        }
        self.shared.core.control.stop();
        while self.serving > 0 {
            self.end_threads(watch)?;
        }
        for reader in std::mem::take(&mut self.local) {
            self.take_over(reader)?;
        }
        let Shared { core, job, progress, .. } = *self.shared;
        let mut writer = BlockWriter::for_store(job, progress, core);
        let mut present = self.shared.stored();
        for (start, copy) in std::mem::take(&mut self.copies) {
            let range = start..start + copy.len() as u64;
            for gap in present.complement(range).iter() {
                writer.store(&copy[(gap.start - start) as usize..(gap.end - start) as usize], gap.start)?;
                present.insert(gap);
            }
        }
        self.bytes += writer.bytes;
        self.shared.gather(&mut writer);
        let stored = present.len();
        if stored == total { Ok(()) } else { Err(Error::Incomplete { stored, total }) }
    }

    /// Takes the messages of threads that end, and waits for one if there is none. The connections
    /// of streams stay open.
    fn end_threads(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let messages = self.shared.take_messages();
        if messages.is_empty() {
            return watch.wait(&[], None, &mut Vec::new());
        }
        for message in messages {
            match message {
                Message::Ended(reader, _) => {
                    self.serving -= 1;
                    self.local.push(*reader);
                }
                Message::Connected { .. } => self.connecting -= 1,
                Message::Panicked => self.hear(Message::Panicked)?,
            }
        }
        Ok(())
    }

    /// Fails if no stream is left that could bring missing bytes.
    fn check_shortfall(&mut self) -> Result<()> {
        let shortfall = self.shared.transfer.lock().shortfall();
        match (self.failed.take(), shortfall) {
            (Some(error), _) => Err(error),
            (None, Some((stored, total))) => Err(Error::Incomplete { stored, total }),
            (None, None) => Ok(()),
        }
    }

    /// Takes what a stream has brought that is of no further use.
    fn take_over(&mut self, mut reader: StreamReader<'a>) -> Result<()> {
        reader.writer.settle()?;
        self.copies.extend(reader.take_copies());
        self.bytes += reader.writer.bytes;
        self.shared.gather(&mut reader.writer);
        Ok(())
    }

    /// After a failure: writes what the streams served here have brought.
    pub(crate) fn settle(&mut self) {
        for reader in &mut self.local {
            let _ = reader.writer.settle();
        }
    }

    pub(crate) fn finish(mut self, cache: &mut Vec<Wire>) -> Received {
        if self.shared.transfer.lock().total().is_some() {
            // No connection serves another transfer.
            self.local.clear();
            self.shared.core.part(std::mem::take(&mut self.kept).into_iter().map(|(_, wire)| wire));
        }
        // Unused connections may be meant for the next transfer, unless this end made them and the
        // sender does not know of them.
        if self.shared.core.listener().is_none() {
            self.local.clear();
        }
        // Nor those that began to say something which was no part of this one.
        self.local.retain(StreamReader::is_untouched);
        self.kept.extend(self.local.drain(..).map(|reader| (reader.id, reader.wire)));
        self.kept.sort_by_key(|(id, _)| *id);
        cache.extend(self.kept.into_iter().map(|(_, wire)| wire));
        let Arrived { ranges, pieces } = self.shared.take_arrived();
        Received { bytes: self.bytes, streams: self.ended as u32, ranges, pieces }
    }
}
