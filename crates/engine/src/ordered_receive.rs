//! Receiving what is consumed in order only: listings, pipes, text.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use ropewalk_protocol::mode_e::{End, ReceiveError, Receiver, StreamReceiver, Want};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_transport::{Endpoint, Interest, Readiness};

use crate::Stage;
use crate::budget::BufferBudget;
use crate::connect::Core;
use crate::error::{Error, Result};
use crate::job::Received;
use crate::shortage::{Shortage, wants_more};
use crate::watch::Watch;
use crate::wire::Wire;

/// Bytes out of order that are kept, if the budget has them; those that follow have to wait.
const HELD_LIMIT: usize = 32 << 20;
/// And so many whatever others have of the budget.
const HELD_ANYWAY: usize = 1 << 20;
/// The approximate cost of keeping a block, besides its bytes.
const HELD_OVERHEAD: usize = 96;

/// See `DataChannel::receive_writer`.
pub(crate) fn receive(
    core: &Core,
    cache: &mut Vec<Wire>,
    sink: &mut dyn Write,
    watch: &mut Watch<'_>,
) -> Result<Received> {
    let progress = watch.progress;
    let mut bytes = 0;
    let delivered = receive_with(core, cache, watch, 0, &mut |_, _, data| {
        let began = Instant::now();
        sink.write_all(data).map_err(Error::Writer)?;
        progress.add_time(Stage::Destination, began.elapsed());
        progress.add_bytes(data.len() as u64);
        progress.add_received(bytes..bytes + data.len() as u64, &core.budget)?;
        bytes += data.len() as u64;
        Ok(())
    })?;
    let began = Instant::now();
    sink.flush().map_err(Error::Writer)?;
    progress.add_time(Stage::Destination, began.elapsed());
    Ok(Received { bytes, streams: delivered.streams, ranges: RangeSet::from_range(0..bytes), pieces: None })
}

/// The result of [`receive_with`].
pub(crate) struct Delivered {
    pub(crate) streams: u32,
    pub(crate) peer: Endpoint,
}

/// Takes the bytes in order.
type Deliver<'d> = dyn FnMut(&mut Watch<'_>, &Endpoint, &[u8]) -> Result<()> + 'd;

/// Receives, and gives all bytes to `deliver` in order. `start` is where the data begins on the
/// wire of MODE E.
pub(crate) fn receive_with(
    core: &Core,
    cache: &mut Vec<Wire>,
    watch: &mut Watch<'_>,
    start: u64,
    deliver: &mut Deliver<'_>,
) -> Result<Delivered> {
    if core.settings.mode == Mode::ExtendedBlock {
        return receive_blocks(core, cache, watch, start, deliver);
    }
    let mut wire = core.open(watch)?;
    let peer = wire.peer.clone();
    watch.begun(false)?;
    watch.progress.set_streams(1);
    loop {
        match read(&mut wire, core, watch)? {
            Some(0) => return Ok(Delivered { streams: 1, peer }),
            Some(n) => {
                deliver(watch, &peer, wire.ahead())?;
                wire.consume(n);
                watch.pulse()?;
            }
            None => watch.wait_for(wire.readiness(Interest::Read))?,
        }
    }
}

/// `None` where there is nothing to read now; 0 is the end.
fn read(wire: &mut Wire, core: &Core, watch: &Watch<'_>) -> Result<Option<usize>> {
    let Some(permitted) = core.control.permit(Wire::ahead_capacity()) else { return Ok(None) };
    let began = Instant::now();
    let result = wire.read_ahead(permitted.bytes());
    watch.progress.add_time(Stage::Network, began.elapsed());
    match result {
        Ok(n) => {
            permitted.moved(n);
            Ok(Some(n))
        }
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(Error::io(&wire.peer)(e)),
    }
}

fn receive_blocks(
    core: &Core,
    cache: &mut Vec<Wire>,
    watch: &mut Watch<'_>,
    start: u64,
    deliver: &mut Deliver<'_>,
) -> Result<Delivered> {
    let reused = !cache.is_empty();
    let mut wires = std::mem::take(cache);
    if !reused {
        wires.push(core.open(watch)?);
        if core.listener().is_none() {
            for _ in 1..core.settings.parallelism {
                wires.push(core.connect(0, Duration::MAX, watch)?);
            }
        }
    }
    watch.begun(reused)?;
    let peer = wires[0].peer.clone();
    let accept = RangeSet::from_range(start..u64::MAX);
    let mut order = Order {
        core,
        transfer: core.receiver(accept, 0),
        streams: Vec::new(),
        made: 0,
        done: Vec::new(),
        next: start,
        held: Held { budget: &core.budget, blocks: BTreeMap::new(), bytes: 0, reserved: 0 },
        deliver,
    };
    for wire in wires {
        order.join(wire)?;
    }
    order.run(reused, watch)?;
    let ended = order.transfer.ended() as u32;
    // Unused connections are for the next transfer, unless this end made them.
    let unused =
        order.streams.into_iter().filter(|stream| core.listener().is_some() && stream.is_untouched());
    cache.extend(order.done.into_iter().chain(unused.map(|stream| stream.wire)));
    Ok(Delivered { streams: ended, peer })
}

