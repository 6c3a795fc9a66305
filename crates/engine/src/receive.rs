//! Receiving.

use std::ops::Range;

use ropewalk_protocol::ascii::FromWire;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_transport::{Endpoint, Interest};

use crate::block_writer::{BlockWriter, CHUNK, Taken};
use crate::connect::Core;
use crate::error::{Error, Result};
use crate::job::{ReceiveJob, Received};
use crate::watch::Watch;
use crate::wire::Wire;
use crate::{ordered_receive, receive_blocks, receive_waiting};

pub(crate) fn receive(
    core: &Core,
    cache: &mut Vec<Wire>,
    job: &ReceiveJob<'_>,
    watch: &mut Watch<'_>,
) -> Result<Received> {
    if job.sink.wait_descriptor().is_some() {
        return receive_waiting::receive(core, cache, job, watch);
    }
    match (core.settings.mode, core.settings.representation) {
        (Mode::ExtendedBlock, RepresentationType::Image) => receive_blocks::receive(core, cache, job, watch),
        (Mode::Stream, RepresentationType::Image) => receive_stream(core, job, watch),
        (_, RepresentationType::Ascii) => receive_text(core, cache, job, watch),
    }
}

/// MODE S: the bytes of the connection fill the accepted ranges in order, until it ends.
fn receive_stream(core: &Core, job: &ReceiveJob<'_>, watch: &mut Watch<'_>) -> Result<Received> {
    let mut wire = core.open(watch)?;
    watch.begun(false)?;
    let progress = watch.progress;
    progress.set_streams(1);
    let mut writer = BlockWriter::new(job, progress, core, &wire);
    let result = fill(&mut wire, &mut writer, &job.accept, watch);
    // Bytes that have come are useful whatever happened.
    let settled = writer.settle();
    result.and(settled)?;
    Ok(Received {
        bytes: writer.bytes,
        streams: 1,
        ranges: std::mem::take(&mut writer.ranges),
        pieces: writer.pieces.take(),
    })
}

fn fill(
    wire: &mut Wire,
    writer: &mut BlockWriter<'_>,
    accept: &RangeSet,
    watch: &mut Watch<'_>,
) -> Result<()> {
    let mut unchecked = 0;
    for range in accept.iter() {
        let mut at = range.start;
        while at < range.end {
            if unchecked >= CHUNK as u64 {
                unchecked = 0;
                watch.check(&[], &mut Vec::new())?;
            }
            match writer.take(wire, at, range.end - at, 0)? {
                Taken::Bytes(n) => {
                    at += n;
                    unchecked += n;
                }
                Taken::Blocked => watch.wait_for(wire.readiness(Interest::Read))?,
                Taken::End => return Ok(()),
            }
        }
    }
    loop {
        match wire.read_ahead(1) {
            Ok(0) => return Ok(()),
            Ok(_) => return Err(Error::TooMuch { peer: wire.peer.clone(), expected: accept.len() }),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                watch.wait_for(wire.readiness(Interest::Read))?;
            }
            Err(e) => return Err(Error::io(&wire.peer)(e)),
        }
    }
}

/// TYPE A: lengths change on the way, so that the bytes have to be taken in order in MODE E as
/// well.
fn receive_text(
    core: &Core,
    cache: &mut Vec<Wire>,
    job: &ReceiveJob<'_>,
    watch: &mut Watch<'_>,
) -> Result<Received> {
    let progress = watch.progress;
    let mut text = FromWire::default();
    let mut local = Vec::new();
    let mut places = Places::new(&job.accept);
    let mut writer = BlockWriter::for_store(job, progress, core);
    let start = job.accept.iter().next().map_or(0, |range| range.start.saturating_sub(job.origin));
    let received = ordered_receive::receive_with(core, cache, watch, start, &mut |_, peer, data| {
        local.clear();
        text.convert(data, &mut local);
        places.store(&local, &mut writer).map_err(|full| full.unwrap_or_else(|| places.too_much(peer)))
    })?;
    local.clear();
    text.finish(&mut local);
    places
        .store(&local, &mut writer)
        .map_err(|full| full.unwrap_or_else(|| places.too_much(&received.peer)))?;
    Ok(Received {
        bytes: writer.bytes,
        streams: received.streams,
        ranges: std::mem::take(&mut writer.ranges),
        pieces: writer.pieces.take(),
    })
}

/// The accepted ranges, filled in order.
struct Places {
    left: std::vec::IntoIter<Range<u64>>,
    now: Range<u64>,
    total: u64,
}

impl Places {
    fn new(accept: &RangeSet) -> Self {
        Self { left: accept.iter().collect::<Vec<_>>().into_iter(), now: 0..0, total: accept.len() }
    }

    /// Fails with `None` where there is no place left.
    fn store(&mut self, mut data: &[u8], writer: &mut BlockWriter<'_>) -> Result<(), Option<Error>> {
        while !data.is_empty() {
            if self.now.is_empty() {
                self.now = self.left.next().ok_or(None)?;
            }
            let n = (self.now.end - self.now.start).min(data.len() as u64);
            let (part, rest) = data.split_at(n as usize);
            writer.store(part, self.now.start)?;
            self.now.start += n;
            data = rest;
        }
        Ok(())
    }

    fn too_much(&self, peer: &Endpoint) -> Error {
        Error::TooMuch { peer: peer.clone(), expected: self.total }
    }
}