/// A stream of an ordered receiver.
struct Stream {
    wire: Wire,
    state: StreamReceiver,
    id: u32,
    payload: u64,
}

impl Stream {
    /// True where its next payload comes before others that are missing.
    fn is_early(&self, next: u64) -> bool {
        // Blocks that were sent again are few, and what is missing may come behind them.
        let early = matches!(self.state.want(), Want::Payload { file_offset, .. } if file_offset > next);
        early && !self.state.is_resent()
    }

    fn is_untouched(&self) -> bool {
        self.state.is_untouched() && self.wire.ahead().is_empty()
    }
}

/// Puts blocks in order; all streams are served by one thread.
struct Order<'o, 'd> {
    core: &'o Core,
    transfer: Receiver,
    streams: Vec<Stream>,
    made: u32,
    done: Vec<Wire>,
    /// Where the next bytes to deliver begin.
    next: u64,
    held: Held<'o>,
    deliver: &'o mut Deliver<'d>,
}

/// Blocks that came before others, by where they begin.
struct Held<'o> {
    budget: &'o BufferBudget,
    blocks: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
    reserved: usize,
}

impl Held<'_> {
    /// Makes room for `more` bytes. `false` where they have to wait.
    fn make_room(&mut self, more: usize) -> bool {
        let wanted = self.bytes + self.blocks.len() * HELD_OVERHEAD + more + HELD_OVERHEAD;
        if wanted > HELD_LIMIT {
            return false;
        }
        let missing = wanted.saturating_sub(HELD_ANYWAY + self.reserved);
        // Not block by block.
        let step = missing.next_multiple_of(HELD_ANYWAY);
        if missing > 0 && self.budget.reserve(step) {
            self.reserved += step;
            return true;
        }
        missing == 0
    }

    /// Keeps a block of which another stream may have brought a part.
    fn insert_again(&mut self, at: u64, block: &[u8]) {
        let before = self.blocks.get(&at).map_or(0, Vec::len);
        if before < block.len() {
            self.blocks.insert(at, block.to_vec());
            self.bytes += block.len() - before;
        }
    }

    /// `false` where another block has its place.
    fn insert(&mut self, at: u64, block: &[u8]) -> bool {
        let fresh = self.blocks.insert(at, block.to_vec()).is_none();
        self.bytes += if fresh { block.len() } else { 0 };
        fresh
    }

    /// The block that begins at `next`, or before it.
    fn take(&mut self, next: u64) -> Option<(u64, Vec<u8>)> {
        let entry = self.blocks.first_entry().filter(|entry| *entry.key() <= next)?;
        let (at, block) = entry.remove_entry();
        self.bytes -= block.len();
        if self.blocks.is_empty() {
            self.budget.release(std::mem::take(&mut self.reserved));
        }
        Some((at, block))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.budget.release(self.reserved);
    }
}

impl Order<'_, '_> {
    fn join(&mut self, wire: Wire) -> Result<()> {
        // All of them are served at once, since what comes next may come over any; they take no
        // threads.
        let limit = self.core.most_connections();
        let peer = wire.peer.clone();
        let state = self.transfer.add_stream().map_err(|_| Error::TooManyStreams { peer, limit })?;
        self.streams.push(Stream { wire, state, id: self.made, payload: 0 });
        self.made += 1;
        Ok(())
    }

    fn run(&mut self, reused: bool, watch: &mut Watch<'_>) -> Result<()> {
        let mut shortage = Shortage::new(reused);
        let mut ready = Vec::new();
        // Bytes may be here from the last transfer on.
        self.serve_all(self.streams.iter().map(|stream| stream.id).collect(), &mut shortage, watch)?;
        while !self.is_complete() {
            let alive = self.streams.len();
            if let Some((stored, total)) = self.transfer.shortfall().filter(|_| alive == 0) {
                return Err(Error::Incomplete { stored, total });
            }
            watch.progress.set_streams(alive as u32);
            let deadline = shortage.check(self.core, &self.transfer, alive, self.made as usize)?;
            // Those that are early have to wait while too much is held: what is missing comes over
            // the others.
            let full = !self.held.make_room(Wire::ahead_capacity());
            let served: Vec<usize> =
                (0..alive).filter(|&at| !full || !self.streams[at].is_early(self.next)).collect();
            if served.is_empty() && alive > 0 {
                return Err(self.out_of_order());
            }
            let listener = self.core.listener().filter(|_| wants_more(self.core, &self.transfer, alive));
            let mut interests: Vec<Readiness<'_>> =
                served.iter().map(|&at| self.streams[at].wire.readiness(Interest::Read)).collect();
            interests.extend(listener.map(|listener| listener.readiness()));
            let pending = |at: &usize| {
                let wire = &self.streams[*at].wire;
                wire.is_buffered() || !wire.ahead().is_empty()
            };
            if served.iter().any(pending) {
                watch.check(&interests, &mut ready)?;
                ready.extend((0..served.len()).filter(|&at| pending(&served[at])));
                ready.sort_unstable();
                ready.dedup();
            } else {
                let began = Instant::now();
                watch.wait(&interests, deadline, &mut ready)?;
                watch.progress.add_time(Stage::Network, began.elapsed());
            }
            let accepts = ready.contains(&served.len());
            let ids = ready.iter().filter_map(|&at| Some(self.streams[*served.get(at)?].id)).collect();
            self.serve_all(ids, &mut shortage, watch)?;
            if accepts {
                while let Some(wire) = self.core.accept()? {
                    self.join(wire)?;
                }
            }
        }
        if self.transfer.total().is_some() {
            // Before the first is closed: from then on the sender makes connections for the next
            // file.
            self.core.turn_away();
            // The sender closes its connections, those of streams that it has replaced as well.
            self.streams.clear();
            self.core.part(self.done.drain(..));
        }
        if let Some(stream) = self.streams.iter().find(|stream| !stream.state.has_no_header()) {
            return Err(Error::ExtraStream {
                peer: Some(stream.wire.peer.clone()),
                announced: self.transfer.ended(),
            });
        }
        if self.held.blocks.is_empty() { Ok(()) } else { Err(self.out_of_order()) }
    }

    /// As for [`crate::receive_coordinator`]: an end that made the connections needs one that has
    /// ended with EOD.
    fn is_complete(&self) -> bool {
        let witnessed = !self.done.is_empty() || self.streams.is_empty() || self.core.listener().is_some();
        self.transfer.is_complete() && (witnessed || self.transfer.total().is_none())
    }

    /// Whether another stream than this has brought a header.
    fn others_are_known(&self, at: usize) -> bool {
        let mut others = self.streams.iter().enumerate().filter(|(other, _)| *other != at);
        self.transfer.ended() > 0 || others.any(|(_, stream)| !stream.state.has_no_header())
    }

    fn out_of_order(&self) -> Error {
        Error::OutOfOrder { missing: self.next, held: self.held.bytes as u64 }
    }

    /// Serves these streams, the oldest first: who knows the protocol is known before passers-by.
    /// Those that end are taken out.
    fn serve_all(&mut self, mut ids: Vec<u32>, shortage: &mut Shortage, watch: &mut Watch<'_>) -> Result<()> {
        ids.sort_unstable();
        for id in ids {
            if let Some(stream) = self.streams.iter().position(|stream| stream.id == id) {
                self.serve(stream, shortage, watch)?;
            }
        }
        Ok(())
    }

    /// Reads once from a stream, if nothing is there yet, and takes what it brought.
    fn serve(&mut self, at: usize, shortage: &mut Shortage, watch: &mut Watch<'_>) -> Result<()> {
        let stream = &mut self.streams[at];
        let peer = stream.wire.peer.clone();
        if stream.wire.ahead().is_empty() {
            match read(&mut stream.wire, self.core, watch) {
                // Perhaps a stranger's.
                Ok(Some(0)) | Err(_) if stream.state.has_no_header() => {
                    shortage.lost(Error::PeerClosed { peer, stream: stream.id, bytes: 0, left: 0 });
                    self.transfer.remove_stream(&stream.state);
                    self.streams.swap_remove(at);
                    return Ok(());
                }
                // Other streams may bring all that it was to bring.
                Ok(Some(0)) | Err(Error::Io { .. }) if self.transfer.total().is_some() => {
                    shortage.lost(Error::PeerClosed {
                        peer,
                        stream: stream.id,
                        bytes: stream.payload,
                        left: 0,
                    });
                    self.streams.swap_remove(at);
                    return Ok(());
                }
                Ok(Some(0)) => {
                    let left = match stream.state.disconnected() {
                        Err(ReceiveError::Lost { left, .. }) => left,
                        _ => 0,
                    };
                    return Err(Error::PeerClosed { peer, stream: stream.id, bytes: stream.payload, left });
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        let others_are_known = self.streams[at].state.has_no_header() && self.others_are_known(at);
        loop {
            let full = !self.held.make_room(Wire::ahead_capacity());
            let stream = &mut self.streams[at];
            let ahead = stream.wire.ahead();
            let id = stream.id;
            let protocol = |source| Error::Protocol { peer: peer.clone(), stream: id, source };
            match stream.state.want() {
                Want::Nothing(end) => {
                    let mut stream = self.streams.swap_remove(at);
                    stream.wire.release();
                    if end == End::Reusable {
                        self.done.push(stream.wire);
                    }
                    return Ok(());
                }
                _ if ahead.is_empty() => return Ok(()),
                Want::Header { .. } => {
                    let first = stream.state.has_no_header();
                    match stream.state.header_bytes(ahead, &mut self.transfer) {
                        Ok(n) => stream.wire.consume(n),
                        // This is a stranger that found the port, if another peer knows the
                        // protocol. A stream that was counted among the ends is none.
                        Err(error)
                            if first
                                && others_are_known
                                && !matches!(error, ReceiveError::TooManyEnded { .. }) =>
                        {
                            ropewalk_transport::refused(&peer, error);
                            self.transfer.remove_stream(&self.streams[at].state);
                            self.streams.swap_remove(at);
                            return Ok(());
                        }
                        Err(error) => return Err(protocol(error)),
                    }
                }
                Want::Payload { .. } if full && stream.is_early(self.next) => return Ok(()),
                Want::Payload { file_offset, left, .. } => {
                    let n = left.min(ahead.len() as u64) as usize;
                    let again = self.transfer.total().is_some();
                    let end = file_offset + n as u64;
                    if file_offset < self.next && !again {
                        return Err(self.out_of_order());
                    }
                    if file_offset <= self.next {
                        if end > self.next {
                            (self.deliver)(watch, &peer, &ahead[(self.next - file_offset) as usize..n])?;
                            self.next = end;
                        }
                    } else if again {
                        self.held.insert_again(file_offset, &ahead[..n]);
                    } else if !self.held.insert(file_offset, &ahead[..n]) {
                        return Err(self.out_of_order());
                    }
                    stream.wire.consume(n);
                    stream.payload += n as u64;
                    stream.state.payload(n as u64, &mut self.transfer).map_err(protocol)?;
                    self.deliver_held(&peer, watch)?;
                }
            }
        }
    }

    /// Delivers what was held back for bytes that are there now.
    fn deliver_held(&mut self, peer: &Endpoint, watch: &mut Watch<'_>) -> Result<()> {
        while let Some((at, data)) = self.held.take(self.next) {
            if at < self.next && self.transfer.total().is_none() {
                return Err(self.out_of_order());
            }
            let brought = (self.next - at) as usize;
            if let Some(rest) = data.get(brought..) {
                (self.deliver)(watch, peer, rest)?;
                self.next += rest.len() as u64;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_within_the_budget() {
        let budget = BufferBudget::new(4 << 20);
        let block = vec![7; 64 << 10];
        let mut held =
            [(); 8].map(|()| Held { budget: &budget, blocks: BTreeMap::new(), bytes: 0, reserved: 0 });
        for held in &mut held {
            let mut at = 1;
            while held.make_room(block.len()) {
                assert!(held.insert(at, &block));
                at += block.len() as u64;
            }
            assert!(held.bytes >= HELD_ANYWAY - 2 * block.len(), "{} bytes", held.bytes);
            assert!(!held.insert(1, &block), "its place is taken");
            assert_eq!(held.take(0), None);
            assert_eq!(held.take(1).map(|(at, block)| (at, block.len())), Some((1, block.len())));
        }
        let all: usize = held.iter().map(|held| held.bytes).sum();
        assert!(all <= (4 << 20) + 8 * HELD_ANYWAY && budget.used() <= 4 << 20, "{all} bytes");
        drop(held);
        assert_eq!(budget.used(), 0);
    }
}
